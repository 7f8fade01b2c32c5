"""What cannot be decoded is refused in one line that names the thing: arguments, folders, prompts, logits."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_decoder_failures import broken
from test_ensemble_api import member, writer
from tiny import byte_tokenizer, save_member, tiny_model, unigram_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, MemberError
from ensemble.models.load import member_of

# Models from folders


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "tiny-llama"
    return save_member(made, tiny_model(unigram_tokenizer(True), 5), unigram_tokenizer(True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"weights": [1.0]}, "1 weights for 2 models"),
        ({"weights": [2.0, -1.0]}, r"weights \[2.0, -1.0\]: each must be 0 or more"),
        ({"weights": [0.0, 0.0]}, "one of them above 0"),
        ({"weights": [math.nan, 1.0]}, "each must be 0 or more"),
        ({"method": "magic"}, "method 'magic': not one of unite"),
        ({"device": "abacus"}, "device abacus: not on this machine; use one of cpu"),
        ({"device": ["cpu"]}, "1 devices for 2 models"),
        ({"dtype": "float7"}, "dtype float7: not one of auto, float32"),
    ],
)
def test_a_wrong_argument_is_refused_before_any_weights_are_read(
    folder: Path, tables: Path, given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble.models.load.check_size", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises((InputError, MemberError), match=message):
        Ensemble.from_pretrained([folder, folder], cache_dir=tables, **given)


def remove(pattern: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.unlink()

    return change


def rename(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: folder.joinpath(old).rename(folder / new)


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: folder.joinpath(name).write_text(text)


def word_pieces(folder: Path) -> None:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]").save_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            write("config.json", '{"model_type": "vit"}'),
            "a model of type vit is neither a causal language model nor an encoder-decoder one",
        ),
        (rename("config.json", "ensemble.json"), "an exported set, not a model; use it with `advisor run "),
        (remove("*.safetensors"), r"it has no weights \(\*.safetensors\)"),
        (remove("tokenizer*"), "no tokenizer.json in it"),
        (write("config.json", "{"), "its config.json cannot be used"),
        (write("config.json", '{"model_type": "new-thing"}'), "its config.json cannot be used"),
        (write("tokenizer.json", "{"), "its tokenizer.json cannot be used"),
        (write("model.safetensors", "x"), "it cannot be loaded"),
        (word_pieces, "its tokenizer decodes by WordPiece"),
    ],
    ids=[
        *("another task", "exported set", "no weights", "no tokenizer"),
        *("damaged configuration", "unknown type", "damaged tokenizer", "damaged weights", "word pieces"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named(
    folder: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    change(broken)
    with pytest.raises((InputError, MemberError), match=f"broken: .*{message}") as raised:
        Ensemble.from_pretrained([broken], cache_dir=tmp_path)
    assert "\n" not in str(raised.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: there is no such folder"):
        Ensemble.from_pretrained([tmp_path / "nowhere"])


# Prompts and logits that cannot be used


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"stop": "\n"}, "give a list of strings"),
        ({"stop": ["a", ""]}, "none of them empty"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": True}, "top_k is True"),
    ],
)
def test_a_wrong_setting_is_refused(pair: Ensemble, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pair.generate(["x"], **given)
    with pytest.raises(InputError, match=message):
        pair.stream("x", **given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.generate(["x"], batch_size=0), "batch_size is 0"),
        (lambda e: e.generate("x"), "one text"),
        (lambda e: e.score("x", []), "at least one option"),
        (lambda e: e.score("x", ["a", ""]), "at least one option"),
        (lambda e: e.from_pretrained([]), "at least one model"),
        (lambda e: e.from_pretrained(Path(__file__).parent), "give a list of models"),
    ],
)
def test_a_call_that_asks_for_nothing_is_refused(pair: Ensemble, call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(pair)


@pytest.mark.parametrize("position", [0, 1])
def test_an_empty_prompt_is_refused_by_the_member_that_has_no_token_for_it(position: int, tables: Path) -> None:
    members = [member("unigram"), member("bytes", 1)][:: 1 if position else -1]
    ensemble = Ensemble(members, cache_dir=tables)
    with pytest.raises(InputError, match="bytes-1: an empty prompt"):
        ensemble.generate(["a", ""])
    with pytest.raises(InputError, match="bytes-1: an empty prompt"):
        ensemble.score("", ["a"])


def test_a_prompt_that_is_too_long_names_the_member_and_how_long_it_may_be(tables: Path) -> None:
    small = member_of(tiny_model(byte_tokenizer(), 2, "gpt2", positions=24), byte_tokenizer(), name="small")
    ensemble = Ensemble([writer(), small], cache_dir=tables)
    assert ensemble.generate(["a" * 23], max_new_tokens=5)[0].finish_reason == "length"
    for call in (lambda: ensemble.generate(["b", "a" * 24]), lambda: ensemble.stream("a" * 24)):
        with pytest.raises(
            InputError, match=r"small: a prompt of 24 tokens does not fit its context of 24; .* have 23"
        ):
            call()


@pytest.mark.parametrize("draft", [0, 12])
@pytest.mark.parametrize("first", [True, False], ids=["primary", "other"])
def test_logits_that_are_no_numbers_name_the_member_and_the_step(first: bool, draft: int, tables: Path) -> None:
    spoilt = broken(math.nan, "0" * 18)  # contexts of 20 tokens
    members = [spoilt, writer()] if first else [writer(), spoilt]
    ensemble = Ensemble(members, weights=[1, 9] if first else [9, 1], cache_dir=tables)
    prompt = [ensemble.encode("0123456789")]
    with pytest.raises(MemberError, match=r"broken: its logits are not numbers \(NaN\) at step 11$"):
        list(ensemble.generate_each(prompt, Settings(30), Batch(draft=draft)))


def test_logits_that_are_no_numbers_where_the_text_never_comes_are_no_error(tables: Path) -> None:
    prompt = "0123456789"
    (alone,) = Ensemble([writer()], cache_dir=tables).generate([prompt], max_new_tokens=30)
    ensemble = Ensemble([writer(), broken(math.nan, "0" * 18)], weights=[9, 1], cache_dir=tables)
    (made,) = ensemble.generate([prompt], max_new_tokens=30, stop=[alone.text[4:8]])
    assert made.finish_reason == "stop"


def test_a_prompt_with_a_token_that_the_model_has_no_embedding_for_is_refused(tables: Path) -> None:
    model, tokenizer = tiny_model(byte_tokenizer()), byte_tokenizer()
    rows = model.get_input_embeddings().num_embeddings
    tokenizer.add_tokens([*(f"<|{n}|>" for n in range(len(tokenizer), rows)), "<|late|>"])
    ensemble = Ensemble([member_of(model, tokenizer, name="small")], cache_dir=tables)
    with pytest.raises(InputError, match=r"^small: the prompt has '<\|late\|>', which the model has no embedding for$"):
        ensemble.generate(["a <|late|> token"], max_new_tokens=2)
