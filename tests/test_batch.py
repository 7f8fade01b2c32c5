"""Batch files: a run's questions as a provider's batch API takes them, and its answers in place of requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from servers import Answer, Raw, as_json, models, raw_server

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

SELECT = ("select", "--pool", "models.txt", "--task", "task.yaml", "--out", "run", "--max-gap", "100")
MODELS = ("good", "fair", "poor")
QUESTIONS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(12)]
Body = dict[str, Any]


def replied(body: Body) -> Body:
    """What the fake provider answers: ``good`` is right for all numbers, ``fair`` and ``poor`` for some."""
    words = json.dumps(body.get("messages", body.get("prompt")))
    numbers = [int(word) for word in words.split() if word.isdigit()]
    n = numbers[0] if numbers else 0
    text = str(n + 1) if n % {"good": 1, "fair": 2, "poor": 3}[body["model"]] == 0 else "no idea"
    choice = {"finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    choice = choice if "messages" in body else {"finish_reason": "stop", "text": text}
    return {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}


def well(path: str, body: Body) -> Answer:
    return models(*MODELS) if path.endswith("/models") else as_json(replied(body))


@pytest.fixture
def raw() -> Iterator[Raw]:
    with raw_server() as server:
        server.answer = well
        yield server


def prepared(place: Place, raw: Raw, options: str = "revision=1", **task: Any) -> None:
    place.task(QUESTIONS, **{"metric": "number", **task})
    place.pool(*(f"openai:{raw.url}#{name} {options} price_in=1 price_out=2" for name in MODELS))


def asked(raw: Raw) -> list[Body]:
    """The bodies of all requests but those that see whether the model answers."""
    bodies = [body for path, _, body in raw.asked if not path.endswith("/models")]
    return [body for body in bodies if "Hello" not in json.dumps(body)]


def lines_of(*files: Path) -> list[Body]:
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def answer_to(line: Body) -> Body:
    response = {"status_code": 200, "request_id": "r", "body": replied(line["body"])}
    return {"id": "b", "custom_id": line["custom_id"], "response": response, "error": None}


def batch(place: Place, *options: str) -> list[Path]:
    ran = place.advisor(*SELECT, *options, "--batch", "questions")
    assert ran.status == 0, ran.err
    return [place.folder / line for line in ran.out.splitlines()]


def answered(place: Place, files: list[Path], change: Callable[[list[Body]], None] = lambda _: None) -> None:
    """Write the answers to all questions of the files into ``answers.jsonl``, with a change."""
    answers = [answer_to(line) for line in lines_of(*files)]
    change(answers)
    place.write("answers.jsonl", "".join(f"{json.dumps(answer)}\n" for answer in answers))


def samples(place: Place) -> list[Body]:
    return lines_of(place.folder / "run" / "samples.jsonl")


@pytest.mark.parametrize("template", ["auto", "never"])
def test_answers_of_a_batch_give_the_run_of_direct_requests_and_nothing_is_asked(
    place: Place, raw: Raw, template: str
) -> None:
    prepared(place, raw, f"revision=1 chat_template={template}", stop=["\n"])
    files = batch(place)
    assert [file.name for file in files] == [f"{name}.jsonl" for name in MODELS]
    assert raw.asked == []
    answered(place, files)

    assert place.advisor(*SELECT, "--batch-results", "answers.jsonl").status == 0
    assert asked(raw) == []
    from_batch = samples(place)

    assert place.advisor(*SELECT, "--force", "--cache-dir", "other").status == 0
    sent = asked(raw)
    assert samples(place) == from_batch
    # The bodies of the file are those of the requests, each once.
    in_files = [line["body"] for line in lines_of(*files)]
    assert sorted(map(json.dumps, in_files)) == sorted(map(json.dumps, sent))
    path = "/v1/completions" if template == "never" else "/v1/chat/completions"
    assert {(line["method"], line["url"]) for line in lines_of(*files)} == {("POST", path)}


def test_answers_are_stored_so_that_a_later_run_needs_no_file(place: Place, raw: Raw) -> None:
    prepared(place, raw)
    answered(place, batch(place))
    assert place.advisor(*SELECT, "--batch-results", "answers.jsonl").status == 0
    first = samples(place)
    for more in ((), ("--batch-results", "answers.jsonl")):
        ran = place.advisor(*SELECT, *more)
        assert (ran.status, asked(raw)) == (0, [])
        assert samples(place) == first
        assert "no answer" not in ran.err


def test_only_questions_without_a_stored_response_are_written(place: Place, raw: Raw) -> None:
    prepared(place, raw)
    assert place.advisor("profile", *SELECT[1:5]).status == 0
    raw.asked.clear()
    assert [len(lines_of(file)) for file in batch(place)] == [6, 6, 6]
    assert raw.asked == []


def test_a_later_turn_is_written_after_the_answers_to_the_turn_before_it(place: Place, raw: Raw) -> None:
    prepared(place, raw, follow_ups="{{['Is 3 right?']}}")
    first = batch(place)
    assert [len(line["body"]["messages"]) for line in lines_of(*first)] == [1] * 36
    answered(place, first)
    ran = place.advisor(*SELECT, "--batch-results", "answers.jsonl", "--batch", "second")
    second = [place.folder / line for line in ran.out.splitlines()]
    assert [len(line["body"]["messages"]) for line in lines_of(*second)] == [3] * 36
    answered(place, second)
    assert place.advisor(*SELECT, "--batch-results", "answers.jsonl").status == 0
    assert asked(raw) == []


def foreign(answers: list[Body]) -> None:
    answers[0]["custom_id"] = "0" * 64


def failed(answers: list[Body]) -> None:
    answers[0]["response"] = {"status_code": 400, "body": {"error": {"message": "too\nlong \x1b[31m"}}}


def expired(answers: list[Body]) -> None:
    answers[0] |= {"response": None, "error": {"code": "batch_expired", "message": "it took too long"}}


def missing(answers: list[Body]) -> None:
    del answers[0]


def misshapen(answers: list[Body]) -> None:
    answers[0]["response"]["body"] = {"choices": [{"message": {"content": 3}}]}


def endless(answers: list[Body]) -> None:
    answers[0]["response"]["body"]["choices"][0]["message"]["content"] = "x" * 6001


def question(answers: list[Body]) -> None:
    answers[0] = {"custom_id": answers[0]["custom_id"], "method": "POST", "url": "/v1/chat/completions", "body": {}}


def odd(answers: list[Body]) -> None:
    answers[0] = {"custom_id": 3}


LEFT = "good: 1 question has no answer in the batch results"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (foreign, "answers.jsonl:1: is no answer to a question of this run"),
        (failed, r"answers.jsonl:1: has no answer (too␊long ␛[31m); the line is not used"),
        (expired, "answers.jsonl:1: has no answer (it took too long); the line is not used"),
        (missing, ""),
        (misshapen, "answers.jsonl:1: the answer has another shape (choices[0].message.content should be a text"),
        (endless, "answers.jsonl:1: the answer has 6,001 characters, too many for 6 tokens; it is not used"),
        (question, "answers.jsonl:1: has no answer (it is a question that --batch wrote); the line is not used"),
        (odd, "answers.jsonl:1: has no answer (no reason is given); the line is not used"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_and_its_question_asked(
    place: Place, raw: Raw, change: Callable[[list[Body]], None], says: str
) -> None:
    prepared(place, raw)
    answered(place, batch(place), change)
    ran = place.advisor(*SELECT, "--batch-results", "answers.jsonl")
    assert ran.status == 0
    assert says in ran.err
    assert LEFT in ran.err
    assert len(asked(raw)) == 1


def test_of_two_answers_to_a_question_the_first_counts(place: Place, raw: Raw) -> None:
    def repeat(answers: list[Body]) -> None:
        second = json.loads(json.dumps(answers[0]))
        second["response"]["body"]["choices"][0]["message"]["content"] = "second"
        answers.append(second)

    prepared(place, raw)
    answered(place, batch(place), repeat)
    ran = place.advisor(*SELECT, "--batch-results", "answers.jsonl")
    assert "answers.jsonl:37: its question has an answer already; the line is left out" in ran.err
    assert asked(raw) == []
    assert "second" not in (place.folder / "run" / "samples.jsonl").read_text(encoding="utf-8")


def test_an_answer_in_a_second_file_replaces_a_failure_in_the_first(place: Place, raw: Raw) -> None:
    prepared(place, raw)
    files = batch(place)
    answered(place, files)
    (place.folder / "answers.jsonl").rename(place.folder / "good.jsonl")
    answered(place, files, expired)
    ran = place.advisor(*SELECT, "--batch-results", "answers.jsonl", "--batch-results", "good.jsonl")
    assert (ran.status, asked(raw)) == (0, [])
    assert "has no answer" not in ran.err


def test_answers_to_other_questions_are_refused_before_anything_is_asked(place: Place, raw: Raw) -> None:
    prepared(place, raw)
    answered(place, batch(place))
    for options in (("--max-new-tokens", "7"), ("--shots", "2")):
        ran = place.advisor(*SELECT, *options, "--batch-results", "answers.jsonl")
        assert ran.status == 2
        assert "answers.jsonl: no line is an answer to a question of this run" in ran.err
    assert asked(raw) == []


@pytest.mark.parametrize("content", ["", "no JSON\n", "[" * 100_000, '{"custom_id": "\\ud800"}\n', "\x00\x1f\x8b"])
def test_a_file_without_answers_is_one_line_of_message(place: Place, raw: Raw, content: str) -> None:
    prepared(place, raw)
    place.write("answers.jsonl", content)
    ran = place.advisor(*SELECT, "--quiet", "--batch-results", "answers.jsonl")
    assert ran.status == 2
    assert "answers.jsonl" in ran.line
    assert asked(raw) == []


def test_what_no_batch_can_ask_is_said(place: Place, raw: Raw) -> None:
    prepared(place, raw, "")
    assert "without revision= the answers of good hold for one day" in place.refused(*SELECT, "--batch", "questions")
    prepared(place, raw, choices=["{{answer}}", "no"], reference="{{answer}}", metric="choice")
    assert "a task with choices needs log-probabilities" in place.refused(*SELECT, "--batch", "questions")
    prepared(place, raw)
    place.write("good.jsonl", "mine")
    assert "good.jsonl: exists" in place.refused(*SELECT, "--quiet", "--batch", ".")
    assert "--batch has no effect with --dry-run" in place.refused(*SELECT, "--dry-run", "--batch", ".")
    assert raw.asked == []


def test_what_a_batch_costs_is_at_most_the_tokens_of_its_questions_at_half_the_price(place: Place, raw: Raw) -> None:
    prepared(place, raw, max_new_tokens=50)
    place.pool(f"openai:{raw.url}#good revision=1 price_in=1000 price_out=2000")
    ran = place.advisor(*SELECT, "--batch", "questions")
    prompts = [line["body"]["messages"][0]["content"] for line in lines_of(place.folder / "questions" / "good.jsonl")]
    whole = sum(1000 * len(prompt) / 4 + 2000 * 50 for prompt in prompts) / 1e6
    assert f"at most ${whole:.2f} as requests, and ${whole / 2:.2f} where a batch costs half" in ran.err
    # Without a price nothing is said of it.
    place.pool(f"openai:{raw.url}#good revision=1")
    assert "$" not in place.advisor(*SELECT, "--batch", "more").err


def test_models_of_this_process_are_left_to_the_run(place: Place, raw: Raw, models: Path) -> None:
    place.task(QUESTIONS)
    place.pool(str(models / "alpha"), f"openai:{raw.url}#good revision=1")
    ran = place.advisor(*SELECT, "--batch", "questions")
    assert (ran.status, ran.out) == (0, "questions/good.jsonl\n")
    assert "alpha: no batch asks it" in ran.err
    place.pool(str(models / "alpha"))
    assert "no model that a batch can ask" in place.advisor(*SELECT, "--batch", "other").err
