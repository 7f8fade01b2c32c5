"""Whether a model would continue as another one wrote: its greedy next tokens along the other's response.

Each member of an ensemble reads the text that all of them wrote together. Members that predict each other's text agree
on most tokens, so the union decides only the few others. Otherwise each member has to continue text that it would not
write.
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
    from ensemble.models.spec import Dialogue, Sourced
    from ensemble.runtime.local_runner import LocalRunner
    from ensemble.vocabulary.token_bytes import Vocabulary

# All logits of a long response would be larger than a small model: 4,000 places of 150,000 tokens are 2.4 GB.
_LOGITS = 2**26
"""The most logits in memory at the same time: 256 MB in single precision."""


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A response that another model wrote.

    Attributes:
        prompt: The prompt.
        text: The response.
        cut: Whether a stop string or the limit cut it off, so that its last token may be longer than the text.
    """

    prompt: str | Sourced | Dialogue
    text: str
    cut: bool


@dataclass(frozen=True, slots=True)
class TokenAgreement:
    """How often a model's greedy next token is the one that the text has.

    Attributes:
        agreed: The positions with the same token.
        positions: All positions: one before each token of the text in the reader's tokenization.
    """

    agreed: int
    positions: int

    def __add__(self, other: TokenAgreement) -> TokenAgreement:
        """The agreement on two texts together."""
        return TokenAgreement(self.agreed + other.agreed, self.positions + other.positions)


def count(written: Sequence[bytes], wanted: Sequence[bytes | None], *, cut: bool) -> TokenAgreement:
    """Count the positions at which the text continues with the reader's greedy token.

    Tokens are compared as bytes: if the reader's token is " ja" and the text continues with " jam", they agree.

    Args:
        written: The text, in the reader's tokens.
        wanted: The reader's greedy token before each of them; None for a special token.
        cut: See :class:`WrittenText`; the greedy token may then reach beyond the end of the text.
    """
    rest = b"".join(written)
    agreed = 0
    for own, token in zip(written, wanted, strict=True):
        if token:
            # By bytes: the reader's token may be longer or shorter than the one that the text has here.
            agreed += rest.startswith(token) or (cut and token.startswith(rest))
        rest = rest[len(own) :]
    return TokenAgreement(agreed, len(written))


def read_texts(member: Member, texts: Sequence[WrittenText]) -> Iterator[TokenAgreement]:
    """Read other models' responses, each after its prompt as the member encodes it.

    The common beginning of a prompt and the one before it is not computed again, so texts of the same prompt should
    follow each other. Each response takes one forward pass, or one request to a member elsewhere.

    Args:
        member: The reader.
        texts: The responses. Tokens that do not fit the context are left out, so a response may have no position.

    Raises:
        InputError: A prompt does not fit the context.
    """
    from ensemble.distributed.remote_member import RemoteMember
    from ensemble.runtime.local_runner import common_length

    vocabulary = member.vocabulary
    runner = member.local.runner() if member.is_here else None
    prompts: dict[str | Sourced | Dialogue, list[int]] = {}
    held: list[int] = []
    for text in texts:
        # Each prompt comes once for each writer, and a chat template takes longer than its tokens.
        if text.prompt not in prompts:
            prompts[text.prompt] = member.encode_prompt(text.prompt)
        prompt = prompts[text.prompt]
        most = member.most_tokens(prompt)
        room = None if most is None else most - len(prompt)
        ids = vocabulary.continue_ids(text.text.encode())[:room]
        # Nothing fits the context. The caller pairs texts and results, so this text needs a result, too.
        if not ids:
            yield TokenAgreement(0, 0)
            continue
        # The first position is after the prompt's last token. The token after the last id is not needed.
        context, first = [*prompt, *ids[:-1]], len(prompt) - 1
        if isinstance(member, RemoteMember):
            places = [context[: n + 1] for n in range(first, len(context))]
            wanted = [tokens[0].token for tokens in member.client.write(places, 1, 1)()]
            yield _agreement(vocabulary, ids, wanted, text)
            continue
        keep = min(common_length(held, context), first)
        # A runner cannot drop all of a row, so a prompt that shares nothing with the one before needs a new one.
        if runner is None or not keep:
            runner = member.local.runner()
        wanted = _greedy(runner, keep, context, first, max(1, _LOGITS // vocabulary.size))
        held = context
        yield _agreement(vocabulary, ids, wanted, text)


def _agreement(vocabulary: Vocabulary, ids: Sequence[int], wanted: Sequence[int], text: WrittenText) -> TokenAgreement:
    pieces = [vocabulary.token_bytes(index) or b"" for index in ids]
    return count(pieces, [vocabulary.token_bytes(index) for index in wanted], cut=text.cut)


def agreements(models: Sequence[str], counts: Mapping[tuple[str, str], TokenAgreement]) -> Floats:
    """The share of positions with the same token, as the mean of both directions of each pair.

    Args:
        models: Names.
        counts: By reader and writer.

    Returns:
        Models by models, 0 to 1; NaN if a direction is not known, or has no position.
    """
    shares = np.full((len(models), len(models)), np.nan)
    for (i, reader), (j, writer) in ((a, b) for a in enumerate(models) for b in enumerate(models)):
        agreement = counts.get((reader, writer))
        if agreement is not None and agreement.positions:
            shares[i, j] = agreement.agreed / agreement.positions
    both: Floats = (shares + shares.T) / 2
    return both


def _greedy(runner: LocalRunner, keep: int, context: Sequence[int], first: int, most: int) -> list[int]:
    """The likeliest next token at each place of a context from ``first`` on.

    Args:
        runner: One row with the first ``keep`` ids of the context, or no row.
        keep: At most ``first``.
        context: Ids.
        first: The place after which the first token is wanted.
        most: The most places whose logits are in memory at the same time.
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
