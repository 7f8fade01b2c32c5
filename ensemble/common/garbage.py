"""Garbage collection around libraries: loading them makes millions of objects, which stay until the end."""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()
_SELDOM = (100_000, 50, 100)


def collect_seldom() -> None:
    """Look for garbage seldom from now on; otherwise it takes a tenth of the time in which the libraries load."""
    gc.set_threshold(*_SELDOM)


def keep_present() -> None:
    """Exclude all present objects from collection, and look for garbage as often as before :func:`collect_seldom`.

    A later collection, for example after each model or while a server decodes, does not visit them. What is garbage
    among them stays, which is next to nothing: to look for it takes a third of a second.
    """
    gc.freeze()
    gc.set_threshold(*_USUAL)
