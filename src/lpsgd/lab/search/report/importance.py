"""How much of the spread of the scores each setting explains: fANOVA, as optuna computes it."""

from __future__ import annotations

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from lpsgd.lab.search.outcome import Outcome
from lpsgd.lab.search.space import Competitor

LEAST = 8  # trials below which a forest fitted to them says nothing


def importances(outcome: Outcome, competitor: Competitor) -> dict[str, float]:
    """The share of each searched setting, the largest first; empty if it cannot be told.

    Trials that diverged count with an accuracy of 0; pruned ones, which were scored earlier than
    the others, do not count.
    """
    study = optuna.create_study(direction="maximize")
    distributions = {name: choice.distribution() for name, choice in competitor.searched.items()}
    trials = [t for t in outcome.of(competitor.label) if t.epochs == outcome.sweep.how.epochs]
    for trial in trials:
        params = {
            name: choice.name(trial.settings[name]) for name, choice in competitor.searched.items()
        }
        study.add_trial(create_trial(params=params, distributions=distributions, value=trial.top1))
    if len(trials) < LEAST or len({trial.top1 for trial in trials}) < 2:
        return {}
    return get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
