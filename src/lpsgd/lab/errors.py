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
