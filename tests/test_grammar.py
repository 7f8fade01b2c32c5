"""Decoding under a grammar, against the judge: ``reference`` tries each candidate with another library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Expression, generate
from test_decoder import TIE, available, both, ensemble_of, outcome, parts
from tiny import PROMPTS, real_tokenizers, tokenizer_named

from ensemble import Ensemble, InputError, Settings
from ensemble.common.grammar import Grammar
from ensemble.decode.settings import Batch
from ensemble.models.member import Member
from ensemble.runtime.draft import Drafter
from ensemble.step.grammar import GrammarState
from ensemble.vocabulary.joint import entries
from ensemble.vocabulary.token_bytes import Vocabulary

PATTERNS = (
    r"(yes|no), because [a-z ]{3,12}\.",
    r"[0-9]{1,3}(,[0-9]{3}){0,2}",
    r'\{"name": "[A-Za-z ]{1,6}", "age": (0|[1-9][0-9]?)\}',
    r"(ab)*c?",
)
LINES = ["bytes unigram", "unigram_with_bytes* bytes", "unigram_with_bytes bytes unigram"]
BATCHES = {"batched": Batch(4), "one by one": Batch(1), "without drafts": Batch(1, draft=0)}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def written(ensemble: Ensemble, pattern: str, batch: Batch, **settings: Any) -> list[Any]:
    made = Settings(12, grammar=Grammar.regex(pattern), **settings)
    return [each for _, each in sorted(ensemble.generate_each([ensemble.encode(p) for p in PROMPTS[:4]], made, batch))]


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        *(pytest.param(line, pattern) for line in LINES for pattern in PATTERNS),
        pytest.param(
            "gpt-2* llama-2", PATTERNS[2], marks=[*available("gpt-2* llama-2").marks, pytest.mark.second_lane]
        ),
    ],
)
def test_texts_are_those_of_the_reference(line: str, pattern: str, tables: Path) -> None:
    judges = [both(part)[1] for part in parts(line)]
    grammar = Expression(pattern)
    expected = [generate(judges, prompt, max_new_tokens=12, grammar=grammar) for prompt in PROMPTS[:4]]
    assert any(each.margin >= TIE for each in expected)
    for batch in BATCHES.values():
        made = written(ensemble_of(line, tables), pattern, batch)
        for got, wanted in zip(made, expected, strict=True):
            assert wanted.margin < TIE or outcome(got) == (wanted.ids, wanted.text, wanted.finish_reason)


@pytest.mark.parametrize("method", ["unite", "safe", "gac", "gac-threshold", "geometric", "mined", "average"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_token_level_method_writes_only_what_is_allowed(method: str, temperature: float, tables: Path) -> None:
    line = "bytes bytes" if method == "average" else "bytes unigram_with_bytes"
    ensemble = Ensemble(members_of(line), method=method, cache_dir=tables)
    for each in written(ensemble, PATTERNS[2], Batch(3), temperature=temperature):
        assert Expression(PATTERNS[2]).may(b"", each.text.encode())
        assert each.finish_reason == "length" or json.loads(each.text).keys() == {"name", "age"}


def test_a_json_text_is_valid_by_its_schema(tables: Path) -> None:
    ensemble = ensemble_of("bytes unigram_with_bytes", tables)
    for made in ensemble.generate(PROMPTS, max_new_tokens=60, temperature=1.0, grammar=Grammar.json_schema(PERSON)):
        assert made.finish_reason == "eos"
        jsonschema.validate(json.loads(made.text), PERSON)


def test_white_space_is_as_json_writes_it(tables: Path) -> None:
    ensemble = ensemble_of("bytes unigram_with_bytes", tables)
    [made] = ensemble.generate(["x"], max_new_tokens=60, grammar=Grammar.json_schema(PERSON))
    assert made.text == json.dumps(json.loads(made.text), ensure_ascii=False)


def test_texts_with_and_without_a_grammar_are_decoded_together(tables: Path) -> None:
    ensemble = ensemble_of("bytes unigram", tables)
    prompts = [[member.encode_prompt(text) for member in ensemble.members] for text in PROMPTS[:3]]
    kinds = [
        Settings(8),
        Settings(8, grammar=Grammar.regex(PATTERNS[0])),
        Settings(8, grammar=Grammar.regex(PATTERNS[1])),
    ]
    decoder = ensemble.decoder(Batch(3))
    for n, (prompt, settings) in enumerate(zip(prompts, kinds, strict=True)):
        decoder.add(n, prompt, settings)
    together = dict(decoder)
    for n, (prompt, settings) in enumerate(zip(prompts, kinds, strict=True)):
        assert together[n] == dict(ensemble.generate_each([prompt], settings))[0]


def test_a_member_that_cannot_write_what_is_allowed_does_not_stop_the_others(tables: Path) -> None:
    # "unigram" has no braces.
    [made] = ensemble_of("bytes unigram", tables).generate(["x"], max_new_tokens=60, grammar=Grammar.regex(r"\{a?\}"))
    assert made.text in {"{}", "{a}"}


def test_a_primary_that_cannot_write_what_is_allowed_is_an_error(tables: Path) -> None:
    with pytest.raises(InputError, match="no token of its vocabulary can begin a text that the grammar") as caught:
        ensemble_of("unigram bytes", tables).generate(["x"], grammar=Grammar.regex(r"\{a?\}"))
    assert caught.value.of == "unigram 0"


def test_drafts_are_accepted_under_a_grammar(tables: Path) -> None:
    ensemble = ensemble_of("bytes* unigram_with_bytes", tables, weights=[9, 1])
    ensemble._drafters[Batch(1)] = Drafter(ensemble._joint.members[0], 24, modes=("check",))
    decoder = ensemble.decoder(Batch(1))
    decoder.add(0, ensemble.encode(PROMPTS[0]), Settings(30, grammar=Grammar.regex(r"[ -~]{30}")))
    steps = 0
    while not decoder.done:
        decoder.step()
        steps += 1
    # A plain step writes one of the 30 characters.
    assert steps < 25


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "Invalid type: strin"),
        ({"$ref": "http://127.0.0.1/x"}, "retrieving it failed"),
        ({"type": "string", "pattern": "(?=a)b"}, "regex parse error"),
        ({"type": "array", "items": {}, "minItems": 1, "maxItems": 0}, "Unsatisfiable"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=f"^the JSON schema: .*{reason}"):
        Grammar.json_schema(schema)


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"[^\x00-\x{10FFFF}]"])
def test_an_expression_that_cannot_be_followed_is_refused(pattern: str) -> None:
    with pytest.raises(InputError, match=r"^the regular expression: "):
        Grammar.regex(pattern)


def test_a_method_that_writes_no_tokens_refuses_a_grammar(tables: Path) -> None:
    ensemble = Ensemble(members_of("bytes unigram_with_bytes"), method="sweetspan", cache_dir=tables)
    with pytest.raises(InputError, match="method sweetspan: it takes no grammar"):
        ensemble.generate(["x"], grammar=Grammar.regex("a"))


@given(st.lists(st.sampled_from([b"{", b'"', b"a", b"1", b", ", b"}", b'": ', b"name", b"age"]), max_size=12))
def test_what_is_allowed_is_what_another_library_says(pieces: list[bytes]) -> None:
    vocabulary = members_of("bytes")[0].vocabulary
    numbers = entries([vocabulary])
    state, grammar, text = GrammarState(Grammar.regex(PATTERNS[2]), [vocabulary]), Expression(PATTERNS[2]), b""
    for piece in pieces:
        mask = state.allowed()[0]
        wrong = [data for data, entry in numbers.items() if bool(mask[entry]) != grammar.may(text, data)]
        assert wrong == []
        if piece in numbers and mask[numbers[piece]]:
            state.advance([numbers[piece]])
            text += piece
    assert state.is_complete == grammar.is_complete(text)


@pytest.mark.second_lane
@pytest.mark.parametrize("name", real_tokenizers())
def test_each_real_vocabulary_allows_what_another_library_says(name: str) -> None:
    """Along a text in the tokenizer's own tokens, for each token of the vocabulary."""
    tokenizer, pattern = tokenizer_named(name), PATTERNS[2]
    vocabulary = Vocabulary(tokenizer, (), len(tokenizer))
    numbers = entries([vocabulary])
    state, grammar, text = GrammarState(Grammar.regex(pattern), [vocabulary]), Expression(pattern), b""
    for index in vocabulary.continue_ids(b'{"name": "Ann B", "age": 42}'):
        mask = state.allowed()[0]
        assert [data for data, entry in numbers.items() if bool(mask[entry]) != grammar.may(text, data)] == []
        piece = vocabulary.token_bytes(index)
        assert piece is not None
        state.advance([numbers[piece]])
        text += piece
    assert state.is_complete


def members_of(line: str) -> list[Member]:
    return [both(part)[0] for part in parts(line)]
