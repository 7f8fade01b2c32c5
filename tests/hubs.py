"""Fixtures: the hub's library asks a small hub on this machine, or one that is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from hubserver import WRITER, hub_of

from ensemble.models.hub import told


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Let the hub be at an address, with nothing downloaded yet."""

    def is_at(address: str) -> None:
        huggingface_hub.close_session()
        told.clear()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)  # only newer releases have it
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield is_at
    huggingface_hub.close_session()


@pytest.fixture
def serve(hub: Callable[[str], None]) -> Iterator[Callable[[Path], Any]]:
    """Let the hub have the models of a folder; see `hub_of`."""
    servers: list[tuple[HTTPServer, threading.Thread]] = []

    def has(models: Path) -> Any:
        small = hub_of(models)
        server = HTTPServer(("127.0.0.1", 0), small)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        hub(f"http://127.0.0.1:{server.server_port}")
        return small

    yield has
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def shelf(models: Path, tmp_path: Path, serve: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models of a hub that can be written to, as the files of a folder."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in ("alpha", "beta"):
        (shelf / name).symlink_to(models / name)
    serve(shelf)
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    return shelf


@pytest.fixture
def small_hub(serve: Callable[[Path], Any], models: Path) -> Any:
    return serve(models)
