"""Several language models with different vocabularies, one text: the UNITE decoder.

from ensemble import Ensemble

e = Ensemble.from_pretrained([PATH_OR_ID, PATH_OR_ID])
print(e.generate(["Question: ..."])[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ensemble.models.spec import Sourced

if TYPE_CHECKING:
    from ensemble.api import Ensemble
    from ensemble.decode.sequences import Generation

__all__ = ["Ensemble", "Generation", "Sourced"]


def __getattr__(name: str) -> object:
    """Load torch only when something of it is used: ``advisor --help`` imports this package too."""
    if name == "Ensemble":
        from ensemble.api import Ensemble

        return Ensemble
    if name == "Generation":
        from ensemble.decode.sequences import Generation

        return Generation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
