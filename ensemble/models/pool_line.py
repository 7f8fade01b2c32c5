"""The options of a line of a pool file: how they are read, and what is said of those that cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ValidationError

from ensemble.common.pool_option import options_of, with_options
from ensemble.common.schema import Exact, Schema, first_fault
from ensemble.errors import InputError
from ensemble.models.spec import options_of_models
from ensemble.servers.address import ServerAddress

_SECRET = "key_env"
"""The option whose value is not shown: a user may have written the key itself."""


_OF_SERVERS = {
    name: each._replace(help=f"of a model behind a server: {each.help}")
    for name, each in options_of(ServerAddress).items()
}


@with_options({**_OF_SERVERS, **options_of_models(remote=False)})
class PoolLine(Schema):
    """A line of a pool file: a model, and the options of its kind."""

    model: str
    """a hub id (`@revision` may follow), a folder or a GGUF file, or `openai:URL#MODEL` for a model behind a server"""
    name: Exact | None = None
    """the name of the model; names differ. The default is the last part of the folder, the id or the server's name"""
    temperature: Literal["default"] | None = None
    """of a model behind a server: `default` sends none, so that the server's own one applies"""


def read_options(words: Sequence[str], place: str, *, remote: bool) -> dict[str, Any]:
    """The options of a line (``key=value``), for :meth:`ensemble.models.spec.ModelSpec.read`, or an InputError.

    No message repeats what may be a key.
    """
    served = ("name", *options_of_models(remote=True), "temperature")
    known = served if remote else ("name", *options_of_models(remote=False))
    names, texts = ", ".join(known), {"model": words[0]}
    for word in words[1:]:
        key, equals, text = word.partition("=")
        if remote and not equals:
            # The word is not quoted: it may be a key that lacks its key_env=.
            raise InputError(f"an option has no =; write key=value, for {names}", of=place)
        if not equals or key not in known:
            if key in served and equals:
                raise InputError(
                    f"{key} is an option of a model behind a server; the options of this one are {names}", of=place
                )
            shown, of = (key, "model behind a server") if remote else (word, "model")
            raise InputError(f"{shown!r} is not an option of a {of}; the options are {names}", of=place)
        if key in texts:
            raise InputError(f"{key} is given twice", of=place)
        texts[key] = text
    try:
        line = PoolLine.model_validate(texts)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        shown = "" if key == _SECRET else f", not {texts[key]!r}"
        raise InputError(f"{first_fault(error, texts)}{shown}", of=place) from None
    given = {key: getattr(line, key) for key in texts if key != "model"}
    if given.pop("temperature", None) is not None:
        given["left_out"] = (*given.get("left_out", ()), "temperature")
    return given
