"""The templates of a task file: Jinja2 over one record, in a sandbox, and strict about what a record does not have.

    >>> Template("Question: {{question}}", file="refunds.yaml", key="prompt").text(record)
    'Question: How long does a refund take?'
    >>> Template("{{aliases}}", file="trivia.yaml", key="reference").value(record)   # one expression keeps its type
    ['Sunset Blvd', 'Sunset Boulevard']

Task files are shared, so a template can neither reach Python's internals nor change a record. Not covered: a template
that is merely wasteful with time or memory.
"""

from __future__ import annotations

import jinja2
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from advisor.tasks.record import Record
from ensemble.errors import InputError

# What the expressions of a template can raise; all of it is the template's (or the record's) fault, never ours.
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
    undefined=jinja2.StrictUndefined,
    finalize=_printable,
    keep_trailing_newline=True,  # a prompt is what the author wrote, to the last character
    autoescape=False,  # prompts are not HTML
)


class Template:
    """One template, compiled.

    Args:
        source: Text with ``{{ }}`` and ``{% %}``.
        file: The task file, for messages.
        key: The key of the task file that the template stands under, for messages.

    Raises:
        InputError: The source is no template.
    """

    __slots__ = ("_evaluate", "_field", "_file", "_key", "_named", "_render")

    def __init__(self, source: str, *, file: str, key: str) -> None:
        self._file, self._key = file, key
        try:
            expression = _lone_expression(source)
            self._evaluate = expression and _ENVIRONMENT.compile_expression(expression, undefined_to_none=False)
            self._named = meta.find_undeclared_variables(_ENVIRONMENT.parse(source))
            # A field alone, as most options and references are, needs no engine: MMLU has 68,000 of them.
            self._field = expression.strip() if expression and expression.strip() in self._named else None
            self._render = _ENVIRONMENT.from_string(source).render
        except _FAILURES as error:
            message = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(f"{file}: the template under {key} is broken: {message}; correct it") from error

    def text(self, record: Record) -> str:
        """Render to text.

        Raises:
            InputError: The record lacks a field that the template names, or the template fails on it.
        """
        try:
            return self._render(record.values)
        except _FAILURES as error:
            raise self._failure(record, error) from error

    def value(self, record: Record) -> object:
        """Evaluate: a template that is a single ``{{ expression }}`` gives the expression's own value, others text.

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
        """Evaluate to one text, or to several where the value is a list. A null is an empty text.

        Raises:
            InputError: As for ``text``, and where the value is neither text, nor a number, nor a list of them.
        """
        value = self.value(record)
        try:
            return tuple(_plain(item) for item in value) if isinstance(value, (list, tuple)) else _plain(value)
        except _FAILURES as error:
            raise self._failure(record, error) from error

    def _failure(self, record: Record, error: Exception) -> InputError:
        where = f"{self._file}: the template under {self._key}"
        absent = sorted(self._named - record.values.keys())
        null = sorted(name for name in self._named & record.values.keys() if record.values[name] is None)
        fields = ", ".join(key for key in record.values if not key.startswith("_"))
        if absent and isinstance(error, jinja2.UndefinedError):
            return InputError(
                f"{where} names the field '{absent[0]}', but {record.place} has only {fields}; correct one"
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
    raise TypeError(f"it gives {type(value).__name__}, where text is wanted")


def _lone_expression(source: str) -> str | None:
    """The expression of a source that is ``{{ expression }}`` and nothing else."""
    tokens = list(_ENVIRONMENT.lex(source))
    kinds = [kind for _, kind, _ in tokens]
    if kinds[:1] == ["variable_begin"] and kinds[-1:] == ["variable_end"] and kinds.count("variable_begin") == 1:
        return "".join(text for _, _, text in tokens[1:-1])
    return None
