"""Between an ensemble and its recipe: what is saved of one in memory, and what is loaded of one that is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble.distributed.engine import Engine, load_members
from ensemble.errors import InputError
from ensemble.methods import DEFAULT
from ensemble.models.hub import check_on_hub
from ensemble.models.load import Loading, parse_device
from ensemble.models.member import Member
from ensemble.models.spec import ChatTemplate, Checkpoint, check
from ensemble.saved import folder as savedfolder
from ensemble.saved.ensemble_json import Part, Recipe
from ensemble.saved.model_card import model_card

if TYPE_CHECKING:
    from ensemble.api import Ensemble


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of :meth:`ensemble.Ensemble.from_pretrained` that go before what is saved; None where not given."""

    method: str | None = None
    k: int | None = None
    weights: Sequence[float] | None = None
    dtype: str | None = None
    chat_template: ChatTemplate | None = None
    quantization: object | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def of_models(self, models: Sequence[str | Path | Checkpoint]) -> Recipe:
        """The recipe of models that are given one by one."""
        places = [model if isinstance(model, Checkpoint) else Checkpoint(str(model)) for model in models]
        dtype, template = self.dtype or "float32", self.chat_template or "never"
        parts = tuple(Part(place, None, dtype, template, quantization=self.quantization) for place in places)
        return Recipe(parts, self.method or DEFAULT, 10 if self.k is None else self.k, self._weights, self.options)

    def over(self, saved: Recipe) -> Recipe:
        """A saved recipe with what was asked for in place of its own."""
        parts = tuple(
            replace(
                part,
                dtype=self.dtype or part.dtype,
                chat_template=self.chat_template or part.chat_template,
                quantization=savedfolder.quantization_of(part) if self.quantization is None else self.quantization,
            )
            for part in saved.parts
        )
        # Settings are those of a method; and members are weighed in one way.
        kept = dict(saved.options) if self.method in (None, saved.method) else {}
        weights = saved.weights if self.weights is None else self._weights
        if self.weights is not None:
            kept.pop("consistency", None)
        elif self.options.get("consistency"):
            weights = None
        return replace(
            saved,
            parts=parts,
            method=self.method or saved.method,
            k=saved.k if self.k is None else self.k,
            weights=weights,
            options={**kept, **self.options},
        )

    @property
    def _weights(self) -> tuple[float, ...] | None:
        return None if self.weights is None else tuple(self.weights)


def load_parts(parts: Sequence[Part], device: str | Sequence[str], engine: Engine = "local") -> list[Member]:
    """Load members, each on its device, after everything was checked that can be without reading weights.

    Raises:
        InputError: A device, a folder or an id cannot be used.
        MemberError: A model failed while it was loaded.
    """
    devices = [device] * len(parts) if isinstance(device, str) else list(device)
    if len(devices) != len(parts):
        raise InputError(f"{len(devices)} devices for {len(parts)} models; give one for each, or one for all")
    for part, place in zip(parts, devices, strict=True):
        if not part.checkpoint.is_local:
            check_on_hub(part.checkpoint)
        check(part.checkpoint)
        if engine == "local":
            parse_device(place)
    loadings = [
        Loading(
            part.checkpoint,
            part.name or part.checkpoint.name,
            place,
            part.dtype,
            part.chat_template,
            part.quantization,
        )
        for part, place in zip(parts, devices, strict=True)
    ]
    return load_members(loadings, engine)


def recipe_of(ensemble: Ensemble) -> Recipe:
    """What a loaded ensemble is made of, each member at a commit or with the hashes of its files.

    Raises:
        InputError: A member was made of a model in memory, or the hub names no commit of one.
    """
    parts = []
    for member in ensemble.members:
        loaded = member.loaded
        if loaded is None:
            raise InputError(
                f"{member.name}: it was not loaded from anywhere, so it cannot be named; save it, and load it"
            )
        place, files = savedfolder.pinned(loaded.checkpoint)
        parts.append(Part(place, member.name, loaded.dtype, member.chat_template, files, loaded.quantization))
    weights = None if len(set(ensemble.weights)) == 1 else ensemble.weights
    return Recipe(savedfolder.named(parts), ensemble.method, ensemble.k, weights, ensemble.options)


def save(recipe: Recipe, folder: Path, card: str | None, push_to_hub: str | None, *, private: bool) -> str | None:
    """Write a recipe into a folder, and push it where that is asked for; the address on the hub then.

    Raises:
        InputError: The folder has other things in it, or a member is local where it is to be pushed; nothing is
            written.
        UniteError: The folder cannot be written, or the hub refuses.
    """
    savedfolder.check_target(folder)
    if push_to_hub is not None:
        savedfolder.check_pushable(recipe)
    title = push_to_hub or folder.absolute().name
    savedfolder.write(folder, recipe, card if card is not None else model_card(recipe, title))
    return None if push_to_hub is None else savedfolder.push(folder, push_to_hub, private=private)
