"""Scoring long texts: how likely every token of a passage is, with all that stands before it, under all members.

An option of :mod:`~ensemble.score.scorer` is read at once, with a row for each place where tokenizations part; over a
thousand tokens these would be hundreds of rows of that length. So a passage is cut into pieces of few tokens, and each
is scored like an option behind the pieces before it. What a member has read of those stays in its cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ensemble.models.member import Member
from ensemble.runtime.rows import Rows, common_prefix
from ensemble.score.choices import Ids, Question, check_lengths, entries_of, paths
from ensemble.score.scorer import MOST_LOGITS, Scorer, logits_behind
from ensemble.step.token_method import TokenRule
from ensemble.vocabulary.joint import NONE, JointVocabulary
from ensemble.vocabulary.retokenize import Continuation

_PIECE = 16
"""Tokens of a piece: with more of them, each place where two tokenizations part has more to read again."""
_PIECE_ALONE = 256
"""The same for a single member, whose tokens never part."""
_ROWS_OF_PIECE = 4
"""Rows that a piece takes of the logits' room, roughly: about one token in four ends within another's."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to be scored as a whole.

    Attributes:
        prompts: What stands before it, in each member's ids; at least one id.
        tokens: The text, in the primary's ids.
    """

    prompts: Sequence[list[int]]
    tokens: Sequence[int]


def questions_of(members: Sequence[Member], passage: Passage, entries: Sequence[int], size: int) -> Iterator[Question]:
    """A passage as questions with one option each, every one behind those before it.

    Args:
        members: The primary first.
        passage: The passage.
        entries: Its tokens as entries of the joint vocabulary.
        size: Tokens of a piece.

    Raises:
        InputError: A member's context cannot hold the passage.
    """
    primary, *others = [member.vocabulary for member in members]
    readers = [Continuation(vocabulary) for vocabulary in others]
    for first in range(0, len(passage.tokens), size):
        tokens = list(passage.tokens[first : first + size])
        stems = [list(passage.tokens[:first])]
        reached: list[list[Ids]] = [[tuple(tokens[:n]) for n in range(len(tokens))]]
        for reader in readers:
            states = []
            for token in tokens:
                states.append(reader.ids)
                reader.extend(primary.token_bytes(token) or b"")
            stems.append(common_prefix(states))
            reached.append([tuple(state[len(stems[-1]) :]) for state in states])
        prompts = [[*prompt, *stem] for prompt, stem in zip(passage.prompts, stems, strict=True)]
        check_lengths(members, prompts, reached)
        known, owners = [0.0], [0] * len(tokens)
        part = list(entries[first : first + size])
        yield Question(prompts, known, owners, tokens, part, reached, [paths(own) for own in reached])


class PassageScorer:
    """Scores passages with some members.

    Args:
        members: The primary first.
        joint: Their joint vocabulary.
        rule: The method.
    """

    def __init__(self, members: Sequence[Member], joint: JointVocabulary, rule: TokenRule) -> None:
        self._members = members
        self._joint = joint
        self._scorer = Scorer(members, joint, rule)
        self._size = _PIECE if len(members) > 1 else _PIECE_ALONE

    def run(self, passages: Sequence[Passage], batch_size: int) -> Iterator[tuple[int, float]]:
        """Score passages, yielding each one's number and log-probability, batch by batch.

        Args:
            passages: In any order; those of like length are run together.
            batch_size: Passages at a time, at least 1; fewer where their logits would take too much memory.

        Raises:
            InputError: A member's context cannot hold a passage.
        """
        widest = max(member.vocabulary.size for member in self._members)
        rows = _ROWS_OF_PIECE if len(self._members) > 1 else 1
        size = max(1, min(batch_size, MOST_LOGITS // (widest * self._size * rows)))
        order = sorted(range(len(passages)), key=lambda n: -len(passages[n].tokens))
        for first in range(0, len(order), size):
            batch = order[first : first + size]
            yield from zip(batch, self._score([passages[n] for n in batch]), strict=True)

    @torch.inference_mode()
    def _score(self, passages: Sequence[Passage]) -> list[float]:
        """The log-probability of each passage, piece by piece side by side."""
        totals = [0.0] * len(passages)
        running: list[tuple[int, Iterator[Question], Question]] = []
        for n, passage in enumerate(passages):
            entries = entries_of(self._members[0].vocabulary, self._joint, passage.tokens)
            if NONE in entries:
                totals[n] = -math.inf
                continue
            parts = questions_of(self._members, passage, entries, self._size)
            running += [(n, parts, question) for question in [next(parts, None)] if question is not None]
        rows = [member.rows() for member in self._members]
        for number, own in enumerate(rows) if running else ():
            own.admit([question.prompts[number] for _, _, question in running])
        while running:
            questions = [question for _, _, question in running]
            logits = [
                logits_behind(own, number, questions).to(self._members[0].device) for number, own in enumerate(rows)
            ]
            values, _ = self._scorer.weigh(questions, logits)
            for n, _, question in running:
                totals[n] += sum(values[: len(question.tokens)])
                del values[: len(question.tokens)]
            following = [next(parts, None) for _, parts, _ in running]
            for number, own in enumerate(rows):
                _go_on(own, number, questions, following)
            running = [
                (n, parts, after) for (n, parts, _), after in zip(running, following, strict=True) if after is not None
            ]
        return totals


def _go_on(rows: Rows, member: int, questions: Sequence[Question], following: Sequence[Question | None]) -> None:
    """Let rows that hold some questions' paths hold the prompts of those that follow, a row each."""
    kept, keep, new = [], [], []
    first = 0
    for question, after in zip(questions, following, strict=True):
        behind = question.paths[member].rows
        if after is not None:
            prompt = after.prompts[member]
            shared = [len(common_prefix([[*question.prompts[member], *row], prompt])) for row in behind]
            best = max(range(len(behind)), key=shared.__getitem__)
            kept.append(first + best)
            # What is fed again is the last token at least: a row is never fed nothing.
            keep.append(min(shared[best], len(prompt) - 1))
            new.append(prompt[keep[-1] :])
        first += len(behind)
    rows.drop(kept)
    if kept:
        rows.feed(keep, new)
