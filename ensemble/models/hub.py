"""Requests to the Hugging Face hub before anything is loaded from it.

Without network, the libraries retry the request for every file for half a minute. So one request checks whether the hub
has a model or a data set. If the hub does not answer, earlier downloads are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ensemble.errors import InputError, UniteError, first_line
from ensemble.models import gguf
from ensemble.models.hub_request import TOKEN_REFUSED, info_of, pinned, told
from ensemble.models.model_files import cached_file, file_of, weight_names, weights_fault
from ensemble.models.spec import COMMIT, Checkpoint

_REFUSALS = {
    401: TOKEN_REFUSED,
    403: "the hub does not allow this token to write; use a token with write access, or another id",
}


def check_on_hub(checkpoint: Checkpoint) -> None:
    """Raise an InputError if a model has no supported weights, or if no hub answers and there is no download."""
    info = info_on_hub(checkpoint, checkpoint.config_file)
    if info is None:
        return
    name = checkpoint.path_or_id
    names = sorted(sibling.rfilename for sibling in info.siblings or ())
    gguf_files = ", ".join(file for file in names if file.endswith(gguf.SUFFIX))
    # Before the safetensors: a repository may have both, and the user named the file.
    if checkpoint.gguf is not None:
        if checkpoint.gguf not in names:
            raise InputError(f"it has no file {checkpoint.gguf}, but {gguf_files or 'no GGUF file'}", of=name)
    elif (fault := weights_fault(names)) is not None:
        way_out = f"add gguf_file= with one of {gguf_files}" if gguf_files else "choose a revision or a model with them"
        raise InputError(f"{fault}; {way_out}", of=name)


def info_on_hub(checkpoint: Checkpoint, file: str) -> Any:
    """What the hub says of a model, asked once before libraries ask for each file; InputError if it is not there.

    None if the hub cannot be reached, and ``file`` of the model was downloaded before.
    """
    from huggingface_hub import constants

    try:
        return info_of(checkpoint)
    except ConnectionError as error:
        if cached_file(checkpoint, file) is not None:
            return None
        way_out = "check the network" if constants.HF_HUB_OFFLINE else "try again later"
        raise InputError(
            f"not a local folder, not downloaded before, and the hub cannot be reached ({error}); "
            f"{way_out}, or give a local folder as ./FOLDER",
            of=checkpoint.path_or_id,
        ) from error


def commit_of(checkpoint: Checkpoint) -> str:
    """The commit of a branch or tag of a downloaded model; InputError if the hub's cache does not tell."""
    name, commit = checkpoint.path_or_id, pinned(checkpoint).revision or ""
    if not COMMIT.fullmatch(commit):
        raise InputError(f"its commit on the hub is unknown; give one as {name}@COMMIT", of=name)
    return commit


def weights_on_hub(checkpoint: Checkpoint) -> tuple[int | None, int] | None:
    """The number of weights (None if not counted) and the bytes of their files; None if the hub does not tell.

    Only the files that loading reads count: many repositories have the weights again in another format or precision.
    No weights are downloaded.
    """
    try:
        info = info_of(checkpoint)
    except (InputError, ConnectionError):
        return None
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    if checkpoint.gguf is not None:
        stored = sizes.get(checkpoint.gguf, 0)
        count = (getattr(info, "gguf", None) or {}).get("total")
    else:
        sets = (names for names in weight_names(checkpoint) if names and all(name in sizes for name in names))
        stored = sum(sizes[name] for name in next(sets, []))
        count = getattr(info.safetensors, "total", None)
    return (count if isinstance(count, int) else None, stored) if stored else None


def file_on_hub(name: str, revision: str | None, file: str) -> Path:
    """Download a small file, or use an earlier download if the hub does not answer; InputError without one."""
    checkpoint = Checkpoint(name, revision)
    info_on_hub(checkpoint, file)
    if (path := file_of(checkpoint, file)) is None:
        raise InputError(f"it has no {file}, so it is not a saved ensemble; give models as a list", of=name)
    return path


def push_files(folder: Path, files: Sequence[str], name: str, *, private: bool) -> str:
    """Upload files to ``org/name``, which is created if missing; the URL of the commit, or a UniteError.

    The hub's library finds the token: ``HF_TOKEN``, or ``hf auth login``. A model on the hub that lacks the first file
    is something else and is not changed. Only a new model can become private.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    try:
        # exist_ok, because a saved ensemble is updated by pushing it again.
        api.create_repo(name, private=private, exist_ok=True)
        # The hub adds .gitattributes to every new repository.
        existing = {sibling.rfilename for sibling in api.model_info(name).siblings or ()} - {".gitattributes"}
        if existing and files[0] not in existing:
            raise UniteError("the hub already has a model with this id and other files; give another id", of=name)
        commit = api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=list(files), commit_message="Write the ensemble"
        )
        told.clear()
    except UniteError:
        raise
    except HFValidationError as error:
        raise InputError(f"{name!r}: not a valid id for the hub ({first_line(error)}); give org/name") from error
    except HfHubHTTPError as error:
        fault = _REFUSALS.get(error.response.status_code, f"the hub refuses the upload ({first_line(error)})")
        raise UniteError(fault, of=name) from error
    except Exception as error:  # many libraries raise: no network, no token, a malformed answer
        raise UniteError(
            f"it cannot be pushed ({type(error).__name__}: {first_line(error)}); check the network, and log in "
            "(hf auth login)",
            of=name,
        ) from error
    return str(commit.commit_url)
