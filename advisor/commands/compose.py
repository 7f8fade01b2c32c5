"""Files to serve an export with Docker Compose: the server, vLLM for members behind it, and Prometheus.

The file of the export and local models are mounted, so the image has no weights. Keys are named and never written:
Compose takes them from the environment in which it is started.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from advisor.options.finished_run import ExportOptions
from advisor.run.folder import Run
from advisor.run.plan import check_servers
from ensemble.common.extras import wheel, wheel_to_install
from ensemble.errors import InputError
from ensemble.models.spec import COMMIT, HUB_ID, ModelSpec, absolute
from ensemble.servers.address import ServerAddress

COMPOSE, DOCKERFILE, PROMETHEUS = "compose.yaml", "Dockerfile", "prometheus.yml"
_VLLM = "vllm/vllm-openai:v0.32.0"
_PROMETHEUS_IMAGE = "prom/prometheus:v3.14.0"
_HEAD = """\
# Written by `advisor export --compose`. Put the wheel that the Dockerfile names into this folder, set ADVISOR_API_KEY,
# the key of the server's clients, and start it with `docker compose up --build`. Each vLLM service has a GPU: change
# device_ids for another one, or for several.
"""
_DOCKERFILE = """\
# Written by `advisor export --compose`: the server without models, which compose.yaml mounts.
FROM python:3.12-slim-trixie
# The wheel of this release has to be beside this file. By its name alone, pip would take whatever an index has.
COPY {wheel} /tmp/
RUN cd /tmp && pip install --no-cache-dir "{package}" && pip check
# Not root: the server reads what clients and model files hold. The uid is the first user's of most systems, so that
# it can read mounted models.
RUN useradd --create-home --uid 1000 advisor && install --directory --owner advisor /cache
ENV HF_HOME=/cache/huggingface XDG_CACHE_HOME=/cache
USER advisor
EXPOSE 8000
ENTRYPOINT ["advisor"]
"""


def compose(
    members: Sequence[ModelSpec], file: Path, options: ExportOptions
) -> tuple[tuple[ModelSpec, ...], dict[str, str]]:
    """Give members behind vLLM a service each: the members with their new addresses, and the text of each file by name.

    A member is taken for one behind vLLM if its address is ``http://`` and its model has the form of a hub id,
    ``org/name``. Members elsewhere keep their address; one that only this machine reaches is refused.
    """
    placed = []
    vllm: dict[tuple[str, str], tuple[str, ServerAddress]] = {}
    for member in members:
        address = member.checkpoint
        if not address.is_remote:
            placed.append(member)
        elif _is_vllm(address):
            # Its prompts go to a container of this set-up, so only the variable of its key needs consent.
            address.check_consent(None, f"{options.run}: {member.name}")
            # Members of one server share its service, as they shared the server.
            key = address.url, address.model
            name, _ = vllm.setdefault(key, (_service_name(address, {name for name, _ in vllm.values()}), address))
            placed.append(replace(member, checkpoint=replace(address, url=f"http://{name}:8000/v1")))
        else:
            # Consent here is consent in the files: they allow the server in the command of the service.
            check_servers([member], options, None if options.pool is not None else Run(options.run).file)
            _check_reachable(member.name, address)
            placed.append(member)
    services = dict(vllm.values())
    content = {
        COMPOSE: _HEAD + _yaml(_compose(placed, services, file)),
        DOCKERFILE: _DOCKERFILE.format(
            package=wheel_to_install(local=any(member.can_decode for member in placed)), wheel=wheel()
        ),
        PROMETHEUS: _yaml(_scraped(services)),
    }
    check_unchanged_files(file.parent, content)
    return tuple(placed), content


def _is_vllm(address: ServerAddress) -> bool:
    return address.url.startswith("http://") and "/" in address.model and bool(HUB_ID.fullmatch(address.model))


def _service_name(address: ServerAddress, taken: set[str]) -> str:
    """A name for a service, which is its host name too: letters, digits and hyphens, at most 60 characters."""
    base = re.sub(r"[^a-z0-9]+", "-", address.name.lower())[:56].strip("-") or "model"
    names = (base if n == 1 else f"{base}-{n}" for n in range(1, len(taken) + 4))
    return next(name for name in names if name not in {"advisor", "prometheus", *taken})


def _check_reachable(name: str, address: ServerAddress) -> None:
    host = urlsplit(address.url).hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if loopback:
        raise InputError(
            f"--compose: {name} is behind {host}, which in a container is the container itself; give the server's "
            "address in the network in the pool file (--pool), or the model's hub id so that vLLM serves it"
        )


def check_unchanged_files(folder: Path, content: Mapping[str, str]) -> None:
    """Check that no file would be written over that its owner may have edited, for example the GPUs of the services."""
    for name, text in content.items():
        try:
            before = (folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            raise InputError(f"{folder}: is a file; give a folder") from None
        except (OSError, ValueError):
            before = None
        if before != text:
            raise InputError(
                f"{folder / name}: is another file than this command writes; remove it, or give a new folder"
            )


def _compose(members: Sequence[ModelSpec], vllm: Mapping[str, ServerAddress], file: Path) -> Any:
    services = {
        "advisor": _server(members, vllm, file),
        **{name: _vllm(address, gpu) for gpu, (name, address) in enumerate(vllm.items())},
        "prometheus": {
            "image": _PROMETHEUS_IMAGE,
            "ports": ["127.0.0.1:9090:9090"],
            "volumes": [f"./{PROMETHEUS}:/etc/prometheus/prometheus.yml:ro", "figures:/prometheus"],
            "restart": "unless-stopped",
        },
    }
    weights: dict[str, None] = {"weights": None} if vllm else {}
    return {"services": services, "volumes": {"cache": None, **weights, "figures": None}}


def _server(members: Sequence[ModelSpec], vllm: Mapping[str, ServerAddress], file: Path) -> Any:
    """The service of ``advisor serve``."""
    # Local models, and local tokenizers of models behind servers.
    tokenizers = [member.tokenizer for member in members if member.can_decode]
    paths = list(dict.fromkeys(each.absolute.path_or_id for each in tokenizers if each.is_local))
    addresses = [member.checkpoint for member in members if member.checkpoint.is_remote]
    folder = absolute(file.parent)
    # The export has paths relative to itself for models beside it, so with local models it keeps its place.
    place = str(folder) if paths else "/ensemble"
    command = ["serve", place, "--host=0.0.0.0", "--port=8000", f"--name={folder.name}"]
    command += [f"--allow-server={url}" for url in dict.fromkeys(address.url for address in addresses)]
    keys = sorted({address.key_env for address in addresses if address.key_env is not None})
    trusted = [each.name for each in members if not each.checkpoint.is_remote and each.checkpoint.trust_remote_code]
    command += [f"--trust-remote-code={name}" for name in trusted]
    if any(address.is_openai and address.key_env is None for address in addresses):
        keys.append("OPENAI_API_KEY")
    # Not the folder: its .env may have the keys of other services.
    mounts = {f"./{file.name}": f"{place}/{file.name}", **{path: path for path in paths}}
    service: dict[str, Any] = {
        "build": ".",
        "command": [_literal(word) for word in command],
        # The port is published on this machine alone, but other containers reach it too, so it has a key.
        "environment": {**{key: _required(key) for key in ("ADVISOR_API_KEY", *keys)}, "HF_TOKEN": "${HF_TOKEN:-}"},
        "ports": ["127.0.0.1:8000:8000"],
        "volumes": [
            "cache:/cache",
            # The long form: a path may have a colon in it.
            *(
                {"type": "bind", "source": _literal(source), "target": _literal(target), "read_only": True}
                for source, target in mounts.items()
            ),
        ],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "healthcheck": _healthcheck("python"),
        "restart": "unless-stopped",
        # The server ends when all accepted requests are answered; Compose's own limit is 10 seconds.
        "stop_grace_period": "2m",
    }
    if vllm:
        service["depends_on"] = {name: {"condition": "service_healthy"} for name in vllm}
    return service


def _vllm(address: ServerAddress, gpu: int) -> Any:
    """The service of a member behind vLLM, on the GPU with a number."""
    # Not the image's own entry point, which has changed between releases.
    command = [address.model, "--port=8000", f"--served-model-name={address.model}"]
    if address.revision is not None and COMMIT.fullmatch(address.revision):
        command.append(f"--revision={address.revision}")
    if address.tokenizer is not None:
        # A step may need more than vLLM's 20: for k above it, and where special tokens are among the likeliest.
        command.append("--max-logprobs=64")
    key = {} if address.key_env is None else {"VLLM_API_KEY": _required(address.key_env)}
    # By number: with a count, every service would get the first GPU.
    devices = [{"driver": "nvidia", "device_ids": [str(gpu)], "capabilities": ["gpu"]}]
    return {
        "image": _VLLM,
        "entrypoint": ["vllm", "serve"],
        "command": command,
        "environment": {**key, "HF_HOME": "/cache", "HF_TOKEN": "${HF_TOKEN:-}"},
        "volumes": ["weights:/cache"],
        "deploy": {"resources": {"reservations": {"devices": devices}}},
        "shm_size": "4gb",
        "healthcheck": _healthcheck("python3"),
        "restart": "unless-stopped",
    }


def _healthcheck(python: str) -> Any:
    code = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"
    # The first start downloads weights; a success before the end of that time counts at once.
    return {"test": ["CMD", python, "-c", code], "interval": "10s", "timeout": "10s", "start_period": "30m"}


def _scraped(vllm: Mapping[str, ServerAddress]) -> Any:
    targets = {"advisor": ["advisor:8000"], "vllm": [f"{name}:8000" for name in vllm]}
    jobs = [{"job_name": job, "static_configs": [{"targets": places}]} for job, places in targets.items() if places]
    return {"global": {"scrape_interval": "15s"}, "scrape_configs": jobs}


def _literal(text: str) -> str:
    """A text in which Compose replaces nothing."""
    return text.replace("$", "$$")


def _required(name: str) -> str:
    """The value of a variable of the environment, without which Compose does not start."""
    return f"${{{name}:?set it in the environment or in .env}}"


def _yaml(content: Any) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120))
