"""The base of all files' shapes: pydantic models that name a wrong value in one line, written for people.

Read from a file, a model's strings are cleaned, except those of :data:`Exact` and :data:`Raw`. A run folder may come
from a stranger, so numbers are strict and finite. A class whose file people write by hand says ``extra="forbid"``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    SerializerFunctionWrapHandler,
    Strict,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from ensemble.common.files import LARGEST_NUMBER
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

LARGEST_FILE = 2**28
"""Bytes of a file with one object, and of a line: reading takes many times as much memory."""
_LONGEST_PLACE = 200  # a key of a stranger's file can be of any length
_CLEAN = {"clean": True}


class Schema(BaseModel):
    """Base of the classes that state a file's shape."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class SparseSchema(Schema):
    """Base of the classes of which a file has only the keys that were given; of the others it has all."""

    @model_serializer(mode="wrap")
    def _given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if name in self.model_fields_set}


def wrong(expected: str) -> PydanticCustomError:
    """The error for a value, from what it should be: ``wrong("a list of names")``."""
    return PydanticCustomError("expected", "{expected}", {"expected": expected})


def must(fits: Callable[[Any], bool], expected: str) -> AfterValidator:
    """Return a condition on a field as an annotation, with what the value should be."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise wrong(expected)
        return value

    return AfterValidator(check)


def _raw(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong("a text")
    return value


def _line(value: Any, info: ValidationInfo) -> str:
    return visible(_raw(value)) if info.context else _raw(value)


def _prose(value: Any, info: ValidationInfo) -> str:
    return visible(_raw(value), keep_lines=True) if info.context else _raw(value)


def _exact(value: Any) -> str:
    if not isinstance(value, str) or not is_usable(value):
        raise wrong("a text")
    return value


def is_usable(text: str) -> bool:
    """Whether a path or a prompt can have this text: JSON may have null characters, and halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _json(value: Any, info: ValidationInfo) -> Any:
    """A JSON value with clean strings and keys."""
    if not info.context:
        return value
    if isinstance(value, str):
        return visible(value, keep_lines=True)
    if isinstance(value, list):
        return [_json(item, info) for item in value]
    if isinstance(value, dict):
        return {visible(key): _json(item, info) for key, item in value.items()}
    return value if value is None or isinstance(value, bool) else _finite(value)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _finite(value: Any) -> Any:
    """None for a number that is not finite or is too large; such a ratio is unknown, and no reason to refuse a file."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if is_number and not -LARGEST_NUMBER <= value <= LARGEST_NUMBER else value


def _interval(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) == 2 and any(_finite(end) is None for end in value):
        # One end that is not known makes the interval unknown, if the other one is a number.
        return None if all(end is None or isinstance(end, int | float) for end in value) else value
    return value


Line = Annotated[str, PlainValidator(_line), WithJsonSchema({"type": "string"})]
"""A text that is shown on one line."""
Prose = Annotated[str, PlainValidator(_prose), WithJsonSchema({"type": "string"})]
"""A text that keeps its line breaks."""
Exact = Annotated[str, PlainValidator(_exact), WithJsonSchema({"type": "string"})]
"""A text that a program uses as it is, for example a path: it is not cleaned, and has no null character."""
Raw = Annotated[str, PlainValidator(_raw), WithJsonSchema({"type": "string"})]
"""A text as it is in the file, with any characters; what shows it cleans it, and what uses it checks it."""
Name = Annotated[Exact, must(lambda value: bool(value.strip()) and value.isprintable(), "a printable name")]
"""The name of a model: printable, so that it needs no cleaning."""
Names = Annotated[
    tuple[Name, ...],
    must(lambda names: 0 < len(set(names)) == len(names), "a list of different, printable names"),
    Field(json_schema_extra={"minItems": 1, "uniqueItems": True}),
]
"""The names of models, at least one, all different."""
Texts = Annotated[tuple[Prose, ...], BeforeValidator(_listed)]
"""A text or a list of texts; read as a tuple."""
Flag = Annotated[bool, Strict()]
Number = Annotated[float, Field(strict=True, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST_NUMBER)]
Positive = Annotated[int, Field(strict=True, ge=1, lt=2**31)]
"""A whole number of at least 1 that goes to libraries in C, for example a number of tokens."""
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Figure = Annotated[Number | None, BeforeValidator(_finite)]
"""A measured number; null where it is not known or not finite."""
Points = Annotated[Figure, Field(json_schema_extra={"unit": "points"})]
"""An accuracy or a difference of accuracies, 0 to 100; null where it is not known."""
Interval = Annotated[tuple[Number, Number] | None, BeforeValidator(_interval)]
"""``[low, high]``; null where it is not known."""
Json = Annotated[Any, PlainValidator(_json)]
"""Any JSON value, with clean strings."""

_Model = TypeVar("_Model", bound=Schema)


def validated(model: type[_Model], values: Any, place: str, way_out: str, *, clean: bool = True) -> _Model:
    """A parsed JSON value as a model; the InputError names the ``place``, and ends with ``way_out``.

    Strings are cleaned, except in a file whose texts are compared with those of other files.
    """
    try:
        return model.model_validate(values, context=_CLEAN if clean else None)
    except ValidationError as error:
        raise InputError(f"{place}: {first_fault(error, values)}; {way_out}") from None
    except RecursionError:  # writing and cleaning go less deep than parsing
        raise InputError(f"{place}: not usable JSON; {way_out}") from None


def first_fault(error: ValidationError, values: Any) -> str:
    """Return what is wrong with a parsed JSON value, as "choices[0].text should be a text"."""
    fault = error.errors(include_url=False, include_input=False)[0]
    path, kind = _path(fault["loc"], values), fault["type"]
    if kind == "missing":
        return f"{path} is missing"
    if kind == "extra_forbidden":
        return f"{path} is not a known key"
    if kind in ("value_error", "assertion_error"):
        return f"{path or 'it'}: {fault['ctx']['error']}"
    expected = _expected(kind, fault.get("ctx", {}))
    # A kind without words of our own: those of the library without their beginning, as in "Input should be 1 to 9".
    return f"{path or 'it'} should {f'be {expected}' if expected else fault['msg'].rpartition('should ')[2]}"


def read_json(path: Path, way_out: str) -> dict[str, Any]:
    """The one JSON object of a file, before its shape is known; InputError if the file is too large or has none."""
    _check_file(path, way_out)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path}: it is larger than {LARGEST_FILE >> 20} MB; {way_out}")
        # Tools on Windows write a byte order mark, which JSON does not allow.
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text at byte {error.start}; {way_out}") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    return parsed(text, str(path), way_out)


def read_lines(model: type[_Model], path: Path, way_out: str, *, clean: bool = True) -> Iterator[_Model]:
    """Read a file with a JSON object on each line, skipping empty lines; InputError if one has another shape."""
    _check_file(path, way_out)
    try:
        # In bytes, because a text file would also end lines at a lone carriage return.
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LARGEST_FILE + 1), b""), start=1):
                place = f"{path}:{number}"
                if len(line) > LARGEST_FILE:
                    raise InputError(f"{place}: it is larger than {LARGEST_FILE >> 20} MB; {way_out}")
                if line.strip():
                    values = parsed(_decoded(line, place, way_out), place, way_out)
                    yield validated(model, values, place, way_out, clean=clean)
    except OSError as error:
        raise _unreadable(path, error) from error


def parsed(text: str, place: str, way_out: str) -> dict[str, Any]:
    """The JSON object that a text holds; InputError if it holds something else."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        # A file of one object has many lines; of a line, the place has the number.
        line = f":{error.lineno}" if "\n" in text.strip() else ""
        raise InputError(f"{place}{line}: not JSON ({error.msg}); {way_out}") from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number with thousands of digits
        raise InputError(f"{place}: not usable JSON; {way_out}") from error
    if not isinstance(value, dict):
        raise InputError(f"{place}: should be a JSON object; {way_out}")
    return value


def written(model: Schema) -> dict[str, Any]:
    """Return a model as JSON holds it."""
    return model.model_dump(mode="json")


def _check_file(path: Path, way_out: str) -> None:
    try:
        # Reading one would wait for a writer, or never end.
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: it is a pipe or a device; {way_out}")
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read ({error.strerror}); check that it is a readable file")


def _decoded(line: bytes, place: str, way_out: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8 text at byte {error.start} of the line; {way_out}") from error


_EXPECTED = {
    "string_type": "a text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "tuple_type": "a list",
    "sequence_str": "a list",
    "is_instance_of": "a list",  # only a Sequence is checked so
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def _expected(kind: str, context: Mapping[str, Any]) -> str:
    """What a value should be, in words, from the library's kind of error; empty for a kind without words here."""
    if kind == "expected":
        return str(context["expected"])
    if kind in ("literal_error", "enum"):
        return str(context["expected"]).replace("'", "")
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        limit = next(iter(context.values()))
        words = {"greater_than_equal": "at least", "greater_than": "above", "less_than_equal": "at most"}
        return f"{words.get(kind, 'below')} {limit:g}"
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        return f"a list of {'at least' if kind == 'too_short' else 'at most'} {limit}"
    return _EXPECTED.get(kind, "")


def _path(loc: Sequence[str | int], values: Any) -> str:
    """Where a value is, as ``pairs[3].gap``, without steps that only the library knows, such as a union's part."""
    path, here = "", values
    for n, step in enumerate(loc):
        if isinstance(here, list | tuple) and isinstance(step, int) and step <= len(here):
            path, here = f"{path}[{step}]", here[step] if step < len(here) else None
        elif isinstance(here, Mapping) and (step in here or n == len(loc) - 1) and step != "[key]":
            path, here = f"{path}.{visible(str(step))}" if path else visible(str(step)), here.get(step)
    return shortened(path, _LONGEST_PLACE)
