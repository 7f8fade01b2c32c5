"""``advisor doctor``: the machine, the installation, and which models of a pool can run here."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from advisor.commands.command_line import print_json, versions
from advisor.jobs.dry_run import (
    model_line,
    plan_model,
    plan_together,
    problem_of,
    set_summary,
    tokens_written,
    weights_once,
)
from advisor.models.endpoint import listed_models
from advisor.models.fit import ROUNDING, place_models
from advisor.models.loaded_models import silence_libraries
from advisor.models.pool_file import read_pool
from advisor.models.run_config import check_consent, load_split
from advisor.options.new_run import DoctorOptions
from advisor.options.shared import InferenceOptions
from ensemble.common.background import in_background
from ensemble.common.extras import EXTRAS, install, is_installed
from ensemble.common.files import default_cache_dir, exists
from ensemble.common.text import first_of, memory, visible
from ensemble.errors import UniteError
from ensemble.models.hub import TOKEN_REFUSED
from ensemble.plugins import version_of
from ensemble.servers.address import ALL, PREFIX, ServerAddress


def doctor(options: DoctorOptions) -> None:
    """Look at all of it, and print it; status 1 if something keeps a run from working."""
    silence_libraries(quiet=True)
    # Without models in this process nothing is downloaded.
    of_hub, downloads = None, None
    if is_installed("torch"):
        from huggingface_hub import constants

        of_hub, downloads = hub(), cache_folder(Path(constants.HF_HUB_CACHE))
    inference = InferenceOptions(device=options.device, dtype=options.dtype)
    entries = () if options.pool is None else read_pool(options.pool)
    check_consent(entries, options)
    questions = None if options.task is None else load_split(options, "dev", max_new_tokens=options.max_new_tokens)
    found: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "extras": {name: all(map(is_installed, modules)) for name, modules in EXTRAS.items()},
        # None where the package that ``quantization=`` needs is missing.
        "quantization": {ROUNDING: version_of(ROUNDING)},
        "hub": of_hub,
        "servers": servers(),
        "cache": cache_folder(options.cache_dir or default_cache_dir()),
        "downloads": downloads,
    }
    entries, placed = place_models(entries, options.device, options.dtype)
    # A token has about four characters; `--dry-run` counts them with each model's tokenizer.
    asked = [] if questions is None else [len(example.prompt) / 4 for example in questions.examples]
    prompt = int(sum(asked) / len(asked)) + 1 if asked else 512
    new = options.max_new_tokens or 256 if questions is None else tokens_written(questions)
    plans = [
        plan_model(entry, inference, prompt=prompt, new=new, problem=problem_of(entry, inference)) for entry in entries
    ]
    together = plan_together(weights_once(plans, entries), options.max_models)
    # Those of models are in the models' lines already.
    problems: list[str] = []
    download = sum(plan["download"] or 0 for plan in plans)
    disk = found["downloads" if download else "cache"]
    if download > disk["free"]:
        free = memory(disk["free"])
        problems.append(f"{memory(download)} to download, and {disk['folder']} has {free}; free disk space")
    for name, way_out in (("cache", "give --cache-dir"), ("downloads", "set HF_HUB_CACHE")):
        if found[name] is not None and not found[name]["writable"]:
            problems.append(f"{found[name]['folder']} cannot be written; {way_out}")
    if found["hub"] is not None and found["hub"]["accepted"] is False:
        problems.append(TOKEN_REFUSED)
    of_models = [plan["problem"] for plan in plans if plan["problem"] is not None]
    if options.as_json:
        print_json({**found, "models": plans, "together": together, "problems": [*of_models, *problems]})
    else:
        lines = [*machine_lines(found), *map(model_line, plans), *set_summary(together)]
        lines += [f"placed       {placed}"] if placed else []
        lines += [f"download     {memory(download)}, {memory(disk['free'])} of disk free"] if download else []
        for line in (*lines, *(f"problem      {problem}" for problem in problems)):
            print(visible(line))
    if of_models or problems:
        raise typer.Exit(1)


USUAL_PORTS = {11434: "Ollama", 1234: "LM Studio", 8000: "vLLM", 30000: "SGLang", 8080: "llama.cpp"}
"""The ports of this machine where servers of models usually listen."""
_SERVER_SECONDS = 1.0
_SHOWN = 5
"""Models of a server that are named."""
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""The variables by which huggingface_hub makes no requests, if they have one of these values."""
_TRUE = ("1", "ON", "YES", "TRUE")
_HUB_SECONDS = 3.0


def machine() -> dict[str, Any]:
    """Processor, its cores for this process, the types it is slow in, free memory, and each GPU; memory in bytes.

    Without models in this process, processor and cores.
    """
    # os.cpu_count() counts the machine's cores, and a container or a job often has fewer.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    here = {"processor": _processor(), "cores": cores}
    if not is_installed("torch"):
        return here
    import torch

    from ensemble.models.memory import HALF, free_memory, this_processor
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
    return {
        **here,
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


def servers() -> list[dict[str, Any]]:
    """The servers on the usual ports of this machine that answer within 1 s, with the models that they list."""

    def ask(port: int) -> list[str]:
        address = ServerAddress(f"http://127.0.0.1:{port}/v1", ALL, timeout=_SERVER_SECONDS)
        try:
            return listed_models(address, retries=0)
        # Nothing is there, or something else.
        except UniteError:
            return []

    asked = {port: in_background(partial(ask, port), f"port {port}") for port in USUAL_PORTS}
    found = {port: future.result() for port, future in asked.items()}
    return [
        {"url": f"http://127.0.0.1:{port}/v1", "usual_for": USUAL_PORTS[port], "models": names}
        for port, names in found.items()
        if names
    ]


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


def machine_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What ``advisor doctor`` says of the machine and the installation."""
    here, hub = found["machine"], found["hub"]
    if hub is None:
        yield f"processor    {here['processor']}, {here['cores']} cores"
    else:
        yield from _lines_for_models(here)
    yield f"versions     {', '.join(f'{name} {number}' for name, number in found['versions'].items())}"
    for name, is_there in found["extras"].items():
        yield f"extra        {name}: {'installed' if is_there else f'missing; {install(name)}'}"
    if hub is not None:
        for name, number in found["quantization"].items():
            yield f"quantization {name}: {number or f'missing; pip install {name}'}"
        states = {True: "token accepted", False: "token refused", None: "token set"}
        token = states[hub["accepted"]] if hub["token"] else "no token (hf auth login, for gated models)"
        if hub["offline"] is not None:
            state = f"switched off by {hub['offline']}; only downloaded models"
        else:
            state = "answers" if hub["answers"] else "does not answer; only downloaded models"
        yield f"hub          {hub['endpoint']}: {state}; {token}"
    for server in found["servers"]:
        names, url = server["models"], server["url"]
        line = f"{PREFIX}{url}{f'#{ALL}' if len(names) > 1 else ''}"
        yield f"server       {line} (usual port of {server['usual_for']}): {first_of(names, _SHOWN)}"
    for name in ("cache", "downloads"):
        if (folder := found[name]) is not None:
            can_be = "writable" if folder["writable"] else "cannot be written"
            state = f"{memory(folder['free'])} of disk free, {can_be}"
            yield f"{name:<12} {folder['folder']}: {memory(folder['size'])}, {state}"


def _lines_for_models(here: Mapping[str, Any]) -> Iterator[str]:
    """What of the machine counts for models in this process."""
    slow = f", slow in {' and '.join(here['slow_in'])}" if here["slow_in"] else ""
    yield f"processor    {here['processor']}, {here['cores']} cores{slow}, {memory(here['free'])} of memory free"
    for gpu in here["gpus"]:
        yield f"GPU          {gpu['device']} {gpu['name']}, {memory(gpu['memory'])}, {memory(gpu['free'])} free"
    if not here["gpus"]:
        build = "torch is built without CUDA" if here["cuda"] is None else f"torch is built for CUDA {here['cuda']}"
        yield f"GPU          torch sees none ({build})"
    if not here["compiled_step"]:
        yield "step         not compiled, so it takes longer; install a C compiler, and then unite-advisor again"
