"""Run by torchrun: measure on this process's share of the data and write what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lpsgd.curvature import CurvatureMonitor, hessian_operator, spectral_density, top_eigenvalues
from tests.curvature.nets import CE, PROBLEMS


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


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), Path(sys.argv[1])
    out = {
        # Shares of 7 and 5 samples: not equal, so that a wrong weighting shows.
        name: results(name, lambda batches: batches[rank::2], True, folder)
        for name in PROBLEMS
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(out))
    dist.destroy_process_group()
