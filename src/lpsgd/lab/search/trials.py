"""The trials of one sweep in its storage: one optuna study for each competitor.

The search decides what the trials are (`lpsgd.lab.search.proposals`); the log keeps their scores,
lets several processes divide the work, and shows the sweep to optuna's own tools. Whoever works on
a trial holds its lock, which ends with the process: what a killed process left is free at once and
resumes from its checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import optuna
from optuna.trial import TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from lpsgd.lab.errors import LabError
from lpsgd.lab.search.definition import folder_name
from lpsgd.lab.search.method import Search
from lpsgd.lab.search.proposals import Ended, Score, TrialRequest
from lpsgd.lab.search.space import Competitor
from lpsgd.lab.search.storage import StorageUrl, open_locks, open_storage, reaching

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.study import Study


class TrialLog:
    """The studies of a sweep. Use `open_trial_log`."""

    def __init__(
        self, url: StorageUrl, name: str, competitors: Sequence[Competitor], how: Search
    ) -> None:
        self._url = url
        self._locks = open_locks(url)
        self._name = name
        self._competitors = {c.label: c for c in competitors}
        self._how = how
        self._storage: RDBStorage | None = None
        self._studies: dict[str, Study] = {}

    def open(self) -> None:
        """Make tables and studies, or find them."""
        with reaching(self._url), self._alone():
            self._storage = open_storage(self._url)
            for label in self._competitors:
                self._studies[label] = optuna.create_study(
                    storage=self._storage,
                    study_name=f"{self._name}/{label}",
                    direction=self._how.direction,
                    load_if_exists=True,
                )

    @property
    def shared(self) -> bool:
        """Whether other processes may be at work on the same trials."""
        return self._url.shared

    def enter(self, label: str, requests: Iterable[TrialRequest]) -> None:
        """Make sure that the trials asked for are in the study, under their numbers."""
        study = self._studies[label]
        distributions = {
            name: choice.distribution()
            for name, choice in self._competitors[label].searched.items()
        }
        with reaching(self._url), self._alone():
            known = {trial.number: trial.params for trial in study.get_trials(deepcopy=False)}
            for request in requests:
                if known.get(request.number, request.params) != request.params:
                    raise LabError(
                        f"{self._url.shown} has other settings for {label} trial {request.number}: "
                        "it was made by another version of optuna or lpsgd; use a new storage"
                    )
                if request.number not in known:
                    study.add_trial(
                        create_trial(
                            state=TrialState.RUNNING,
                            params=dict(request.params),
                            distributions=distributions,
                            user_attrs={"folder": folder_name(label, request.number)},
                        )
                    )

    def scores(self, label: str) -> dict[tuple[int, int], Score]:
        """What is known, by trial and epoch."""
        with reaching(self._url):
            trials = self._studies[label].get_trials(deepcopy=False)
        found = {}
        for trial in trials:
            for epoch, value in trial.intermediate_values.items():
                top1, nll = trial.user_attrs.get(f"epoch {epoch}", (None, None))
                found[trial.number, epoch] = Score(value, top1, nll)
        return found

    def record(self, label: str, number: int, epoch: int, score: Score) -> None:
        """Remember a score, for every process of the sweep."""
        storage, study_id = self._storage, self._studies[label]._study_id
        assert storage is not None
        with reaching(self._url):
            trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
            if storage.get_trial(trial_id).state.is_finished():
                return
            scores = [_finite(score.top1), _finite(score.nll)]
            storage.set_trial_user_attr(trial_id, f"epoch {epoch}", scores)
            # last, because a trial with this value counts as scored
            storage.set_trial_intermediate_value(trial_id, epoch, score.value)

    def close_trials(self, label: str, ended: Iterable[Ended]) -> None:
        """Mark trials as complete or pruned, for optuna's own tools."""
        study = self._studies[label]
        with reaching(self._url), self._alone():
            for end in ended:
                pruned = end.state == "pruned"
                study.tell(
                    end.number,
                    None if pruned else end.score.value,
                    state=TrialState.PRUNED if pruned else TrialState.COMPLETE,
                    skip_if_finished=True,
                )

    def claim(self, label: str, number: int) -> bool:
        """Take a trial, unless another process is at it."""
        with reaching(self._url):
            return self._locks.acquire(self._lock_name(label, number))

    def release(self, label: str, number: int) -> None:
        """Give a trial back."""
        with reaching(self._url):
            self._locks.release(self._lock_name(label, number))

    def close(self) -> None:
        """Give everything back, also when the server is gone."""
        ends = [self._locks.close]
        if self._storage is not None:
            ends += [self._storage.remove_session, self._storage.engine.dispose]
        for end in ends:
            with suppress(SQLAlchemyError):
                end()

    def _lock_name(self, label: str, number: int) -> str:
        return f"{self._name}/{label}/{number}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time: two that make the same tables or trials would make them twice."""
        self._locks.acquire("lpsgd sweep", wait=True)
        yield
        self._locks.release("lpsgd sweep")  # after an error the log is closed


@contextmanager
def open_trial_log(
    url: StorageUrl, name: str, competitors: Sequence[Competitor], how: Search
) -> Iterator[TrialLog]:
    """The trials of the sweep ``name`` at ``url``, made if it is new."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with reaching(url):
        log = TrialLog(url, name, competitors, how)
    try:
        log.open()
        yield log
    finally:
        log.close()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
