"""Members from GGUF files that are written from tiny Llama models, and the cache of their weights."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from ggufs import write_gguf
from pools import Place
from tiny import byte_tokenizer, save_member, tiny_model
from tokenizers.processors import TemplateProcessing

from advisor.models.pool_file import read_pool
from ensemble.errors import InputError, MemberError
from ensemble.models import gguf
from ensemble.models.gguf import weight_count
from ensemble.models.load import load_member
from ensemble.models.member import LocalMember
from ensemble.models.model_files import check
from ensemble.models.spec import Checkpoint, ModelSpec

pytest_plugins = ["pools"]

PROMPT = "sing the ring"


def load(path: Path, **options: Any) -> LocalMember:
    checkpoint = Checkpoint(str(path))
    return load_member(ModelSpec(checkpoint, checkpoint.name, **options))


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds the weights that another one left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model in two forms: ``dense``, a folder of safetensors, and ``tiny.gguf``."""
    folder = tmp_path_factory.mktemp("gguf")
    tokenizer = byte_tokenizer((" the", "ing"))
    tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    model = tiny_model(tokenizer, hidden=32, dtype=torch.float32, positions=256)
    save_member(folder / "dense", model, tokenizer)
    write_gguf(folder / "tiny.gguf", model, tokenizer)
    write_gguf(folder / "tiny-q8.gguf", model, tokenizer, kind=GGMLQuantizationType.Q8_0)
    return folder


def logits(model: Path) -> torch.Tensor:
    member = load(model)
    with torch.inference_mode():
        found: torch.Tensor = member.model(torch.tensor([member.encode_prompt(PROMPT)])).logits
    return found


def test_a_gguf_file_gives_the_logits_of_the_safetensors(tiny: Path) -> None:
    torch.testing.assert_close(logits(tiny / "tiny.gguf"), logits(tiny / "dense"), rtol=0, atol=1e-6)


def test_a_quantised_file_gives_similar_logits_and_unquantised_weights(tiny: Path) -> None:
    dense, quantised = logits(tiny / "dense"), logits(tiny / "tiny-q8.gguf")
    assert 1e-4 < float((dense - quantised).norm() / dense.norm()) < 0.1
    member = load(tiny / "tiny-q8.gguf")
    held = sum(parameter.numel() * parameter.itemsize for parameter in member.model.parameters())
    assert {parameter.dtype for parameter in member.model.parameters()} == {torch.float32}
    assert held == 4 * weight_count(tiny / "tiny-q8.gguf") > 2 * (tiny / "tiny-q8.gguf").stat().st_size


def test_the_chat_template_of_a_file_is_used(tiny: Path) -> None:
    member = load(tiny / "tiny.gguf")
    assert member.name == "tiny"
    assert member.tokenizer.decode(member.encode_prompt("the")) == "<the>"


@pytest.mark.parametrize("adds", [True, False])
def test_bos_stands_before_a_prompt_exactly_where_the_file_says_so(adds: bool, tmp_path: Path) -> None:
    # Gemma's file asks for it, SmolLM2's has the token and does not.
    tokenizer = byte_tokenizer((" the", "ing"))
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    bos = tokenizer.bos_token_id
    if adds:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<bos> $A", special_tokens=[("<bos>", bos)])
    write_gguf(tmp_path / "begins.gguf", tiny_model(tokenizer, hidden=32), tokenizer)
    member = load(tmp_path / "begins.gguf")
    assert member.encode_prompt(PROMPT) == [
        *([bos] if adds else []),
        *tokenizer(PROMPT, add_special_tokens=False).input_ids,
    ]


def test_a_token_that_only_the_tokenizer_has_is_refused_in_a_prompt(tiny: Path) -> None:
    # transformers gives every byte-level tokenizer of a GGUF file this token, also where the file has none.
    with pytest.raises(InputError, match=r"tiny: the prompt has '<\|endoftext\|>', which the model has no"):
        load(tiny / "tiny.gguf").encode_prompt("a<|endoftext|>b")


def test_the_memory_check_counts_unquantised_weights_and_says_so(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tiny / "tiny-q8.gguf"
    monkeypatch.setattr("ensemble.models.memory.free_memory", lambda _: 4 * weight_count(file) - 1)
    load(file, dtype="bfloat16")
    with pytest.raises(MemberError, match=r"in float32 \(GGUF weights are loaded unquantised\)"):
        load(file)


def test_a_run_knows_a_file_by_its_hash_and_can_be_run_again(place: Place, models: Path, tiny: Path) -> None:
    place.task()
    place.pool(str(models / "alpha"), f"{tiny / 'tiny.gguf'} name=file")
    assert place.select("--quiet", "--no-verify").err == ""
    source = place.json()["provenance"]["models"]["file"]
    assert source["path_or_id"] == str(tiny / "tiny.gguf")
    assert list(source["files"]) == ["tiny.gguf"]
    assert source["dtype"] == "float32"
    ran = place.advisor("run", "run", "What is 1 + 1?", "--max-new-tokens", "3")
    assert ran.status == 0 and ran.err.startswith("note run: nothing was verified")


def test_a_pool_line_can_name_a_file_of_a_model_on_the_hub(place: Place) -> None:
    place.pool("org/llama-gguf gguf_file=llama-q4.gguf", "org/llama-gguf gguf_file=llama-q8.gguf")
    found = [(candidate.name, candidate.checkpoint.gguf) for candidate in read_pool("models.txt")]
    assert found == [("llama-q4", "llama-q4.gguf"), ("llama-q8", "llama-q8.gguf")]
    place.pool("org/llama-gguf gguf_file=llama.bin")
    with pytest.raises(InputError, match=r"models.txt:1: gguf_file should be the name of a file"):
        read_pool("models.txt")


# Bad input: one line each


def refused(path: Path) -> str:
    with pytest.raises(InputError) as raised:
        check(Checkpoint(str(path)))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_other_files_than_gguf_are_refused(tmp_path: Path) -> None:
    assert "this file does not exist" in refused(tmp_path / "gone.gguf")
    (tmp_path / "page.gguf").write_text("<html>not found</html>", encoding="utf-8")
    assert "page.gguf: not a GGUF file, because it does not begin with GGUF" in refused(tmp_path / "page.gguf")
    (tmp_path / "big-00001-of-00003.gguf").write_bytes(b"GGUF")
    assert "one of 3 parts" in refused(tmp_path / "big-00001-of-00003.gguf")


@pytest.mark.parametrize("length", [4, 20, 100, 3000])
def test_a_file_whose_header_is_cut_is_refused(tiny: Path, tmp_path: Path, length: int) -> None:
    (tmp_path / "cut.gguf").write_bytes((tiny / "tiny.gguf").read_bytes()[:length])
    assert "its GGUF file cut.gguf cannot be used (" in refused(tmp_path / "cut.gguf")


def test_a_file_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer((" the",))
    write_gguf(tmp_path / "less.gguf", tiny_model(tokenizer, layers=2), tokenizer, without="blk.1.ffn_up.weight")
    with pytest.raises(MemberError, match=r"less: its weights lack model.layers.1.mlp.up_proj.weight"):
        load(tmp_path / "less.gguf")


def test_an_architecture_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer((" the",))
    write_gguf(tmp_path / "new.gguf", tiny_model(tokenizer), tokenizer, architecture="rwkv9")
    assert "architecture rwkv9 is not supported yet" in refused(tmp_path / "new.gguf")


# What was dequantized once, in the user's cache folder

TEXT = "sing <s> 123 é 今🙂 the ring"


@pytest.fixture
def file(tiny: Path, tmp_path: Path) -> Path:
    return shutil.copy(tiny / "tiny-q8.gguf", tmp_path / "tiny.gguf")


def state(member: LocalMember) -> dict[str, torch.Tensor]:
    return dict(member.model.state_dict())


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "unite-advisor" / "gguf").glob("*"))


def weights_entry(tmp_path: Path) -> Path:
    (entry,) = [entry for entry in entries(tmp_path) if (entry / "model.safetensors").is_file()]
    return entry


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_second_start_reads_no_gguf_and_has_the_same_model_and_tokenizer(
    file: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    first = load(file, dtype=dtype)
    for reader in ("transformers.modeling_gguf_pytorch_utils.load_gguf_checkpoint", "gguf.GGUFReader"):
        monkeypatch.setattr(reader, lambda *_, **__: pytest.fail("the GGUF file was read again"))
    second = load(file, dtype=dtype)
    assert state(first).keys() == state(second).keys()
    assert all(torch.equal(tensor, state(second)[name]) for name, tensor in state(first).items())
    ids = torch.tensor([first.encode_prompt(TEXT)])
    with torch.inference_mode():
        assert torch.equal(first.model(ids).logits, second.model(ids).logits)
    assert first.tokenizer.backend_tokenizer.to_str() == second.tokenizer.backend_tokenizer.to_str()
    assert first.tokenizer.special_tokens_map == second.tokenizer.special_tokens_map
    assert second.encode_prompt(TEXT) == first.encode_prompt(TEXT)
    assert second.vocabulary.eos_ids == first.vocabulary.eos_ids
    assert (second.spec, second.context, second.window) == (first.spec, first.context, first.window)


def test_a_changed_file_is_dequantized_again(file: Path) -> None:
    before = state(load(file))
    tokenizer = byte_tokenizer((" the", "ing"))
    write_gguf(file, tiny_model(tokenizer, hidden=32, dtype=torch.float32, positions=256, seed=5), tokenizer)
    after = state(load(file))
    assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize("damage", ["byte", "cut", "gone", "list"])
def test_a_damaged_entry_is_made_again(file: Path, tmp_path: Path, damage: str) -> None:
    before = state(load(file))
    entry = weights_entry(tmp_path)
    weights = entry / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if damage == "gone":
        weights.unlink()
    elif damage == "list":
        (entry / "files.json").write_text("[1", encoding="utf-8")
    else:
        data[-3] ^= 0x40
        # Written anew: the model that is loaded has the old file mapped.
        weights.unlink()
        weights.write_bytes(data if damage == "byte" else data[:-100])
    after = state(load(file))
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert weights_entry(tmp_path) == entry
    assert gguf.cached(Checkpoint(str(file)), "float32") == entry


def test_a_cache_that_cannot_be_written_only_costs_time(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, where the folder should be", encoding="utf-8")
    assert load(file).encode_prompt(TEXT) == load(file).encode_prompt(TEXT)


def test_a_disk_that_is_full_leaves_no_part_of_an_entry(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    load(file)
    assert [entry for entry in entries(tmp_path) if (entry / "model.safetensors").exists()] == []
    assert gguf.cached(Checkpoint(str(file)), "float32") is None


def test_the_entry_that_was_used_longest_ago_leaves(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(file)
    for number, entry in enumerate(entries(tmp_path)):
        os.utime(entry, (number, number))
    checkpoint = Checkpoint(str(file))
    oldest = entries(tmp_path)[0]
    total = sum(path.stat().st_size for path in oldest.parent.rglob("*") if path.is_file())
    monkeypatch.setattr(gguf, "_MOST_BYTES", total)
    load(file, dtype="bfloat16")  # uses the text's entry, and adds one
    assert gguf.cached(checkpoint, "float32") is None
    assert gguf.cached(checkpoint, "bfloat16") is not None
    assert gguf.cached(checkpoint, gguf.TEXT_ENTRY) is not None
