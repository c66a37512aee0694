"""Each fuzzer tries one random input and checks what must hold of it, whatever the input.

It succeeds, or fails with the program's own error: one line, exit status 1 or 2, no traceback. No
file that was there before is changed, and no code that the input names is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import pickle
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from lpsgd.lab.cli import app
from lpsgd.lab.data.catalogue import Layout, PublishedFile
from lpsgd.lab.data.sets.cifar import read_split
from lpsgd.lab.data.sets.imagefolder import centre_crop, random_resized_crop, read_image
from lpsgd.lab.data.sets.text import read_file
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.plan import plan_comparison, plan_recipes, resolve
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.search.space_file import read_space
from lpsgd.lab.spectra.options import parse_options
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import RunOptions
from lpsgd.peers import grammar, registry
from tests.lab.fuzz.mutations import WEIRD, damage_bytes, damage_json, damage_value, text
from tests.lab.small_runs import small_recipe

CORPUS = Path(__file__).parents[1] / "store" / "legacy"
Fuzzer = Callable[[random.Random, Path], None]


def run_command(*arguments: str) -> int:
    """The exit status of a command that must not end in a traceback."""
    told = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        status = app.main(list(arguments))
    assert "Traceback" not in told.getvalue(), told.getvalue()
    assert status in (0, 1, 2), status
    if status:
        assert "lpsgd: " in told.getvalue() or "Error: " in told.getvalue(), told.getvalue()
    assert "\x1b" not in told.getvalue()
    return status


def digests(folder: Path) -> dict[str, bytes]:
    """What every file holds."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).digest() for path in files}


# ---------------------------------------------------------------------- stored files

COMMANDS = {
    "comparison": ("report", "status"),
    "paused": ("report", "status"),
    "reproduced": ("status",),
    "sweep": ("status",),
    "trained": ("report", "status", "spectrum"),
}


def stored_files(draw: random.Random, folder: Path) -> None:
    """A folder in which one file is damaged: report, status and spectrum read it."""
    name = draw.choice(list(COMMANDS))
    place = folder / name
    shutil.copytree(CORPUS / name, place)
    files = [path for path in sorted(place.rglob("*")) if path.suffix in (".json", ".jsonl")]
    path = draw.choice(files)
    data = path.read_bytes()
    damage = draw.choice((damage_bytes, damage_json, damage_json))
    path.unlink()
    if draw.random() < 0.02:
        path.mkdir()
    else:
        path.write_bytes(damage(draw, data))
    before = digests(place)
    command = draw.choice(COMMANDS[name])
    more: list[str] = ["--json"]
    if command != "status":
        more += ["--out", str(folder / "out")]
    if command == "spectrum":
        more += ["--checkpoints", "none"]
    run_command(command, str(place), *more)
    assert digests(place) == before, f"{command} changed the folder ({path.name})"


@cache
def _paused_run(folder: Path) -> tuple[Recipe, Path]:
    recipe = small_recipe("lpsgdm:lr=1e-2", epochs=2)
    train(recipe, folder, options=RunOptions(until_epoch=1))
    return recipe, folder


def checkpoints(draw: random.Random, folder: Path) -> None:
    """A checkpoint with a right digest and a content that is wrong somewhere; a run resumes."""
    recipe, whole = _paused_run(folder.parent / "paused-run")
    place = folder / "run"
    shutil.copytree(whole, place)
    (path,) = (place / "checkpoints").iterdir()
    state = torch.load(path, weights_only=True)
    buffer = io.BytesIO()
    if draw.random() < 0.3:
        data = damage_bytes(draw, path.read_bytes())
    else:
        torch.save(damage_value(draw, state), buffer)
        data = buffer.getvalue()
    path.unlink()
    step = path.name.split("-")[1]
    digest = hashlib.sha256(data).hexdigest()[:32]
    (place / "checkpoints" / f"step-{step}-{digest}.pt").write_bytes(data)
    rows = (place / "metrics.jsonl").read_bytes()
    try:
        assert train(recipe, place).state in ("complete", "diverged")
    except LabError:
        assert (place / "metrics.jsonl").read_bytes() == rows, "rows were lost"


# ---------------------------------------------------------------------- command lines


def command_lines(draw: random.Random, folder: Path) -> None:
    """Options and arguments at random, for commands that train nothing."""
    commands = [
        ["report", str(folder)],
        ["status", str(folder)],
        ["spectrum", str(folder)],
        ["optimizers"],
        ["data", "list"],
        ["data", "verify", "digits"],
        ["reproduce", "table1", "--dry-run"],
        ["train", "--dataset", "nowhere"],
        ["compare", "--dataset", "nowhere"],
        ["sweep", "--space", "paper", "--dataset", "nowhere"],
    ]
    options = (
        "--json --out --root --seeds --width --threads --epochs --optimizer --optimizers --jobs"
    )
    options += " --executor --curvature --recipe --recipes --reference --data --scale --lr"
    words = [*options.split(), *map(str, WEIRD)]
    given = []
    for _ in range(draw.randrange(4)):
        word = draw.choice(words) if draw.random() < 0.6 else text(draw)
        given.append(word.replace("--help", "--x").replace("--version", "--x"))
    run_command(*draw.choice(commands), *given)


def optimizer_texts(draw: random.Random, folder: Path) -> None:
    """The grammar of --optimizer, --optimizers, --data and --curvature."""
    name = draw.choice([*registry.names(), text(draw, 8), "torch.optim:SGD"])
    pairs = [
        f"{draw.choice(['lr', 'p', 'momentum', 'betas', 'eps', text(draw, 5)])}="
        f"{draw.choice([str(draw.choice(WEIRD)), text(draw, 8), '9' * 400, '(0.9,0.99)', '1e-3'])}"
        for _ in range(draw.randrange(3))
    ]
    given = f"{name}:{','.join(pairs)}" if pairs else name
    if any(word in given for word in (":system", "os.")):
        given = given.replace(":", "=")
    for listed in grammar.split_list(given, registry.names()):
        with contextlib.suppress(UserError):
            plan_comparison({}, [listed], range(1), folder / "out")
    with contextlib.suppress(UserError):
        parse_options(",".join(pairs))
    assert not (folder / "out").exists()


def recipe_files(draw: random.Random, folder: Path) -> None:
    """TOML with wrong values and damaged TOML, as a recipe and as a search space."""
    lines = []
    for name, info in Recipe.model_fields.items():
        if draw.random() < 0.15:
            value = draw.choice([info.default, draw.choice(WEIRD), text(draw, 6)])
            shown = json.dumps(value, default=str).replace("null", '""')
            lines.append(f"{name} = {shown}")
    content = "\n".join(lines).encode(errors="surrogatepass")
    if draw.random() < 0.5:
        content = damage_bytes(draw, content)
    path = folder / "some.toml"
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        plan_recipes([path], {}, range(1), folder / "out")
    space = b"[sgd]\nlr = { low = 1e-3, high = 1.0, log = true, points = 3 }\nmomentum = [0, 1]\n"
    path.write_bytes(damage_bytes(draw, space))
    with contextlib.suppress(UserError):
        read_space(str(path))
    with contextlib.suppress(UserError):
        key = draw.choice([*Recipe.model_fields])
        resolve({key: draw.choice(WEIRD)})


# ---------------------------------------------------------------------- data


@cache
def _pictures() -> list[tuple[str, bytes]]:
    found = []
    for kind, suffix in (("PNG", ".png"), ("JPEG", ".jpg"), ("GIF", ".png"), ("EPS", ".jpg")):
        buffer = io.BytesIO()
        Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(buffer, kind)
        found.append((suffix, buffer.getvalue()))
    return found


def images(draw: random.Random, folder: Path) -> None:
    """Damaged images, and those of formats that are not read."""
    suffix, data = draw.choice(_pictures())
    for _ in range(draw.randrange(3)):
        data = damage_bytes(draw, data)
    path = folder / f"picture{suffix}"
    path.write_bytes(data)
    with contextlib.suppress(LabError):
        image = read_image(path)
        assert centre_crop(image, 8).size == (8, 8)
        assert random_resized_crop(image, 8, random.Random(0)).size == (8, 8)
    with contextlib.suppress(LabError):
        read_file(path)


class _Planted:
    def __reduce__(self) -> Any:
        return exec, ("open('executed', 'w')",)


def data_pickles(draw: random.Random, folder: Path) -> None:
    """Damaged pickles, as CIFAR's python files are; some that would run code."""
    array = np.zeros((3, 3072), dtype=np.uint8)
    value: Any = {"data": array, "labels": [1, 2, 3], "names": ["a"]}
    if draw.random() < 0.3:
        value["names"] = [_Planted()]
    data = pickle.dumps(value, protocol=draw.randrange(5))
    if draw.random() < 0.8:
        data = damage_bytes(draw, data)
    (folder / "batch").write_bytes(data)
    layout = Layout("python", "", "", "", (PublishedFile("batch", "", "train", 3),))
    with contextlib.suppress(UserError):
        read_split(layout, "train", folder, classes=10, check=False)
    assert not Path("executed").exists(), "a pickle ran code"


FUZZERS: dict[str, Fuzzer] = {
    fuzzer.__name__: fuzzer
    for fuzzer in (
        stored_files,
        checkpoints,
        command_lines,
        optimizer_texts,
        recipe_files,
        images,
        data_pickles,
    )
}


def run_case(name: str, seed: int, folder: Path) -> None:
    """One input; the seed gives it again."""
    place = folder / f"{name}-{seed}"
    place.mkdir()
    try:
        FUZZERS[name](random.Random(f"{name} {seed}"), place)
    except Exception as error:
        error.add_note(f"fuzzer {name}, seed {seed}")
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)
