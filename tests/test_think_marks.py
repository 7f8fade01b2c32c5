"""Models that mark their thinking by special tokens of their tokenizers, alone and together: Magistral, gpt-oss, Gemma.

Models are random, in float64, and write a script from its beginning, special tokens included.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from reference import ReferenceMember
from reference import generate as slow
from running_server import serving
from servers import as_json, completion, raw_server
from tiny import byte_tokenizer, let_write, save_member, tiny_model, tokenizer_named, writer_of
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from advisor.models.ask import answers, without_waiting
from advisor.models.local_model import LocalModel
from advisor.models.response_cache import split_thinking
from advisor.models.server_model import ServerModel
from advisor.tasks import load_task
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.models.load import member_of
from ensemble.models.member import LocalMember, Member
from ensemble.models.spec import Checkpoint, ModelSpec
from ensemble.models.thinking import ThinkingTags
from ensemble.servers.address import ServerAddress

TOKENS = 60


class Family(NamedTuple):
    """How a family writes: the tokenizer, its special tokens, and what is around the thinking."""

    tokenizer: str
    special: tuple[str, ...]
    opening: str
    closing: str
    tags: ThinkingTags | None = None


FAMILY = {
    "Magistral": Family("bytes", ("[THINK]", "[/THINK]"), "[THINK]", "[/THINK]"),
    "Magistral, pieces": Family("unigram with bytes", ("[THINK]", "[/THINK]"), "[THINK]", "[/THINK]"),
    "Gemma": Family("bytes", ("<|channel>", "<channel|>"), "<|channel>thought\n", "<channel|>"),
    "gpt-oss": Family(
        "bytes",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "Kimi K3": Family(
        "bytes",
        ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|><|open|>response<|sep|>",
    ),
    "Inkling": Family(
        "bytes",
        ("<|content_thinking|>", "<|end_message|>", "<|message_model|>", "<|content_text|>"),
        "<|content_thinking|>",
        "<|end_message|><|message_model|><|content_text|>",
    ),
    "PLaMo 3": Family(
        "bytes",
        ("<|plamo:begin_", "<|plamo:end_", ":plamo|>"),
        "<|plamo:begin_think:plamo|>",
        "<|plamo:end_think:plamo|>",
    ),
    "named by a user": Family("bytes", ("<plan>", "</plan>"), "<plan>", "</plan>", ThinkingTags("<plan>", "</plan>")),
}


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer with the family's special tokens, and others that nothing may write."""
    family = FAMILY[name]
    plain = byte_tokenizer(("James", " the", " cat"), "<|return|>")
    made = copy.deepcopy(plain if family.tokenizer == "bytes" else tokenizer_named(family.tokenizer))
    made.add_tokens([AddedToken(each, special=True, normalized=False) for each in ("<pad>", *family.special)])
    return made


@cache
def ids_of(name: str, text: str) -> list[int]:
    """A text in the ids of a family's tokenizer, its special tokens as such; worked out by hand."""
    tokenizer, found = tokenizer_of(name), list[int]()
    plain = ReferenceMember(tiny_model(tokenizer), tokenizer)
    special = "|".join(map(re.escape, FAMILY[name].special))
    for part in re.split(f"({special})", text):
        is_special = part in FAMILY[name].special
        found += [tokenizer.convert_tokens_to_ids(part)] if is_special else plain.continuation(part.encode())
    return found


def member(name: str, script: str, prompt: str, seed: int = 1, **spec: Any) -> Member:
    """A member that writes a script after a prompt, round and round."""
    made = written_by(name, script, prompt, seed)
    return replace(made, spec=ModelSpec(Checkpoint("nowhere"), made.name, thinking=FAMILY[name].tags, **spec))


@cache
def written_by(name: str, script: str, prompt: str, seed: int) -> LocalMember:
    tokenizer = tokenizer_of(name)
    model, ids = tiny_model(tokenizer, seed), ids_of(name, script)
    start = len(tokenizer(prompt)["input_ids"]) % len(ids)
    let_write(model, [*ids[-start:], *ids[:-start]] if start else ids, strength=60.0)
    return member_of(model, tokenizer, name=f"{name} {seed}", chat_template="never")


PROMPT = "Question: 12 + 30 = ?\nAnswer: "
ANSWER = "\n\nThe cat sat. James and Anna went "


def thinker(name: str, seed: int = 1, thought: str = "so it is 4", **spec: Any) -> Member:
    family = FAMILY[name]
    return member(name, f"{family.opening}{thought}{family.closing}{ANSWER}", PROMPT, seed, **spec)


@cache
def slow_alone(model: Any, name: str, prompt: tuple[int, ...]) -> tuple[list[int], str]:
    """What a model alone writes, by the page without a cache: its ids and its text."""
    plain = ReferenceMember(model, tokenizer_of(name), marks=FAMILY[name].special)
    made = slow([plain], [prompt], max_new_tokens=TOKENS)
    return made.ids, made.text


def thought_of(one: Member, name: str, prompt: Sequence[int], closing: str) -> list[int]:
    """What a member alone writes before its answer, in its ids."""
    ids, _ = slow_alone(one.local.model, name, tuple(prompt))
    plain = ReferenceMember(one.local.model, one.tokenizer, marks=FAMILY[name].special)
    for count in range(len(ids) + 1):
        text = b"".join(map(plain.token_bytes, ids[:count])).decode(errors="replace")
        _, marker, after = text.partition(closing)
        if marker and after.strip():
            return ids[: count - 1]
    return [*ids, *ids_of(name, closing)]


@cache
def partner() -> Member:
    """One that does not think."""
    return writer_of(tokenizer_named("pieces"), "The shop and the dog ", 3)


def by_hand(members: Sequence[Member], names: Sequence[str], tables: Path, closing: str | None = None) -> str:
    """The text of an ordinary ensemble whose prompts end with what each member thought; plain."""
    ensemble = Ensemble(members, cache_dir=tables)
    prompts = ensemble.encode(PROMPT)
    thoughts = [
        thought_of(one, name, ids, closing or FAMILY[name].closing) if name else []
        for one, name, ids in zip(members, names, prompts, strict=True)
    ]
    behind = [[*ids, *own] for ids, own in zip(prompts, thoughts, strict=True)]
    ((_, made),) = ensemble.generate_each([behind], Settings(TOKENS - len(thoughts[0])), Batch(1, draft=0))
    return made.text


@pytest.mark.parametrize("method", ["unite", "average"])
@pytest.mark.parametrize("name", FAMILY)
def test_alone_a_model_writes_its_marks_as_the_page_does(name: str, method: str, tables: Path) -> None:
    one = thinker(name)
    (prompt,) = Ensemble([one], cache_dir=tables).encode(PROMPT)
    (made,) = Ensemble([one], cache_dir=tables, method=method).generate([PROMPT], max_new_tokens=TOKENS)
    assert (list(made.tokens), made.text) == slow_alone(one.local.model, name, tuple(prompt))
    assert made.text.startswith(f"{FAMILY[name].opening}so it is 4{FAMILY[name].closing}\n\nThe cat")


@pytest.mark.parametrize("name", FAMILY)
def test_the_response_of_a_model_is_parted(name: str, tables: Path) -> None:
    """As the profiler asks a model of this process, and reads its responses."""
    task = load_task("word_problems", limit=1)
    (example,) = task.examples
    text = example.model_input
    assert isinstance(text, str)
    one = member(name, f"{FAMILY[name].opening}5? No.{FAMILY[name].closing}The answer is 7.\n\n\n", text)
    model = LocalModel(one.name, lambda: Ensemble([one], cache_dir=tables, method="average"))
    found = without_waiting(answers(model, {0: text}, Settings(99, ("\n\n",))))
    (parted,) = split_thinking([response for _, response in found], FAMILY[name].tags)
    assert (parted.thinking, parted.text) == ("5? No.", "The answer is 7.")


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("first", [True, False])
def test_apart_the_texts_are_those_behind_the_thinking(name: str, first: bool, tables: Path) -> None:
    members, names = [thinker(name), partner()], [name, ""]
    if not first:
        members, names = members[::-1], names[::-1]
    ensemble = Ensemble(members, cache_dir=tables, think="apart")
    (made,) = ensemble.generate([PROMPT], max_new_tokens=TOKENS)
    assert made.text == by_hand(members, names, tables) != ""
    thought = made.thinking[0 if first else 1]
    assert thought is not None
    prompt = ensemble.encode(PROMPT)[0 if first else 1]
    assert list(thought.tokens) == thought_of(members[0 if first else 1], name, prompt, FAMILY[name].closing)
    assert (thought.text, thought.finish_reason) == ("so it is 4", "stop")


def test_two_families_think_apart_in_batches(tables: Path) -> None:
    names = ["gpt-oss", "Magistral, pieces"]
    members = [thinker(names[0]), thinker(names[1], 2, "it is, I think, a cat")]
    ensemble = Ensemble(members, cache_dir=tables, think="apart")
    wanted = by_hand(members, names, tables)
    for batch in (Batch(1), Batch(1, draft=0), Batch(3)):
        made = dict(ensemble.generate_each([ensemble.encode(PROMPT)] * 3, Settings(TOKENS), batch))
        assert [made[n].text for n in range(3)] == [wanted] * 3
        assert {made[n].thought for n in range(3)} == {"so it is 4\n\nit is, I think, a cat"}


@pytest.mark.parametrize("budget", [0, 3])
@pytest.mark.parametrize("name", FAMILY)
def test_a_budget_writes_the_end_in_special_tokens(name: str, budget: int, tables: Path) -> None:
    prompt = f"{PROMPT}{FAMILY[name].opening}"
    one = member(name, "it goes on and on ", prompt, thinking_budget=budget)
    (made,) = Ensemble([one], cache_dir=tables).generate([prompt], max_new_tokens=TOKENS)
    (thought,) = made.thinking
    assert thought is not None
    end = ids_of(name, FAMILY[name].closing)
    assert list(thought.tokens[budget : budget + len(end)]) == end
    assert thought.finish_reason == "length"
    assert thought.text in "it goes on and on "
    assert made.text


@pytest.mark.parametrize("name", FAMILY)
def test_without_a_budget_for_thinking_the_section_is_empty(name: str, tables: Path) -> None:
    """Also where the model opens it by several tokens."""
    (made,) = Ensemble([thinker(name, thinking_budget=0)], cache_dir=tables).generate([PROMPT], max_new_tokens=TOKENS)
    (thought,) = made.thinking
    assert thought is not None
    section = ids_of(name, FAMILY[name].opening) + ids_of(name, FAMILY[name].closing)
    assert (list(thought.tokens[: len(section)]), thought.text) == (section, "")
    assert made.text


@pytest.mark.parametrize("name", FAMILY)
def test_a_budget_that_ends_within_the_end_writes_only_the_rest(name: str, tables: Path) -> None:
    """What the model wrote of it stays. The characters of a special token are not the token."""
    prompt, thought = f"{PROMPT}{FAMILY[name].opening}", "is 4 [ < "
    before, end = len(ids_of(name, thought)), ids_of(name, FAMILY[name].closing)
    free = member(name, f"{thought}{FAMILY[name].closing}{ANSWER}", prompt)
    assert free.spec is not None
    for budget in range(before, before + len(end)):
        one = replace(free, spec=replace(free.spec, thinking_budget=budget))
        (made,) = Ensemble([one], cache_dir=tables).generate([prompt], max_new_tokens=before + len(end) + 10)
        (each,) = made.thinking
        assert each is not None
        assert list(each.tokens[: before + len(end)]) == [*ids_of(name, thought), *end]
        assert (each.text, made.text.split()[0]) == (thought.strip(), "The")


def test_an_answer_at_once_in_the_channel_of_answers_is_no_thinking(tables: Path) -> None:
    """So gpt-oss may write; its mark belongs to its own context."""
    final = "<|channel|>final<|message|>"
    one = member("gpt-oss", f"{final}{ANSWER}", PROMPT)
    ensemble = Ensemble([one, partner()], cache_dir=tables, think="apart")
    (made,) = ensemble.generate([PROMPT], max_new_tokens=TOKENS)
    thought = made.thinking[0]
    assert thought is not None
    assert (thought.text, made.thought) == ("", None)
    assert list(thought.tokens) == thought_of(one, "gpt-oss", ensemble.encode(PROMPT)[0], final)
    assert made.text == by_hand([one, partner()], ["gpt-oss", ""], tables, final) != ""


def test_with_others_no_special_token_is_written(tables: Path) -> None:
    one = thinker("Magistral")
    alone, both = Ensemble([one], cache_dir=tables), Ensemble([one, one], cache_dir=tables)
    assert alone.members[0].vocabulary.marks == set(ids_of("Magistral", "[THINK][/THINK]"))
    again = Ensemble([*alone.members, *alone.members], cache_dir=tables)
    for ensemble in (both, again):
        (made,) = ensemble.generate([PROMPT], max_new_tokens=20)
        assert not set(made.tokens) & set(ids_of("Magistral", "[THINK][/THINK]"))


ENDS = {
    "gpt-oss": "<|end|><|start|>assistant",
    "Inkling": "<|end_message|><|message_model|>",
    "Kimi K3": "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
}


@pytest.mark.parametrize("think", [None, "apart"])
@pytest.mark.parametrize("name", ENDS)
def test_what_ends_an_answer_ends_the_text_of_several_models(name: str, think: str | None, tables: Path) -> None:
    """It is no EOS of these models, and no other member has it."""
    family, begun = FAMILY[name], "" if think else f"{FAMILY[name].opening}hm{FAMILY[name].closing}"
    prompt = PROMPT + begun
    script = f"{family.opening}hm{family.closing}" if think else ""
    members = [member(name, f"{script}It is 4.{ENDS[name]} and so on ", prompt, seed) for seed in (1, 2)]
    options = {} if think is None else {"think": think}
    (made,) = Ensemble(members, cache_dir=tables, **options).generate([prompt], max_new_tokens=TOKENS)
    assert (made.text, made.finish_reason) == ("It is 4.", "eos")


@pytest.mark.parametrize("name", ENDS)
def test_a_model_that_was_a_member_writes_its_end_alone(name: str, tables: Path) -> None:
    """Its own EOS ends its text again, and its thinking is not ended by what ends an answer."""
    one = thinker(name)
    (wanted,) = Ensemble([one], cache_dir=tables).generate([PROMPT], max_new_tokens=TOKENS)
    among_others = Ensemble([one, partner()], cache_dir=tables).members[0]
    assert Ensemble([among_others], cache_dir=tables).generate([PROMPT], max_new_tokens=TOKENS) == [wanted]


def test_a_tokenizer_without_such_tokens_stays_as_it_is(tables: Path) -> None:
    """Control texts around a section are not enough: here ``<|end|>`` ends a turn, as Phi's does."""
    one = member_of(tiny_model(tokenizer_named("bytes")), tokenizer_named("bytes"), name="one", chat_template="never")
    assert Ensemble([one], cache_dir=tables).members[0] is one
    tokenizer = copy.deepcopy(byte_tokenizer(eos="<|endoftext|>"))
    tokenizer.add_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    other = member_of(tiny_model(tokenizer), tokenizer, name="other", chat_template="never")
    assert Ensemble([other], cache_dir=tables).members[0] is other


def test_what_a_user_writes_is_never_a_mark(tables: Path) -> None:
    """An option, say, with the characters of a special token."""
    (alone,) = Ensemble([thinker("Magistral")], cache_dir=tables).members
    assert not set(alone.vocabulary.continue_ids(b"a[/THINK]b")) & alone.vocabulary.marks


@pytest.mark.parametrize("name", ["Magistral", "Kimi K3"])
def test_a_member_behind_a_server_thinks_with_its_special_tokens(name: str, tmp_path: Path) -> None:
    here, other = thinker(name), partner()
    folder = save_member(tmp_path / "model", tiny_model(tokenizer_of(name)), tokenizer_of(name))
    with serving(Ensemble([here], cache_dir=tmp_path)) as server:
        (far,) = Ensemble.from_pretrained([f"openai:{server.url}/v1#tiny tokenizer={folder}"]).members
        alone = Ensemble([far, other], k=5, cache_dir=tmp_path, think="apart")
        prompts, drawn = [alone.encode(PROMPT)] * 2, Settings(40, temperature=1.5, seed=2)
        draws = [sorted(alone.generate_each(prompts, drawn, batch)) for batch in (Batch(2), Batch(1, draft=0))]
        assert draws[0] == draws[1]
        for batch in (Batch(2), Batch(1, draft=0)):
            texts = []
            for one in (here, far):
                ensemble = Ensemble([one, other], k=5, cache_dir=tmp_path, think="apart")
                made = dict(ensemble.generate_each(prompts, Settings(40), batch))
                texts.append([(made[n].text, made[n].thought, made[n].thinking[0]) for n in range(2)])
            assert texts[0] == texts[1]
            assert texts[0][0][1] == "so it is 4"


@pytest.mark.parametrize(
    ("owner", "fields"),
    [
        ("vllm", {"skip_special_tokens": False, "spaces_between_special_tokens": False}),
        ("sglang", {"skip_special_tokens": False}),
        ("somebody", {}),
    ],
)
def test_a_server_that_gives_whole_texts_is_asked_for_the_marks(owner: str, fields: dict[str, Any]) -> None:
    with raw_server() as raw:
        raw.answer = lambda path, _: (
            as_json({"data": [{"id": "m", "owned_by": owner}]})
            if path.endswith("/models")
            else completion("[THINK]5? No.[/THINK]7")
        )
        sent = []
        for one in (thinker("Magistral"), partner()):
            spec = ModelSpec(ServerAddress(raw.url, "m", tokenizer="x"), "m")
            with closing(ServerModel(spec, lambda one=one: one)) as model:
                (parted,) = split_thinking([model.generate(PROMPT, Settings(20))])
            assert (parted.thinking, parted.text) == ("5? No.", "7")
            sent.append({name: value for name, value in raw.asked[-1][2].items() if "special" in name})
        assert sent == [fields, {}]
