"""What a run recommends and what was verified is what runs and what is served: strategies take the same responses."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pools import Place
from running_server import listening
from servers import Raw
from sharing import demo_cache

from advisor.advice.comparison import Compared, StrategyResult, compare_strategies
from advisor.commands.select import run as select
from advisor.models.loaded_models import ALONE, LoadedModels
from advisor.models.local_model import LocalModel
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import RunConfig
from advisor.options.finished_run import ServeOptions
from advisor.options.new_run import SelectOptions
from advisor.progress import Progress
from advisor.run.asking import Answered, Answerer, answer_prompt
from advisor.run.folder import write_run
from advisor.run.plan import StrategyPlan, plan_by_options
from advisor.serving.protocol import RequestLimits
from advisor.serving.server import bind
from advisor.serving.starting import make_app_of
from advisor.strategies import label
from advisor.strategies.vote import VoteReader
from ensemble import Ensemble
from ensemble.common.files import default_cache_dir
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.models.spec import EnsembleSpec

pytest_plugins = ["pools"]

LOADED: dict[str, LocalModel] = {}
"""The demo's models, each loaded once for all tests."""
QUESTION = "Ann has 12 pens. She buys 5 more. How many pens does Ann have now?"
PROMPT = f"Question: {QUESTION}\nAnswer:"
"""The question in the template of the demo's task."""


@pytest.fixture
def run(place: Place, demo_run: Path) -> Place:
    """A place with a copy of a run on the demo's models, to be changed."""
    shutil.copytree(demo_run, place.folder / "run", ignore=shutil.ignore_patterns("report.html"))
    return place


def write(run: Place, result: dict[str, Any]) -> None:
    run.write("run/result.json", json.dumps(result))


def voters_of(result: dict[str, Any]) -> list[str]:
    found: list[str] = next(each["members"] for each in result["strategies"] if each["strategy"] == "vote")
    return found


def recommend(run: Place, **strategy: Any) -> None:
    """Let a run recommend another strategy."""
    result = run.json()
    members = voters_of(result)
    empty = {"strategy": "vote", "members": members}
    result["advice"]["recommendation"] |= {**empty, **strategy}
    write(run, result)


def planned(run: Place, **options: Any) -> StrategyPlan:
    plan = plan_by_options(ServeOptions(run=str(run.folder / "run"), **options), lambda _: None)
    assert isinstance(plan, StrategyPlan)
    return plan


def answered(plan: StrategyPlan, prompts: list[str], group: str | None = None) -> list[Answered]:
    """The answers of a strategy, with every model loaded once."""
    local, loaded = [member for member in plan.members if not member.is_remote], LoadedModels(default_cache_dir())
    for member in local:
        load = partial(loaded.ensemble, EnsembleSpec((member,), ALONE))
        LOADED.setdefault(member.name, LocalModel(member.name, load))
    models = [LOADED[member.name] for member in local]
    answerer = Answerer(plan, models)
    settings = Settings(plan.max_new_tokens or 256, plan.stop)

    async def all_answers() -> list[Answered]:
        return [await answerer.answer(prompt, settings, group) for prompt in prompts]

    return asyncio.run(all_answers())


# --- As evaluated ---


def test_a_vote_takes_the_responses_that_its_evaluation_took(run: Place) -> None:
    samples = run.samples("held_out")
    (figures,) = [each for each in run.json()["strategies"] if each["strategy"] == "vote"]
    made = answered(planned(run, strategy="vote"), [sample["prompt"] for sample in samples])
    taken = [sample["responses"][each.model] for sample, each in zip(samples, made, strict=True)]
    assert [each.response.text for each in made] == [response["text"] for response in taken]
    assert 100 * sum(response["score"] for response in taken) / len(taken) == pytest.approx(figures["accuracy"])
    assert sum(each.calls for each in made) / len(made) == pytest.approx(figures["calls_per_question"])


def test_a_question_gets_the_text_that_was_verified(run: Place) -> None:
    sample = run.samples("held_out")[0]
    question = sample["prompt"].removeprefix("Question: ").removesuffix("\nAnswer:")
    taken = run.advisor("run", "run", question, "--strategy", "unite")
    assert taken.out == f"{sample['ensemble']['text']}\n"
    answer = run.advisor("run", "run", question, "--strategy", "unite", "--answer")
    assert answer.out == f"{sample['ensemble']['extracted']}\n"
    whole = json.loads(run.advisor("run", "run", question, "--strategy", "unite", "--json").out)
    assert (whole["text"], whole["answer"]) == (sample["ensemble"]["text"], sample["ensemble"]["extracted"])
    wrapped = run.advisor("run", "run", sample["prompt"], "--strategy", "unite")
    assert (wrapped.out, "has the task's template already" in wrapped.err) == (taken.out, True)
    model = next(each["members"][0] for each in run.json()["strategies"] if each["strategy"] == "single")
    alone = run.advisor("run", "run", sample["prompt"], "--raw", "--strategy", "single")
    assert (alone.status, alone.out) == (0, f"{sample['responses'][model]['text']}\n")


def test_an_empty_text_is_no_answer_and_no_vote(run: Place) -> None:
    ran = run.advisor("run", "run", QUESTION, "--raw", "--strategy", "vote")
    assert (ran.status, ran.out) == (0, "\n")
    assert "no model gave an answer, so there was no vote" in ran.err
    whole = json.loads(run.advisor("run", "run", QUESTION, "--raw", "--strategy", "vote", "--json").out)
    assert (whole["text"], whole["answer"], whole["calls"], whole["failed_members"]) == ("", None, 3, [])
    assert "note the text is empty" in ran.err
    none = run.advisor("run", "run", QUESTION, "--raw", "--strategy", "unite", "--answer")
    assert (none.status, none.out) == (1, "")
    assert "no answer can be read in the text ''" in none.err


def test_options_of_answers_that_cannot_be_used_are_refused(run: Place) -> None:
    assert "leave out one" in run.refused("run", "run", QUESTION, "--stream", "--answer")
    result = run.json()
    result["task"] |= {"metric": "chrf", "extract": None}
    write(run, result)
    assert "needs a reference to read an answer" in run.refused("run", "run", QUESTION, "--method", "unite", "--answer")


def test_a_router_by_groups_sends_a_group_to_its_member(run: Place) -> None:
    first, second, third = voters_of(run.json())
    recommend(run, strategy="group_router", routes={"sums": third, "rest": second})
    sample = run.samples("held_out")[0]
    texts = {name: sample["responses"][name]["text"] for name in (first, second, third)}
    (known,) = answered(planned(run), [sample["prompt"]], "sums")
    assert (known.model, known.response.text, known.calls) == (third, texts[third], 1)
    ran = run.advisor("run", "run", sample["prompt"], "--raw")
    assert (ran.status, ran.out) == (0, f"{texts[first]}\n")
    assert f"a prompt has no group, so {first} answers; give --group NAME, for example sums, rest" in ran.err


# --- Against the evidence ---


def test_a_strategy_against_the_evidence_is_run_with_a_line_that_says_so(run: Place) -> None:
    result = run.json()
    best, worst = result["strategies"][0], result["strategies"][-1]
    recommend(run, strategy=best["strategy"], members=best["members"])
    assert best["accuracy"] > worst["accuracy"]
    ran = run.advisor("run", "run", QUESTION, "--strategy", f"{worst['strategy']}/{worst['members'][0]}")
    assert ran.status == 0
    less = best["accuracy"] - worst["accuracy"]
    assert f"scored {less:.1f} points less than the recommended {best['strategy']} on 24 held-out questions" in ran.line
    recommended = run.advisor("run", "run", QUESTION, "--strategy", best["strategy"])
    assert (recommended.status, recommended.err) == (0, "")


def test_a_method_on_the_command_line_means_the_set_and_is_warned_about(run: Place) -> None:
    result = run.json()
    recommend(run, strategy="vote")
    for one in result["strategies"]:
        one["accuracy"] = {"unite": 50.0, "vote": 60.0}.get(one["strategy"], 55.0)
    write(run, {**result, "advice": run.json()["advice"]})
    sample = run.samples("held_out")[0]
    ran = run.advisor("run", "run", sample["prompt"], "--raw", "--method", "unite")
    assert ran.out == f"{sample['ensemble']['text']}\n"
    assert ran.line == "note unite scored 10.0 points less than the recommended vote on 24 held-out questions"
    assert "gac was not compared on held-out questions" in run.advisor("run", "run", QUESTION, "--method", "gac").line


def test_the_name_of_a_strategy_is_checked(run: Place) -> None:
    assert "has no such strategy; give one of " in run.refused("run", "run", QUESTION, "--strategy", "votes")
    assert "leave out --method" in run.refused("run", "run", QUESTION, "--strategy", "vote", "--method", "unite")
    result = run.json()
    smaller = next(copy.deepcopy(each) for each in result["strategies"] if each["strategy"] == "vote")
    smaller["members"] = smaller["members"][:2]
    result["strategies"].append(smaller)
    write(run, result)
    line = run.refused("run", "run", QUESTION, "--strategy", "votes")
    assert "vote/3" in line and "vote/2" in line
    assert run.advisor("run", "run", QUESTION, "--strategy", "vote/2").status == 0
    # The best of this name comes first in the run.
    assert re.search("after [23] calls", run.advisor("run", "run", QUESTION, "--strategy", "vote", "--trace").err)
    write(run, {**result, "strategies": []})
    assert "compares no strategies" in run.advisor("run", "run", QUESTION, "--strategy", "vote").line


# --- Models behind servers ---


def move_to_server(run: Place, url: str, number: int = 0, **options: Any) -> str:
    """Let a run's vote ask a server in place of one of its models; the model's name."""
    recommend(run)
    result = run.json()
    name: str = result["advice"]["recommendation"]["members"][number]
    remote = {"address": f"openai:{url}#m", **options}
    result["provenance"]["models"][name] = {"remote": remote, "chat_template": "never"}
    write(run, result)
    return name


def test_a_server_that_a_run_folder_names_is_asked_only_with_consent(run: Place, raw: Raw) -> None:
    name = move_to_server(run, raw.url)
    line = run.refused("run", "run", QUESTION)
    assert f"{name} is behind the server" in line and "--allow-server" in line
    assert raw.asked == []
    ran = run.advisor("run", "run", QUESTION, "--allow-server", raw.url)
    assert (ran.status, ran.out) == (0, " The answer is 17.\n")
    assert raw.questions == [PROMPT]


def test_consent_is_given_once_and_ends_where_an_address_changes(
    run: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_to_server(run, raw.url)
    assert run.advisor("run", "run", QUESTION, "--allow-server", raw.url).status == 0
    assert run.advisor("export", "run", "out").status == 0
    shutil.move(run.folder / "run", run.folder / "elsewhere")
    for folder in ("elsewhere", "out"):
        ran = run.advisor("run", folder, QUESTION)
        assert (ran.status, ran.out) == (0, " The answer is 17.\n")
    text = (run.folder / "out" / "strategy.json").read_text(encoding="utf-8")
    run.write("out/strategy.json", text.replace("127.0.0.1", "localhost"))
    assert "add --allow-server http://localhost" in run.refused("run", "out", QUESTION)
    # Another user, or another machine: the folder brings nothing with it.
    shutil.copytree(run.folder.with_name("state"), run.folder / "state")
    for state in (str(run.folder.with_name("other")), "state"):
        monkeypatch.setenv("XDG_STATE_HOME", state)
        assert "add --allow-server http://127.0.0.1" in run.refused("run", "elsewhere", QUESTION)


def test_all_servers_that_need_consent_are_named_in_one_line(run: Place, raw: Raw) -> None:
    first = move_to_server(run, raw.url)
    second = move_to_server(run, "http://10.0.0.1:8000", 1, key_env="TEN_API_KEY")
    line = run.refused("run", "run", QUESTION)
    assert f"{first} is behind the server {raw.url.removesuffix('/v1')}" in line
    assert f"{second} is behind the server http://10.0.0.1:8000, to which" in line
    assert line.endswith("--allow-server http://10.0.0.1:8000 if you trust them")


def test_a_vote_goes_on_without_a_server_that_fails(run: Place, raw: Raw) -> None:
    raw.answer = lambda *_: (404, {}, b"{}")
    name = move_to_server(run, raw.url)
    ran = run.advisor("run", "run", QUESTION, "--allow-server", raw.url)
    assert ran.status == 0
    assert f"note {name} failed, and the others answered: " in ran.line
    sample_free = run.advisor("run", "run", QUESTION, "--allow-server", raw.url, "--trace")
    assert "gave no answer" not in sample_free.err and "after 2 calls" in sample_free.err


def test_a_set_that_decodes_needs_no_servers(run: Place, raw: Raw) -> None:
    move_to_server(run, raw.url)
    line = run.refused("run", "run", QUESTION, "--method", "unite", "--allow-server", raw.url)
    assert "is behind a server and has no tokenizer=" in line


# --- Logs ---


def logged(run: Place, scoring: dict[str, Any] | None) -> list[str]:
    """Let a run look as if its responses came from logs; the names of its models."""
    recommend(run)
    result = run.json()
    sources = result["provenance"]["models"]
    result["provenance"] = {"logs": [{"path": "x", "format": "pool"}], "scoring": scoring, "models": {}}
    result["task"] |= {"stop": [], "max_new_tokens": None}
    write(run, result)
    lines = [f"{source['path_or_id']} name={name}" for name, source in sources.items()]
    run.pool(*lines)
    return list(sources)


def test_a_run_of_logs_says_what_it_lacks_and_runs_with_it(run: Place) -> None:
    logged(run, None)
    pool = ("--pool", "models.txt")
    assert "does not say where its model" in run.refused("run", "run", QUESTION)
    assert "--pool FILE" in run.refused("run", "run", QUESTION)
    assert "--metric METRIC:PATTERN` again" in run.refused("run", "run", QUESTION, *pool)
    result = run.json()
    result["provenance"]["scoring"] = {"metric": "number", "extract": result["task"]["extract"]}
    write(run, result)
    ran = run.advisor("run", "run", QUESTION, *pool, "--max-new-tokens", "64", "--stop", "\n")
    assert (ran.status, ran.err) == (0, "")
    run.pool("x/y name=other", name="other.txt")
    assert "has no model with the name" in run.advisor("run", "run", QUESTION, "--pool", "other.txt").line
    exported = run.advisor("export", "run", "out", *pool)
    assert (exported.status, exported.err) == (0, "")
    again = run.advisor("run", "out", QUESTION, "--max-new-tokens", "64", "--stop", "\n")
    assert (again.status, again.out) == (0, ran.out)


# --- Hostile files ---

STRATEGY = [
    *(("strategy", value) for value in (None, [], "voting", "vote\x1b")),
    *(("members", value) for value in (None, "ab", ["a"], ["a", "a"], [["a"]], ["a", "\x1b[2J"], ["gone", "b"])),
    ("members", [f"m{n}" for n in range(1000)]),
    *(("weights", value) for value in (None, [1, 2], [1, 2, -1], [1, 2, float("nan")], [1, 2, 10**400], [1, 2, True])),
]


def test_an_odd_strategy_is_one_line(run: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadedModels, "ensemble", lambda *_: pytest.fail("a model was loaded"))
    whole = run.json()
    for key, value in STRATEGY:
        write(run, whole)
        recommend(run, **{"strategy": "learned_vote", "weights": [3.0, 2.0, 1.0], key: value})
        assert "result.json" in run.refused("run", "run", QUESTION), (key, value)


def test_odd_answers_are_one_line(run: Place) -> None:
    recommend(run)
    whole = run.json()
    for part, key, value, says in (
        ("task", "extract", "(", "extract cannot be used"),
        ("task", "extract", ["x"], "extract should be a text"),
        ("task", "metric", "contains", "votes are read by exact_match, number"),
        ("task", "metric", "../x", "votes are read by"),
        ("task", "metric", {}, "task.metric should be a text"),
        ("advice", "recommendation", [], "recommendation should be an object"),
    ):
        write(run, {**whole, part: {**whole[part], key: value}})
        assert says in run.refused("run", "run", QUESTION)
    write(run, {**whole, "strategies": [7]})
    assert "strategies[0] should be an object" in run.refused("run", "run", QUESTION)


def test_draws_are_a_whole_number_that_a_server_can_write_and_routes_lead_to_members(run: Place) -> None:
    for draws in (None, 0, 1.5, "2", True, 10**9):
        recommend(run, strategy="self_consistency", members=voters_of(run.json())[:1], draws=draws)
        assert "draws should be" in run.refused("run", "run", QUESTION)
    recommend(run)
    for routes in (None, {}, [], {"x": "gone"}, {"x": ["a"]}, {"\ud800": "a"}):
        recommend(run, strategy="group_router", routes=routes)
        assert "routes should be an object" in run.refused("run", "run", QUESTION)


# --- Export ---


def test_a_folder_is_an_ensemble_or_a_strategy_and_never_both(run: Place) -> None:
    for name, file in (("vote", "strategy.json"), ("unite", "ensemble.json"), ("vote", "strategy.json")):
        assert run.advisor("export", "run", "out", "--strategy", name).status == 0
        assert sorted(path.name for path in (run.folder / "out").iterdir()) == ["README.md", file]
    with pytest.raises(InputError, match="do not decode together; use it with `advisor run`"):
        Ensemble.from_pretrained(run.folder / "out")
    assert "leave out --strategy" in run.advisor("run", "out", QUESTION, "--strategy", "vote").line


@pytest.mark.parametrize(
    ("name", "file", "models"), [("vote", "out/strategy.json", "models"), ("unite", "out/ensemble.json", "members")]
)
def test_an_export_makes_prompts_as_the_run_does_and_refuses_a_changed_model(
    run: Place, name: str, file: str, models: str
) -> None:
    assert run.advisor("export", "run", "out", "--strategy", name).status == 0
    assert run.json(file)["task"]["template"]["question"] == "Question: {{question}}\nAnswer:"
    card = (run.folder / "out" / "README.md").read_text(encoding="utf-8")
    assert "```jinja\nQuestion: {{question}}\nAnswer:\n```" in card
    assert run.advisor("run", "out", QUESTION, "--answer").out == "17\n"
    run.edit(lambda saved: saved[models][1]["files"].update({"config.json": "0" * 64}), file)
    line = run.advisor("run", "out", QUESTION).line
    assert "config.json differs" in line and "--no-check-files" in line
    assert run.advisor("run", "out", QUESTION, "--no-check-files").status == 0


def test_an_exported_strategy_names_servers_that_need_consent(run: Place, raw: Raw) -> None:
    name = move_to_server(run, raw.url)
    assert run.advisor("export", "run", "out").status == 0
    assert raw.asked == []
    assert f"{name} is behind the server" in run.advisor("run", "out", QUESTION).line
    ran = run.advisor("run", "out", QUESTION, "--allow-server", raw.url)
    assert (ran.status, ran.out) == (0, " The answer is 17.\n")
    pushed = run.advisor("export", "run", "out", "--push", "org/x")
    assert (pushed.status, pushed.out) == (2, "")


def test_an_odd_value_in_a_strategy_file_is_one_line(run: Place) -> None:
    assert run.advisor("export", "run", "out", "--strategy", "vote").status == 0
    whole = run.json("out/strategy.json")
    for odd in (
        {"unknown": 1},
        {"models": [7]},
        {"models": [{"name": "a", "server": {"address": "http://x"}}] * 3},
        {"models": [{"name": "\x1b", "server": {"address": "openai:http://x#m"}}] * 3},
        {"generation": {"stop": [""]}},
        {"task": {"metric": "number", "extract": "("}},
        {"task": {"metric": "number", "template": {"question": 7}}},
        {"task": None},
    ):
        run.write("out/strategy.json", json.dumps(whole | odd))
        ran = run.advisor("run", "out", QUESTION)
        assert (ran.status, ran.out) == (2, ""), odd
        assert "strategy.json" in ran.line


# --- Reading ---


@pytest.mark.parametrize(
    ("metric", "extract", "text", "answer"),
    [
        ("choice", None, "c) because", "C"),
        ("choice", None, "I think that a cat is best", None),
        ("number", None, "it is 1/2", "0.5"),
        ("number", "answer is ([0-9]+)", "the answer is 5, not 7", "5"),
        ("number", "answer is ([0-9]+)", "5", None),
    ],
)
def test_votes_are_read_without_a_reference(metric: str, extract: str | None, text: str, answer: str | None) -> None:
    assert VoteReader(metric, extract, "x").read(text) == answer


def test_ctrl_c_ends_a_vote_without_complaints(run: Place, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    recommend(run)
    monkeypatch.setattr(LoadedModels, "ensemble", stop)
    with pytest.raises(KeyboardInterrupt):
        answer_prompt(planned(run), PROMPT, Settings())
    gc.collect(1)
    assert caplog.text == ""


ASKED = 8
"""Held-out questions that are asked again."""


def texts_task(folder: Path) -> str:
    """A task whose answers are texts that cannot be counted, so that a consensus is compared."""
    for number, split in enumerate(("dev", "held_out")):
        counts = range(12 + 24 * number, 36 + 24 * number)
        lines = [{"question": QUESTION.replace("12", str(n)), "answer": f"Ann has {n + 5} pens now."} for n in counts]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    data = "data: {dev: dev.jsonl, held_out: held_out.jsonl}"
    rest = 'prompt: "Question: {{question}}\\nAnswer:"\nreference: "{{answer}}"\nmetric: chrf\nmax_new_tokens: 24'
    (folder / "texts.yaml").write_text(f'name: texts\n{data}\n{rest}\nstop: ["\\n"]\n', encoding="utf-8")
    return str(folder / "texts.yaml")


@pytest.fixture(scope="module", params=["numbers", "texts"])
def verified(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, tuple[StrategyResult, ...], list[str]]:
    """A run folder, its strategies with their answers, and the prompts of the held-out questions."""
    folder = tmp_path_factory.mktemp("verified") / "run"
    task = "word_problems" if request.param == "numbers" else texts_task(folder.parent)
    compared: list[Compared] = []

    def kept(*args: Any, **options: Any) -> Compared:
        compared.append(compare_strategies(*args, **options))
        return compared[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(demo_cache(tmp_path_factory)))
        patch.setattr("advisor.commands.select.compare_strategies", kept)
        fusion = "best panel=terse-olmo,terse-mistral rounds=2"
        config = RunConfig.from_options(SelectOptions(pool="demo", task=task, limit=24, fusion=fusion), "")
        with ResponseCache(config.cache_dir) as cache:
            write_run(folder, *select(config, cache, Progress(quiet=True)))
    assert config.held_out is not None
    return folder, compared[-1].results, [example.prompt for example in config.held_out.examples]


@pytest.mark.slow
def test_each_strategy_serves_the_texts_that_were_verified(
    verified: tuple[Path, tuple[StrategyResult, ...], list[str]],
) -> None:
    folder, strategies, prompts = verified
    counted = {"consensus"} if (folder.parent / "texts.yaml").exists() else {"unite", "vote"}
    assert {each.strategy.name for each in strategies} >= {"single", "fusion", *counted}
    for result in strategies:
        name = label(result.strategy, [each.strategy for each in strategies])
        plan = plan_by_options(ServeOptions(run=str(folder), strategy=name), lambda _: None)
        limits = RequestLimits(default_tokens=plan.max_new_tokens or 256, default_stop=plan.stop)
        app, engine = make_app_of(plan, "demo", limits, None, None, ServeOptions(run="r"))
        with bind("127.0.0.1", 0) as bound, listening(bound, app, engine) as server, server.client() as client:
            served = [
                client.completions.create(model="demo", prompt=prompt).choices[0].text for prompt in prompts[:ASKED]
            ]
        assert served == [answer.text for answer in result.replay.profile.answers[:ASKED]], name
        if name == "consensus" and isinstance(plan, StrategyPlan):
            assert served == [each.response.text for each in answered(plan, prompts[:ASKED])]
