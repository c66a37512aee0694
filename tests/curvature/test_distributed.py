"""Two processes with half the data each give what one process with all of it gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lpsgd.curvature import read_records
from tests.curvature.distributed_worker import results
from tests.curvature.nets import PROBLEMS


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    root = Path(__file__).parents[2]
    worker = Path(__file__).with_name("distributed_worker.py")
    paths = os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    run = subprocess.run(
        [*command, str(worker), str(folder)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


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
