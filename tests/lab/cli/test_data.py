"""``lpsgd data`` as a user types it."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from lpsgd.lab.cli import app as cli
from lpsgd.lab.cli import data as data_command
from tests.lab.data.conftest import server  # noqa: F401 - a fixture
from tests.lab.data.source.test_obtain import published  # noqa: F401 - a fixture


def test_list_names_every_data_set(capsys, tmp_path):
    assert cli.main(["data", "list", "--root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for name in ("digits", "cifar10", "cifar100", "imagefolder", "text", "synthetic"):
        assert any(line.startswith(name) for line in out.splitlines())
    assert f"data root: {tmp_path}" in out


def test_list_as_json(capsys, tmp_path):
    assert cli.main(["data", "list", "--json", "--root", str(tmp_path)]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["root"] == str(tmp_path)
    states = {line["name"]: line["state"] for line in listed["data"]}
    assert states["digits"] == "present"
    assert states["cifar10"] == states["imagefolder"] == "missing"


@pytest.mark.usefixtures("published")
def test_get_verify_damage_verify(capsys, tmp_path):
    root = ["--root", str(tmp_path / "root")]
    assert cli.main(["data", "verify", "cifar10", *root]) == 1
    captured = capsys.readouterr()
    assert "test_batch.bin: is missing" in captured.out
    assert "cifar10: 6 of 6 files are missing or damaged" in captured.err

    assert cli.main(["data", "get", "cifar10", *root, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"name": "cifar10", "root": str(tmp_path / "root")}
    assert "download http://127.0.0.1" in captured.err

    assert cli.main(["data", "verify", "cifar10", *root]) == 0
    assert capsys.readouterr().out.endswith("cifar10: ok\n")
    assert cli.main(["data", "list", *root, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["data"]
    assert [line["state"] for line in listed if line["name"] == "cifar10"] == ["present"]

    (tmp_path / "root" / "cifar-10-batches-bin" / "data_batch_2.bin").write_bytes(b"x")
    assert cli.main(["data", "verify", "cifar10", *root, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert [file["ok"] for file in report["files"]] == [True, False, True, True, True, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "cifar"], "unknown data set 'cifar' (did you mean 'cifar10' or 'cifar100'?)"),
        (["verify", "mnist"], "unknown data set 'mnist'"),
        (["get", "imagefolder"], "imagefolder is your own"),
    ],
)
def test_wrong_input_exits_with_2(arguments, message, capsys, tmp_path):
    assert cli.main(["data", *arguments, "--root", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_is_said(capsys, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lpsgd.lab.data.source.obtain.get", interrupted)
    assert cli.main(["data", "get", "cifar10", "--root", str(tmp_path)]) == 1
    assert "lpsgd: interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "get", "verify"])
def test_help_has_an_example(command, capsys):
    assert cli.main(["data", command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Example: lpsgd data {command}" in " ".join(out.split())
    assert "--root" in out
    assert "--json" in out


def test_the_command_line_and_the_list_start_without_torch():
    program = (
        "import sys; from lpsgd.lab.cli import app; app.main(['data', 'list']);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def progress_of(console):
    with data_command._progress(console) as report:
        for done in range(0, 5_000_001, 50_000):
            report(done, 5_000_000)
    return console.file.getvalue()


def test_a_download_shows_a_bar_on_a_terminal():
    shown = progress_of(Console(file=io.StringIO(), force_terminal=True, width=80))
    assert "\u2501" in shown
    assert "5.0/5.0 MB" in shown


def test_a_download_prints_a_line_for_each_tenth_elsewhere():
    lines = progress_of(Console(file=io.StringIO(), force_terminal=False)).splitlines()
    assert len(lines) == 10
    assert lines[0] == "0.5 of 5.0 MB"
    assert lines[-1] == "5.0 of 5.0 MB"
