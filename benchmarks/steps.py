"""A step of every token-level method over one of UNITE, on two real vocabularies: ``python -m benchmarks.steps``.

Two random models of one narrow layer lend their vocabularies and embeddings; the logits are random too, and no model is
run. A method with a gate is timed with the gate open. What is made once for some members (tables, mappings) is not
timed; EVA's and MinED's come from the cache folder after the first time. A step that takes over a second is timed just
once, and put over UNITE's of every round. Methods that refuse the pair are not measured, nor is deepen-adapt, which
needs accuracies and has deepen's step.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence

from benchmarks._decoding import GAC_LIMIT, K, random_logits, steps_of
from benchmarks._measure import Figure, Timer, arguments, parsed, peak_memory, progress, ratio, spread, tell
from benchmarks._models import Shape, random_member, vocabularies_note, vocabulary
from ensemble.errors import InputError
from ensemble.methods import DEFAULT, get_module, list_methods, make_options
from ensemble.models.member import Member
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import build

PAIR = ("llama-3", "qwen2")
LIMITS = {"gac": GAC_LIMIT, "deepen": "at least 50"}
_SLOW = 1.0
"""Seconds from which on a step is timed once."""
_ROUND = 0.1
"""Seconds that a method's steps take in a round."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure what is asked for, print it, keep it where asked."""
    methods = [name for name, method in list_methods().items() if method.level == "token"]
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", choices=methods[1:], action="append", help="just this method; several times for more")
    parser.add_argument("--width", type=int, default=16, help="of the embeddings, a multiple of 4")
    options = parsed(parser, given)
    members, note = _members(options)
    figures = _measure(members, [DEFAULT, *(options.only or methods[1:])], options, note)
    figures.append(Figure("peak_memory_mib", peak_memory(), note="the whole process, with two small models"))
    tell("steps", figures, options)
    return 0


def _members(options: argparse.Namespace) -> tuple[list[Member], str]:
    """Two models, and what they are in words."""
    shape = Shape(options.width, 1, 2, 2 * options.width)
    members = [random_member(name, *vocabulary(name, quick=options.quick), shape, sure=True) for name in PAIR]
    return members, f"{vocabularies_note(PAIR, quick=options.quick)}, embeddings of width {options.width}"


def _measure(members: Sequence[Member], methods: Sequence[str], options: argparse.Namespace, note: str) -> list[Figure]:
    joint = build([member.vocabulary for member in members])
    setup = Setup(members, joint, K, (1 / len(members),) * len(members))
    logits = random_logits([member.vocabulary.size for member in members])
    timer = Timer(options.rounds or (1 if options.quick else 15), options.clock)
    parts: dict[str, Callable[[], int]] = {}
    once: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name in methods:
        progress(f"benchmarks.steps: {name}")
        try:
            rule: TokenRule = get_module(name).make(setup, make_options(name, {}))
        except InputError as error:
            refused[name] = str(error)
            continue
        step = steps_of(rule.combine, logits, 1)
        seconds = timer.once(step)
        if seconds < _SLOW:
            # The first step may have had something to set up.
            seconds = max(timer.once(step), 1e-6)
            parts[name] = steps_of(rule.combine, logits, math.ceil(_ROUND / seconds))
        else:
            once[name] = seconds
    times = timer(parts)
    own = times[DEFAULT]
    figures = [spread(f"{DEFAULT}_ms", [1000 * seconds for seconds in own], note=note)]
    for name in methods[1:]:
        key, limit = f"{name.replace('-', '_')}_over_{DEFAULT}", LIMITS.get(name, "")
        if name in refused:
            figures.append(Figure(key, None, note=refused[name]))
        elif name in once:
            taken = f"one step of {once[name]:.0f} s, {note}"
            figures.append(ratio(key, [once[name]] * len(own), own, limit=limit, note=taken))
        else:
            figures.append(ratio(key, times[name], own, limit=limit, note=note))
    return figures


if __name__ == "__main__":
    sys.exit(main())
