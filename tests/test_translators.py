"""A translation model as a candidate: what a line of the pool says of it, and what it reads of a task."""

from __future__ import annotations

from pathlib import Path

import pytest
from pools import Place
from tiny import nllb_tokenizer, save_member, tiny_translator

from advisor.models.pool_file import read_pool
from ensemble import Ensemble, Sourced
from ensemble.models.spec import Checkpoint, Sides

pytest_plugins = ["pools"]

SENTENCES = ["The cat sat on the mat.", "James went to the shop.", "They went there.", "Is Paris in France?"]
RECORDS = [{"english": text, "german": text.upper()} for text in SENTENCES]
PROFILE = ("profile", "--pool", "models.txt", "--task", "task.yaml")


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_translator(nllb_tokenizer(), 4, "m2m_100")
    return save_member(tmp_path_factory.mktemp("translators") / "nllb", model, nllb_tokenizer())


def translations(place: Place) -> None:
    prompt = "English: {{english}}\nGerman:"
    place.task(RECORDS, prompt=prompt, source="{{english}}", reference="{{german}}", metric="chrf", max_new_tokens=4)


def test_a_line_names_languages_and_what_is_read(place: Place, nllb: Path) -> None:
    place.pool(f"{nllb} source=eng_Latn target=deu_Latn reads=prompt")
    (candidate,) = read_pool("models.txt")
    assert candidate.checkpoint.sides == Sides("eng_Latn", "deu_Latn", "prompt")


def test_a_candidate_translates_the_source_and_an_ensemble_is_made_with_it(
    place: Place, nllb: Path, models: Path
) -> None:
    translations(place)
    place.pool(f"{nllb} target=deu_Latn dtype=float32", f"{models / 'alpha'} dtype=float32")
    place.select("--quiet")
    result = place.json()
    assert {one["model"] for one in result["candidates"]} == {"nllb", "alpha"} == set(result["selected"])
    assert result["provenance"]["models"]["nllb"]["target"] == "deu_Latn"
    alone = Ensemble.from_pretrained([Checkpoint(str(nllb), sides=Sides(target="deu_Latn"))], k=1)
    lines = place.samples()
    assert len(lines) == len(SENTENCES)
    for line in lines:
        source = line["prompt"].removeprefix("English: ").removesuffix("\nGerman:")
        (wanted,) = alone.generate([Sourced("", source)], max_new_tokens=4)
        assert line["responses"]["nllb"]["text"] == wanted.text
    assert place.advisor("run", "run", "James went to the shop.", "--max-new-tokens", "2").status == 0


def test_a_candidate_without_its_language_fails_and_the_others_go_on(place: Place, nllb: Path, models: Path) -> None:
    translations(place)
    place.pool(str(nllb), str(models / "alpha"))
    ran = place.advisor(*PROFILE)
    assert ran.status == 0
    assert "nllb: it writes many languages; say which one, as target=deu_Latn does" in ran.err


def test_a_language_for_a_causal_candidate_is_refused_before_anything_is_run(place: Place, models: Path) -> None:
    translations(place)
    place.pool(f"{models / 'alpha'} target=deu_Latn")
    assert "a model of type llama has no encoder; leave target out" in place.refused(*PROFILE)


def test_what_is_read_is_the_source_or_the_prompt(place: Place, nllb: Path) -> None:
    translations(place)
    place.pool(f"{nllb} target=deu_Latn reads=both")
    assert "reads should be source or prompt, not 'both'" in place.refused(*PROFILE)
