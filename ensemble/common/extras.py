"""The optional parts of the installation: the libraries of each, and what to say where one is missing."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ensemble.errors import InputError

NAME = "unite-advisor"
EXTRAS = {
    "local": ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "datasets", "llguidance"),
    "tables": ("pandas", "pyarrow"),
    "ray": ("ray",),
    "inspect": ("inspect_ai",),
    "lm-eval": ("lm_eval",),
}
"""The modules that each extra brings and the code imports; tests hold the names against pyproject.toml."""


def is_installed(module: str) -> bool:
    """Whether a module can be imported."""
    return find_spec(module) is not None


def check_installed(module: str, what: str) -> None:
    """Check that a module of an extra is installed; `what` needs it."""
    if not is_installed(module) and (line := lacks(module, what)) is not None:
        raise InputError(line)


def lacks(module: str, what: str) -> str | None:
    """The line for what needs a module that is not installed; None if no extra brings the module."""
    extra = next((name for name, modules in EXTRAS.items() if module in modules), None)
    return None if extra is None else f"{what} needs {module}, which is not installed; {install(extra)}"


def install(extra: str) -> str:
    """The command that adds an extra to this installation."""
    origin = distribution(NAME).read_text("direct_url.json")
    # pip and uv write down which wheel or checkout they were given. Without it an index knows the package by its name.
    url = "" if origin is None else str(json.loads(origin)["url"])
    place = url2pathname(urlsplit(url).path) if url.startswith("file:") else NAME
    return f"pip install '{place}[{extra}]'"


def wheel_to_install(*, local: bool) -> str:
    """What pip is given on another machine, in a shell: the wheel beside it, because no index has the package yet."""
    return f"$(ls {wheel()}){'[local]' if local else ''}"


def wheel() -> str:
    """The name of this release's wheel; its last part is the platform."""
    return f"unite_advisor-{distribution(NAME).version}-*.whl"
