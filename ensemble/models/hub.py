"""Requests to the Hugging Face hub before anything is loaded from it.

Without network, the libraries retry the request for every file for half a minute. So one request checks whether the hub
has a model or a data set. If the hub does not answer, earlier downloads are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ensemble.common.files import write_text
from ensemble.errors import InputError, UniteError, first_line
from ensemble.models import gguf
from ensemble.models.hub_request import TIMEOUT, TOKEN_REFUSED, ask_hub
from ensemble.models.model_files import weight_names
from ensemble.models.spec import COMMIT, Checkpoint


def check_on_hub(checkpoint: Checkpoint) -> None:
    """Check that the hub has a model with weights in a supported format.

    Raises:
        InputError: It does not; or it cannot be reached, and the model was not downloaded before.
    """
    info = info_on_hub(checkpoint, checkpoint.config_file)
    if info is None:
        return
    name = checkpoint.path_or_id
    names = sorted(sibling.rfilename for sibling in info.siblings or ())
    gguf_files = [file for file in names if file.endswith(gguf.SUFFIX)]
    # Before the safetensors: a repository may have both, and the user named the file.
    if checkpoint.gguf is not None:
        if checkpoint.gguf not in names:
            raise InputError(
                f"it has no file {checkpoint.gguf}, but {', '.join(gguf_files) or 'no GGUF file'}", of=name
            )
        return
    if any(file.endswith(".safetensors") for file in names):
        return
    if gguf_files:
        raise InputError(f"its weights are GGUF files; add gguf_file= with one of {', '.join(gguf_files)}", of=name)
    # Only for the message; pickles are never loaded.
    pickles = [file for file in names if file.endswith((".bin", ".pt", ".pth"))]
    what = f"it has weights only as pickle ({pickles[0]}), which can run code when read" if pickles else "no weights"
    raise InputError(f"{what}; choose a revision or a model with *.safetensors", of=name)


def info_on_hub(checkpoint: Checkpoint, file: str) -> Any:
    """What the hub says of a model: one request, before the libraries repeat theirs for every file.

    Args:
        checkpoint: The model.
        file: A file that an earlier download has.

    Returns:
        None if the hub cannot be reached, and the model was downloaded before.

    Raises:
        InputError: The hub does not have the model; or it cannot be reached, and the model was not downloaded before.
    """
    from huggingface_hub import HfApi

    name, revision = checkpoint.path_or_id, checkpoint.revision
    try:
        return _request_model(name, revision, lambda: HfApi().model_info(name, revision=revision, timeout=TIMEOUT))
    except ConnectionError as error:
        if cached_file(checkpoint, file) is None:
            raise _unreachable(name, error) from error
        return None


def commit_of(checkpoint: Checkpoint) -> str:
    """The commit of a branch or tag of a downloaded model.

    Raises:
        InputError: The hub's cache does not tell.
    """
    name = checkpoint.path_or_id
    config = cached_file(checkpoint, checkpoint.config_file)
    if config is None:
        raise InputError(f"its commit on the hub is unknown; give one as {name}@COMMIT", of=name)
    # The cache has a folder for each commit. The file may be in a folder below it.
    return config.parents[checkpoint.config_file.count("/")].name


def weights_on_hub(checkpoint: Checkpoint) -> tuple[int | None, int] | None:
    """The number of weights of a model on the hub, None if the hub does not count them, and the bytes of their files.

    Only the files that loading reads count: many repositories have the weights again in another format or precision.
    No weights are downloaded. None if the hub does not tell, or does not answer.

    Raises:
        InputError: The model's list of weight files cannot be used.
    """
    from huggingface_hub import HfApi

    name, revision = checkpoint.path_or_id, checkpoint.revision
    try:
        info = ask_hub(
            lambda: HfApi().model_info(name, revision=revision, timeout=TIMEOUT, files_metadata=True),
        )
    except (ValueError, ConnectionError):
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


def cached_file(checkpoint: Checkpoint, name: str) -> Path | None:
    """A file of a hub model in the hub's cache; None if it was not downloaded."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(checkpoint.path_or_id, name, revision=checkpoint.revision)
    # For files that are known to be missing, the cache returns a marker that is not a string.
    return Path(path) if isinstance(path, str) else None


def file_on_hub(name: str, revision: str | None, file: str) -> Path:
    """Download a small file of a model on the hub; an earlier download is used if the hub does not answer.

    Raises:
        InputError: The hub does not have the model, revision or file; or it cannot be reached, and the file was not
            downloaded before.
    """
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    def fetch() -> Path | None:
        info = HfApi().model_info(name, revision=revision, timeout=TIMEOUT)
        if file not in {sibling.rfilename for sibling in info.siblings or ()}:
            return None
        # Requested by the given revision (not by its commit), so that the cache finds it when the hub is unreachable.
        return Path(hf_hub_download(name, file, revision=revision))

    try:
        path: Path | None = _request_model(name, revision, fetch)
    except ConnectionError as error:
        cached = try_to_load_from_cache(name, file, revision=revision)
        if not isinstance(cached, str):
            raise _unreachable(name, error) from error
        path = Path(cached)
    if path is None:
        raise InputError(f"it has no {file}, so it is not a saved ensemble; give models as a list", of=name)
    return path


def gate_of(error: BaseException | None) -> str | None:
    """What a gated model needs, if an error or a cause of it says that it is one; else None."""
    from huggingface_hub.errors import GatedRepoError

    while error is not None and not isinstance(error, GatedRepoError):
        error = error.__cause__
    if error is None:
        return None
    if error.response.status_code == 403:
        return "gated, and your account has no access; ask for it on its page on the hub"
    return "gated; accept its terms on its page on the hub, and log in (hf auth login)"


def push_files(folder: Path, files: Sequence[str], name: str, *, private: bool) -> str:
    """Upload files of a folder to the hub as a model.

    The hub's library finds the token: ``HF_TOKEN``, or ``hf auth login``.

    Args:
        folder: The folder of the files.
        files: The files' names. A model on the hub that lacks the first file is something else and is not changed.
        name: ``org/name``; it is created if it does not exist.
        private: Whether a new model is private; an existing one does not change.

    Returns:
        The URL of the commit.

    Raises:
        UniteError: The hub refuses the upload, or cannot be reached.
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
    except UniteError:
        raise
    except HFValidationError as error:
        raise InputError(f"{name!r}: not a valid id for the hub ({first_line(error)}); give org/name") from error
    except HfHubHTTPError as error:
        raise UniteError(_refusal(error.response.status_code, error), of=name) from error
    except Exception as error:  # many libraries raise: no network, no token, a malformed answer
        raise UniteError(
            f"it cannot be pushed ({type(error).__name__}: {first_line(error)}); check the network, and log in "
            "(hf auth login)",
            of=name,
        ) from error
    return str(commit.commit_url)


def _refusal(status: int, error: Exception) -> str:
    if status == 401:
        return TOKEN_REFUSED
    if status == 403:
        return "the hub does not allow this token to write; use a token with write access, or another id"
    return f"the hub refuses the upload ({first_line(error)})"


def reach_data(name: str, revision: str | None) -> str | None:
    """The commit of a data set on the hub; if the hub does not answer, that of the last download, or None.

    If the hub cannot be reached, its libraries use only earlier downloads from now on.
    """
    from huggingface_hub import HfApi, constants

    reference = Path(constants.HF_HUB_CACHE, f"datasets--{name.replace('/', '--')}", "refs", revision or "main")
    try:
        commit = str(ask_hub(lambda: HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT)).sha)
    except (ValueError, ConnectionError):
        # The library that loads the data set reports the problem.
        known = reference.read_text(encoding="utf-8", errors="replace") if reference.is_file() else revision or ""
        return known if COMMIT.fullmatch(known) else None
    # As the hub's library does for models, so that the commit is known when the hub is unreachable.
    with suppress(OSError):
        write_text(reference, commit)
    return commit


def _request_model(name: str, revision: str | None, request: Callable[[], Any]) -> Any:
    """The hub's answer to a request about a model; InputError if it does not have the model or the revision."""
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        return ask_hub(request)
    except RevisionNotFoundError as error:
        raise InputError(
            f"the hub has no revision {revision} of this model; give a commit, a branch or a tag", of=name
        ) from error
    except ValueError as error:
        raise InputError(
            gate_of(error)
            or "not a local folder, and the hub has no model with this name, or it is private; check the name, "
            "log in (hf auth login), or give a local folder as ./FOLDER",
            of=name,
        ) from error


def _unreachable(name: str, error: ConnectionError) -> InputError:
    from huggingface_hub import constants

    way_out = "check the network" if constants.HF_HUB_OFFLINE else "try again later"
    return InputError(
        f"not a local folder, not downloaded before, and the hub cannot be reached ({error}); "
        f"{way_out}, or give a local folder as ./FOLDER",
        of=name,
    )
