"""Where the gain of a strategy comes from, as a sentence for the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.records import join
from advisor.runs.schema.result import GroupFigures
from ensemble.common import text

_MOST_NAMED = 3
_LONGEST_NAME = 60
_ENOUGH = 0.8
"""The share of all gains that the named groups should have together."""
_MOST = 0.5
"""The share above which the named groups have most of the gain."""


def source_of_gain(groups: Sequence[GroupFigures]) -> str:
    """Name the groups of questions that give most of the gain, and count those that lose; empty without a gain."""
    sizes = {each.group: each.n * (each.gain or 0.0) for each in groups}
    # The estimate alone, which is shrunk towards the overall gain, is no gain of a group that measured none.
    gaining = sorted(
        (each for each in groups if sizes[each.group] > 0 and (each.observed is None or each.observed > 0)),
        key=lambda each: -sizes[each.group],
    )
    if len(groups) < 2 or not gaining or sum(sizes.values()) <= 0:
        return ""
    every, named, share = sum(sizes[each.group] for each in gaining), list[GroupFigures](), 0.0
    while share < _ENOUGH and len(named) < min(_MOST_NAMED, len(gaining)):
        named.append(gaining[len(named)])
        share += sizes[named[-1].group] / every
    names = join([f"{text.shortened(each.group, _LONGEST_NAME)} ({text.difference(each.gain)})" for each in named])
    part = "most of it" if share > _MOST else "the largest part"
    comes = "comes mostly from" if share >= _ENOUGH else f"is spread over {len(gaining)} groups, {part} in"
    losing = [each for each in groups if text.is_loss(each.gain)]
    proven = sum(each.shown == "no" for each in losing)
    losses = f"; {len(losing)} of {len(groups)} groups lose" if losing else ""
    return f"The gain {comes} {names}{losses}{f', {proven} of them by more than chance' if proven else ''}."
