"""Starting from the weights of another run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lpsgd.lab.errors import UserError
from lpsgd.lab.plan import resolve
from lpsgd.lab.recipe import make_recipe, to_json
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.trainer import Trainer
from tests.lab.small_runs import CPU, assert_same_run, load, load_weights, small_recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "run"
    train(small_recipe(), folder)
    return folder


def test_weights_are_those_of_the_run_and_nothing_else_is(trained: Path) -> None:
    fresh, begun = small_recipe(seed=3), small_recipe(seed=3, start=str(trained))
    one, other = Trainer(fresh, load(fresh), CPU), Trainer(begun, load(begun), CPU)
    expected = load_weights(trained)["trainer"]["model"]
    for name, value in other.model.state_dict().items():
        assert torch.equal(value, expected[name])
    assert not all(
        torch.equal(a, b)
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )
    assert other.step == 0
    assert other.optimizer.state_dict()["state"] == {}
    mine, yours = next(one.data.train.epoch(0)), next(other.data.train.epoch(0))
    assert torch.equal(mine[0], yours[0])


def test_a_run_with_a_start_resumes_from_its_own_checkpoint(trained: Path, tmp_path: Path) -> None:
    from lpsgd.lab.training.options import RunOptions

    recipe = small_recipe(start=str(trained), seed=1)
    train(recipe, tmp_path / "straight")
    train(recipe, tmp_path / "paused", options=RunOptions(until_epoch=1))
    train(recipe, tmp_path / "paused")
    assert_same_run(tmp_path / "straight", tmp_path / "paused")


def test_the_recipe_names_the_checkpoint_whose_name_holds_its_digest(trained: Path) -> None:
    recipe = resolve({"start": str(trained)})
    assert recipe.start is not None
    assert Path(recipe.start).name.startswith("step-")
    assert resolve({"start": recipe.start}).start == recipe.start
    assert make_recipe(to_json(recipe)) == recipe


def test_a_recipe_without_start_has_the_digest_that_it_always_had() -> None:
    assert small_recipe().digest() == "7f7c7943"


def test_what_is_no_start(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"start is .*nowhere; allowed: the folder of a run"):
        resolve({"start": str(tmp_path / "nowhere")})
    with pytest.raises(UserError, match="allowed: the folder of a run"):
        resolve({"start": str(tmp_path)})
    wide = small_recipe(start=str(trained), width=16)
    with pytest.raises(UserError, match="holds the weights of another network: .*size mismatch"):
        Trainer(wide, load(wide), CPU)
    damaged = tmp_path / Path(small_recipe(start=str(trained)).start or "").name
    damaged.write_bytes(b"no weights")
    broken = small_recipe(start=str(damaged))
    with pytest.raises(UserError, match="not there, or damaged"):
        Trainer(broken, load(broken), CPU)
