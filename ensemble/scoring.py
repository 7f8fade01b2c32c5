"""Scoring options: how likely each of some given texts is after a prompt, under all members together.

What is scored is known in advance, so nothing is decoded step by step. Before the t-th token of an option a member has
read its prompt and ``C_i`` of the bytes up to there. Where one such state is the beginning of another, both are read in
one pass over the longer one; so all states of a question's options fit into few rows, behind one prompt that is read
once. Then steps 1 to 6 of UNITE run over all tokens of all options at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.continuation import Continuation
from ensemble.errors import InputError
from ensemble.joint import NONE, JointVocabulary
from ensemble.member import Member
from ensemble.methods._token import Combine
from ensemble.vocabulary import Vocabulary

Ids = tuple[int, ...]
_MOST_LOGITS = 2**26
"""Logits of a member that are held at a time (256 MiB in float32), unless a single question has more."""
_PLACES = 64
"""Places that are combined at a time: a method may need all entries of all vocabularies for each."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The states that a member goes through, as the beginnings of few rows.

    Attributes:
        rows: Ids to read behind the prompt.
        row_of: For each state the number of the row that begins with it.
    """

    rows: list[Ids]
    row_of: dict[Ids, int]


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and its options, as the members read them.

    Attributes:
        prompts: The prompt's ids in each member.
        known: For each option its score before anything is run: minus infinity where it cannot be written, else 0.
        owners: For each token to be scored, the option that it belongs to.
        entries: For each of them, its entry of the joint vocabulary.
        states: For each member, and for each of them, what the member has read behind the prompt before it.
        paths: For each member, all of these.
    """

    prompts: Sequence[list[int]]
    known: list[float]
    owners: list[int]
    entries: list[int]
    states: list[list[Ids]]
    paths: list[Paths]

    def rows(self) -> int:
        """Rows behind the prompt, in the member that has most of them."""
        return max(len(path.rows) for path in self.paths)

    def longest(self) -> int:
        """Tokens of the longest row behind the prompt, in any member."""
        return max(len(row) for path in self.paths for row in path.rows)


def states(vocabularies: Sequence[Vocabulary], tokens: Sequence[int]) -> list[list[Ids]]:
    """For each member, what it has read behind the prompt before each token of an option.

    Args:
        vocabularies: The primary's first.
        tokens: The option in the primary's ids, all of them text.
    """
    primary, *others = vocabularies
    found = [[tuple(tokens[:n]) for n in range(len(tokens))]]
    for vocabulary in others:
        reader = Continuation(vocabulary)
        own: list[Ids] = [()]
        for token in tokens[:-1]:
            reader.extend(primary.token_bytes(token) or b"")
            own.append(tuple(reader.ids))
        found.append(own)
    return found


def paths(reached: Iterable[Ids]) -> Paths:
    """The fewest rows that lead through all states: those which no other state begins with."""
    rows: list[Ids] = []
    row_of: dict[Ids, int] = {}
    # In descending order a sequence comes right behind those that begin with it.
    for state in sorted({*reached, ()}, reverse=True):
        if not rows or rows[-1][: len(state)] != state:
            rows.append(state)
        row_of[state] = len(rows) - 1
    return Paths(rows, row_of)


def batches(questions: Sequence[Question], most_rows: int, most_places: int) -> Iterator[list[int]]:
    """Put questions of like length together, the longest first; their numbers.

    Args:
        questions: Read already.
        most_rows: Rows of a batch, in any member; a single question may have more.
        most_places: Rows times the longest of them, with the same exception.
    """
    batch: list[int] = []
    rows = longest = 0
    for n in sorted(range(len(questions)), key=lambda n: -len(questions[n].prompts[0])):
        more, length = questions[n].rows(), max(longest, questions[n].longest() + 1)
        if batch and (rows + more > most_rows or (rows + more) * length > most_places):
            yield batch
            batch, rows, length = [], 0, questions[n].longest() + 1
        batch.append(n)
        rows, longest = rows + more, length
    if batch:
        yield batch


def read(
    members: Sequence[Member], joint: JointVocabulary, prompts: Sequence[list[int]], options: Sequence[str]
) -> Question:
    """Work out what the members have to read for a question.

    Args:
        members: The primary first.
        joint: Their joint vocabulary.
        prompts: The prompt's ids in each member.
        options: The texts to score.

    Raises:
        InputError: There is no option, one is empty, or a member's context cannot hold one.
    """
    if not options or not all(options):
        raise InputError("score needs at least one option, and none of them empty")
    vocabularies = [member.vocabulary for member in members]
    known = [0.0] * len(options)
    owners: list[int] = []
    wanted: list[int] = []
    reached: list[list[Ids]] = [[] for _ in members]
    for n, option in enumerate(options):
        tokens = vocabularies[0].continue_ids(option.encode())
        found = _entries(vocabularies[0], joint, tokens)
        if not tokens or NONE in found:
            known[n] = -math.inf
            continue
        owners += [n] * len(tokens)
        wanted += found
        for own, more in zip(reached, states(vocabularies, tokens), strict=True):
            own.extend(more)
    for member, prompt, own in zip(members, prompts, reached, strict=True):
        length = len(prompt) + max(map(len, own), default=0)
        most = member.most_tokens(prompt)
        if most is not None and length > most:
            raise InputError(
                f"{member.name}: a prompt and an option of {length} tokens together do not fit its context of "
                f"{member.context}"
            )
    return Question(prompts, known, owners, wanted, reached, [paths(own) for own in reached])


class Scorer:
    """Scores options with some members.

    Args:
        members: The primary first.
        combine: The method's way of combining them.
    """

    def __init__(self, members: Sequence[Member], combine: Combine) -> None:
        self._members = members
        self._combine = combine
        self._device = members[0].device
        self._rows = [member.rows() for member in members]

    def run(self, questions: Sequence[Question], batch_size: int) -> Iterator[tuple[int, list[float]]]:
        """Score questions, yielding each one's number and the log-probabilities of its options, batch by batch.

        Args:
            questions: As :func:`read` made them.
            batch_size: Rows at a time, at least 1; a question has one for each way in which its options part.
        """
        places = _MOST_LOGITS // max(member.vocabulary.size for member in self._members)
        for batch in batches(questions, batch_size, places):
            yield from zip(batch, self._score([questions[n] for n in batch]), strict=True)

    @torch.inference_mode()
    def _score(self, questions: Sequence[Question]) -> list[list[float]]:
        """The scores of all options of all questions, at once."""
        scores = [list(question.known) for question in questions]
        asked = [n for n, question in enumerate(questions) if question.entries]
        if not asked:
            return scores
        logits = [self._logits(member, [questions[n] for n in asked]) for member in range(len(self._members))]
        entries = torch.tensor([[entry] for n in asked for entry in questions[n].entries], device=self._device)
        found = []
        for wanted, *places in zip(entries.split(_PLACES), *(z.split(_PLACES) for z in logits), strict=True):
            step = self._combine(places, wanted)
            found += step.mean[step.present & (step.entries == wanted)].log().tolist()
        owners = [(n, option) for n in asked for option in questions[n].owners]
        for (n, option), value in zip(owners, found, strict=True):
            scores[n][option] += value
        return scores

    def _logits(self, member: int, questions: Sequence[Question]) -> Tensor:
        """A member's logits [tokens, V] before each token that is scored, on the primary's device."""
        all_paths = [question.paths[member] for question in questions]
        prompts = [question.prompts[member] for question in questions]
        rows = self._rows[member]
        rows.admit(prompts)
        # The same prompt again for each row behind it. Its last token is fed with the row: the logits behind it count.
        rows.drop([n for n, own in enumerate(all_paths) for _ in own.rows])
        new = [[prompt[-1], *row] for prompt, own in zip(prompts, all_paths, strict=True) for row in own.rows]
        widest = max(map(len, new))
        logits = rows.feed([length - 1 for length in rows.lengths], new, last=widest)
        rows.drop([])
        places = []
        first = 0
        for question, own in zip(questions, all_paths, strict=True):
            for state in question.states[member]:
                row = first + own.row_of[state]
                places.append((row, widest - len(new[row]) + len(state)))
            first += len(own.rows)
        index = torch.tensor(places, device=logits.device)
        return logits[index[:, 0], index[:, 1]].to(self._device)


def _entries(primary: Vocabulary, joint: JointVocabulary, tokens: Sequence[int]) -> list[int]:
    """The entries of some of the primary's ids; NONE for those that are unused, or no text."""
    texts = [primary.token_bytes(token) or b"" for token in tokens]
    representatives = torch.tensor([primary.representatives.get(data, NONE) for data in texts], dtype=torch.long)
    found = joint.members[0].entry_of[representatives.to(joint.members[0].entry_of.device)].tolist()
    return [NONE if index == NONE else entry for index, entry in zip(representatives.tolist(), found, strict=True)]
