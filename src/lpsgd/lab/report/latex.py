r"""Tables for papers: LaTeX with booktabs, in which every character is the reader's own.

``\usepackage{booktabs}`` is all that a document needs; files are UTF-8.
"""

from __future__ import annotations

import re

from lpsgd.lab.formatting import cell_text
from lpsgd.lab.report.document import Table, is_number
from lpsgd.lab.report.source import Source

_LONGEST_LINE = 36  # characters of a column whose cells are not broken into lines
_GREEK = {"α": "alpha", "β": "beta", "ε": "epsilon", "θ": "theta", "λ": "lambda", "μ": "mu"}
_GREEK |= {"π": "pi", "ρ": "rho", "σ": "sigma"}
_ESCAPES = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{character: f"${character}$" for character in "<>|"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    '"': "''",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "²": "$^2$",
    "³": "$^3$",
    "∞": r"$\infty$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\to$",
    "√": r"$\surd$",
    "−": "$-$",
    **{letter: rf"$\{name}$" for letter, name in _GREEK.items()},
}
_MARKED = re.compile(r"\*\*(.+?)\*\*|`(.+?)`")
_NEGATIVE = re.compile(r"(?<![\w.)])-(?=\.?\d)")


def to_latex(table: Table, source: Source | None = None) -> str:
    """The table as a floating environment, with where it comes from as a comment."""
    columns = len(table.columns)
    head = " & ".join(escape(name) for name in table.columns)
    body = [" & ".join(_cell(cell_text(cell)) for cell in row) for row in table.rows]
    caption = f"{_inline(table.caption)}." if table.caption else ""
    note = f" {_inline(table.note[0].upper() + table.note[1:])}." if table.note else ""
    lines = [
        *(f"% {line}" for line in (source or Source()).lines()),
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{caption}{note}}}",
        rf"  \label{{tab:{re.sub('[^a-z0-9]+', '-', table.name.lower())}}}",
        rf"  \begin{{tabular}}{{{''.join(_alignment(table, k) for k in range(columns))}}}",
        r"    \toprule",
        rf"    {head} \\",
        r"    \midrule",
        *(rf"    {row} \\" for row in body),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    r"""``text`` so that LaTeX prints it as it is.

    >>> print(escape("weight_decay=5e-4 & 50 % of p^2"))
    weight\_decay=5e-4 \& 50 \% of p\textasciicircum{}2
    """
    return "".join(_ESCAPES.get(character, character) for character in text)


def _inline(text: str) -> str:
    r"""Escaped, with ``**bold**`` and ``code`` in backquotes set as such.

    >>> print(_inline("**0.5** of `a_b`"))
    \textbf{0.5} of \texttt{a\_b}
    """
    pieces, place = [], 0
    for found in _MARKED.finditer(text):
        bold, code = found.groups()
        pieces.append(escape(text[place : found.start()]))
        pieces.append(rf"\textbf{{{escape(bold)}}}" if bold else rf"\texttt{{{escape(code)}}}")
        place = found.end()
    return "".join([*pieces, escape(text[place:])])


def _cell(text: str) -> str:
    """A cell in one line; the hyphen before a number is a minus, and a row begins with no [."""
    shown = _NEGATIVE.sub("−", " ".join(text.split()))
    return ("{}" if shown.startswith("[") else "") + _inline(shown)


def _alignment(table: Table, place: int) -> str:
    if is_number(table, place):
        return "r"
    longest = max((len(cell_text(row[place])) for row in table.rows), default=0)
    return r"p{0.35\linewidth}" if longest > _LONGEST_LINE else "l"
