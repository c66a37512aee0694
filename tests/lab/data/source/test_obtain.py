"""Getting data sets: the official archive from a local server, and checks of what is there."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from lpsgd.lab.data import catalogue, load
from lpsgd.lab.data.sets import cifar
from lpsgd.lab.data.source import obtain
from lpsgd.lab.data.source.download import md5
from lpsgd.lab.errors import LabError, UserError
from tests.lab.data.sets.test_cifar import make

IMAGES = 12


def tar(folder, *members):
    """A .tar.gz of a folder and of members given as (name, content)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        if folder is not None:
            archive.add(folder, arcname=folder.name)
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def published(server, tmp_path, monkeypatch):
    """A small CIFAR-10 in the official layout, published on the local server."""
    layout, content = make("cifar10", "binary", tmp_path / "published")
    archive = tar(tmp_path / "published" / layout.folder)
    server.files["cifar-10-binary.tar.gz"] = archive
    layout = dataclasses.replace(layout, url=server.url("cifar-10-binary.tar.gz"), md5=md5(archive))
    small = dataclasses.replace(catalogue.entry("cifar10"), layouts=(layout,))
    monkeypatch.setitem(catalogue._ENTRIES, "cifar10", small)
    return layout, content


@pytest.fixture
def get(tmp_path):
    """Call ``obtain.get`` for a fresh root; returns the lines that it said."""
    said = []

    def run(name="cifar10", **settings):
        obtain.get(name, tmp_path / "root", say=said.append, **settings)
        return said

    return run


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_get_downloads_unpacks_and_loads(published, get, server, tmp_path):
    layout, content = published
    server.break_after = [1000]
    get()
    # neither the archive nor anything half-way stays
    assert tree(tmp_path / "root") == [f"{layout.folder}/{file.name}" for file in layout.files]
    data = load("cifar10", tmp_path / "root", batch_size=10, augment=False)
    assert (data.train.size, data.test.size) == (5 * IMAGES, IMAGES)
    labels = [label for _, batch in data.train.plain() for label in batch.tolist()]
    assert labels == content["train"][1].tolist()


def killed_after(moment, layout, root):
    """What a process leaves that is killed at a moment of `obtain.get`, in a process of its own."""
    code = f"""
import dataclasses, os, signal, sys
from pathlib import Path
from lpsgd.lab.data import catalogue
from lpsgd.lab.data.source import obtain

layout = dataclasses.replace(
    catalogue.entry("cifar10").layouts[0], url={layout.url!r}, md5={layout.md5!r}, files=tuple(
        catalogue.PublishedFile(*file) for file in {[dataclasses.astuple(f) for f in layout.files]}
    )
)
small = dataclasses.replace(catalogue.entry("cifar10"), layouts=(layout,))
catalogue._ENTRIES["cifar10"] = small
function = getattr(obtain, {moment!r})

def die(*given, **settings):
    if {moment!r} != "_remove_workplace":
        function(*given, **settings)
    os.kill(os.getpid(), signal.SIGKILL)

obtain.{moment} = die
obtain.get("cifar10", Path({str(root)!r}), say=print)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("moment", ["download", "_extract", "unpack", "_remove_workplace"])
def test_what_a_killed_process_left_is_removed_by_the_next(published, get, tmp_path, moment):
    layout, _ = published
    root = tmp_path / "root"
    killed_after(moment, layout, root)
    own = root / f".{layout.folder}.lpsgd"
    assert own.is_dir()
    get()
    assert tree(root) == [f"{layout.folder}/{file.name}" for file in layout.files]
    assert [path.name for path in root.iterdir()] == [layout.folder]


def test_what_is_not_known_to_be_its_own_is_not_removed(published, get, tmp_path, server):
    layout, _ = published
    root = tmp_path / "root"
    theirs = [f".{layout.folder}-abcdefgh/cifar", "cifar-10-binary.tar.gz.part", ".x.lpsgd/file"]
    for name in theirs:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("somebody's")
    archive = root / "cifar-10-binary.tar.gz"
    archive.write_bytes(server.files[archive.name])  # brought by hand: used, and left there
    get()
    assert server.asked == []
    mine = [f"{layout.folder}/{file.name}" for file in layout.files]
    assert tree(root) == sorted([*theirs, archive.name, *mine])

    own = root / f".{layout.folder}.lpsgd"
    own.mkdir()
    (own / "precious").write_text("no mark of ours in this folder")
    (root / mine[0]).unlink()
    with pytest.raises(UserError, match="is in the way: it was not made by lpsgd"):
        get()
    assert tree(own) == ["precious"]


def test_a_download_that_brought_nothing_leaves_nothing(published, get, tmp_path, server):
    server.status = 404
    with pytest.raises(LabError, match="404"):
        get()
    assert list((tmp_path / "root").iterdir()) == []


def test_two_at_once_wait_for_each_other(published, server, tmp_path):
    """Both would add to what was received of the same file, and it would be right for neither."""
    said, begun, waits = [], threading.Event(), threading.Event()

    def hear(line):
        said.append(line)
        if "waiting" in line:
            waits.set()

    def report(done, total):  # of the first one, which is slow
        begun.set()
        waits.wait(30)

    def get_slowly():
        obtain.get("cifar10", tmp_path / "root", say=hear, report=report)

    first = threading.Thread(target=get_slowly)
    first.start()
    assert begun.wait(30)
    obtain.get("cifar10", tmp_path / "root", say=hear)
    first.join()
    assert f"another process is getting data into {tmp_path / 'root'}; waiting for it" in said
    assert said[-1].endswith("is there, checksums as published")
    assert server.asked == [0]


def test_what_is_there_is_not_downloaded_again(published, get, server):
    get()
    server.asked.clear()
    assert "checksums as published" in get()[-1]
    assert server.asked == []


def test_a_damaged_file_is_replaced(published, get, tmp_path):
    layout, _ = published
    get()
    path = tmp_path / "root" / layout.folder / "data_batch_3.bin"
    good = path.read_bytes()
    path.write_bytes(b"damaged")
    get()
    assert path.read_bytes() == good


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("../escaped", b"x")], "outside the destination"),
        ([("/escaped", b"x")], "data_batch_1.bin is missing"),
        ([("elsewhere/file", b"x")], "data_batch_1.bin is missing"),
        ([("cifar-10-batches-bin/data_batch_1.bin", b"x")], "data_batch_1.bin is damaged"),
    ],
)
def test_a_hostile_or_wrong_archive_changes_nothing(members, reason, published, tmp_path):
    layout, _ = published
    root = tmp_path / "root"
    root.mkdir()
    archive = root / "archive.tar.gz"
    archive.write_bytes(tar(None, *members))
    with pytest.raises(LabError, match=f"archive.tar.gz.*({reason})"):
        obtain.unpack(archive, layout, root)
    assert tree(root) == ["archive.tar.gz"]
    assert not (tmp_path / "escaped").exists()


def test_a_link_out_of_the_archive_is_refused(published, tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        link = tarfile.TarInfo("cifar-10-batches-bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/"
        archive.addfile(link)
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(stream.getvalue())
    with pytest.raises(LabError, match="cannot be unpacked"):
        obtain.unpack(path, published[0], tmp_path)


@pytest.mark.parametrize("content", [b"no archive", b"", None])
def test_a_broken_archive(content, published, tmp_path, server):
    whole = server.files["cifar-10-binary.tar.gz"]
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(LabError, match=r"archive.tar.gz cannot be unpacked"):
        obtain.unpack(archive, published[0], tmp_path)


def test_a_root_that_cannot_be_made(published, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match=r"cannot put cifar10 under .*file/root: .*Not a directory"):
        obtain.get("cifar10", tmp_path / "file" / "root", say=print)


def test_built_in_data_needs_no_download(get):
    assert get("digits") == ["digits needs no download"]


def test_image_folders_are_the_users_own(get):
    with pytest.raises(UserError, match=r"imagefolder is your own: put train/CLASS"):
        get("imagefolder")


def test_verify_finds_what_is_missing_and_damaged(published, get, tmp_path):
    root = tmp_path / "root"
    missing = list(obtain.verify("cifar10", root))
    assert [check.detail for check in missing] == ["is missing"] * 6
    get()
    assert all(check.ok for check in obtain.verify("cifar10", root))
    path = root / published[0].folder / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    wrong = [check for check in obtain.verify("cifar10", root) if not check.ok]
    assert [check.path for check in wrong] == [str(path)]
    assert wrong[0].detail.startswith("is damaged: its md5 is ")


def test_files_and_folders_that_may_not_be_read_are_named(published, get, tmp_path, monkeypatch):
    layout, _ = published
    get()
    closed = tmp_path / "root" / layout.folder / layout.files[1].name
    opened, read_bytes = Path.open, Path.read_bytes

    def deny(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def open_others(self, *given, **settings):
        return deny(self) if self == closed else opened(self, *given, **settings)

    def read_others(self):
        return deny(self) if self == closed else read_bytes(self)

    monkeypatch.setattr(Path, "open", open_others)
    monkeypatch.setattr(Path, "read_bytes", read_others)
    checks = {check.path: check.detail for check in obtain.verify("cifar10", tmp_path / "root")}
    assert checks[str(closed)] == "cannot be read: Permission denied"
    assert list(checks.values()).count("md5 as published") == len(layout.files) - 1
    with pytest.raises(UserError, match=f"{closed} cannot be read: Permission denied"):
        load("cifar10", tmp_path / "root", batch_size=4)

    (tmp_path / "images/train/ant").mkdir(parents=True)
    (tmp_path / "images/val").mkdir()
    monkeypatch.setattr(Path, "iterdir", deny)
    with pytest.raises(UserError, match="images/train cannot be read: Permission denied"):
        load("imagefolder", path=tmp_path / "images")


def test_verify_of_built_in_data_loads_it(tmp_path):
    (check,) = obtain.verify("digits", tmp_path)
    assert (check.ok, check.detail) == (True, "1442 training and 355 test examples")


def test_the_published_checksums_are_those_of_the_real_files(cifar10_root):
    layout = catalogue.entry("cifar10").layouts[0]
    assert all(check.ok for check in obtain.check_layout(layout, cifar10_root))
    assert cifar.find_layout(catalogue.entry("cifar10"), cifar10_root) is layout
