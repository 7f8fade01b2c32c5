"""Thinking and answer apart: how models write what they think before they answer, as data.

Only a section at the start of a response is thinking. A tag later in the text, for example in code that the answer
shows, stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_BETWEEN = "..."


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """How a family of models marks its thinking.

    Attributes:
        opening: What begins the section.
        closing: What ends it.
        around: Control texts at the ends of the section and of the answer, which belong to neither.
        needs_closing: Whether the opening may begin an answer, too, so that it counts only together with the closing.
    """

    opening: str
    closing: str
    around: tuple[str, ...] = ()
    needs_closing: bool = False

    @property
    def option(self) -> str:
        """The value of ``thinking=`` in a pool file."""
        return f"{self.opening}{_BETWEEN}{self.closing}"

    @classmethod
    def of_option(cls, text: str) -> ThinkingTags | None:
        """The tags that a user names; None if the text does not have two."""
        opening, _, closing = text.partition(_BETWEEN)
        if not opening.strip() or not closing.strip() or opening == closing:
            return None
        return cls(opening, closing)


_HARMONY = ("<|end|>", "<|start|>assistant", "<|return|>")
FAMILIES = (
    ThinkingTags("<think>", "</think>"),  # DeepSeek, Qwen, GLM, MiniMax, OLMo and most others
    ThinkingTags("<thinking>", "</thinking>"),
    ThinkingTags("<thought>", "</thought>"),
    ThinkingTags("<reasoning>", "</reasoning>"),
    ThinkingTags("[THINK]", "[/THINK]"),  # Magistral
    ThinkingTags("<seed:think>", "</seed:think>"),  # Seed-OSS
    ThinkingTags("◁think▷", "◁/think▷"),  # Kimi
    ThinkingTags("<|channel>thought\n", "<channel|>"),  # Gemma
    ThinkingTags("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", _HARMONY),  # gpt-oss
    # The same where the tokenizer removes its special tokens.
    ThinkingTags("analysis", "assistantfinal", needs_closing=True),
    ThinkingTags("Here is my thought process:", "Here is my response:", needs_closing=True),  # Granite 3
)
"""The forms that are known without ``thinking=``."""


class ThinkingReader:
    """Parts the responses of one model.

    Args:
        responses: The texts of the model, and whether each was cut off at a limit. All together they tell whether the
            chat template writes the opening tag into the prompt: then nearly all have only the closing one.
        tags: The model's own tags; None for those of the known families.
    """

    def __init__(self, responses: Iterable[tuple[str, bool]], tags: ThinkingTags | None = None) -> None:
        self._forms = FAMILIES if tags is None else (tags,)
        unopened = [(text, cut) for text, cut in responses if self._opening(text.lstrip()) is None]
        self._of_template = next((form for form in self._forms if _is_of_template(form, unopened)), None)

    def read(self, text: str, *, cut: bool = False) -> tuple[str | None, str]:
        """Part a response.

        Args:
            text: The whole response. Without thinking it is the answer as it is.
            cut: Whether it was cut off at a limit.

        Returns:
            The thinking, or None; and the answer, empty if the response ends before it.
        """
        rest = text.lstrip()
        form = self._opening(rest)
        if form is not None:
            rest = rest[len(form.opening) :]
        elif (form := self._of_template) is None or not (cut or form.closing in text):
            return None, text
        thinking, _, rest = rest.partition(form.closing)
        answer = _trimmed(rest, form.around)
        # Some servers close the section at a budget, and the model closes it again.
        while answer.startswith(form.closing):
            answer = _trimmed(answer.removeprefix(form.closing), form.around)
        return _trimmed(thinking, form.around) or None, answer

    def _opening(self, text: str) -> ThinkingTags | None:
        """The form with which a text begins."""
        for form in self._forms:
            if text.startswith(form.opening) and not (form.needs_closing and form.closing not in text):
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
    """Whether a text has a closing tag without an opening one, alone in a line and not within code."""
    before, closing, after = text.partition(form.closing)
    if not closing or form.opening in before or before.count("```") % 2:
        return False
    return before.rstrip(" ")[-1:] in ("", "\n") or after.startswith("\n\n")


def _trimmed(text: str, around: tuple[str, ...]) -> str:
    """A text without white space and some control texts at its ends."""
    text = text.strip()
    while mark := next((mark for mark in around if text.startswith(mark) or text.endswith(mark)), None):
        text = text.removeprefix(mark).removesuffix(mark).strip()
    return text
