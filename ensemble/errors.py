"""The one tree of exceptions that unite-advisor raises on purpose.

A message is one line: it names the thing, the place (a file and its line, a model, a question) and the way out.
"""

from __future__ import annotations


class UniteError(Exception):
    """Base of every error that is reported to the user as one line, without a traceback.

    Args:
        reason: The message, without the name of what it is about.
        of: The name of what it is about, for example a model; the message begins with it.
    """

    exit_status = 1

    def __init__(self, reason: str = "", of: str | None = None) -> None:
        super().__init__(reason if of is None else f"{of}: {reason}")
        self.reason, self.of = reason, of

    def without(self, name: str) -> str:
        """The message for a place that shows this name beside it."""
        return self.reason if self.of == name else str(self)


class InputError(UniteError):
    """What the user gave cannot be used: an option, a file, a line of it. Nothing was run or written."""

    exit_status = 2


class PromptTooLongError(InputError):
    """A prompt does not fit a member's context."""


class MemberError(UniteError):
    """One model failed while it was loaded or run. A pool goes on without it; an ensemble cannot."""


class JudgeError(UniteError):
    """A judge failed, so that responses have no scores. Unlike a candidate, a run cannot go on without it."""


def first_line(error: BaseException) -> str:
    """The message of an error as one line."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
