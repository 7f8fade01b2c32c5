"""The options of a line of a pool file: their names, values and meaning.

Importing this module imports pydantic: import it where a line is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import PlainValidator, ValidationError, WithJsonSchema, model_validator

from ensemble.common.schema import Schema, first_fault, must, wrong
from ensemble.errors import InputError
from ensemble.models.gguf import SUFFIX
from ensemble.models.spec import CHAT_TEMPLATES, DTYPES, QUANTIZATIONS, READS, Price
from ensemble.models.thinking import ThinkingTags
from ensemble.servers.address import ServerAddress, split_address

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT = WithJsonSchema({"type": "string"})
_SECRET = "key_env"
"""The option whose value is not shown: a user may have written the key itself."""


def _one_of(values: Sequence[str]) -> Any:
    schema = WithJsonSchema({"type": "string", "enum": list(values)})
    return Annotated[str, must(lambda value: value in values, f"one of {', '.join(values)}"), schema]


def _flag(text: str) -> bool:
    # A text, because bool("false") would be True.
    if text not in ("true", "false"):
        raise wrong("true or false")
    return text == "true"


def _tags(text: str) -> ThinkingTags:
    if (tags := ThinkingTags.of_option(text)) is None:
        raise wrong("two different tags with three dots between them: OPENING...CLOSING")
    return tags


def _is_word(text: str) -> bool:
    return re.fullmatch(r"[a-z]{1,20}", text) is not None


def _number(fits: Callable[[float], bool], expected: str) -> PlainValidator:
    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and fits(number)):
            raise wrong(expected)
        return number

    return PlainValidator(read)


def _whole(low: int, high: int) -> PlainValidator:
    def read(text: str) -> int:
        # int() alone also accepts 1_000 and the digits of other scripts.
        if not text.isascii() or not text.isdigit() or len(text) > len(str(high)) or not low <= int(text) <= high:
            raise wrong(f"a whole number from {low} to {high}")
        return int(text)

    return PlainValidator(read)


Dollars = Annotated[
    float,
    _number(lambda value: value >= 0, "dollars per million tokens, at least 0"),
    WithJsonSchema({"type": "number", "minimum": 0}),
]
AboveZero = Annotated[
    float,
    _number(lambda value: value > 0, "a number above 0"),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0}),
]
Cores = Annotated[
    float,
    _number(lambda value: value >= 1 and value % 1 == 0, "a whole number, at least 1"),
    WithJsonSchema({"type": "integer", "minimum": 1}),
]
# Ray shares one GPU between several models, but a model cannot have one GPU and a half.
Gpus = Annotated[
    float,
    _number(lambda value: 0 <= value <= 1 or (value > 1 and value % 1 == 0), "a whole number, or a part of one GPU"),
    WithJsonSchema({"type": "number", "minimum": 0}),
]

GgufFile = Annotated[str, must(lambda name: name.lower().endswith(SUFFIX), f"the name of a file that ends in {SUFFIX}")]
Tokenizer = Annotated[
    str, must(lambda text: bool(text.strip()) and text.isprintable(), "the folder or hub id of a tokenizer, printable")
]
Variable = Annotated[
    str,
    must(
        lambda text: _VARIABLE.fullmatch(text) is not None,
        "the name of the environment variable that holds the key, not the key",
    ),
]
Label = Annotated[str, must(lambda text: bool(text.strip()), "a label for the version of the model")]
Budget = Annotated[int, _whole(0, 10_000_000), WithJsonSchema({"type": "integer"})]


class AnyLine(Schema):
    """The options of every line."""

    name: str | None = None
    """the name of the model; names differ. The default is the last part of the folder, the id or the server's name"""
    chat_template: _one_of(CHAT_TEMPLATES) | None = None  # type: ignore[valid-type]
    """whether prompts go through a chat template, for this model only"""
    price_in: Dollars | None = None
    """what a million tokens of prompts cost, in dollars"""
    price_out: Dollars | None = None
    """what a million tokens of responses cost, in dollars; given together with `price_in`"""
    thinking: Annotated[ThinkingTags, PlainValidator(_tags), _TEXT] | None = None
    """the tags around what the model thinks before it answers, as `OPENING...CLOSING`, where it has other ones than the
    known families"""

    @model_validator(mode="after")
    def _both_prices(self) -> AnyLine:
        if (self.price_in is None) != (self.price_out is None):
            missing = "price_in" if self.price_in is None else "price_out"
            raise wrong(f"a line with both prices, in dollars per million tokens: {missing}= is missing")
        return self

    @property
    def price(self) -> Price | None:
        """What the tokens cost; None if the line does not say it."""
        if self.price_in is None or self.price_out is None:
            return None
        return Price(self.price_in, self.price_out)


class LoadedLine(AnyLine):
    """The options of a model that is loaded."""

    dtype: _one_of(DTYPES) | None = None  # type: ignore[valid-type]
    """the numeric type of the weights, for this model only"""
    device: str | None = None
    """where the model runs, for this model only: `cpu`, `cuda:1`, ..."""
    trust_remote_code: Annotated[bool, PlainValidator(_flag), WithJsonSchema({"type": "boolean"})] = False
    """whether code of the hub is run; needs a revision that is a full commit"""
    source: str | None = None
    """the language that a translation model reads, in its tokenizer's codes (`eng_Latn`)"""
    target: str | None = None
    """the language that a translation model writes (`deu_Latn`)"""
    reads: _one_of(READS) | None = None  # type: ignore[valid-type]
    """what an encoder reads: the task's `source` or the whole `prompt`; the default is the `source`, if there is one"""
    gguf_file: GgufFile | None = None
    """the GGUF file of a repository of the hub"""
    quantization: _one_of(QUANTIZATIONS) | None = None  # type: ignore[valid-type]
    """rounds the weights while they are loaded, on a CUDA GPU"""
    num_cpus: Cores | None = None
    """cores of a node of a cluster, and threads that the model computes with"""
    num_gpus: Gpus | None = None
    """GPUs of a node of a cluster; several models can share one"""
    thinking_budget: Budget | None = None
    """the most tokens that the model thinks"""


class ServerLine(AnyLine):
    """The options of a model behind a server."""

    tokenizer: Tokenizer | None = None
    """of a model behind a server: its tokenizer, a folder or a hub id, with which it can be decoded with others"""
    key_env: Variable | None = None
    """of a model behind a server: the environment variable that holds the key"""
    revision: Label | None = None
    """of a model behind a server: your own label for its version"""
    timeout: AboveZero | None = None
    """of a model behind a server: seconds of a request and its response; 300 by default"""
    concurrency: Annotated[int, _whole(1, 1000), WithJsonSchema({"type": "integer"})] | None = None
    """of a model behind a server: requests at a time, 1 to 1000; 64 by default"""
    requests_per_minute: AboveZero | None = None
    """of a model behind a server: requests that start in a minute; no limit by default"""
    thinking_budget: Budget | None = None
    """the most tokens that the model thinks"""
    reasoning_effort: Annotated[str, must(_is_word, "a word such as low, medium or high")] | None = None
    """of a model behind a server: how much it thinks, in the server's words; instead of `thinking_budget`"""
    temperature: _one_of(("default",)) | None = None  # type: ignore[valid-type]
    """of a model behind a server: `default` sends none, so that the server's own one applies"""
    left_out: Annotated[tuple[str, ...], PlainValidator(lambda text: tuple(text.split(","))), _TEXT] = ()
    """of a model behind a server: fields that are not sent; those that a server refuses are found without it"""

    @model_validator(mode="after")
    def _one_limit_of_thinking(self) -> ServerLine:
        if self.thinking_budget is not None and self.reasoning_effort is not None:
            raise wrong("a line with thinking_budget= or reasoning_effort=, not both")
        if self.reasoning_effort is not None and self.tokenizer is not None:
            # The server would write it into the prompt by its chat template, which is applied here.
            raise wrong("a line without tokenizer= or with thinking_budget=: a server takes no effort for token ids")
        return self


class PoolLine(LoadedLine, ServerLine):
    """A line of a pool file: a model, and the options of its kind."""

    model: str
    """a hub id (`@revision` may follow), a folder or a GGUF file, or `openai:URL#MODEL` for a model behind a server"""


Line = TypeVar("Line", LoadedLine, ServerLine)


def read_options(shape: type[Line], words: Sequence[str], place: str) -> Line:
    """Read the options of a line.

    Args:
        shape: The kind of the model.
        words: The options, as ``key=value``.
        place: File and line, for messages.

    Raises:
        InputError: A word is not an option, an option is given twice, or has another value. No message repeats what
            may be a key.
    """
    of_server, names = issubclass(shape, ServerLine), ", ".join(shape.model_fields)
    texts: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if of_server and not equals:
            # The word is not quoted: it may be a key that lacks its key_env=.
            raise InputError(f"an option has no =; write key=value, for {names}", of=place)
        if not equals or key not in shape.model_fields:
            shown, of = (key, "model behind a server") if of_server else (word, "model")
            if not of_server and key in ServerLine.model_fields:
                raise InputError(
                    f"{key} is an option of a model behind a server; the options of this one are {names}", of=place
                )
            raise InputError(f"{shown!r} is not an option of a {of}; the options are {names}", of=place)
        if key in texts:
            raise InputError(f"{key} is given twice", of=place)
        texts[key] = text
    try:
        return shape.model_validate(texts)
    except ValidationError as error:
        key = str(next(iter(error.errors()[0]["loc"]), _SECRET))
        shown = "" if key == _SECRET else f", not {texts[key]!r}"
        raise InputError(f"{first_fault(error, texts)}{shown}", of=place) from None


def read_server_line(words: Sequence[str], place: str) -> tuple[ServerAddress, ServerLine]:
    """Read the line of a model behind a server: its address, then its options.

    Raises:
        InputError: The address or an option is wrong.
    """
    line = read_options(ServerLine, words[1:], place)
    url, model = split_address(words[0], place)
    options = line.model_dump(exclude={*AnyLine.model_fields, "temperature"}, exclude_none=True)
    if line.temperature is not None:
        options["left_out"] = (*line.left_out, "temperature")
    address = ServerAddress(url, model, **options)
    if address.is_openai and address.thinking_budget is not None:
        raise InputError("OpenAI's servers take no thinking_budget=; give reasoning_effort=", of=place)
    return address, line


def saved_address(values: Mapping[str, object], place: str) -> ServerAddress:
    """Read what :meth:`ensemble.servers.address.ServerAddress.as_dict` gives.

    Args:
        values: Untrusted: a user may have edited ``result.json``.
        place: File and entry, for messages.

    Raises:
        InputError: A value is missing or wrong.
    """
    options = [f"{key}={value}" for key, value in values.items() if key != "address" and value is not None]
    return read_server_line([str(values.get("address")), *options], place)[0]
