"""What each row of a step emits: the method's distribution, its gate, the entry that wins, and how it came to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ensemble.runtime.logits import Logits
from ensemble.step.distribution import Distribution, greedy, sample
from ensemble.step.logprobs import Likelihood, likelihoods
from ensemble.step.token_method import Combine, EndsTogether, TokenRule
from ensemble.step.trace import Step, explain
from ensemble.vocabulary.joint import NONE, JointVocabulary
from ensemble.vocabulary.token_bytes import Vocabulary

NOT_A_NUMBER = -2
"""What is chosen where logits are no numbers."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How a row chooses.

    Attributes:
        temperature: 0 takes the likeliest; above, one is drawn.
        top_p: In (0, 1]; see :func:`ensemble.step.distribution.sample`.
        uniform: In [0, 1); decides the draw.
        alternatives: See :class:`ensemble.decode.settings.Settings`.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    uniform: float = 0.0
    alternatives: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What a row emits.

    Attributes:
        token: As in :class:`ensemble.step.distribution.Distribution`; NOT_A_NUMBER where nothing can be chosen.
        handled: Entries whose probabilities were looked at.
        combined: Whether several members decided.
        step: For the trace; None unless asked for.
        likelihood: How likely it was, and what else was; None unless asked for.
    """

    token: int
    handled: int
    combined: bool
    step: Step | None = None
    likelihood: Likelihood | None = None


class Asked(Protocol):
    """What the members that were asked have to say: :class:`ensemble.decode.sequences.Contexts` where a text grows."""

    @property
    def logits(self) -> Sequence[Logits]:
        """For each member that was asked, its logits [B, V]."""
        ...

    def ask(self) -> None:
        """Ask the others; theirs join them."""
        ...


class Spelling:
    """What the primary emits, as ids and as bytes.

    Args:
        vocabularies: The members', the primary's first.
        joint: Their joint vocabulary.
    """

    def __init__(self, vocabularies: Sequence[Vocabulary], joint: JointVocabulary) -> None:
        self._vocabularies = vocabularies
        self._joint = joint
        ends = joint.members[0].eos_ids
        self._eos = int(ends[0]) if len(ends) else NONE
        self.size = vocabularies[0].size

    def ids(self, token: int) -> list[int]:
        """The primary's ids of a choice: itself, or those of an entry that it spells."""
        if token < self.size:
            return [token]
        return self._vocabularies[0].continue_ids(self.entry_bytes(token - self.size) or b"")

    def data(self, token: int) -> bytes | None:
        """The bytes that a choice adds to the text; None for EOS."""
        if token == self._eos:
            return None
        return self._vocabularies[0].token_bytes(token) if token < self.size else self.entry_bytes(token - self.size)

    def entry_bytes(self, entry: int) -> bytes | None:
        """The bytes of an entry of the joint vocabulary; None for EOS."""
        found = self._joint.representative(entry)
        return None if found is None else self._vocabularies[found[0]].token_bytes(found[1])


class Chooser:
    """Chooses for the rows of a step.

    Args:
        rule: The method.
        members: How many there are.
        spelling: Of the primary.
        trace: Whether choices say how they came about.
    """

    def __init__(self, rule: TokenRule, members: int, spelling: Spelling, *, trace: bool) -> None:
        self._rule = rule
        self._several = members > 1
        self._spelling = spelling
        self._trace = trace

    def __call__(self, contexts: Asked, draws: Sequence[Draw], ends_together: EndsTogether) -> list[Choice]:
        """Choose for each row.

        Args:
            contexts: Hold the logits of the rows; members that wait are asked where the method's gate says so.
            draws: How each row chooses. What it chooses does not depend on the others.
            ends_together: See :class:`ensemble.step.token_method.TokenRule`.
        """
        rule = self._rule
        gated = self._several and rule.alone is not None
        counts = rule.asks(contexts.logits[0]) if gated and rule.asks is not None else None
        if rule.alone is not None and counts is not None and not any(counts):
            return self._pick(rule.alone(contexts.logits), draws, combined=False)
        if counts is not None:
            contexts.ask()
        step = self._combine(draws)(contexts.logits)
        choices = self._pick(step, draws, combined=self._several)
        if gated and rule.counts is not None:
            counts = rule.counts(step, ends_together)
        shut = [row for row, open_ in enumerate(counts or ()) if not open_]
        if shut and rule.alone is not None:
            alone = rule.alone([contexts.logits[0][shut]])
            found = self._pick(alone, [draws[row] for row in shut], combined=False)
            for row, choice in zip(shut, found, strict=True):
                choices[row] = choice
        return choices

    def _combine(self, draws: Sequence[Draw]) -> Combine:
        """What is enough for these draws: probabilities count where one is drawn, or told."""
        rough = self._rule.decide
        if rough is None or self._trace or any(draw.temperature or draw.alternatives is not None for draw in draws):
            return self._rule.combine
        return rough

    def _pick(self, step: Distribution, draws: Sequence[Draw], *, combined: bool) -> list[Choice]:
        winners = _winners(step, draws)
        ids = step.ids.gather(1, winners[:, None]).squeeze(1)
        tokens = ids.masked_fill(step.mean.isnan().any(dim=1), NOT_A_NUMBER)
        # One copy to the host for both.
        found = torch.stack([tokens, step.present.sum(dim=1)], dim=1).tolist()
        asked = {
            row: n
            for row, (draw, (token, _)) in enumerate(zip(draws, found, strict=True))
            if (n := draw.alternatives) is not None and token != NOT_A_NUMBER
        }
        likely = likelihoods(step, tokens, asked, self._spelling.data) if asked else {}
        steps = dict(enumerate(winners.tolist())) if self._trace else {}
        return [
            Choice(
                token,
                handled,
                combined,
                self._explain(step, row, steps[row], token) if steps else None,
                likely.get(row),
            )
            for row, (token, handled) in enumerate(found)
        ]

    def _explain(self, step: Distribution, row: int, winner: int, token: int) -> Step | None:
        """None where there is nothing to tell, because nothing can be chosen."""
        if token == NOT_A_NUMBER:
            return None
        spelling = self._spelling
        return explain(step, row, winner, spelling.entry_bytes, spelling.data(token), spelling.size)


def _winners(step: Distribution, draws: Sequence[Draw]) -> Tensor:
    """The index [B] of the entry that each row chooses."""
    drawing = [row for row, draw in enumerate(draws) if draw.temperature > 0]
    if not drawing:
        return greedy(step)
    device = step.mean.device
    # A row that takes the likeliest is drawn for at temperature 1, and what was drawn is left.
    heat = torch.tensor([draw.temperature or 1.0 for draw in draws], dtype=torch.float64, device=device)
    shares = torch.tensor([draw.top_p for draw in draws], dtype=torch.float64, device=device)
    uniform = torch.tensor([draw.uniform for draw in draws], device=device)
    drawn = sample(step, heat, shares, uniform)
    if len(drawing) == len(draws):
        return drawn
    return torch.where(torch.tensor([draw.temperature > 0 for draw in draws], device=device), drawn, greedy(step))
