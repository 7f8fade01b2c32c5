"""Scoring long texts: the log-probability of every token of a passage after all the text before it, under all members.

:mod:`~ensemble.score.scorer` reads an option in one pass, with a row for each place where tokenizations differ. Over a
thousand tokens would need hundreds of rows of that length. So a passage is cut into pieces of few tokens, and each is
scored like an option after the pieces before it. The members' runners keep those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ensemble.errors import MemberError
from ensemble.models.member import Member
from ensemble.runtime.local_runner import LocalRunner, common_prefix
from ensemble.score.choices import ChoiceQuestion, State, check_lengths, entries_of, paths
from ensemble.score.scorer import MAX_LOGITS, Scorer, continuations, in_batches
from ensemble.step.sampler import no_token
from ensemble.step.token_method import TokenRule
from ensemble.vocabulary.joint import NONE, JointVocabulary
from ensemble.vocabulary.retokenize import Continuation

_PIECE = 16
"""Tokens of a piece: in a longer one, each place where two tokenizations differ has more tokens to read again."""
_PIECE_ALONE = 256
"""Tokens of a piece for a single member, which has one tokenization."""
_ROWS_OF_PIECE = 4
"""Rows of a piece, roughly: about one token in four ends within another member's token."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to score as a whole."""

    prompts: Sequence[list[int]]  # what comes before it, in each member's ids; at least one id
    tokens: Sequence[int]  # the text, in the primary's ids


def pieces_of(
    members: Sequence[Member], passage: Passage, entries: Sequence[int], size: int
) -> Iterator[ChoiceQuestion]:
    """A passage in questions of one option: ``size`` tokens after the ones before; InputError if it does not fit."""
    primary, *others = [member.vocabulary for member in members]
    readers = [Continuation(vocabulary) for vocabulary in others]
    for first in range(0, len(passage.tokens), size):
        tokens = list(passage.tokens[first : first + size])
        stems = [list(passage.tokens[:first])]
        reached: list[list[State]] = [[tuple(tokens[:n]) for n in range(len(tokens))]]
        for reader in readers:
            states = []
            for token in tokens:
                states.append([*reader.ids])
                reader.extend(primary.token_bytes(token) or b"")
            # A piece may change ids of the text before it, so the prompt holds only what all states begin with.
            stems.append(common_prefix(states))
            reached.append([tuple(state[len(stems[-1]) :]) for state in states])
        prompts = [[*prompt, *stem] for prompt, stem in zip(passage.prompts, stems, strict=True)]
        check_lengths(members, prompts, reached)
        known, owners = [0.0], [0] * len(tokens)
        piece_entries = list(entries[first : first + size])
        member_paths = [paths(states) for states in reached]
        yield ChoiceQuestion(prompts, known, owners, tokens, piece_entries, reached, member_paths)


class PassageScorer:
    """Scores passages with some members."""

    def __init__(self, members: Sequence[Member], joint: JointVocabulary, rule: TokenRule) -> None:
        self._members = members
        self._joint = joint
        self._scorer = Scorer(members, joint, rule)
        self._size = _PIECE if len(members) > 1 else _PIECE_ALONE

    def run(self, passages: Sequence[Passage], batch_size: int) -> Iterator[tuple[int, float]]:
        """Score passages of similar length together; yields their numbers and log-probabilities.

        ``batch_size`` is at least 1; fewer run together if their logits would take too much memory. InputError if a
        context cannot hold a passage; MemberError for NaN, after all others, with the member and the first number.
        """
        widest = max(member.vocabulary.size for member in self._members)
        rows = _ROWS_OF_PIECE if len(self._members) > 1 else 1
        size = max(1, min(batch_size, MAX_LOGITS // (widest * self._size * rows)))
        # The longest first: if memory runs out, then at once and not after hours.
        order = sorted(range(len(passages)), key=lambda n: -len(passages[n].tokens))
        groups = (order[first : first + size] for first in range(0, len(order), size))
        yield from in_batches(passages, groups, self._score)

    @torch.inference_mode()
    def _score(self, passages: Sequence[Passage]) -> list[float | MemberError]:
        """The log-probability of each passage, or its error; one piece of each runs at a time."""
        totals = [0.0] * len(passages)
        failures: dict[int, MemberError] = {}
        running: list[tuple[int, Iterator[ChoiceQuestion], ChoiceQuestion]] = []
        for n, passage in enumerate(passages):
            entries = entries_of(self._members[0].vocabulary, self._joint, passage.tokens)
            # A token that no step can emit makes the whole text impossible, so its pieces are not run.
            if NONE in entries:
                totals[n] = -math.inf
                continue
            pieces = pieces_of(self._members, passage, entries, self._size)
            running += [(n, pieces, question) for question in [next(pieces, None)] if question is not None]
        runners = [member.local.runner() for member in self._members]
        for member, runner in enumerate(runners) if running else ():
            runner.prefill([question.prompts[member] for _, _, question in running])
        while running:
            questions = [question for _, _, question in running]
            logits = [
                runner.branch(*continuations(member, questions)).to(self._members[0].device)
                for member, runner in enumerate(runners)
            ]
            values, _ = self._scorer.token_scores(questions, logits)
            first = 0
            # The values of all questions are in one list, in the order of the questions.
            for n, _, question in running:
                end = first + len(question.tokens)
                totals[n] += sum(values[first:end])
                if math.isnan(totals[n]) and n not in failures:
                    failures[n] = no_token(zip(self._members, logits, strict=True), range(first, end))
                first = end
            following = [next(pieces, None) for _, pieces, _ in running]
            for member, runner in enumerate(runners):
                _advance(runner, member, questions, following)
            running = [
                (n, pieces, question)
                for (n, pieces, _), question in zip(running, following, strict=True)
                if question is not None
            ]
        return [failures.get(n, total) for n, total in enumerate(totals)]


def _advance(
    runner: LocalRunner, member: int, questions: Sequence[ChoiceQuestion], following: Sequence[ChoiceQuestion | None]
) -> None:
    """Turn a runner's rows, which hold some questions' paths, into the prompts of the questions that follow."""
    kept, keep, new = [], [], []
    first = 0
    for question, after in zip(questions, following, strict=True):
        rows = question.paths[member].rows
        if after is not None:
            prompt = after.prompts[member]
            shared = [len(common_prefix([[*question.prompts[member], *row], prompt])) for row in rows]
            # Of the question's rows, the one with the longest prefix of the next prompt goes on.
            best = max(range(len(rows)), key=shared.__getitem__)
            kept.append(first + best)
            # A row is always fed at least one token, so the last one is read again.
            keep.append(min(shared[best], len(prompt) - 1))
            new.append(prompt[keep[-1] :])
        first += len(rows)
    runner.drop(kept)
    if kept:
        runner.extend(keep, new)
