"""The machine: processor, memory, GPUs, versions, optional packages, the hub and the cache folder."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from advisor.models.resources import ROUNDING
from ensemble.common.background import in_background
from ensemble.common.files import exists

PACKAGES = ("unite-advisor", "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "datasets")
"""The packages whose versions matter in a bug report."""
EXTRAS = {
    "lm-eval": ("lm_eval",),
    "ray": ("ray",),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "openai": ("httpx2",),
    "inspect": ("inspect_ai",),
    "gguf": ("gguf", "accelerate"),
}
"""The modules that each optional part of the installation needs; tests hold the names against pyproject.toml."""
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""The variables by which huggingface_hub makes no requests, if they have one of these values."""
_TRUE = ("1", "ON", "YES", "TRUE")
_HUB_SECONDS = 3.0


def versions() -> dict[str, str]:
    """Versions of Python, of the packages and of the system; no package is imported."""
    found = {package: version_of(package) or "unknown" for package in PACKAGES}
    system = f"{platform.system()} {platform.machine()}"
    return {"python": platform.python_version(), **found, "system": system}


def version_of(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Processor, its cores for this process, the types it is slow in, free memory, and each GPU; memory in bytes."""
    import torch

    from ensemble.models.memory import free_memory
    from ensemble.models.numeric_type import HALF, this_processor
    from ensemble.step import compiled

    gpus = [
        {
            "device": f"cuda:{n}",
            "name": torch.cuda.get_device_name(n),
            "memory": torch.cuda.mem_get_info(n)[1],
            "free": free_memory(torch.device("cuda", n)),
        }
        for n in range(torch.cuda.device_count())
    ]
    if torch.backends.mps.is_available():
        gpus.append({"device": "mps", "name": "Apple GPU", "memory": None, "free": None})
    # os.cpu_count() counts the machine's cores, and a container or a job often has fewer.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": cores,
        "slow_in": [dtype for dtype in HALF if not this_processor().computes_in(dtype)],
        "threads": torch.get_num_threads(),
        "free": free_memory(torch.device("cpu")),
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "compiled_step": compiled.library is not None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def extras() -> dict[str, bool]:
    """Whether each optional part is installed."""
    return {name: all(map(_is_installed, modules)) for name, modules in EXTRAS.items()}


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    # Of a module in a package that is missing.
    except ModuleNotFoundError:
        return False


def quantization() -> dict[str, str | None]:
    """The version of each package that ``quantization=`` needs; None if it is missing."""
    return {package: version_of(package) for package in ROUNDING}


def hub() -> dict[str, Any]:
    """What switches the hub off, whether it answers within 3 s, and accepts the token; None where that is not known."""
    from huggingface_hub import constants, get_session, get_token

    # Not the library's own constant: this program sets that when the hub has not answered an earlier request.
    offline = next((name for name in _OFFLINE if os.environ.get(name, "").upper() in _TRUE), None)
    token = get_token()
    found = {"endpoint": constants.ENDPOINT, "token": token is not None, "offline": offline}

    def reach() -> int:
        address, headers = f"{constants.ENDPOINT}/api/whoami-v2", {"authorization": f"Bearer {token}"} if token else {}
        return get_session().get(address, headers=headers, timeout=_HUB_SECONDS).status_code

    # In the background, because the search for the host's address has no time limit.
    try:
        status = None if offline is not None else in_background(reach, "hub").result(_HUB_SECONDS + 1)
    except Exception:  # noqa: BLE001  # the end of the time; and each kind of network failure has its own error
        return {**found, "answers": False, "accepted": None}
    accepted = {200: True, 401: False}.get(status or 0) if token else None
    return {**found, "answers": None if status is None else True, "accepted": accepted}


def hub_cache() -> dict[str, Any]:
    """The folder that models are downloaded to; see :func:`cache_folder`."""
    from huggingface_hub import constants

    return cache_folder(Path(constants.HF_HUB_CACHE))


def cache_folder(folder: Path) -> dict[str, Any]:
    """A cache folder: its bytes, the free bytes of its disk, and whether it can be written. It is not created."""
    there, usable = folder, True
    try:
        folder.stat()
    except (OSError, ValueError) as error:  # ValueError: a null character
        # Any other error than a missing folder, as that of a name that is too long, also prevents making it.
        usable = isinstance(error, FileNotFoundError)
    while not exists(there) and there != there.parent:
        there = there.parent
    size = sum(_size(path) for path in folder.rglob("*")) if there == folder and folder.is_dir() else 0
    writable = usable and there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return {"folder": str(folder), "size": size, "free": shutil.disk_usage(there).free, "writable": writable}


def _size(path: Path) -> int:
    try:
        # Links are left out: the hub's cache has one for each of its files.
        return 0 if path.is_symlink() or not path.is_file() else path.stat().st_size
    except OSError:  # removed meanwhile
        return 0
