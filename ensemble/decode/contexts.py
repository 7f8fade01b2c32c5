"""The members' contexts: each member's runner holds the same texts in its own ids, and gives the logits after them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ensemble.decode.sequences import RunningSequence
from ensemble.models.member import LocalMember, Member, step_device
from ensemble.runtime.draft import Draft
from ensemble.runtime.logits import Logits, concat
from ensemble.vocabulary.retokenize import Continuation

CheckedDraft = list[tuple[int, list[Continuation]]]
"""Each drafted token, and the text up to it as the other members read it."""


class Contexts:
    """Keeps the members' runners in step with a batch; all but the first ``running`` wait for :meth:`run`.

    Members over the same weights have one runner, with a row of each for each sequence; but one that waits has its own,
    and so has a primary that runs ``alone`` at times, to draft.
    ``sequences`` are in the order of the rows. ``logits`` are the next-token logits [sequences, V_i] of each member
    that does not wait; after :meth:`draft` those at several positions [positions, V_i], sequence by sequence.
    """

    def __init__(self, members: Sequence[Member], running: int, *, alone: bool) -> None:
        self._members = members
        self._runners = [member.runner() for member in members]
        self._groups = same_weights(members[:running], alone=alone)
        for group in self._groups:
            if len(group) > 1:
                shared = members[group[0]].local.runner(len(group))
                for member in group:
                    self._runners[member] = shared
        self._device = step_device(members)
        self._running = running
        # For each member that waits, the sequences that it has rows for, in the order of these rows.
        self._held: dict[int, list[int]] = {member: [] for member in range(running, len(members))}
        # For each of these members that ran in this step, the sequences that it ran for, and its logits after them.
        self._ran: dict[int, tuple[list[int], Logits]] = {}
        self.sequences: list[RunningSequence] = []
        self.logits: list[Logits] = []

    def admit(self, sequences: Sequence[RunningSequence]) -> None:
        """Append sequences that have no tokens yet."""
        moved = self._by_member(
            [
                self._runners[group[0]].admit([sequence.prompts[n] for sequence in sequences for n in group])
                for group in self._groups
            ]
        )
        self.logits = [concat(*pair) for pair in zip(self.logits, moved, strict=True)] if self.sequences else moved
        self.sequences += sequences

    def drop(self, kept: Sequence[int]) -> None:
        """Keep only the sequences with these numbers, in this order."""
        self.sequences = [self.sequences[n] for n in kept]
        for group in self._groups:
            size = len(group)
            self._runners[group[0]].drop([n * size + place for n in kept for place in range(size)])
        numbers = {old: new for new, old in enumerate(kept)}
        for member, held in self._held.items():
            stay = [row for row, old in enumerate(held) if old in numbers]
            if len(stay) < len(held):
                self._runners[member].drop(stay)
            self._held[member] = [numbers[held[row]] for row in stay]
        # Its numbers are those of before.
        self._ran = {}

    def feed(self) -> None:
        """Run every member that does not wait over the text emitted since its last run."""
        self.logits = self._by_member([self._feed(group, self.sequences) for group in self._groups])
        self._ran = {}

    def run(self, member: int, needed: Sequence[int]) -> Logits:
        """Run a member over all that it missed of the ``needed`` sequences (ascending); its logits [needed, V]."""
        logits = self._catch_up(member, needed).to(self._device)
        known = set(self._held[member])
        self._held[member] += [n for n in needed if n not in known]
        self._ran[member] = [*needed], logits
        return logits

    def logits_of(self, row: int) -> list[tuple[Member, Logits]]:
        """The members that ran for a row of the step, each with its logits [1, V_i] there."""
        found = [(member, own[row : row + 1]) for member, own in zip(self._members, self.logits, strict=False)]
        for member, (numbers, own) in self._ran.items():
            if row in numbers:
                place = numbers.index(row)
                found.append((self._members[member], own[place : place + 1]))
        return found

    def draft(self, new: Sequence[RunningSequence], drafts: Draft, *, ahead: bool = False) -> list[CheckedDraft]:
        """Append sequences; the primary drafts each, and the others read the drafts, which are returned.

        A member that reads rows gives logits at a position of a draft if ``C_i`` of the text up to there is a prefix of
        what it read. Each draft is cut before the first position where that does not hold. ``ahead``: members elsewhere
        write ahead while the primary drafts, and what they write alike needs no reading.
        """
        running = len(self.sequences)
        self.sequences += new
        changes = [self._change(0, n, sequence.tokens, running) for n, sequence in enumerate(self.sequences)]
        if ahead:
            for n, runner in enumerate(self._runners[1:], start=1):
                states = [[*sequence.prompts[n], *sequence.ids(n)] for sequence in self.sequences]
                runner.write_ahead(states, drafts.longest + 1)
        keeps, ids = zip(*changes, strict=True)
        own_logits = self._runners[0].draft(keeps, ids, drafts)
        # The runner holds the whole drafts, also what the ensemble rejects; the next step rolls that back.
        for sequence, tokens in zip(self.sequences, drafts.tokens, strict=True):
            sequence.hold(0, sequence.tokens + tokens, len(tokens))
        return self._check_all(drafts.tokens, running, ([len(tokens) + 1 for tokens in drafts.tokens], own_logits))

    def look_up(self, new: Sequence[RunningSequence], drafts: Sequence[list[int]]) -> list[CheckedDraft]:
        """Like :meth:`draft`, with drafts that no member wrote: all members read them."""
        running = len(self.sequences)
        self.sequences += new
        return self._check_all(drafts, running)

    def _check_all(
        self,
        drafts: Sequence[list[int]],
        running: int,
        own: tuple[list[int], Logits] | None = None,
    ) -> list[CheckedDraft]:
        """Let the members read drafts, and cut each where one gives no logits; ``own`` is of a primary that drafted."""
        # The other members' readers after each text, and after its drafted tokens up to one that fits no more.
        readers = [list(self._places(sequence, draft)) for sequence, draft in zip(self.sequences, drafts, strict=True)]
        own_states = [
            [[*sequence.tokens, *tokens[:place]] for place in range(len(tokens) + 1)]
            for sequence, tokens in zip(self.sequences, drafts, strict=True)
        ]
        states = [
            own_states,
            *([[place[n].ids for place in each] for each in readers] for n in range(len(self._members) - 1)),
        ]
        # A member that reads fewer places limits them all, since a step needs every member's logits.
        read = {} if own is None else {0: own}
        for group in self._groups:
            if group[0] not in read:
                read.update(zip(group, self._check(group, [states[n] for n in group], running), strict=True))
        places = [min(each) for each in zip(map(len, readers), *(counts for counts, _ in read.values()), strict=True)]
        self.logits = [
            _first_places(each, counts, places).to(self._device) for _, (counts, each) in sorted(read.items())
        ]
        return [
            list(zip(tokens, each[1:count], strict=False))
            for tokens, each, count in zip(drafts, readers, places, strict=True)
        ]

    def _places(self, sequence: RunningSequence, tokens: Sequence[int]) -> Iterator[list[Continuation]]:
        readers = sequence.readers
        yield readers
        for place, token in enumerate(tokens, start=1):
            # Copies, because a draft that is rejected must leave the readers of the text as they were.
            readers = [reader.fork() for reader in readers]
            for reader in readers:
                reader.extend(self._members[0].vocabulary.token_bytes(token) or b"")
            # A longer text can have fewer ids. But the members read all places before it, too.
            if not sequence.fits(place, readers):
                return
            yield readers

    def _change(
        self, member: int, n: int, ids: list[int], running: int, at_most: int | None = None
    ) -> tuple[int, list[int]]:
        """How a member's row of sequence ``n`` becomes its prompt and ``ids``: tokens to keep, and tokens to feed."""
        sequence = self.sequences[n]
        return sequence.change(member, ids, at_most) if n < running else (0, sequence.start(member, ids))

    def _by_member(self, new: Sequence[Logits]) -> list[Logits]:
        """Each member's rows of the groups' new logits, on the device of the steps."""
        # Moved after all members have started: waiting for the first would keep the others' devices idle.
        moved: list[Logits] = [logits.to(self._device) for logits in new]
        found = {
            n: logits if len(group) == 1 else logits[place :: len(group)]
            for group, logits in zip(self._groups, moved, strict=True)
            for place, n in enumerate(group)
        }
        return [found[n] for n in range(self._running)]

    def _feed(self, group: Sequence[int], sequences: Sequence[RunningSequence]) -> Logits:
        changes = [sequence.change(member, sequence.ids(member)) for sequence in sequences for member in group]
        return self._runners[group[0]].feed([keep for keep, _ in changes], [new for _, new in changes])

    def _catch_up(self, member: int, needed: Sequence[int]) -> Logits:
        """A member's logits [needed, V]; its runner has rows only for the sequences that needed it before."""
        held = self._held[member]
        # Sets and tables, because a batch may have thousands of rows.
        wanted, holds = set(needed), set(held)
        known = [row for row, n in enumerate(held) if n in wanted]
        parts, order = [], [held[row] for row in known]
        if known:
            # One of its rows needs all of them to be fed: they share a cache, and a forward pass has all rows of it.
            logits = self._feed([member], [self.sequences[n] for n in held])
            parts.append(logits if len(known) == len(held) else logits[known])
        if fresh := [n for n in needed if n not in holds]:
            new = [self.sequences[n] for n in fresh]
            parts.append(self._runners[member].admit([each.start(member, each.ids(member)) for each in new]))
            order += fresh
        joined = parts[0] if len(parts) == 1 else concat(*parts)
        places = {n: place for place, n in enumerate(order)}
        return joined if order == [*needed] else joined[[places[n] for n in needed]]

    def _check(
        self, group: Sequence[int], states: Sequence[list[list[list[int]]]], running: int
    ) -> list[tuple[list[int], Logits]]:
        """For each member of a group, the positions read of each sequence, and the logits.

        ``states``: for each member and sequence its text at each position, in the member's ids.
        """
        runner, size = self._runners[group[0]], len(group)
        changes, contexts = [], []
        for n, (sequence, *all_own) in enumerate(zip(self.sequences, *states, strict=True)):
            for member, own in zip(group, all_own, strict=True):
                places = _chain(own) if runner.reads_rows else len(own)
                contexts.append(runner.already_known([[*sequence.prompts[member], *ids] for ids in own[:places]]))
                # The text's last id is fed in any case: the logits after it are those of the first place.
                changes.append(self._change(member, n, own[places - 1], running, at_most=len(own[0]) - 1))
        keeps, new = zip(*changes, strict=True)
        counts, logits = list(map(len, contexts)), runner.read(keeps, new, contexts)
        if not isinstance(logits, Tensor) or size == 1:
            return [(counts, logits)]
        parts = logits.split(counts)
        return [(counts[place::size], torch.cat(parts[place::size])) for place in range(size)]


def same_weights(members: Sequence[Member], *, alone: bool = False) -> list[list[int]]:
    """The numbers of members in groups that run in one forward pass; ``alone``: the primary is a group for itself."""
    groups: dict[object, list[int]] = {}
    for n, member in enumerate(members):
        is_alone = not isinstance(member, LocalMember) or (alone and n == 0)
        groups.setdefault(n if is_alone else member.local.model, []).append(n)
    return list(groups.values())


def _first_places(logits: Logits, counts: Sequence[int], places: Sequence[int]) -> Logits:
    """The first ``places`` of each sequence's ``counts`` rows of logits."""
    if list(counts) == list(places):
        return logits
    starts = [sum(counts[:n]) for n in range(len(counts))]
    return logits[[start + place for start, count in zip(starts, places, strict=True) for place in range(count)]]


def fill_gaps(kept: Sequence[int]) -> list[int]:
    """The order of the remaining rows (``kept``, ascending) in which the last ones fill the gaps.

    So no more rows move than are missing. Closing the gaps in order would move all rows after the first gap.
    """
    remaining = set(kept)
    last = reversed(kept)
    return [n if n in remaining else next(last) for n in range(len(kept))]


def _chain(states: Sequence[list[int]]) -> int:
    """How many of the states, from the first on, each begin with the one before."""
    return next((n for n in range(1, len(states)) if states[n][: len(states[n - 1])] != states[n - 1]), len(states))
