"""One text's failure ends that text alone: the others of its batch are what they would be without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ensemble_api import writer
from tiny import byte_tokenizer, member, tiny_model
from ways import until_error

from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, MemberError, PromptTooLongError
from ensemble.models.load import member_of
from ensemble.models.member import Member
from ensemble.score import Passage
from ensemble.step.distribution import Distribution, sample

BAD = "0123456789"
"""The prompt whose text fails at its third step."""
GOOD = ["ab", "cde", "fg hi"]
NONE_LEFT, NAN = -math.inf, math.nan
NOT_NUMBERS = "broken: its logits are not numbers"


def broken(value: float, text: str = BAD) -> Member:
    """A member whose logits are all this value from the third token after a text on."""
    model = tiny_model(byte_tokenizer(), 3)
    wanted = byte_tokenizer()(text)["input_ids"]

    def spoil(_model: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        positions = kwargs.get("position_ids")
        columns = output.logits.shape[1]
        if positions is None:
            positions = torch.arange(kwargs["input_ids"].shape[1]).expand(len(output.logits), -1)
        output.logits[positions[:, -columns:] >= len(wanted) + 1] = value
        return output

    model.register_forward_hook(spoil, with_kwargs=True)
    return member_of(model, byte_tokenizer(), name="broken")


def decode(ensemble: Ensemble, prompts: Sequence[str], settings: Sequence[Settings]) -> dict[int, Any]:
    decoder = ensemble.decoder(Batch(draft=0))
    for number, (prompt, each) in enumerate(zip(prompts, settings, strict=True)):
        decoder.add(number, ensemble.encode(prompt), each)
    found: dict[int, Any] = {}
    while not decoder.done:
        found |= dict(decoder.step())
    return found


@pytest.mark.parametrize("method", ["unite", "safe", "gac-threshold"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [NAN, NONE_LEFT], ids=["nan", "no candidate"])
def test_a_text_without_a_token_ends_alone(value: float, temperature: float, method: str, tables: Path) -> None:
    ensemble = Ensemble([broken(value), member("unigram with bytes", 1)], method=method, cache_dir=tables)
    settings = [Settings(5, temperature=temperature, seed=n) for n in range(4)]
    wanted = decode(ensemble, GOOD, settings[:3])
    found = decode(ensemble, [*GOOD, BAD], settings)
    failed = found.pop(3)
    assert isinstance(failed, MemberError)
    assert "at step 3" in str(failed)
    assert found == wanted


@pytest.mark.parametrize("small", [{"top_p": 1e-300}, {"temperature": 1e-300}, {"temperature": 1e-45}])
def test_the_smallest_settings_choose_the_likeliest_token(small: dict[str, float], tables: Path) -> None:
    # In float32, where these numbers are zero.
    models = [tiny_model(byte_tokenizer(), seed).float() for seed in (1, 2)]
    ensemble = Ensemble([member_of(model, byte_tokenizer(), name="single") for model in models], cache_dir=tables)
    given = {"temperature": 1.0, **small}
    drawn = decode(ensemble, GOOD, [Settings(8, seed=n, **given) for n in range(3)])
    greedy = decode(ensemble, GOOD, [Settings(8)] * 3)
    assert [drawn[n].tokens for n in range(3)] == [greedy[n].tokens for n in range(3)]


def test_the_largest_temperature_still_draws(tables: Path) -> None:
    model = tiny_model(byte_tokenizer()).float()
    ensemble = Ensemble([member_of(model, byte_tokenizer(), name="single")], cache_dir=tables)
    assert ensemble.generate(["x"], max_new_tokens=4, temperature=1e300)[0].tokens


def test_a_draw_from_a_row_without_numbers_stays_inside_the_row() -> None:
    mean = torch.tensor([[NAN, NAN, NAN], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    ids = torch.tensor([[0, 1, 2]] * 3)
    step = Distribution(ids, ids >= 0, ids, mean[None], mean)
    ones = torch.ones(3)
    assert sample(step, ones, ones, torch.tensor([0.1, 0.1, 0.1])).tolist()[2] == 2
    assert bool((sample(step, ones, ones, torch.zeros(3)) >= 0).all())


@pytest.mark.parametrize("draft", [0, 12])
def test_the_other_texts_are_there_before_the_error_is_raised(draft: int, tables: Path) -> None:
    ensemble = Ensemble([broken(NAN)], cache_dir=tables)
    prompts = [ensemble.encode(prompt) for prompt in (GOOD[0], BAD, GOOD[1])]
    found = until_error(ensemble.generate_each(prompts, Settings(5), Batch(2, draft=draft)), NOT_NUMBERS)
    wanted = ensemble.generate([GOOD[0], GOOD[1]], max_new_tokens=5)
    assert [found[0], found[2]] == wanted


def test_a_model_that_fails_on_a_whole_batch_is_not_tried_on_all_prompts(tables: Path) -> None:
    ensemble = Ensemble([broken(NAN)], cache_dir=tables)
    decoder = ensemble.decoder(Batch(2))
    for number in range(6):
        decoder.add(number, ensemble.encode(BAD), Settings(5))
    with pytest.raises(MemberError):
        list(decoder)
    assert len(decoder.waiting) == 4


def test_a_stream_that_fails_raises(tables: Path) -> None:
    with pytest.raises(MemberError, match="at step 3"):
        list(Ensemble([broken(NAN)], cache_dir=tables).stream(BAD, max_new_tokens=9))


def test_ids_beyond_the_context_are_refused_when_they_are_added(tables: Path) -> None:
    decoder = Ensemble([writer(positions=64)], cache_dir=tables).decoder()
    with pytest.raises(PromptTooLongError, match=r"writer: a prompt of 65 tokens does not fit its context of 64"):
        decoder.add(0, [[5] * 65], Settings(5))
    assert decoder.done


@pytest.mark.parametrize(("place", "value"), [(0, NAN), (2, NONE_LEFT)], ids=["nan", "no candidate"])
def test_a_text_that_fails_in_spans_ends_alone(place: int, value: float, tables: Path) -> None:
    members = [member("bytes", 1), member("unigram with bytes", 2)]
    # Spans of one word, so that the good texts do not come to the place of the failure.
    ensemble = Ensemble(
        [*members[:place], broken(value, 4 * BAD), *members[place:]], method="sweetspan", words=1, cache_dir=tables
    )
    prompts = [ensemble.encode(prompt) for prompt in ["ab", 4 * BAD, "cde"]]
    found = until_error(ensemble.generate_each(prompts, Settings(5)), NOT_NUMBERS)
    assert [found[0], found[2]] == ensemble.generate(["ab", "cde"], max_new_tokens=5)


# Scores


def test_scores_that_are_no_numbers_name_the_member(tables: Path) -> None:
    ensemble = Ensemble([member("unigram with bytes", 1), broken(NAN)], cache_dir=tables)
    with pytest.raises(MemberError, match=r"^broken: its logits are not numbers \(NaN\)$"):
        ensemble.score(BAD, ["abcd", "efgh"])


def test_a_question_that_cannot_be_scored_costs_no_other_question(tables: Path) -> None:
    ensemble = Ensemble([broken(NAN), member("unigram with bytes", 1)], cache_dir=tables)
    good = ensemble.encode_options("ab", ["c", "d"])
    bad = ensemble.encode_options(BAD, ["abcd", "efgh"])
    message = rf"^{NOT_NUMBERS} \(NaN\) for number 0; 2 of 3 have no score$"
    found = until_error(ensemble.score_each([bad, good, bad]), message)
    assert list(found) == [1]
    assert [score.value for score in found[1]] == pytest.approx(ensemble.score("ab", ["c", "d"]))


def test_a_passage_that_cannot_be_scored_costs_no_other_passage(tables: Path) -> None:
    ensemble = Ensemble([broken(NAN)], cache_dir=tables)
    vocabulary = ensemble.members[0].vocabulary
    good, bad = (Passage(ensemble.encode("a"), vocabulary.continue_ids(text)) for text in (b"bcd", b"e" * 40))
    message = rf"^{NOT_NUMBERS} \(NaN\) for number 1; 1 of 2 have no score$"
    found = until_error(ensemble.score_passages([good, bad]), message)
    assert found == pytest.approx(dict(ensemble.score_passages([good])))


# Text that is not Unicode


@pytest.mark.parametrize(
    "ask",
    [
        lambda e: e.generate(["a\ud800b"]),
        lambda e: e.generate([[{"role": "user", "content": "\udc00"}]]),
        lambda e: e.generate(["x"], stop=["\udc00"]),
        lambda e: e.stream("x", stop=["\udc00"]),
        lambda e: e.score("\ud800", ["a"]),
        lambda e: e.score("x", ["a", "\ud800"]),
    ],
    ids=["prompt", "conversation", "stop", "stream", "scored prompt", "option"],
)
def test_half_a_surrogate_pair_is_refused_in_one_line(ask: Any, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = member("bytes")
    monkeypatch.setattr(one.tokenizer, "chat_template", "{{ messages[0].content }}")
    with pytest.raises(InputError, match="half of a surrogate pair") as raised:
        ask(Ensemble([one], cache_dir=tables))
    assert "\n" not in str(raised.value)
