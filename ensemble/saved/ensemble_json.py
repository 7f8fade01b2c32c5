r"""``ensemble.json``: an ensemble's models and how they decode, as JSON. It holds no weights.

    {
      "schema_version": 1,
      "method": "unite", "k": 10, "weights": [0.5, 0.5], "options": {},
      "generation": {"max_new_tokens": 128, "stop": ["\n"]},
      "task": {"metric": "number", "extract": null, "template": {"question": "Question: {{question}}\nAnswer:"}},
      "members": [
        {"name": "a", "id": "org/a", "revision": "<commit>", "dtype": "bfloat16", "chat_template": "never"},
        {"name": "b", "path": "../models/b", "files": {"model.safetensors": "<SHA-256>"}, "dtype": "float32"},
        {"name": "c", "server": {"address": "openai:http://127.0.0.1:8000/v1#c", "tokenizer": "org/c"}}
      ]
    }

The file may come from a stranger, so every key is checked, and one that is not known here is refused.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, ValidationError, WithJsonSchema, model_validator

from ensemble.common.pool_option import given_by, with_options
from ensemble.common.schema import (
    Exact,
    Name,
    Positive,
    Schema,
    SparseSchema,
    first_fault,
    must,
    parsed,
    validated,
    wrong,
)
from ensemble.errors import InputError
from ensemble.methods import get_method
from ensemble.models.prompts import ServedTask
from ensemble.models.spec import COMMIT, HUB_ID, Checkpoint, EnsembleSpec, ModelSpec, absolute, options_of_models
from ensemble.servers.address import SavedServer, read_address

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGEST_WEIGHT = 1e300  # JSON has no infinity, but Python reads a number with many digits as one


def _weights(value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    listed = value if isinstance(value, list | tuple) else ()
    numbers = [each for each in listed if isinstance(each, int | float) and not isinstance(each, bool)]
    # They are normalised by their sum.
    if not numbers or len(numbers) < len(listed) or any(not 0 <= each <= _LARGEST_WEIGHT for each in numbers):
        raise wrong("null, or a list of numbers of at least 0")
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
    tuple[float, ...] | None,
    PlainValidator(_weights),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "number", "minimum": 0}}, {"type": "null"}]}),
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
    """its server; such a member has no keys of its files and its device"""
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
            raise wrong("a member behind a server, without options of local models")
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
    """a number for each member, or null for equal ones"""
    options: Object = Field(default_factory=dict)
    """the method's options"""
    generation: SavedDefaults = SavedDefaults()
    """the defaults of a text"""
    task: ServedTask | None = None
    """the task of the run that chose the models; null if it is not known"""
    members: Annotated[tuple[SavedMember, ...], Field(min_length=1)]
    """the models, the primary first"""


SCHEMA_VERSION = 1
_WAY_OUT = "save the ensemble again"


def to_json(spec: EnsembleSpec, folder: Path) -> str:
    """The content of ``ensemble.json`` in a folder; InputError if an option cannot be written as JSON."""
    generation = {"max_new_tokens": spec.max_new_tokens, "stop": spec.stop}
    generation = {key: value for key, value in generation.items() if value}
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "method": spec.method,
        "k": spec.k,
        "weights": spec.weights,
        "options": dict(spec.options),
        **({"generation": generation} if generation else {}),
        **({} if spec.task is None else {"task": spec.task.model_dump(mode="json")}),
        "members": [member_to_json(member, folder) for member in spec.members],
    }
    try:
        saved = SavedEnsemble.model_validate(content)
    except ValidationError as error:
        reason = first_fault(error, content)
        raise InputError(f"the ensemble cannot be written as JSON ({reason}); leave that option out") from error
    return f"{json.dumps(saved.model_dump(exclude_unset=True), indent=2)}\n"


def member_to_json(member: ModelSpec, folder: Path) -> dict[str, Any]:
    """A member as an entry of ``members``, in a file that is in a folder."""
    checkpoint, entry = member.checkpoint, {"chat_template": "auto", **member.options("ensemble")}
    if checkpoint.is_remote:
        server = {name: value for name, value in checkpoint.as_dict().items() if value is not None}
        if checkpoint.tokenizer is not None and Checkpoint(checkpoint.tokenizer).is_local:
            server["tokenizer"] = _path_from(folder, checkpoint.tokenizer)
        return {"name": member.name, "server": server, **entry}
    if checkpoint.is_local:
        place: dict[str, Any] = {"path": _path_from(folder, checkpoint.path_or_id), "files": dict(member.files)}
    else:
        place = {"id": checkpoint.path_or_id, "revision": checkpoint.revision}
    if member.quantization is not None:
        # All of it, because it may be another one than a line of a pool file can name.
        config: Any = member.quantization
        entry["quantization"] = config if isinstance(config, Mapping) else config.to_dict()
    return {"name": member.name, **place, "dtype": "auto", **entry}


def _path_from(folder: Path, model: str) -> str:
    """A model's path: relative if it is in the folder or beside it, so that both can be moved together."""
    path, base = absolute(Path(model)), absolute(folder)
    # Not for the root folder, below which every path would be "beside".
    beside = path.is_relative_to(base.parent) and base.parent != Path(base.anchor)
    return Path(os.path.relpath(path, base)).as_posix() if beside else str(path)


def from_json(text: str, source: str, folder: Path | None) -> EnsembleSpec:
    """Read an ``ensemble.json``, whose local paths start at ``folder``; InputError if a key cannot be used.

    Without a folder there can be no local paths, as on the hub.
    """
    values = parsed(text, source, _WAY_OUT)
    if "schema_version" not in values:
        raise InputError(f"{source}: not a saved ensemble, because schema_version is missing; {_WAY_OUT}")
    if values["schema_version"] != SCHEMA_VERSION:
        raise InputError(
            f"{source}: schema_version should be {SCHEMA_VERSION}, which this version reads; use a newer unite-advisor"
        )
    saved = validated(SavedEnsemble, values, source, _WAY_OUT, clean=False)
    names = [member.name for member in saved.members]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{source}: members: two members have the name {duplicate!r}; names must differ")
    if isinstance(saved.weights, tuple) and len(saved.weights) != len(names):
        raise InputError(f"{source}: weights should be {len(names)} numbers, one for each member; {_WAY_OUT}")
    try:
        get_method(saved.method, ("token", "span"))
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return EnsembleSpec(
        tuple(member_of(member, f"{source}: members[{n}]", folder) for n, member in enumerate(saved.members)),
        saved.method,
        saved.k,
        saved.weights,
        saved.options,
        saved.generation.max_new_tokens,
        saved.generation.stop,
        saved.task,
    )


def member_of(member: SavedMember, source: str, folder: Path | None) -> ModelSpec:
    """The model of an entry of ``members``; ``folder`` as in :func:`from_json`; InputError if it cannot be used."""
    given = {"chat_template": "auto", **given_by(member)}
    if member.server is not None:
        given = given_by(member.server) | given
        tokenizer = given.get("tokenizer")
        # An ensemble on the hub has no folder, so its tokenizers are on the hub, too.
        if tokenizer is not None and folder is not None and (folder / tokenizer).is_dir():
            given["tokenizer"] = str(absolute(folder / tokenizer))
        return ModelSpec.read(read_address(member.server.address, f"{source}.server"), given, source)
    if member.path is not None:
        if folder is None:
            raise InputError(
                f"{source}.path: an ensemble on the hub cannot have a local member; its owner must push that model"
            )
        checkpoint = Checkpoint(str(absolute(folder / member.path)))
    else:
        checkpoint = Checkpoint(str(member.id), member.revision)
        # A folder of this name would be loaded in place of the model whose commit is written here.
        if checkpoint.is_local:
            raise InputError(
                f"{source}: the current directory has a folder {member.id} that would be used instead of the model of "
                "the hub; work elsewhere"
            )
    spec = ModelSpec.read(checkpoint, {"dtype": "auto", **given}, source)
    return replace(spec, files=member.files)
