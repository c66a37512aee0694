"""Install lpsgd in every way that the README names into an empty environment, and use it there.

    python scripts/smoke.py [folder, default dist]

builds sdist and wheel in the folder and tries both, a clone, a git URL, and an extra that is added
afterwards. The checks themselves are in CHECKS, which the new environment's Python runs: nothing of
this repository takes part but what was installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent

CHECKS = """
import copy, importlib.metadata, subprocess, sys
from pathlib import Path
import torch
import lpsgd
from lpsgd import LPSGD, LPSGDM, CosineP, LinearAlpha, PScheduler, param_groups

assert "site-packages" in lpsgd.__file__, lpsgd.__file__
assert importlib.metadata.version("lpsgd") == lpsgd.__version__
assert Path(lpsgd.__file__).with_name("py.typed").exists()

def losses(model, optimizer, steps):
    out = []
    for step in steps:
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out

for kind in (LPSGD, LPSGDM):
    make = lambda model: kind(param_groups(model, 0.01), lr=0.02, p=CosineP(6, total_steps=40))
    model = torch.nn.Linear(4, 1)
    optimizer = make(model)
    first = losses(model, optimizer, range(20))
    twin = copy.deepcopy(model)
    resumed = make(twin)
    resumed.load_state_dict(optimizer.state_dict())
    rest = losses(model, optimizer, range(20, 40))
    assert losses(twin, resumed, range(20, 40)) == rest
    assert rest[-1] < first[0] and optimizer.param_groups[0]["p"] == 2.0

for command in (["-m", "lpsgd", "--help"], ["-c", "import lpsgd.optax"]):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 1, done
    assert "pip install 'lpsgd[" in done.stderr, done.stderr

from lpsgd import fused
print(f"lpsgd {lpsgd.__version__} works; fused kernel: {fused.unavailable() or 'built'}")
"""


def run(*command: str | Path) -> str:
    """Run a command; on failure show what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        shown = " ".join(map(str, command))
        raise SystemExit(f"failed: {shown[:200]}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def check_sdist(sdist: Path) -> None:
    """Every file that git knows is in it, but for those of the repository itself."""
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    if not (ROOT / ".git").exists() or not shutil.which("git"):  # no list to compare with
        return
    known = run("git", "-C", ROOT, "ls-files").splitlines()
    lost = [name for name in known if not name.startswith(".") and name not in held]
    if lost:
        raise SystemExit(f"not in {sdist.name}: {', '.join(lost)}")


def from_git(place: Path) -> list[str]:
    """What pip is told in a clone, and for a git URL; nothing where this is no repository."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        return []
    run("git", "clone", "--quiet", ROOT.as_uri(), place / "clone")
    # with the name before it, older versions of pip take a URL of a host only
    return [str(place / "clone"), f"git+{(place / 'clone').as_uri()}"]


def main(folder: Path) -> None:
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (sdist,) = folder.glob("lpsgd-*.tar.gz")
    (wheel,) = folder.glob("lpsgd-*.whl")
    check_sdist(sdist)
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        python = Path(place, "Scripts" if sys.platform == "win32" else "bin", "python")
        pip = (python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt")
        for package in (str(wheel), *from_git(Path(place)), str(sdist)):
            run(*pip, package)
            print(f"{package}: {run(python, '-I', '-c', CHECKS)}")
            if package != str(sdist):
                run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "lpsgd")
        run(*pip, "lpsgd[curvature]")  # which pip finds installed, and adds what the extra needs
        run(python, "-I", "-c", "import lpsgd.curvature")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve())
