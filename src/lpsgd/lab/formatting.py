"""How the laboratory writes numbers for people; one place, so that table and page agree."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable

MISSING = "-"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline


def printable(text: str) -> str:
    """``text`` without control characters, which might move the cursor or set a title.

    >>> printable("sgd\x1b[2J")
    'sgd[2J'
    """
    return _CONTROL.sub("", text)


def fixed(value: float | None, digits: int, *, signed: bool = False) -> str:
    """``value`` with ``digits`` decimals, and with its sign if ``signed``.

    >>> fixed(0.123, 2, signed=True), fixed(-0.001, 2), fixed(None, 2)
    ('+0.12', '0.00', '-')
    """
    if value is None or math.isnan(value):
        return MISSING
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    # a rounded nothing has no sign
    return text.lstrip("+-") if text.strip("+-0.") == "" else text


def short(value: float | None) -> str:
    """``value`` with four digits that count, for numbers of which nothing else is known.

    >>> short(0.123456), short(93.1), short(12345.6), short(0.0)
    ('0.1235', '93.1', '12346', '0')
    """
    if value is None or math.isnan(value):
        return MISSING
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def best_marks(
    values: Iterable[float | None], digits: int, *, higher_is_better: bool
) -> list[bool]:
    """Which values are set in bold: of two or more, all that print as the best one does.

    This is the rule of every table. A difference that is not printed does not decide it.

    >>> best_marks([0.914, 0.9138, None, 0.9], 3, higher_is_better=True)
    [True, True, False, False]
    """
    listed = list(values)
    known = [value for value in listed if value is not None and not math.isnan(value)]
    if len(known) < 2:
        return [False] * len(listed)
    best = fixed(max(known) if higher_is_better else min(known), digits)
    return [value is not None and fixed(value, digits) == best for value in listed]


def p_value(p: float | None) -> str:
    """A p value as papers print it.

    >>> p_value(0.01234), p_value(0.00001), p_value(1.0), p_value(None)
    ('0.012', '<0.001', '1.000', '-')
    """
    if p is None:
        return MISSING
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def size(count: float | None) -> str:
    """Bytes in a unit that leaves a short number.

    >>> size(512), size(44_700_000), size(8.5), size(0), size(None)
    ('512 B', '44.7 MB', '8.5 B', '0 B', '-')
    """
    if count is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float | None) -> str:
    """A time in a unit that leaves a short number.

    >>> duration(0.00123), duration(12.3), duration(4000), duration(None)
    ('1.23 ms', '12.3 s', '1 h 07 min', '-')
    """
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def percent(share: float | None) -> str:
    """A share of one, in percent.

    >>> percent(0.123), percent(None)
    ('12.3 %', '-')
    """
    return MISSING if share is None else f"{100 * share:.1f} %"


def setting_text(value: object) -> str:
    """A setting's value, short and exact enough to be typed again.

    >>> [setting_text(value) for value in (0.0001, True, None, "cosine", 6.0)]
    ['0.0001', 'true', 'none', 'cosine', '6']
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)


def setting_argument(value: object) -> str:
    """A setting's value as the text of an optimizer holds it, to the last digit.

    >>> [setting_argument(value) for value in (0.1, True, None, [0.9, 0.99])]
    ['0.1', 'true', 'none', '(0.9,0.99)']
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"({','.join(map(setting_argument, value))})"
    return str(value)


def cell_text(value: object) -> str:
    """A cell of a document's table for people: four digits, no more.

    >>> cell_text(0.123456), cell_text(1234567.0), cell_text(None), cell_text(True), cell_text(3.0)
    ('0.1235', '1.235e+06', '-', 'yes', '3')
    """
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def signal_name(number: int) -> str:
    """The name of a signal that ended a process; some, such as the real-time ones, have none.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
