"""Garbage collection around libraries: loading them makes millions of objects, which stay until the end."""

from __future__ import annotations

import gc

_SELDOM = (100_000, 50, 100)
_replaced: list[tuple[int, int, int]] = []
"""The thresholds that :func:`collect_seldom` has replaced; empty where it was not called."""


def collect_seldom() -> None:
    """Look for garbage seldom, until :func:`collect_as_usual`: it takes a tenth of the time in which libraries load."""
    if not _replaced:
        _replaced.append(gc.get_threshold())
    gc.set_threshold(*_SELDOM)


def collect_as_usual() -> None:
    """Look for garbage as often as before :func:`collect_seldom`; nothing where that was not called."""
    if _replaced:
        gc.set_threshold(*_replaced.pop())


def keep_present() -> None:
    """Exclude all present objects from collection, and look for garbage as usual."""
    gc.freeze()
    collect_as_usual()
