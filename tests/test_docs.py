"""The site: it is built without a warning, so no link of it leads nowhere, and needs no network to be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder


def test_site_is_built_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\bsrc=[\"']?https?:|<link[^>]*\bhref=[\"']?https?:|url\(https?:"
    )
    pages = [*site.rglob("*.html"), *site.glob("style/*.css")]
    assert [str(page.relative_to(site)) for page in pages if loading.search(page.read_text(encoding="utf-8"))] == []
