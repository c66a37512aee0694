"""The terminal's table and the command that prints it."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys

import pytest
from rich.console import Console

from lpsgd.lab.analysis.comparison import analyse
from lpsgd.lab.cli import app as cli
from lpsgd.lab.report.terminal import print_analysis
from lpsgd.lab.store.run_record import load_comparison
from tests.lab.made_up_runs import history, write_comparison, write_run

FINALS = {
    "sgd": [90.0, 91.0, 89.5, 90.4, 90.9],
    "adamw": [90.2, 90.7, 89.6, 90.3, 91.1],
    "lpsgdm": [92.1, 92.8, 91.6, 92.6, 92.8],
}


@pytest.fixture
def folder(tmp_path):
    return write_comparison(tmp_path / "c", FINALS)


def printed(folder, width, **options):
    stream = io.StringIO()
    print_analysis(analyse(load_comparison(folder)), Console(file=stream, width=width, **options))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_table_fits_and_folds_no_number(folder, width):
    text = printed(folder, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    words = " ".join(text.split())
    # scipy.stats.t.interval(0.95, 4, 92.38, scipy.stats.sem(values)) is 91.732 to 93.028
    assert "lpsgdm 92.38 0.52 91.73 to 93.03 5 93.38 (0.52)" in words
    assert "chosen on test" in words
    assert "level (test accuracy 0.05/2 = 0.025; test NLL 0.05/2 = 0.025)" in words
    assert "Better than sgd on test accuracy: lpsgdm." in text


@pytest.mark.parametrize("width", [80, 120])
def test_long_labels_fold_between_settings(tmp_path, width):
    long = "lpsgdm-normalize=rms-lr=1e-2-weight_decay=0.0005"
    values = [90.0, 91.0, 89.5]
    text = printed(write_comparison(tmp_path / "c", {"sgd": values, long: values}), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    parts = {"lpsgdm-", "normalize=", "rms-", "lr=1e-2-", "weight_", "decay=", "0.0005"}
    starts = [
        line.split()[0] for line in text.splitlines() if line.startswith((" lp", " no", " we"))
    ]
    assert starts
    for start in starts:  # whole parts, one or several
        left = start
        while left:
            part = next((part for part in parts if left.startswith(part)), None)
            assert part, start
            left = left.removeprefix(part)


def test_values_that_print_alike_are_bold_alike(tmp_path):
    """92.301 and 92.298 are both printed as 92.30: marking one of them would be a riddle."""
    finals = {"a": [92.301] * 2, "b": [92.298] * 2, "c": [92.2] * 2}
    folder = write_comparison(tmp_path / "c", finals)
    text = printed(folder, 100, force_terminal=True, color_system="standard")
    table = text.partition("Final test NLL")[0]
    assert table.count("\x1b[1m92.30\x1b[0m") == 2
    assert "\x1b[1m92.20" not in table
    assert "Highest mean test accuracy: a, b (92.30 %)." in text
    assert cli.main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert page.count("<strong>92.30</strong>") == 2
    assert "<strong>92.20</strong>" not in page


def test_one_seed_makes_no_test(tmp_path):
    text = printed(write_comparison(tmp_path / "c", {"sgd": [90.0], "adam": [91.0]}), 80)
    assert "No paired t-test: it needs at least two shared seeds" in " ".join(text.split())


def test_table_off_a_terminal_has_no_control_codes(folder):
    assert "\x1b" not in printed(folder, 80)
    assert "\x1b" in printed(folder, 80, force_terminal=True, color_system="standard")


def test_labels_are_not_read_as_markup(tmp_path):
    text = printed(write_comparison(tmp_path / "c", {"sgd": [1.0], "[red]x[/red]": [2.0]}), 120)
    assert "[red]x[/red]" in text


def test_one_optimizer_and_a_diverged_run(tmp_path):
    write_run(tmp_path / "a", "sgd", 0, history(90.0, seed=0))
    write_run(tmp_path / "b", "sgd", 1, history(9.0, seed=1)[:2], state="diverged", reason="nan")
    text = printed(tmp_path, 80)
    assert "1, 1 diverged" in text
    assert "Diverged: sgd, seed 1 (nan)." in text
    assert "against" not in text


def test_command_prints_the_table_and_writes_the_page(folder, capsys):
    assert cli.main(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "Verdict" in out
    page = folder / "report.html"
    assert f"Page: {page}" in out.replace("\n", "")
    assert page.read_text().startswith("<!doctype html>")
    assert not list(folder.glob(".report*"))


def test_command_as_json(folder, tmp_path, capsys):
    out = tmp_path / "deep" / "page.html"
    assert cli.main(["report", str(folder), "--json", "--out", str(out)]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["page"] == str(out)
    assert out.exists()
    assert [o["label"] for o in value["optimizers"]] == list(FINALS)
    assert value["optimizers"][2]["versus"]["test_top1"]["verdict"] == "better"


def test_command_draws_the_curves_when_asked(folder, capsys):
    assert cli.main(["report", str(folder), "--figure"]) == 0
    shown = capsys.readouterr().out.replace("\n", "")
    drawing = (folder / "curves.svg").read_text()
    for text in (*FINALS, "training NLL", "test accuracy (%)"):
        assert f"<!-- {text} -->" in drawing
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert f"Figure: {folder / 'curves.svg'}" in shown


def test_command_with_wrong_input(folder, tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "absent")]) == 2
    assert cli.main(["report", str(folder), "--reference", "sdg"]) == 2
    assert "'sdg'" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="folder permissions work otherwise on Windows")
def test_command_that_cannot_write(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["report", str(folder), "--out", str(tmp_path / "file" / "page.html")]) == 1
    assert "cannot write to" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_page_is_readable_by_others(folder):
    assert cli.main(["report", str(folder)]) == 0
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((folder / "report.html").stat().st_mode) == 0o666 & ~umask


def test_report_does_not_import_torch(folder):
    program = (
        "import sys; from lpsgd.lab.cli import app; "
        f"code = app.main(['report', {str(folder)!r}]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
