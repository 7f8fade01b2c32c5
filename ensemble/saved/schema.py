"""The shape of ``ensemble.json``. It may come from a stranger, so a key that is not known here is refused."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from ensemble.common.pool_option import with_options
from ensemble.common.schema import Exact, Name, Positive, Schema, SparseSchema, must, wrong
from ensemble.models.served_task import ServedTask
from ensemble.models.spec import COMMIT, HUB_ID, options_of_models
from ensemble.servers.address import SavedServer

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGEST_WEIGHT = 1e300  # JSON has no infinity, but Python reads a number with many digits as one


def _weights(value: Any) -> tuple[float, ...] | Literal["perplexity"] | None:
    if value is None:
        return None
    if value == "perplexity":
        return "perplexity"
    listed = value if isinstance(value, list | tuple) else ()
    numbers = [each for each in listed if isinstance(each, int | float) and not isinstance(each, bool)]
    # They are normalised by their sum.
    if not numbers or len(numbers) < len(listed) or any(not 0 <= each <= _LARGEST_WEIGHT for each in numbers):
        raise wrong("null, perplexity, or a list of numbers of at least 0")
    if not math.fsum(numbers) > 0:
        raise wrong("a list with at least one number above 0")
    return tuple(map(float, numbers))


def _is_json(value: dict[str, Any]) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return False
    return True


Weights = Annotated[
    tuple[float, ...] | Literal["perplexity"] | None,
    PlainValidator(_weights),
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": {"type": "number", "minimum": 0}}, {"enum": ["perplexity", None]}]}
    ),
]
Object = Annotated[dict[str, Any], must(_is_json, "an object without NaN and infinity")]
Text = Annotated[Exact, must(bool, "a text that is not empty")]
Sha256 = Annotated[Exact, must(lambda value: bool(_SHA256.fullmatch(value)), "a SHA-256")]
HubId = Annotated[Exact, must(lambda value: bool(HUB_ID.fullmatch(value)), "an id like org/name")]
# A branch or tag can move to other weights after the ensemble was measured.
Commit = Annotated[Exact, must(lambda value: bool(COMMIT.fullmatch(value)), "a commit with all 40 digits")]


@with_options({name: each for name, each in options_of_models(remote=False).items() if each.goes.ensemble})
class SavedMember(SparseSchema, extra="forbid"):
    """A member: a model of the hub, a local one, or one behind a server, with its options."""

    name: Name
    """its name, different from those of the other members"""
    server: SavedServer | None = None
    """its server; such a member has no other keys than ``name``, ``chat_template`` and ``thinking``"""
    id: HubId | None = None
    """its id on the hub"""
    revision: Commit | None = None
    """its commit on the hub"""
    path: Exact | None = None
    """its folder or GGUF file, relative to this file"""
    files: dict[str, Sha256] = Field(default_factory=dict)
    """the SHA-256 of each file of a local member, by name"""
    quantization: Object | None = None
    """its quantization configuration, as transformers writes it"""

    @model_validator(mode="after")
    def _is_in_one_place(self) -> SavedMember:
        if sum(each is not None for each in (self.server, self.id, self.path)) != 1:
            raise wrong("a member with one of id, path and server")
        if self.server is not None and not self.model_fields_set <= {"name", "server", *options_of_models(remote=True)}:
            raise wrong("a member behind a server, with name, server, chat_template and thinking alone")
        if self.id is not None and self.revision is None:
            raise wrong("a hub member with its commit as revision")
        if self.path is not None and self.revision is not None:
            raise wrong("a local member without revision")
        # Without hashes a changed local model would be loaded, and nothing would tell.
        if (self.path is None) != (not self.files):
            raise wrong("a local member with the SHA-256 of each file in files, or a hub member without files")
        return self


class SavedDefaults(Schema, extra="forbid"):
    """The defaults of a text."""

    max_new_tokens: Positive | None = None
    """its limit; null for the program's default"""
    stop: tuple[Text, ...] = ()
    """the stop strings"""


class SavedEnsemble(Schema, extra="forbid"):
    """``ensemble.json``."""

    schema_version: Literal[1]
    """the version of this file's shape"""
    method: Exact = "unite"
    """a token-level or span-level method"""
    k: Positive = 10
    """candidates that each member brings to the union"""
    weights: Weights = None
    """a number for each member, ``perplexity`` for weights of each prompt, or null for equal ones"""
    options: Object = Field(default_factory=dict)
    """the method's options"""
    generation: SavedDefaults = SavedDefaults()
    """the defaults of a text"""
    task: ServedTask | None = None
    """the task of the run that chose the models; null if it is not known"""
    members: Annotated[tuple[SavedMember, ...], Field(min_length=1)]
    """the models, the primary first"""
