"""Scoring options: how likely each of some given texts is after a prompt, under all members together.

What is scored is known in advance, so nothing is decoded step by step: each member reads few rows behind one prompt
(see :mod:`ensemble.score.choices`), and then steps 1 to 6 of UNITE run over all tokens of all options at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.models.member import Member
from ensemble.runtime.logits import Logits
from ensemble.runtime.model_runner import Ways, behind
from ensemble.runtime.rows import Rows
from ensemble.score.choices import Question, batches
from ensemble.step.sampler import Chooser, Draw, Spelling
from ensemble.step.token_method import EndsTogether, TokenRule
from ensemble.vocabulary.joint import JointVocabulary

MOST_LOGITS = 2**26
"""Logits of a member that are held at a time (256 MiB in float32), unless a single question has more."""
_PLACES = 64
"""Places that are combined at a time: a method may need all entries of all vocabularies for each."""


@dataclass(frozen=True, slots=True)
class Score:
    """What an option comes to.

    Attributes:
        value: Its log-probability.
        greedy: Whether greedy decoding would write it, and perhaps go on; None unless asked for.
    """

    value: float
    greedy: bool | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """The members' logits at some places, as a :class:`Chooser` takes them; nobody has to be asked any more."""

    logits: Sequence[Logits]

    def ask(self) -> None:
        """Every member has read all."""


class Scorer:
    """Scores options with some members.

    Args:
        members: The primary first.
        joint: Their joint vocabulary.
        rule: The method.
        greedy: Whether it is to find out what greedy decoding would write.
    """

    def __init__(
        self, members: Sequence[Member], joint: JointVocabulary, rule: TokenRule, *, greedy: bool = False
    ) -> None:
        self._members = members
        self._vocabularies = [member.vocabulary for member in members]
        self._combine = rule.combine
        self._device = members[0].device
        self._sites = [member.site() for member in members]
        self._spelling = Spelling(self._vocabularies, joint)
        chooser = Chooser(rule, len(members), self._spelling, trace=False)
        self._choose = chooser if greedy else None

    def run(self, questions: Sequence[Question], batch_size: int) -> Iterator[tuple[int, list[Score]]]:
        """Score questions, yielding each one's number and the scores of its options, batch by batch.

        Args:
            questions: As :func:`read` made them.
            batch_size: Rows at a time, at least 1; a question has one for each way in which its options part.
        """
        places = MOST_LOGITS // max(member.vocabulary.size for member in self._members)
        for batch in batches(questions, batch_size, places):
            yield from zip(batch, self._score([questions[n] for n in batch]), strict=True)

    @torch.inference_mode()
    def _score(self, questions: Sequence[Question]) -> list[list[Score]]:
        """The scores of all options of all questions, at once."""
        asked = [question for question in questions if question.entries]
        values: list[float] = []
        chosen: list[int] = []
        if asked:
            logits = [self._logits(member, asked) for member in range(len(self._members))]
            values, chosen = self.weigh(asked, logits)
        scores = []
        first = 0
        for question in questions:
            end = first + len(question.entries)
            scores.append(self._total(question, values[first:end], chosen[first:end]))
            first = end
        return scores

    def weigh(self, questions: Sequence[Question], logits: Sequence[Logits]) -> tuple[list[float], list[int]]:
        """The log-probability of each token, and what greedy decoding chooses in its place (nothing unless asked for).

        Args:
            questions: Whose tokens they are, one behind the other.
            logits: For each member its logits [tokens, V] before each, or what stands for them.
        """
        entries = torch.tensor([[entry] for question in questions for entry in question.entries], device=self._device)
        texts = [(question, place) for question in questions for place in range(len(question.entries))]
        values: list[float] = []
        chosen: list[int] = []
        for first in range(0, len(entries), _PLACES):
            some = slice(first, first + _PLACES)
            wanted, places = entries[some], [z[some] for z in logits]
            if self._choose is not None:
                ends_together = self._borders(texts[len(values) :])
                choices = self._choose(_Read(places), [Draw()] * len(wanted), ends_together)
                chosen += [choice.token for choice in choices]
            step = self._combine(places, wanted)
            values += step.mean[step.present & (step.entries == wanted)].log().tolist()
        return values, chosen

    def _borders(self, texts: Sequence[tuple[Question, int]]) -> EndsTogether:
        """Whether a token leaves every member's last ids as they are; only gates ask."""

        def ends_together(row: int, token: int) -> bool:
            question, place = texts[row]
            text = b"".join(self._spelling.data(index) or b"" for index in question.states[0][place])
            data = self._spelling.data(token)
            if data is None:
                return True
            read = [(each.continue_ids(text), each.continue_ids(text + data)) for each in self._vocabularies[1:]]
            return all(after[: len(before)] == before for before, after in read)

        return ends_together

    def _total(self, question: Question, values: Sequence[float], chosen: Sequence[int]) -> list[Score]:
        """The scores of a question's options from those of its tokens."""
        totals = list(question.known)
        of_option: list[list[int]] = [[] for _ in totals]
        for place, (option, value) in enumerate(zip(question.owners, values, strict=True)):
            totals[option] += value
            of_option[option].append(place)
        if self._choose is None:
            return [Score(total) for total in totals]
        return [
            Score(total, self._writes([question.tokens[n] for n in places], [chosen[n] for n in places]))
            for total, places in zip(totals, of_option, strict=True)
        ]

    def _writes(self, tokens: Sequence[int], chosen: Sequence[int]) -> bool:
        """Whether greedy decoding, which chooses this before each token, writes these tokens."""
        place = 0
        while place < len(tokens):
            # A choice may be spelled with several ids.
            ids = self._spelling.ids(chosen[place])
            if list(tokens[place : place + len(ids)]) != ids[: len(tokens) - place]:
                return False
            place += len(ids)
        return bool(tokens)

    def _logits(self, member: int, questions: Sequence[Question]) -> Logits:
        """A member's logits [tokens, V] before each token that is scored, on the primary's device."""
        prompts = [question.prompts[member] for question in questions]
        return self._sites[member].score(prompts, ways(member, questions)).to(self._device)


def logits_behind(rows: Rows, member: int, questions: Sequence[Question]) -> Tensor:
    """A member's logits [tokens, V] before each token of some questions that is scored.

    Args:
        rows: A row for each question, which holds its prompt. A row for each of its paths stands there afterwards.
        member: The member's number.
        questions: In the order of the rows.
    """
    return behind(rows, ways(member, questions))


def ways(member: int, questions: Sequence[Question]) -> Ways:
    """What a member reads behind the prompts of some questions, and where its logits are before each token.

    Args:
        member: The member's number.
        questions: In the order of the prompts.
    """
    all_paths = [question.paths[member] for question in questions]
    prompts = [question.prompts[member] for question in questions]
    # The prompt's last token is fed with the row: the logits behind it count.
    new = [[prompt[-1], *row] for prompt, own in zip(prompts, all_paths, strict=True) for row in own.rows]
    places = []
    first = 0
    for question, own in zip(questions, all_paths, strict=True):
        places += [(first + own.row_of[state], len(state)) for state in question.states[member]]
        first += len(own.rows)
    return Ways([n for n, own in enumerate(all_paths) for _ in own.rows], new, places)
