"""A user's question in the template that the run was verified with."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from pools import Place

from advisor.options.finished_run import RunOptions
from advisor.run.plan import answer_reader
from advisor.run.task_prompt import TaskPrompt, prompt_of
from advisor.serving.protocol import ChatRequest, RequestLimits, read_chat
from advisor.serving.request import GenerationRequest, RequestError
from advisor.tasks import load_task
from ensemble.errors import InputError
from ensemble.models.prompts import Dialogue, PromptTemplate, ServedTask, Sourced
from ensemble.models.spec import EnsembleSpec

pytest_plugins = ["pools"]

ASKED = "How long does a refund take?"


def made(question: str = "Question: {{question}}\nAnswer:", **parts: Any) -> TaskPrompt:
    return TaskPrompt(PromptTemplate(question=question, **parts), "run")


def filled(prompt: TaskPrompt, text: str) -> Any:
    return prompt.fill(text)[0]


# --- As in the run ---


def test_a_question_of_a_built_in_task_becomes_its_prompt() -> None:
    task = load_task("advisor/demo/word_problems.yaml", limit=3)
    assert task.template is not None
    prompt = TaskPrompt(task.template, "run")
    for example in task.examples:
        question = example.prompt.removeprefix("Question: ").removesuffix("\nAnswer:")
        assert prompt.fill(question) == (example.prompt, None)


def test_instructions_and_worked_examples_come_first(place: Place) -> None:
    place.write(
        "dev.jsonl", "".join(json.dumps({"question": f"{n} + {n}?", "answer": str(2 * n)}) + "\n" for n in range(9))
    )
    place.write(
        "task.yaml",
        (
            "name: sums\ndata: {dev: dev.jsonl, held_out: dev.jsonl}\ndev_size: 3\ninstructions: Add.\n"
            'prompt: "Question: {{question}}\\nAnswer:"\nreference: "{{answer}}"\nmetric: number\nshots: 2\n'
        ),
    )
    task = load_task(place.folder / "task.yaml", limit=1)
    assert task.template is not None
    (example,) = task.examples
    assert example.prompt.startswith("Add.\n\nQuestion: ")
    question = example.question.removeprefix("Question: ").removesuffix("\nAnswer:")
    prompt = TaskPrompt(task.template, "run")
    assert (
        filled(prompt, question) == filled(prompt, example.question) == filled(prompt, example.prompt) == example.prompt
    )


def test_each_group_has_its_worked_examples() -> None:
    shots = {"law": "1 law\n\n", "art": "1 art\n\n"}
    prompt = made(
        "{{q}}\n{{_options | join('\n')}}\nAnswer:",
        shots=shots,
        group="{{of}}",
        choices=("{{a}}", "{{b}}"),
        instructions="About {{of}}.",
    )
    assert prompt.fields == ("a", "b", "of", "q")
    fields = {"q": "Who?", "a": "I", "b": "You", "of": "art"}
    assert filled(prompt, json.dumps(fields)) == "About art.\n\n1 art\n\nWho?\nA. I\nB. You\nAnswer:"
    with pytest.raises(InputError, match="no worked examples of 'cars'"):
        prompt.fill(json.dumps(fields | {"of": "cars"}))


def test_models_with_an_encoder_read_the_source() -> None:
    prompt = made("{{variant}}: {{text}}\nGerman:", variant="English", source="{{text}}")
    assert filled(prompt, "Hello") == Sourced("English: Hello\nGerman:", "Hello")


# --- Which field a text fills ---


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ("{{question | trim}}", "question"),
        ("{{context | default('')}}{{question}}", "question"),
        ("{{turns[0]}}", "turns"),
        ("{{context}}{{question}}", None),
        ("{{a | default('')}}{{b | default('')}}", None),
        ("{{a[0].text}}", None),
        ("{{question[:1]}}", None),
    ],
)
def test_a_text_fills_the_one_field_that_is_enough(template: str, field: str | None) -> None:
    prompt = made(template)
    assert prompt.field == field
    if field is not None:
        assert filled(prompt, ASKED) == ASKED


def test_a_text_without_the_fields_that_are_needed_is_sent_as_it_is_with_a_note() -> None:
    text, note = made("{{context}}{{question}}").fill(ASKED)
    assert text == ASKED
    assert note is not None
    assert "no JSON object of the fields context, question" in note
    with pytest.raises(InputError, match="names the field 'context', but the prompt has only question"):
        made("{{context}}{{question}}").fill('{"question": "x"}')


# --- A template that is there already ---


@pytest.mark.parametrize(
    "text", [f"Question: {ASKED}\nAnswer:", f" Question: {ASKED}\nAnswer: \n", f"1\n\nQuestion: {ASKED}\nAnswer:"]
)
def test_a_text_in_the_template_is_not_wrapped_twice(text: str) -> None:
    prompt, note = made(shots={"": "1\n\n"}).fill(text)
    assert prompt == f"1\n\nQuestion: {ASKED}\nAnswer:"
    assert note is not None
    assert "has the task's template already" in note
    # One that only begins like it is a question.
    assert made().fill("Question: why?")[0] == "Question: Question: why?\nAnswer:"


# --- Hostile templates ---


@pytest.mark.parametrize(
    "template", ["{{ question", "{{ question * 10**10 }}", "{{ ().__class__.__mro__ }} {{ question }}"]
)
def test_a_template_of_a_stranger_runs_in_the_sandbox(template: str) -> None:
    with pytest.raises(InputError):
        filled(made(template), '{"question": 1}')


def test_a_server_fills_more_prompts_than_a_task_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.tasks.templates.LONGEST_TOGETHER", 100)
    prompt = made()
    assert {filled(prompt, ASKED) for _ in range(4)} == {f"Question: {ASKED}\nAnswer:"}


# --- Chats ---

TURNS = ("user", "a"), ("assistant", "b"), ("user", "c")


def asked(prompt: TaskPrompt | None, *messages: tuple[str, str]) -> GenerationRequest:
    sent = [{"role": role, "content": content} for role, content in messages]
    body = ChatRequest.model_validate({"model": "x", "messages": sent})
    return read_chat(body, RequestLimits(), 0, prompt)


def chat(prompt: TaskPrompt | None, *messages: tuple[str, str]) -> Any:
    return asked(prompt, *messages).prompts[0]


def test_the_last_message_of_the_user_is_filled_in() -> None:
    assert chat(made(), ("user", ASKED)) == f"Question: {ASKED}\nAnswer:"
    assert chat(None, ("user", ASKED)) == ASKED
    assert chat(made(), *TURNS) == Dialogue((("a", "b"),), "Question: c\nAnswer:")
    assert chat(made(), ("system", "s"))[0]["content"] == "s"


def test_a_task_that_goes_on_after_the_response_fills_the_first_message(place: Place) -> None:
    place.write("dev.jsonl", '{"turns": ["a", "c"], "answer": "x"}\n' * 2)
    keys = 'prompt: "Question: {{turns[0]}}\\nAnswer:"\nfollow_ups: "{{turns[1:]}}"\nreference: "{{answer}}"\n'
    place.write("task.yaml", f"name: talk\ndata: {{dev: dev.jsonl, held_out: dev.jsonl}}\nmetric: contains\n{keys}")
    template = load_task(place.folder / "task.yaml").template
    assert template is not None
    request = asked(TaskPrompt(template, "run"), *TURNS)
    assert request.prompts == (Dialogue((("Question: a\nAnswer:", "b"),), "c"),)
    assert request.extras["note"].startswith("the first message of the user is put into the prompt")


def test_a_chat_of_several_messages_says_that_the_last_one_is_the_question() -> None:
    for messages in (TURNS, (("system", "s"), TURNS[2])):
        assert "only the last message of the user" in asked(made(), *messages).extras["note"]
    assert asked(made(), TURNS[2]).extras == asked(None, *TURNS).extras == {}


def test_messages_that_take_no_turns_are_sent_as_they_are() -> None:
    for messages in [(TURNS[0], TURNS[2]), TURNS[:2], (("system", "s"),), (("system", "s"), *TURNS[1:])]:
        assert chat(None, *messages) == [{"role": role, "content": content} for role, content in messages]


def test_a_message_that_lacks_a_field_is_refused() -> None:
    with pytest.raises(RequestError, match=r"messages\.0\.content: .* names the field 'context'") as error:
        chat(made("{{context}}{{question}}"), ("user", '{"question": "x"}'))
    assert error.value.status == 400


# --- What runs ---


def test_raw_takes_no_template_and_a_run_that_does_not_know_its_prompts_says_so() -> None:
    spec = EnsembleSpec((), task=ServedTask(metric="number", template=PromptTemplate(question="{{question}}")))
    options, notes = RunOptions(run="run", prompt="x"), list[str]()
    assert prompt_of(spec, dataclasses.replace(options, raw=True), notes.append) is None
    assert prompt_of(spec, options, notes.append) is not None
    assert notes == []
    assert prompt_of(EnsembleSpec((), task=ServedTask(metric="number")), options, notes.append) is None
    assert notes == ["run does not say how the prompts of its task were made, so a text is sent as it is"]


def test_answers_are_read_where_the_metric_needs_no_reference() -> None:
    reader = answer_reader(EnsembleSpec((), task=ServedTask(metric="number", extract="is ([0-9]+)")))
    assert reader is not None
    assert reader.read("It is 7.") == "7"
    assert answer_reader(EnsembleSpec((), task=ServedTask(metric="chrf"))) is None
    assert answer_reader(EnsembleSpec(())) is None
