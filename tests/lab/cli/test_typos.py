"""A misspelt option or name is answered at once, with the nearest one that there is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lpsgd.lab.cli import app as cli
from lpsgd.lab.cli import reproduce

# command line -> what the answer must hold
TYPOS = {
    "trian": "'train'",
    "compare --optimzers sgd": "did you mean --optimizers?",
    "compare --learning-rate 1": "--optimizers sgd,lpsgdm:lr=VALUE",
    "compare --bs 32": "did you mean --batch-size?",
    "compare --opt sgd": "did you mean --optimizers?",
    "compare --optimizers sdg": "did you mean 'sgd'",
    "compare --optimizers sgd:lrr=1": "did you mean 'lr'?",
    "compare --reference adam": "did you mean 'adamw'?",
    "compare --dataset digts": "did you mean 'digits'?",
    "compare --dataset text --data pth=x": "did you mean 'path'",
    "compare --model mpl": "did you mean 'mlp'?",
    "compare --executor rya": "did you mean 'ray'?",
    "compare --decay al": "'all' or 'matrices'",
    "train --lr 0.1": "--optimizer lpsgdm:lr=VALUE",
    "train --learning-rate 0.1": "--optimizer lpsgdm:lr=VALUE",
    "train --weight-decay 0.1": "--optimizer lpsgdm:weight_decay=VALUE",
    "train --wd 0.1": "--optimizer lpsgdm:weight_decay=VALUE",
    "train --optimizers sgd": "did you mean --optimizer?",
    "train --optimizer sdg": "did you mean 'sgd'",
    "train --optimizer lpsgdm:momentun=0": "did you mean 'momentum'?",
    "train --model resnt18": "did you mean 'resnet18'",
    "train --dataset cifr10": "did you mean 'cifar10'",
    "train --strategy dpp": "did you mean 'ddp'",
    "train --curvature probs=2": "did you mean 'probes'",
    "suggest --stps 50": "did you mean --steps?",
    "suggest --lr 0.1": "--optimizer lpsgdm:lr=VALUE",
    "suggest --optimizer sdg": "did you mean 'sgd'",
    "suggest --model mpl": "did you mean 'mlp'?",
    "sweep --spce paper": "did you mean --space?",
    "sweep --space paper --lr 0.1": "in a file of --space",
    "sweep --space paper --optimizers sdg": "did you mean 'sgd'?",
    "sweep --space paper --sampler gird": "did you mean 'grid'?",
    "sweep --space paper --model mpl": "did you mean 'mlp'?",
    "sweep --space paper --dataset digts": "did you mean 'digits'?",
    "sweep --space SPACE": "unknown setting 'momentun' (did you mean 'momentum'?)",
    "reproduce --scal cpu": "did you mean --scale?",
    "reproduce tabel1": "did you mean 'table1'",
    "reproduce table1 --scale cpx": "did you mean 'cpu'?",
    "reproduce table1 --models resnet19": "did you mean 'resnet18'",
    "reproduce table1 --choose vg=plain": "did you mean 'vgg'",
    "reproduce --list --gpu A101": "did you mean 'A100'",
    "spectrum --layerwse x": "did you mean --layerwise?",
    "spectrum x --curvature probs=2": "did you mean 'probes'",
    "spectrum nowhere": "nowhere is neither a run's folder",
    "status --wtch x": "did you mean --watch?",
    "status nowhere": "'nowhere' is not a folder",
    "report --figre x": "did you mean --figure?",
    "report nowhere": "'nowhere' is not a folder",
    "optimizers --jsn": "did you mean --json?",
    "optimizers sdg": "did you mean 'sgd'",
    "bench trainig": "did you mean 'training'",
    "data lst": "'list'",
    "data get --rot x cifar10": "did you mean --root?",
    "data get cifr10": "did you mean 'cifar10'",
    "data verify cifr10": "did you mean 'cifar10'",
}
HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "optuna", "plotly")

ANSWER_ALL = """
import contextlib, io, json, sys
from lpsgd.lab.cli import app

answers = {}
for line in json.load(sys.stdin):
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        code = app.main(line.split())
    heavy = [name for name in HEAVY if name in sys.modules]
    answers[line] = code, heavy, " ".join(told.getvalue().split())
print(json.dumps(answers))
"""


def test_every_typo_is_answered_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    space = "[adamw]\nlr = [0.1, 0.2]\n[sgd]\nlr = [0.1, 0.2]\nmomentun = 0.9\n"
    (tmp_path / "SPACE").write_text(space)
    code = ANSWER_ALL.replace("HEAVY", repr(HEAVY))
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(list(TYPOS)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    for line, (code, heavy, told) in json.loads(done.stdout).items():
        assert TYPOS[line] in told, (line, told)
        assert (code, heavy) == (2, []), line
    assert {line.split()[0] for line in TYPOS} >= set(cli.COMMANDS)
    assert [path.name for path in tmp_path.iterdir()] == ["SPACE"]  # nothing was begun


def test_reproduce_names_the_targets_that_there_are() -> None:
    from lpsgd.lab.paper.targets import TARGETS

    assert list(TARGETS) == reproduce.TARGETS


def test_an_option_like_no_other_points_to_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "list", "--zzz"]) == 2
    told = "lpsgd: data list: unknown option '--zzz'; see `lpsgd data list --help`\n"
    assert capsys.readouterr().err == told
