"""Which language models can be ensembled, in which order, whether it pays, and how sure that is."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.api import SelectResult, select

__all__ = ["SelectResult", "select"]


def __getattr__(name: str) -> Any:
    # Imported when it is used, so that the command line begins at once, and handles Ctrl-C.
    if name not in __all__:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    from advisor import api

    return getattr(api, name)
