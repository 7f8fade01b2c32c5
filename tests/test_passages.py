"""Long texts scored piece by piece: the same as at once, whatever their pieces and batches are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tiny import PROMPTS, SENTENCES, member, passes_of

from ensemble import Ensemble
from ensemble.errors import InputError
from ensemble.score import Passage

TEXTS = [SENTENCES[0], SENTENCES[4][:40], "James's 🙂 12", "e"]


def passage(ensemble: Ensemble, prompt: str, text: str) -> Passage:
    return Passage(ensemble.encode(prompt), ensemble.members[0].vocabulary.continue_ids(text.encode()))


@pytest.mark.parametrize(
    ("names", "arch", "config"),
    [
        (("bytes",), "llama", {}),
        (("bytes", "unigram with bytes"), "llama", {}),
        (("unigram with bytes", "bytes", "bytes"), "gpt2", {}),
        (("unigram with bytes", "bytes"), "recurrent_gemma", {"layers": 3}),
    ],
)
def test_a_passage_has_the_score_of_an_option(
    names: tuple[str, ...], arch: str, config: dict[str, Any], tables: Path
) -> None:
    members = [member(name, n, arch if n else "llama", **(config if n else {})) for n, name in enumerate(names)]
    ensemble = Ensemble(members, cache_dir=tables)
    passages = [passage(ensemble, prompt, text) for prompt, text in zip(PROMPTS, TEXTS, strict=False)]
    found = dict(ensemble.score_passages(passages, 3))
    for n, (prompt, text) in enumerate(zip(PROMPTS, TEXTS, strict=False)):
        assert found[n] == pytest.approx(ensemble.score(prompt, [text])[0], abs=1e-6 * len(text))


def test_each_token_is_read_hardly_more_than_once(tables: Path) -> None:
    alone = member("bytes", 5)
    ensemble = Ensemble([alone], cache_dir=tables)
    text = passage(ensemble, "x", "y" * 700)
    with passes_of(alone.model) as passes:
        assert len(dict(ensemble.score_passages([text]))) == 1
    assert len(text.tokens) == 700
    assert sum(rows * columns for rows, columns in passes) <= 700 + 2 * len(passes)


def test_a_passage_that_the_primary_cannot_write_has_no_chance_and_an_empty_one_is_sure(tables: Path) -> None:
    ensemble = Ensemble([member("unigram"), member("bytes", 1)], cache_dir=tables)
    (prompts,) = [ensemble.encode("the")]
    unknown = member("unigram").tokenizer.unk_token_id
    passages = [Passage(prompts, [unknown]), Passage(prompts, []), passage(ensemble, "the", "the")]
    found = dict(ensemble.score_passages(passages))
    assert found[0] == -math.inf
    assert found[1] == 0
    assert found[2] == pytest.approx(ensemble.score("the", ["the"])[0])


@pytest.mark.parametrize("place", [0, 1])
def test_a_passage_that_does_not_fit_a_context_is_refused(place: int, tables: Path) -> None:
    members = [member("bytes"), member("unigram with bytes", 1)]
    members[place] = member("bytes", 3, positions=32)
    ensemble = Ensemble(members, cache_dir=tables)
    assert len(dict(ensemble.score_passages([passage(ensemble, "x" * 20, "y" * 13)]))) == 1
    with pytest.raises(InputError, match=r"^bytes-3: .* do not fit its context of 32"):
        dict(ensemble.score_passages([passage(ensemble, "x" * 20, "y" * 14)]))
