"""Options as the members read them: what is to be scored, and the few rows that lead through all of it.

Before the t-th token of an option a member has read its prompt and ``C_i`` of the bytes up to there. Where one such
state is the beginning of another, both are read in one pass over the longer one; so all states of a question's options
fit into few rows, behind one prompt that is read once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ensemble.errors import InputError
from ensemble.models.member import Member
from ensemble.vocabulary.joint import NONE, JointVocabulary
from ensemble.vocabulary.retokenize import Continuation
from ensemble.vocabulary.token_bytes import Vocabulary

Ids = tuple[int, ...]


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
        tokens: For each of them, the primary's id.
        entries: For each of them, its entry of the joint vocabulary.
        states: For each member, and for each of them, what the member has read behind the prompt before it.
        paths: For each member, all of these.
    """

    prompts: Sequence[list[int]]
    known: list[float]
    owners: list[int]
    tokens: list[int]
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
    members: Sequence[Member],
    joint: JointVocabulary,
    prompts: Sequence[list[int]],
    options: Sequence[str],
    *,
    shorten: bool = False,
) -> Question:
    """Work out what the members have to read for a question.

    Args:
        members: The primary first.
        joint: Their joint vocabulary.
        prompts: The prompt's ids in each member.
        options: The texts to score.
        shorten: Whether a prompt may lose its beginning where it does not fit a member's context together with the
            longest option.

    Raises:
        InputError: There is no option, one is empty, or a member's context cannot hold one.
    """
    if not options or not all(options):
        raise InputError("score needs at least one option, and none of them empty")
    vocabularies = [member.vocabulary for member in members]
    known = [0.0] * len(options)
    owners: list[int] = []
    written: list[int] = []
    wanted: list[int] = []
    reached: list[list[Ids]] = [[] for _ in members]
    for n, option in enumerate(options):
        tokens = vocabularies[0].continue_ids(option.encode())
        found = entries_of(vocabularies[0], joint, tokens)
        if not tokens or NONE in found:
            known[n] = -math.inf
            continue
        owners += [n] * len(tokens)
        written += tokens
        wanted += found
        for own, more in zip(reached, states(vocabularies, tokens), strict=True):
            own.extend(more)
    if shorten:
        rooms = [max(map(len, own), default=0) for own in reached]
        prompts = [member.shorten(prompt, room) for member, prompt, room in zip(members, prompts, rooms, strict=True)]
    check_lengths(members, prompts, reached)
    return Question(prompts, known, owners, written, wanted, reached, [paths(own) for own in reached])


def check_lengths(members: Sequence[Member], prompts: Sequence[list[int]], reached: Sequence[Sequence[Ids]]) -> None:
    """Raise InputError where a prompt and what is read behind it do not fit a member's context."""
    for member, prompt, own in zip(members, prompts, reached, strict=True):
        length = len(prompt) + max(map(len, own), default=0)
        most = member.most_tokens(prompt)
        if most is not None and length > most:
            raise InputError(
                f"{member.name}: a prompt and an option of {length} tokens together do not fit its context of "
                f"{member.context}"
            )


def entries_of(primary: Vocabulary, joint: JointVocabulary, tokens: Sequence[int]) -> list[int]:
    """The entries of some of the primary's ids; NONE for those that are unused, or no text."""
    texts = [primary.token_bytes(token) or b"" for token in tokens]
    representatives = torch.tensor([primary.representatives.get(data, NONE) for data in texts], dtype=torch.long)
    found = joint.members[0].entry_of[representatives.to(joint.members[0].entry_of.device)].tolist()
    return [NONE if index == NONE else entry for index, entry in zip(representatives.tolist(), found, strict=True)]
