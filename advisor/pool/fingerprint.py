"""What decides a model's responses: the hub's commit or the hashes of its files, its numeric type, its template."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from advisor.config import InferenceConfig
from advisor.pool.pool_file import Candidate
from advisor.response_cache import ResponseCache
from advisor.servers.address import Remote, not_here
from advisor.servers.identity import RemoteIdentity, identify_remote
from ensemble.errors import InputError
from ensemble.models.check import check, is_encoder_decoder
from ensemble.models.fingerprint import files_of
from ensemble.models.hub import commit_of
from ensemble.models.spec import Checkpoint, ModelSpec, Sides


@dataclass(frozen=True, slots=True)
class Identity:
    """What decides a model's responses.

    Attributes:
        hub_id: The hub's name of the model; None for a local folder.
        revision: The hub's commit; None for a local folder.
        files: Name and SHA-256 of a local model's files.
        dtype: The numeric type that it is run in.
        chat_template: Whether its prompts go through a chat template.
        sides: How it is asked where it has an encoder; None for a causal model.
        gguf_file: Which file of the hub's model it is, where that is one of the format GGUF.
    """

    hub_id: str | None
    revision: str | None
    files: tuple[tuple[str, str], ...]
    dtype: str
    chat_template: str
    sides: Sides | None = None
    gguf_file: str | None = None

    def key(self) -> dict[str, Any]:
        """As part of a response's key."""
        encoder = {} if self.sides is None else {"encoder": self.sides.key()}
        file = {} if self.gguf_file is None else {"gguf_file": self.gguf_file}
        return {
            "hub_id": self.hub_id,
            "revision": self.revision,
            "files": dict(self.files),
            "dtype": self.dtype,
            "chat_template": self.chat_template,
            **encoder,
            **file,
        }


def identify(candidate: Candidate, inference: InferenceConfig, store: ResponseCache) -> Identity | RemoteIdentity:
    """Find out what decides a candidate's responses, reading no weights but to hash them.

    Raises:
        InputError: The candidate cannot be used; names its line in the pool file.
    """
    template = candidate.chat_template or inference.chat_template
    if isinstance(candidate.checkpoint, Remote):
        try:
            return identify_remote(candidate.checkpoint, chat=template != "never")
        except InputError as error:
            raise InputError(f"{candidate.place}: {error}") from None
    return _identify_local(candidate, candidate.checkpoint, template, inference, store)


def _identify_local(
    candidate: Candidate, checkpoint: Checkpoint, template: str, inference: InferenceConfig, store: ResponseCache
) -> Identity:
    try:
        config = check(checkpoint)
        files = tuple((path.name, store.sha256(path)) for path in files_of(checkpoint))
        commit = None if checkpoint.is_local else commit_of(checkpoint)
    except (InputError, OSError) as error:
        raise InputError(f"{candidate.place}: {error}") from error
    dtype = candidate.dtype or inference.dtype
    if dtype == "auto":
        dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    sides = checkpoint.sides if is_encoder_decoder(config) else None
    if commit is None:
        return Identity(None, None, files, dtype, template, sides)
    return Identity(checkpoint.path_or_id, commit, (), dtype, template, sides, checkpoint.gguf)


def model_of(candidate: Candidate, identity: Identity | RemoteIdentity, inference: InferenceConfig) -> ModelSpec:
    """A candidate as it is to be loaded: its own options, and the run's where it has none.

    Raises:
        InputError: It is behind a server.
    """
    if isinstance(candidate.checkpoint, Remote) or isinstance(identity, RemoteIdentity):
        raise InputError(not_here(candidate.name))
    # The commit that was found at the beginning: a branch may move while other candidates are run.
    revision = identity.revision or candidate.checkpoint.revision
    return ModelSpec(
        dataclasses.replace(candidate.checkpoint, revision=revision),
        candidate.name,
        candidate.device or inference.device,
        candidate.dtype or inference.dtype,
        candidate.chat_template or inference.chat_template,
    )
