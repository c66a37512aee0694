"""Several processes that train one network do what one process does with the same batches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lpsgd.lab.errors import Interrupted, UserError
from lpsgd.lab.recipe import Recipe
from lpsgd.lab.training.loop import train
from lpsgd.lab.training.options import STRATEGIES, RunOptions, check_options
from lpsgd.lab.training.parallel.world import World
from lpsgd.lab.training.trainer import Trainer
from lpsgd.peers import registry
from tests.lab.small_runs import StopAfter, load, load_weights, metrics, read, small_recipe
from tests.process_group import in_processes

from .distributed_runs import RECIPES, SMALL, TWO_CLASSES, here, in_double, run

QUICK = ("lpsgdm dual", "loop rms", "everything")
STOPPED = "everything"


def train_each(folder: Path, names: list[str]) -> dict[str, Any]:
    """Train these recipes by each strategy; return what this process heard of them."""
    heard: list[str] = []
    for strategy in STRATEGIES:
        for name in names:
            run(
                RECIPES[name],
                folder / strategy / name,
                strategy,
                listen=lambda event: heard.append(event.kind),
            )
    return {"heard": heard}


def stop_each(folder: Path) -> None:
    """Begin a run by each strategy; in its second epoch a signal reaches the last process alone."""
    world = here()
    for strategy in STRATEGIES:
        stop = StopAfter(14 if world.rank == world.size - 1 else 1000)
        with pytest.raises(Interrupted, match="saved in"):
            run(RECIPES[STOPPED], folder / strategy, strategy, stop=stop)


def continue_each(folder: Path) -> None:
    """Go on with what `stop_each` began, each by the other strategy."""
    for strategy, other in zip(STRATEGIES, reversed(STRATEGIES), strict=True):
        run(RECIPES[STOPPED], folder / strategy, other)


def scenario(folder: Path, names: list[str]) -> dict[str, Any]:
    """All that two processes do for the tests below."""
    stop_each(folder / "stopped")
    return {**train_each(folder / "runs", names), "refused": refused(folder / "refused")}


def refused(folder: Path) -> str:
    """What is said of an optimizer that multiplies parameters with matrices of its own."""
    recipe = small_recipe("pytorch_optimizer:Shampoo", batch_size=36)
    with pytest.raises(UserError) as error:
        run(recipe, folder, "fsdp2")
    return str(error.value)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder in which one process trained a recipe."""
    folder = tmp_path_factory.mktemp("alone")

    def trained(name: str) -> Path:
        if not (folder / name).exists():
            with in_double():
                train(RECIPES[name], folder / name)
        return folder / name

    return trained


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("two")
    return folder, in_processes(2, scenario, folder, list(QUICK))


def assert_equal_runs(found: Path, expected: Path) -> None:
    """The same to rounding: weights and state in float64, scores in the float32 of logits."""
    one, other = (load_weights(folder)["trainer"] for folder in (found, expected))
    for part in ("model", "optimizer", "ema"):
        assert_close(one[part], other[part], f"{found}: {part}")
    assert one["step"] == other["step"]
    for a, b in zip(metrics(found), metrics(expected), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            tolerance = 1e-5 if key.endswith(("nll", "eval")) else 1e-9
            same = a[key] is b[key] is None or a[key] == pytest.approx(b[key], rel=tolerance)
            assert same, f"{key}: {a[key]} and {b[key]}"
    assert read(found, "result.json") == read(expected, "result.json")
    assert read(found, "config.json") == read(expected, "config.json")


def assert_close(one: Any, other: Any, where: str) -> None:
    if isinstance(one, torch.Tensor):
        assert one.shape == other.shape, where
        assert one.dtype == other.dtype, where
        gap = (one.double() - other.double()).abs().max().item() if one.numel() else 0.0
        assert gap <= 1e-10, f"{where} differs by {gap}"
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_close(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_close(a, b, f"{where}.{index}")
    else:
        assert one == other, where


# ---------------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", QUICK)
def test_two_processes_equal_one(two: Any, alone: Any, strategy: str, name: str) -> None:
    assert_equal_runs(two[0] / "runs" / strategy / name, alone(name))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_all_recipes_equal_one_process(tmp_path: Path, alone: Any, size: int) -> None:
    """3 processes leave one of them without rows of the smallest layer and of the last batch."""
    names = [name for name in RECIPES if size == 3 or name not in QUICK]
    in_processes(size, train_each, tmp_path, names)
    for strategy in STRATEGIES:
        for name in names:
            assert_equal_runs(tmp_path / strategy / name, alone(name))


def train_registered(folder: Path, names: list[str]) -> None:
    """Train with every registered optimizer, the parameters sharded."""
    for name in names:
        run(small_recipe(name, **SMALL, **TWO_CLASSES, epochs=1), folder / name, "fsdp2")


@pytest.mark.slow
def test_every_registered_optimizer_steps_cut_parameters(tmp_path: Path) -> None:
    names = [name for name in registry.names() if not registry.get(name).create_graph]
    # the gradients here have no full rank: SOAP's basis of the rest is arbitrary, and its steps so
    names.remove("soap")
    in_processes(2, train_registered, tmp_path / "cut", names)
    for name in names:
        with in_double():
            train(small_recipe(name, **SMALL, **TWO_CLASSES, epochs=1), tmp_path / name)
        one, other = (
            load_weights(folder / name)["trainer"] for folder in (tmp_path / "cut", tmp_path)
        )
        for key, value in one["model"].items():
            torch.testing.assert_close(value, other["model"][key], rtol=1e-7, atol=1e-7, msg=name)


# ---------------------------------------------------------------------- one process writes


def test_one_process_writes_and_hears(two: Any) -> None:
    folder, (first, second) = two
    runs = len(STRATEGIES) * len(QUICK)
    assert first["heard"].count("epoch") == 2 * runs
    assert first["heard"].count("end") == runs
    assert second["heard"] == []
    for strategy in STRATEGIES:
        for name in QUICK:
            there = folder / "runs" / strategy / name
            assert [line["epoch"] for line in metrics(there)] == [1, 2]
            environment = read(there, "environment.json")
            assert (environment["processes"], environment["strategy"]) == (2, strategy)


# ---------------------------------------------------------------------- stops and checkpoints


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_process_goes_on_where_two_were_stopped(
    two: Any, alone: Any, tmp_path: Path, strategy: str
) -> None:
    shutil.copytree(two[0] / "stopped" / strategy, tmp_path / "run")
    (saved,) = (tmp_path / "run/checkpoints").iterdir()
    assert saved.suffix == ".dcp"
    assert {path.name for path in saved.iterdir()} >= {"__0_0.distcp", "__1_0.distcp", "rest.pt"}
    started: list[int] = []
    with in_double():
        train(
            RECIPES[STOPPED],
            tmp_path / "run",
            listen=lambda e: started.append(e.step) if e.kind == "start" else None,
        )
    assert started == [6]
    assert_equal_runs(tmp_path / "run", alone(STOPPED))


@pytest.mark.slow
def test_three_processes_go_on_where_one_and_two_were_stopped(
    two: Any, alone: Any, tmp_path: Path
) -> None:
    shutil.copytree(two[0] / "stopped", tmp_path / "two")
    for strategy in STRATEGIES:
        with in_double(), pytest.raises(Interrupted):
            train(RECIPES[STOPPED], tmp_path / "one" / strategy, stop=StopAfter(14))  # type: ignore[arg-type]
    for origin in ("one", "two"):
        in_processes(3, continue_each, tmp_path / origin)
        for strategy in STRATEGIES:
            assert_equal_runs(tmp_path / origin / strategy, alone(STOPPED))


def checkpoint_files(folder: Path) -> list[str]:
    (checkpoint,) = (folder / "checkpoints").iterdir()
    return sorted(path.name for path in checkpoint.iterdir())


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("damage", ["cut", "flip", "missing"])
def test_damage_to_any_file_of_a_checkpoint_is_seen(
    two: Any, tmp_path: Path, number: int, damage: str
) -> None:
    shutil.copytree(two[0] / "stopped/fsdp2", tmp_path / "run")
    (checkpoint,) = (tmp_path / "run/checkpoints").iterdir()
    files = checkpoint_files(tmp_path / "run")
    assert len(files) == 5
    path = checkpoint / files[number]
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    from lpsgd.lab.training.checkpoint import CheckpointStore

    warnings: list[str] = []
    assert list(CheckpointStore(checkpoint.parent, warnings.append).load()) == []
    assert "is damaged" in warnings[0]


def test_an_index_that_would_run_code_is_refused(two: Any, tmp_path: Path) -> None:
    import pickle

    from lpsgd.lab.training.parallel import checkpoint as dcp

    (checkpoint,) = (two[0] / "stopped/ddp/checkpoints").iterdir()
    copy = tmp_path / "copy.dcp"
    shutil.copytree(checkpoint, copy)

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    (copy / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(pickle.UnpicklingError, match="does not name"):
        dcp._Reader(copy).read_metadata()
    assert not (tmp_path / "ran").exists()


# ---------------------------------------------------------------------- rows


@pytest.mark.parametrize(("count", "parts", "size"), [(36, 1, 2), (35, 3, 3), (7, 2, 3), (9, 1, 4)])
def test_each_row_has_one_process(count: int, parts: int, size: int) -> None:
    recipe = small_recipe(batch_size=count, accumulate=parts)
    shares = []
    for rank in range(size):
        trainer = Trainer.__new__(Trainer)
        trainer.recipe, trainer.world = recipe, World(rank, size)
        shares.append(trainer.rows_here(count))
    whole = torch.arange(count).tensor_split(parts)
    for number, part in enumerate(whole):
        assert torch.equal(torch.cat([share[number] for share in shares]), part)


@pytest.mark.parametrize("dataset", ["digits", "synthetic", "text"])
def test_rows_of_a_batch_are_as_in_the_whole_batch(dataset: str) -> None:
    model = "gpt" if dataset == "text" else "mlp"
    data = load(small_recipe(dataset=dataset, model=model, train_size=64))
    wanted = torch.tensor([0, 3, 4, 31])
    for loader in (data.train, data.test):
        some = list(loader.epoch(1, 1, rows=lambda count: wanted))
        every = list(loader.epoch(1, 1))
        for (x, y), (whole_x, whole_y) in zip(some, every, strict=True):
            assert torch.equal(x, whole_x[wanted])
            per_row = len(whole_y) // len(whole_x)
            assert torch.equal(y.view(-1, per_row), whole_y.view(-1, per_row)[wanted])


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "strategy", "message"),
    [
        ({"batch_size": 8, "accumulate": 5}, "ddp", "batch_size=8 in accumulate=5 parts has no"),
        ({"batch_size": 1}, "ddp", "has no row for each of 2 processes"),
        ({"create_graph": True}, "ddp", "needs second derivatives"),
        (
            {"problem": {"metrics": {"loss": "min"}, "digest": ""}},
            "ddp",
            "is your own, and torchrun",
        ),
        ({"precision": "fp16"}, "fsdp2", "precision=fp16 does not work with --strategy fsdp2"),
    ],
)
def test_what_several_processes_cannot_do(
    changes: dict[str, Any], strategy: str, message: str
) -> None:
    recipe: Recipe = small_recipe("torch.optim:SGD:lr=0.1", **changes)
    with pytest.raises(UserError, match=message):
        check_options(recipe, RunOptions(strategy=strategy), World(0, 2, together=True))


def test_optimizers_that_cannot_step_sharded_parameters(two: Any) -> None:
    for found in two[1]:
        assert "pytorch_optimizer:Shampoo cannot step parameters that" in found["refused"]
        assert "--strategy ddp" in found["refused"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RunOptions(strategy="fsdp2"), "this one is alone"),
        (RunOptions(strategy="fsdp"), "unknown strategy 'fsdp'"),
    ],
)
def test_strategies_that_make_no_sense(tmp_path: Path, options: RunOptions, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(small_recipe(), tmp_path / "run", options=options)
    assert not (tmp_path / "run").exists()


def test_curvature_is_measured_by_one_process(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lpsgd spectrum"):
        train(
            small_recipe(),
            tmp_path / "run",
            options=RunOptions(curvature="every=1"),
            world=World(0, 2, together=True),
        )
