"""``--dry-run``: the prompts that models get, what the run would take, and that nothing is run, written or asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoTokenizer

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

SELECT = ("select", "--pool", "models.txt", "--task", "task.yaml")


def planned(place: Place, *options: str) -> dict[str, Any]:
    ran = place.advisor(*SELECT, "--dry-run", "--json", *options)
    assert ran.status == 0, ran
    plan: dict[str, Any] = json.loads(ran.out)
    return plan


def test_nothing_is_written_and_no_weights_are_loaded(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.job(models)
    before = place.files()
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", None)
    ran = place.advisor(*SELECT, "--dry-run")
    assert ran.status == 0
    assert (place.files(), place.cache.exists()) == (before, False)
    assert ran.out.rstrip().endswith("Nothing was run or written.")


def test_three_prompts_of_each_model_are_shown_with_their_tokens(place: Place, models: Path) -> None:
    place.job(models)
    for model in planned(place)["models"]:
        tokenizer = AutoTokenizer.from_pretrained(models / model["model"])
        assert len(model["prompts"]) == min(3, model["profiling"])
        for prompt in model["prompts"]:
            assert "Answer:" in prompt["text"]
            assert prompt["tokens"] == len(tokenizer(prompt["text"], add_special_tokens=False)["input_ids"])
        counts = model["prompt_tokens"]
        assert counts["min"] <= counts["median"] <= counts["max"]


def test_the_chat_template_is_applied(place: Place, models: Path, tmp_path: Path) -> None:
    place.task()
    tokenizer = AutoTokenizer.from_pretrained(models / "alpha")
    tokenizer.chat_template = "{% for m in messages %}<USER>{{ m.content }}<BOT>{% endfor %}"
    chat = tmp_path / "chat"
    chat.mkdir()
    for file in (models / "alpha").iterdir():
        (chat / file.name).write_bytes(file.read_bytes())
    tokenizer.save_pretrained(chat)
    place.pool(str(chat), f"{chat} name=plain chat_template=never")
    first, second = (model["prompts"][0]["text"] for model in planned(place)["models"])
    assert "<BOT>" in first
    assert "<BOT>" not in second


def test_the_generations_of_a_stage_are_counted_without_those_in_the_cache(place: Place, models: Path) -> None:
    place.job(models)
    plan = planned(place)
    dev, held_out = plan["dev"], plan["held_out"]
    assert plan["total"]["profiling"] == 3 * dev
    assert plan["total"]["alone"] == 3 * held_out
    assert plan["total"]["together"] == held_out
    assert place.advisor("profile", *SELECT[1:], "--quiet").status == 0
    after = planned(place)
    assert (after["total"]["profiling"], after["total"]["alone"]) == (0, 3 * held_out)
    assert planned(place, "--max-new-tokens", "3")["total"]["profiling"] == 3 * dev


def test_without_verifying_nothing_is_counted_for_it(place: Place, models: Path) -> None:
    place.job(models)
    plan = planned(place, "--no-verify")
    assert (plan["held_out"], plan["total"]["alone"], plan["total"]["together"]) == (None, 0, 0)
    ran = place.advisor("profile", *SELECT[1:], "--dry-run")
    assert (ran.status, "verifying" in ran.out) == (0, False)


def test_the_price_follows_from_tokens_and_the_prices_of_the_pool(place: Place, models: Path) -> None:
    place.task()
    place.pool(f"{models / 'alpha'} price_in=1 price_out=2")
    (model,) = planned(place, "--no-verify")["models"]
    # Prompts cost at least their shortest, and responses at most six tokens each.
    low, high = (
        model["profiling"] * (model["prompt_tokens"][end] + 2 * model["new_tokens"]) / 1e6 for end in ("min", "max")
    )
    assert low <= model["price"] <= high


def test_a_server_is_planned_without_a_request(place: Place) -> None:
    place.task()
    place.pool("openai:http://127.0.0.1:9/v1#big price_in=1 price_out=2")
    (model,) = planned(place)["models"]
    assert model["prompts"][0]["tokens"] is None
    assert (model["problem"], model["seconds"]) == (None, None)
    assert model["price"] > 0


def test_a_model_that_cannot_run_gives_status_1_after_the_plan(place: Place, models: Path) -> None:
    place.task()
    (place.folder / "empty").mkdir()
    place.pool(str(models / "alpha"), "./empty")
    ran = place.advisor(*SELECT, "--dry-run")
    assert (ran.status, "empty: cannot run: " in ran.out) == (1, True)


def test_logs_have_no_dry_run(place: Place) -> None:
    assert "--dry-run shows prompts" in place.refused("select", "--logs", "x.jsonl", "--dry-run")
