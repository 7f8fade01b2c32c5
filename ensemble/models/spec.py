"""Which models, where they are, how they are loaded, and how they decode together: plain values, without torch."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ensemble.common.files import exists
from ensemble.errors import InputError
from ensemble.models import gguf
from ensemble.models.thinking import ThinkingTags
from ensemble.servers.address import ServerAddress

if TYPE_CHECKING:
    from ensemble.models.served_task import ServedTask

ChatTemplate = Literal["auto", "always", "never"]
"""Whether prompts go through a tokenizer's chat template. ``auto``: if the tokenizer has one."""
CHAT_TEMPLATES = ("auto", "always", "never")
DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")
"""The numeric types of weights; ``auto`` is the stored one, or float32 where the device lacks that or is slow in it."""
QUANTIZATIONS = ("4bit", "8bit")
"""How weights can be rounded while they are loaded; see :mod:`advisor.pool.resources`."""
Reads = Literal["source", "prompt"]
"""What an encoder reads: the bare source of a prompt, or the same prompt that the other members continue."""
READS = ("source", "prompt")
THINK = "think"
"""The option that all token-level methods have: ``apart`` lets each member think alone before they answer together."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Sourced:
    r"""A prompt for models that continue a text, together with the bare text for models with an encoder.

    ``Sourced("English: Good morning\nGerman:", "Good morning")``

    Attributes:
        prompt: What causal models continue.
        source: What encoder-decoder models read.
    """

    prompt: str
    source: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation, for members with a chat template and for those without one.

    Attributes:
        exchanges: What the user said and what the answer was, oldest first.
        prompt: What the user says now.
    """

    exchanges: tuple[tuple[str, str], ...]
    prompt: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """What a chat template gets."""
        said = [text for exchange in self.exchanges for text in exchange]
        return [
            {"role": "assistant" if number % 2 else "user", "content": text}
            for number, text in enumerate((*said, self.prompt))
        ]

    @property
    def text(self) -> str:
        """One text to continue, where no chat template is used: each prompt, its answer, and a blank line."""
        # As demonstrations are written: models that only continue texts know this form.
        return "".join(f"{_followed(*exchange).rstrip()}\n\n" for exchange in self.exchanges) + self.prompt


def _followed(prompt: str, answer: str) -> str:
    """A prompt and its answer, with white space between them."""
    return prompt + ("" if prompt[-1:].isspace() or answer[:1].isspace() else " ") + answer


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of an encoder-decoder model.

    Attributes:
        source: The language that it reads, as its tokenizer writes it (``eng_Latn``); None for the tokenizer's own.
        target: The language that it writes (``deu_Latn``); required if the model writes several languages.
        reads: What its encoder reads; None for the bare source.
    """

    source: str | None = None
    target: str | None = None
    reads: Reads | None = None

    def key(self) -> dict[str, str]:
        """The options that are set, by name; empty for a causal model."""
        options = {"source": self.source, "target": self.target, "reads": self.reads}
        return {option: value for option, value in options.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The place of a model's files.

    Attributes:
        path_or_id: A local folder or GGUF file, or an id on the hub.
        revision: A commit, branch or tag on the hub; None for its main branch.
        trust_remote_code: Whether code from the hub may run. It needs a revision that is a commit.
        sides: Languages of an encoder-decoder model.
        gguf_file: The GGUF file of a hub model or folder, if the model is in this format.
    """

    path_or_id: str
    revision: str | None = None
    trust_remote_code: bool = False
    sides: Sides = Sides()
    gguf_file: str | None = None
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
        if not self.is_local or not self.path_or_id.lower().endswith(gguf.SUFFIX):
            return False
        return not Path(self.path_or_id).expanduser().is_dir()


@dataclass(frozen=True, slots=True)
class Resources:
    """What a model requests from a node of a cluster, under Ray's names. A value of None follows from its device.

    Attributes:
        num_cpus: Cores, and threads that the model computes with: a whole number, 1 if None.
        num_gpus: GPUs: a whole number, or a part of one GPU. If None, 1 for a model on ``cuda``, else 0.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What a model's tokens cost, in dollars per million, at least 0.

    Attributes:
        price_in: Tokens of prompts.
        price_out: Generated tokens.
    """

    price_in: float
    price_out: float

    def of(self, prompt_tokens: float, tokens: float) -> float | None:
        """Dollars of some responses, by their tokens; None without ``prompt_tokens``, which are then not known."""
        return (self.price_in * prompt_tokens + self.price_out * tokens) / 1e6 if prompt_tokens else None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model, and how to load it: a line of a pool file, a member of a set, or a model that a user names.

    Attributes:
        checkpoint: Where its files are, or the server that it is behind.
        name: Its name in messages and reports.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``, ...; see :func:`resolve_device`. None for the device
            that the options of a command name, or else ``auto``.
        dtype: One of DTYPES; None as above. For GGUF files ``auto`` is float32.
        chat_template: Whether its prompts go through the tokenizer's chat template; None as above.
        quantization: A quantization configuration of transformers (``BitsAndBytesConfig(...)``, ...), or its content as
            JSON has it; None to load the weights as they are, and for GGUF files.
        files: SHA-256 of each file of a saved local model, by name; empty if they are not checked.
        resources: What it requests from a node of a cluster.
        price: What its tokens cost; None if that is not known.
        thinking: How it marks its thinking; None for the known forms.
        thinking_budget: The most tokens that it thinks, at least 0; None for no limit but that of the text, and for a
            server's model until it is loaded: its address has it.
        place: The file and line that names it, for messages; may be empty.
    """

    checkpoint: Checkpoint | ServerAddress
    name: str
    device: str | None = None
    dtype: str | None = None
    chat_template: ChatTemplate | None = None
    # Neither a configuration nor a dict has a hash.
    quantization: object | None = field(default=None, hash=False)
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    resources: Resources = Resources()
    price: Price | None = None
    thinking: ThinkingTags | None = None
    thinking_budget: int | None = None
    # Two lines may name the same model.
    place: str = field(default="", compare=False)

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

        Args:
            trusted: Values of ``--trust-remote-code``. A folder may be relative, also to the file that names the model.
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

    def check_trust(self, trusted: Collection[str], place: str) -> None:
        """Check that the user lets it run the code in its own files, if a file asks for that.

        Args:
            trusted: See :meth:`is_trusted`.
            place: The file and the model, for the message.

        Raises:
            InputError: It would run code, and the user does not name it.
        """
        if self.checkpoint.is_remote or not self.checkpoint.trust_remote_code or self.is_trusted(trusted):
            return
        at = f"@{self.checkpoint.revision}" if self.checkpoint.revision else ""
        raise InputError(
            f"{place} runs the code in {self.checkpoint.path_or_id}{at}; read that code, and then add "
            f"--trust-remote-code {shlex.quote(self.name)} (in Python trust_remote_code=[{self.name!r}])"
        )

    @property
    def weights(self) -> Checkpoint:
        """Its checkpoint, for code that loads it or reads its files.

        Raises:
            InputError: It is behind a server.
        """
        if self.checkpoint.is_remote:
            raise InputError("it is behind a server, and this needs the files of its weights", of=self.name)
        return self.checkpoint

    @property
    def tokenizer(self) -> Checkpoint:
        """The place of its tokenizer.

        Raises:
            InputError: It is behind a server, and its line has no ``tokenizer=``.
        """
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
        weights: One number for each member; ``perplexity`` for weights that each prompt decides; None for equal ones.
        options: The method's own options.
        max_new_tokens: The default limit of a text; None for the program's default.
        stop: The default stop strings.
        task: The task of the run that chose them; None if it is not known.
    """

    members: tuple[ModelSpec, ...]
    method: str = "unite"
    k: int = 10
    weights: tuple[float, ...] | Literal["perplexity"] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    task: ServedTask | None = None

    def with_loading(
        self,
        *,
        device: str | None = None,
        dtype: str | None = None,
        chat_template: ChatTemplate | None = None,
        quantization: object | None = None,
    ) -> EnsembleSpec:
        """The same ensemble with other ways to load every member; None keeps the member's own value."""
        changes = {"device": device, "dtype": dtype, "chat_template": chat_template, "quantization": quantization}
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        return replace(self, members=tuple(replace(member, **given) for member in self.members))

    def with_decoding(
        self,
        *,
        method: str | None = None,
        k: int | None = None,
        weights: Sequence[float] | Literal["perplexity"] | None = None,
        options: Mapping[str, Any] | None = None,
        max_new_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> EnsembleSpec:
        """The same models with another way to decode; None keeps the present value."""
        # Options belong to one method, except for one that all token-level methods have.
        kept = {name: self.options[name] for name in self.options if method in (None, self.method) or name == THINK}
        given = weights if weights is None or isinstance(weights, str) else tuple(weights)
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
