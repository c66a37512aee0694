"""Builds the kernel of the fused update (src/lpsgd/fused.c), where a C compiler is found.

Everything else about the package is in pyproject.toml. The kernel is a plain shared library that
knows neither Python nor torch: building it needs neither's headers, one build serves every version
of both, and an installation without it works, by the eager paths.
"""

from __future__ import annotations

import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

# -fno-fast-math undoes what a user's CFLAGS may ask for: it would lose infinities and NaN, and set
# the whole process to flush denormal numbers.
UNIX_FLAGS = [
    "-O3",
    "-std=c11",
    "-fno-fast-math",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
]
CLONES = "-DLPSGD_CLONES"  # variants for newer x86-64 processors
# The best first; what the compiler does not know makes it fail, and the next is tried.
UNIX_VARIANTS = [
    ["-fopenmp", CLONES],
    ["-fopenmp"],
    ["-fopenmp-simd", CLONES],
    ["-fopenmp-simd"],
    [],
]


class BuildKernel(build_ext):
    """Builds the best variant of the kernel that the compiler can, or none."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + (".dll" if sys.platform == "win32" else ".so")

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # the source marks them; there is no PyInit function

    def build_extension(self, ext: Extension) -> None:
        unix = self.compiler.compiler_type == "unix"
        for variant in UNIX_VARIANTS if unix else [[]]:
            ext.extra_compile_args = UNIX_FLAGS + variant if unix else ["/O2", "/std:c11"]
            ext.extra_link_args = ["-fno-fast-math", *variant] if unix else []
            try:
                super().build_extension(ext)
            except (CCompilerError, ExecError, PlatformError) as failure:
                error = failure
            else:
                print(f"lpsgd: built the fused kernel with {' '.join(variant) or 'plain flags'}")
                return
        self.warn(
            f"the fused kernel was not built ({error}); lpsgd will use its eager paths. With a C "
            "compiler (gcc or clang) installed, install lpsgd again to get it"
        )


class Wheel(bdist_wheel):
    """Marks a wheel as made for this platform but for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    # `optional` lets an installation go on without the file
    ext_modules=[Extension("lpsgd._fused", ["src/lpsgd/fused.c"], libraries=["m"], optional=True)]
    if sys.platform != "win32"
    else [Extension("lpsgd._fused", ["src/lpsgd/fused.c"], optional=True)],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": Wheel},
)
