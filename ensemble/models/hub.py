"""The hub, asked once before anything is loaded from it.

The libraries ask for every file of its own, and again and again, for half a minute, while the network is away. One
question tells whether a model or a data set is there; where nobody answers, what was downloaded before must do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ensemble.errors import InputError, UniteError
from ensemble.models import gguf
from ensemble.models.spec import Checkpoint, first_line

_PATIENCE = 10.0
"""Seconds to wait for the hub's answer."""


def check_on_hub(checkpoint: Checkpoint) -> None:
    """Make sure that the hub has a model, with weights that may be read.

    Raises:
        InputError: It has not, or cannot be reached while the model was not downloaded before.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache

    name, revision = checkpoint.path_or_id, checkpoint.revision
    try:
        info = _ask_of_model(name, revision, lambda: HfApi().model_info(name, revision=revision, timeout=_PATIENCE))
    except ConnectionError as error:
        if isinstance(try_to_load_from_cache(name, checkpoint.config_file, revision=revision), str):
            return
        raise _away(name, error) from error
    names = sorted(sibling.rfilename for sibling in info.siblings or ())
    files = [each for each in names if each.endswith(gguf.SUFFIX)]
    if checkpoint.gguf is not None:
        if checkpoint.gguf not in names:
            raise InputError(
                f"{name}: no file {checkpoint.gguf} there; it has {', '.join(files) or 'no GGUF file at all'}"
            )
        return
    if any(each.endswith(".safetensors") for each in names):
        return
    if files:
        raise InputError(f"{name}: its weights are GGUF files; add gguf_file= with one of {', '.join(files)}")
    pickles = [each for each in names if each.endswith((".bin", ".pt", ".pth"))]
    what = f"only as pickle ({pickles[0]}), which can run code when read" if pickles else "not there at all"
    raise InputError(f"{name}: its weights are {what}; choose a revision or a model with *.safetensors")


def commit_of(checkpoint: Checkpoint) -> str:
    """The commit that a branch or tag of the hub stands for today: the folder in the cache that its files are in.

    Raises:
        InputError: The hub names none.
    """
    from huggingface_hub import try_to_load_from_cache

    name = checkpoint.path_or_id
    config = try_to_load_from_cache(name, checkpoint.config_file, revision=checkpoint.revision)
    if not isinstance(config, str):
        raise InputError(f"{name}: the hub names no commit of it; give one as {name}@COMMIT")
    # A file of a folder within the model lies deeper.
    return Path(config).parents[checkpoint.config_file.count("/")].name


def file_on_hub(name: str, revision: str | None, file: str) -> Path:
    """A small file of a model on the hub, downloaded, or downloaded before where the hub does not answer.

    Raises:
        InputError: The hub has no such model, revision or file, or cannot be reached.
    """
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    def fetch() -> Path | None:
        info = HfApi().model_info(name, revision=revision, timeout=_PATIENCE)
        if file not in {sibling.rfilename for sibling in info.siblings or ()}:
            return None
        # By the name that was given, so that the cache knows what it stood for when the hub is away.
        return Path(hf_hub_download(name, file, revision=revision))

    try:
        found: Path | None = _ask_of_model(name, revision, fetch)
    except ConnectionError as error:
        before = try_to_load_from_cache(name, file, revision=revision)
        if not isinstance(before, str):
            raise _away(name, error) from error
        found = Path(before)
    if found is None:
        raise InputError(f"{name}: no {file} there, so it is no saved ensemble; give models as a list of them")
    return found


def push_files(folder: Path, files: Sequence[str], name: str, *, private: bool) -> str:
    """Upload files of a folder to the hub as a model of one's own; the address of the commit.

    The token is found as the hub's library finds it: ``HF_TOKEN``, or ``hf auth login``.

    Args:
        folder: Where the files are.
        files: The first of them marks what may be written over: a model on the hub without it is left alone.
        name: ``org/name``; made if need be.
        private: Whether it is made private; one that is there stays as it is.

    Raises:
        UniteError: The hub refuses, or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        there = {sibling.rfilename for sibling in api.model_info(name).siblings or ()} - {".gitattributes"}
        if there and files[0] not in there:
            raise UniteError(f"{name}: it is on the hub already, with files of something else; give another id")
        made = api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=list(files), commit_message="Write the ensemble"
        )
    except UniteError:
        raise
    except HFValidationError as error:
        raise InputError(f"{name!r}: no id of the hub ({first_line(error)}); give org/name") from error
    except HfHubHTTPError as error:
        raise UniteError(f"{name}: {_refusal(error.response.status_code, error)}") from error
    except Exception as error:  # of many libraries: no network, no token, an answer that is none
        raise UniteError(
            f"{name}: it cannot be pushed ({type(error).__name__}: {first_line(error)}); check the network, and log in "
            "(hf auth login)"
        ) from error
    return str(made.commit_url)


def _refusal(status: int, error: Exception) -> str:
    if status == 401:
        return "the hub knows no such token; log in (hf auth login), or set HF_TOKEN"
    if status == 403:
        return "the hub does not let this token write there; use one with the right to write, or another id"
    return f"the hub refuses it ({first_line(error)})"


def reach_data(name: str, revision: str | None) -> None:
    """Find out whether the hub answers a question about a data set; where it does not, go on without it."""
    from huggingface_hub import HfApi

    try:
        _ask(lambda: HfApi().dataset_info(name, revision=revision, timeout=_PATIENCE))
    except (ValueError, ConnectionError):
        return  # what is wrong is said by the library that loads it


def _ask_of_model(name: str, revision: str | None, question: Callable[[], Any]) -> Any:
    """The hub's answer to a question about a model.

    Raises:
        InputError: It has no such model or revision.
        ConnectionError: See :func:`_ask`.
    """
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        return _ask(question)
    except RevisionNotFoundError as error:
        raise InputError(
            f"{name}: the hub has no revision {revision} of it; give a commit, a branch or a tag"
        ) from error
    except ValueError as error:
        raise InputError(
            f"{name}: it is no folder here, and the hub has no such model, or shows it only to some; check the name, "
            "log in (hf auth login), or give a local folder as ./FOLDER"
        ) from error


def _away(name: str, error: ConnectionError) -> InputError:
    return InputError(
        f"{name}: it is no folder here, it was not downloaded before, and the hub cannot be reached ({error}); "
        "check the network, or give a local folder as ./FOLDER"
    )


def _ask(question: Callable[[], Any]) -> Any:
    """The hub's answer.

    Raises:
        RevisionNotFoundError: It knows no such revision.
        ValueError: It knows no such name.
        ConnectionError: There is no answer, and nothing is asked any more in this process.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return question()
    except RevisionNotFoundError:
        raise
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ValueError(first_line(error)) from error
    except Exception as error:  # of many libraries: no network, no answer, no entry, an answer that is none
        constants.HF_HUB_OFFLINE = True
        if data := sys.modules.get("datasets"):
            data.config.HF_HUB_OFFLINE = True
        raise ConnectionError(first_line(error)) from error
