"""Registers and spills of the Triton kernels, compiled for GPUs that need not be there.

    python benchmarks/triton_code.py

prints the table of docs/speed.md. The compilers that triton ships (ptxas) make the code; nothing is
run. Needs triton.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lpsgd import _triton as kernels

SHAPE = {"BLOCK": kernels.BLOCK, "SEARCH": 6}
F32, BF16 = tl.float32, tl.bfloat16
COMMON = {"table": "*i64", "tensors": "i32"}
UPDATE = {**COMMON, "factors": "*fp32", "weight": "fp32", "eps": "fp32"}
PARTIAL = {**COMMON, "partial": "*fp32", "blocks": "i32", "weight": "fp32", "eps": "fp32"}
FACTOR = {**COMMON, "partial": "*fp32", "blocks": "i32", "factors": "*fp32", "eps": "fp32"}


def variants() -> list[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """(name, kernel, arguments, constants)"""
    full = {"P": F32, "G": F32, "M": F32, **SHAPE}
    nearest = {**full, "STOCHASTIC": False}
    half = {"P": BF16, "G": BF16, "M": BF16, **SHAPE}
    found: list[tuple[str, Any, dict[str, str], dict[str, Any]]] = [
        ("update, float32", kernels._update_kernel, UPDATE, {**nearest, "FORM": 0}),
        ("update, no momentum", kernels._update_kernel, UPDATE, {**nearest, "M": None, "FORM": 0}),
        (
            "update, bfloat16",
            kernels._update_kernel,
            UPDATE,
            {**half, "STOCHASTIC": True, "FORM": 0},
        ),
    ]
    for form, name in ((1, "rms"), (2, "dual")):
        less = {key: value for key, value in full.items() if key != "P"}
        factor = {"FORM": form, "CHUNK": 1024}
        found += [
            (f"partial, {name}", kernels._partial_kernel, PARTIAL, {**less, "FORM": form}),
            (f"factor, {name}", kernels._factor_kernel, FACTOR, factor),
            (f"update, {name}", kernels._update_kernel, UPDATE, {**nearest, "FORM": form}),
        ]
    return found


def assembled(ptx: str, target: str) -> tuple[int, int]:
    """Registers of a thread, and bytes spilled, as the assembler says."""
    tools = sorted(Path(triton.__file__).parent.glob("backends/nvidia/bin/ptxas*"))
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        for tool in tools:  # there is one for newer GPUs, which knows newer versions of PTX
            command = [tool, "-v", f"--gpu-name={target}", file.name, "-o", "/dev/null"]
            shown = subprocess.run(command, capture_output=True, text=True).stderr
            if registers := re.search(r"Used (\d+) registers", shown):
                spilled = sum(map(int, re.findall(r"(\d+) bytes spill", shown)))
                return int(registers[1]), spilled
    raise RuntimeError(f"no assembler took the code for {target}: {shown}")


def main() -> None:
    print("| GPU | kernel | registers | bytes spilled |")
    print("|---|---|---:|---:|")
    for capability in (80, 90):
        for name, kernel, arguments, constants in variants():
            signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
            target = GPUTarget("cuda", capability, 32)
            made = triton.compile(source, target=target, options={"num_warps": kernels.WARPS})
            name_of = f"sm_{capability}{'a' if capability == 90 else ''}"
            registers, spilled = assembled(made.asm["ptx"], name_of)
            print(f"| sm_{capability} | {name} | {registers} | {spilled} |", flush=True)


if __name__ == "__main__":
    main()
