"""Ensembles that write CSV, JSON, Markdown tables, LaTeX and Thai, against the judge and in every way to decode.

In these texts words seldom end, so a token may change many ids before it in another vocabulary.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from reference import generate
from test_decoder import TIE, Setting, available, both, outcome, parts
from texts import KINDS, text_of
from ways import decode, differences

from benchmarks._models import writing
from ensemble import Ensemble
from ensemble.decode.settings import Settings

LINES = [
    "pieces other_pieces",
    "sentencepiece pieces",
    "pieces unigram_with_bytes sentencepiece",
    "llama-2 gpt-2",
]
"""Combinations as in `test_decoder`."""
SETTINGS_EACH, TEXTS_EACH = 2, 3
"""Settings of each kind in each combination, and texts of a setting."""
SHARE = [*((kind, LINES[0]) for kind in KINDS), ("csv", LINES[1]), ("thai", LINES[2]), ("json", LINES[3])]
"""What the test takes of all that."""


def setting_of(kind: str, line: str, number: int) -> Setting:
    """How some beginnings of a text are continued, drawn by these names."""
    chance = random.Random(f"{kind} {line} {number}")
    text = text_of(kind, 1200)
    # Beginnings of different lengths, so that each text is continued at another place.
    ends = chance.sample(range(1, 90), TEXTS_EACH)
    weights = (chance.choice((1.0, 1.5, 3.0)), *(1.0 for _ in parts(line)[1:]))
    return Setting(
        k=chance.choice((1, 3, 10, 20)),
        weights=weights,
        stop=chance.choice(((), (), ("99",), ("\n", "ก"))),
        max_new_tokens=chance.choice((16, 24, 32)),
        prompts=tuple(text[:end] for end in ends),
    )


def differing(kind: str, line: str, number: int, tables: Path) -> list[str]:
    """Where the decoder differs from the judge, and its ways from each other, for the texts of one setting."""
    own = setting_of(kind, line, number)
    members, judges = zip(*(both(part) for part in parts(line)), strict=True)
    ensemble = Ensemble(members, k=own.k, weights=own.weights, cache_dir=tables)
    greedy = Settings(own.max_new_tokens, own.stop)
    drawn = Settings(own.max_new_tokens, own.stop, temperature=0.7, top_p=0.9, seed=number)
    with writing(members[0], text_of(kind, 1200), strength=14.0):
        plain = decode(ensemble, own.prompts, greedy)
        judged = [
            generate(judges, prompt, k=own.k, weights=own.weights, max_new_tokens=own.max_new_tokens, stop=own.stop)
            for prompt in own.prompts
        ]
        found = [
            f"reference: {prompt!r}"
            for prompt, made, judge in zip(own.prompts, plain, judged, strict=True)
            if judge.margin >= TIE and outcome(made) != (judge.ids, judge.text, judge.finish_reason)
        ]
        # After a tie the judge may have gone another way, so its steps say nothing.
        certain = () if found or any(judge.margin < TIE for judge in judged) else judged
        found += differences(ensemble, own.prompts, greedy, plain, certain)
        # The draws of the others differ from the text now and then, so every second setting is enough.
        if number % 2:
            found += differences(ensemble, own.prompts, drawn, decode(ensemble, own.prompts, drawn))
        return found


LONGEST = {("json", "llama-2 gpt-2"), ("latex", "pieces other_pieces")}
"""These take as long as all others together."""


def case_of(kind: str, line: str) -> Any:
    """The two as parameters of a test, which is skipped where vocabularies are absent."""
    marks = [pytest.mark.second_lane] if (kind, line) in LONGEST else []
    return pytest.param(kind, line, marks=[*available(line).marks, *marks])


@pytest.mark.parametrize(("kind", "line"), [case_of(kind, line) for kind, line in SHARE])
def test_every_way_to_decode_writes_what_the_reference_writes(kind: str, line: str, tables: Path) -> None:
    assert differing(kind, line, list(KINDS).index(kind) % SETTINGS_EACH, tables) == []
