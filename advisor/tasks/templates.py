r"""The templates and the regular expression of a task file.

    >>> Template("Question: {{question}}", file="refunds.yaml", key="prompt").text(record)
    'Question: How long does a refund take?'
    >>> Template("{{aliases}}", file="trivia.yaml", key="reference").value(record)   # one expression keeps its type
    ['Sunset Blvd', 'Sunset Boulevard']
    >>> find_answer(r"answer is (-?[0-9]+)", "2 + 3 = 5. The answer is 5.")
    '5'

Templates are Jinja2 over one record, with more filters: ``_READERS``. Task files are shared, so a template runs in a
sandbox: it can neither reach Python's internals nor change a record. What could waste time or memory runs in a child
process that has limits.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import jinja2
import regex  # type: ignore[import-untyped]
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from advisor.tasks.data_files import Record, field_name
from advisor.tasks.tables.values import option_texts, parsed_text, request_text, response_text
from ensemble.common.limits import SECONDS, LimitExceededError, limited_process
from ensemble.errors import InputError

PATTERN_SECONDS = 1.0
"""Processor time of a regular expression on one response; a normal pattern needs microseconds."""
LONGEST = 10_000_000
"""Characters of one text: more than any context, and little memory."""
LONGEST_TOGETHER = 2**28
"""Characters of all texts of a template; those of a task are in memory together."""
_HONEST_SECONDS = 0.002
"""Processor time of one record that does not count; a normal template needs a twentieth of it."""

# What the expressions of a template can raise. The cause is always the template or the record, so all are InputErrors.
FAILURES = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    *(RecursionError, MemoryError),
)


def _printable(value: object) -> object:
    if value is None:
        # Python's "None" in a prompt or a reference is never what the author of the task meant.
        raise jinja2.TemplateRuntimeError("a value is null")
    return value


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined,  # a missing field is an error instead of an empty text
    finalize=_printable,
    keep_trailing_newline=True,  # a prompt is what the author wrote, to the last character
    autoescape=False,  # prompts are not HTML
)


def boxed(solution: str) -> str:
    """The answer in the last LaTeX box of a solution; a ValueError without one."""
    from advisor.tasks.metrics.number import last_box  # here: the child process has little time for imports

    box = last_box(solution)
    if box is None or not solution.startswith("}", box.end):
        raise ValueError("it has no \\boxed{...}, or the last one is not closed")
    return solution[box.start : box.end].strip()


def shuffled(right: object, *others: object) -> list[str]:
    """All options, or the right and the wrong ones, in an order that is the same in every run, and tells nothing."""
    values = [right, *others] if others else [option_texts(right)]
    items = [value if isinstance(value, (list, tuple)) else [value] for value in values]
    texts = [str(item) for each in items for item in each if item is not None and str(item).strip()]
    seed = "\n".join(sorted(texts))
    return sorted(texts, key=lambda text: hashlib.sha256(f"{seed}\n\n{text}".encode()).digest())


_READERS: dict[str, Callable[..., Any]] = {
    "options": option_texts,
    "shuffled": shuffled,
    "boxed": boxed,
    "parsed": parsed_text,
    "request": request_text,
    "response": response_text,
}
"""The filters that `advisor init` writes."""
_ENVIRONMENT.filters.update(_READERS)

# Nodes that read fields and no more: no loop, no call, no variable, no operator but comparisons.
_PATH = (nodes.Name, nodes.Getattr, nodes.Getitem)
_READING = (nodes.Template, nodes.Output, nodes.TemplateData, *_PATH, nodes.Const, nodes.Compare, nodes.Operand)
# Filters whose text is at most so many times longer than the field as their arguments have characters.
_FILTERS = ("default", "int", "join", "length", "lower", "replace", "trim", "upper", *_READERS)
_LONGEST_ARGUMENT = 16
_LONGEST_SHOWN = 1000
_MOST_NODES = 1000
"""Nodes of a template that is compiled in this process; 50,000 take seconds, and more memory than the texts."""


T = TypeVar("T")


class Template:
    """A template that is ready to be rendered.

    What a template costs cannot be told from its text, and neither Jinja nor Python can stop a multiplication of texts.
    So this process renders only templates that read fields, as most prompts and references do: their texts are little
    longer than the fields. All others are compiled and rendered in the child process, which adds about 0.1 ms for each
    record. That is nothing beside decoding, but the 14,000 prompts of MMLU would take seconds.

    The file and the key (empty for a file that is one template) are for messages.

    Attributes:
        source: The text with its ``{{ }}``.
        named: The fields that the template names.
    """

    __slots__ = ("_characters", "_field", "_reads", "_seconds", "_where", "named", "source")

    def __init__(self, source: str, *, file: str, key: str) -> None:
        self._where, self.source = f"{file}: the template{key and f' under {key}'}", source
        self._seconds, self._characters = 0.0, 0
        try:
            tree = list(itertools.islice(_ENVIRONMENT.parse(source).find_all(nodes.Node), _MOST_NODES))
            # Compiling computes constants, so it is as risky as rendering.
            self._reads = len(tree) < _MOST_NODES and all(map(_only_reads, tree))
            names = field_names(source) if self._reads else _limited("field_names", source)
            expression = _lone_expression(source)
        except (*FAILURES, InputError) as error:
            raise InputError(f"{self._where} is broken: {_first_line(error)}; {_way_out(source)}") from error
        self.named = frozenset(names)
        # Most options and references are one field, which needs no engine: MMLU has 68,000 of them.
        self._field = expression.strip() if expression and expression.strip() in self.named else None

    def text(self, record: Record) -> str:
        """Render to text. A field that the record lacks is an InputError."""
        return str(self._rendered(record, as_text=True))

    def value(self, record: Record) -> object:
        """Evaluate: a template that is one ``{{ expression }}`` gives the expression's value, any other gives text."""
        if self._field is not None and self._field in record.values:
            return record.values[self._field]
        return self._rendered(record, as_text=False)

    def _rendered(self, record: Record, *, as_text: bool) -> object:
        try:
            if self._reads:
                value = render(self.source, record.values, as_text=as_text)
            else:
                # Only the fields that it names. Dates and other values that JSON does not have are rendered as text.
                fields = {name: record.values[name] for name in self.named & record.values.keys()}
                arguments = (self.source, json.dumps(fields, default=str), as_text, LONGEST)
                value, seconds = _limited("render_timed", *arguments)
                # Each call has its own limit, but a slow template has a call for each of 10,000 records.
                self._seconds += max(0.0, seconds - _HONEST_SECONDS)
                if self._seconds > SECONDS:
                    raise ValueError(f"it takes more than {SECONDS:g} s of processor time")
            self._characters += len(value) if isinstance(value, str) else 0
            if self._characters > LONGEST_TOGETHER:
                raise ValueError(f"all its texts together have more than {LONGEST_TOGETHER:,} characters")
        except (*FAILURES, InputError) as error:
            raise self._failure(record, error) from error
        return value

    def texts(self, record: Record) -> tuple[str, ...]:
        """Evaluate to one text, or to those of a list. A null is an empty text."""
        return self.read(record, _plain_texts)

    def read(self, record: Record, reader: Callable[[object], T]) -> T:
        """What a reader makes of the value; any form that it does not know is an error as for ``text``."""
        value = self.value(record)
        try:
            return reader(value)
        except (*FAILURES, InputError) as error:
            raise self._failure(record, error) from error

    def _failure(self, record: Record, error: Exception) -> InputError:
        missing = sorted(self.named - record.values.keys())
        null = sorted(name for name in self.named & record.values.keys() if record.values[name] is None)
        fields = ", ".join(key for key in record.values if not key.startswith("_"))
        # The child process gives the message alone; a missing field is then by far the most likely reason.
        undefined = isinstance(error, (jinja2.UndefinedError, InputError)) and not isinstance(error, LimitExceededError)
        if missing and undefined:
            return InputError(
                f"{self._where} names the field '{missing[0]}', but {record.place} has only {fields}; correct one"
            )
        if null:
            return InputError(f"{self._where} needs the field '{null[0]}', which is null in {record.place}; fill it in")
        return InputError(f"{self._where} fails on {record.place}: {_first_line(error)}; correct one of them")


def _only_reads(node: nodes.Node) -> bool:
    if not isinstance(node, nodes.Filter):
        return isinstance(node, _READING)
    # On a field and not on another filter, since ten filters in a row multiply a text by 16 to the power of 10.
    arguments = (isinstance(item, nodes.Const) and len(str(item.value)) <= _LONGEST_ARGUMENT for item in node.args)
    others = node.kwargs or node.dyn_args or node.dyn_kwargs
    return node.name in _FILTERS and isinstance(node.node, _PATH) and not others and all(arguments)


@lru_cache(maxsize=64)  # a task has some ten templates
def _compiled(source: str) -> tuple[Callable[..., Any] | None, jinja2.Template]:
    expression = _lone_expression(source)
    evaluate = _ENVIRONMENT.compile_expression(expression, undefined_to_none=False) if expression else None
    return evaluate, _ENVIRONMENT.from_string(source)


def field_names(source: str) -> list[str]:
    """Compile a template; the fields that it names, in order."""
    _compiled(source)
    return sorted(meta.find_undeclared_variables(_ENVIRONMENT.parse(source)))


def render(source: str, values: Mapping[str, object], longest: int | None = None, *, as_text: bool) -> object:
    """Render a template in this process; as text, or else a lone ``{{ expression }}`` gives its value."""
    evaluate, template = _compiled(source)
    if evaluate is not None and not as_text:
        value = evaluate(values)
        if isinstance(value, jinja2.Undefined):
            str(value)  # raises, with the name in the message
        return value
    parts, left = [], LONGEST if longest is None else longest
    # Part by part: a field of a megabyte may be named a thousand times.
    for part in template.generate(values):
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise ValueError(f"the text has more than {longest or LONGEST:,} characters")
    return "".join(parts)


def render_timed(source: str, values: str, as_text: bool, longest: int) -> tuple[object, float]:
    """Render a template in the child process; gives the value, and the processor time in seconds."""
    start = time.process_time()
    value = render(source, json.loads(values), longest, as_text=as_text)
    return value, time.process_time() - start


def _way_out(source: str) -> str:
    # Columns of tables often have names such as "Expected Answer".
    spaced = re.search(r"{{\s*([^\W\d]\w*(?: \w+)+\??)\s*}}", source[:_LONGEST_SHOWN])
    if spaced is None:
        return "correct it"
    return f"the field of the column '{spaced[1]}' is {{{{{field_name(spaced[1])}}}}}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _plain_texts(value: object) -> tuple[str, ...]:
    return tuple(map(_plain, value if isinstance(value, (list, tuple)) else [value]))


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (str, int, float)):
        return str(value)
    raise TypeError(f"it gives {type(value).__name__} instead of text")


def _lone_expression(source: str) -> str | None:
    """The expression of a source that is one ``{{ expression }}``; None for any other source."""
    tokens = list(_ENVIRONMENT.lex(source))
    kinds = [kind for _, kind, _ in tokens]
    if kinds[:1] == ["variable_begin"] and kinds[-1:] == ["variable_end"] and kinds.count("variable_begin") == 1:
        return "".join(text for _, _, text in tokens[1:-1])
    return None


def check_pattern(pattern: str) -> str | None:
    """Why a text is not a usable regular expression, in one line; None if it is one."""
    try:
        _limited("compile_pattern", pattern)  # 30 characters with counts in counts can take all memory
    except InputError as error:
        return str(error)
    return None


def compile_pattern(pattern: str) -> None:
    """Compile a regular expression; any error is that of the library."""
    regex.compile(pattern)


def find_answer(pattern: str, text: str) -> str | None:
    """The first group that took part in the first match, or the whole match of a pattern without groups.

    None if the pattern, which ``check_pattern`` has checked, does not match, or does not end within its time.
    """
    found = find_answers(pattern, text, 1)
    return found[0][1] if found else None


def find_answers(pattern: str, text: str, most: int | None = None) -> list[tuple[str, str | None]] | None:
    """The text of each match of a pattern, and the answer in it; None if the pattern does not end within its time."""
    try:
        # `regex` instead of `re`, since it has a time limit: a pattern such as `(a|aa)+$` in a shared task file can
        # keep a backtracking engine busy for years.
        matches = list(itertools.islice(regex.finditer(pattern, text, timeout=PATTERN_SECONDS), most))
    except (TimeoutError, RecursionError, MemoryError):
        return None
    return [(match.group(), _answer(match)) for match in matches]


def _limited(function: str, *arguments: Any) -> Any:
    return limited_process().call(f"{__name__}:{function}", *arguments, seconds=SECONDS)


def _answer(match: regex.Match[str]) -> str | None:
    groups: tuple[str | None, ...] = match.groups()
    return next((group for group in groups if group is not None), None) if groups else match.group()
