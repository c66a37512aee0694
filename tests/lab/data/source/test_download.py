"""Downloads against a local server that breaks off, lies and forgets."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lpsgd.lab.data.source.download import download, md5
from lpsgd.lab.errors import LabError

CONTENT = random.Random(0).randbytes(100_000)


@pytest.fixture
def get(server, tmp_path):
    """Download CONTENT from the server to a file; returns the file's path."""
    server.files["data.bin"] = CONTENT
    path = tmp_path / "folder" / "data.bin"

    def run(expected=CONTENT, **settings):
        settings = {"pause": 0.0, "attempts": 3} | settings
        download(server.url("data.bin"), path, md5(expected), **settings)
        return path

    run.path = path
    run.part = path.with_name("data.bin.part")
    return run


def test_a_whole_download(server, get):
    assert get().read_bytes() == CONTENT
    assert not get.part.exists()
    assert server.asked == [0]


def test_a_broken_connection_is_taken_up_where_it_broke(server, get):
    server.break_after = [30_000, 1, 40_000]
    progress = []
    assert get(report=lambda done, total: progress.append((done, total))).read_bytes() == CONTENT
    assert server.asked == [0, 30_000, 30_001, 70_001]
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)
    assert progress[-1] == (100_000, 100_000)
    assert {total for _, total in progress} == {100_000}


def test_progress_resets_the_count_of_failures(server, get):
    server.break_after = [10_000, 0, 0] * 9
    assert get().read_bytes() == CONTENT


def test_a_later_call_goes_on_from_what_was_kept(server, get):
    server.break_after = [60_000, 0, 0, 0]
    with pytest.raises(
        LabError, match=r"the connection was lost at 60000 of 100000 bytes; 60000 bytes are kept"
    ):
        get()
    assert not get.path.exists()
    assert get.part.read_bytes() == CONTENT[:60_000]
    server.asked.clear()
    assert get().read_bytes() == CONTENT
    assert server.asked == [60_000]


def test_a_server_that_ignores_ranges_sends_the_whole_again(server, get):
    server.ranges = False
    server.break_after = [60_000]
    assert get().read_bytes() == CONTENT
    assert server.asked == [0, 60_000]


def test_a_server_that_tells_no_length(server, get):
    server.send_length = False
    totals = set()
    assert get(report=lambda done, total: totals.add(total)).read_bytes() == CONTENT
    assert totals == {None}


def test_a_part_of_another_file_is_thrown_away(server, get):
    get.part.parent.mkdir()
    get.part.write_bytes(b"something else" * 1000)
    assert get().read_bytes() == CONTENT
    assert server.asked == [14_000, 0]


def test_a_part_longer_than_the_file_is_thrown_away(server, get):
    get.part.parent.mkdir()
    get.part.write_bytes(bytes(200_000))
    assert get().read_bytes() == CONTENT
    assert server.asked == [200_000, 0]


def test_a_whole_part_is_only_checked(server, get):
    get.part.parent.mkdir()
    get.part.write_bytes(CONTENT)
    assert get().read_bytes() == CONTENT


def test_a_wrong_file_never_gets_its_final_name(server, get):
    with pytest.raises(LabError, match=r"is not the published file: its md5 is \w{32}, should be"):
        get(expected=b"another")
    assert list(get.path.parent.iterdir()) == []
    assert server.asked == [0, 0]


def test_a_file_that_is_not_there_fails_at_once(server, get):
    server.files.clear()
    with pytest.raises(LabError, match=r"data.bin: HTTP 404"):
        get()
    assert server.asked == [0]


def test_a_server_in_trouble_is_asked_again(server, get):
    server.status = 503
    with pytest.raises(LabError, match="503"):
        get()
    assert server.asked == [0, 0, 0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_not_the_networks_fault(server, get):
    get.part.parent.mkdir()
    get.part.symlink_to("/dev/full")
    with pytest.raises(LabError, match=r"cannot write .*part: No space left"):
        get()
    assert server.asked == [0]


def test_a_folder_that_cannot_be_written_is_not_the_networks_fault(server, get):
    get.part.mkdir(parents=True)  # no file can be opened under the name of a folder
    with pytest.raises(LabError, match=r"cannot write .*part: Is a directory"):
        get()
    assert len(server.asked) == 1


def test_a_file_that_is_there_is_not_downloaded_again(server, get):
    get.path.parent.mkdir()
    get.path.write_bytes(CONTENT)
    assert get() == get.path
    assert server.asked == []
    get.path.write_bytes(CONTENT[:-1])
    assert get().read_bytes() == CONTENT


def test_nobody_answers(server, tmp_path):
    url = server.url("data.bin").replace(str(server.server.server_port), "9")
    with pytest.raises(LabError, match=r"cannot download http://127.0.0.1:9/data.bin: .*refused"):
        download(url, tmp_path / "data.bin", "", pause=0, attempts=2)
