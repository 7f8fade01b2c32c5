"""``--dry-run``: the prompts that models get, what the run would take, and that nothing is run, written or asked."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pools import LENIENT, SELECT, Place, Prepare
from transformers import AutoTokenizer

from advisor.jobs.dry_run import UNKNOWN
from advisor.models.profiler import unanswered
from advisor.models.response_cache import ResponseCache
from advisor.tasks import load_task
from advisor.tasks.task import Example

pytest_plugins = ["pools", "hubs"]


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terabyte is free, whatever this machine has."""
    monkeypatch.setattr("advisor.jobs.dry_run.free_on", lambda _: 10**12)
    monkeypatch.setattr("advisor.models.fit.free_on", lambda _: 10**12)


@pytest.fixture
def profiled(place: Place, models: Path, prepare: Prepare) -> Place:
    """A place with a job whose models have answered the dev questions."""

    def make() -> None:
        place.job(models)
        assert place.advisor("profile", *SELECT[1:], "--quiet").status == 0

    prepare("profiled", place, make)
    return place


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


def test_the_generations_of_a_stage_are_counted_without_those_in_the_cache(profiled: Place) -> None:
    plan = planned(profiled)
    dev, held_out = plan["dev"], plan["held_out"]
    total = {stage: plan["total"][stage] for stage in ("profiling", "alone", "together")}
    assert total == {"profiling": 0, "alone": 3 * held_out, "together": held_out}
    assert planned(profiled, "--max-new-tokens", "3")["total"]["profiling"] == 3 * dev
    plan = planned(profiled, "--no-verify")
    assert (plan["held_out"], plan["total"]["alone"], plan["total"]["together"]) == (None, 0, 0)
    ran = profiled.advisor("profile", *SELECT[1:], "--dry-run")
    assert (ran.status, "verifying" in ran.out) == (0, False)


def test_the_price_follows_from_tokens_and_the_pool_and_a_budget_needs_it(place: Place, models: Path) -> None:
    place.task()
    place.pool(f"{models / 'alpha'} price_in=1 price_out=2")
    (model,) = planned(place, "--no-verify")["models"]
    # Prompts cost at least their shortest, and responses at most six tokens each.
    low, high = (
        model["profiling"] * (model["prompt_tokens"][end] + 2 * model["new_tokens"]) / 1e6 for end in ("min", "max")
    )
    assert low <= model["price"] <= high
    place.pool(f"{models / 'alpha'} price_in=1 price_out=2", str(models / "beta"))
    line = place.refused(*SELECT, "--budget", "5")
    assert line == "advisor: --budget 5: beta has no price; give price_in= and price_out= in models.txt"


def test_a_server_is_planned_without_a_request(place: Place) -> None:
    place.task()
    place.pool("openai:http://127.0.0.1:9/v1#big price_in=1 price_out=2")
    (model,) = planned(place)["models"]
    assert model["prompts"][0]["tokens"] is None
    assert model["problem"] is None
    assert model["price"] > 0


def test_a_model_that_cannot_run_gives_status_1_after_the_plan(place: Place, models: Path) -> None:
    place.task()
    (place.folder / "empty").mkdir()
    place.pool(str(models / "alpha"), "./empty")
    ran = place.advisor(*SELECT, "--dry-run")
    assert (ran.status, "empty: cannot run: " in ran.out) == (1, True)


def test_the_cache_is_read_where_it_is_and_stays_as_it_was(profiled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = profiled.cache / "unite-advisor" / "responses.sqlite"
    before = sorted((path.name, path.stat().st_mtime_ns) for path in cache.parent.glob("responses*"))
    reading = Path.read_bytes

    def read(path: Path) -> bytes:
        assert not path.name.startswith("responses")
        return reading(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    assert planned(profiled)["total"]["profiling"] == 0
    assert sorted((path.name, path.stat().st_mtime_ns) for path in cache.parent.glob("responses*")) == before
    # Another run has the cache open, with rows that are only in its log.
    with ResponseCache(cache.parent):
        assert planned(profiled)["total"]["profiling"] == 0
    cache.write_bytes(b"damaged")
    assert planned(profiled)["total"]["profiling"] > 0
    assert [path.name for path in cache.parent.glob("responses*damaged*")] == []


def test_a_model_whose_responses_are_stored_need_not_fit(profiled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.jobs.dry_run.free_on", lambda _: 1000)
    assert planned(profiled, "--no-verify")["problems"] == []
    ran = profiled.advisor(*SELECT, "--dry-run")
    assert (ran.status, "serve it (openai:" in ran.out) == (1, True)


# --- Choice tasks and turns ---


def test_options_of_a_choice_task_are_scored_and_not_written(place: Place, models: Path) -> None:
    place.task(metric="choice", choices=["{{answer}}", "0"])
    place.pool(str(models / "alpha"), "openai:http://127.0.0.1:9/v1#big price_in=1 price_out=1000 chat_template=never")
    here, server = planned(place, "--no-verify")["models"]
    assert here["new_tokens"] == 0
    # The server reads each prompt with each of two options, and writes nothing.
    read = sum(len(prompt) / 4 for prompt in dev_prompts(place))
    assert server["price"] == pytest.approx(2 * read / 1e6)
    assert "options are scored, so nothing is written" in place.advisor(*SELECT, "--dry-run").out


def dev_prompts(place: Place) -> list[str]:
    return [example.prompt for example in load_task(str(place.folder / "task.yaml"), split="dev").examples]


TURNS: dict[str, Any] = {"prompt": "{{turns[0]}}", "follow_ups": "{{turns[1:]}}", "reference": "x"}


def talk(place: Place, models: Path) -> None:
    place.task([{"turns": [f"Say {n}.", "Again."]} for n in range(8)], **TURNS)  # type: ignore[list-item]
    place.pool(str(models / "alpha"))


def test_later_turns_are_shown_with_the_conversation(place: Place, models: Path) -> None:
    talk(place, models)
    (model,) = planned(place, "--no-verify")["models"]
    first, second = model["prompts"][:2]
    assert UNKNOWN not in first["text"]
    assert first["text"] in second["text"]
    assert second["text"].rstrip().endswith("Again.")
    assert UNKNOWN in second["text"]
    # A response that is not written yet counts with all the tokens that it may have.
    assert model["prompt_tokens"]["max"] >= second["tokens"] + model["new_tokens"]
    # Those that are stored are not counted.
    assert planned(place)["total"]["profiling"] == 8
    assert place.advisor("profile", *SELECT[1:], "--quiet").status == 0
    (model,) = planned(place)["models"]
    assert model["profiling"] == 0
    assert UNKNOWN not in model["prompts"][1]["text"]


def test_after_a_response_that_failed_no_turn_is_asked() -> None:
    # Three turns, and another question.
    examples = tuple(Example(str(n), "p", "p", "", earlier=earlier) for n, earlier in enumerate((None, "0", None, "1")))
    task = SimpleNamespace(examples=examples)
    assert [unanswered(task, said) for said in ({}, {"0": "yes"}, {"0": None}, {"0": "a", "1": None})] == [4, 3, 1, 1]  # type: ignore[arg-type]


# --- Judges ---

SINGLE = {"prompt": "{{question}} | {{response}} | grade", "max_new_tokens": 20}
PAIRWISE = {**SINGLE, "mode": "pairwise", "prompt": "{{question}} | {{response_a}} | {{response_b}}"}


def judged(place: Place, models: Path, judge: dict[str, Any]) -> tuple[str, ...]:
    place.task(metric="judge", judge=judge)
    place.pool(*(str(models / name) for name in ("alpha", "beta")))
    return "--judge", f"{models / 'gamma'} price_in=1 price_out=2"


@pytest.mark.parametrize(("judge", "each"), [(SINGLE, 2 + 2 + 1), (PAIRWISE, 2 + 2 + 4)])
def test_a_judge_has_its_place_in_the_plan(place: Place, models: Path, judge: dict[str, Any], each: int) -> None:
    arguments = judged(place, models, judge)
    plan = planned(place, *arguments)
    (found,) = plan["judges"]
    # Dev and held-out questions: both candidates, or both orders of the pair; and the set, on the held-out ones.
    assert (plan["total"]["judging"], found["questions"]) == (6 * each, 6 * each)
    assert (found["model"], found["device"], found["fits"]) == ("gamma", "cpu", True)
    assert 0 < found["weights"] < found["memory"]
    assert found["new_tokens"] == 20
    texts = [prompt["text"] for prompt in found["prompts"]]
    assert all(text.count(UNKNOWN) == (1 if judge is SINGLE else 2) for text in texts)
    low, high = (found["questions"] * (found["prompt_tokens"][end] + 2 * 20) / 1e6 for end in ("min", "max"))
    assert low <= plan["total"]["price"] <= high
    ran = place.advisor(*SELECT, "--dry-run", *arguments)
    assert "judge gamma: " in ran.out
    assert f"judging      at most {6 * each} verdicts" in ran.out


def test_a_judge_that_cannot_run_gives_status_1(place: Place, models: Path) -> None:
    judged(place, models, SINGLE)
    (place.folder / "empty").mkdir()
    ran = place.advisor(*SELECT, "--dry-run", "--judge", "./empty")
    assert (ran.status, "judge empty: cannot run: " in ran.out) == (1, True)


def test_a_judged_run_says_first_what_the_judge_takes(place: Place, models: Path) -> None:
    arguments = judged(place, models, SINGLE)
    ran = place.advisor("profile", *SELECT[1:], *arguments)
    assert ran.status == 0
    told = next(line for line in ran.err.splitlines() if "note judge gamma: at most 12 verdicts" in line)
    assert "those that are stored are not asked again" in told
    assert ran.err.index(told) < ran.err.index("alpha on dev")


# --- Clusters, other folders, no network ---


def test_models_of_a_cluster_are_not_planned_for_this_machine(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.task()
    place.pool(f"{models / 'alpha'} num_gpus=2", f"{models / 'beta'} num_cpus=4", f"{models / 'gamma'} device=cuda:7")
    monkeypatch.setattr("advisor.jobs.dry_run.free_on", lambda _: 0)
    ran = place.advisor("profile", *SELECT[1:], "--dry-run", "--json", "--engine", "ray")
    plan = json.loads(ran.out)
    alpha, beta, gamma = plan["models"]
    assert (ran.status, plan["together"]) == (1, None)
    assert (alpha["device"], alpha["resources"]) == ("cuda", {"num_cpus": 1, "num_gpus": 2})
    assert (beta["device"], beta["resources"]) == ("cpu", {"num_cpus": 4, "num_gpus": 0})
    assert [each["fits"] for each in plan["models"]] == [None] * 3
    assert "--engine ray assigns the GPUs itself" in gamma["problem"]
    told = place.advisor("profile", *SELECT[1:], "--dry-run", "--engine", "ray").out
    assert "on a node of the cluster (num_cpus=1, num_gpus=2)" in told


def test_a_folder_that_the_run_would_not_replace_is_said_now(
    place: Place, models: Path, finished: SimpleNamespace
) -> None:
    place.job(models)
    shutil.copytree(finished.run, place.folder / "run")
    assert planned(place, *LENIENT, "--out", "run")["problems"] == []
    ran = place.advisor(*SELECT, "--out", "run", "--max-gap", "3", "--dry-run")
    assert ran.status == 1
    assert ran.out.splitlines()[-2].startswith("problem      --out run: it has a run with other settings (--max-gap")
    assert planned(place, "--out", "run", "--max-gap", "3", "--force")["problems"] == []


def test_without_a_network_each_model_has_one_line_and_one_request_is_made(
    place: Place, hub: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        hub(f"http://127.0.0.1:{closed.getsockname()[1]}")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: pytest.fail("a request is repeated"))
    place.task()
    place.pool("org/one", "org/two", "openai:http://127.0.0.1:9/v1#big tokenizer=org/three")
    ran = place.advisor(*SELECT, "--dry-run")
    assert ran.status == 1
    lines = [line for line in ran.out.splitlines() if "cannot run" in line]
    assert len(lines) == 3
    # The reason is the hub, and no variable that the user has not set.
    assert all("the hub cannot be reached" in line and "offline" not in line.lower() for line in lines)
    assert "unknown" not in ran.out.split("cannot run")[-1]
