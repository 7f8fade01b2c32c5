"""Several language models write one text together: the UNITE decoder.

from ensemble import Ensemble

e = Ensemble.from_pretrained([PATH_OR_ID, PATH_OR_ID])
print(e.generate(["Question: ..."])[0].text)

The names in ``__all__`` are the documented interface. Modules below this package may move between releases.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Type checkers and the reference of the documentation read these imports; _MODULES has the same names for run time.
    from ensemble.api import Ensemble
    from ensemble.common.grammar import Grammar
    from ensemble.decode.sequences import Counts, Generation
    from ensemble.decode.settings import Batch, Settings
    from ensemble.errors import InputError, MemberError, PromptTooLongError, UniteError
    from ensemble.methods import Method, get_method, get_module, list_methods, make_options
    from ensemble.models.load import load_member
    from ensemble.models.prompts import Dialogue, Sourced
    from ensemble.models.spec import Checkpoint, EnsembleSpec, ModelSpec, Sides
    from ensemble.step.distribution import Distribution
    from ensemble.step.token_method import Setup, TokenRule
    from ensemble.step.trace import Candidate, Step

__all__ = [
    "Batch",
    "Candidate",
    "Checkpoint",
    "Counts",
    "Dialogue",
    "Distribution",
    "Ensemble",
    "EnsembleSpec",
    "Generation",
    "Grammar",
    "InputError",
    "MemberError",
    "Method",
    "ModelSpec",
    "PromptTooLongError",
    "Settings",
    "Setup",
    "Sides",
    "Sourced",
    "Step",
    "TokenRule",
    "UniteError",
    "get_method",
    "get_module",
    "list_methods",
    "load_member",
    "make_options",
]

_MODULES = {
    "ensemble.api": ("Ensemble",),
    "ensemble.common.grammar": ("Grammar",),
    "ensemble.decode.sequences": ("Counts", "Generation"),
    "ensemble.decode.settings": ("Batch", "Settings"),
    "ensemble.errors": ("InputError", "MemberError", "PromptTooLongError", "UniteError"),
    "ensemble.methods": ("Method", "get_method", "get_module", "list_methods", "make_options"),
    "ensemble.models.load": ("load_member",),
    "ensemble.models.prompts": ("Dialogue", "Sourced"),
    "ensemble.models.spec": ("Checkpoint", "EnsembleSpec", "ModelSpec", "Sides"),
    "ensemble.step.distribution": ("Distribution",),
    "ensemble.step.token_method": ("Setup", "TokenRule"),
    "ensemble.step.trace": ("Candidate", "Step"),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    # Imports at the top would load torch, and with it seconds of start-up, for `advisor --help` too.
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(module), name)
    globals()[name] = value  # the next use finds the name without this function
    return value
