"""Which servers a folder may name: what the user has allowed once is kept on this machine.

A run folder or an export may come from other people, so it cannot hold the consent to its own servers. The user's state
folder (``XDG_STATE_HOME``, or else ``~/.local/state``) holds it, by the SHA-256 of the file that names the servers: it
is valid wherever the folder is on this machine, and no longer where the file changed.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ensemble.common.files import sha256, write_text


def kept_servers(file: Path) -> tuple[str, ...]:
    """The URLs of the servers that the user has allowed for a file, as it is now."""
    try:
        return tuple(_place(file).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeError):
        return ()


def keep_servers(file: Path, urls: Collection[str]) -> None:
    """Keep the URLs of the servers that the user allows for a file, beside the earlier ones."""
    kept = kept_servers(file)
    if set(urls) <= set(kept):
        return
    # Where it cannot be written, the user is asked again.
    with suppress(OSError):
        write_text(_place(file), "".join(f"{url}\n" for url in dict.fromkeys((*kept, *urls))))


def _place(file: Path) -> Path:
    # Not the cache, which may be moved beside a run folder. Not Path.expanduser, which fails for a user without a name.
    state = Path(os.path.expanduser(os.environ.get("XDG_STATE_HOME") or "~/.local/state"))  # noqa: PTH111
    if not state.is_absolute():
        # The working folder may be a stranger's.
        raise FileNotFoundError(state)
    return state / "unite-advisor" / "servers" / sha256(file)
