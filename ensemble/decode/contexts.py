"""The members' contexts: each member's runner holds the same texts in its own ids, and gives the logits after them."""

from __future__ import annotations

from collections import abc

from ensemble.decode.sequences import Sequence, read_on
from ensemble.models.member import Member
from ensemble.runtime.draft import Drafter
from ensemble.runtime.logits import Logits, concat
from ensemble.vocabulary.retokenize import Continuation

Draft = list[tuple[int, list[Continuation]]]
"""Each drafted token, and the text up to it as the other members read it."""


class Contexts:
    """Keeps the members' runners in step with a batch of sequences.

    Args:
        members: The primary first.
        waiting: Whether the other members run only when :meth:`run_waiting` is called.

    Attributes:
        sequences: The sequences, in the order of the runners' rows.
        logits: For each member that ran, the next-token logits [sequences, V_i]; after :meth:`draft`, those of the only
            sequence at several places [places, V_i]. Tensors are on the primary's device.
    """

    def __init__(self, members: abc.Sequence[Member], *, waiting: bool = False) -> None:
        self._members = members
        self._runners = [member.runner() for member in members]
        self._device = members[0].device
        # Only the first runners are fed at every step; the others wait for `run_waiting`.
        self._running = 1 if waiting else len(members)
        self.sequences: list[Sequence] = []
        self.logits: list[Logits] = []

    def admit(self, sequences: abc.Sequence[Sequence]) -> None:
        """Append sequences that have no tokens yet."""
        new = [
            runner.admit([s.prompts[n] for s in sequences]) for n, runner in enumerate(self._runners[: self._running])
        ]
        # Moved after all members have started: waiting for the first would keep the others' devices idle.
        moved: list[Logits] = [logits.to(self._device) for logits in new]
        self.logits = [concat(*pair) for pair in zip(self.logits, moved, strict=True)] if self.sequences else moved
        self.sequences += sequences

    def drop(self, kept: abc.Sequence[int]) -> None:
        """Keep only the sequences with these numbers, in this order."""
        self.sequences = [self.sequences[n] for n in kept]
        for runner in self._runners:
            # A member that waits has only the first rows so far.
            if count := runner.row_count:
                runner.drop([n for n in kept if n < count])

    def feed(self) -> None:
        """Run every member that does not wait over the text emitted since its last run."""
        new = [self._feed(member, self.sequences) for member in range(self._running)]
        self.logits = [logits.to(self._device) for logits in new]

    def run_waiting(self) -> list[Logits]:
        """Run the members that wait over all that they missed, in one pass; return all members' logits."""
        new = [self._catch_up(member) for member in range(self._running, len(self._members))]
        self.logits = [*self.logits, *(logits.to(self._device) for logits in new)]
        return self.logits

    def draft(self, sequence: Sequence, drafter: Drafter, max_tokens: int) -> Draft:
        """Run the only sequence (or begin it if no sequence runs yet): the primary drafts, the others read the draft.

        The others' logits at a place of the draft are valid if ``C_i`` of the text up to there is a prefix of what
        they read. The draft is cut before the first place where that does not hold.

        Args:
            sequence: The sequence.
            drafter: Chooses the tokens of the draft.
            max_tokens: The largest number of drafted tokens.

        Returns:
            The draft. ``logits`` are those after the text and after each drafted token.
        """
        if self.sequences:
            keep, new = sequence.change(0, sequence.tokens)
        else:
            self.sequences = [sequence]
            keep, new = 0, sequence.prompts[0]
        primary, *others = self._members
        # A model with learned positions fails beyond its context, so a draft must end before it.
        limit = primary.most_tokens(sequence.prompts[0])
        room = max_tokens if limit is None else min(max_tokens, limit - keep - len(new))
        drafted, own_logits = self._runners[0].draft(keep, new, drafter, room)
        # The runner holds the whole draft, also the part that the ensemble rejects; the next step rolls that part back.
        sequence.hold(0, sequence.tokens + drafted, len(drafted))
        # The readers at each place: after the text, and after each drafted token.
        readers = [sequence.readers]
        for token in drafted:
            ahead = read_on(readers[-1], primary.vocabulary.token_bytes(token) or b"")
            if not sequence.fits(self._members, len(readers), ahead):
                break
            readers.append(ahead)
        other_logits = [self._check(n, [place[n - 1].ids for place in readers]) for n in range(1, len(others) + 1)]
        # A member that reads fewer places limits them all, since a step needs every member's logits.
        places = min([len(readers), *(len(logits) for logits in other_logits)])
        self.logits = [logits[:places].to(self._device) for logits in (own_logits, *other_logits)]
        return list(zip(drafted, readers[1:places], strict=False))

    def _feed(self, member: int, sequences: abc.Sequence[Sequence]) -> Logits:
        changes = [sequence.change(member, sequence.ids(member)) for sequence in sequences]
        return self._runners[member].feed([keep for keep, _ in changes], [new for _, new in changes])

    def _catch_up(self, member: int) -> Logits:
        """A member's logits [sequences, V]; its runner may lack the sequences admitted since its last run."""
        runner = self._runners[member]
        count = runner.row_count
        # Fed before others are admitted: the runner's rows must be in the order of the sequences.
        parts = [self._feed(member, self.sequences[:count])] if count else []
        if fresh := self.sequences[count:]:
            parts.append(runner.admit([sequence.start(member, sequence.ids(member)) for sequence in fresh]))
        return parts[0] if len(parts) == 1 else concat(*parts)

    def _check(self, member: int, states: list[list[int]]) -> Logits:
        """A member's logits [places, V] along a draft, as far as one row gives them.

        Args:
            member: Its number.
            states: The text in its ids, at each place of the draft.
        """
        (sequence,) = self.sequences
        # The row to read is the state that begins with the most states before it.
        final = max(range(len(states)), key=lambda n: _prefixes(states, n))
        places = _prefixes(states, final)
        prompt, runner = sequence.prompts[member], self._runners[member]
        if runner.row_count:
            # The text's last id is fed in any case: the logits after it are those of the first place.
            keep, new = sequence.change(member, states[final], at_most=len(states[0]) - 1)
        else:
            keep, new = 0, sequence.start(member, states[final])
        return runner.read(keep, new, [len(prompt) + len(ids) - 1 for ids in states[:places]])


def fill_gaps(kept: abc.Sequence[int]) -> list[int]:
    """The order of the remaining rows in which the last ones fill the places of those that are missing.

    So no more rows move than are missing. Closing the gaps in order would move all rows after the first gap.

    Args:
        kept: The numbers of the remaining rows, in ascending order.
    """
    remaining = set(kept)
    last = reversed(kept)
    return [n if n in remaining else next(last) for n in range(len(kept))]


def _prefixes(states: abc.Sequence[list[int]], final: int) -> int:
    """How many of the states up to ``final``, from the first on, are prefixes of the final one."""
    ids = states[final]
    return next((n for n in range(final) if ids[: len(states[n])] != states[n]), final + 1)
