"""The ways in which a command fails, and the exit code of each."""

from __future__ import annotations


class LabError(Exception):
    """Something failed while running (exit code 1). The message is all that the user sees."""

    exit_code = 1


class UserError(LabError):
    """The user's input was wrong (exit code 2): names argument, value and what is allowed."""

    exit_code = 2


class Interrupted(LabError):
    """The run was asked to stop; it is saved and the same command resumes it."""


class ToldElsewhere(LabError):
    """Another process of the same run has told the user what happened; this one only ends."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("another process of this run has failed")
        self.exit_code = exit_code


def foreseen(error: Exception) -> str | None:
    """What to tell of an error that is none of the program's own mistakes; None if it is one.

    Files that are not what they should be, and a machine without room.
    """
    text = " ".join(str(error).split())
    out_of_memory = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
    if out_of_memory or "can't allocate memory" in text or "Unable to allocate" in text:
        return f"not enough memory{f': {text[:300]}' if text else ''}"
    if isinstance(error, OSError):
        return text
    if isinstance(error, ValueError) and text.startswith("embedded null"):
        return "a path holds the character NUL, which no path can"
    return None
