"""Thinking and answer apart: how models write what they think before they answer, as data.

Only a section at the start of a response is thinking. A tag later in the text, for example in code that the answer
shows, stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_BETWEEN = "..."
_TAG_TOKENS = 8
"""Tokens that the two tags of a section may be: some servers count them as thinking."""


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """How a family of models marks its thinking."""

    opening: str  # what begins the section
    closing: str  # what ends it; where ``ending`` does that, what begins the answer
    # Control text between the section and ``closing``, of models that write in channels: an answer without thinking
    # begins with ``closing``, too.
    ending: str = ""
    around: tuple[str, ...] = ()  # control texts at the ends of the section and of the answer, which belong to neither
    ends: tuple[str, ...] = ()  # control texts that end an answer, not always EOS: more of them may follow
    needs_closing: bool = False  # whether the opening may begin an answer, too, so that it counts only with the closing

    @property
    def option(self) -> str:
        """The value of ``thinking=`` in a pool file."""
        return f"{self.opening}{_BETWEEN}{self.closing}"

    @property
    def beginnings(self) -> tuple[str, ...]:
        """What a response of this form begins with."""
        return (self.opening, self.closing) if self.ending else (self.opening,)

    def special_tokens(self, names: Mapping[int, str]) -> set[int]:
        """The tokens that write the form, of a tokenizer's special ones by their ids."""
        # Control texts around it alone are another family's, and may mean something else there.
        if self.needs_closing or not any(name in self.opening or name in self.closing for name in names.values()):
            return set()
        texts = (self.opening, self.closing, self.ending, *self.around, *self.ends)
        return {index for index, name in names.items() if any(name in text for text in texts)}

    def end_tokens(self, names: Mapping[int, str]) -> set[int]:
        """Of the same tokens, those with which the end of an answer begins."""
        return {index for index in self.special_tokens(names) if any(end.startswith(names[index]) for end in self.ends)}

    def is_ended(self, text: str) -> bool:
        """Whether a text has the end of an answer."""
        return text.rstrip().endswith(self.ends)

    def trimmed(self, text: str) -> str:
        """A text without white space and control texts at its ends."""
        text, marks = text.strip(), (*self.around, *self.ends)
        while mark := next((mark for mark in marks if text.startswith(mark) or text.endswith(mark)), None):
            text = text.removeprefix(mark).removesuffix(mark).strip()
        return text

    @classmethod
    def of_option(cls, text: str) -> ThinkingTags | None:
        """The tags that a user names; None if the text does not have two."""
        opening, _, closing = text.partition(_BETWEEN)
        if not opening.strip() or not closing.strip() or opening == closing:
            return None
        return cls(opening, closing)


FAMILIES = (
    ThinkingTags("<think>", "</think>"),  # DeepSeek, Qwen, GLM, MiniMax, OLMo and most others
    ThinkingTags("<thinking>", "</thinking>"),
    ThinkingTags("<thought>", "</thought>"),
    ThinkingTags("<reasoning>", "</reasoning>"),
    ThinkingTags("[THINK]", "[/THINK]"),  # Magistral
    ThinkingTags("<seed:think>", "</seed:think>"),  # Seed-OSS
    ThinkingTags("◁think▷", "◁/think▷"),  # Kimi
    ThinkingTags("<mm:think>", "</mm:think>"),  # MiniMax M3
    ThinkingTags("<ifm|think>", "</ifm|think>"),  # K2 Horizon, by its effort
    ThinkingTags("<ifm|think_fast>", "</ifm|think_fast>"),
    ThinkingTags("<ifm|think_faster>", "</ifm|think_faster>"),
    ThinkingTags("<|channel>thought\n", "<channel|>"),  # Gemma
    ThinkingTags(
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|end|><|start|>assistant",
        around=("<|start|>assistant",),
        ends=("<|end|>", "<|return|>"),
    ),  # gpt-oss
    ThinkingTags(
        "<|open|>think<|sep|>",
        "<|open|>response<|sep|>",
        "<|close|>think<|sep|>",
        around=("<|close|>think<|sep|>",),
        ends=("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
    ),  # Kimi K3
    ThinkingTags(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        around=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        ends=("<|END_RESPONSE|>", "<|END_TEXT|>"),
    ),  # Command A
    ThinkingTags(
        "<|content_thinking|>",
        "<|content_text|>",
        "<|end_message|><|message_model|>",
        around=("<|message_model|>",),
        ends=("<|end_message|>", "<|content_model_end_sampling|>"),
    ),  # Inkling
    ThinkingTags("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>", ends=("<|plamo:tag|>",)),  # PLaMo 3
    # That of gpt-oss where the tokenizer removes its special tokens.
    ThinkingTags("analysis", "assistantfinal", needs_closing=True),
    ThinkingTags("Here is my thought process:", "Here is my response:", needs_closing=True),  # Granite 3
)
"""The forms that are known without ``thinking=``."""


def forms_of(tags: ThinkingTags | None) -> tuple[ThinkingTags, ...]:
    """The forms of a model: the tags that a user names, or those of the known families."""
    return FAMILIES if tags is None else (tags,)


def has_thought(shown: str | None, tokens: int) -> bool:
    """Whether a model thought, by what is shown of it, and by how many tokens it was; 0 if that is not known.

    An empty section is no thinking: white space, and no more tokens than that and its tags can be. With more of them,
    the thinking is not shown.
    """
    if shown and shown.strip():
        return True
    return tokens > (len(shown) + _TAG_TOKENS if shown else 0)


class ThinkingReader:
    """Parts the responses of one model, by its ``tags``; None for those of the known families.

    The ``responses``, with whether each was cut off at a limit, tell together whether the chat template writes the
    opening tag into the prompt (then nearly all have only the closing one), and whether control text ends answers.
    """

    def __init__(self, responses: Iterable[tuple[str, bool]], tags: ThinkingTags | None = None) -> None:
        self._forms = forms_of(tags)
        unopened = [(text, cut) for text, cut in responses if self._opening(text.lstrip()) is None]
        self._of_template = next((form for form in self._forms if _is_of_template(form, unopened)), None)
        whole = [text for text, cut in unopened if not cut]
        self._ended = next((form for form in self._forms if 2 * sum(map(form.is_ended, whole)) >= len(whole)), None)

    def read(self, text: str, *, cut: bool = False) -> tuple[str | None, str]:
        """The thinking of a response, or None, and the answer, empty if the response ends before it."""
        rest = text.lstrip()
        form = self._opening(rest)
        if form is not None:
            rest = rest.removeprefix(form.opening)
        elif (form := self._of_template) is None or not (cut or form.closing in text):
            ended = self._ended
            return None, ended.trimmed(text) if ended is not None and ended.is_ended(text) else text
        thinking, _, rest = rest.partition(form.closing)
        answer = form.trimmed(rest)
        # Some servers close the section at a budget, and the model closes it again.
        while answer.startswith(form.closing):
            answer = form.trimmed(answer.removeprefix(form.closing))
        return form.trimmed(thinking) or None, answer

    def _opening(self, text: str) -> ThinkingTags | None:
        for form in self._forms:
            if text.startswith(form.beginnings) and not (form.needs_closing and form.closing not in text):
                return form
        return None


def _is_of_template(form: ThinkingTags, responses: Sequence[tuple[str, bool]]) -> bool:
    """Whether at least half of the responses that ended have only the closing tag."""
    if form.needs_closing:
        return False
    ended = [text for text, cut in responses if not cut or form.closing in text]
    alone = sum(_closes_alone(form, text) for text in ended)
    return alone > 0 and 2 * alone >= len(ended)


def _closes_alone(form: ThinkingTags, text: str) -> bool:
    """Whether a text has a closing tag without an opening one, after control text or alone in a line, not in code."""
    before, closing, after = text.partition(form.closing)
    if not closing or form.opening in before or before.count("```") % 2:
        return False
    if form.ending and before.endswith(form.ending):
        return True
    return before.rstrip(" ")[-1:] in ("", "\n") or after.startswith("\n\n")
