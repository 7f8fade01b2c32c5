"""Where what was computed is kept for the next time."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """``unite-advisor`` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "unite-advisor"
