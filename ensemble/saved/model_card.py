"""The model card of a saved ensemble: its members, how to load it, and the evidence for it, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble.common.extras import wheel_to_install
from ensemble.models.spec import EnsembleSpec, ModelSpec

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from ensemble.models.prompts import ServedTask

MARKER = (
    "<!-- Written by unite-advisor, and written again when this is saved again: delete this line to keep changes. -->"
)
_TEMPLATE = Path(__file__).parent / "templates" / "card.md.j2"
_SPECIAL = re.compile(r"([\\`*_{}<>#|~&$!])")
# Some renderers read an escaped bracket as the beginning of a formula.
_BRACKETS = {ord("["): "&#91;", ord("]"): "&#93;"}
_NO_EVIDENCE = (
    "## Evidence\n\nNothing was measured for this card. `advisor select` profiles models for a task and runs the set "
    "on held-out questions, and `advisor export` writes a card with the results."
)


def escaped(text: str) -> str:
    """An untrusted text for a line of Markdown or a cell of a table, without markup."""
    # White space too, because a line break would end the cell of a table.
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).translate(_BRACKETS)


def prompt_section(task: ServedTask | None) -> str:
    """How the prompts of the task were made, as a section of a card; empty if that is not known."""
    if task is None or task.template is None:
        return ""
    template, examples = task.template, sum(map(bool, task.template.shots.values()))
    before = " after the worked examples that this folder holds" if examples else ""
    # Longer than any fence within it.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", template.question)), default=0))
    return (
        f"## Prompts\n\nThe models were chosen for prompts of this form{before}, and other wordings may give other "
        f"results:\n\n{fence}jinja\n{template.question}\n{fence}\n\n`advisor run` and `advisor serve` make the prompt "
        "of a question. With `--raw`, and in Python, a prompt is sent as it is."
    )


def model_card(
    spec: EnsembleSpec, title: str = "Ensemble", evidence: str = _NO_EVIDENCE, results: Sequence[EvalResult] = ()
) -> str:
    """The card of a saved ensemble; the title is escaped here, and untrusted parts of ``evidence`` already."""
    from huggingface_hub import ModelCard, ModelCardData

    members = spec.members
    # The metadata can name only models on the hub.
    loaded = [member for member in members if not member.is_remote]
    ids = [member.weights.path_or_id for member in loaded if not member.weights.is_local]
    trusted = [_place(member) for member in loaded if member.weights.trust_remote_code]
    data = ModelCardData(
        base_model=list(dict.fromkeys(ids)) or None,
        tags=["ensemble", "unite-advisor", spec.method],
        pipeline_tag="text-generation",
        library_name="unite-advisor",
        # huggingface_hub requires a name if there are results.
        model_name=title if results else None,
        eval_results=list(results) or None,
    )
    card = ModelCard.from_template(
        data,
        template_path=str(_TEMPLATE),
        marker=MARKER,
        title=escaped(title),
        rows=[_row(n, member) for n, member in enumerate(members)],
        method=spec.method,
        k=spec.k,
        weights=_weights(spec),
        options=escaped(", ".join(f"{name}={value!r}" for name, value in spec.options.items())),
        local=len(ids) < len(loaded),
        servers=len(loaded) < len(members),
        trusted=", ".join(trusted),
        package=wheel_to_install(local=True),
        loading=", ".join(dict.fromkeys(member.dtype or "auto" for member in loaded)),
        prompts=prompt_section(spec.task),
        evidence=evidence.strip(),
    )
    return f"{str(card).rstrip()}\n"


def _weights(spec: EnsembleSpec) -> str:
    return ", ".join(f"{weight:.3g}" for weight in spec.weights or ())


def _row(number: int, member: ModelSpec) -> Mapping[str, Any]:
    behind_server = member.is_remote
    unmarked = "not known" if behind_server else "by its files"
    dtype = f"{member.dtype or 'auto'}{', quantised' if member.quantization is not None else ''}"
    return {
        "role": "primary" if number == 0 else str(number + 1),
        "name": _place(member),
        "revision": f"`{escaped(member.checkpoint.revision)}`" if member.checkpoint.revision else unmarked,
        "dtype": "the server's" if behind_server else dtype,
        "template": member.chat_template or "auto",
    }


def _place(member: ModelSpec) -> str:
    if member.checkpoint.is_remote:
        return f"{escaped(member.name)} (a server: {escaped(member.checkpoint.path_or_id)})"
    checkpoint, name = member.checkpoint, escaped(member.name)
    if checkpoint.is_local:
        return f"{name} (a path)"
    file = f", file {escaped(checkpoint.gguf)}" if checkpoint.gguf else ""
    # The member's name is shown only if it differs from the model's name.
    link = f"[{escaped(checkpoint.path_or_id)}](https://huggingface.co/{checkpoint.path_or_id})"
    return link + file if name == escaped(checkpoint.name) else f"{name}: {link}{file}"
