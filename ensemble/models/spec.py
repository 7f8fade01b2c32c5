"""Where a model comes from: a hub id, a local folder or a GGUF file, checked before anything is loaded from it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ensemble.errors import InputError
from ensemble.models import gguf

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ChatTemplate = Literal["auto", "always", "never"]
"""Whether prompts go through a tokenizer's chat template: where it has one, in every case, or not at all."""
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
"""What a model's weights can be held in; ``auto`` is as they are stored."""
Reads = Literal["source", "prompt"]
"""What an encoder reads where there are both: the bare source of a prompt, or the prompt that the others continue."""


@dataclass(frozen=True, slots=True)
class Sides:
    """What may be said of the two sides of an encoder-decoder model.

    Attributes:
        source: The language that it reads, as its tokenizer writes it (``eng_Latn``); the tokenizer's own where None.
        target: The language that it writes (``deu_Latn``); needed where it writes many.
        reads: What its encoder reads; None for the bare source.
    """

    source: str | None = None
    target: str | None = None
    reads: Reads | None = None

    def key(self) -> dict[str, str]:
        """What is said, by option; empty for every causal model."""
        said = {"source": self.source, "target": self.target, "reads": self.reads}
        return {option: value for option, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's place, and how to read it.

    Attributes:
        path_or_id: A local folder or GGUF file, or an id on the hub.
        revision: A commit, branch or tag on the hub; None for its main branch.
        trust_remote_code: Whether code from the hub may run. It needs a revision that is a commit.
        sides: Languages of an encoder-decoder model.
        gguf_file: Which file of a hub's model, or of a folder, to take, where that is one of the format GGUF.
    """

    path_or_id: str
    revision: str | None = None
    trust_remote_code: bool = False
    sides: Sides = Sides()
    gguf_file: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether it names a place on this machine."""
        return self.path_or_id.startswith((".", "/", "~")) or Path(self.path_or_id).expanduser().exists()

    @property
    def absolute(self) -> Checkpoint:
        """The same from wherever it is read: a local one with its path from the root."""
        if not self.is_local:
            return self
        return replace(self, path_or_id=str(absolute(Path(self.path_or_id))))

    @property
    def location(self) -> str:
        """What transformers is asked for."""
        if not self.is_local:
            return self.path_or_id
        path = Path(self.path_or_id).expanduser()
        return str(path.parent if self._names_file else path)

    @property
    def gguf(self) -> str | None:
        """The file of its location that is all of it, where it is one of the format GGUF."""
        return Path(self.path_or_id).name if self._names_file else self.gguf_file

    @property
    def config_file(self) -> str:
        """The file of its location that has its configuration."""
        return self.gguf or "config.json"

    @property
    def name(self) -> str:
        """The last part of its path or id, or of its file's."""
        last = (self.gguf or self.location).rstrip("/").rsplit("/", 1)[-1]
        return Path(last).stem if self.gguf else last

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments that every ``from_pretrained`` of it needs."""
        said = {"revision": self.revision or "main", "trust_remote_code": self.trust_remote_code}
        return said if self.gguf is None else {**said, "gguf_file": self.gguf}

    @property
    def _names_file(self) -> bool:
        if not self.is_local or not self.path_or_id.lower().endswith(gguf.SUFFIX):
            return False
        return not Path(self.path_or_id).expanduser().is_dir()


def absolute(path: Path) -> Path:
    """A path from the root. Links stay: the hub's cache has files that only by theirs are known to be GGUF."""
    return Path(os.path.normpath(path.expanduser().absolute()))


def check(checkpoint: Checkpoint) -> PreTrainedConfig:
    """Make sure that a checkpoint can be loaded, reading no weights; its configuration.

    Raises:
        InputError: No such folder, a folder that is neither a causal language model nor an encoder-decoder one, weights
            only as pickle, a hub that cannot be reached or does not know the id, languages for a causal model, a GGUF
            file that cannot be read.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if checkpoint.gguf is not None:
        gguf.check_name(checkpoint.gguf)
    if checkpoint.is_local and checkpoint.gguf is not None:
        gguf.check_file(Path(checkpoint.location, checkpoint.gguf))
    elif checkpoint.is_local:
        _check_folder(Path(checkpoint.location))
    # A damaged GGUF file surfaces as errors of many kinds, a damaged config.json as one of two.
    unusable = (OSError, ValueError) if checkpoint.gguf is None else Exception
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(checkpoint.location, **checkpoint.options)
    except unusable as error:
        raise InputError(f"{checkpoint.path_or_id}: {_way_out(checkpoint, error)}") from error
    if is_encoder_decoder(config):
        return config
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and "AutoModelForCausalLM" not in (
        getattr(config, "auto_map", None) or {}
    ):
        raise InputError(
            f"{checkpoint.path_or_id}: a model of type {config.model_type} is neither a causal language model nor an "
            "encoder-decoder one, and only those can be members"
        )
    if said := checkpoint.sides.key():
        raise InputError(
            f"{checkpoint.path_or_id}: a model of type {config.model_type} has no encoder; leave "
            f"{' and '.join(said)} out"
        )
    return config


def is_encoder_decoder(config: PreTrainedConfig) -> bool:
    """Whether a configuration is that of a text-to-text model of transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

    both_sides = getattr(config, "is_encoder_decoder", False)
    return bool(both_sides) and config.model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file, not a model's folder" if folder.exists() else "there is no such folder"
        raise InputError(f"{folder}: {what}; give the folder that holds config.json, or a hub id like org/name")
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no config.json in it, so it is no model of transformers; give a model's folder")
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        if pickles:
            raise InputError(
                f"{folder}: its weights are only there as pickle ({pickles[0]}), which can run code when read; "
                "save them as safetensors with model.save_pretrained(FOLDER)"
            )
        raise InputError(f"{folder}: no weights (*.safetensors) in it; the download may be incomplete")
    if not (folder / "tokenizer.json").is_file() and not (folder / "tokenizer.model").is_file():
        slow = sorted(
            path.name for pattern in ("*.spm", "*.bpe.model", "spiece.model") for path in folder.glob(pattern)
        )
        if slow:
            raise InputError(
                f"{folder}: its tokenizer has no fast form (only {slow[0]}, no tokenizer.json), which the alignment "
                "needs; choose a model that has one, as NLLB and T5 do"
            )
        raise InputError(f"{folder}: no tokenizer.json in it; save the model's tokenizer there too")


def _way_out(checkpoint: Checkpoint, error: Exception) -> str:
    if checkpoint.gguf is not None and (checkpoint.is_local or not isinstance(error, OSError)):
        return (
            f"its GGUF file {checkpoint.gguf} cannot be used ({type(error).__name__}: {first_line(error)}); it may be "
            "damaged, or of a kind that transformers does not read: take the model's safetensors"
        )
    if checkpoint.is_local:
        return f"its config.json cannot be used ({first_line(error)}); is the folder a complete model?"
    if isinstance(error, ValueError):
        return first_line(error)
    return (
        "not found on the hub, or the hub cannot be reached; check the id, the network and a login "
        "(hf auth login) for gated models, or give a local folder"
    )


def first_line(error: BaseException) -> str:
    """What an error says, as one line."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
