"""What ``advisor judge`` found, as lines of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.judge.corrected import FEWEST_LABELS
from advisor.records import signed
from ensemble.common.text import counted


def judge_lines(found: Mapping[str, Any]) -> list[str]:
    """The figures of ``advisor judge --json`` in words."""
    lines, best = [], found["best_single_model"]
    has_labels = any(each["labels"] for each in found["models"])
    for each in found["models"]:
        name, own, pair = each["model"], each["corrected"], each["difference"]
        line = f"{name}: the judge gives {each['judged']:.1f} points on {counted(each['n'], 'question')}"
        if own is None and has_labels:
            line += f"; {counted(each['labels'], 'label')}, and a correction needs at least {FEWEST_LABELS}"
        elif own is not None:
            low, high = own["interval"]
            kappa = "" if each["kappa"] is None else f", kappa {each['kappa']:.2f}"
            line += (
                f"; {counted(own['labels'], 'label')} correct that to {own['points']:.1f} (95% interval {low:.1f} to "
                f"{high:.1f}{kappa}), as precise as {own['worth']:.0f} labels alone"
            )
        if pair is not None:
            ends = " to ".join(map(signed, pair["interval"]))
            needed = "more questions" if pair["needed"] is None else f"about {pair['needed']:,} labels"
            line += f"; {signed(pair['points'])} points against {best} ({ends}; to show it takes {needed})"
        lines.append(f"{line}.")
        if each["same_text"]:
            lines.append(f"  Nearly all responses of {name} are the same text: they score by no answer.")
        if each["speaks_to_judge"]:
            lines.append(f"  {counted(each['speaks_to_judge'], 'response')} of {name} speak to the judge; read them.")
    for name in found["in_its_panel"]:
        lines.append(f"The judge {name} is a candidate, too, and judges prefer their own responses.")
    if found["first_wins"] is not None:
        lines.append(
            f"The response that the judge reads first wins {found['first_wins']:.0f}% of its decided verdicts."
        )
    if not has_labels:
        lines.append(
            f"A few labels of people correct these scores: --labels FILE, at least {FEWEST_LABELS} of a model."
        )
    return lines
