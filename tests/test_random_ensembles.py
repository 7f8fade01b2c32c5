"""Random ensembles of many architectures, vocabularies and methods: every way to decode writes the same texts."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_decoder import SCRIPT
from test_decoder_models import CACHED
from tiny import MADE_UP, PROMPTS, TEXTS, tiny_model, tokenizer_named
from ways import decode, differences

from benchmarks._models import writing
from ensemble import Ensemble
from ensemble.decode.settings import Settings
from ensemble.models.load import member_of
from ensemble.models.member import Member

METHODS = ("unite", "unite", "unite", "gac", "geometric", "safe", "gac-threshold")
NUMBER = 100
"""Ensembles that the benchmark takes; the test takes some."""
TEXTS_EACH = 2


@cache
def member_with(arch: str, tokenizer: str, seed: int) -> Member:
    model = tiny_model(tokenizer_named(tokenizer), seed, arch, sharpness=2 + seed)
    return member_of(model, tokenizer_named(tokenizer), name=f"{arch} {tokenizer} {seed}", chat_template="never")


def differing(number: int, tables: Path) -> list[str]:
    """Where an ensemble's ways to decode differ from plain decoding, greedily and with draws."""
    chance = random.Random(f"ensemble {number}")
    # Each architecture is the primary of some ensembles; the others of an ensemble are drawn.
    archs = [CACHED[number % len(CACHED)], *chance.sample(CACHED, chance.choice((1, 1, 2)))]
    members = [member_with(arch, chance.choice([*MADE_UP]), chance.randint(0, 1)) for arch in archs]
    weights = [chance.choice((1.0, 2.0)), *(1.0 for _ in members[1:])]
    ensemble = Ensemble(
        members, method=chance.choice(METHODS), k=chance.choice((1, 2, 5, 10, 20)), weights=weights, cache_dir=tables
    )
    texts = chance.sample([*PROMPTS, *(text for text in TEXTS.values() if text)], 2 * TEXTS_EACH)
    # To the primary some are the same ("James" and " James"), and equal prompts have different draws in a batch.
    prompts = [*{tuple(ensemble.encode(text)[0]): text for text in texts}.values()][:TEXTS_EACH]
    own: dict[str, Any] = {
        "max_new_tokens": chance.choice((8, 16, 24)),
        "stop": chance.choice(((), (), ("e",), ("\n", "ab"))),
    }
    drawn = Settings(**own, temperature=chance.choice((0.5, 1.0, 1.5)), top_p=chance.choice((0.8, 1.0)), seed=number)
    # At 0 the primary is as random as the others; else it is rather sure of hard texts, and its drafts are long.
    text = b"".join(SCRIPT).decode(errors="ignore")
    with writing(members[0], text, strength=chance.choice((0.0, 6.0, 14.0))):
        return [
            f"{way}, {settings}"
            for settings in (Settings(**own), drawn)
            for way in differences(ensemble, prompts, settings, decode(ensemble, prompts, settings))
        ]


@pytest.mark.parametrize("number", range(0, NUMBER, 17))
def test_every_way_to_decode_writes_the_same(number: int, tables: Path) -> None:
    assert differing(number, tables) == []
