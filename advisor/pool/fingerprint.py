"""What decides a model's responses: the hub's commit or the hashes of its files, its numeric type, its template."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from advisor.pool.fit import need_of_model
from advisor.pool.resources import kind_of
from advisor.servers.identity import ServerIdentity, identify_server
from ensemble.common.files import remembered_sha256
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.models.check import check, is_encoder_decoder
from ensemble.models.hub import commit_of
from ensemble.models.model_files import files_of
from ensemble.models.spec import DTYPES, ChatTemplate, ModelSpec, Sides
from ensemble.servers.address import why_not_decodable

WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
"""How the names of files with weights end."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What decides the responses of a model that this program loads; see :class:`ServerIdentity` for a server's.

    Attributes:
        hub_id: The model's id on the hub; None for a local model.
        revision: The commit on the hub; None for a local model.
        files: Name and SHA-256 of each file of a local model.
        dtype: The numeric type that it runs in.
        device: The kind of device that it runs on: ``cpu``, ``cuda``, ...
        chat_template: Whether its prompts go through a chat template.
        sides: The languages of an encoder-decoder model; None for a causal model.
        gguf_file: The GGUF file of a hub model, if the model is in this format.
        quantization: How its weights are rounded, one of QUANTIZATIONS; None for weights as they are stored.
        thinking: The most tokens that it thinks, and the tags between which it thinks where a user names them; None
            for no limit.
    """

    hub_id: str | None
    revision: str | None
    files: tuple[tuple[str, str], ...]
    dtype: str
    chat_template: str
    sides: Sides | None = None
    gguf_file: str | None = None
    device: str = "cpu"
    quantization: str | None = None
    thinking: tuple[int, str | None] | None = None

    @property
    def weights(self) -> tuple[object, ...]:
        """What identifies the weights, and how they are asked; equal for copies of a model, in any numeric type."""
        hashes = sorted(digest for name, digest in self.files if name.endswith(WEIGHTS))
        # Without a known name of weights, the model is compared by all its files.
        files = tuple(hashes) if hashes else self.files
        return self.hub_id, self.revision, self.gguf_file, files, self.chat_template, self.sides, self.thinking

    def key(self) -> dict[str, Any]:
        """The model's part of the cache key of a response."""
        # New entries appear only for the models that have them, so that responses of older versions are found again.
        encoder = {} if self.sides is None else {"encoder": self.sides.key()}
        file = {} if self.gguf_file is None else {"gguf_file": self.gguf_file}
        # Devices add up in another order, so their responses may differ in a token.
        device = {} if self.device == "cpu" else {"device": self.device}
        rounded = {} if self.quantization is None else {"quantization": self.quantization}
        budget = {} if self.thinking is None else dict(zip(("thinking_budget", "thinking"), self.thinking, strict=True))
        return {
            "hub_id": self.hub_id,
            "revision": self.revision,
            "files": dict(self.files),
            "dtype": self.dtype,
            "chat_template": self.chat_template,
            **encoder,
            **file,
            **device,
            **rounded,
            **budget,
        }


def identify(
    entry: ModelSpec,
    dtype: str,
    chat_template: ChatTemplate,
    device: str = "cpu",
    *,
    settings: Settings = Settings(),  # it cannot be changed
    keep_hashes: bool = True,
) -> Fingerprint | ServerIdentity:
    """Find out what decides a candidate's responses. Weights are only read to hash them.

    Args:
        entry: The candidate.
        dtype: The numeric type for an entry that names none.
        chat_template: The use of chat templates for an entry that does not set it.
        device: Where it runs, not ``auto``.
        settings: How it will be asked; a server is asked so once.
        keep_hashes: Whether hashes of files may be written, so that they need not be computed again.

    Raises:
        InputError: The candidate cannot be used; the message names its line in the pool file.
    """
    template = entry.chat_template or chat_template
    checkpoint = entry.checkpoint
    try:
        if checkpoint.is_remote:
            identity = identify_server(checkpoint, entry.name, template, settings)
            return dataclasses.replace(identity, tokenizer=_tokenizer_files(identity, keep_hashes))
        config = check(checkpoint)
        files = tuple((path.name, remembered_sha256(path, keep=keep_hashes)) for path in files_of(checkpoint))
        commit = None if checkpoint.is_local else commit_of(checkpoint)
    except (InputError, OSError) as error:
        raise InputError(f"{entry.place}: {error}") from error
    dtype, kind = entry.dtype or dtype, device.partition(":")[0]
    # "auto" is no type: responses in float32 must not be found again after the files changed to bfloat16.
    if dtype == "auto":
        from ensemble.models.numeric_type import stored_dtype

        need = None if checkpoint.gguf is not None else need_of_model(entry, dtype, device)
        dtype = stored_dtype(config) if need is None else need.dtype
    sides, rounded = checkpoint.sides if is_encoder_decoder(config) else None, kind_of(entry.quantization)
    thinking = None
    if entry.thinking_budget is not None:
        # Without a budget the tags only part the responses that are stored.
        thinking = entry.thinking_budget, None if entry.thinking is None else entry.thinking.option
    found = Fingerprint(None, None, files, dtype, template, sides, None, kind, rounded, thinking)
    if commit is None:
        return found
    # The commit decides the files of a hub model, so the key does not need their hashes.
    return dataclasses.replace(
        found, hub_id=checkpoint.path_or_id, revision=commit, files=(), gguf_file=checkpoint.gguf
    )


def _tokenizer_files(identity: ServerIdentity, keep_hashes: bool) -> dict[str, str]:
    """The hashes of a local tokenizer's files, by name; its folder may also have weights, which do not count."""
    if not identity.decodes:
        return {}
    files = files_of(ModelSpec(identity.address, "").tokenizer)
    return {path.name: remembered_sha256(path, keep=keep_hashes) for path in files if path.suffix not in WEIGHTS}


def model_of(
    entry: ModelSpec, model_id: Fingerprint | ServerIdentity, device: str, dtype: str, chat_template: ChatTemplate
) -> ModelSpec:
    """A candidate as a model to load: on a device, and with the entry's own values, or else with those of the run.

    Raises:
        InputError: The model is behind a server that gives whole texts only.
    """
    checkpoint, template = entry.checkpoint, entry.chat_template or chat_template
    if checkpoint.is_remote or isinstance(model_id, ServerIdentity):
        if not isinstance(model_id, ServerIdentity) or not model_id.decodes:
            if isinstance(model_id, ServerIdentity) and model_id.lacks is not None:
                raise InputError(model_id.lacks, of=entry.name)
            raise InputError(why_not_decodable(entry.name))
        return dataclasses.replace(entry, checkpoint=model_id.address, chat_template=model_id.chat_template)
    # The commit from the start of the run, because a branch may move while other candidates run.
    checkpoint = dataclasses.replace(checkpoint, revision=model_id.revision or checkpoint.revision)
    # The type in the key of its responses, because another node of a cluster would choose another one for `auto`.
    dtype = model_id.dtype if model_id.dtype in DTYPES else entry.dtype or dtype
    return dataclasses.replace(entry, checkpoint=checkpoint, device=device, dtype=dtype, chat_template=template)
