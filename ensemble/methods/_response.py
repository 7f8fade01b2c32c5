"""What response-level methods are: those that choose among the members' responses, and those that let a member write.

A module's ``make(options) -> ResponseMethod | Aggregation | Majority`` raises InputError if the options do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ensemble.errors import InputError

_OWN_PROMPT = Path(__file__).parent / "prompts" / "aggregate.j2"


class ResponseMethod(Protocol):
    """A method that chooses one of the members' responses, or writes a new one from them."""

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int | str:
        """Choose or write the response to a question.

        Args:
            prompt: The question.
            texts: Each member's response, the primary's first.
            answers: What the task's metric extracted from each response; None if it found no answer.

        Returns:
            The index of the member whose response is taken, the earliest of several that are equally good; or a text,
            if the method wrote the response.
        """
        ...


def most_alike(texts: Sequence[str], similarity: Callable[[str, str], float]) -> int:
    """The number of the text that is most similar to all others (see `mbr.py`); of equally good ones the first."""
    gains = [
        # Rounded, so that floating-point noise does not decide between equal texts.
        round(sum(similarity(text, other) for m, other in enumerate(texts) if m != n), 9)
        for n, text in enumerate(texts)
    ]
    return gains.index(max(gains))


class Majority:
    """A vote among the members' answers, which an evaluation plays as the strategy ``vote``."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A method in which a member of the set, the aggregator, reads responses and writes the answer.

    It only describes the method. An evaluation runs the aggregator as it runs every member alone.
    """

    # A Jinja2 template over ``prompt``, all that a member reads of a question; ``question``, the same without
    # instructions and demonstrations; and ``responses``, a list of texts.
    template: str
    file: str  # of the template, for messages
    aggregator: str | None = None  # None for the primary, or with ``own_draws`` for the best member
    # How often responses are written before the aggregator reads them. In all but the first layer every member reads
    # those of the layer before, by the same template.
    layers: int = 1
    own_draws: bool = False  # whether the responses are draws of the aggregator, as many as the set has members


def read_prompt(file: str | None) -> tuple[str, str]:
    """The template of an aggregator's prompt and its file, this project's for None; InputError if it cannot be read."""
    path = _OWN_PROMPT if file is None else Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    # ValueError: a path with a null character, or a file that is not UTF-8.
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text in UTF-8"
        raise InputError(f"prompt {file}: it cannot be read ({reason}); name a text file") from None
    # Editors end a file with a line break. At the end of a prompt it would change what a model writes next.
    return text.removesuffix("\n"), str(path)
