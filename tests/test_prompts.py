"""Prompts as a member reads them: conversations, beginnings, and those that must lose theirs."""

from __future__ import annotations

import copy

import pytest
from tiny import byte_tokenizer, tiny_model, unigram_tokenizer

from ensemble.errors import InputError
from ensemble.models.load import member_of
from ensemble.models.member import Member
from ensemble.vocabulary.token_bytes import Vocabulary

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def chatting(positions: int = 64) -> Member:
    tokenizer = byte_tokenizer((" the",))  # nobody else changes this one
    tokenizer.chat_template = TEMPLATE
    return member_of(tiny_model(tokenizer, positions=positions), tokenizer, name="chatting", chat_template="never")


def read(member: Member, *messages: tuple[str, str]) -> str:
    ids = member.prompt_ids([{"role": role, "content": content} for role, content in messages])
    return str(member.tokenizer.decode(ids))


def test_a_conversation_goes_on_with_the_assistant() -> None:
    assert read(chatting(), ("user", "a?")) == "<user>a?\n<assistant>"


def test_what_the_assistant_has_begun_is_gone_on_with() -> None:
    assert read(chatting(), ("user", "a?"), ("assistant", "It is")) == "<user>a?\n<assistant>It is"


def test_a_conversation_that_a_template_does_not_take_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^chatting: its chat template does not take a conversation of system, user: no"
    ):
        read(chatting(), ("system", "Be brief."), ("user", "a?"))


def test_a_prompt_loses_its_beginning_only_where_it_must() -> None:
    member = chatting(positions=16)
    ids = member.prompt_ids("abcdefghijkl")
    assert member.shorten(ids, 4) == ids
    assert member.tokenizer.decode(member.shorten(ids, 10)) == "ghijkl"
    with pytest.raises(InputError, match=r"^chatting: 16 tokens leave no room for a prompt in its context of 16"):
        member.shorten(ids, 16)


def test_a_template_that_writes_bos_itself_gets_no_second_one() -> None:
    tokenizer = copy.deepcopy(unigram_tokenizer())
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    member = member_of(tiny_model(tokenizer), tokenizer, name="a", chat_template="always")
    assert member.encode_prompt("the cat").count(tokenizer.bos_token_id) == 1


def test_a_text_begins_behind_bos_or_else_behind_eos() -> None:
    tokenizer = unigram_tokenizer()
    assert member_of(tiny_model(tokenizer), tokenizer, name="a").beginning() == [tokenizer.bos_token_id]
    assert tokenizer.bos_token_id is not None
    assert chatting().tokenizer.bos_token_id is None
    assert chatting().beginning() == [chatting().tokenizer.eos_token_id]


@pytest.mark.parametrize("text", ["the", " the", "\nthe", "", "今"])
def test_a_text_is_opened_as_its_tokenizer_does(text: str) -> None:
    tokenizer = unigram_tokenizer(byte_fallback=True)
    vocabulary = Vocabulary(tokenizer, (), len(tokenizer))
    opened = vocabulary.opening(text)
    assert opened in {text, f" {text}"}
    assert vocabulary.continue_ids(opened.encode()) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_byte_level_tokenizer_puts_nothing_in_front() -> None:
    tokenizer = byte_tokenizer()
    assert Vocabulary(tokenizer, (), len(tokenizer)).opening("the") == "the"
