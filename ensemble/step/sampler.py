"""The sampler: what each row of a step emits, by the method's distribution, its gates, and the row's settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.errors import MemberError
from ensemble.models.member import Member
from ensemble.runtime.logits import Logits, fault
from ensemble.step.distribution import Distribution, greedy, sample
from ensemble.step.logprobs import StepLogprobs, step_logprobs
from ensemble.step.token_method import AppendsOnly, Combine, TokenRule
from ensemble.step.trace import Step, explain
from ensemble.vocabulary.joint import NONE, JointVocabulary
from ensemble.vocabulary.token_bytes import Vocabulary

NO_TOKEN = -2
"""The sampled token of a row with NaN, or with no entry that the primary can express."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How to choose a row's token.

    Attributes:
        temperature: 0 takes the likeliest entry; above 0, one is drawn.
        top_p: In (0, 1]; see :func:`ensemble.step.distribution.sample`.
        uniform: In [0, 1); decides the draw.
        alternatives: See :class:`ensemble.decode.settings.Settings`.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    uniform: float = 0.0
    alternatives: int | None = None


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What a row emits.

    Attributes:
        token: As in :class:`ensemble.step.distribution.Distribution`; NO_TOKEN if nothing can be chosen.
        handled: Entries whose probabilities were looked at.
        combined: Whether several members decided.
        step: For the trace; None unless requested.
        logprobs: Its log-probability and those of alternatives; None unless requested.
    """

    token: int
    handled: int
    combined: bool
    step: Step | None = None
    logprobs: StepLogprobs | None = None


class Detokenizer:
    """Turns sampled tokens into the primary's ids and into bytes.

    A sampled token is an id of the primary. Or it is the number of the primary's ids plus an entry of the joint
    vocabulary, which the primary spells with several ids.

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
        """The primary's ids of a sampled token."""
        if token < self.size:
            # An id of the primary is emitted as it is: to spell its bytes again could give other ids.
            return [token]
        return self._vocabularies[0].continue_ids(self.entry_bytes(token - self.size) or b"")

    def data(self, token: int) -> bytes | None:
        """The bytes that a sampled token adds to the text; None for EOS."""
        if token == self._eos:
            return None
        return self._vocabularies[0].token_bytes(token) if token < self.size else self.entry_bytes(token - self.size)

    def entry_bytes(self, entry: int) -> bytes | None:
        """The bytes of an entry of the joint vocabulary; None for EOS."""
        owner = self._joint.representative(entry)
        return None if owner is None else self._vocabularies[owner[0]].token_bytes(owner[1])


class Sampler:
    """Chooses a token for each row of a step.

    Args:
        rule: The method.
        members: The number of members.
        detokenizer: Of these members.
        trace: Whether to explain each step.
    """

    def __init__(self, rule: TokenRule, members: int, detokenizer: Detokenizer, *, trace: bool) -> None:
        self._rule = rule
        self._has_others = members > 1
        self._detokenizer = detokenizer
        self._trace = trace

    def __call__(
        self,
        logits: Sequence[Logits],
        draws: Sequence[Draw],
        appends_only: AppendsOnly,
        run_others: Callable[[], Sequence[Logits]] | None = None,
    ) -> list[SampledToken]:
        """Choose for each row; rows do not depend on each other.

        Args:
            logits: For each member its logits [B, V_i]; the primary's alone if the others wait for a gate.
            draws: For each row, how to choose.
            appends_only: See :data:`ensemble.step.token_method.AppendsOnly`.
            run_others: Runs the members that wait, and returns all members' logits; None if no member waits.
        """
        rule = self._rule
        alone = rule.primary_alone if self._has_others else None
        is_open: Sequence[bool] = ()
        if alone is not None and rule.needs_others is not None:
            is_open = rule.needs_others(logits[0])
            if not any(is_open):
                return self._pick(alone(logits[:1]), draws, combined=False)
            # One row with an open gate runs the others for all rows: a batch is one forward pass.
            logits = logits if run_others is None else run_others()
        step = self._combine(draws)(logits)
        sampled = self._pick(step, draws, combined=self._has_others)
        if alone is not None and rule.gate is not None:
            is_open = rule.gate(step, appends_only)
        closed = [row for row, open_ in enumerate(is_open) if not open_]
        # Only the rows whose gate is closed are combined again: a method over a whole vocabulary takes long.
        if closed and alone is not None:
            own = self._pick(alone([logits[0][closed]]), [draws[row] for row in closed], combined=False)
            for row, token in zip(closed, own, strict=True):
                sampled[row] = token
        return sampled

    def _combine(self, draws: Sequence[Draw]) -> Combine:
        """The cheapest combination that is enough for these draws."""
        rough = self._rule.combine_greedy
        # Draws, log-probabilities and traces need exact probabilities.
        if rough is None or self._trace or any(draw.temperature or draw.alternatives is not None for draw in draws):
            return self._rule.combine
        return rough

    def _pick(self, step: Distribution, draws: Sequence[Draw], *, combined: bool) -> list[SampledToken]:
        winners = _winners(step, draws)
        ids = step.ids.gather(1, winners[:, None]).squeeze(1)
        # Marked on the device: to ask the host for NaN before each step would make every step wait.
        tokens = ids.masked_fill(step.mean.isnan().any(dim=1) | (ids == NONE), NO_TOKEN)
        # One copy from the device for both, since each copy waits for it.
        rows = torch.stack([tokens, step.present.sum(dim=1)], dim=1).tolist()
        alternatives = {
            row: n
            for row, (draw, (token, _)) in enumerate(zip(draws, rows, strict=True))
            if (n := draw.alternatives) is not None and token != NO_TOKEN
        }
        logprobs = step_logprobs(step, tokens, alternatives, self._detokenizer.data) if alternatives else {}
        # Copied only for a trace, since each copy waits for the device.
        places = winners.tolist() if self._trace else []
        return [
            SampledToken(
                token,
                handled,
                combined,
                self._explain(step, row, places[row], token) if self._trace and token != NO_TOKEN else None,
                logprobs.get(row),
            )
            for row, (token, handled) in enumerate(rows)
        ]

    def _explain(self, step: Distribution, row: int, winner: int, token: int) -> Step:
        texts = self._detokenizer
        return explain(step, row, winner, texts.entry_bytes, texts.data(token), texts.size)


def no_token(members: Sequence[Member], logits: Sequence[Logits], rows: Sequence[int], where: str = "") -> MemberError:
    """The error of a text for which no token can be chosen.

    Args:
        members: The members.
        logits: Their logits; fewer than the members where the others wait for a gate.
        rows: The text's rows.
        where: The step, for the message.
    """
    for member, own in zip(members, logits, strict=False):
        if reason := next((why for row in rows if (why := fault(own, row))), None):
            return MemberError(f"{member.name}: {reason}{where}")
    return MemberError(f"no member has a candidate token{where}")


def _winners(step: Distribution, draws: Sequence[Draw]) -> Tensor:
    """The index [B] of the entry that each row chooses."""
    drawing = [draw.temperature > 0 for draw in draws]
    if not any(drawing):
        return greedy(step)
    device = step.mean.device
    # A greedy row takes part in the draw at temperature 1, and its result is not used.
    temperature = torch.tensor([draw.temperature or 1.0 for draw in draws], dtype=torch.float64, device=device)
    top_p = torch.tensor([draw.top_p for draw in draws], dtype=torch.float64, device=device)
    uniform = torch.tensor([draw.uniform for draw in draws], device=device)
    drawn = sample(step, temperature, top_p, uniform)
    return drawn if all(drawing) else torch.where(torch.tensor(drawing, device=device), drawn, greedy(step))
