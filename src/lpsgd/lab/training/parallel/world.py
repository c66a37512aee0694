"""Several processes that train one network, started by torchrun.

``torchrun --nproc-per-node N -m lpsgd train ...`` starts the same command N times. Each process
finds its number in the environment, computes its rows of every batch, and all take the same steps.
Process 0 alone writes the run's folder and speaks to the user.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from lpsgd.lab.errors import LabError, ToldElsewhere, UserError
from lpsgd.lab.training.parallel import launched

T = TypeVar("T")

_PATIENCE = 600.0  # seconds in which all machines must have started their processes


@dataclass(frozen=True)
class World:
    """The processes of one run, as one of them sees them; `ALONE` where there is but one.

    Every method but `mine` is a meeting: all processes must call it, in the same order.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    together: bool = False
    """Whether there is a process group, which a world of one may have, too."""

    @property
    def main(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def mine(self, rows: Tensor) -> Tensor:
        """The rows of a batch that this process computes: a contiguous piece, nearly equal ones."""
        return rows.tensor_split(self.size)[self.rank]

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether any process has set it."""
        if not self.together:
            return list(flags)
        # on the CPU, so that a GPU need not wait
        found = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return [bool(flag) for flag in found]

    def sum(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The sums over all processes of some float64 numbers, in one message."""
        if not self.together:
            return values
        total = torch.stack(values)
        dist.all_reduce(total)
        return total.unbind()

    def gather(self, value: T) -> list[T]:
        """What each process has, by its number."""
        if not self.together:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def from_main(self, action: Callable[[], T]) -> T:
        """Do something in process 0; its result, or its error, becomes that of all."""
        outcome: list[Any] = [None, None]
        if self.main:
            try:
                outcome[0] = action()
            except (LabError, OSError) as error:
                outcome[1] = error
        if self.together:
            dist.broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        return cast(T, outcome[0])

    def device(self, device: torch.device) -> torch.device:
        """The device of this process: of the GPUs of a machine, each takes its own."""
        if not self.together or device.type != "cuda":
            return device
        if device.index is not None:
            raise UserError(
                f"--device {device}: each process takes its own GPU; write cuda, and choose GPUs "
                "with the environment variable CUDA_VISIBLE_DEVICES"
            )
        there = torch.cuda.device_count()
        if self.local_rank >= there:
            raise UserError(
                f"torchrun was asked for more processes (this is number {self.local_rank + 1}) on "
                f"this machine than it has GPUs ({there}); give --nproc-per-node {there}"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)


ALONE = World()


@contextmanager
def joined() -> Iterator[World]:
    """Meet the other processes of this run, if torchrun started them.

    Whatever fails, one process tells the user: the first that knows. The others see a lost
    connection or the same error, and end without a word.
    """
    if not launched():
        yield ALONE
        return
    store, rank, size = next(iter(rendezvous("env://")))
    store = _fresh_part(store, rank, size)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield World(rank, size, int(os.environ["LOCAL_RANK"]), together=True)
    except Exception as error:
        if not _first_to_tell(store):
            code = error.exit_code if isinstance(error, LabError) else LabError.exit_code
            raise ToldElsewhere(code) from None
        # gloo's own errors have no class; its file names begin them
        gloo = isinstance(error, RuntimeError) and "gloo/" in str(error)
        if gloo or isinstance(error, dist.DistError):
            raise LabError(
                f"process {rank} of {size} lost the connection to another one, which was killed "
                "or crashed; the same command resumes from the last checkpoint"
            ) from error
        raise
    finally:
        dist.destroy_process_group()


def _fresh_part(store: Any, rank: int, size: int) -> PrefixStore:
    """A part of torchrun's store that no earlier life of these processes has written to.

    torchrun keeps its store when it restarts processes, and what the dead wrote there would be
    taken for the addresses of the living. So each process shows a new token; the first invites
    those whose tokens it sees, until all have found their own token in an invitation.
    """
    token = uuid.uuid4().hex
    store.set(f"present/{rank}", token)
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if rank == 0:
            tokens = [store.get(f"present/{other}").decode() for other in range(size)]
            store.set("invitation", ",".join(tokens))
        else:
            tokens = store.get("invitation").decode().split(",")
        if tokens[rank : rank + 1] == [token]:
            name = hashlib.sha256(",".join(tokens).encode()).hexdigest()
            store.set(f"{name}/accepted/{rank}", "")
            if store.check([f"{name}/accepted/{other}" for other in range(size)]):
                return PrefixStore(name, store)
        time.sleep(0.02)  # some of them are of an earlier life
    raise LabError(f"not all {size} processes of this run connected within {_PATIENCE:.0f} seconds")


def _first_to_tell(store: Any) -> bool:
    try:
        return bool(store.add("told", 1) == 1)
    except (RuntimeError, dist.DistError):  # who kept the store is gone
        return True
