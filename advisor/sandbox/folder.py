"""The folder that a program may write to, and its removal, whatever the program has left in it."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from advisor.sandbox import guard


@contextmanager
def own_folder(*, unprivileged: bool) -> Iterator[str]:
    """A new folder that is removed at the end.

    Args:
        unprivileged: Whether it belongs to the user without rights, and not to this one.
    """
    folder = tempfile.mkdtemp(prefix="unite-advisor-")
    # Held open from the start: a program may put a link in the place of its folder.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if unprivileged:
            os.chown(folder, guard.UNPRIVILEGED, guard.UNPRIVILEGED)
        yield folder
    finally:
        with suppress(OSError):  # a program of the same user may have left a process that still writes, as on macOS
            os.fchmod(descriptor, 0o700)
            _empty(descriptor)
            os.rmdir(folder)  # noqa: PTH106  # the rest works with descriptors, and so does `os`
        os.close(descriptor)


def _empty(root: int) -> None:
    """Remove everything in a folder.

    Not shutil.rmtree, which calls itself for each level: 3,000 nested folders end it, and their path is longer than the
    system accepts. Here each folder's folders are moved up to the root first, so no path has more than two names.

    Args:
        root: The folder's descriptor.
    """
    # Random, since moving a folder onto another one fails, and the program may know any other name.
    prefix, moved = secrets.token_hex(8), 0
    folders = deque(_remove_files(root))
    while folders:
        name = folders.popleft()
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
        try:
            for inner in _remove_files(folder):
                moved += 1
                os.rename(inner, f"{prefix}-{moved}", src_dir_fd=folder, dst_dir_fd=root)
                folders.append(f"{prefix}-{moved}")
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=root)


def _remove_files(folder: int) -> list[str]:
    """Remove all but the folders, and make these accessible to their owner; the folders' names."""
    names = []
    with os.scandir(folder) as entries:
        for entry in list(entries):  # the list first: removing while reading may skip entries
            if entry.is_dir(follow_symlinks=False):
                # To be opened, to be emptied, and to be moved, which changes its entry `..`.
                os.chmod(entry.name, 0o700, dir_fd=folder)  # pathlib has no dir_fd
                names.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)  # as above
    return names
