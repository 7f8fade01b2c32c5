"""The hub, asked once before anything is loaded from it.

The libraries ask for every file of its own, and again and again, for half a minute, while the network is away. One
question tells whether a model or a data set is there; where nobody answers, what was downloaded before must do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ensemble import gguf
from ensemble.checkpoint import Checkpoint, first_line
from ensemble.errors import InputError

_PATIENCE = 10.0
"""Seconds to wait for the hub's answer."""


def check_on_hub(checkpoint: Checkpoint) -> None:
    """Make sure that the hub has a model, with weights that may be read.

    Raises:
        InputError: It has not, or cannot be reached while the model was not downloaded before.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RevisionNotFoundError

    name, revision = checkpoint.path_or_id, checkpoint.revision
    try:
        info = _ask(lambda: HfApi().model_info(name, revision=revision, timeout=_PATIENCE))
    except RevisionNotFoundError as error:
        raise InputError(
            f"{name}: the hub has no revision {revision} of it; give a commit, a branch or a tag"
        ) from error
    except ValueError as error:
        raise InputError(
            f"{name}: it is no folder here, and the hub has no such model, or shows it only to some; check the name, "
            "log in (hf auth login), or give a local folder as ./FOLDER"
        ) from error
    except ConnectionError as error:
        if isinstance(try_to_load_from_cache(name, checkpoint.config_file, revision=revision), str):
            return
        raise InputError(
            f"{name}: it is no folder here, it was not downloaded before, and the hub cannot be reached ({error}); "
            "check the network, or give a local folder as ./FOLDER"
        ) from error
    names = sorted(sibling.rfilename for sibling in info.siblings or ())
    files = [each for each in names if each.endswith(gguf.SUFFIX)]
    if checkpoint.gguf is not None:
        if checkpoint.gguf not in names:
            raise InputError(
                f"{name}: no file {checkpoint.gguf} there; it has {', '.join(files) or 'no GGUF file at all'}"
            )
        return
    if files and not any(each.endswith(".safetensors") for each in names):
        raise InputError(f"{name}: its weights are GGUF files; add gguf_file= with one of {', '.join(files)}")
    if not any(name.endswith(".safetensors") for name in names):
        pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
        what = f"only as pickle ({pickles[0]}), which can run code when read" if pickles else "not there at all"
        raise InputError(f"{name}: its weights are {what}; choose a revision or a model with *.safetensors")


def reach_data(name: str, revision: str | None) -> None:
    """Find out whether the hub answers a question about a data set; where it does not, go on without it."""
    from huggingface_hub import HfApi

    try:
        _ask(lambda: HfApi().dataset_info(name, revision=revision, timeout=_PATIENCE))
    except (ValueError, ConnectionError):
        return  # what is wrong is said by the library that loads it


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
