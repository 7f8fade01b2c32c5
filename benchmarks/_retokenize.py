"""The cost of reading an emitted text in another member's ids, for texts in which words seldom end.

The text arrives as a decoder gives it: the bytes of one token of another vocabulary after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice

from benchmarks._measure import Figure, Timer, ratio, spread
from benchmarks._texts import KINDS, text_of
from ensemble.vocabulary.retokenize import Continuation
from ensemble.vocabulary.token_bytes import Vocabulary

EARLY, LATE = 500, 2000
"""Tokens of the text at the two places that are compared."""
ROWS = 16
_REPEATS = 3
COST = "retokenize_ms_per_token"
RATIO_LIMIT, COST_LIMIT = "at most 1.3", "at most 0.05"


def retokenize_figures(
    vocabularies: Mapping[str, Vocabulary], pairs: Sequence[tuple[str, str]], timer: Timer, scale: float
) -> list[Figure]:
    """How the cost of a token grows with the text, and what it is in a long one.

    Args:
        vocabularies: By name.
        pairs: The one that a text is read in, and the one whose tokens it arrives in.
        timer: How it is timed.
        scale: Of the lengths; 1 but for a trial.

    Returns:
        For each kind of text the growth, the worst of the pairs; and the worst of all kinds.
    """
    places = int(EARLY * scale), int(LATE * scale)
    length = places[1] + window(places[0])
    growth: dict[str, list[Figure]] = {kind: [] for kind in KINDS}
    costs: dict[tuple[str, str, str], Figure] = {}
    for kind in KINDS:
        for name, other in pairs:
            # The same text comes again and again, so that only what is before a place differs between the two.
            tokens = list(islice(cycle(pieces(kind, vocabularies[other], places[0])), length))
            note = f"{kind} in tokens of {other}, read in {name}"
            found = [
                seconds_at(vocabularies[name], [tokens], places, timer.now) for _ in range(timer.untimed + timer.rounds)
            ]
            early, late = zip(*found[timer.untimed :], strict=True)
            growth[kind].append(ratio(_growth_key(kind), late, early, limit=RATIO_LIMIT, note=note))
            new = pieces(kind, vocabularies[other], length)
            taken = [seconds_at(vocabularies[name], [new], places, timer.now, new=True)[1] for _ in range(timer.rounds)]
            costs[kind, name, other] = spread(
                COST, [1000 * one for one in taken], COST_LIMIT, f"{note}, for the first time"
            )
    worst = {kind: _worst(figures) for kind, figures in growth.items()}
    overall = _worst([*worst.values()])
    slowest = max(costs, key=lambda key: costs[key].value or 0.0)
    kind, name, other = slowest
    tokens = pieces(kind, vocabularies[other], length)
    # Rows of a batch are at other places of the text, so each reads other tokens.
    rows = [tokens[n:] + tokens[:n] for n in range(0, ROWS * 7, 7)]
    taken = [seconds_at(vocabularies[name], rows, places, timer.now, new=True)[1] for _ in range(timer.rounds)]
    many = [1000 * one / ROWS for one in taken]
    return [
        replace(overall, name=_growth_key(), note=f"the worst kind: {overall.note}"),
        *worst.values(),
        replace(costs[slowest], note=f"the worst kind: {costs[slowest].note}"),
        spread(f"{COST}_batch{ROWS}", many, COST_LIMIT, f"{costs[slowest].note}, {ROWS} rows, for each row"),
    ]


def pieces(kind: str, writer: Vocabulary, count: int) -> list[bytes]:
    """A text of a kind in the bytes of its first ``count`` tokens in a vocabulary."""
    length = 2 * count
    while True:
        ids = writer.continue_ids(text_of(kind, length).encode())
        # Ids without bytes, as the unknown token, are never emitted.
        data = list(islice((one for index in ids if (one := writer.token_bytes(index))), count))
        if len(data) == count:
            return data
        length *= 2


def seconds_at(
    vocabulary: Vocabulary,
    rows: Sequence[Sequence[bytes]],
    places: Sequence[int],
    now: Callable[[], float],
    *,
    new: bool = False,
) -> list[float]:
    """Seconds of a step of all rows around each of some places, the smallest first; as ``new`` text if wanted."""
    grown = []
    for _ in range(_REPEATS):
        if new:
            # What was kept of the texts before.
            vocabulary._short.clear()
        grown.append(_grow(vocabulary, rows, places, now))
    # Each step does the same work whenever the text is read; what it took at least is what no other process disturbed.
    least = [[min(same) for same in zip(*taken, strict=True)] for taken in zip(*grown, strict=True)]
    return [sum(taken) / len(taken) for taken in least]


def _grow(
    vocabulary: Vocabulary, rows: Sequence[Sequence[bytes]], places: Sequence[int], now: Callable[[], float]
) -> list[list[float]]:
    """Read rows token by token; for each place the seconds of the steps around it."""
    readers = [Continuation(vocabulary) for _ in rows]
    around = window(places[0])
    spent: Mapping[int, list[float]] = {place: [] for place in places}
    # From the beginning: what a reader keeps depends on how it came to where it is.
    for n, data in enumerate(islice(zip(*rows, strict=True), places[-1] + around)):
        place = next((place for place in places if place - around <= n < place + around), None)
        start = now()
        for reader, part in zip(readers, data, strict=True):
            reader.extend(part)
        if place is not None:
            spent[place].append(now() - start)
    return [*spent.values()]


def window(first: int) -> int:
    """Tokens on either side of a place that are timed there."""
    return max(1, first // 5)


def _growth_key(kind: str = "") -> str:
    return f"retokenize_{LATE}_over_{EARLY}" + (f"_{kind}" if kind else "")


def _worst(figures: Sequence[Figure]) -> Figure:
    return max(figures, key=lambda figure: figure.value or 0.0)
