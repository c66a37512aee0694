"""Two processes with half the data each give what one process with all of it gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lpsgd.curvature import (
    CurvatureMonitor,
    hessian_operator,
    read_records,
    spectral_density,
    top_eigenvalues,
)
from tests.curvature.nets import CE, PROBLEMS
from tests.process_group import in_processes


def results(name: str, share, distributed: bool, folder: Path) -> dict:
    problem = PROBLEMS[name]()
    model = DistributedDataParallel(problem.model) if distributed else problem.model
    operator = hessian_operator(
        model, CE, share(problem.batches), batchnorm=problem.batchnorm, distributed=distributed
    )
    vector = torch.linspace(-1, 1, operator.shape[0], dtype=torch.float64)
    monitor = CurvatureMonitor(
        model,
        CE,
        share(problem.batches),
        folder / name,
        batchnorm=problem.batchnorm,
        lanczos=6,
        samples=None,
        distributed=distributed,
        stream=None,
    )
    return {
        "samples": operator.samples,
        "product": (operator @ vector).tolist(),
        "gradient": operator.gradient().tolist(),
        "values": top_eigenvalues(operator, 3, tol=1e-12).values.tolist(),
        "nodes": [nodes.tolist() for nodes in spectral_density(operator, 2, 6).nodes],
        "monitor": monitor(0)["nodes"],
    }


def measure_shares(folder: Path) -> dict:
    """What a process finds with its share: 7 or 5 samples, so that a wrong weighting shows."""
    rank = dist.get_rank()
    return {
        name: results(name, lambda batches: batches[rank::2], True, folder) for name in PROBLEMS
    }


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    return folder, in_processes(2, measure_shares, folder)


@pytest.mark.parametrize("name", PROBLEMS)
def test_two_processes_equal_one(name, two_processes, tmp_path):
    folder, ranks = two_processes
    alone = results(name, lambda batches: batches, False, tmp_path)
    for rank in ranks:
        assert rank[name]["samples"] == 12
        for key in ("product", "gradient", "values", "nodes", "monitor"):
            difference = np.abs(np.array(rank[name][key]) - np.array(alone[key])).max()
            assert difference < 1e-10, key
    assert ranks[0][name] == ranks[1][name]
    assert len(read_records(folder / name / "curvature.jsonl")) == 1
