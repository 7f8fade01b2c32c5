"""Strategies as configuration of other programs, one file per program.

To add a program, add one file here, named like it with ``_`` in place of ``-``; no other code changes. It needs
``FILE`` and ``configuration``, as :class:`~advisor.exports.target.Target` describes them.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import cast

from advisor.exports.target import Target
from ensemble.errors import InputError


def target_named(name: str) -> Target:
    """The module of a program.

    Raises:
        InputError: No program has this name.
    """
    found = {module.name.replace("_", "-"): module.name for module in pkgutil.iter_modules(__path__)}
    del found["target"]
    if name not in found:
        batch = "; `advisor select --batch FOLDER` writes questions as batch files" if "batch" in name else ""
        raise InputError(f"--as {name}: not one of {', '.join(sorted(found))}{batch}")
    return cast(Target, import_module(f"{__name__}.{found[name]}"))
