"""Writing files so that a file under its final name is always complete."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lpsgd.lab.errors import LabError


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically: flushed to disk under another name, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes private files; give it the mode that an ordinary open() would have given
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, atomically.

    The name of a folder need not be UTF-8. What cannot be encoded becomes an escape, ``\\udcff``,
    which JSON reads as the same character again.
    """
    write_bytes(path, text.encode(errors="backslashreplace"))


def remove(path: Path) -> None:
    """Remove a file, or a folder so that no half of it is ever seen under its name."""
    if path.is_dir():
        doomed = path if path.name.startswith(".") else path.with_name(f".{path.name}.part")
        with suppress(FileNotFoundError):
            path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed write into a message that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"the disk is full ({reason}); make room and give the same command again"
        raise LabError(
            f"cannot write to {folder}: {reason}. What was saved before is kept."
        ) from error
