"""Thinking apart from the answer: each member thinks alone, then all of them write the answer together.

Each member continues its own prompt up to its end marker, with its own draws and its own budget. In the answer a
member's context is its prompt, what it thought, and the end marker; no other member reads it. White space that the
member writes after the marker belongs to that context, too, so the answers of all members begin with text that can be
seen, and a stop string such as a blank line does not end them at once. A member that begins without an opening tag does
not think, and has its prompt alone.

ThinkMerge (arXiv 2512.02874) joins several draws of one model in this way; here the members are several models.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace

from ensemble.common.background import in_background
from ensemble.decode.decoder import Decoder
from ensemble.decode.sequences import FinishReason, Generation, RunningSequence
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import MemberError, PromptTooLongError
from ensemble.models.member import Member
from ensemble.models.thinking import ThinkingTags, forms_of
from ensemble.runtime.draft import Drafter
from ensemble.step.token_method import TokenRule
from ensemble.vocabulary.joint import JointVocabulary

THINKING_DRAFT = 128
"""Tokens of the longest request for the thinking of a member elsewhere. What it writes behind its end marker is lost,
and with more of them the time of a request is no longer a part that counts."""
_LAST_IDS = 32
"""Ids at the end of a prompt that may write an opening tag."""


class Thought(RunningSequence):
    """What a member thinks about a prompt, up to where its answer begins.

    Its result has the thinking without tags as ``text``, and as ``tokens`` the ids that follow the prompt in the
    context of the answer; none if the member does not think. ``finish_reason`` is ``stop`` if the member ended its
    thinking, ``length`` if that was closed at its limit, and ``eos`` if the member ended its text instead.
    """

    def __init__(self, number: int, prompt: list[int], settings: Settings, member: Member, draw: int) -> None:
        super().__init__(number, [prompt], settings, [member], draw)
        self._member, spec = member, member.spec
        self._budget = None if spec is None else spec.thinking_budget
        forms = forms_of(None if spec is None else spec.thinking)
        # Whether an opening that an answer may have begins a thinking is known only from its end.
        self._forms = [each for each in forms if not each.needs_closing]
        # Ids that an encoder reads are negative.
        written = str(member.tokenizer.decode([index for index in prompt[-_LAST_IDS:] if index >= 0])).rstrip()
        self._form = next((each for each in self._forms if written.endswith(each.opening.strip())), None)
        # The place in the data where the thinking begins, and the one behind its end marker.
        self._start = 0
        self._marked: int | None = None
        self._reason: FinishReason = "stop"

    @property
    def tokens_left(self) -> int:
        """See :attr:`RunningSequence.tokens_left`. A step ends where the budget may: what was drafted is void there."""
        left = super().tokens_left
        if self._budget is None or self._marked is not None:
            return left
        return min(left, max(1, self._budget + 1 - len(self.tokens)))

    def append(self, tokens: Sequence[int], data: bytes) -> None:
        """See :meth:`RunningSequence.append`. The sequence ends where the member does not think, or answers."""
        count, before = len(self.tokens), len(self.data)
        super().append(tokens, data)
        form = self._form or self._opened()
        if form is None:
            return
        if self._marked is None:
            marker = form.closing.encode()
            place = self.data.find(marker, max(self._start, before - len(marker) + 1))
            if place >= 0:
                self._marked = place + len(marker)
            elif self._budget is not None and len(self.tokens) > self._budget:
                # The token over the budget was not read by the model yet. An opening tag stays whole.
                self._cut(count, before, self._start)
                self._close(form, "length")
        if self._marked is not None and self.data[self._marked :].strip():
            # The last token is the answer's. Of one that also ends the marker, that part stays.
            self._cut(count, before, self._marked)
            self.finish_reason = "stop"

    def outcome(self) -> Generation | MemberError | None:
        """See :meth:`RunningSequence.outcome`."""
        if self.finish_reason is not None and self._form is not None and self._marked is None:
            self._close(self._form, self.finish_reason)
        made = super().outcome()
        if not isinstance(made, Generation):
            return made
        if self._form is None:
            return replace(made, text="", tokens=())
        thought = self.data[self._start : (self._marked or 0) - len(self._form.closing.encode())]
        text = self._form.trimmed(thought.decode(errors="replace"))
        return replace(made, text=text, finish_reason=self._reason)

    def _opened(self) -> ThinkingTags | None:
        """The form with which the text begins; the sequence ends if it can be none."""
        begun = bytes(self.data).lstrip()
        marks = [(form, mark.encode()) for form in self._forms for mark in form.beginnings]
        self._form, mark = next((each for each in marks if begun.startswith(each[1])), (None, b""))
        if self._form is not None:
            # Where the answer begins at once, its mark is behind an empty thinking.
            opened = len(mark) if mark == self._form.opening.encode() else 0
            self._start = len(self.data) - len(begun) + opened
        elif not any(mark.startswith(begun) for _, mark in marks):
            self.finish_reason = "stop"
        return self._form

    def _cut(self, count: int, before: int, end: int) -> None:
        """Take back the last token, behind ``count`` tokens and ``before`` bytes, but not its part before ``end``."""
        if end < len(self.data):
            del self.tokens[count:]
            self.tokens += self._member.vocabulary.continue_ids(bytes(self.data[before:end]))
            del self.data[max(before, end) :]

    def _close(self, form: ThinkingTags, reason: FinishReason) -> None:
        rest = self._missing(form.ending + form.closing)
        self.tokens += self._member.vocabulary.control_ids(rest)
        self.data += rest.encode()
        self._marked, self._reason = len(self.data), reason
        if len(self.tokens) >= self.settings.max_new_tokens:
            self.finish_reason = "length"

    def _missing(self, marker: str) -> str:
        """An end marker without what the member wrote of it: the limit may be in its middle."""
        vocabulary, thought = self._member.vocabulary, self.data[self._start :]

        def marks(text: str) -> list[int]:
            return [index for index in vocabulary.control_ids(text) if index in vocabulary.marks]

        for place in range(len(marker) - 1, 0, -1):
            begun, rest = marker[:place], marker[place:]
            # The first characters of a special token are text, and not a part of it.
            if thought.endswith(begun.encode()) and marks(begun) + marks(rest) == marks(marker):
                return rest
        return marker


class Thinker(Decoder):
    """Lets one member think about prompts; its results are those of :class:`Thought`."""

    def _sequence(self, number: int, prompt: Sequence[list[int]], settings: Settings, draw: int) -> RunningSequence:
        return Thought(number, prompt[0], settings, self._members[0], draw)


@dataclass(slots=True)
class _Asked:
    """A prompt that is not finished, with its ids in every member, and the members' thoughts by their numbers."""

    prompt: Sequence[list[int]]
    settings: Settings
    draw: int
    thoughts: dict[int, Generation] = field(default_factory=dict)


class ThinkingDecoder(Decoder):
    """A decoder whose members think apart, by ``thinkers``, and answer together by the other arguments.

    ``max_new_tokens`` counts the primary's tokens, those of its thinking included. It is also the limit of the thinking
    of a member without a budget. A prompt has no answer, and ends with ``length``, if the thinking leaves no room for
    one in the limit or in a member's context.
    """

    def __init__(
        self,
        members: Sequence[Member],
        joint: JointVocabulary,
        rule: TokenRule,
        batch: Batch,
        drafter: Drafter,
        thinkers: Sequence[Thinker],
    ) -> None:
        super().__init__(members, joint, rule, batch, drafter)
        self._thinkers = thinkers
        self._asked: dict[int, _Asked] = {}

    def add(self, number: int, prompt: Sequence[list[int]], settings: Settings, draw: int = 1) -> None:
        """See :meth:`Decoder.add`."""
        self.check(settings)
        alone = replace(settings, stop=(), alternatives=None, grammar=None)
        try:
            for thinker, ids in zip(self._thinkers, prompt, strict=True):
                thinker.add(number, [ids], alone, draw)
        except PromptTooLongError:
            self.remove(number)
            raise
        self._asked[number] = _Asked(prompt, settings, draw)

    def remove(self, number: int) -> None:
        """See :meth:`Decoder.remove`."""
        self._asked.pop(number, None)
        for thinker in self._thinkers:
            thinker.remove(number)
        super().remove(number)

    def step(self) -> list[tuple[int, Generation | MemberError]]:
        """See :meth:`Decoder.step`. Each member that thinks makes a step, and so do the answers."""
        results: list[tuple[int, Generation | MemberError]] = []
        for member, thoughts in self._think():
            for number, thought in thoughts:
                asked = self._asked[number]
                if isinstance(thought, MemberError):
                    self.remove(number)
                    results.append((number, thought))
                    continue
                asked.thoughts[member] = thought
                if len(asked.thoughts) == len(self._members) and not self._answer(number, asked):
                    results.append((number, Generation("", (), "length")))
        if not super().done:
            results += super().step()
        return [(number, self._with_thoughts(number, result)) for number, result in results]

    def _think(self) -> list[tuple[int, list[tuple[int, Generation | MemberError]]]]:
        """Let each member that thinks make a step; those elsewhere at the same time."""
        thinking = [(member, thinker) for member, thinker in enumerate(self._thinkers) if not thinker.done]
        elsewhere = {
            member: in_background(thinker.step, f"thinking of {self._members[member].name}")
            for member, thinker in thinking
            if not self._members[member].is_here
        }
        try:
            return [
                (member, elsewhere[member].result() if member in elsewhere else thinker.step())
                for member, thinker in thinking
            ]
        finally:
            # Also where one fails: a prompt may be removed after this.
            wait(elsewhere.values())

    @property
    def done(self) -> bool:
        """See :meth:`Decoder.done`."""
        return not self._asked

    @property
    def running(self) -> dict[int, bytes]:
        """See :meth:`Decoder.running`; empty while the members think."""
        waiting = set(self.waiting)
        return {**{number: b"" for number in self._asked if number not in waiting}, **super().running}

    @property
    def waiting(self) -> list[int]:
        """See :meth:`Decoder.waiting`: the prompts that no member has begun to think about."""
        untouched = set.intersection(*(set(thinker.waiting) for thinker in self._thinkers))
        return [number for number in self._asked if number in untouched]

    def _answer(self, number: int, asked: _Asked) -> bool:
        """Let the members answer behind what they thought; whether there is room for that."""
        prompts = [[*ids, *asked.thoughts[member].tokens] for member, ids in enumerate(asked.prompt)]
        left = asked.settings.max_new_tokens - len(asked.thoughts[0].tokens)
        if left < 1:
            return False
        try:
            super().add(number, prompts, replace(asked.settings, max_new_tokens=left), asked.draw)
        except PromptTooLongError:
            return False
        return True

    def _with_thoughts(self, number: int, result: Generation | MemberError) -> Generation | MemberError:
        """The result of a prompt, with what its members thought."""
        asked = self._asked.pop(number, None)
        if asked is None or isinstance(result, MemberError):
            return result
        thoughts = [asked.thoughts[member] for member in range(len(self._members))]
        result.counts.seconds += sum(thought.counts.seconds for thought in thoughts)
        return replace(result, thinking=tuple(thought if thought.tokens else None for thought in thoughts))
