"""Keeping passwords out of what is written and shown."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path


def hide_passwords(arguments: list[str]) -> list[str]:
    """Command-line arguments with the password of every address in them replaced.

    >>> hide_passwords(["--storage", "postgresql://me:secret@host/db", "--jobs", "2"])
    ['--storage', 'postgresql://me:***@host/db', '--jobs', '2']
    """
    hidden = [re.sub(r"(://[^:/@\s]*:).*@", r"\1***@", text, flags=re.DOTALL) for text in arguments]
    return [re.sub(r"(?i)(password=)[^&\s]*", r"\1***", text) for text in hidden]


def command_line() -> str:
    """The command as it was typed, for people who want to give it again; without passwords.

    Of a user's own program, how that was started; a notebook has no command.
    """
    program = Path(sys.argv[0] or "python")
    if "kernel" in program.name or "ipython" in program.name:
        return "a notebook"
    own = program.suffix == ".py" and program.name != "__main__.py"
    words = ["python", program.name] if own else ["lpsgd"]
    return shlex.join([*words, *hide_passwords(sys.argv[1:])])
