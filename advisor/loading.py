"""Loading models as the members of an ensemble, as the commands do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble.checkpoint import ChatTemplate, Checkpoint

if TYPE_CHECKING:
    from ensemble.ensemble import Ensemble


@dataclass(frozen=True, slots=True)
class Model:
    """A member as it is to be loaded; see :func:`ensemble.member.load_member`."""

    name: str
    checkpoint: Checkpoint
    device: str
    dtype: str
    chat_template: ChatTemplate


def load_ensemble(models: Sequence[Model], *, method: str, k: int, cache_dir: Path) -> Ensemble:
    """Load models, the primary first; one alone is an ensemble that decodes exactly as itself.

    Raises:
        InputError: What was given cannot be used.
        MemberError: A model failed while it was loaded.
    """
    from ensemble.ensemble import Ensemble
    from ensemble.member import load_member

    members = [
        load_member(m.checkpoint, name=m.name, device=m.device, dtype=m.dtype, chat_template=m.chat_template)
        for m in models
    ]
    return Ensemble(members, method=method, k=k, cache_dir=cache_dir / "tables")


def hush(*, quiet: bool = False) -> None:
    """Keep the libraries' own bars and warnings off the terminal: what matters of them is an error, or a note.

    Args:
        quiet: Whether the bars of downloads are to go too.
    """
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging

    # A bar for every file of weights would break into the run's own.
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # huggingface_hub types nearly all
    if quiet:
        disable_progress_bars()
