"""Questions with answer options to score, as the members read them: few rows that lead through all options.

Before the t-th token of an option a member has read its prompt and ``C_i`` of the bytes up to there. If one of these
states is a prefix of another, one pass over the longer one reads both. So all states of a question's options fit into
few rows after one prompt, which is read once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ensemble.decode.settings import check_text
from ensemble.errors import InputError
from ensemble.models.member import Member
from ensemble.vocabulary.joint import NONE, JointVocabulary
from ensemble.vocabulary.retokenize import Continuation
from ensemble.vocabulary.token_bytes import Vocabulary

State = tuple[int, ...]
"""The ids that a member has read after the prompt."""


@dataclass(frozen=True, slots=True)
class Paths:
    """A member's states as prefixes of few rows."""

    rows: list[State]  # ids to read after the prompt
    row_of: dict[State, int]  # for each state the number of a row that begins with it


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A prompt and its options, as the members read them."""

    prompts: Sequence[list[int]]  # the prompt's ids in each member
    known: list[float]  # the score of each option that no model decides: minus infinity if it cannot be written, else 0
    owners: list[int]  # for each token to score, the number of its option
    tokens: list[int]  # for each token to score, the primary's id
    entries: list[int]  # for each token to score, its entry of the joint vocabulary
    states: list[list[State]]  # for each member, and for each token to score, the member's state before it
    paths: list[Paths]  # for each member, all of its states

    def rows(self) -> int:
        """Rows after the prompt, in the member that has the most."""
        return max(len(path.rows) for path in self.paths)

    def longest(self) -> int:
        """Tokens of the longest row after the prompt, in any member."""
        return max(len(row) for path in self.paths for row in path.rows)


def states(vocabularies: Sequence[Vocabulary], tokens: Sequence[int]) -> list[list[State]]:
    """For each member, its state before each token of an option, given as the primary's ids without EOS."""
    primary, *others = vocabularies
    all_states = [[tuple(tokens[:n]) for n in range(len(tokens))]]
    for vocabulary in others:
        reader = Continuation(vocabulary)
        member_states: list[State] = [()]
        for token in tokens[:-1]:
            # No member reads the last token: nothing is scored after it.
            reader.extend(primary.token_bytes(token) or b"")
            member_states.append(tuple(reader.ids))
        all_states.append(member_states)
    return all_states


def paths(reached: Iterable[State]) -> Paths:
    """The fewest rows that lead through all states: the states that are no prefix of another one."""
    rows: list[State] = []
    row_of: dict[State, int] = {}
    # In descending order a sequence comes right after those that begin with it.
    for state in sorted({*reached, ()}, reverse=True):
        if not rows or rows[-1][: len(state)] != state:
            rows.append(state)
        row_of[state] = len(rows) - 1
    return Paths(rows, row_of)


def batches(questions: Sequence[ChoiceQuestion], max_rows: int, max_places: int) -> Iterator[list[int]]:
    """The numbers of questions of similar length, the longest first, in batches within two limits.

    ``max_rows`` are rows in any member, and ``max_places`` rows times the longest; a single question may have more.
    """
    batch: list[int] = []
    rows = longest = 0
    for n in sorted(range(len(questions)), key=lambda n: -len(questions[n].prompts[0])):
        new_rows, length = questions[n].rows(), max(longest, questions[n].longest() + 1)
        if batch and (rows + new_rows > max_rows or (rows + new_rows) * length > max_places):
            yield batch
            batch, rows, length = [], 0, questions[n].longest() + 1
        batch.append(n)
        rows, longest = rows + new_rows, length
    if batch:
        yield batch


def choice_question(
    members: Sequence[Member],
    joint: JointVocabulary,
    prompts: Sequence[list[int]],
    options: Sequence[str],
    *,
    shorten: bool = False,
) -> ChoiceQuestion:
    """The question of a prompt and options; InputError for an empty or invalid one, or one that does not fit.

    With ``shorten`` a prompt may lose its first tokens, to fit together with the longest option.
    """
    if not options or not all(options):
        raise InputError("score needs at least one option, and none of them empty")
    for option in options:
        check_text("an option", option)
    vocabularies = [member.vocabulary for member in members]
    known = [0.0] * len(options)
    owners: list[int] = []
    all_tokens: list[int] = []
    all_entries: list[int] = []
    reached: list[list[State]] = [[] for _ in members]
    for n, option in enumerate(options):
        # Not with the prompt's text: the ids of the prompt stay as they are, as in decoding.
        tokens = vocabularies[0].continue_ids(option.encode())
        entries = entries_of(vocabularies[0], joint, tokens)
        # No model runs for such an option; its score is known, and the others' scores need no row of it.
        if not tokens or NONE in entries:
            known[n] = -math.inf
            continue
        owners += [n] * len(tokens)
        all_tokens += tokens
        all_entries += entries
        for member_states, new in zip(reached, states(vocabularies, tokens), strict=True):
            member_states.extend(new)
    if shorten:
        # Each member loses as few tokens as its own context demands.
        rooms = [max(map(len, member_states), default=0) for member_states in reached]
        prompts = [member.shorten(prompt, room) for member, prompt, room in zip(members, prompts, rooms, strict=True)]
    check_lengths(members, prompts, reached)
    return ChoiceQuestion(prompts, known, owners, all_tokens, all_entries, reached, [paths(each) for each in reached])


def check_lengths(members: Sequence[Member], prompts: Sequence[list[int]], reached: Sequence[Sequence[State]]) -> None:
    """Raise InputError if a prompt and the longest state after it do not fit a member's context."""
    for member, prompt, member_states in zip(members, prompts, reached, strict=True):
        length = len(prompt) + max(map(len, member_states), default=0)
        most = member.most_tokens(prompt)
        if most is not None and length > most:
            raise InputError(
                f"a prompt and an option of {length} tokens together do not fit its context of {member.context}",
                of=member.name,
            )


def entries_of(primary: Vocabulary, joint: JointVocabulary, tokens: Sequence[int]) -> list[int]:
    """The entries of some of the primary's ids; NONE for ids that are unused or add no text."""
    texts = [primary.token_bytes(token) or b"" for token in tokens]
    representatives = torch.tensor([primary.representatives.get(data, NONE) for data in texts], dtype=torch.long)
    entry_of = joint.members[0].entry_of
    entries = entry_of[representatives.to(entry_of.device)].tolist()
    return [NONE if index == NONE else entry for index, entry in zip(representatives.tolist(), entries, strict=True)]
