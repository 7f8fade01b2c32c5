"""Questions of several turns: the prompt of a later one holds the model's own responses to those before it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from pools import Place
from servers import Answer, Raw, as_json, completion
from servers import models as model_list
from tiny import byte_tokenizer, save_member, tiny_model

from advisor.models.job import next_turns, question_key
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.progress import Progress
from advisor.records import Profile
from advisor.tasks import load_task
from advisor.tasks.task import Example
from ensemble import Dialogue, Ensemble, ModelSpec, Settings, load_member
from ensemble.errors import InputError
from ensemble.models.spec import Checkpoint

pytest_plugins = ["pools"]

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
RECORDS = [
    {
        "number": n,
        "kind": "even" if n % 2 == 0 else "odd",
        "turns": [f"Say {n}.", "Say it again.", ""],
        "right": [n, -n],
    }
    for n in range(1, 13)
]
KEYS: dict[str, Any] = {
    "id": "number",
    "prompt": "{{turns[0]}}",
    "follow_ups": "{{turns[1:]}}",
    "reference": "{{right[_turn - 1]}}",
    "group": "{{kind}}",
    "metric": "contains",
}


@pytest.fixture(scope="module")
def talkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models: `chat` has a chat template, and `plain` has none."""
    folder = tmp_path_factory.mktemp("talkers")
    for seed, name in enumerate(("chat", "plain")):
        tokenizer = byte_tokenizer(("Say", " again"))
        tokenizer.chat_template = TEMPLATE if name == "chat" else None
        save_member(folder / name, tiny_model(tokenizer, seed=seed + 2, hidden=8, positions=512, eos_rate=0), tokenizer)
    return folder


@pytest.fixture
def talk(place: Place) -> Place:
    """A place with a task of two turns."""
    place.task(RECORDS, **KEYS)
    return place


def profiles(talk: Place, talkers: Path, *names: str) -> tuple[dict[str, Profile], tuple[Example, ...]]:
    """Each model's answers to the dev questions, and these."""
    talk.pool(*(str(talkers / name) for name in names))
    plan = talk.plan(verify=False)
    with ResponseCache(talk.cache) as store:
        return Profiler(plan, store, Progress(quiet=True)).alone(names, plan.dev), plan.dev.examples


def load(talkers: Path, *names: str) -> Ensemble:
    """Models in this process, as a run loads them."""
    spec = [ModelSpec(Checkpoint(str(talkers / name)), name, "cpu", "float32") for name in names]
    return Ensemble([load_member(each) for each in spec], k=10)


def conversation(prompt: str, response: str) -> tuple[list[dict[str, str]], str]:
    """What a model reads in the second turn: as messages, and as text."""
    messages = [("user", prompt), ("assistant", response), ("user", "Say it again.")]
    gap = "" if response[:1].isspace() else " "
    text = f"{prompt}{gap}{response}".rstrip() + "\n\nSay it again."
    return [{"role": role, "content": content} for role, content in messages], text


def test_each_turn_is_a_question_of_one_cluster(talk: Place) -> None:
    first, second, third = load_task("task.yaml").examples[:3]
    assert (first.id, first.earlier, first.prompt, first.accepted) == ("1:1", None, "Say 1.", ("1",))
    assert (second.id, second.earlier, second.prompt, second.accepted) == ("1:2", "1:1", "Say it again.", ("-1",))
    assert (first.cluster, second.cluster, third.cluster) == ("1", "1", "2")
    assert (second.group, third.group) == ("odd", "even")


def test_demonstrations_are_before_the_first_turn_only(talk: Place) -> None:
    first, second = load_task("task.yaml", split="held_out", shots=1).examples[:2]
    assert first.prompt.startswith("Say ") and first.prompt.endswith("\n\nSay 7.")
    assert second.prompt == "Say it again."


def test_a_limit_takes_whole_conversations_and_the_smaller_one_is_the_start(talk: Place) -> None:
    two, three = (load_task("task.yaml", limit=limit).examples for limit in (2, 3))
    assert [example.id[-2:] for example in three] == [":1", ":2"] * 3
    assert two == three[:4]


def test_a_conversation_is_on_one_side_of_a_file_that_dev_and_held_out_share(talk: Place) -> None:
    talk.task(RECORDS, **{**KEYS, "data": {"dev": "dev.jsonl", "held_out": "dev.jsonl"}, "dev_size": 2})
    dev, held_out = (load_task("task.yaml", split=split).examples for split in ("dev", "held_out"))
    assert (len(dev), len(held_out)) == (4, 8)
    assert not {example.cluster for example in dev} & {example.cluster for example in held_out}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"choices": ["a", "b"], "metric": "choice"}, "task.yaml: follow_ups cannot be used with `choices`"),
        ({"source": "{{kind}}"}, "task.yaml: follow_ups cannot be used with `source`"),
        ({"follow_ups": ["", "{{kind}}"]}, "follow_ups should be a text or a list of texts, none of them empty"),
        ({"follow_ups": "{{['', kind]}}"}, "dev.jsonl:1: a follow-up is blank"),
        ({"follow_ups": "{{['x'] * 40}}"}, "dev.jsonl:1: it has more than 32 turns"),
        ({"id": "{{turns}}"}, "dev.jsonl:1: the id must be text or a whole number"),
        ({"id": "kind"}, "dev.jsonl:1 has the same id 'odd'"),
    ],
)
def test_turns_that_cannot_be_used_are_refused(talk: Place, keys: dict[str, Any], message: str) -> None:
    talk.task(RECORDS, **{**KEYS, **keys})
    with pytest.raises(InputError) as refusal:
        load_task("task.yaml")
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_conversation_without_a_chat_template_is_one_text_like_demonstrations() -> None:
    dialogue = Dialogue((("Question: A?\nAnswer:", " yes\n"), ("Why?\n", "Because.")), "Sure?")
    assert dialogue.text == "Question: A?\nAnswer: yes\n\nWhy?\nBecause.\n\nSure?"
    assert Dialogue((("Who?", "Me."),), "Sure?").text == "Who? Me.\n\nSure?"


def test_a_chat_template_gets_messages_and_other_members_the_text(talkers: Path) -> None:
    chat, plain = load(talkers, "chat", "plain").encode(Dialogue((("Say 1.", "one"),), "Again."))
    tokenizer = byte_tokenizer(("Say", " again"))
    assert tokenizer.decode(chat) == "<user>Say 1.<assistant>one<user>Again.<assistant>"
    assert tokenizer.decode(plain) == "Say 1. one\n\nAgain."


@pytest.mark.parametrize("name", ["chat", "plain"])
def test_a_model_continues_its_own_response(talk: Place, talkers: Path, name: str) -> None:
    found, examples = profiles(talk, talkers, name)
    answers = found[name].answers
    alone = load(talkers, name)
    assert [answer.id for answer in answers] == [example.id for example in examples]
    for example, first, second in zip(examples[::2], answers[::2], answers[1::2], strict=True):
        messages, text = conversation(example.prompt, first.text or "")
        (wanted,) = alone.generate([messages if name == "chat" else text], max_new_tokens=6)
        assert second.text == wanted.text


def test_a_set_continues_its_own_response_in_each_members_form(talk: Place, talkers: Path) -> None:
    talk.pool(*(str(talkers / name) for name in ("chat", "plain")))
    plan = talk.plan(verify=False)
    with ResponseCache(talk.cache) as store:
        answers = Profiler(plan, store, Progress(quiet=True)).together(["chat", "plain"], plan.dev).answers
    together = load(talkers, "chat", "plain")
    chat, plain = together.members
    for example, first, second in zip(plan.dev.examples[::2], answers[::2], answers[1::2], strict=True):
        (wanted,) = together.generate([example.prompt], max_new_tokens=6)
        assert first.text == wanted.text
        messages, text = conversation(example.prompt, first.text or "")
        rows = [chat.prompt_ids(messages), plain.prompt_ids(text)]
        [(_, wanted)] = together.generate_each([rows], Settings(6))
        assert second.text == wanted.text


def test_the_cost_of_all_turns_counts(talk: Place, talkers: Path) -> None:
    found, examples = profiles(talk, talkers, "plain")
    assert found["plain"].cost.tokens == 6 * len(examples)


def test_a_set_is_stored_when_all_turns_are(talk: Place, talkers: Path) -> None:
    talk.pool(*(str(talkers / name) for name in ("chat", "plain")))
    plan = talk.plan(verify=False)
    first_turns = dataclasses.replace(plan.dev, examples=plan.dev.examples[::2])
    with ResponseCache(talk.cache) as store:
        profiler = Profiler(plan, store, Progress(quiet=True))
        found = [profiler.is_stored(["chat", "plain"], plan.dev, "unite", {})]
        for task in (first_turns, plan.dev):
            profiler.together(["chat", "plain"], task)
            found.append(profiler.is_stored(["chat", "plain"], plan.dev, "unite", {}))
    assert found == [False, False, True]


def test_the_key_of_a_turn_has_the_conversation_and_that_of_one_turn_stays_as_it_was(talk: Place) -> None:
    task = load_task("task.yaml", limit=1)
    first, second = task.examples
    key = {"members": [{"weights": "abc"}]}
    of_one_turn = question_key(key, first, task, task.settings)
    assert of_one_turn == question_key(key, dataclasses.replace(first, id="other", cluster=None), task, task.settings)
    one, other = (next_turns(task, {first.id: said}).examples[0] for said in ("A", "B"))
    same_text = dataclasses.replace(second, prompt=Dialogue(one.exchanges, one.prompt).text)
    keys = [question_key(key, each, task, task.settings) for each in (first, second, one, other, same_text)]
    assert len(set(keys)) == 5


def ask(talk: Place, raw: Raw, template: str) -> list[dict[str, Any]]:
    """The requests of a run that asks a server the dev questions."""
    talk.pool(f"openai:{raw.url}#m name=m chat_template={template}")
    assert talk.advisor("profile", "--pool", "models.txt", "--task", "task.yaml", "--limit", "2").status == 0
    return [body for path, _, body in raw.asked if path.endswith("completions") and body.get("prompt") != "Hello"]


def test_a_server_gets_a_conversation_as_messages_or_as_text(talk: Place, raw: Raw) -> None:
    def chat(path: str, body: dict[str, Any]) -> Answer:
        if path.endswith("/models"):
            return model_list("m")
        message = {"role": "assistant", "content": f"after {len(body['messages'])}"}
        return as_json({"choices": [{"message": message, "finish_reason": "stop"}]})

    raw.answer = chat
    asked = [[message["content"] for message in body["messages"]] for body in ask(talk, raw, "always")]
    assert [each[1:] for each in asked if len(each) == 3] == [["after 1", "Say it again."]] * 2
    raw.asked.clear()
    raw.answer = lambda path, _: model_list("m") if path.endswith("/models") else completion("yes")
    texts = [body["prompt"] for body in ask(talk, raw, "never")]
    assert [text.partition(".")[2] for text in texts if "again" in text] == [" yes\n\nSay it again."] * 2


def test_a_turn_after_one_that_failed_has_failed_and_the_others_are_asked(talk: Place, raw: Raw) -> None:
    def refuse_one(path: str, body: dict[str, Any]) -> Answer:
        if path.endswith("/models"):
            return model_list("m")
        if body["prompt"] == "Say 3.":
            return as_json({"error": {"message": "too long"}}, 400)
        return completion("7")

    raw.answer = refuse_one
    talk.pool(f"openai:{raw.url}#m name=m chat_template=never")
    plan = talk.plan(verify=False)
    with ResponseCache(talk.cache) as store:
        found = Profiler(plan, store, Progress(quiet=True)).alone(["m"], plan.dev)
    errors = {answer.id: answer.error for answer in found["m"].answers}
    assert errors.pop("3:2") == "the turn before it, 3:1, has no response"
    assert "too long" in (errors.pop("3:1") or "")
    assert set(errors.values()) == {None}


def test_a_run_traces_later_turns_and_a_check_asks_whole_conversations(talk: Place, talkers: Path) -> None:
    talk.pool(str(talkers / "chat"), str(talkers / "plain"))
    talk.select("--limit", "2")
    held_out = talk.samples("held_out")
    assert [line["id"][-2:] for line in held_out] == [":1", ":2"] * 2
    assert all(line["ensemble"]["trace"]["steps"] for line in held_out)
    checked = talk.advisor("check", "run", "--task", "task.yaml", "--limit", "3", "--json")
    result = json.loads(checked.out)
    assert (result["n"], result["left_out"]) == (6, 2)
