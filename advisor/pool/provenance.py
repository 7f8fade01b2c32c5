"""Where a result comes from: the command, the versions, the models' files. Enough to make it again."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from advisor.config import InferenceConfig
from advisor.pool.fingerprint import Identity
from advisor.pool.pool_file import Candidate
from advisor.servers.identity import ServerIdentity
from ensemble.models.spec import Checkpoint

_PACKAGES = ("unite-advisor", "torch", "transformers", "tokenizers", "sacrebleu", "scipy", "scikit-learn")


def of_run(
    command: str,
    seed: int,
    inference: InferenceConfig,
    candidates: Sequence[Candidate],
    identities: Mapping[str, Identity | ServerIdentity],
) -> dict[str, Any]:
    """``provenance`` of a run with models."""
    return {
        "command": command,
        "seed": seed,
        "versions": versions(),
        "engine": inference.engine,
        "machine": f"{platform.system()} {platform.machine()}",
        "device": inference.device,
        "dtype": inference.dtype,
        "chat_template": inference.chat_template,
        "models": {
            candidate.name: _model(candidate, identities[candidate.name], inference) for candidate in candidates
        },
    }


def of_numbers(command: str, path: Path) -> dict[str, Any]:
    """``provenance`` of a run on published or earlier numbers."""
    return {"command": command, "profiles": str(path), "versions": versions(), "models": {}}


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that can change a number."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a checkout that is not installed
            found[package] = "unknown"
    return found


def _model(candidate: Candidate, identity: Identity | ServerIdentity, inference: InferenceConfig) -> dict[str, Any]:
    if isinstance(identity, ServerIdentity):
        return identity.as_dict()
    # Whether code from the hub may run is left out on purpose: who runs a set from a result decides that anew.
    return {
        "path_or_id": candidate.checkpoint.path_or_id,
        "revision": identity.revision,
        "files": dict(identity.files),
        "dtype": identity.dtype,
        "device": candidate.device or inference.device,
        "chat_template": identity.chat_template,
        **(_options(candidate.checkpoint) if isinstance(candidate.checkpoint, Checkpoint) else {}),
    }


def _options(checkpoint: Checkpoint) -> dict[str, str]:
    """What few checkpoints have."""
    return {**checkpoint.sides.key(), **({} if checkpoint.gguf_file is None else {"gguf_file": checkpoint.gguf_file})}
