"""Every registered optimizer: its formula, saving and loading, dtypes, groups, absent gradients."""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lpsgd.peers import factory, registry
from tests.oracles import peers as oracles
from tests.peers.quadratic_walks import largest_difference, walk
from tests.torch_versions import TORCH

EPOCHS, STEPS_PER_EPOCH = 5, 2
STEPS = EPOCHS * STEPS_PER_EPOCH


def cosine_by_epoch(t: int) -> float:
    """The paper's schedule: p is constant within each of the five epochs."""
    return oracles.cosine_p(6, EPOCHS)((t - 1) // STEPS_PER_EPOCH + 1)


@dataclass(frozen=True)
class Entry:
    rule: oracles.Rule
    settings: dict[str, Any] = field(default_factory=dict)  # over the registered defaults
    of_oracle: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-12
    resumed: float = 0.0  # how near a resumed walk is
    kept: float | None = None  # state over parameters, where it is no whole number


ANNEALED = {"p": cosine_by_epoch}
ENTRIES = {
    "lpsgd": Entry(oracles.lpsgd, of_oracle=ANNEALED),
    "lpsgdm": Entry(oracles.lpsgdm, of_oracle=ANNEALED),
    # 12 of 18 coordinates are a matrix's, which has 3 rows
    "lpmuon": Entry(oracles.lpmuon, kept=(12 + 3 + 2 * 6) / 18),
    "signsgd": Entry(oracles.sign_sgd),
    "signum": Entry(oracles.signum),
    "lion": Entry(oracles.lion),
    "lionk": Entry(oracles.lion_k, {"p_schedule": "cosine"}, of_oracle=ANNEALED),
    "gsgd": Entry(oracles.gsgd, {"eps": 1e-13}, {"total_steps": STEPS}, tolerance=1e-9),
    "stacey": Entry(oracles.stacey, {"mode": "pp", "tau": 0.1, "dual_lr": 0.05, "eps": 1e-3}),
    "powersgdm": Entry(oracles.power_sgdm),
    "powerstep": Entry(oracles.power_step),
    "muon": Entry(oracles.muon, tolerance=1e-5, kept=(12 + 2 * 6) / 18),
    # of the matrix of 3 x 4, two squares of each side beside twice the parameters
    "soap": Entry(oracles.soap, {"every": 3}, tolerance=1e-10, kept=2 + 2 * (9 + 16) / 18),
    "sgd": Entry(oracles.sgd, {"nesterov": True}),
    "sgdw": Entry(oracles.sgdw),
    "adam": Entry(oracles.adam),
    "adamw": Entry(oracles.adamw),
    "cadamw": Entry(oracles.cautious_adamw),
    # torch keeps the product of the coefficients, one for each of 3 tensors, in float32, but in the
    # parameter's dtype once it was loaded
    "nadamw": Entry(oracles.nadamw, tolerance=1e-7, resumed=1e-7, kept=2 + 3 / 18),
    "adagrad": Entry(oracles.adagrad),
    "rmsprop": Entry(oracles.rmsprop, {"momentum": 0.5}),
}
COMMON = {"lr": 0.02, "weight_decay": 0.1}
every = pytest.mark.parametrize("name", registry.names())


class Model(nn.Module):
    """The parameters of the oracles' problem; ``only`` makes it a part of them."""

    def __init__(
        self, problem: oracles.Quadratic, dtype: torch.dtype, only: tuple[int, ...] = (0, 1, 2)
    ) -> None:
        super().__init__()
        starts = list(problem)
        chosen = [torch.tensor(starts[i], dtype=dtype) for i in only]
        self.weights = nn.ParameterList([nn.Parameter(start) for start in chosen])


def build(name: str, model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return factory.build(
        name,
        model,
        {**COMMON, **ENTRIES[name].settings, **settings},
        total_steps=STEPS,
        steps_per_epoch=STEPS_PER_EPOCH,
        total_epochs=EPOCHS,
    )


def expected(name: str, problem: oracles.Quadratic, **settings: Any) -> list[list[np.ndarray]]:
    entry = ENTRIES[name]
    everything = {
        **registry.get(name).settings,
        **COMMON,
        **entry.settings,
        **entry.of_oracle,
        **settings,
    }
    taken = inspect.signature(entry.rule).parameters
    return problem.run(entry.rule, STEPS, **{k: v for k, v in everything.items() if k in taken})


def test_every_name_has_an_oracle() -> None:
    assert set(ENTRIES) == set(registry.names())


@every
def test_ten_steps_on_a_quadratic(name: str) -> None:
    problem = oracles.Quadratic()
    model = Model(problem, torch.float64)
    points = walk(build(name, model), list(model.parameters()), problem, STEPS)
    assert largest_difference(points, expected(name, problem)) < ENTRIES[name].tolerance


@every
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 2e-5), (torch.bfloat16, 0.1)])
def test_two_dtypes(name: str, dtype: torch.dtype, allowed: float) -> None:
    problem = oracles.Quadratic()
    model = Model(problem, dtype)
    points = walk(build(name, model), list(model.parameters()), problem, STEPS)
    assert largest_difference(points, expected(name, problem)) < allowed


@every
def test_save_and_load(name: str) -> None:
    problem = oracles.Quadratic()
    straight = Model(problem, torch.float64)
    points = walk(build(name, straight), list(straight.parameters()), problem, STEPS)
    model = Model(problem, torch.float64)
    first = build(name, model)
    walk(first, list(model.parameters()), problem, STEPS // 2)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = build(name, model, lr=0.5)  # the file's rate holds
    second.load_state_dict(torch.load(file, weights_only=True))
    rest = walk(second, list(model.parameters()), problem, STEPS // 2, first=STEPS // 2 + 1)
    difference = largest_difference(rest, [visited[STEPS // 2 :] for visited in points])
    assert difference <= ENTRIES[name].resumed


@every
def test_two_groups(name: str) -> None:
    if name == "adagrad" and TORCH < (2, 13):
        pytest.skip("needs torch 2.13: Adagrad keeps no state of a group that is added before")
    problem = oracles.Quadratic()
    model, added = Model(problem, torch.float64, only=(0, 1)), Model(problem, torch.float64, (2,))
    optimizer = build(name, model)
    decay = "decoupled_decay" if name == "sgdw" else "weight_decay"
    optimizer.add_param_group({"params": list(added.parameters()), "lr": 0.005, decay: 0.3})
    points = walk(optimizer, [*model.parameters(), *added.parameters()], problem, STEPS)
    wanted = [*expected(name, problem)[:2], expected(name, problem, lr=0.005, weight_decay=0.3)[2]]
    assert largest_difference(points, wanted) < ENTRIES[name].tolerance


@every
def test_none_gradients(name: str) -> None:
    problem = oracles.Quadratic()
    model = Model(problem, torch.float64)
    still, *moved = reversed(list(model.parameters()))
    moved.reverse()
    optimizer = build(name, model)
    optimizer.step()  # nobody has a gradient yet
    points = walk(optimizer, moved, problem, STEPS)
    assert largest_difference(points, expected(name, problem)[:2]) < ENTRIES[name].tolerance
    assert torch.equal(still.detach(), torch.tensor(list(problem)[2]))


@every
def test_the_description_tells_the_state(name: str) -> None:
    problem = oracles.Quadratic()
    model = Model(problem, torch.float64)
    optimizer = factory.build(
        name, model, {}, total_steps=STEPS, steps_per_epoch=STEPS_PER_EPOCH, total_epochs=EPOCHS
    )
    walk(optimizer, list(model.parameters()), problem, 1)
    kept = 0
    for state in optimizer.state.values():
        kept += sum(v.numel() for k, v in state.items() if torch.is_tensor(v) and k != "step")
    told = registry.get(name).state
    expected = ENTRIES[name].kept or (0 if told == "none" else int(told[0]))
    assert kept / sum(p.numel() for p in model.parameters()) == pytest.approx(expected, abs=1e-12)


def test_the_table_of_the_documentation_has_every_optimizer() -> None:
    text = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text(encoding="utf-8")
    rules = re.findall(r"^\| `(\w+)` \| `", text, flags=re.MULTILINE)
    costs = re.findall(r"^\| (\w+) \| [\d.]+ \| [\d.]+ \|", text, flags=re.MULTILINE)
    assert rules == registry.names()
    assert costs == ["copy", *registry.names()]


def test_the_benchmark_measures_every_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "step.py"
    spec = importlib.util.spec_from_file_location("step_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    step = sys.modules["step_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step)
    # fused beside fused: torch's optimizers take another path unless they are told
    for name in ("sgd", "sgdw", "adam", "adamw", "adagrad"):
        made = step.registered(name)([torch.nn.Parameter(torch.ones(3))])
        assert all(group["fused"] for group in made.param_groups), name
    step.LISTS["ResNet-18"] = lambda: [(4, 3), (5,)]
    assert step.main(["--all", "--seconds", "0", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["optimizer"] for row in rows] == ["copy", step.PEER, *registry.names()]
    assert all(row["ratio"] > 0 for row in rows)
