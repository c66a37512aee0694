"""Tables for papers and programs: the numbers of the analysis, and LaTeX that compiles."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from scipy import stats

from lpsgd.lab.analysis.comparison import Analysis, analyse
from lpsgd.lab.api.comparison_result import ComparisonResult
from lpsgd.lab.cli import app as cli
from lpsgd.lab.report.document import Document, Table, Value, to_csv, to_markdown_table
from lpsgd.lab.report.document_terminal import print_document
from lpsgd.lab.report.latex import escape, to_latex
from lpsgd.lab.report.source import Source, comparison_source
from lpsgd.lab.report.tables import comparison_tables
from lpsgd.lab.store.run_record import load_comparison
from tests.lab.made_up_runs import write_comparison

NASTY = r"a&b%c$d#e_f{g}h~i^j\k<l>m|n"
FINALS = {
    "sgd": [90.0, 91.0, 89.5, 90.4, 90.9],
    "adamw": [90.2, 90.7, 89.6, 90.3, 91.1],
    NASTY: [92.1, 92.8, 91.6, 92.6, 92.8],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "c", FINALS)


@pytest.fixture
def analysis(folder: Path) -> Analysis:
    return analyse(load_comparison(folder))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_every_digit_and_every_number_in_a_column_of_its_own(analysis: Analysis) -> None:
    results, _, tests, _, costs = comparison_tables(analysis)
    for row, result in zip(rows(to_csv(results)), analysis.results, strict=True):
        final = result.final["test_top1"]
        assert row["optimizer"] == result.label
        found = [float(row[name]) for name in ("mean", "sd", "low", "high")]
        assert found == [final.mean, final.sd, final.low, final.high]
        assert (row["complete"], row["diverged"]) == ("5", "0")
    for row, result in zip(rows(to_csv(tests)), analysis.results[1:], strict=True):
        versus = result.versus["test_top1"]
        assert float(row["p (Holm)"]) == versus.p_holm
        assert row["verdict"] == versus.verdict
    assert {float(row["bytes of state per parameter"]) for row in rows(to_csv(costs))} == {4.0}


def body(latex: str) -> list[list[str]]:
    """The cells between the rules, by LaTeX's own syntax."""
    inside = latex.split(r"\midrule")[1].split(r"\bottomrule")[0]
    return [re.split(r"(?<!\\)&", row) for row in inside.split(r"\\")[:-1]]


def test_latex_has_the_terminals_numbers_and_bold(analysis: Analysis) -> None:
    table = comparison_tables(analysis)[0]
    latex = to_latex(table, comparison_source(analysis))
    cells = [[cell.strip() for cell in row] for row in body(latex)]
    assert [row[1] for row in cells] == ["90.36", "90.38", r"\textbf{92.38}"]
    values = FINALS["sgd"]
    low, high = stats.t.interval(0.95, 4, sum(values) / 5, stats.sem(values))
    assert cells[0][3] == f"{low:.2f} to {high:.2f}"
    assert r"\begin{tabular}{lrrrrr}" in latex
    assert to_markdown_table(table).count("**92.38**") == 1
    comments = [line for line in latex.splitlines() if line.startswith("%")]
    assert comments[0] == "% Python 3.11.7"  # all that the made-up runs say of their environment
    assert comments[1].startswith("% lpsgd compare --optimizers sgd,adamw,")


def test_every_special_character_is_escaped() -> None:
    assert escape(NASTY) == (
        r"a\&b\%c\$d\#e\_f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k$<$l$>$m$|$n"
    )
    table = Table("a_b", "50 % of λ", ("x_1",), [("-0.5 ± 0.1",), ("[1]",), (Value("b", (1.0,)),)])
    latex = to_latex(table, Source("lpsgd compare\n\\input{secret} \x1b[2J", "lpsgd 1"))
    assert r"\caption{50 \% of $\lambda$.}" in latex
    assert r"\label{tab:a-b}" in latex
    assert "$-$0.5 $\\pm$ 0.1 \\\\" in latex
    assert "{}[1]" in latex  # else an optional argument of the row before it
    assert [line for line in latex.splitlines() if "secret" in line] == [
        r"% lpsgd compare \input{secret} [2J"
    ]


def test_environments_and_braces_match(analysis: Analysis) -> None:
    for table in comparison_tables(analysis):
        latex = to_latex(table)
        bare = re.sub(r"\\[{}]", "", latex)
        assert bare.count("{") == bare.count("}")
        for name in ("table", "tabular"):
            assert latex.count(rf"\begin{{{name}}}") == latex.count(rf"\end{{{name}}}") == 1
        assert {len(row) for row in body(latex)} == {len(table.columns)}
        assert latex.isascii()


@pytest.mark.slow
def test_latex_compiles(analysis: Analysis, tmp_path: Path) -> None:
    programs = {"pdflatex": ["-interaction=nonstopmode", "-halt-on-error"], "tectonic": []}
    program = next((name for name in programs if shutil.which(name)), None)
    if program is None:
        pytest.skip("needs the program pdflatex or tectonic")
    tables = "".join(to_latex(table) for table in comparison_tables(analysis))
    head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    document = head + tables + r"\end{document}"
    (tmp_path / "paper.tex").write_text(document)
    command = [program, *programs[program], "paper.tex"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:]
    assert (tmp_path / "paper.pdf").exists()


def test_report_writes_what_is_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(folder), "--latex", "--csv"]) == 0
    written = {path.name for path in (folder / "tables").iterdir()}
    names = ("results-test_top1", "results-test_nll", "tests-test_top1", "tests-test_nll", "cost")
    assert written == {f"{name}.{kind}" for name in names for kind in ("tex", "csv")}
    assert f"Table: {folder / 'tables' / 'cost.tex'}" in capsys.readouterr().out


def test_a_wrong_width_is_told_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new"
    assert cli.main(["compare", "--figure-width", "icmll", "--out", str(out)]) == 2
    assert "did you mean 'icml'" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path), "--figure-width", "0.1"]) == 2
    assert "allowed are 2 to 20 inches" in capsys.readouterr().err
    assert not out.exists()


def test_the_python_result_gives_the_same_tables(folder: Path, analysis: Analysis) -> None:
    result = ComparisonResult.read(folder)
    source = comparison_source(analysis)
    assert result.to_latex() == "\n".join(to_latex(t, source) for t in comparison_tables(analysis))
    found = [float(row["test_top1"]) for row in rows(result.to_csv())]
    assert found == [r.final["test_top1"].mean for r in analysis.results]
    assert result.figure("icml").get_figwidth() == 3.25
    assert result.figure(4.0).get_figwidth() == 4.0


@pytest.mark.parametrize("width", [60, 80, 100])
def test_in_a_narrow_terminal_every_name_and_number_is_whole(width: int) -> None:
    """Long headings are broken into lines, and take no room from the cells."""
    heads = tuple(f"Testing Top-1 ACC (%) @{epoch}" for epoch in (5, 10, 20))
    names = [
        (model, rule) for model in ("ResNet-18", "ResNet-50") for rule in ("AdamW", "SGD w/ M")
    ]
    rows = [(*name, *(f"4{k}.73 ± 0.4{j}" for j in range(3))) for k, name in enumerate(names)]
    shown = Document("a", "A", [Table("a", "caption", ("Model", "Optimizer", *heads), rows)])
    text = io.StringIO()
    print_document(shown, Console(file=text, width=width, color_system=None))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for model, rule, *numbers in rows:
        own = " ".join(line for line in lines if f" {model} " in line and f" {rule} " in line)
        assert all(number in own for number in numbers)
    assert {"(%)", "@5", "@10", "@20"} <= set(" ".join(lines).split())
