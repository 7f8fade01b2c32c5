"""The members' contexts of a batch of texts: the same text in every member's ids, and the logits after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ensemble.models.member import Member
from ensemble.runtime.draft import Proposer
from ensemble.runtime.logits import Logits, joined
from ensemble.vocabulary.retokenize import Continuation

Draft = list[tuple[int, list[Continuation]]]
"""Token and readers of each place of a draft."""


@dataclass(slots=True)
class Text:
    """A prompt and what has been emitted after it, in every member's ids.

    Attributes:
        prompts: The prompt's ids in each member; what is emitted never changes them.
        readers: For each member but the primary, how it reads the emitted text.
        fed: For each member, the ids after the prompt that its context holds.
        spent: For each member, how many tokens it was fed behind the prompt, drafts and repeated ones included.
        tokens: The primary's ids, as emitted.
        data: Their bytes.
    """

    prompts: list[list[int]]
    readers: list[Continuation]
    fed: list[list[int]]
    spent: list[int]
    tokens: list[int] = field(default_factory=list)
    data: bytes = b""

    def emit(self, token: int, data: bytes, readers: list[Continuation] | None = None) -> None:
        """Append a token of the primary and its bytes; ``readers`` that have read them already are taken over."""
        self.tokens.append(token)
        self.data += data
        self.readers = read_on(self.readers, data) if readers is None else readers

    def ids(self, member: int) -> list[int]:
        """What has been emitted, in a member's ids."""
        return self.readers[member - 1].ids if member else self.tokens

    def lengths(self) -> list[int]:
        """Tokens of the whole context in each member."""
        return [len(prompt) + len(self.ids(n)) for n, prompt in enumerate(self.prompts)]

    def begin(self, member: int) -> list[int]:
        """What a member is fed that has not seen the text: the prompt, and what has been emitted since."""
        ids = self.ids(member)
        self.fed[member] = list(ids)
        self.spent[member] += len(ids)
        return [*self.prompts[member], *ids]

    def change(self, member: int, ids: list[int], at_most: int | None = None) -> tuple[int, list[int]]:
        """How a member's context becomes the prompt and ``ids``: the tokens it keeps, and those it is fed.

        It is fed one at least, and all after the first ``at_most`` of ids.
        """
        prompt = self.prompts[member]
        keep = common_length(self.fed[member], ids)
        keep = len(prompt) + (keep if at_most is None else min(keep, at_most))
        whole = len(prompt) + len(ids)
        # Where the new bytes changed no id (a member cannot express them), the last one is read again.
        keep = min(keep, whole - 1)
        self.fed[member] = list(ids)
        self.spent[member] += whole - max(keep, len(prompt))
        return keep, ids[keep - len(prompt) :] if keep >= len(prompt) else [*prompt[keep:], *ids]


class Contexts:
    """A batch of texts in every member.

    Args:
        members: The primary first.
        waiting: Whether only the primary is run until the others are asked.

    Attributes:
        texts: The texts, in the order in which they were admitted.
        logits: For each member that was run the next-token logits [texts, V_i], on the primary's device or what stands
            for them; after :meth:`look_ahead` those of the one text at several places [places, V_i].
    """

    def __init__(self, members: Sequence[Member], *, waiting: bool = False) -> None:
        self._members = members
        self._sites = [member.site() for member in members]
        self._device = members[0].device
        self._running = 1 if waiting else len(members)
        self.texts: list[Text] = []
        self.logits: list[Logits] = []

    def admit(self, prompts: Sequence[Sequence[list[int]]]) -> None:
        """Append a text for each prompt, given by its ids in every member."""
        fresh = [site.admit([prompt[n] for prompt in prompts]) for n, site in enumerate(self._sites[: self._running])]
        # Moved when all members have been asked: waiting for the first would keep the others' devices idle.
        moved: list[Logits] = [logits.to(self._device) for logits in fresh]
        self.logits = [joined(*pair) for pair in zip(self.logits, moved, strict=True)] if self.texts else moved
        self.texts += map(self._text, prompts)

    def drop(self, kept: Sequence[int]) -> None:
        """Keep only these texts, in this order."""
        self.texts = [self.texts[n] for n in kept]
        for site in self._sites:
            if there := site.rows:
                site.drop([n for n in kept if n < there])

    def feed(self) -> None:
        """Run every member but those that wait over what has been emitted since, at least a token for each text."""
        fed = [self._feed(member, self.texts) for member in range(self._running)]
        self.logits = [logits.to(self._device) for logits in fed]

    def ask(self) -> None:
        """Run the members that wait over all that they missed, in one pass; their logits join those of the others."""
        found = [self._catch_up(member) for member in range(self._running, len(self._members))]
        self.logits = [*self.logits, *(logits.to(self._device) for logits in found)]

    def begin(self, prompt: Sequence[list[int]], propose: Proposer, most: int) -> Draft:
        """Append a text where there is none, with a draft that the others read together with the prompt.

        See :meth:`look_ahead`.
        """
        text = self._text(prompt)
        self.texts = [text]
        return self._draft(0, prompt[0], propose, most)

    def look_ahead(self, propose: Proposer, most: int) -> Draft:
        """Feed the one text, and a draft of the primary behind it that the others read in one pass.

        The others' logits at a place of the draft can be used where ``C_i`` of the text up to there is the beginning
        of what they were fed; the places end before the first where that is not so.

        Args:
            propose: The next token of the draft.
            most: Tokens that the draft has at most.

        Returns:
            Token and readers of each place of the draft that can be reached; ``logits`` are those at the text's end
            and after each of these tokens.
        """
        (text,) = self.texts
        return self._draft(*text.change(0, text.tokens), propose, most)

    def _draft(self, keep: int, new: Sequence[int], propose: Proposer, most: int) -> Draft:
        """Let the primary read the text's end and draft behind it, and the others read the draft."""
        (text,) = self.texts
        limit = self._members[0].most_tokens(text.prompts[0])
        room = most if limit is None else min(most, limit - keep - len(new))
        drafted, own = self._sites[0].draft(keep, new, propose, room)
        readers = [text.readers]
        for token in drafted:
            ahead = read_on(readers[-1], self._members[0].vocabulary.token_bytes(token) or b"")
            if not self._fits(text, len(readers), ahead):
                break
            readers.append(ahead)
        tokens = drafted[: len(readers) - 1]
        text.fed[0] = text.tokens + drafted
        text.spent[0] += len(drafted)
        others = [self._check(n, [state[n - 1].ids for state in readers]) for n in range(1, len(self._members))]
        places = min([len(readers), *(len(logits) for logits in others)])
        self.logits = [logits[:places].to(self._device) for logits in (own, *others)]
        return list(zip(tokens, readers[1:], strict=True))[: places - 1]

    def _fits(self, text: Text, drafted: int, readers: Sequence[Continuation]) -> bool:
        """Whether every member's context holds a text with a draft behind it, which readers have read."""
        emitted = [len(text.tokens) + drafted, *(len(reader.ids) for reader in readers)]
        lengths = [len(prompt) + length for prompt, length in zip(text.prompts, emitted, strict=True)]
        return fit(self._members, text.prompts, lengths)

    def _feed(self, member: int, texts: Sequence[Text]) -> Logits:
        changes = [text.change(member, text.ids(member)) for text in texts]
        return self._sites[member].feed([keep for keep, _ in changes], [new for _, new in changes])

    def _catch_up(self, member: int) -> Logits:
        """A member's logits [texts, V], whose context may lack texts that were admitted since it was asked."""
        site = self._sites[member]
        there = site.rows
        found = [self._feed(member, self.texts[:there])] if there else []
        if fresh := self.texts[there:]:
            found.append(site.admit([text.begin(member) for text in fresh]))
        return found[0] if len(found) == 1 else joined(*found)

    def _check(self, member: int, states: list[list[int]]) -> Logits:
        """A member's logits [places, V] after each state of the text that the draft leads through, as far as it can."""
        (text,) = self.texts
        final = max(range(len(states)), key=lambda n: _prefixes(states, n))
        places = _prefixes(states, final)
        prompt, site = text.prompts[member], self._sites[member]
        if site.rows:
            # The last id of the text itself is fed even if it stands: its logits are those of the first place.
            keep, new = text.change(member, states[final], at_most=len(states[0]) - 1)
        else:
            text.fed[member] = list(states[final])
            text.spent[member] += len(states[final])
            keep, new = 0, [*prompt, *states[final]]
        return site.read(keep, new, [len(prompt) + len(ids) - 1 for ids in states[:places]])

    def _text(self, prompt: Sequence[list[int]]) -> Text:
        readers = [Continuation(member.vocabulary) for member in self._members[1:]]
        return Text(list(prompt), readers, [[] for _ in self._members], [0] * len(self._members))


def closed_up(kept: Sequence[int]) -> list[int]:
    """Rows, given in ascending order, with the last ones in the places of those that are missing.

    So no more rows move than are missing, where to close up in order would move all behind the first gap.
    """
    there = set(kept)
    last = reversed(kept)
    return [n if n in there else next(last) for n in range(len(kept))]


def fit(members: Sequence[Member], prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> bool:
    """Whether every member's context holds so many tokens, those of its prompt included."""
    limits = [member.most_tokens(prompt) for member, prompt in zip(members, prompts, strict=True)]
    return all(limit is None or length <= limit for limit, length in zip(limits, lengths, strict=True))


def read_on(readers: Sequence[Continuation], data: bytes) -> list[Continuation]:
    """The readers after some more bytes; those given stay what they are."""
    forks = [reader.fork() for reader in readers]
    for fork in forks:
        fork.extend(data)
    return forks


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two sequences have in common at the front, by halving: slices are compared at the speed of C."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle)
    return low


def _prefixes(states: Sequence[list[int]], final: int) -> int:
    """How many of the states, from the first on up to ``final``, the final one begins with."""
    ids = states[final]
    return next((n for n in range(final) if ids[: len(states[n])] != states[n]), final + 1)
