"""Whether a model would have gone on as another one wrote: its greedy next tokens along the other's response.

An ensemble feeds every member what all of them wrote together. Members that foresee each other's text agree on most
tokens, and the union is left with the few on which they do not; members that do not are each led out of their own way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.statistics import Floats

if TYPE_CHECKING:
    from torch import Tensor

    from ensemble.models.member import Member
    from ensemble.models.spec import Sourced
    from ensemble.runtime.local_runner import LocalRunner

_LOGITS = 2**26
"""Logits that are held at once: 256 MB in single precision."""


@dataclass(frozen=True, slots=True)
class Text:
    """A response of another model.

    Attributes:
        prompt: What it answers.
        text: The response.
        cut: Whether it was cut off, by a stop string or by the limit, so that a token may have gone on behind its end.
    """

    prompt: str | Sourced
    text: str
    cut: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """How often a model would have written what it read.

    Attributes:
        agreed: Positions at which it would have.
        positions: All of them: one before each token of the text, as the reader cuts it.
    """

    agreed: int
    positions: int

    def __add__(self, other: Reading) -> Reading:
        """Of two texts together."""
        return Reading(self.agreed + other.agreed, self.positions + other.positions)


def count(written: Sequence[bytes], wanted: Sequence[bytes | None], *, cut: bool) -> Reading:
    """Count the positions at which the wanted token is what the text goes on with.

    Tokens are compared as bytes: where the reader wants " ja", and the text goes on with " jam", it is right.

    Args:
        written: The text, in the reader's tokens.
        wanted: The reader's greedy token before each of them; None where it is a special one.
        cut: See :class:`Text`; a token that is wanted may reach beyond the end then.
    """
    rest = b"".join(written)
    agreed = 0
    for own, token in zip(written, wanted, strict=True):
        if token:
            agreed += rest.startswith(token) or (cut and token.startswith(rest))
        rest = rest[len(own) :]
    return Reading(agreed, len(written))


def read_texts(member: Member, texts: Sequence[Text]) -> Iterator[Reading]:
    """Read other models' responses, each behind its prompt as the member encodes it.

    A prompt that follows itself, or one with the same beginning, is not computed again, so texts of the same prompt
    belong together. Each response takes one pass over it.

    Args:
        member: The reader.
        texts: What it reads; what does not fit its context is left out, so that there may be no position at all.

    Raises:
        InputError: A prompt does not fit the context.
    """
    from ensemble.runtime.local_runner import common_length

    runner, vocabulary = member.local.runner(), member.vocabulary
    prompts: dict[str | Sourced, list[int]] = {}
    held: list[int] = []
    for text in texts:
        if text.prompt not in prompts:
            prompts[text.prompt] = member.encode_prompt(text.prompt)
        prompt = prompts[text.prompt]
        most = member.most_tokens(prompt)
        room = None if most is None else most - len(prompt)
        ids = vocabulary.continue_ids(text.text.encode())[:room]
        if not ids:
            yield Reading(0, 0)
            continue
        # The first position is behind the prompt's last token; what the model wants behind the last id is not asked.
        context, first = [*prompt, *ids[:-1]], len(prompt) - 1
        keep = min(common_length(held, context), first)
        if not keep:
            runner = member.local.runner()
        wanted = _greedy(runner, keep, context, first, max(1, _LOGITS // vocabulary.size))
        held = context
        pieces = [vocabulary.token_bytes(index) or b"" for index in ids]
        yield count(pieces, [vocabulary.token_bytes(index) for index in wanted], cut=text.cut)


def agreements(models: Sequence[str], readings: Mapping[tuple[str, str], Reading]) -> Floats:
    """Mean of both directions of each pair: the share of positions at which the reader would have written the same.

    Args:
        models: Names.
        readings: By reader and writer.

    Returns:
        Models by models, 0 to 1; NaN where a direction is not known, or has no position.
    """
    shares = np.full((len(models), len(models)), np.nan)
    for (i, reader), (j, writer) in ((a, b) for a in enumerate(models) for b in enumerate(models)):
        reading = readings.get((reader, writer))
        if reading is not None and reading.positions:
            shares[i, j] = reading.agreed / reading.positions
    both: Floats = (shares + shares.T) / 2
    return both


def _greedy(runner: LocalRunner, keep: int, context: Sequence[int], first: int, most: int) -> list[int]:
    """The likeliest next token at each place of a context from ``first`` on, some places at a time.

    Args:
        runner: Has one row, which begins with the first ``keep`` ids of the context, or none.
        keep: At most ``first``.
        context: Ids.
        first: The place behind which the first token is asked for.
        most: Places whose logits are held at once.
    """
    import torch

    wanted: list[int] = []
    start = first
    with torch.inference_mode():
        if not runner.row_count:
            wanted += _likeliest(runner.admit([context[: first + 1]]))
            keep = start = first + 1
        while start < len(context):
            end = min(start + most, len(context))
            wanted += _likeliest(runner.extend([keep], [context[keep:end]], last=end - start)[0])
            keep = start = end
    return wanted


def _likeliest(logits: Tensor) -> list[int]:
    ids: list[int] = logits.argmax(dim=-1).tolist()
    return ids
