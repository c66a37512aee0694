"""Getting data sets onto this machine, and checking what is there. Needs no torch."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lpsgd.lab.data.catalogue import Entry, Layout, entry
from lpsgd.lab.data.source.download import Report, download, md5_of
from lpsgd.lab.errors import LabError, UserError
from lpsgd.lab.store.disk import lock
from lpsgd.lab.store.disk.files import remove


@dataclass(frozen=True)
class FileCheck:
    """What was found out about a file of a data set."""

    path: str
    ok: bool
    detail: str


def get(
    name: str,
    root: Path,
    *,
    say: Callable[[str], None],
    report: Report = lambda done, total: None,
) -> None:
    """Put the data set ``name`` under ``root``, complete and with the published checksums."""
    description = entry(name)
    if name == "imagefolder":
        raise UserError(
            f"imagefolder is your own: put train/CLASS/*.jpg and val/CLASS/*.jpg under"
            f" {root / 'imagefolder'}, or name their folder with the option `path`"
        )
    if not description.layouts:
        say(f"{name} needs no download")
        return
    layout = description.layouts[0]
    folder = root / layout.folder
    try:
        with _one_at_a_time(root, say):
            if all(check.ok for check in check_layout(layout, root)):
                say(f"{folder} is there, checksums as published")
            else:
                unpack(_archive(layout, root, say, report), layout, root)
                say(f"{folder}: checksums as published")
            _remove_workplace(_place(layout, root))
    except OSError as error:  # the network's errors are told apart where they arise
        raise LabError(f"cannot put {name} under {root}: {error}") from error


@contextmanager
def _one_at_a_time(root: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Wait for a process that gets data into the same root: two would add to the same part."""
    root.mkdir(parents=True, exist_ok=True)
    if lock.is_held(root):
        say(f"another process is getting data into {root}; waiting for it")
    with lock.holding(root):
        yield


def _archive(layout: Layout, root: Path, say: Callable[[str], None], report: Report) -> Path:
    """The published archive: one that was brought by hand, or else downloaded."""
    name = layout.url.rsplit("/", 1)[-1]
    if (brought := root / name).is_file() and md5_of(brought) == layout.md5:
        return brought
    with _workplace(layout, root) as place:
        say(f"download {layout.url}")
        download(layout.url, place / name, layout.md5, report=report)
        return place / name


def unpack(archive: Path, layout: Layout, root: Path) -> None:
    """Unpack ``archive`` beside its destination, check every file, then move the files there."""
    with _workplace(layout, root) as place:
        unpacked = place / "unpacked"
        remove(unpacked)  # of a process that was killed
        try:
            _extract(archive, unpacked)
            for check in check_layout(layout, unpacked):
                if not check.ok:
                    name = f"{layout.folder}/{Path(check.path).name}"
                    raise LabError(f"{archive}: {name} {check.detail}")
            folder = root / layout.folder
            folder.mkdir(exist_ok=True)
            for file in layout.files:
                (unpacked / layout.folder / file.name).replace(folder / file.name)
        finally:
            remove(unpacked)


def _extract(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive) as stream:
            stream.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise LabError(f"{archive} cannot be unpacked: {error}") from error


# What is downloaded and unpacked lies in a folder of our own until it is complete. It has a mark:
# whatever a killed process leaves there is known to be ours, and nothing else is ever removed.

_MARK = "made-by-lpsgd"


def _place(layout: Layout, root: Path) -> Path:
    return root / f".{layout.folder}.lpsgd"


@contextmanager
def _workplace(layout: Layout, root: Path) -> Iterator[Path]:
    """The folder of our own; it stays for as long as there is something in it to resume from."""
    place = _place(layout, root)
    place.mkdir(exist_ok=True)
    if not (place / _MARK).is_file() and any(place.iterdir()):
        raise UserError(f"{place} is in the way: it was not made by lpsgd; move it away")
    (place / _MARK).touch()
    try:
        yield place
    finally:
        if [path.name for path in place.iterdir()] == [_MARK]:
            _remove_workplace(place)


def _remove_workplace(place: Path) -> None:
    if not (place / _MARK).is_file():
        return
    for path in place.iterdir():
        if path.name != _MARK:
            remove(path)
    (place / _MARK).unlink()  # last: what a kill in between leaves is still known to be ours
    place.rmdir()


def verify(name: str, root: Path) -> Iterator[FileCheck]:
    """Check the files of a data set, one by one; a data set without files checks its loading."""
    description = entry(name)
    if description.layouts:
        yield from _verify_layouts(description, root)
    elif name == "imagefolder":
        yield from _verify_images(root)
    else:
        from lpsgd.lab.data import load

        data = load(name, root)
        yield FileCheck(
            name, True, f"{data.train.size} training and {data.test.size} test examples"
        )


def _verify_layouts(description: Entry, root: Path) -> Iterator[FileCheck]:
    """The layouts of which something is there, or the usual one if nothing is."""
    there = [layout for layout in description.layouts if (root / layout.folder).is_dir()]
    for layout in there or description.layouts[:1]:
        yield from check_layout(layout, root)


def check_layout(layout: Layout, root: Path) -> Iterator[FileCheck]:
    """Compare the files of a layout with their published checksums."""
    for file in layout.files:
        path = root / layout.folder / file.name
        if not path.is_file():
            yield FileCheck(str(path), False, "is missing")
            continue
        try:
            found = md5_of(path)
        except OSError as error:
            yield FileCheck(str(path), False, f"cannot be read: {error.strerror}")
            continue
        if found == file.md5:
            yield FileCheck(str(path), True, "md5 as published")
        else:
            yield FileCheck(
                str(path), False, f"is damaged: its md5 is {found}, should be {file.md5}"
            )


def _verify_images(root: Path) -> Iterator[FileCheck]:
    from lpsgd.lab.data.sets.imagefolder import place, read_image, scan

    for files in scan(place(root)):
        for path in files.paths:
            try:
                read_image(path)
            except LabError as error:
                yield FileCheck(str(path), False, str(error).removeprefix(f"{path} "))
            else:
                yield FileCheck(str(path), True, "decodes")
