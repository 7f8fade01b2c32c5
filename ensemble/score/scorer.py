"""Scoring options: the log-probability of each of some texts after a prompt, under all members together.

The scored texts are known in advance, so no step waits for another: each member reads few rows after one prompt (see
:mod:`ensemble.score.choices`), and then steps 1 to 6 of UNITE run over all tokens of all options together.

Weights can come from each member's perplexity of the prompt: PackLLM-sim (Mavromatis et al., "Pack of LLMs", 2024).
With ``l_i`` the mean negative log-probability of a prompt's tokens under member i, the logarithm of its perplexity,

    a_i = exp(-l_i / t) / sum_j exp(-l_j / t), with t = 1 as in the authors' code

So each prompt has other weights. A difference from the authors: they compute ``l_i`` over one member's vocabulary, to
which the others are mapped; here each member reads its own tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch.nn.functional import cross_entropy

from ensemble.errors import InputError, MemberError
from ensemble.models.member import Member, step_device
from ensemble.runtime.logits import Logits
from ensemble.score.choices import ChoiceQuestion, batches
from ensemble.step.sampler import Detokenizer, Draw, Sampler, no_token
from ensemble.step.token_method import AppendsOnly, TokenRule
from ensemble.vocabulary.joint import JointVocabulary

Q = TypeVar("Q")
S = TypeVar("S")

MAX_LOGITS = 2**26
"""Logits of a member to hold at a time (256 MiB in float32), unless a single question has more."""
_PLACES = 64
"""Tokens to combine at a time: a method may need all entries of all vocabularies for each."""
_PIECE = 256
"""Tokens to read at a time: the logits of a whole prompt can need gigabytes."""


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """The score of an option."""

    value: float  # its log-probability
    greedy: bool | None = None  # whether greedy decoding would write it, perhaps with more text; None unless requested


def in_batches(
    questions: Sequence[Q], batches: Iterable[Sequence[int]], score: Callable[[Sequence[Q]], Sequence[S | MemberError]]
) -> Iterator[tuple[int, S]]:
    """Yield questions' numbers and scores; after all others, raise the first MemberError with its question's number."""
    failures: list[tuple[int, MemberError]] = []
    for batch in batches:
        for n, scored in zip(batch, score([questions[n] for n in batch]), strict=True):
            if isinstance(scored, MemberError):
                failures.append((n, scored))
            else:
                yield n, scored
    if failures:
        number, failure = min(failures, key=lambda item: item[0])
        # A single question needs no number: its caller knows it.
        where = f" for number {number}; {len(failures)} of {len(questions)} have no score"
        raise MemberError(f"{failure}{where if len(questions) > 1 else ''}")


class Scorer:
    """Scores options with some members, and with ``greedy`` tells what greedy decoding would write."""

    def __init__(
        self, members: Sequence[Member], joint: JointVocabulary, rule: TokenRule, *, greedy: bool = False
    ) -> None:
        self._members = members
        self._vocabularies = [member.vocabulary for member in members]
        self._combine = rule.combine
        self._device = step_device(members)
        self._runners = [member.runner() for member in members]
        self._detokenizer = Detokenizer(self._vocabularies, joint)
        self._sampler = Sampler(rule, len(members), self._detokenizer, trace=False) if greedy else None

    def run(self, questions: Sequence[ChoiceQuestion], batch_size: int) -> Iterator[tuple[int, list[ChoiceScore]]]:
        """Score ``batch_size`` rows at a time; yields questions' numbers and the scores of their options.

        A MemberError for NaN logits, with the member and the first question's number, follows all others.
        """
        places = MAX_LOGITS // max(vocabulary.size for vocabulary in self._vocabularies)
        yield from in_batches(questions, batches(questions, batch_size, places), self._score)

    @torch.inference_mode()
    def _score(self, questions: Sequence[ChoiceQuestion]) -> list[list[ChoiceScore] | MemberError]:
        """The scores of all options of all questions, in one pass; the error of a question that has none."""
        with_tokens = [question for question in questions if question.entries]
        values: list[float] = []
        chosen: list[int] = []
        logits: list[Logits] = []
        if with_tokens:
            for n, runner in enumerate(self._runners):
                prompts = [question.prompts[n] for question in with_tokens]
                logits.append(runner.score(prompts, *continuations(n, with_tokens)).to(self._device))
            values, chosen = self.token_scores(with_tokens, logits)
        scores: list[list[ChoiceScore] | MemberError] = []
        first = 0
        for question in questions:
            end = first + len(question.entries)
            if any(map(math.isnan, values[first:end])):
                scores.append(no_token(zip(self._members, logits, strict=True), range(first, end)))
            else:
                scores.append(self._total(question, values[first:end], chosen[first:end]))
            first = end
        return scores

    def token_scores(
        self, questions: Sequence[ChoiceQuestion], logits: Sequence[Logits]
    ) -> tuple[list[float], list[int]]:
        """The log-probability of each token, and greedy choices if requested, from logits [tokens, V]."""
        # On the device once, since the parts below are slices of it.
        entries = torch.tensor([[entry] for question in questions for entry in question.entries], device=self._device)
        places = [(question, place) for question in questions for place in range(len(question.entries))]
        values: list[float] = []
        chosen: list[int] = []
        for first in range(0, len(entries), _PLACES):
            some = slice(first, first + _PLACES)
            wanted, part = entries[some], [z[some] for z in logits]
            if self._sampler is not None:
                sampled = self._sampler(part, [Draw()] * len(wanted), self._appends_only(places[some]))
                chosen += [token.token for token in sampled]
            step = self._combine(part, wanted)
            values += step.mean[step.present & (step.entries == wanted)].log().tolist()
        return values, chosen

    def _appends_only(self, places: Sequence[tuple[ChoiceQuestion, int]]) -> AppendsOnly:
        """Whether a token leaves every other member's last ids unchanged, for rows at these places of questions."""

        def appends_only(row: int, token: int) -> bool:
            question, place = places[row]
            text = b"".join(self._detokenizer.data(index) or b"" for index in question.states[0][place])
            data = self._detokenizer.data(token)
            if data is None:
                return True
            ids = [(each.continue_ids(text), each.continue_ids(text + data)) for each in self._vocabularies[1:]]
            return all(after[: len(before)] == before for before, after in ids)

        return appends_only

    def _total(self, question: ChoiceQuestion, values: Sequence[float], chosen: Sequence[int]) -> list[ChoiceScore]:
        """The scores of a question's options from those of its tokens."""
        totals = list(question.known)
        places_of: list[list[int]] = [[] for _ in totals]
        for place, (option, value) in enumerate(zip(question.owners, values, strict=True)):
            totals[option] += value
            places_of[option].append(place)
        if self._sampler is None:
            return [ChoiceScore(total) for total in totals]
        return [
            ChoiceScore(total, self._is_greedy([question.tokens[n] for n in places], [chosen[n] for n in places]))
            for total, places in zip(totals, places_of, strict=True)
        ]

    def _is_greedy(self, tokens: Sequence[int], chosen: Sequence[int]) -> bool:
        """Whether greedy decoding, with these choices before each token, writes the tokens."""
        place = 0
        while place < len(tokens):
            # A choice may have several ids, and the choices within it do not count.
            ids = self._detokenizer.ids(chosen[place])
            if list(tokens[place : place + len(ids)]) != ids[: len(tokens) - place]:
                return False
            place += len(ids)
        # An option that cannot be written has no tokens; greedy decoding does not write it.
        return bool(tokens)


def continuations(
    member: int, questions: Sequence[ChoiceQuestion]
) -> tuple[list[int], list[list[int]], list[tuple[int, int]]]:
    """The ``parents``, ``new`` and ``places`` (before each token to score) that a member's runner scores."""
    parents: list[int] = []
    new: list[list[int]] = []
    places: list[tuple[int, int]] = []
    for n, question in enumerate(questions):
        paths = question.paths[member]
        places += [(len(new) + paths.row_of[state], len(state)) for state in question.states[member]]
        parents += [n] * len(paths.rows)
        # The prompt's last token is read again: the logits after it are those before an option's first token.
        new += [[question.prompts[member][-1], *row] for row in paths.rows]
    return parents, new, places


def perplexity_weights(members: Sequence[Member], prompts: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """The weights of causal members here for a prompt, 1 in all; InputError for others, MemberError for NaN."""
    losses = [prompt_loss(member, prompt) for member, prompt in zip(members, prompts, strict=True)]
    weights: list[float] = torch.tensor(losses, dtype=torch.float64).neg().softmax(dim=0).tolist()
    return tuple(weights)


@torch.inference_mode()
def prompt_loss(member: Member, prompt: Sequence[int]) -> float:
    """The mean negative log-probability of a prompt's tokens after the first, in nats; 0 for a single token."""
    # The ids that an encoder reads are negative.
    if min(prompt) < 0:
        raise InputError("weights perplexity needs causal models, and it has an encoder", of=member.name)
    runner = member.local.runner()
    logits = runner.prefill([prompt[:1]])
    loss = 0.0
    for first in range(1, len(prompt), _PIECE):
        piece = list(prompt[first : first + _PIECE])
        before = logits[0, -1:].double()
        logits = runner.extend([first], [piece], last=len(piece))
        scores = torch.cat([before, logits[0, :-1].double()])
        loss += float(cross_entropy(scores, torch.tensor(piece, device=scores.device), reduction="sum"))
    if loss != loss:  # noqa: PLR0124  # NaN
        raise MemberError("its logits are not numbers (NaN)", of=member.name)
    return loss / max(1, len(prompt) - 1)
