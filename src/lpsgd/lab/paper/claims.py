"""Every sentence of abstract, introduction and results with a number or a superlative, checked.

A claim's check reads the paper's own tables and nothing else; what they cannot tell is said to be
not checkable, with the command that measures it where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from lpsgd.lab.paper.claim_checks import AGREES, CHECKS, DIFFERS, PARTLY, UNKNOWN, Finding
from lpsgd.lab.paper.tables import published as tables
from lpsgd.lab.report.document import Document, Table, text


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and where it stands."""

    id: str
    place: str
    quote: str


def findings() -> Iterator[tuple[Claim, Finding]]:
    """Every claim with what the tables give."""
    for claim in claims():
        yield claim, CHECKS[claim.id]()


@cache
def claims() -> tuple[Claim, ...]:
    """The statements in the order of the paper."""
    return tables.read_rows("claims.csv", Claim)


def reproduce() -> Document:
    """The claims as a table."""
    rows = [(c.place, c.quote, f.found, f.verdict) for c, f in findings()]
    counts = [
        f"{sum(row[3] == verdict for row in rows)} {meaning}"
        for verdict, meaning in (
            (AGREES, "agree with the paper's own tables"),
            (PARTLY, "follow in part"),
            (DIFFERS, "do not follow"),
            (UNKNOWN, "cannot be checked from the tables"),
        )
    ]
    return Document("claims", "What the paper says beside what its tables give").add(
        text(f"{len(rows)} statements: {', '.join(counts)}."),
        Table(
            "claims",
            "Statements of abstract, introduction and results",
            ("where", "the paper says", "the tables give", "verdict"),
            rows,
        ),
    )
