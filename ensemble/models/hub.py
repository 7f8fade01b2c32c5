"""Requests to the Hugging Face hub: sent again while a fault may pass, and what it tells is asked once in a process.

Without network, the libraries retry the request for every file for half a minute. So one request checks whether the hub
has a model or a data set. If the hub does not answer, earlier downloads are used.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ensemble.common.files import write_text
from ensemble.errors import InputError, UniteError, first_line
from ensemble.models.spec import COMMIT, Checkpoint
from ensemble.servers.client import retried

TIMEOUT = 30.0
"""Seconds to wait for the hub's answer."""
TOKEN_REFUSED = "the hub does not accept this token; log in (hf auth login), or correct HF_TOKEN"
_RETRIES = 4
_LONGEST_WAIT_S = 300.0
"""The hub counts requests in windows of five minutes."""
_reasons: list[str] = []
"""Why the hub could not be reached by this process; empty if it could, or was never asked."""
told: dict[tuple[str | None, ...], Any] = {}
"""What the hub said, by its address, ``model`` or ``dataset``, the id, and the revision or commit."""


def info_of(checkpoint: Checkpoint) -> Any:
    """What the hub says of a model and its files; InputError if it lacks it, ConnectionError without an answer."""
    try:
        return _tell("model", checkpoint.path_or_id, checkpoint.revision)
    except ValueError as error:
        raise InputError(
            gate_of(error)
            or "not a local folder, and the hub has no model with this name, or it is private; check the name, "
            "log in (hf auth login), or give a local folder as ./FOLDER",
            of=checkpoint.path_or_id,
        ) from error


def pinned(checkpoint: Checkpoint) -> Checkpoint:
    """A model of the hub at its commit, if that is known: the libraries ask for no downloaded file of a commit."""
    if checkpoint.is_local or COMMIT.fullmatch(checkpoint.revision or ""):
        return checkpoint
    commit = commit_on_hub("model", checkpoint.path_or_id, checkpoint.revision)
    return replace(checkpoint, revision=commit or checkpoint.revision)


def commit_on_hub(kind: str, name: str, revision: str | None) -> str | None:
    """The commit of a model or data set; that of the last download, or None, if the hub does not answer.

    If the hub cannot be reached, its libraries use only earlier downloads from now on. InputError if the hub lacks the
    revision.
    """
    try:
        return str(_tell(kind, name, revision).sha)
    except (ValueError, ConnectionError):
        # The library that loads it reports the problem.
        reference = _reference(kind, name, revision)
        known = reference.read_text(encoding="utf-8", errors="replace") if reference.is_file() else revision or ""
        return known if COMMIT.fullmatch(known) else None


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


def _tell(kind: str, name: str, revision: str | None) -> Any:
    """What the hub says of a model or data set; a process takes all its files from one commit."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RevisionNotFoundError

    asked = (constants.ENDPOINT, kind, name, revision)
    if asked not in told:
        request = partial(HfApi().repo_info, name, repo_type=kind, revision=revision, timeout=TIMEOUT)
        try:
            info = ask_hub(partial(request, files_metadata=kind == "model"))
        except RevisionNotFoundError as error:
            message = f"the hub has no revision {revision} of it; give a commit, a branch or a tag"
            raise InputError(message, of=name) from error
        at_commit = (*asked[:3], str(info.sha))
        told[asked] = told[at_commit] = info
        # As the hub's library does for a file, so that the commit is known while the hub is away.
        with suppress(OSError):
            write_text(_reference(kind, name, revision), str(info.sha))
    return told[asked]


def _reference(kind: str, name: str, revision: str | None) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, f"{kind}s--{name.replace('/', '--')}", "refs", revision or "main")


def ask_hub(request: Callable[[], Any], retries: int = _RETRIES) -> Any:
    """The hub's answer to a request, which is repeated where a fault may pass; ConnectionError without an answer.

    The library's errors for a missing revision or file, and its ValueError for a missing model or data set, are passed
    on; InputError if the token is not accepted. A download has no ``retries``, because the library tries it again. If
    the hub cannot be reached at all, this process makes no more requests; a download that breaks off ends nothing else.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        HFValidationError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return retried(request, may_pass, retries=retries, pause_of=_pause)
    except (RevisionNotFoundError, RemoteEntryNotFoundError):
        raise
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ValueError(first_line(error)) from error
    except Exception as error:  # many libraries raise: no network, no answer, a malformed answer
        status = getattr(_response(error), "status_code", None)
        if status == 401:
            raise InputError(TOKEN_REFUSED) from error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise  # the fault is this machine's
        if status is not None:
            raise ConnectionError(f"it answers with {status}, also when asked again") from error
        if not retries:
            raise ConnectionError(first_line(error)) from error
        if not constants.HF_HUB_OFFLINE:
            _reasons[:] = [first_line(error)]
        # Without this, each library would retry the request for each file.
        constants.HF_HUB_OFFLINE = True
        if data := sys.modules.get("datasets"):
            data.config.HF_HUB_OFFLINE = True
        # Later requests would only say that the hub is switched off.
        raise ConnectionError(_reasons[0] if _reasons else first_line(error)) from error


def _response(error: BaseException | None) -> Any:
    """The hub's answer in an error, or in its reason; None if there was none."""
    while error is not None and getattr(error, "response", None) is None:
        error = error.__cause__
    return getattr(error, "response", None)


def may_pass(error: BaseException) -> bool:
    """Whether the hub may answer a little later."""
    status = getattr(_response(error), "status_code", 0)
    broken = type(error).__name__ in ("ReadTimeout", "ReadError", "RemoteProtocolError")  # classes of two libraries
    return (broken or status in (408, 429) or status >= 500) and (_pause(error) or 0) <= _LONGEST_WAIT_S


def _pause(error: BaseException) -> float | None:
    """The seconds that the hub asks to wait; None if it does not say."""
    headers = getattr(_response(error), "headers", {})
    found = re.fullmatch("[0-9]{1,6}", headers.get("retry-after", "")) or re.search(
        "(?<=;t=)[0-9]{1,6}", headers.get("ratelimit", "")
    )
    return None if found is None else float(found[0])


_REFUSALS = {
    401: TOKEN_REFUSED,
    403: "the hub does not allow this token to write; use a token with write access, or another id",
}


def file_of(checkpoint: Checkpoint, name: str) -> Path | None:
    """A file of a model, downloaded from the hub; None if the model lacks it, InputError if the hub fails."""
    if checkpoint.is_local:
        path = Path(checkpoint.location, name)
        return path if path.is_file() else None
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    place = checkpoint.path_or_id
    try:
        info = info_of(checkpoint)
    except ConnectionError as error:
        # Without the hub, the library that loads the model reports what is missing.
        if constants.HF_HUB_OFFLINE:
            return cached_file(checkpoint, name)
        raise InputError(f"its {name} cannot be read from the hub: {error}", of=place) from error
    if name not in {sibling.rfilename for sibling in info.siblings or ()}:
        return None
    try:
        return Path(ask_hub(lambda: hf_hub_download(place, name, revision=info.sha), 0))
    except RemoteEntryNotFoundError:
        return None
    except (ValueError, ConnectionError) as error:
        way_out = gate_of(error) or f"its {name} cannot be downloaded from the hub ({error}); try again later"
        raise InputError(way_out, of=place) from error


def cached_file(checkpoint: Checkpoint, name: str) -> Path | None:
    """A file of a hub model in the hub's cache; None if it was not downloaded."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(checkpoint.path_or_id, name, revision=pinned(checkpoint).revision)
    return Path(path) if isinstance(path, str) else None  # a marker stands for a file that is known to be missing


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
