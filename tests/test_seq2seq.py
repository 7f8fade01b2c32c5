"""Encoder-decoder models as members: alone against ``transformers.generate``, beside causal ones against the judge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ReferenceMember, generate, score
from tiny import byte_tokenizer, nllb_tokenizer, save_member, tiny_translator, unigram_tokenizer
from tiny import member as plain_member
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from ensemble import Ensemble, Generation, Sourced
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError
from ensemble.models.encoder_decoder import EncoderDecoderRunner
from ensemble.models.load import member_of
from ensemble.models.member import LocalMember, Member
from ensemble.models.spec import Checkpoint, Sides

SOURCES = ("The cat sat on the mat.", "James", "They went to the shop and bought 12 apples, so they said.")
PROMPTS = tuple(Sourced(f"English: {source}\nGerman:", source) for source in SOURCES)
TO_GERMAN = Sides(target="deu_Latn")
TRANSLATORS = ("nllb", "t5", "bart")


def t5_tokenizer() -> PreTrainedTokenizerFast:
    """The Unigram one, with ``</s>`` behind what is read and ``<pad>`` to begin with, as T5's."""
    backend = Tokenizer.from_str(unigram_tokenizer().backend_tokenizer.to_str())
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", pad_token="<s>")


@cache
def translator(kind: str, seed: int = 4) -> Member:
    """A member with an encoder: NLLB's kind writes German, T5's and BART's know no languages."""
    if kind == "nllb":
        model = tiny_translator(nllb_tokenizer(), seed, "m2m_100")
        return member_of(model, nllb_tokenizer(), name=kind, sides=TO_GERMAN)
    tokenizer = {"t5": t5_tokenizer, "bart": bart_tokenizer}[kind]()
    model = tiny_translator(tokenizer, seed, kind)
    if kind == "bart":
        model.generation_config.forced_bos_token_id = tokenizer.bos_token_id
    return member_of(model, tokenizer, name=kind)


@cache
def bart_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, with a BOS that BART is forced to begin with."""
    tokenizer = byte_tokenizer(("James", " the", " cat"), eos="</s>")
    tokenizer.add_special_tokens({"bos_token": "<s>", "pad_token": "<pad>"})
    return tokenizer


def causal(name: str) -> LocalMember:
    return plain_member(name, 5)


class Whole:
    """An encoder-decoder model as the judge calls it: a context is the number of a source, then the decoder's ids."""

    def __init__(self, model: Any, tokenizer: Any, start: Sequence[int]) -> None:
        self.model, self.generation_config = model, model.generation_config
        self._tokenizer, self._start = tokenizer, list(start)
        self._sources: list[list[int]] = [[0]]

    def prompt(self, source: str) -> list[int]:
        self._sources.append(self._tokenizer(source)["input_ids"])
        return [len(self._sources) - 1, *self._start]

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        number, *decoded = input_ids[0].tolist()
        source = torch.tensor([self._sources[number]])
        made = self.model(input_ids=source, decoder_input_ids=torch.tensor([decoded or [0]]), use_cache=use_cache)
        return SimpleNamespace(logits=made.logits)


START = {
    "nllb": lambda t: [t.eos_token_id, t.convert_tokens_to_ids("deu_Latn")],
    "t5": lambda t: [t.pad_token_id],
    "bart": lambda t: [t.eos_token_id, t.bos_token_id],
}


@cache
def judge_of(name: str) -> ReferenceMember:
    if name not in TRANSLATORS:
        return ReferenceMember(causal(name).model, causal(name).tokenizer)
    member = translator(name)
    whole = Whole(member.model, member.tokenizer, START[name](member.tokenizer))
    return ReferenceMember(whole, member.tokenizer, whole.prompt)


def ensemble_of(line: str, tables: Path, k: int = 10) -> Ensemble:
    members = [translator(name) if name in TRANSLATORS else causal(name) for name in line.split()]
    return Ensemble(members, k=k, cache_dir=tables)


def texts_of(line: str, prompt: Sourced) -> list[str]:
    return [prompt.source if name in TRANSLATORS else prompt.prompt for name in line.split()]


COMBINATIONS = ("bytes nllb", "nllb bytes", "unigram t5", "t5 unigram", "bart bytes", "bytes bart nllb", "t5 nllb")


@pytest.mark.parametrize("kind", TRANSLATORS)
def test_a_translator_alone_writes_what_transformers_does(kind: str, tables: Path) -> None:
    member = translator(kind)
    allowed = [*{*member.vocabulary.representatives.values(), *member.vocabulary.eos_ids}]
    start = START[kind](member.tokenizer)
    for prompt, got in zip(PROMPTS, ensemble_of(kind, tables).generate(PROMPTS, max_new_tokens=12), strict=True):
        inputs = member.tokenizer(prompt.source, return_tensors="pt", return_token_type_ids=False)
        out = member.model.generate(  # type: ignore[operator]  # transformers mixes it in
            **inputs,
            do_sample=False,
            num_beams=1,
            max_new_tokens=11 + len(start),
            forced_bos_token_id=start[1] if len(start) > 1 else None,
            prefix_allowed_tokens_fn=lambda _, ids: allowed if len(ids) >= len(start) else start,
        )[0].tolist()
        end = member.vocabulary.eos_ids[:1] if got.finish_reason == "eos" else ()
        assert out == [*start, *got.tokens, *end]


@pytest.mark.parametrize("line", COMBINATIONS)
@pytest.mark.parametrize("k", [3, 10])
def test_beside_others_it_writes_what_the_judge_does(line: str, k: int, tables: Path) -> None:
    judges = [judge_of(name) for name in line.split()]
    for prompt, got in zip(PROMPTS, ensemble_of(line, tables, k).generate(PROMPTS, max_new_tokens=8), strict=True):
        wanted = generate(judges, texts_of(line, prompt), k=k, max_new_tokens=8)
        assert wanted.margin > 1e-9
        assert (list(got.tokens), got.text, got.finish_reason) == (wanted.ids, wanted.text, wanted.finish_reason)


def written(ensemble: Ensemble, draft: int, batch_size: int) -> list[Generation]:
    made = ensemble.generate_each([ensemble.encode(p) for p in PROMPTS], Settings(16), Batch(batch_size, draft))
    return [one for _, one in sorted(made)]


@pytest.mark.parametrize("line", COMBINATIONS)
def test_neither_drafts_nor_batches_change_what_is_written(line: str, tables: Path) -> None:
    ensemble = ensemble_of(line, tables)
    batched = written(ensemble, draft=0, batch_size=2)
    assert written(ensemble, draft=8, batch_size=1) == written(ensemble, draft=0, batch_size=1) == batched


def test_what_is_written_depends_on_the_source_alone(tables: Path) -> None:
    alone = ensemble_of("nllb", tables)
    same, other = Sourced("something else", PROMPTS[0].source), Sourced(PROMPTS[0].prompt, "James")
    first, second, third = alone.generate([PROMPTS[0], same, other], max_new_tokens=12)
    assert first == second != third


@pytest.mark.parametrize("line", ["nllb bytes", "unigram t5"])
def test_options_are_scored_as_the_judge_does(line: str, tables: Path) -> None:
    options = [" cat", " the shop", " they"]
    judges = [judge_of(name) for name in line.split()]
    for prompt in PROMPTS:
        got = ensemble_of(line, tables).score(prompt, options)
        assert got == pytest.approx([score(judges, texts_of(line, prompt), option) for option in options], abs=1e-6)


def test_a_span_level_method_takes_translators(tables: Path) -> None:
    members = [translator("nllb"), causal("bytes"), translator("t5")]
    ensemble = Ensemble(members, method="sweetspan", cache_dir=tables)
    together = ensemble.generate(PROMPTS[:2], max_new_tokens=3)
    assert together == [ensemble.generate([prompt], max_new_tokens=3)[0] for prompt in PROMPTS[:2]]


def test_a_plain_prompt_is_read_as_it_is(tables: Path) -> None:
    alone = ensemble_of("t5", tables)
    assert alone.generate(list(SOURCES), max_new_tokens=8) == alone.generate(PROMPTS, max_new_tokens=8)


def test_it_can_be_told_to_read_the_prompt(tables: Path) -> None:
    member = translator("t5")
    told = member_of(member.model, member.tokenizer, name="told", sides=Sides(reads="prompt"))
    assert told.encode_prompt(PROMPTS[0]) == told.encode_prompt(PROMPTS[0].prompt) != member.encode_prompt(PROMPTS[0])


def test_special_tokens_and_languages_are_no_candidates() -> None:
    member = translator("nllb")
    candidates = {member.vocabulary.token_bytes(index) for index in member.vocabulary.representatives.values()}
    assert b"deu_Latn" not in candidates and b"<pad>" not in candidates
    language = member.tokenizer.convert_tokens_to_ids("deu_Latn")
    assert language not in member.vocabulary.continue_ids(b" the cat deu_Latn")


def test_the_source_language_stands_where_the_tokenizer_puts_it() -> None:
    own = nllb_tokenizer.__wrapped__()  # telling it a language changes it
    member = member_of(
        tiny_translator(own, arch="m2m_100"), own, name="nllb", sides=Sides(source="ron_Latn", target="deu_Latn")
    )
    language, begin = own.convert_tokens_to_ids(["ron_Latn", "deu_Latn"])
    row = member.encode_prompt("James")
    assert (row[0], row[-2:]) == (~language, [own.eos_token_id, begin])


def test_a_translator_writes_as_many_tokens_as_its_decoder_has_places_whatever_it_reads(tables: Path) -> None:
    model = tiny_translator(nllb_tokenizer(), 3, "m2m_100", positions=24, eos_rate=0.0)
    member = member_of(model, nllb_tokenizer(), name="short", sides=TO_GERMAN)
    source = "cat " * 12
    assert len(member.tokenizer(source)["input_ids"]) > 12
    (made,) = Ensemble([member], cache_dir=tables).generate([source], max_new_tokens=100)
    # Two ids to begin with; the last token is emitted, and read by nobody.
    assert (len(made.tokens), made.finish_reason) == (24 - 2 + 1, "length")
    with pytest.raises(InputError, match="does not fit its context of 24; it may have 24"):
        member.encode_prompt("cat " * 40)


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_rows_have_the_logits_of_whole_rows_whatever_is_cut_and_fed(data: st.DataObject) -> None:
    model = translator("nllb").model
    token = st.integers(4, 60)
    sources = st.lists(st.lists(token, min_size=1, max_size=6), min_size=1, max_size=3)
    held = [[*(~t for t in source), 2, 9] for source in data.draw(sources)]
    rows = EncoderDecoderRunner(model)
    with torch.inference_mode():
        rows.admit(held)
        for _ in range(3):
            # As far back as into the source, which makes it another one.
            keep = [data.draw(st.integers(0, len(row))) for row in held]
            new = [
                [*([] if k and row[k - 1] >= 0 else [~5, 2]), data.draw(token)]
                for row, k in zip(held, keep, strict=True)
            ]
            held = [[*row[:k], *ids] for row, k, ids in zip(held, keep, new, strict=True)]
            got = rows.feed(keep, new)
            for row, logits in zip(held, got, strict=True):
                source, decoded = [~t for t in row if t < 0], [t for t in row if t >= 0]
                plain = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([decoded])).logits[0, -1]
                assert torch.allclose(logits, plain, atol=1e-9)
            kept = data.draw(st.permutations(range(len(held))))[: data.draw(st.integers(1, len(held)))]
            rows.drop(kept)
            held = [held[n] for n in kept]
            assert rows.lengths == [len(row) for row in held]


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (Sides(), "nllb: it writes many languages; say which one, as target=deu_Latn does"),
        (Sides(target="german"), "target=german: its tokenizer has no language of that name"),
        (Sides(target="cat"), "target=cat: its tokenizer has no language of that name"),
        (Sides(source="english", target="deu_Latn"), "source=english: its tokenizer has no language of that name"),
    ],
)
def test_a_language_that_is_missing_or_unknown_is_refused(sides: Sides, message: str) -> None:
    with pytest.raises(InputError, match=message):
        member_of(tiny_translator(nllb_tokenizer(), arch="m2m_100"), nllb_tokenizer(), name="nllb", sides=sides)


def test_a_language_for_a_tokenizer_without_languages_is_refused() -> None:
    member = translator("t5")
    with pytest.raises(InputError, match="its tokenizer knows no languages; leave target=deu_Latn out"):
        member_of(member.model, member.tokenizer, name="t5", sides=TO_GERMAN)


def test_a_folder_gives_what_the_model_in_memory_does(tmp_path: Path, tables: Path) -> None:
    folder = save_member(tmp_path / "nllb", translator("nllb").model, nllb_tokenizer())
    other = save_member(tmp_path / "bytes", causal("bytes").model, causal("bytes").tokenizer)
    loaded = Ensemble.from_pretrained(
        [Checkpoint(str(folder), sides=TO_GERMAN), other], dtype="float64", cache_dir=tables
    )
    assert loaded.generate(PROMPTS, max_new_tokens=8) == ensemble_of("nllb bytes", tables).generate(
        PROMPTS, max_new_tokens=8
    )
