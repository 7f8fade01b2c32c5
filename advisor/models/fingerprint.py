"""What decides a model's responses: the hub's commit or the hashes of its files, its numeric type, its template."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from advisor.models.fit import need_of_model
from advisor.models.server_model import ServerIdentity, identify_server
from ensemble.common.files import remembered_sha256
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.models.choices import DTYPES, ChatTemplate
from ensemble.models.hub import commit_of
from ensemble.models.model_files import check, files_of, is_encoder_decoder
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import why_not_decodable

WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
"""How the names of files with weights end."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What decides the responses of a model that this program loads; see :class:`ServerIdentity` for a server's."""

    # The model with its commit or the hashes of its files, its numeric type, its device and the use of its template.
    spec: ModelSpec
    encodes: bool = False  # whether it is an encoder-decoder model

    @property
    def weights(self) -> str:
        """What identifies the weights, and how they are asked; equal for copies of a model, in any numeric type."""
        key = self.key()
        hashes = sorted(digest for name, digest in self.spec.files.items() if name.endswith(WEIGHTS))
        # Without a known name of weights, the model is compared by all its files.
        key["files"] = hashes or key["files"]
        return json.dumps({name: key[name] for name in key if name not in ("dtype", "device", "quantization")})

    def key(self) -> dict[str, Any]:
        """The model's part of the cache key of a response."""
        # Entries that only some models have come last, so that responses of older versions are found again.
        checkpoint, device = self.spec.weights, (self.spec.device or "cpu").partition(":")[0]
        key: dict[str, Any] = {
            "hub_id": None if checkpoint.revision is None else checkpoint.path_or_id,
            "revision": checkpoint.revision,
            "files": dict(self.spec.files),
            "dtype": self.spec.dtype,
            "chat_template": self.spec.chat_template,
        }
        if self.encodes:
            key["encoder"] = checkpoint.sides.key()
        if checkpoint.revision is not None and checkpoint.gguf is not None:
            key["gguf_file"] = checkpoint.gguf
        # Devices add up in another order, so their responses may differ in a token.
        if device != "cpu":
            key["device"] = device
        key |= self.spec.options("key")
        if "thinking_budget" in key:
            # Without a budget the tags only part the responses that are stored.
            key["thinking"] = None if self.spec.thinking is None else self.spec.thinking.option
        return key

    def as_dict(self) -> dict[str, Any]:
        """As ``result.json`` has it."""
        place = {"path_or_id": self.spec.checkpoint.path_or_id, "revision": self.spec.checkpoint.revision}
        return {**place, "files": dict(self.spec.files), **self.spec.options("result")}


def identify(
    entry: ModelSpec,
    dtype: str,
    chat_template: ChatTemplate,
    device: str = "cpu",
    *,
    settings: Settings = Settings(),  # it cannot be changed
    keep_hashes: bool = True,
) -> Fingerprint | ServerIdentity:
    """Find out what decides a candidate's responses; weights are only hashed, a server is asked once."""
    template = entry.chat_template or chat_template
    checkpoint = entry.checkpoint
    try:
        if checkpoint.is_remote:
            identity = identify_server(dataclasses.replace(entry, chat_template=template), settings)
            own = files_of(identity.spec.tokenizer) if identity.spec.can_decode else ()
            # The folder of a local tokenizer may also have weights, which do not count.
            hashes = {
                path.name: remembered_sha256(path, keep=keep_hashes) for path in own if path.suffix not in WEIGHTS
            }
            return dataclasses.replace(identity, tokenizer=hashes)
        config = check(checkpoint)
        files = {path.name: remembered_sha256(path, keep=keep_hashes) for path in files_of(checkpoint)}
        commit = None if checkpoint.is_local else commit_of(checkpoint)
    except (InputError, OSError) as error:
        raise InputError(f"{entry.place}: {error}") from error
    dtype = entry.dtype or dtype
    # "auto" is no type: responses in float32 must not be found again after the files changed to bfloat16.
    if dtype == "auto":
        from ensemble.models.memory import stored_dtype

        need = None if checkpoint.gguf is not None else need_of_model(entry, dtype, device)
        dtype = stored_dtype(config) if need is None else need.dtype
    # The commit decides the files of a hub model, so the key does not need their hashes.
    spec = dataclasses.replace(
        entry,
        checkpoint=dataclasses.replace(checkpoint, revision=commit),
        files=files if commit is None else {},
        dtype=dtype,
        device=device,
        chat_template=template,
    )
    return Fingerprint(spec, is_encoder_decoder(config))


def model_of(entry: ModelSpec, model_id: Fingerprint | ServerIdentity, dtype: str) -> ModelSpec:
    """A candidate as a model to load; an InputError says that its server gives whole texts only."""
    if isinstance(model_id, ServerIdentity):
        if model_id.lacks is not None:
            raise InputError(model_id.lacks, of=entry.name)
        if not model_id.spec.can_decode:
            raise InputError(why_not_decodable(entry.name))
        return model_id.spec
    # The commit from the start of the run, because a branch may move while other candidates run; and the type in the
    # key of its responses, because another node of a cluster would choose another one for `auto`.
    spec = dataclasses.replace(model_id.spec, files=entry.files)
    return spec if spec.dtype in DTYPES else dataclasses.replace(spec, dtype=entry.dtype or dtype)
