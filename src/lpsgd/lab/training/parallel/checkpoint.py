"""Checkpoints of several processes: each writes its parts, by torch.distributed.checkpoint (DCP).

A checkpoint is a folder: DCP's files with the tensors of model and optimizer, ``rest.pt`` with
everything else, and ``files.json`` with the digest of each file. The folder's name holds the digest
of files.json and appears in one rename. Reading needs no other process and gives unsharded tensors:
any number of processes, one among them, can resume from it.

DCP's own index of a checkpoint is a pickle, which could run code; it is read by `_Unpickler`, which
knows the few classes of such an index alone.
"""

from __future__ import annotations

import hashlib
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from lpsgd.lab.store.disk.files import write_bytes
from lpsgd.lab.store.disk.jsonio import read_json, write_json
from lpsgd.lab.training.checkpoint import SUFFIX
from lpsgd.lab.training.parallel.world import World

_LIST, _REST = "files.json", "rest.pt"
_SPREAD = ("model", "optimizer", "ema")  # what of a trainer's state DCP writes
_MARK = "tensor of this checkpoint"


def write(folder: Path, stem: str, state: dict[str, Any], rest: bytes, world: World) -> Path:
    """Write a checkpoint together with all other processes; ``rest`` is what `split` left."""
    part = folder / f".{stem}{SUFFIX}.part"
    world.from_main(lambda: _empty(part))
    try:
        save(state, storage_writer=filesystem.FileSystemWriter(part))
    except CheckpointException as failure:  # which is no Exception
        _, (error, _) = next(iter(failure.failures.items()))
        raise error from None
    if world.main:
        write_bytes(part / _REST, rest)
    own = [*part.glob(f"__{world.rank}_*")]
    if world.main:
        own += [part / _REST, part / ".metadata"]
    digests: dict[str, str] = {}
    for some in world.gather({path.name: _digest(path) for path in own}):
        digests.update(some)
    return world.from_main(lambda: _finish(part, stem, digests))


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _finish(part: Path, stem: str, digests: dict[str, str]) -> Path:
    write_json(part / _LIST, digests)
    final = part.with_name(f"{stem}-{_digest(part / _LIST)[:32]}{SUFFIX}")
    if final.exists():  # written before: the same name means the same bytes
        shutil.rmtree(part)
    else:
        part.rename(final)
    return final


def read(path: Path) -> dict[str, Any] | None:
    """Return the state in one folder, unsharded, or None if it is not what was written."""
    if not _is_intact(path):
        return None
    rest = torch.load(path / _REST, map_location="cpu", weights_only=True)
    reader = _Reader(path)
    strides: dict[str, list[int]] = rest["strides"]
    tensors: dict[str, Any] = {
        key: torch.empty_strided(entry.size, strides[key], dtype=entry.properties.dtype)
        for key, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it finds it odd that one process reads alone
        load(tensors, storage_reader=reader, no_dist=True)
    state: dict[str, Any] = rest["state"]
    state["trainer"].update({name: _put_back(state["trainer"][name], tensors) for name in _SPREAD})
    return state


def _is_intact(path: Path) -> bool:
    try:
        if _digest(path / _LIST)[:32] != path.stem.rpartition("-")[2]:
            return False
        digests = read_json(path / _LIST)
        return all(_digest(path / name) == digest for name, digest in digests.items())
    except FileNotFoundError:
        return False


def split(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Part a run's state into tensors for DCP, and the rest with marks where they were."""
    tensors: dict[str, Tensor] = {}
    trainer = {
        name: _take_out(value, name, tensors) if name in _SPREAD else value
        for name, value in state["trainer"].items()
    }
    # DCP forgets how a tensor lies in memory, on which the fast path of an optimizer depends
    strides = {key: list(tensor.stride()) for key, tensor in tensors.items()}
    return tensors, {"state": {**state, "trainer": trainer}, "strides": strides}


def _take_out(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[key] = value
        return {_MARK: key}
    if isinstance(value, dict):
        return {name: _take_out(item, f"{key}.{name}", tensors) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_take_out(item, f"{key}.{i}", tensors) for i, item in enumerate(value))
    return value


def _put_back(value: Any, tensors: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_MARK}:
            return tensors[value[_MARK]]
        return {name: _put_back(item, tensors) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_put_back(item, tensors) for item in value)
    return value


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class _Reader(filesystem.FileSystemReader):
    """DCP's reader, but for how it reads its index."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._folder = path

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index of the checkpoint."""
        with (self._folder / ".metadata").open("rb") as stream:
            metadata = _Unpickler(stream).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError("it is not the index of a checkpoint")
        if metadata.storage_meta is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata


class _Unpickler(pickle.Unpickler):
    _CLASSES = (
        "Metadata TensorStorageMetadata ChunkStorageMetadata TensorProperties MetadataIndex "
        "StorageMeta BytesStorageMetadata _MEM_FORMAT_ENCODING"
    )
    _ALLOWED = frozenset(
        {("torch.distributed.checkpoint.metadata", name) for name in _CLASSES.split()}
        | {
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            ("torch.serialization", "_get_layout"),
            ("torch", "Size"),
            ("pathlib", "PosixPath"),
            ("pathlib", "WindowsPath"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind
        raise pickle.UnpicklingError(f"an index of a checkpoint does not name {module}.{name}")
