"""Which models, where they are, how they are loaded, and how they decode together: plain values, without torch.

Each option of the pool file is a field here, or in :mod:`ensemble.servers.address` for models behind servers.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, ValidationError, WithJsonSchema

from ensemble.common.files import exists
from ensemble.common.pool_option import (
    Budget,
    Destination,
    PoolOption,
    StatedOption,
    YesNo,
    dumped,
    filled,
    options_of,
    with_options,
)
from ensemble.common.schema import Exact, Schema, first_fault, must, wrong
from ensemble.errors import InputError
from ensemble.models.choices import DTYPES, GGUF_SUFFIX, QUANTIZATIONS, ChatTemplate, Reads
from ensemble.models.prompts import ServedTask, TemplateText
from ensemble.models.thinking import ThinkingTags
from ensemble.servers.address import ServerAddress

THINK = "think"
"""The option that all token-level methods have: ``apart`` lets each member think alone before they answer together."""
OWN_SETTINGS = ("prompt", "shots", "system", "temperature", "top_p", "max_new_tokens")
"""The options that say how a model is asked, where it is asked in another way than the others."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")


def quantization_config(quantization: str) -> dict[str, Any]:
    """The configuration for transformers as JSON has it, so that a saved ensemble holds all of it."""
    if quantization == "8bit":
        return {"quant_method": "bitsandbytes", "load_in_8bit": True}
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        # The settings of the QLoRA paper: values spaced for normally distributed weights, and scales rounded as well.
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bfloat16",
    }


def _rounding(config: object) -> str | None:
    if not isinstance(config, Mapping):
        return None
    return "4bit" if config.get("load_in_4bit") else "8bit" if config.get("load_in_8bit") else None


def _tags(value: object) -> ThinkingTags:
    tags = ThinkingTags.of_option(value) if isinstance(value, str) else value
    if not isinstance(tags, ThinkingTags):
        raise wrong("two different tags with three dots between them: OPENING...CLOSING")
    return tags


def _is_inside(file: str) -> bool:
    # The file must not lead out of the model's folder.
    return file.lower().endswith(GGUF_SUFFIX) and ".." not in file and not file.startswith("/")


DType = Annotated[str, must(lambda value: value in DTYPES, f"one of {', '.join(DTYPES)}")]
Quantization = Annotated[
    object,
    must(lambda value: value in QUANTIZATIONS, f"one of {', '.join(QUANTIZATIONS)}"),
    AfterValidator(quantization_config),
    PlainSerializer(_rounding),
    WithJsonSchema({"type": "string", "enum": list(QUANTIZATIONS)}),
]
Tags = Annotated[ThinkingTags, PlainValidator(_tags, json_schema_input_type=str), PlainSerializer(attrgetter("option"))]
GgufFile = Annotated[Exact, must(_is_inside, f"the name of a file of the model that ends in {GGUF_SUFFIX}")]
Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Shots = Annotated[int, Field(ge=0, le=1000)]
Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1)]
NewTokens = Annotated[int, Field(ge=1, le=10_000_000)]
# Ray shares one GPU between several models, but a model cannot have one GPU and a half.
Gpus = Annotated[Dollars, must(lambda value: value <= 1 or value % 1 == 0, "a whole number, or a part of one GPU")]


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of an encoder-decoder model."""

    source: Annotated[Exact | None, PoolOption()] = None
    """the language that a translation model reads, in its tokenizer's codes (`eng_Latn`)"""
    target: Annotated[Exact | None, PoolOption()] = None
    """the language that a translation model writes (`deu_Latn`); required if it writes several"""
    reads: Annotated[Reads | None, PoolOption()] = None
    """what an encoder reads: the task's `source` or the whole `prompt`; the default is the `source`, if there is one"""

    def key(self) -> dict[str, str]:
        """The options that are set, by name; empty for a causal model."""
        return dumped(self, "result")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The place of a model's files.

    Attributes:
        path_or_id: A local folder or GGUF file, or an id on the hub.
        revision: A commit, branch or tag on the hub; None for its main branch.
        sides: Languages of an encoder-decoder model.
    """

    path_or_id: str
    revision: str | None = None
    # A result has no consent: a user who loads a set from it decides that again.
    trust_remote_code: Annotated[YesNo, PoolOption(result=False)] = False
    """whether code of the hub is run; needs a revision that is a full commit"""
    sides: Sides = Sides()
    gguf_file: Annotated[GgufFile | None, PoolOption()] = None
    """the GGUF file of a repository of the hub"""
    # Of a checkpoint and of a server's address, so that a type checker tells them apart by it.
    is_remote: ClassVar[Literal[False]] = False
    can_decode: ClassVar[Literal[True]] = True

    @property
    def is_local(self) -> bool:
        """Whether it is a path on this machine."""
        # A path that does not exist is local too, so that a wrong path is not looked for on the hub.
        return self.path_or_id.startswith((".", "/", "~")) or exists(self.path_or_id)

    @property
    def absolute(self) -> Checkpoint:
        """The same checkpoint; a local one with its absolute path, for processes with another working directory."""
        if not self.is_local:
            return self
        return replace(self, path_or_id=str(absolute(Path(self.path_or_id))))

    @property
    def location(self) -> str:
        """The first argument of ``from_pretrained`` of transformers."""
        if not self.is_local:
            return self.path_or_id
        path = Path(self.path_or_id).expanduser()
        # transformers takes a GGUF file as a folder and a name.
        return str(path.parent if self._is_gguf_path else path)

    @property
    def gguf(self) -> str | None:
        """The name of its GGUF file within ``location``; None for a model in another format."""
        return Path(self.path_or_id).name if self._is_gguf_path else self.gguf_file

    @property
    def config_file(self) -> str:
        """The file within ``location`` that holds its configuration."""
        return self.gguf or "config.json"

    @property
    def name(self) -> str:
        """The last part of its path or id, or of its file."""
        last = (self.gguf or self.location).rstrip("/").rsplit("/", 1)[-1]
        return Path(last).stem if self.gguf else last

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of ``from_pretrained`` of transformers."""
        # Both always, because transformers asks on the terminal where trust_remote_code is missing.
        options = {"revision": self.revision or "main", "trust_remote_code": self.trust_remote_code}
        return options if self.gguf is None else {**options, "gguf_file": self.gguf}

    @property
    def _is_gguf_path(self) -> bool:
        if not self.is_local or not self.path_or_id.lower().endswith(GGUF_SUFFIX):
            return False
        return not Path(self.path_or_id).expanduser().is_dir()


@dataclass(frozen=True, slots=True)
class Resources:
    """What a model requests from a node of a cluster, under Ray's names. A value of None follows from its device."""

    num_cpus: Annotated[int | None, Field(ge=1), PoolOption(ensemble=False, result=False)] = None
    """cores of a node of a cluster, and threads that the model computes with; 1 by default"""
    num_gpus: Annotated[Gpus | None, PoolOption(ensemble=False, result=False)] = None
    """GPUs of a node of a cluster; several models can share one. The default is 1 for a model on `cuda`, else 0"""


@dataclass(frozen=True, slots=True)
class Price:
    """What a model's tokens cost, in dollars per million, at least 0."""

    price_in: float  # those of prompts
    price_out: float  # generated ones

    def of(self, prompt_tokens: float, tokens: float) -> float | None:
        """Dollars of some responses, by their tokens; None without ``prompt_tokens``, which are then not known."""
        return (self.price_in * prompt_tokens + self.price_out * tokens) / 1e6 if prompt_tokens else None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model, and how to load it: a line of a pool file, a member of a set, or a model that a user names.

    An option that is None is left to the options of a command.

    Attributes:
        checkpoint: Where its files are, or the server that it is behind.
        name: Its name in messages and reports.
        quantization: A quantization configuration of transformers (``BitsAndBytesConfig(...)``, ...), or its content as
            JSON has it; None to load the weights as they are, and for GGUF files.
        thinking_budget: For a server's model None until it is loaded: its address has it.
        files: SHA-256 of each file of a saved local model, by name; empty if they are not checked.
        place: The file and line that names it, for messages; may be empty.
    """

    checkpoint: Checkpoint | ServerAddress
    name: str
    device: Annotated[Exact | None, PoolOption(ensemble=False)] = None
    """where the model runs, for this model only: `cpu`, `cuda:1`, ..."""
    dtype: Annotated[DType | None, PoolOption()] = None
    """the numeric type of the weights, for this model only"""
    chat_template: Annotated[ChatTemplate | None, PoolOption(any_model=True)] = None
    """whether prompts go through a chat template, for this model only"""
    # Neither a configuration nor a dict has a hash.
    quantization: Annotated[Quantization | None, PoolOption(key=True)] = field(default=None, hash=False)
    """rounds the weights while they are loaded, on a CUDA GPU"""
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    resources: Resources = Resources()
    price_in: Annotated[Dollars | None, PoolOption(ensemble=False, result=False, any_model=True)] = None
    """what a million tokens of prompts cost, in dollars"""
    price_out: Annotated[Dollars | None, PoolOption(ensemble=False, result=False, any_model=True)] = None
    """what a million tokens of responses cost, in dollars; given together with `price_in`"""
    thinking: Annotated[Tags | None, PoolOption(any_model=True)] = None
    """the tags around what the model thinks before it answers, as `OPENING...CLOSING`, where it has other ones than the
    known families"""
    thinking_budget: Annotated[Budget | None, PoolOption(key=True)] = None
    """the most tokens that the model thinks"""
    # Production makes its prompts by the templates of the task; see :class:`ensemble.models.prompts.ServedTask`.
    prompt: Annotated[TemplateText | None, PoolOption(ensemble=False, key=True, any_model=True)] = None
    """its own prompt: a file with a template over the fields of a question and `prompt`, the task's prompt"""
    shots: Annotated[Shots | None, PoolOption(ensemble=False, key=True, any_model=True)] = None
    """the worked examples in its prompts, where it has another number than the task"""
    system: Annotated[TemplateText | None, PoolOption(key=True, any_model=True)] = None
    """a text of the system before each of its prompts"""
    temperature: Annotated[Temperature | None, PoolOption(key=True, any_model=True)] = None
    """the temperature of its responses where it writes alone; 0 takes the likeliest token"""
    top_p: Annotated[TopP | None, PoolOption(key=True, any_model=True)] = None
    """its draws are among the likeliest tokens that together reach this probability"""
    max_new_tokens: Annotated[NewTokens | None, PoolOption(key=True, any_model=True)] = None
    """the most tokens of its responses, in place of the task's limit; a set has that of its primary"""
    # Two lines may name the same model.
    place: str = field(default="", compare=False)

    @classmethod
    def read(cls, checkpoint: Checkpoint | ServerAddress, given: Mapping[str, Any], place: str) -> ModelSpec:
        """A model with the options ``given`` by name, its ``name`` too; ``place`` is the file and line, for messages.

        Raises:
            InputError: The name cannot be shown, two options exclude each other, or one needs another.
        """
        checkpoint = filled(checkpoint, given)
        spec = cls(checkpoint, given.get("name", checkpoint.name), place=place)
        own = _options_beside(remote=spec.is_remote)
        spec = filled(spec, {name: value for name, value in given.items() if name in own})
        if problem := spec._problem():
            raise InputError(problem, of=place)
        return spec

    def _problem(self) -> str | None:
        if not self.name.strip() or not self.name.isprintable():
            return f"the name {self.name!r} must be printable and not empty"
        if (self.price_in is None) != (self.price_out is None):
            missing = "price_in" if self.price_in is None else "price_out"
            return f"give both prices, in dollars per million tokens: {missing}= is missing"
        if self.checkpoint.is_remote:
            return self.checkpoint.problem()
        if self.quantization is not None and self.checkpoint.gguf is not None:
            return "a GGUF file defines its own quantization; leave quantization out"
        return None

    def options(self, destination: Destination) -> dict[str, Any]:
        """The options that are set and go somewhere, as JSON has them; files hold those of a server in its address."""
        own = _options_beside(remote=self.is_remote)
        set_here = {name: value for name, value in dumped(self, destination).items() if name in own}
        is_apart = self.is_remote and destination != "key"
        return set_here if is_apart else {**dumped(self.checkpoint, destination), **set_here}

    @property
    def loaded(self) -> ModelSpec:
        """What decides what is loaded: equal for lines that differ in their names, prompts and settings alone."""
        if self.checkpoint.is_remote:
            return self
        return ModelSpec(self.checkpoint, "", self.device, self.dtype, quantization=self.quantization, files=self.files)

    @property
    def rounding(self) -> str | None:
        """How its weights are rounded, one of QUANTIZATIONS; None for another way, and for weights as they are."""
        return _rounding(self.quantization)

    @property
    def price(self) -> Price | None:
        """What its tokens cost; None if that is not known."""
        if self.price_in is None or self.price_out is None:
            return None
        return Price(self.price_in, self.price_out)

    @property
    def is_remote(self) -> bool:
        """Whether it is behind a server."""
        return self.checkpoint.is_remote

    @property
    def can_decode(self) -> bool:
        """Whether it can be decoded token by token: its model or its tokenizer is loaded here."""
        return self.checkpoint.can_decode

    def is_trusted(self, trusted: Collection[str]) -> bool:
        """Whether a user names it as one that may run its code: by its name, its id or its folder.

        A folder may be relative, also to the file that names the model.
        """
        if self.checkpoint.is_remote:
            return False
        path_or_id, revision = self.checkpoint.path_or_id, self.checkpoint.revision
        if not {self.name, path_or_id, f"{path_or_id}@{revision}"}.isdisjoint(trusted):
            return True
        if not self.checkpoint.is_local:
            return False
        starts = (Path(), Path(self.place).parent)
        folders = {absolute(start / Path(each).expanduser()).resolve() for each in trusted for start in starts}
        return absolute(Path(path_or_id)).resolve() in folders

    def check_consent(self, trusted: Collection[str] | None, allowed: Collection[str] | None, place: str) -> None:
        """Raise an InputError unless the user lets it run its code, or lets its server have the prompts and the key.

        ``trusted`` is as in :meth:`is_trusted`, None for a user who trusts all; ``place`` names the file and the model.
        """
        if self.checkpoint.is_remote:
            self.checkpoint.check_consent(allowed, place)
        elif self.checkpoint.trust_remote_code and trusted is not None and not self.is_trusted(trusted):
            at = f"@{self.checkpoint.revision}" if self.checkpoint.revision else ""
            raise InputError(
                f"{place} runs the code in {self.checkpoint.path_or_id}{at}; read that code, and then add "
                f"--trust-remote-code {shlex.quote(self.name)} (in Python trust_remote_code=[{self.name!r}])"
            )

    @property
    def weights(self) -> Checkpoint:
        """Its checkpoint, for code that loads it or reads its files; InputError if it is behind a server."""
        if self.checkpoint.is_remote:
            raise InputError("it is behind a server, and this needs the files of its weights", of=self.name)
        return self.checkpoint

    @property
    def tokenizer(self) -> Checkpoint:
        """The place of its tokenizer; InputError if it is behind a server, and its line has no ``tokenizer=``."""
        if not self.checkpoint.is_remote:
            return self.checkpoint
        if (tokenizer := self.checkpoint.tokenizer) is None:
            raise InputError(
                "a model behind a server needs its tokenizer to be decoded token by token; add "
                "tokenizer=FOLDER_OR_ID to its line",
                of=self.name,
            )
        checkpoint = Checkpoint(tokenizer)
        if checkpoint.is_local:
            return checkpoint
        hub_id, _, revision = tokenizer.partition("@")
        return Checkpoint(hub_id, revision or None)


def options_of_models(*, remote: bool) -> dict[str, StatedOption]:
    """The options of a model that is loaded, or of one behind a server, by name."""
    return {**_options_beside(remote=remote), **options_of(ServerAddress if remote else Checkpoint)}


def _options_beside(*, remote: bool) -> dict[str, StatedOption]:
    """Those of the model itself, beside its checkpoint or its address."""
    return {name: option for name, option in options_of(ModelSpec).items() if option.goes.any_model or not remote}


def resolve_device(device: str) -> str:
    """The device with this name; for ``auto`` CUDA if torch sees a GPU, else MPS, else the CPU."""
    if device != "auto":
        return device
    import torch  # not at the top: plain values are read where nothing is computed

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


@dataclass(frozen=True, slots=True)
class EnsembleSpec:
    """Models and how they decode together; see :class:`ensemble.Ensemble`.

    Attributes:
        members: The models, the primary first.
        method: A token-level or span-level method.
        k: Candidates that each member brings to the union.
        weights: One number for each member; None for equal ones.
        options: The method's own options.
        max_new_tokens: The default limit of a text; None for the program's default.
        stop: The default stop strings.
        task: The task of the run that chose them; None if it is not known.
    """

    members: tuple[ModelSpec, ...]
    method: str = "unite"
    k: int = 10
    weights: tuple[float, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    task: ServedTask | None = None

    def with_loading(self, **options: Any) -> EnsembleSpec:
        """The same ensemble with other options of :class:`ModelSpec` for all members; None keeps a member's own."""
        given = {name: value for name, value in options.items() if value is not None}
        return replace(self, members=tuple(replace(member, **given) for member in self.members))

    def with_decoding(
        self,
        *,
        method: str | None = None,
        k: int | None = None,
        weights: Sequence[float] | None = None,
        options: Mapping[str, Any] | None = None,
        max_new_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> EnsembleSpec:
        """The same models with another way to decode; None keeps the present value."""
        # Options belong to one method, except for one that all token-level methods have.
        kept = {name: self.options[name] for name in self.options if method in (None, self.method) or name == THINK}
        given = None if weights is None else tuple(weights)
        return replace(
            self,
            method=method or self.method,
            k=self.k if k is None else k,
            weights=self.weights if given is None else given,
            options={**kept, **(options or {})},
            max_new_tokens=max_new_tokens or self.max_new_tokens,
            stop=self.stop if stop is None else tuple(stop),
        )


def absolute(path: Path) -> Path:
    """An absolute path. Links stay, because files in the hub's cache have their ``.gguf`` ending only in the link."""
    return Path(os.path.normpath(path.expanduser().absolute()))


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
    prompt: Exact | None = None
    """its own prompt: a file with a template over the fields of a question and `prompt`, the task's prompt"""
    temperature: Literal["default"] | Temperature | None = None
    """the temperature of its responses where it writes alone; 0 takes the likeliest token. Of a model behind a server:
    `default` sends none, so that the server's own one applies"""


def read_options(words: Sequence[str], place: str, *, remote: bool) -> dict[str, Any]:
    """The options of a line (``key=value``), for :meth:`ensemble.models.spec.ModelSpec.read`, or an InputError.

    No message repeats what may be a key.
    """
    served = ("name", *options_of_models(remote=True))
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
    if given.get("temperature") == "default":
        if not remote:
            raise InputError("temperature=default is for a model behind a server; give a number", of=place)
        del given["temperature"]
        given["left_out"] = (*given.get("left_out", ()), "temperature")
    return given
