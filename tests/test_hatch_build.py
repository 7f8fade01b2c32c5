"""The build of the compiled step: with a C compiler, and without one."""

from __future__ import annotations

import ctypes
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hatchling.bridge.app import Application

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from hatch_build import LIBRARY, SOURCE, CompiledStep  # noqa: E402


def build(folder: Path) -> dict[str, Any]:
    """What the hook asks for where the sources are in this folder."""
    (folder / SOURCE).parent.mkdir(parents=True)
    shutil.copy(ROOT / SOURCE, folder / SOURCE)
    data: dict[str, Any] = {"artifacts": [], "pure_python": True}
    hook: Any = CompiledStep
    hook(str(folder), {}, None, None, str(folder / "dist"), "wheel", Application()).initialize("standard", data)
    return data


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_wheel_has_the_library_and_is_for_this_platform_and_every_python(tmp_path: Path) -> None:
    data = build(tmp_path)
    assert data["artifacts"] == [LIBRARY.as_posix()]
    assert data["tag"].startswith("py3-none-")
    assert not data["pure_python"]
    assert ctypes.CDLL(str(tmp_path / LIBRARY)).unite_union


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_compiler_the_wheel_is_for_every_platform(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert build(tmp_path) == {"artifacts": [], "pure_python": True}
    assert not (tmp_path / LIBRARY).exists()
