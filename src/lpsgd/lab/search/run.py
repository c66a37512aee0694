"""Run what the search asks for until it is satisfied, alone or with other processes."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.execution.executor import ExecutorChoice
from lpsgd.lab.execution.local import default_jobs, keeping_workers
from lpsgd.lab.execution.run import carry_out
from lpsgd.lab.plan import Task, resolve
from lpsgd.lab.recipe import to_json
from lpsgd.lab.search.ledger import Ledger, folder_name, open_ledger
from lpsgd.lab.search.proposals import WORST, Ended, Request, Score, Search, search
from lpsgd.lab.search.space import Competitor
from lpsgd.lab.search.storage import StorageUrl
from lpsgd.lab.store.files import writing
from lpsgd.lab.store.jsonio import read_json, write_json
from lpsgd.lab.store.manifest import write_plan
from lpsgd.lab.store.run_folder import check_folder
from lpsgd.lab.store.run_record import load_run

if TYPE_CHECKING:
    from lpsgd.lab.recipe import Recipe
    from lpsgd.lab.training.options import RunOptions

# Of the recipe, what each trial decides for itself.
OWN_FIELDS = ("optimizer", "settings", "closure", "create_graph")
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Sweep:
    """What is searched and how, in which folder. ``values`` is the recipe that trials share."""

    values: Mapping[str, Any]
    competitors: Sequence[Competitor]
    how: Search
    out: Path | None = None

    @property
    def name(self) -> str:
        """Differs between different sweeps: what a shared storage knows this one by."""
        text = json.dumps(self.definition(), sort_keys=True)
        recipe = self.recipe_of_all()
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"sweep-{recipe.dataset}-{recipe.model}-{digest}"

    @property
    def folder(self) -> Path:
        """Where everything goes."""
        return self.out or Path("runs") / self.name

    def recipe_of_all(self) -> Recipe:
        """What trials have in common, with some optimizer."""
        return resolve({**self.values, "optimizer": self.competitors[0].optimizer})

    def recipe(self, competitor: Competitor, settings: Mapping[str, Any]) -> Recipe:
        """The recipe of one trial with these settings."""
        own = {"optimizer": competitor.optimizer, "settings": dict(settings)}
        return resolve({**self.values, **own})

    def tasks(self, competitor: Competitor, request: Request) -> list[Task]:
        """The runs of one trial: one for each seed."""
        folder = self.folder / folder_name(competitor.label, request.number)
        label = f"{competitor.label} trial {request.number}"
        first = self.recipe(competitor, competitor.settings(request.params))
        recipes = [first.with_changes(seed=first.seed + k) for k in range(self.how.seeds)]
        return [Task(label, recipe, folder / f"seed-{recipe.seed}") for recipe in recipes]

    def definition(self) -> dict[str, Any]:
        """Everything that decides the result, as plain values."""
        shared = to_json(self.recipe_of_all())
        found = {
            "recipe": {name: v for name, v in shared.items() if name not in OWN_FIELDS},
            "search": asdict(self.how),
            "space": {c.label: c.to_json() for c in self.competitors},
        }
        plain: dict[str, Any] = json.loads(json.dumps(found))
        return plain


def carry_through(
    sweep: Sweep, url: StorageUrl, choice: ExecutorChoice, options: RunOptions, *, command: str
) -> dict[str, list[Ended]]:
    """Do the sweep, or what is left of it; return the trials of each competitor."""
    _write_definition(sweep, url, command)
    opened = open_ledger(url, sweep.name, sweep.competitors, sweep.how)
    with opened as ledger, keeping_workers():  # a rung begins where the one before has ended
        return _satisfy(sweep, ledger, choice, replace(options, score_test=False))


def _satisfy(
    sweep: Sweep, ledger: Ledger, choice: ExecutorChoice, options: RunOptions
) -> dict[str, list[Ended]]:
    """Answer the searches of all competitors, rung by rung, until each has returned."""

    plan = _Plan(sweep)

    def begin(competitor: Competitor) -> Any:
        def tell(ended: list[Ended]) -> None:
            ledger.close_trials(competitor.label, ended)
            plan.close(competitor.label, ended)

        return search(competitor, sweep.how, tell)

    searches = {c.label: begin(c) for c in sweep.competitors}
    wanted: dict[str, list[Request]] = {label: next(s) for label, s in searches.items()}
    ended: dict[str, list[Ended]] = {}
    while wanted:
        plan.ask(wanted)
        plan.write()
        scores = _find_out(sweep, ledger, wanted, choice, options)
        for label in list(wanted):
            try:
                wanted[label] = searches[label].send(scores[label])
            except StopIteration as last:
                ended[label] = last.value
                del wanted[label]
    plan.write()
    return {c.label: ended[c.label] for c in sweep.competitors}


class _Plan:
    """The trials known so far, and what is asked of each, for `lpsgd status`."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._competitors = {c.label: c for c in sweep.competitors}
        self._trials: dict[tuple[str, int], list[Task]] = {}
        self._notes: dict[tuple[str, int], dict[str, Any]] = {}

    def ask(self, wanted: Mapping[str, Sequence[Request]]) -> None:
        for label, requests in wanted.items():
            for request in requests:
                key = label, request.number
                if key not in self._trials:
                    self._trials[key] = self._sweep.tasks(self._competitors[label], request)
                self._notes[key] = {"until_epoch": request.epoch}

    def close(self, label: str, ended: Iterable[Ended]) -> None:
        for end in ended:
            self._notes[label, end.number] = {"until_epoch": end.epochs, "state": end.outcome}

    def write(self) -> None:
        tasks = [task for trial in self._trials.values() for task in trial]
        notes = {task.folder: self._notes[key] for key, t in self._trials.items() for task in t}
        write_plan(self._sweep.folder, tasks, notes)


def _find_out(
    sweep: Sweep,
    ledger: Ledger,
    wanted: Mapping[str, Sequence[Request]],
    choice: ExecutorChoice,
    options: RunOptions,
) -> dict[str, list[Score]]:
    """The scores that are wanted: known, trained here, or trained by another process."""
    for label, requests in wanted.items():
        ledger.enter(label, requests)
    waiting = False
    while True:
        missing = _unknown(ledger, wanted)
        if not missing:
            known = {label: ledger.scores(label) for label in wanted}
            return {k: [known[k][r.number, r.epoch] for r in v] for k, v in wanted.items()}
        # alone, all at once; beside others, only what can be started now
        most = _at_once(choice, sweep) if ledger.shared else None
        mine: list[tuple[str, Request]] = []
        for label, request in missing:
            if (most is None or len(mine) < most) and ledger.claim(label, request.number):
                mine.append((label, request))
        if mine:
            _do(sweep, ledger, mine, choice, options)
            continue
        if not waiting:
            print(f"waiting for {len(missing)} trials of other processes", file=sys.stderr)
            waiting = True
        time.sleep(_POLL_SECONDS)


def _at_once(choice: ExecutorChoice, sweep: Sweep) -> int | None:
    """How many runs begin at once; None where that is up to a cluster."""
    if choice.name == "ray":
        return None
    return choice.jobs or default_jobs(Task("", sweep.recipe_of_all(), sweep.folder))


def _unknown(ledger: Ledger, wanted: Mapping[str, Sequence[Request]]) -> list[tuple[str, Request]]:
    """What has no score yet, the competitors taking turns."""
    known = {label: ledger.scores(label) for label in wanted}
    missing = [
        (place, label, request)
        for label, requests in wanted.items()
        for place, request in enumerate(requests)
        if (request.number, request.epoch) not in known[label]
    ]
    return [(label, request) for _, label, request in sorted(missing, key=lambda m: m[0])]


def _do(
    sweep: Sweep,
    ledger: Ledger,
    mine: Sequence[tuple[str, Request]],
    choice: ExecutorChoice,
    options: RunOptions,
) -> None:
    """Train the trials that this process has claimed, tell their scores, and let go of them."""
    competitors = {c.label: c for c in sweep.competitors}
    try:
        # another process may have told a score just before the claim
        known = {label: ledger.scores(label) for label, _ in mine}
        tasks = {
            (label, request.number): sweep.tasks(competitors[label], request)
            for label, request in mine
            if (request.number, request.epoch) not in known[label]
        }
        epoch = mine[0][1].epoch  # the searches go up the rungs together
        try:
            failures = _train(tasks.values(), epoch, sweep.how, choice, options)
        finally:  # also what was done when the user interrupted
            unscored = []
            for (label, number), trial in tasks.items():
                scores = [read_score(task, epoch, sweep.how) for task in trial]
                if (score := mean_score(scores, sweep.how)) is not None:
                    ledger.record(label, number, epoch, score)
                else:
                    unscored.append(f"{label} trial {number}: no score after epoch {epoch}")
        if failures or unscored:
            lines = failures or unscored
            raise LabError(
                "\n  ".join([f"{len(lines)} runs failed:", *lines])
                + "\nThe same command tries them again."
            )
    finally:
        for label, request in mine:
            ledger.release(label, request.number)


def _train(
    trials: Iterable[Sequence[Task]],
    epoch: int,
    how: Search,
    choice: ExecutorChoice,
    options: RunOptions,
) -> list[str]:
    """Train the runs of some trials until ``epoch``; return what failed, in words."""
    runs = [task for trial in trials for task in trial]
    for task in runs:
        check_folder(task.folder, task.recipe)
    todo = [task for task in runs if read_score(task, epoch, how) is None]
    return carry_out(todo, choice, replace(options, until_epoch=epoch)) if todo else []


def mean_score(scores: Sequence[Score | None], how: Search) -> Score | None:
    """The mean over the seeds of a trial; the worst if one diverged, None if one is missing."""
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        return None
    if any(score.nll is None for score in known):
        return Score(WORST[how.metric], 0.0, None)
    value, top1, nll = (fmean(getattr(s, n) for s in known) for n in ("value", "top1", "nll"))
    return Score(value, top1, nll)


def read_score(task: Task, epoch: int, how: Search) -> Score | None:
    """A run's validation score after ``epoch``, or None if it has not got there.

    A run that diverged has the worst score from then on.
    """
    run = load_run(task.folder, task.folder)
    for row in run.history:
        top1, nll = row.val_top1, row.val_nll
        # weights that are NaN have an accuracy, too: that of chance
        known = top1 is not None and nll is not None and math.isfinite(top1 + nll)
        if row.epoch == epoch and known:
            value = top1 if how.metric == "top1" else nll
            assert value is not None
            return Score(value, top1, nll)
    if run.state == "diverged":
        return Score(WORST[how.metric], 0.0, None)
    return None


def _write_definition(sweep: Sweep, url: StorageUrl, command: str) -> None:
    """Write sweep.json, or make sure that the one in the folder says the same."""
    path = sweep.folder / "sweep.json"
    wanted = sweep.definition()
    if path.exists():
        try:
            found = read_json(path)["definition"]
        except (KeyError, TypeError, UserError) as error:
            raise UserError(f"{path} cannot be read ({error}): choose another folder") from None
        if found != wanted:
            raise UserError(
                f"{sweep.folder} belongs to another sweep: "
                f"{'; '.join(_differences(found, wanted))}. Nothing was changed; choose another "
                "folder with --out"
            )
        return
    if sweep.folder.is_dir() and any(p for p in sweep.folder.iterdir() if p.name[0] != "."):
        raise UserError(
            f"{sweep.folder} holds other files and no sweep.json: choose another folder"
        )
    with writing(sweep.folder):
        write_json(
            path, {"version": 1, "definition": wanted, "storage": url.shown, "command": command}
        )


def _differences(found: Any, wanted: Any, where: str = "") -> list[str]:
    """In words, where two plain values differ."""
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return [f"{where} is {found!r} there and {wanted!r} here"] if found != wanted else []
    keys = [*wanted, *(key for key in found if key not in wanted)]
    return [
        line
        for key in keys
        for line in _differences(
            found.get(key, "absent"), wanted.get(key, "absent"), f"{where} {key}".strip()
        )
    ]
