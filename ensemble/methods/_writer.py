"""One member that writes by itself for a while, and that reads what others wrote: what span-level methods are made of.

Its context holds the prompt and whatever of the text it read last; what is asked of it next is held against that, and
only what differs is fed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.errors import MemberError
from ensemble.models.member import Member
from ensemble.runtime.local_runner import common_length
from ensemble.step.distribution import candidate_logits
from ensemble.vocabulary.joint import MemberTables
from ensemble.vocabulary.retokenize import Continuation


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of text.

    Attributes:
        data: Its bytes.
        ended: Whether EOS follows it.
    """

    data: bytes
    ended: bool


class Writer:
    """A member and a batch of its contexts.

    Args:
        member: The member.
        tables: Its side of a joint vocabulary, on the primary's device.
    """

    def __init__(self, member: Member, tables: MemberTables) -> None:
        self._member = member
        self._tables = tables.to(member.device)
        self._eos = int(tables.eos_ids[0]) if len(tables.eos_ids) else None
        self._runner = member.local.runner()
        self._prompts: list[list[int]] = []
        self._fed: list[list[int]] = []

    def admit(self, prompts: Sequence[list[int]]) -> None:
        """Begin to continue prompts, given by their ids; those before are finished."""
        self._runner = self._member.local.runner()
        self._runner.admit(prompts)
        self._prompts = list(prompts)
        self._fed = [list(prompt) for prompt in prompts]

    def drop(self, kept: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._runner.drop(kept)
        self._prompts = [self._prompts[row] for row in kept]
        self._fed = [self._fed[row] for row in kept]

    def write(self, texts: Sequence[list[int]], whole: re.Pattern[bytes], most: int) -> list[Span]:
        """Continue each text greedily, until it is whole.

        Args:
            texts: For each row the ids behind its prompt.
            whole: What a span ends behind, as soon as it begins with it.
            most: Tokens after which it ends in any case.
        """
        written: list[list[int]] = [[] for _ in texts]
        spans: list[Span | None] = [None] * len(texts)
        while None in spans:
            logits = self._feed([[*text, *own] for text, own in zip(texts, written, strict=True)], [1] * len(texts))
            for row, token in enumerate(self._greedy(logits[:, -1])):
                if spans[row] is None:
                    spans[row] = self._grow(row, texts[row], written[row], token, whole, most)
        return [span for span in spans if span is not None]

    def perplexities(self, texts: Sequence[Continuation], spans: Sequence[Sequence[Span]]) -> list[list[float]]:
        """How surprised the member is by spans behind each text: exp of minus the mean log-probability of their tokens.

        Args:
            texts: For each row, the text behind its prompt as the member reads it.
            spans: For each row, some spans, as many as for the others.

        Returns:
            For each row a perplexity for each of its spans; infinite where the member cannot express it.
        """
        found: list[list[float]] = [[] for _ in texts]
        for each in zip(*spans, strict=True):
            for row, value in enumerate(self._perplexities(texts, each)):
                found[row].append(value)
        return found

    def _perplexities(self, texts: Sequence[Continuation], spans: Sequence[Span]) -> list[float]:
        wanted, scored = [], []
        for prompt, text, span in zip(self._prompts, texts, spans, strict=True):
            reader = text.fork()
            same = reader.extend(span.data)
            most = self._member.most_tokens(prompt)
            ids = reader.ids if most is None else reader.ids[: most - len(prompt)]
            wanted.append(ids)
            scored.append([*ids[same:], self._eos] if self._says_eos(span) else ids[same:])
        # The logits before a span's first token are those behind the last that stays; those behind its last one count
        # where EOS comes there.
        behind = [0 if self._says_eos(span) else 1 for span in spans]
        logits = self._feed(wanted, [max(1, len(tokens) + more) for tokens, more in zip(scored, behind, strict=True)])
        values = []
        for row, (tokens, more) in enumerate(zip(scored, behind, strict=True)):
            end = logits.shape[1] - more
            values.append(self._perplexity(logits[row, end - len(tokens) : end], tokens))
        return values

    def _says_eos(self, span: Span) -> bool:
        return span.ended and self._eos is not None

    def _perplexity(self, logits: Tensor, tokens: Sequence[int | None]) -> float:
        """Of tokens, from the logits [tokens, V] before each of them."""
        if not tokens:
            return math.inf
        z = candidate_logits(logits, self._tables)
        places = torch.tensor(tokens, dtype=torch.long, device=z.device)[:, None]
        mean = float((z.gather(1, places).squeeze(1) - z.logsumexp(dim=1)).double().mean())
        return math.exp(-mean) if mean > -700 else math.inf  # e**710 is no float any more

    def _feed(self, texts: Sequence[Sequence[int]], needed: Sequence[int]) -> Tensor:
        """Read each text; the logits [rows, last, V] behind its last tokens, of which ``needed`` count."""
        wanted = [[*prompt, *text] for prompt, text in zip(self._prompts, texts, strict=True)]
        keep = [
            min(common_length(fed, ids), len(ids) - count)
            for fed, ids, count in zip(self._fed, wanted, needed, strict=True)
        ]
        new = [ids[kept:] for ids, kept in zip(wanted, keep, strict=True)]
        self._fed = wanted
        return self._runner.extend(keep, new, last=max(needed))

    def _greedy(self, logits: Tensor) -> list[int]:
        z = candidate_logits(logits, self._tables)
        if bool(z.isnan().any()):
            raise MemberError(f"{self._member.name}: its logits are not numbers (NaN)")
        chosen: list[int] = z.argmax(dim=1).tolist()
        return chosen

    def _grow(
        self, row: int, text: Sequence[int], written: list[int], token: int, whole: re.Pattern[bytes], most: int
    ) -> Span | None:
        """Add a token to what was written; the span where that is its end."""
        token_bytes = self._member.vocabulary.token_bytes
        if token == self._eos:
            return Span(b"".join(token_bytes(each) or b"" for each in written), ended=True)
        written.append(token)
        data = b"".join(token_bytes(each) or b"" for each in written)
        if (match := whole.match(data)) is not None:
            return Span(match.group(), ended=False)
        most_tokens = self._member.most_tokens(self._prompts[row])
        full = most_tokens is not None and len(self._prompts[row]) + len(text) + len(written) >= most_tokens
        return Span(data, ended=False) if len(written) >= most or full else None
