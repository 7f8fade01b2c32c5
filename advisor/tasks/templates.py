r"""The templates and the regular expression of a task file.

    >>> Template("Question: {{question}}", file="refunds.yaml", key="prompt").text(record)
    'Question: How long does a refund take?'
    >>> Template("{{aliases}}", file="trivia.yaml", key="reference").value(record)   # one expression keeps its type
    ['Sunset Blvd', 'Sunset Boulevard']
    >>> find_answer(r"answer is (-?[0-9]+)", "2 + 3 = 5. The answer is 5.")
    '5'

Templates are Jinja2 over one record. Task files are shared, so a template runs in a sandbox: it can neither reach
Python's internals nor change a record. Not covered: a template that wastes time or memory.
"""

from __future__ import annotations

import jinja2
import regex  # type: ignore[import-untyped]
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from advisor.tasks.data_files import Record
from ensemble.errors import InputError

PATTERN_SECONDS = 1.0
"""Processor time of a regular expression on one response; a normal pattern needs microseconds."""

# What the expressions of a template can raise. The cause is always the template or the record, so all are InputErrors.
_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
    MemoryError,
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


class Template:
    """A compiled template.

    Args:
        source: Text with ``{{ }}`` and ``{% %}``.
        file: The task file, for messages.
        key: The template's key in the task file, for messages.

    Raises:
        InputError: The source is not a valid template.
    """

    __slots__ = ("_evaluate", "_field", "_file", "_key", "_named", "_render")

    def __init__(self, source: str, *, file: str, key: str) -> None:
        self._file, self._key = file, key
        try:
            expression = _lone_expression(source)
            self._evaluate = expression and _ENVIRONMENT.compile_expression(expression, undefined_to_none=False)
            self._named = meta.find_undeclared_variables(_ENVIRONMENT.parse(source))
            # Most options and references are one field, which needs no engine: MMLU has 68,000 of them.
            self._field = expression.strip() if expression and expression.strip() in self._named else None
            self._render = _ENVIRONMENT.from_string(source).render
        except _FAILURES as error:
            message = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(f"{file}: the template under {key} is broken: {message}; correct it") from error

    def text(self, record: Record) -> str:
        """Render to text.

        Raises:
            InputError: The record lacks a field of the template, or the template fails on the record.
        """
        try:
            return self._render(record.values)
        except _FAILURES as error:
            raise self._failure(record, error) from error

    def value(self, record: Record) -> object:
        """Evaluate: a template that is one ``{{ expression }}`` gives the expression's value, any other gives text.

        Raises:
            InputError: As for ``text``.
        """
        if not self._evaluate:
            return self.text(record)
        if self._field is not None and self._field in record.values:
            return record.values[self._field]
        try:
            value = self._evaluate(record.values)
            if isinstance(value, jinja2.Undefined):
                str(value)  # raises, with the name in the message
        except _FAILURES as error:
            raise self._failure(record, error) from error
        return value

    def texts(self, record: Record) -> str | tuple[str, ...]:
        """Evaluate to one text, or to several if the value is a list. A null is an empty text.

        Raises:
            InputError: As for ``text``, or if the value is not text, a number or a list of these.
        """
        value = self.value(record)
        try:
            return tuple(_plain(item) for item in value) if isinstance(value, (list, tuple)) else _plain(value)
        except _FAILURES as error:
            raise self._failure(record, error) from error

    def _failure(self, record: Record, error: Exception) -> InputError:
        where = f"{self._file}: the template under {self._key}"
        missing = sorted(self._named - record.values.keys())
        null = sorted(name for name in self._named & record.values.keys() if record.values[name] is None)
        fields = ", ".join(key for key in record.values if not key.startswith("_"))
        if missing and isinstance(error, jinja2.UndefinedError):
            return InputError(
                f"{where} names the field '{missing[0]}', but {record.place} has only {fields}; correct one"
            )
        if null:
            return InputError(f"{where} needs the field '{null[0]}', which is null in {record.place}; fill it in")
        message = str(error).partition("\n")[0] or type(error).__name__
        return InputError(f"{where} fails on {record.place}: {message}; correct one of them")


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


def pattern_problem(pattern: str) -> str | None:
    """Why a text is not a regular expression, in one line; None if it is one."""
    try:
        regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        return str(error).partition("\n")[0]
    return None


def find_answer(pattern: str, text: str) -> str | None:
    """The first group that took part in the first match, or the whole match of a pattern without groups.

    Args:
        pattern: A pattern for which ``pattern_problem`` is None.
        text: Any text.

    Returns:
        None if the pattern does not match, or does not end within its time.
    """
    try:
        # `regex` instead of `re`, since it has a time limit: a pattern such as `(a|aa)+$` in a shared task file can
        # keep a backtracking engine busy for years.
        match = regex.search(pattern, text, timeout=PATTERN_SECONDS)
    except (TimeoutError, RecursionError, MemoryError):
        return None
    if match is None:
        return None
    groups: tuple[str | None, ...] = match.groups()
    if not groups:
        return str(match.group())
    return next((group for group in groups if group is not None), None)
