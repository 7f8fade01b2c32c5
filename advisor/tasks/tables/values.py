"""The one reader of values that people bring: responses, references, options, scores and ids.

A value is a text, a number, a list or an object, in any form in which tools save it. In a cell of a table a text may
spell a list or an object, in JSON or in Python. A form that is not known is an error with the form in words; it never
becomes an empty text or a wrong answer.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import string
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from advisor.tasks.tables.streams import Notes
from ensemble.common.text import counted, first_of, shortened, visible
from ensemble.errors import InputError

_LONGEST_LITERAL = 100_000
"""Characters of a text that is read as Python; JSON may have any length."""
_MOST_NESTED = 8
"""Lists and objects in each other, from a value to its text."""
_LONGEST_LINE = 300
_MOST_KEYS = 6
"""Keys of an object in a message."""


class UnknownFormError(InputError):
    """A value is in no form that is known. The message is the form in words; the caller adds what it is and where."""


def text_of(value: object) -> str | None:
    """A text, a finite number as text (7 for 7.0), or true or false; None for other types and for absent values."""
    if isinstance(value, str):
        # JSON can spell half a surrogate pair, which no UTF-8 file can hold.
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas and spreadsheets write 7.0 for 7
    if isinstance(value, int):
        # Python refuses to write integers with thousands of digits.
        return str(value) if abs(value) < 10**100 else None
    return str(value) if math.isfinite(value) else None


def texts_of(value: object) -> tuple[str, ...] | None:
    """A list of texts or numbers as texts; None for anything else, or if the list is empty."""
    texts = [text_of(item) for item in value] if isinstance(value, (list, tuple)) else []
    known = tuple(text for text in texts if text is not None)
    return known if known and len(known) == len(texts) else None


def id_text(value: object) -> str | None:
    """The id of a question as text; None if it is absent or blank."""
    return (text_of(value) or "").strip() or None


def form_of(value: object) -> str:
    """The form of a value in words, for messages: "an object with the keys id, parts"."""
    if isinstance(value, dict):
        keys = first_of([shortened(visible(str(key)), 30) for key in value], _MOST_KEYS)
        return f"an object with the keys {keys}" if value else "an object without keys"
    if isinstance(value, (list, tuple)):
        kinds = {"object" if isinstance(each, dict) else "list" if isinstance(each, list) else "text" for each in value}
        first = f", the first {form_of(value[0])}" if kinds == {"object"} else ""
        return f"a list of {counted(len(value), kinds.pop() if len(kinds) == 1 else 'value')}{first}"
    is_number = isinstance(value, (int, float))
    return "a number that is too large" if is_number else f"a value of the type {type(value).__name__}"


def line_of(value: object) -> str | None:
    """A text in one line, cut after 300 characters; None for other types and blank texts."""
    return " ".join((text_of(value) or "")[:_LONGEST_LINE].split()) or None


# Lists and objects that a text spells

_STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_VALUE = rf"(?P<value>{_STRING}|\\.|[\w.+-]+|[\])}}])"
_NUMPY = re.compile(rf"array(?=\()|, ?dtype=[\w.']+|{_VALUE}(?P<gap>\s+(?=['\"\[({{\w.+-]))?", re.DOTALL)


def parsed_text(text: str) -> object:
    """The list or object that a text spells in JSON, in Python or as NumPy prints it; None if it spells none."""
    text = text.strip()
    if text[:1] + text[-1:] not in ("[]", "{}") and not text.startswith("array("):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if len(text) > _LONGEST_LITERAL:
            return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of backslashes in the texts
            # NumPy puts blanks between values, and Python would join texts without a comma.
            plain = _NUMPY.sub(lambda match: (match["value"] or "") + ("," if match["gap"] else ""), text)
            found = ast.literal_eval(plain)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
    if isinstance(found, set):
        return sorted(found, key=str)
    return found if isinstance(found, (list, dict)) else None


def parsed_cell(value: object) -> object:
    """The object or the list of texts that a cell spells; None for anything else."""
    found = parsed_text(value) if isinstance(value, str) else None
    # A list of several numbers is an answer itself, such as that of a program.
    has_texts = isinstance(found, list) and (
        len(found) == 1 or any(not isinstance(each, (int, float)) for each in found)
    )
    return found if has_texts or isinstance(found, dict) else None


# Responses

_ROLES = ("role", "from")
_MODELS = ("assistant", "model", "ai", "gpt", "bot", "chatbot")
# Where an object has the text, or a smaller object with it: the outermost first. Of several responses the first counts.
_SEVERAL = ("choices", "candidates", "generations", "completions", "outputs", "results")
_HOLDERS = (
    *(*_SEVERAL, "message", "output", "response", "result", "body", "data", "kwargs", "messages", "conversations"),
    *("content", "parts", "generated_text", "output_text", "outputText", "text", "completion", "generation", "value"),
    "refusal",
)
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoningContent", "reasoningText", "summary")
_ENDS = ("finish_reason", "stop_reason", "finishReason", "stopReason", "done_reason", "completionReason")
CUT = ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded")
"""How tools and servers say that a response was cut off at a limit of tokens, in lower case."""
_USAGE = ("usage", "usageMetadata", "usage_metadata")
_PROVIDERS = frozenset({*_ENDS, *_USAGE, "object", "generated_text", "response_metadata", "kwargs"})
"""Keys that a provider's answer has, and hardly a JSON that a model wrote."""
_NO_TEXT = re.compile("tool|call|image|audio|code|redacted")
"""In the types of parts that have no text."""


@dataclass(slots=True)
class SavedResponse:
    """What a saved value tells of a response."""

    text: str | None = None  # the text without its thinking; None if it has no text
    thinking: list[str] = field(default_factory=list)  # the texts of the thinking, where the value has it apart
    finish: str | None = None  # why it ended, in the provider's word
    error: str | None = None  # why there is no response, where the provider says so
    # The counts of tokens and the price, by the provider's names.
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def all_thinking(self) -> str | None:
        """The whole thinking; None without any."""
        return "\n\n".join(self.thinking) or None

    @property
    def is_cut(self) -> bool:
        """Whether the response was cut off at a limit of tokens."""
        return str(self.finish).lower() in CUT


def is_answer(value: object) -> bool:
    """Whether a value is clearly what a provider answered, and no list or object that a model wrote itself."""
    if isinstance(value, list):
        are_objects = all(isinstance(each, dict) for each in value)
        return _are_messages(value) or (are_objects and any(is_answer(each) or _is_part(each) for each in value))
    if not isinstance(value, dict):
        return False
    has_several = any(isinstance(value.get(key), list) for key in _SEVERAL)
    return has_several or _role(value) in _MODELS or not value.keys().isdisjoint(_PROVIDERS)


def read_response(value: object) -> SavedResponse:
    """Read a response: a text, a list of one, content parts, messages, or what a provider answered.

    A text stays as it is, unless it spells what is clearly a provider's answer. Anything else is an UnknownFormError.
    """
    spelled = parsed_text(value) if isinstance(value, str) else None
    if is_answer(spelled):
        with contextlib.suppress(UnknownFormError):
            return read_response(spelled)
    found = SavedResponse()
    found.text = _said(value, found, _MOST_NESTED)
    return found


def response_text(value: object) -> str | None:
    """The text of a response; see :func:`read_response`. None if it is absent."""
    return read_response(value).text


def _said(value: object, found: SavedResponse, depth: int) -> str | None:
    """The text in a value; what else it tells goes into `found`."""
    if value is None or value != value or value == {}:  # noqa: PLR0124  # NaN, which pandas writes for nothing
        return None
    if (text := text_of(value)) is not None:
        return text
    if depth and isinstance(value, dict):
        return _said_in_object(value, found, depth - 1)
    if not depth or not isinstance(value, (list, tuple)):
        raise UnknownFormError(form_of(value))
    items = [item for item in value if not (isinstance(item, dict) and _NO_TEXT.search(str(item.get("type"))[:50]))]
    if _are_messages(items):
        items = [item for item in items if _role(item) in _MODELS][-1:]
    if (value and not items and _are_messages(value)) or (len(items) > 1 and not any(map(_is_part, items))):
        raise UnknownFormError(form_of(value))
    texts = [text for item in items if (text := _said(item, found, depth - 1)) is not None]
    return "".join(texts) if texts else None


def _said_in_object(value: Mapping[str, Any], found: SavedResponse, depth: int) -> str | None:
    thoughts = [text for key in _THOUGHTS for text in _thoughts(value.get(key), depth)]
    if value.get("thought") is True or value.get("type") in _THOUGHTS:
        found.thinking.extend(thoughts or _thoughts(value.get("text"), depth))
        return None
    found.thinking.extend(thoughts)
    for ends in (value, value.get("meta_info"), value.get("incomplete_details")):
        said = [ends[key] for key in (*_ENDS, "reason") if ends.get(key)] if isinstance(ends, dict) else []
        found.finish = found.finish or next(
            (str(end.get("type") if isinstance(end, dict) else end) for end in said), None
        )
    found.usage = found.usage or next((value[key] for key in _USAGE if isinstance(value.get(key), dict)), {})
    error = value.get("error")
    if error:
        found.error = str(error.get("message", error) if isinstance(error, dict) else error)
    held = [key for key in _HOLDERS if key in value]
    filled = next((key for key in held if value[key] not in (None, "", [], {})), None)
    if filled is not None:
        several = filled in _SEVERAL and isinstance(value[filled], list)
        return _said(value[filled][0] if several else value[filled], found, depth)
    if not held and not error and not thoughts:
        raise UnknownFormError(form_of(value))
    return None if error or "" not in [value[key] for key in held] else ""


def _role(message: Mapping[str, Any]) -> str:
    return str(next((message[key] for key in _ROLES if key in message), "")).lower()


def _are_messages(items: Sequence[object]) -> bool:
    return bool(items) and all(isinstance(item, dict) and _role(item) for item in items)


def _is_part(value: object) -> bool:
    """Whether a value is clearly one of several parts of a text."""
    if not isinstance(value, dict):
        return False
    if "type" in value:
        return value["type"] in (*_THOUGHTS, "text", "output_text", "message")
    return isinstance(value.get("text"), str) or "reasoningContent" in value


def _thoughts(value: object, depth: int) -> list[str]:
    """All texts in a value that is known to be thinking."""
    if isinstance(value, dict):
        value = [value[key] for key in (*_THOUGHTS, "text", "content") if key in value]
    if isinstance(value, list):
        return [text for item in value if depth for text in _thoughts(item, depth - 1)]
    return [str(text_of(value))] if isinstance(value, str) and value else []


# References

# What data sets call the accepted texts in an object: SQuAD, TriviaQA, Natural Questions and others.
_ACCEPTED = (
    *("value", "text", "answer", "answers", "aliases", "normalized_value", "normalized_aliases", "short_answers"),
    *("accepted", "accepted_answers", "reference", "target", "content", "spans"),
)
_YES_OR_NO = {"YES": "yes", "NO": "no", "1": "yes", "0": "no"}


def accepted_texts(value: object) -> tuple[str, ...] | None:
    """The accepted texts of a reference, each once: a text or number, a list, or the object of a data set.

    None if it has no text; any other form is an UnknownFormError.
    """
    found = parsed_cell(value)
    try:
        texts = _accepted(value if found is None else found, _MOST_NESTED)
    except UnknownFormError:
        if found is None:
            raise
        texts = [str(text_of(value))]  # of an object that is an answer itself
    return tuple(dict.fromkeys(text for text in texts if text.strip())) or None


def _accepted(value: object, depth: int) -> list[str]:
    if value is None:
        return []
    if (text := text_of(value)) is not None:
        # Models answer yes or no where a reference is true or false; the text "True" is only itself.
        return [text, "yes" if value else "no"] if isinstance(value, bool) else [text]
    if depth and isinstance(value, (list, tuple)) and not _are_messages(value):
        return [text for item in value for text in _accepted(item, depth - 1)]
    if isinstance(value, (list, tuple)):
        return [response_text(value) or ""]
    if depth and isinstance(value, dict) and (held := [value[key] for key in _ACCEPTED if key in value]):
        said = value.get("yes_no_answer")
        answers = [_YES_OR_NO.get(str(each)) for each in (said if isinstance(said, list) else [said])]
        return [text for each in (*held, *answers) for text in _accepted(each, depth - 1)]
    raise UnknownFormError(form_of(value))


# Options

_LETTER = re.compile(
    r"\s*(?:[(\[（]([A-Za-z])[)\]）]|([A-Za-z])(?: ?[.):]|\s*[-\u2013]\s|[、．：）]))\s*",
)
_LETTER_WITHIN = re.compile(
    r"[(\[（]([A-Za-z])[)\]）]\s*|(?:^|(?<=[\s,;，；]))([A-Za-z])(?: ?[.):]\s|\s*[-\u2013]\s|[、．：）])\s*"
)
_END = re.compile(r"^.*?(\d+|[A-Za-z])[\s.):]*$", re.DOTALL)
_SEPARATORS = ("\n", "|", ";", "\t")
_OPTION_LISTS = ("text", "texts", "choices", "options")


def option_texts(value: object) -> tuple[str, ...] | None:
    """The options of a question, in the order of their letters and without them; None if it has no text.

    A list; an object from letters to texts, or with a list such as ARC's; or one text with lettered or separated
    options, also as a list or an object that a cell spells. Any other form is an UnknownFormError.
    """
    found = parsed_text(value) if isinstance(value, str) else value
    if found is None and isinstance(value, str):
        # "('red', 'green')" is a tuple in Python, other than "(A) red (B) green".
        is_tuple = value[:2] in ("('", '("') and value[-1] == ")"
        found = (parsed_text(f"[{value[1:-1]}]") if is_tuple else None) or _options_in(value)
    if isinstance(found, dict):
        found = _options_of(found)
    items = found if isinstance(found, (list, tuple)) else [found]
    held = [_option(item) for item in items if item is not None]
    letters = [_LETTER.match(text) for text in held]
    if len(held) > 1 and all(match and _is_letter(match, number) for number, match in enumerate(letters)):
        held = [text[match.end() :].strip() for text, match in zip(held, letters, strict=True) if match]
    return tuple(held) or None


def known_options(*values: object) -> tuple[str, ...]:
    """The options of the first value that has any in a known form; empty without them."""
    for value in values:
        with contextlib.suppress(UnknownFormError):
            if found := option_texts(value):
                return found
    return ()


def _is_letter(match: re.Match[str], number: int) -> bool:
    """Whether a match has the letter of the option with this number, from 0."""
    return number < 26 and (match[1] or match[2]).upper() == string.ascii_uppercase[number]


def _option(item: object) -> str:
    if isinstance(item, dict):
        item = next((item[key] for key in ("text", "value", "content", "option", "answer") if key in item), item)
    if (text := text_of(item)) is None:
        raise UnknownFormError(form_of(item))
    return text


def _options_of(value: Mapping[Any, Any]) -> object:
    """The options in an object."""
    if held := next((value[key] for key in _OPTION_LISTS if isinstance(value.get(key), (list, tuple))), None):
        return held
    # Keys such as A, option_b or choice1: in the order of their letter or number, without gaps.
    ends = {_END.sub(r"\1", str(key)).upper(): each for key, each in value.items()}
    for first in (string.ascii_uppercase, [str(n) for n in range(100)], [str(n) for n in range(1, 100)]):
        order = list(first)[: len(value)]
        if len(value) > 1 and set(order) == ends.keys():
            return [ends[key] for key in order]
    raise UnknownFormError(form_of(value))


def _options_in(text: str) -> object:
    """The options in one text; None if there are fewer than two."""
    places: list[tuple[int, int]] = []
    for match in _LETTER_WITHIN.finditer(text):
        # A letter out of order belongs to the text of an option.
        if _is_letter(match, len(places)):
            places.append(match.span())
    if len(places) > 1:
        ends = [start for start, _ in places[1:]] + [len(text)]
        return [text[begin:end].strip().rstrip(",;|，；").strip() for (_, begin), end in zip(places, ends, strict=True)]
    for mark in _SEPARATORS:
        parts = [part.strip() for part in text.strip().split(mark)]
        if len(parts) > 1 and all(parts):
            return parts
    if text.strip():
        raise UnknownFormError("one text without letters or separators between options")
    return None


# Scores

_MOST = 12
"""Names in a message."""
_MOST_UNREAD = 0.05
"""The share of a model's scores that may be unreadable; with more, what is left says little of the model."""
_LONGEST_VALUE = 30  # characters of a value in a message
_TRUTH = {
    **dict.fromkeys(("true", "yes", "y", "correct", "right", "pass", "passed"), 1.0),
    **dict.fromkeys(("false", "no", "n", "incorrect", "wrong", "fail", "failed"), 0.0),
}
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_RANGE = re.compile(rf"\s*{_NUMBER}\s*(?:-|\u2013|\.\.|:|to)\s*{_NUMBER}\s*")
_LARGEST_SCORE = 2**53
_ENDS_OF_SCALES = (1, 2, 3, 4, 5, 6, 7, 10, 20, 100, 1000)


def score_of(value: object) -> float | None:
    """A score between 0 and 1: a number in this range, or a truth value; None for anything else."""
    # NaN is in no range.
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else None


class ScoreReader:
    """Reads the scores of all logs of a command, and counts those that it cannot read.

    Args:
        text: What the user says of them: ``VALUE=SCORE,...`` (an empty value is an empty cell), or the worst and the
            best number of a scale, such as ``1-5``; None for numbers from 0 to 1 and words such as "correct".
    """

    def __init__(self, text: str | None = None) -> None:
        self._meanings: dict[str, float] = {}
        self._range: tuple[float, float] | None = None
        self._values: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._known: dict[str, float] = {}
        # Most scores are one of two values.
        self._read = lru_cache(maxsize=1000, typed=True)(self._text_and_score)
        for part in () if text is None else text.split(","):
            self._learn(part, str(text))

    @property
    def unread(self) -> Counter[str]:
        """The number of scores of each model that could not be read."""
        lost = {
            model: sum(count for value, count in values.items() if value not in self._known)
            for model, values in self._values.items()
            # A model without any score has none that could be read.
            if values.keys() != {""}
        }
        return +Counter(lost)

    def is_score(self, value: object) -> bool:
        """Whether a value can be read; it is not counted."""
        return self._read(_alone(value))[1] is not None

    def read(self, value: object, model: str) -> float | None:
        """The score of a model's response, between 0 and 1; None for a value that is no score, which is counted."""
        text, score = self._read(_alone(value))
        self._values[model][text] += 1
        if score is not None:
            self._known[text] = score
        return score

    def check(self, notes: Notes) -> None:
        """Say how many scores of each model cannot be read.

        It is an error if a model lost more than one in 20, if all others are equal, or if numbers are out of the scale.
        """
        unread = self.unread
        if not unread:
            return
        each = first_of([f"{name} ({count:,})" for name, count in unread.most_common()], _MOST, "other models")
        what = counted(unread.total(), "score")
        values = sum((self._values[model] for model in self._values), Counter[str]())
        numbers = [number for text in values if (number := as_number(text)) is not None]
        outside = [text for text in values if text not in self._known and as_number(text) is not None]
        is_little = all(count <= _MOST_UNREAD * self._values[name].total() for name, count in unread.items())
        if is_little and not outside and len(set(self._known.values())) > 1:
            notes.append(f"{what} cannot be read, and the responses are left out: {each}")
            return
        met = [text for text, _ in values.most_common()]
        shown = first_of([f"{_named(text)} ({values[text]:,})" for text in met], _MOST, "other values")
        pairs = [f"{text}={self._known[text]:g}" for text in self._known][:2]
        others = [text for text in met if text not in self._known]
        pairs += [f"{text}={0 if pairs or place else 1}" for place, text in enumerate(others[:2])]
        scale = f"the numbers are from {min(numbers):g} to {max(numbers):g}; " if outside else ""
        way_out = f"give the worst and the best, such as --score-range {_usual_scale(numbers)}, or " if outside else ""
        raise InputError(
            f"{what} of {values.total():,} cannot be read: {each}; {scale}the values are {shown}; "
            f'{way_out}say what they mean, for example --score-map "{",".join(pairs)}", or correct the log'
        )

    def _learn(self, part: str, text: str) -> None:
        if ends := _RANGE.fullmatch(part):
            self._range = float(ends[1]), float(ends[2])
            if self._range[0] == self._range[1]:
                raise InputError(f"--score-range {text}: the worst and the best score are the same; correct one")
            return
        value, equals, number = part.rpartition("=")
        score = score_of(as_number(number))
        if not equals or score is None:
            raise InputError(
                f"--score-map {text}: give VALUE=SCORE,... with scores from 0 to 1, such as correct=1,=0, or the worst "
                "and the best number of a scale, such as 1-5"
            )
        if (key := _score_text(value)) in self._meanings:
            raise InputError(f"--score-map {text}: the value {_named(key)} is given twice")
        self._meanings[key] = score

    def _text_and_score(self, value: object) -> tuple[str, float | None]:
        text = _score_text(value)
        for meanings in (self._meanings, _TRUTH):
            if text in meanings:
                return text, meanings[text]
        number = as_number(value.strip().removesuffix("%")) if isinstance(value, str) else value
        # Whole numbers of JSON have any size.
        if not isinstance(number, (int, float)) or abs(number) >= _LARGEST_SCORE:
            return text, None
        worst, best = (0.0, 100.0) if text.endswith("%") else self._range or (0.0, 1.0)
        return text, score_of((number - worst) / (best - worst))


def _alone(value: object) -> object:
    """A value, or the only one of a list; of other lists and objects their form in words."""
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    return form_of(value) if isinstance(value, (list, tuple, dict)) else value


def _score_text(value: object) -> str:
    """A value as the user writes it in --score-map: 1.0 is 1, and what is absent is empty."""
    if value is None or value != value:  # noqa: PLR0124  # NaN, which pandas writes for an empty cell
        return ""
    text = text_of(value)
    text = " ".join((form_of(value) if text is None else text)[:1000].split()).lower()
    # "1.0" of a CSV file is the 1 of another.
    number = as_number(text)
    return shortened(text, _LONGEST_VALUE) if number is None else f"{number:g}"


def as_number(text: str) -> float | None:
    """The finite number that a text is, also with a decimal comma."""
    text = text.strip()
    if len(text) > _LONGEST_VALUE or not re.fullmatch(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?", text, re.ASCII):
        return None
    number = float(text.replace(",", "."))
    return number if math.isfinite(number) else None


def _usual_scale(numbers: Sequence[float]) -> str:
    """The scale that some numbers are most likely of, from the worst to the best."""
    best = next((end for end in _ENDS_OF_SCALES if end >= max(numbers)), max(numbers))
    worst = min(numbers) if min(numbers) < 0 else 0 if min(numbers) < 1 or best >= 100 else 1
    return f"{worst:g}-{best:g}"


def _named(text: str) -> str:
    return (line_of(text) or "''") if text else "an empty cell"


def request_text(value: object) -> str | None:
    """What a list of messages says before its last response, with the roles if it has several turns."""
    found = parsed_text(value) if isinstance(value, str) else value
    if not isinstance(found, list) or not _are_messages(found):
        return None
    said = [(str(_role(message)).lower(), response_text(message) or "") for message in found]
    last = max((number for number, (role, _) in enumerate(said) if role in _MODELS), default=len(said))
    names = {"system": "System", **dict.fromkeys(_MODELS, "Assistant")}
    has_turns = any(role in _MODELS for role, _ in said[:last])
    texts = [f"{names.get(role, 'User')}: {text}" if has_turns else text for role, text in said[:last] if text.strip()]
    return "\n\n".join(texts) or None
