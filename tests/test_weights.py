"""The members' weights: from the dev questions, from each prompt's perplexity, and as numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pools import Place, Prepare
from tiny import byte_tokenizer, nllb_tokenizer, save_member, tiny_model, tiny_translator, unigram_tokenizer

from advisor.commands import check
from advisor.models.run_config import read_numbers
from advisor.run.folder import Run
from advisor.strategies.strategy import Decoded
from ensemble import Ensemble
from ensemble.decode.settings import Settings
from ensemble.errors import InputError, MemberError
from ensemble.models.load import load_member, member_of
from ensemble.models.member import Member
from ensemble.models.spec import Checkpoint, ModelSpec, Sides
from ensemble.score import perplexity_weights, prompt_loss

pytest_plugins = ["pools"]

PROMPTS = ["What is 3 + 4?\nAnswer:", "The cat sat on the mat.", "0123"]
SELECT = ("select", "--pool", "models.txt", "--task", "task.yaml", "--max-gap", "100", "--max-length-ratio", "1e9")
Select = Callable[[str], dict[str, Any]]
RECORDS = [{"question": f"{n} + {n} is {2 * n + n % 2}?", "answer": "BA"[n % 2]} for n in range(1, 25)]


@cache
def member(seed: int) -> Member:
    tokenizer = unigram_tokenizer(byte_fallback=True) if seed % 2 else byte_tokenizer(("What", " is"))
    return member_of(tiny_model(tokenizer, seed), tokenizer, name=f"m{seed}")


def weighed(weights: Any, tables: Path, method: str = "unite") -> Ensemble:
    return Ensemble([member(0), member(1)], method=method, weights=weights, cache_dir=tables)


@pytest.mark.parametrize("length", [2, 256, 257, 700])
def test_the_loss_of_a_prompt_is_that_of_one_pass_and_long_prompts_are_read_in_large_pieces(length: int) -> None:
    ids = [(7 * n) % 200 + 5 for n in range(length)]
    with torch.no_grad():
        logits = member(0).local.model(torch.tensor([ids])).logits[0, :-1]
    expected = -float(logits.log_softmax(1).gather(1, torch.tensor(ids[1:])[:, None]).mean())
    passes: list[int] = []
    count = member(0).local.model.register_forward_hook(lambda *_: passes.append(1))
    assert prompt_loss(member(0), ids) == pytest.approx(expected, abs=1e-9)
    count.remove()
    assert len(passes) == 1 + math.ceil((length - 1) / 256)


def test_a_member_counts_more_the_less_the_prompt_surprises_it() -> None:
    prompts = [each.encode_prompt(PROMPTS[0]) for each in (member(0), member(1))]
    losses = [prompt_loss(each, ids) for each, ids in zip((member(0), member(1)), prompts, strict=True)]
    shares = [math.exp(-loss) for loss in losses]
    expected = [share / sum(shares) for share in shares]
    assert perplexity_weights([member(0), member(1)], prompts) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("method", ["unite", "gac", "geometric"])
def test_each_prompt_is_decoded_with_the_weights_that_it_decides(method: str, tmp_path: Path) -> None:
    expected = []
    for prompt in PROMPTS:
        ids = [member(0).encode_prompt(prompt), member(1).encode_prompt(prompt)]
        numbers = weighed(perplexity_weights([member(0), member(1)], ids), tmp_path, method)
        expected.append((numbers.generate([prompt], max_new_tokens=24)[0].text, numbers.score(prompt, [" a", " The"])))
    ensemble = weighed("perplexity", tmp_path, method)
    texts = [each.text for each in ensemble.generate(PROMPTS, max_new_tokens=24)]
    questions = [ensemble.encode_options(prompt, [" a", " The"]) for prompt in PROMPTS]
    scores = [[score.value for score in each] for _, each in sorted(ensemble.score_each(questions))]
    assert list(zip(texts, scores, strict=True)) == expected


def test_weights_of_each_prompt_are_saved_by_name(tmp_path: Path) -> None:
    pair = (("a", member(0)), ("b", member(1)))
    places = [save_member(tmp_path / name, each.local.model, each.tokenizer) for name, each in pair]
    loaded = Ensemble.from_pretrained(places, weights="perplexity", dtype="float64", cache_dir=tmp_path)
    loaded.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "ensemble.json").read_text())["weights"] == "perplexity"
    made = Ensemble.from_pretrained(tmp_path / "saved", cache_dir=tmp_path).generate(PROMPTS, max_new_tokens=8)
    here = weighed("perplexity", tmp_path).generate(PROMPTS, max_new_tokens=8)
    assert [each.text for each in made] == [each.text for each in here]


@pytest.mark.parametrize(
    ("method", "what", "message"),
    [
        ("unite", lambda each: each.decoder(), "weights perplexity: each prompt has its own weights"),
        ("unite", lambda each: each.score_passages([]), "a passage has no prompt to weigh the members by"),
        ("sweetspan", None, "method sweetspan"),
    ],
)
def test_where_prompts_cannot_decide_it_is_refused(method: str, what: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        made = Ensemble([member(0), member(1), member(2)], method=method, weights="perplexity", cache_dir=tmp_path)
        what(made)


def test_a_model_with_an_encoder_has_no_perplexity_of_the_prompt(tmp_path: Path) -> None:
    folder = save_member(tmp_path / "nllb", tiny_translator(nllb_tokenizer(), 4, "m2m_100"), nllb_tokenizer())
    checkpoint = Checkpoint(str(folder), sides=Sides(target="deu_Latn"))
    translator = load_member(ModelSpec(checkpoint, "translator", dtype="float64"))
    ensemble = Ensemble([member(0), translator], weights="perplexity", cache_dir=tmp_path)
    with pytest.raises(InputError, match="translator: weights perplexity needs causal models"):
        ensemble.generate(PROMPTS[:1])


def test_a_prompt_that_fails_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, found = weighed("perplexity", tmp_path), []
    start = ensemble._started

    def started(number: int, *more: Any) -> Any:
        if number == 0:
            raise MemberError("it failed")
        return start(number, *more)

    monkeypatch.setattr(ensemble, "_started", started)
    with pytest.raises(MemberError, match="it failed"):
        for number, _ in ensemble.generate_each([ensemble.encode(prompt) for prompt in PROMPTS], Settings(4)):
            found.append(number)  # kept although the loop ends by an error
    assert sorted(found) == [1, 2]


# In the commands


@pytest.fixture
def chosen(place: Place, models: Path, prepare: Prepare) -> Place:
    """A place with a choice task, on which every model is right sometimes, and a run with weights by accuracy."""

    def make() -> None:
        place.job(models)
        place.task(RECORDS, prompt="{{question}}", choices=["A", "B"], metric="choice")
        assert place.advisor(*SELECT, "--weights", "accuracy", "--out", "accuracy", "--quiet").err == ""

    prepare("weights of choices", place, make)
    return place


@pytest.fixture
def selected(place: Place, models: Path, prepare: Prepare) -> Select:
    """Makes a run with some weights, once for all tests, of whose texts no model knows the right one; its result."""

    def select(weights: str) -> dict[str, Any]:
        def make() -> None:
            place.job(models)
            assert place.advisor(*SELECT, "--weights", weights, "--out", weights, "--quiet").err == ""

        prepare(f"weights {weights}", place, make)
        found: dict[str, Any] = place.json(f"{weights}/result.json")
        return found

    return select


def test_weights_follow_from_the_dev_questions(chosen: Place) -> None:
    found = chosen.json("accuracy/result.json")
    own = {each["model"]: each["accuracy"] for each in found["candidates"]}
    expected = [own[name] / 100 for name in found["selected"]]
    assert len(expected) == 3
    assert found["ensemble"]["weights"] == pytest.approx(expected, abs=1e-12)


def test_numbers_follow_the_lines_of_the_pool(selected: Select) -> None:
    found = selected("9,2,1")
    numbers = {"alpha": 9.0, "beta": 2.0, "gamma": 1.0}
    assert found["ensemble"]["weights"] == [numbers[name] for name in found["selected"]]


def test_a_run_decodes_with_the_weights_of_its_folder(place: Place, models: Path, selected: Select) -> None:
    found = selected("9,2,1")
    ran = place.advisor("run", "9,2,1", "What is 7 + 7?\nAnswer:", "--method", "unite")
    assert ran.status == 0
    weights = found["ensemble"]["weights"]
    ensemble = Ensemble.from_pretrained([models / name for name in found["selected"]], weights=weights)
    (expected,) = ensemble.generate(["What is 7 + 7?\nAnswer:"], max_new_tokens=6)
    assert ran.out.strip() == expected.text.strip()


@pytest.mark.parametrize("weights", ["9,2,1", "perplexity"])
def test_a_strategy_named_by_the_user_keeps_the_weights(place: Place, selected: Select, weights: str) -> None:
    found = selected(weights)
    ran = place.advisor("export", weights, "saved", "--strategy", "unite")
    assert ran.status == 0, ran.err
    assert place.json("saved/ensemble.json")["weights"] == found["ensemble"]["weights"] is not None


def test_a_check_decodes_with_the_weights_of_the_run(place: Place, selected: Select) -> None:
    selected("9,2,1")
    found = Run.open(place.folder / "9,2,1").result.ensemble
    assert found is not None and isinstance(found.weights, tuple)
    names = [each.model for each in found.members]
    entries = [SimpleNamespace(name=name) for name in ("other", *reversed(names))]
    by_name = dict(zip(names, found.weights, strict=True))
    text = check._weights(found, Decoded(tuple(names), "unite"), entries)  # type: ignore[arg-type]
    assert read_numbers(text) == (0.0, *(by_name[name] for name in reversed(names)))
    assert check._weights(found, Decoded(tuple(names), "gac"), entries) == "equal"  # type: ignore[arg-type]


def test_a_server_refuses_weights_of_each_prompt_before_it_loads_models(place: Place, selected: Select) -> None:
    selected("perplexity")
    ran = place.advisor("serve", "perplexity", "--method", "unite", "--port", "0")
    assert ran.status == 2
    assert "weights perplexity: each prompt has other weights" in ran.err


def test_weights_of_a_run_that_do_not_fit_are_refused(place: Place, selected: Select) -> None:
    selected("9,2,1")
    for weights in [[], [1], [0, 0, 0], [1, 2, 3, 4]]:
        place.edit(lambda result, weights=weights: result["ensemble"].update(weights=weights), "9,2,1/result.json")
        ran = place.advisor("run", "9,2,1", "What is 7 + 7?", "--method", "unite")
        assert (ran.status, ran.out) == (2, "")
        assert "weights should be 3 numbers" in ran.err


def test_evaluate_weighs_the_members_and_leaves_out_what_takes_no_weights(chosen: Place) -> None:
    common = ("evaluate", "accuracy", "--task", "task.yaml", "--json", "--quiet", "--methods", "unite,sweetspan")
    ran = chosen.advisor(*common, "--weights", "accuracy")
    assert (ran.status, ran.err) == (0, "")
    found = json.loads(ran.out)
    unite, sweetspan, _ = found["methods"]
    assert (found["weights"], unite["left_out"]) == ("accuracy", None)
    assert "weights" in sweetspan["left_out"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("1,2", "--weights 1,2: 2 numbers for 3 models; give one for each"),
        ("best", "--weights best: give equal, accuracy, perplexity, or numbers such as 2,1,1"),
        ("1,-1,1", "--weights 1,-1,1: each number must be 0 or more, and one of them above 0"),
        ("0,0,0", "--weights 0,0,0: each number must be 0 or more, and one of them above 0"),
    ],
)
def test_other_weights_are_refused(place: Place, models: Path, weights: str, message: str) -> None:
    place.job(models)
    assert message in place.refused(*SELECT, "--weights", weights, "--out", "run")
