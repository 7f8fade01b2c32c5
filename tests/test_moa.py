"""Mixture-of-Agents and Self-MoA: the prompts built by hand, the texts from the plain model, and what is stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pools import Place, Prepare
from servers import completion, models, raw_server
from transformers import AutoModelForCausalLM, AutoTokenizer

from advisor.commands.evaluate import Evaluator, evaluation_config
from advisor.jobs.played import reading_task
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.options.finished_run import EvaluateOptions
from advisor.progress import Progress
from advisor.records import Profile
from advisor.run.evaluation import EvaluatedMethod
from advisor.run.folder import Run
from advisor.strategies.fusion import prompt_template, with_drafts
from advisor.strategies.replay import question_of
from advisor.tasks import load_task
from advisor.tasks.task import sha256
from ensemble.errors import InputError, MemberError
from ensemble.methods import get_module, make_options

pytest_plugins = ["pools"]

TOKENS = 6
TEMPLATE = "{% for r in responses %}<{{ r }}>{% endfor %} {{ question }} / {{ prompt }}\n"
INSTRUCTIONS = "Add."


@pytest.fixture
def run(place: Place, long_models: Path, prepare: Prepare) -> Place:
    """A place with the run folder of these models, and a file with a prompt."""

    def make() -> None:
        place.task(metric="exact_match", instructions=INSTRUCTIONS)
        place.pool(*(str(long_models / name) for name in ("one", "two", "three")))
        place.write("prompt.j2", TEMPLATE)
        place.select("--quiet")

    prepare("moa", place, make)
    return place


def evaluated(place: Place, method: str, **options: Any) -> tuple[list[Profile], Profile, list[Profile]]:
    """The answers of every member alone, and of a method, and the draws of the control."""
    evaluator, alone, draws = evaluate(place, method, options)[1:]
    return alone, evaluator.answers[method], draws


def evaluate(
    place: Place, method: str, options: dict[str, Any]
) -> tuple[EvaluatedMethod, Evaluator, list[Profile], list[Profile]]:
    """The figures of a method, and what it was evaluated with."""
    options_of_run = EvaluateOptions(run=place.folder / "run", task="task.yaml", methods=method)
    config = evaluation_config(Run.open(options_of_run.run), options_of_run, "")
    with ResponseCache(config.cache_dir) as cache:
        evaluator = Evaluator(config, [method], {method: options}, cache, Progress(quiet=True))
        alone, [result, _] = evaluator.run()
        best = max(alone, key=lambda profile: profile.accuracy).model
        profiler = Profiler(config, cache, Progress(quiet=True))
        assert config.held_out is not None
        draws = [profiler.drawn(best, config.held_out, 0.7, seed) for seed in range(3)]
    return result, evaluator, alone, draws


def texts(profile: Profile | None) -> list[str | None]:
    assert profile is not None
    return [answer.text for answer in profile.answers]


@torch.inference_mode()
def plain(folder: Path, prompt: str) -> str:
    """What a model writes after a prompt, token by token from its forward pass alone."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = tokenizer(prompt)["input_ids"]
    start = len(ids)
    while len(ids) < start + TOKENS:
        chosen = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        if chosen == tokenizer.eos_token_id:
            break
        ids.append(chosen)
    return str(tokenizer.decode(ids[start:]))


def by_hand(folder: Path, responses: Sequence[Sequence[str | None]]) -> list[str]:
    """The texts that a model writes after it read responses, in the order of digests, by the prompt in the file."""
    written = []
    for n, example in enumerate(load_task("task.yaml", split="held_out").examples):
        order = sorted(range(len(responses)), key=lambda place: sha256(example.prompt, place))
        read = "".join(f"<{responses[place][n]}>" for place in order)
        question = f"What is {n + 7} + {n + 7}?\nAnswer:"
        assert example.question == question
        written.append(plain(folder, f"{read} {question} / {INSTRUCTIONS}\n\n{question}"))
    return written


def test_the_primary_reads_all_responses_and_writes_the_answer(run: Place, long_models: Path) -> None:
    alone, result, _ = evaluated(run, "moa", prompt="prompt.j2")
    expected = by_hand(long_models / alone[0].model, [texts(each) for each in alone])
    assert texts(result) == expected
    assert expected != texts(alone[0])


def test_another_member_can_write_and_members_can_read_before(run: Place, long_models: Path) -> None:
    alone, result, _ = evaluated(run, "moa", prompt="prompt.j2", aggregator="three", layers=2)
    first = [texts(each) for each in alone]
    second = [by_hand(long_models / each.model, first) for each in alone]
    assert texts(result) == by_hand(long_models / "three", second)


def test_the_best_member_reads_the_draws_of_the_control(run: Place, long_models: Path) -> None:
    _, result, draws = evaluated(run, "self-moa", prompt="prompt.j2")
    model = draws[0].model.removesuffix(", drawn")
    assert len({*map(str, map(texts, draws))}) == 3
    assert texts(result) == by_hand(long_models / model, [texts(each) for each in draws])
    _, other, _ = evaluated(run, "self-moa", prompt="prompt.j2", member="three" if model != "three" else "two")
    assert texts(other) != texts(result)


def test_what_was_read_and_what_was_written_is_paid_for(run: Place) -> None:
    result, evaluator, alone, _ = evaluate(run, "moa", {"prompt": "prompt.j2"})
    profile = evaluator.answers["moa"]
    cost, proposals = profile.cost, [each.cost for each in alone]
    written = cost.tokens - sum(each.tokens for each in proposals)
    assert 0 < written <= TOKENS * len(profile.answers)
    assert cost.seconds > sum(each.seconds for each in proposals)
    assert result.seconds_per_question == pytest.approx(cost.seconds / len(profile.answers))
    per_token = 1000 * sum(each.seconds / each.tokens for each in proposals)
    last = 1000 * (cost.seconds - sum(each.seconds for each in proposals)) / written
    assert result.ms_per_token == pytest.approx(per_token + last)


def test_the_projects_prompt_has_the_responses_and_ends_as_the_task_wants_it(place: Place) -> None:
    place.task(instructions=INSTRUCTIONS)
    task = load_task("task.yaml")
    says = {"a": " It is {{ 4 }}.\n", "b": "[Task]", "c": "Answer: 5"}
    (own,) = {get_module(name).make(make_options(name, {})).template for name in ("moa", "self-moa")}
    prompts = [with_drafts(prompt_template(own), question_of(each), list(says.values())) for each in task.examples]
    derived = reading_task(task, dict(enumerate(prompts)))
    assert derived.fingerprint != task.fingerprint
    for before, after in zip(task.examples, derived.examples, strict=True):
        order = sorted(range(3), key=lambda n: sha256(before.prompt, n))
        parts = [f"[Response {n}]\n{list(says.values())[place].strip()}\n" for n, place in enumerate(order, start=1)]
        assert after.prompt.endswith("\n".join([*parts, f"[Task]\n{before.prompt}"]))
        assert "Before it come 3 responses" in after.prompt
        assert (after.id, after.reference) == (before.id, before.reference)


def test_where_responses_do_not_fit_the_context_the_primarys_answer_is_kept_and_that_is_said(
    run: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The responses to the first of these questions are long in every model's tokens.
    run.write("long.j2", "{% if '7 + 7' in question %}{{ 'x' * 5000 }}{% endif %}" + TEMPLATE)
    result, evaluator, alone, _ = evaluate(run, "moa", {"prompt": "long.j2"})
    _, short, _ = evaluated(run, "moa", prompt="prompt.j2")
    assert texts(evaluator.answers["moa"]) == [texts(alone[0])[0], *texts(short)[1:]]
    assert result.note is not None
    assert result.note.startswith("1 of 6 answers are earlier responses, because a model could not answer")
    assert "does not fit its context of 4096" in result.note


def test_options_are_not_aggregated(run: Place) -> None:
    records = [{"question": f"{n} is even?", "answer": "AB"[n % 2]} for n in range(12)]
    run.task(records, prompt="{{question}}", choices=["A", "B"], metric="choice")
    ran = run.advisor("evaluate", "run", "--task", "task.yaml", "--methods", "unite,moa,self-moa", "--json", "--quiet")
    found = {entry["method"]: entry["left_out"] for entry in json.loads(ran.out)["methods"]}
    for name in ("moa", "self-moa"):
        assert found[name] == "it writes a text, and here options are chosen by their likelihood"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ prompt }}", "wrong.j2: the template must use responses, and prompt or question; add what is missing"),
        ("{{ responses }}", "wrong.j2: the template must use responses, and prompt or question"),
        (
            "{{ responses }}{{ prompt }}{{ answer }}",
            "wrong.j2: the template names the field 'answer', but a question has",
        ),
        ("{{ responses }", "wrong.j2: the template is broken: "),
    ],
)
def test_a_wrong_prompt_is_refused_in_one_line_before_a_model_runs(run: Place, template: str, message: str) -> None:
    run.write("wrong.j2", template)
    options = ("--methods", "moa", "--set", "moa.prompt=wrong.j2", "--max-new-tokens", "5", "--quiet")
    ran = run.advisor("evaluate", "run", "--task", "task.yaml", *options)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.line


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("moa", {"layers": 0}, "layers 0: give a whole number, at least 1"),
        ("moa", {"aggregator": 7}, "aggregator 7: it should be a text"),
        ("moa", {"aggregator": "four"}, "method moa: 'four' is not a member of the set; name one of "),
        ("moa", {"prompt": "gone.j2"}, "prompt gone.j2: it cannot be read"),
        ("self-moa", {"member": "four"}, "method self-moa: 'four' is not a member of the set"),
        ("self-moa", {"prompt": ["a"]}, r"prompt \['a'\]: it should be a text"),
    ],
)
def test_wrong_options_are_refused_in_one_line(run: Place, method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make_options(method, options)
        evaluated(run, method, **options)
    assert "\n" not in str(caught.value)


def test_a_member_that_fails_leaves_the_method_out(run: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Profile:
        raise MemberError("it broke", of="three")

    monkeypatch.setattr(Profiler, "reading", fail)
    result, *_ = evaluate(run, "moa", {"aggregator": "three"})
    assert result.left_out == "three: it broke"


def test_members_behind_servers_read_responses_too(place: Place) -> None:
    def answer(path: str, body: dict[str, Any]) -> Any:
        if path.endswith("/models"):
            return models("m")
        return completion(str(14) if "<no idea>" in body["prompt"] and "What is 7" in body["prompt"] else "no idea")

    with raw_server() as server:
        server.answer = answer
        place.task(metric="exact_match")
        place.write("prompt.j2", TEMPLATE)
        place.pool(*(f"openai:{server.url}#m name={name} chat_template=never" for name in ("one", "two")))
        allowed = ("--allow-server", server.url)
        place.select("--quiet", "--no-verify")
        command = ("--methods", "moa", "--members", "one,two", "--set", "moa.prompt=prompt.j2", "--json", "--quiet")
        ran = place.advisor("evaluate", "run", "--task", "task.yaml", *command, *allowed)
        assert (ran.status, ran.err) == (0, "")
        (found, _) = json.loads(ran.out)["methods"]
        assert (found["left_out"], found["gained"], found["lost"]) == (None, 1, 0)
        prompts = [body["prompt"] for path, _, body in server.asked if not path.endswith("/models")]
        assert sum(prompt.startswith("<no idea><no idea> What is") for prompt in prompts) == 6
        assert place.advisor("evaluate", "run", "--task", "task.yaml", *command, *allowed).out
        again = [body["prompt"] for path, _, body in server.asked if not path.endswith("/models")]
        assert [prompt for prompt in again[len(prompts) :] if "What" in prompt] == []
