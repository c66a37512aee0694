"""`lpsgd reproduce` as a user meets it: every target at smoke scale, lists, errors, resuming."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lpsgd.lab.cli.app import main
from lpsgd.lab.formatting import cell_text
from lpsgd.lab.paper.targets import TARGETS
from lpsgd.lab.report.document import Document, Picture, Table, inline, text, to_csv, to_markdown


def test_list_tells_cost_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--scale", "paper", "--no-timing", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["target"]: row for row in found["targets"]}
    assert list(rows) == list(TARGETS)
    assert rows["table1"]["runs"] == 36
    assert rows["table3"]["needs"] == ["ImageNet-1K"]
    # 12 runs of 60 epochs of 1.28 million images at three times 8.2 GFLOP
    assert rows["table3"]["flops"] == pytest.approx(12 * 60 * 1.28e6 * 3 * 8.2e9, rel=0.05)
    assert rows["table3"]["hours_on_gpu"] == pytest.approx(rows["table3"]["flops"] / 3.51e16)
    assert rows["claims"]["runs"] == 0
    assert {choice["name"] for choice in found["choices"]} >= {"warmup", "lion-beta2", "p-cosine"}


def test_list_times_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--scale", "smoke", "--gpu", "T4"]) == 0
    shown = capsys.readouterr()
    assert "this machine" in shown.out
    assert "T4" in shown.out
    assert "sgd-momentum=heavy-ball" in shown.out
    assert "timing the networks on this machine" in shown.err
    assert max(map(len, shown.out.splitlines())) <= 80


def test_dry_run_prints_every_setting(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["reproduce", "table2", "--scale", "paper", "--models", "resnet18", "--seeds", "1"]
    assert main([*arguments, "--dry-run", "--json", "--out", str(tmp_path / "x")]) == 0
    runs = json.loads(capsys.readouterr().out)
    assert [run["label"] for run in runs] == ["sgd", "adamw", "lion", "lpsgdm"]
    lpsgdm = runs[3]["recipe"]
    assert lpsgdm["settings"]["lr"] == 0.01
    assert lpsgdm["settings"]["weight_decay"] == 0.1
    assert lpsgdm["epochs"] == 200
    assert not (tmp_path / "x").exists()
    assert main([*arguments, "--dry-run", "--out", str(tmp_path / "x")]) == 0
    assert "4 runs" in capsys.readouterr().out


def test_all_leaves_out_a_table_that_has_none_of_the_models(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reproduce", "--list", "--no-timing", "--models", "resnet18", "--json"]) == 0
    rows = {row["target"]: row for row in json.loads(capsys.readouterr().out)["targets"]}
    assert list(rows) == [name for name in TARGETS if name != "table3"]
    # of the figures, the panel of that model
    assert [rows[name]["runs"] for name in ("fig1", "fig2", "fig4")] == [1, 2 * 3, 5 * 3]
    for name in ("fig1", "fig2", "fig4"):
        assert rows[name]["needs"] == ["5000 images of CIFAR-10"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "TARGET is missing"),
        (["table9"], "unknown target 'table9' (did you mean 'table3' or 'table2' or 'table1'?)"),
        (["table1", "--scale", "huge"], "unknown scale 'huge'"),
        (["table3", "--models", "vgg11"], "table3 has none of them; it has: resnet50"),
        (["fig4", "--models", "vgg11"], "fig4 has none of them; it has: resnet18, resnet50"),
        (["table1", "--choose", "nesterov=maybe"], "--choose nesterov=maybe: allowed: off, on"),
        (["--list", "--gpu", "A1000"], "unknown GPU 'A1000'"),
    ],
)
def test_wrong_input_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_missing_data_is_named_with_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "table2", "--scale", "cpu", "--models", "vgg11", "--seeds", "1"]
    place = ["--root", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    assert main([*arguments, *place]) == 2
    assert "lpsgd data get cifar100" in capsys.readouterr().err
    assert main(["status", str(tmp_path / "out")]) == 0
    assert "4 runs: 4 queued" in capsys.readouterr().out


@pytest.mark.parametrize("scale", ["cpu", "paper"])
@pytest.mark.parametrize("target", ["table3", "fig1", "fig4"])
def test_missing_imagenet_is_named_before_anything_is_trained(
    target: str, scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--root", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    assert main(["reproduce", target, "--scale", scale, *place]) == 2
    said = capsys.readouterr().err
    assert f"{target} needs ImageNet-1K" in said
    assert f"ln -s /that/folder {tmp_path / 'data' / 'imagefolder'}" in said
    assert not (tmp_path / "out" / "runs").exists()
    without = f"Without it: lpsgd reproduce {target} --models resnet18"
    assert (without in said) == (target != "table3")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["fig1", "fig4"])
def test_one_panel_of_a_figure(target: str, tmp_path: Path) -> None:
    arguments = ["--scale", "smoke", "--models", "resnet18", "--seeds", "1", "--jobs", "1"]
    chosen = ["--choose", "fig4-p=2,6", "--out", str(tmp_path)]
    assert main(["reproduce", target, *arguments, *chosen]) == 0
    check_files(tmp_path / target)
    text = (tmp_path / target / f"{target}.md").read_text()
    assert text.splitlines()[0].endswith("smoke scale on 96 handwritten digits")
    assert "ResNet-50" not in text


@pytest.mark.parametrize("target", ["claims", "grid", "fig3"])
def test_targets_without_training(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", target, "--out", str(tmp_path), "--json"]) == 0
    files = [Path(name) for name in json.loads(capsys.readouterr().out)["files"]]
    assert all(path.is_file() for path in files)
    assert (tmp_path / target / f"{target}.md") in files


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("claims", ["statements: ", "the paper says", "does not follow"]),
        ("fig3", ["Largest loss within the last 10 steps", "weak anisotropy", "LPSGD, annealed p"]),
    ],
)
def test_a_result_is_printed_and_not_only_its_path(
    target: str, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", target, "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(words in line for line in lines) for words in said), lines
    assert f"wrote {tmp_path / target / f'{target}.md'}" in lines
    result = lines[: next(k for k, line in enumerate(lines) if line.startswith("wrote"))]
    assert max(map(len, result)) <= 80
    assert not [line for line in result if "…" in line or "**" in line]


def check_files(folder: Path) -> None:
    """Figures can be opened, are sharp enough for print, and every CSV has rows."""
    for path in folder.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        with Image.open(path.with_suffix(".png")) as image:
            assert image.width >= 1000
    for path in folder.glob("*.csv"):
        assert len(path.read_text().splitlines()) > 1, path


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lpsgd reproduce all --scale smoke`, in a process of its own as users run it."""
    out = tmp_path_factory.mktemp("all")
    command = [sys.executable, "-m", "lpsgd", "reproduce", "all", "--scale", "smoke"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, env=environment, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_killed_work_goes_on_where_it_stopped(everything: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lpsgd", "reproduce", "fig2", "--scale", "smoke", "--jobs=1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(
        [*command, "--out", str(tmp_path)], stderr=subprocess.DEVNULL, env=environment
    )
    deadline = time.monotonic() + 300
    while len(done := list(tmp_path.rglob("result.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    running.kill()
    running.wait()
    assert 2 <= len(done) < len(list((everything / "runs").rglob("result.json")))
    assert not (tmp_path / "fig2" / "fig2.csv").exists()
    before = {path: path.stat().st_mtime_ns for path in done}
    finished = subprocess.run([*command, "--out", str(tmp_path)], env=environment, timeout=600)
    assert finished.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in done} == before
    drawn = (tmp_path / "fig2" / "fig2.csv").read_text()
    assert drawn == (everything / "fig2" / "fig2.csv").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("target", list(TARGETS))
def test_every_target_at_smoke_scale(everything: Path, target: str) -> None:
    folder = everything / target
    check_files(folder)
    lines = (folder / f"{target}.md").read_text().splitlines()
    plan = TARGETS[target].datasets
    if plan or target == "theory":
        assert "smoke scale" in lines[0]
    if plan:
        assert "not comparable with the paper's" in "\n".join(lines)
        assert "digits" in lines[0] or "generated noise" in lines[0]
    pictures = {"claims": 0, "grid": 0, "fig1": 2, "fig3": 2, "fig4": 2, "theory": 3}
    assert len(list(folder.glob("*.svg"))) == pictures.get(target, 1)


@pytest.mark.slow
def test_fig1_says_how_its_statistics_moved(everything: Path) -> None:
    words = (everything / "fig1" / "fig1.md").read_text()
    with (everything / "fig1" / "fig1.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["panel"].startswith("ResNet-18")]
    first, last = rows[0], rows[-1]
    assert f"epoch 0 → {last['epoch']}: the smallest eigenvalue " in words
    moved = f"the largest {float(first['largest']):.3g} → {float(last['largest']):.3g},"
    assert moved in words
    for column, meaning in {"at least": "below zero at least", "at most": "and at most"}.items():
        before, after = (f"{float(row[f'below 0, {column}']):.1%}" for row in (first, last))
        assert f"{meaning} {before} → {after}" in words
    for row in rows:
        assert float(row["smallest"]) < float(row["largest"])
        low, high = float(row["below 0, at least"]), float(row["below 0, at most"])
        assert 0 <= float(row["below -1 % of the largest"]) <= high
        assert 0 <= low <= high <= 1 >= float(row["negative mass"]) >= 0


@pytest.mark.slow
def test_the_gathered_page_holds_everything_and_asks_for_nothing(
    everything: Path, browser: Any
) -> None:
    page = browser.new_context(offline=True).new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((everything / "index.html").as_uri())
    sections = page.eval_on_selector_all("main > section", "all => all.map(s => s.id)")
    assert sections == list(TARGETS)
    widths = page.eval_on_selector_all("img", "all => all.map(i => i.naturalWidth)")
    assert len(widths) == 14
    assert min(widths) > 100
    assert complaints == []
    links = page.eval_on_selector_all("main section a", "all => all.map(a => a.href)")
    assert links
    for link in links:
        assert Path(link.removeprefix("file://")).is_file(), link
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_the_same_command_again_trains_nothing(everything: Path, tmp_path: Path) -> None:
    results = sorted(everything.rglob("result.json"))
    before = {path: path.stat().st_mtime_ns for path in results}
    assert len(before) > 50
    metrics = next(everything.glob("runs/**/metrics.jsonl"))
    drawn = (everything / "table1" / "table1.csv").read_text()
    arguments = ["reproduce", "table1", "--scale", "smoke", "--out", str(everything)]
    assert main(arguments) == 0
    assert {path: path.stat().st_mtime_ns for path in results} == before
    assert metrics.is_file()
    assert (everything / "table1" / "table1.csv").read_text() == drawn


def test_documents_are_written_for_people_and_for_programs() -> None:
    table = Table("t", "a caption", ("name", "x"), [("a|b", 0.1234567), (None, None)])
    hidden = Table("h", "behind", ("y",), [(1,)], shown=False)
    document = Document("d", "Title").add(text("one"), text("a", "b"), table, hidden)
    markdown = to_markdown(document)
    assert markdown.startswith("# Title\n\none\n\n- a\n- b\n")
    assert "| a\\|b | 0.1235 |" in markdown
    assert "[h.csv](h.csv)" in markdown
    assert to_csv(table) == "name,x\na|b,0.1234567\n,\n"
    assert to_csv(Table("t", "bold", ("x",), [("**1.5 ± 0.1**",)])) == "x\n1.5 ± 0.1\n"
    assert cell_text(float("inf")) == "inf"
    assert inline("<b> **x** `y`") == "&lt;b&gt; <strong>x</strong> <code>y</code>"
    assert Picture.__doc__
