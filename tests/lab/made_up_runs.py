"""Run folders made up for tests, in the layout that training writes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lpsgd.lab.store.disk.jsonio import encode

ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "cpu": "A processor", "threads": 1}


def history(
    final: float, *, seed: int, epochs: int = 5, p_max: float | None = None, steps: int = 10
) -> list[dict[str, Any]]:
    """Rows of a run whose test accuracy ends exactly at ``final``, one point below its best."""
    rng = random.Random(f"{seed} {final}")
    rows = []
    for epoch in range(1, epochs + 1):
        done = epoch / epochs
        cosine = (1 + math.cos(math.pi * (epoch - 1) / max(1, epochs - 1))) / 2
        top1 = final - 60 * (1 - done) ** 2 + rng.uniform(-0.5, 0.5)
        if epoch == epochs - 1:
            top1 = final + 1.0
        if epoch == epochs:
            top1 = final
        rows.append(
            {
                "epoch": epoch,
                "step": epoch * steps,
                "lr": 0.1 * cosine,
                "p": None if p_max is None else (2 + (p_max - 2) * cosine if cosine else 2.0),
                "train_nll": 2.3 * math.exp(-3 * done) + rng.uniform(0, 0.02),
                "train_top1": min(100.0, top1 + 2),
                "train_nll_eval": None,
                "val_nll": None,
                "val_top1": None,
                "test_nll": 3 - 0.03 * top1,
                "test_top1": top1,
                "test_top5": min(100.0, top1 + 5),
                "update_rms": 0.01 * cosine + 1e-4,
                "grad_density": 0.6 + rng.uniform(0, 0.05),
                "grad_norm": 1.0 + rng.uniform(0, 0.3),
                "images_per_second": 1000.0,
                "seconds": 9.0 if epoch == 1 else 2.0,
                "optimizer_seconds": 0.9 if epoch == 1 else 0.2,
                "steps": steps,
            }
        )
    return rows


def write_run(
    folder: Path,
    label: str,
    seed: int,
    rows: Sequence[Mapping[str, Any]],
    *,
    state: str | None = "complete",
    reason: str | None = None,
    settings: Mapping[str, Any] | None = None,
    epochs: int = 5,
    state_bytes: int = 4000,
    **fields: Any,
) -> Path:
    """Write one run's folder; ``state=None`` leaves it unfinished."""
    folder.mkdir(parents=True)
    config = {
        "label": label,
        "optimizer": {
            "name": label.split(":")[0],
            "settings": dict({"lr": 0.1} if settings is None else settings),
        },
        "dataset": "digits",
        "model": "mlp",
        "width": 16,
        "seed": seed,
        "epochs": epochs,
        "batch_size": 128,
        "precision": "fp32",
        "threads": 1,
        **fields,
    }
    (folder / "config.json").write_text(json.dumps(encode(config)))
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
    lines = (json.dumps(encode(row), allow_nan=False) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text("".join(lines))
    if state is not None:
        result = {
            "state": state,
            "epochs": len(rows),
            "reason": reason,
            "step": sum(int(row["steps"]) for row in rows),
            "state_bytes": state_bytes,
            "parameters": 1000,
        }
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def write_plan(folder: Path, labels: Sequence[str], seeds: Sequence[int], epochs: int = 5) -> None:
    """Write ``comparison.json``; the first label is the reference."""
    plan = {
        "version": 1,
        "reference": labels[0],
        "optimizers": list(labels),
        "seeds": list(seeds),
        "epochs": epochs,
        "dataset": "digits",
        "model": "mlp",
        "command": f"lpsgd compare --optimizers {','.join(labels)}",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(plan))


def write_comparison(
    folder: Path,
    finals: Mapping[str, Sequence[float]],
    *,
    epochs: int = 5,
    p_max: Mapping[str, float] | None = None,
) -> Path:
    """A complete comparison whose runs end at the accuracies ``finals[label][seed]``."""
    seeds = range(max(map(len, finals.values())))
    write_plan(folder, list(finals), seeds, epochs)
    for number, (label, values) in enumerate(finals.items()):
        for seed, final in enumerate(values):
            rows = history(final, seed=seed, epochs=epochs, p_max=(p_max or {}).get(label))
            place = folder / "runs" / f"optimizer-{number}" / f"seed-{seed}"
            write_run(place, label, seed, rows, epochs=epochs)
    return folder
