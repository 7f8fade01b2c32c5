"""Models of strangers: what their files may make this program read, run and allocate, and the line that they end in."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ggufs import write_gguf
from jinja2 import TemplateError
from pools import Place
from tiny import TOKENIZERS, byte_tokenizer, load_tokenizer, real_tokenizers, save_member, tiny_model
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from ensemble import Ensemble
from ensemble.common.limits import LimitedProcess, limited_process
from ensemble.errors import InputError, UniteError
from ensemble.methods import rerank
from ensemble.models.load import load_member
from ensemble.models.member import LocalMember
from ensemble.models.model_files import check, check_unchanged, files_of, hashes_of
from ensemble.models.spec import Checkpoint, ModelSpec

pytest_plugins = ["hubs", "pools"]

WATCHED: dict[str, set[Path]] = {}
"""The files that are opened in some folders, by the folder."""


def _note(event: str, arguments: Any) -> None:
    if event == "open" and WATCHED and isinstance(arguments[0], str | os.PathLike):
        for folder, opened in WATCHED.items():
            if os.fspath(arguments[0]).startswith(folder):
                opened.add(Path(arguments[0]))


sys.addaudithook(_note)  # it cannot be removed


@pytest.fixture
def copy(models: Path, tmp_path: Path) -> Path:
    """A model that works, to be spoilt."""
    return shutil.copytree(models / "alpha", tmp_path / "copy")


def load(path: Path) -> LocalMember:
    return load_member(ModelSpec(Checkpoint(str(path)), path.stem, dtype="float32"))


def read_checkpoint(path: Path) -> None:
    """What a dry run reads of a model."""
    check(Checkpoint(str(path)))


def refusal(path: Path, *, read: Callable[[Path], object] = load) -> str:
    """The line that a model ends in."""
    with pytest.raises(UniteError) as raised:
        read(path)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def change(path: Path, **values: Any) -> None:
    """Change keys of a JSON file, or make it."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(content | values), encoding="utf-8")


def index(folder: Path, shard: object) -> None:
    """Let a model have an index in place of its weights."""
    (folder / "model.safetensors").rename(folder / "shard.safetensors")
    change(folder / "model.safetensors.index.json", metadata={}, weight_map={"lm_head.weight": shard})


# --- Which files are read ---


@pytest.mark.parametrize("shard", ["a.bin", "../other/w.safetensors", "/w.safetensors", "part/w.safetensors", 3])
def test_an_index_names_only_safetensors_in_the_folder(copy: Path, shard: object) -> None:
    index(copy, shard)
    assert "model.safetensors.index.json names" in refusal(copy, read=read_checkpoint)


def test_an_index_of_the_models_own_shards_is_loaded(copy: Path) -> None:
    keys = [name for name, _ in load(copy).model.named_parameters()]
    (copy / "model.safetensors").rename(copy / "shard.safetensors")
    weight_map = dict.fromkeys(keys, "shard.safetensors")
    change(copy / "model.safetensors.index.json", metadata={}, weight_map=weight_map)
    assert load(copy).name == "copy"


def test_an_index_on_the_hub_is_checked_before_weights_are_loaded(
    models: Path, tmp_path: Path, serve: Callable[[Path], None]
) -> None:
    shutil.copytree(models / "alpha", tmp_path / "shelf" / "alpha")
    index(tmp_path / "shelf" / "alpha", "a.bin")
    serve(tmp_path / "shelf")
    with pytest.raises(InputError, match=r"^org/alpha: model.safetensors.index.json names 'a.bin'"):
        check(Checkpoint("org/alpha"))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_link_out_of_the_folder_is_refused(copy: Path, tmp_path: Path, name: str) -> None:
    (copy / name).rename(tmp_path / name)
    (copy / name).symlink_to(tmp_path / name)
    assert f"{name}: is a link to {tmp_path / name}, outside the model's folder" in refusal(copy)


def test_a_snapshot_in_the_hubs_cache_has_links_to_its_blobs(copy: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--org--a" / "snapshots" / "0123", tmp_path / "models--org--a" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in copy.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", path.name))
    assert load(snapshot).name == "0123"


def test_a_pipe_in_place_of_a_file_is_refused(copy: Path) -> None:
    (copy / "generation_config.json").unlink()
    os.mkfifo(copy / "generation_config.json")
    assert "generation_config.json: cannot be read as a file" in refusal(copy)


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_every_file_that_loading_opens_is_in_the_hash(copy: Path, form: str) -> None:
    for name in ("added_tokens.json", "special_tokens_map.json", "merges.txt", "vocab.txt", "processor_config.json"):
        (copy / name).write_text("{}", encoding="utf-8")
    (copy / "chat_template.jinja").write_text("a", encoding="utf-8")
    (copy / "additional_chat_templates").mkdir()
    (copy / "additional_chat_templates" / "default.jinja").write_text("b", encoding="utf-8")
    path = copy
    if form == "gguf":
        tokenizer = byte_tokenizer((" the",))
        path = write_gguf(copy / "x.gguf", tiny_model(tokenizer, hidden=32), tokenizer)
    opened = WATCHED.setdefault(f"{copy}/", set())
    load(path)
    assert opened
    assert opened <= set(files_of(Checkpoint(str(path))))


def test_a_reward_models_files_are_checked_too(copy: Path) -> None:
    index(copy, "a.bin")
    with pytest.raises(InputError, match=r"names 'a\.bin', which is not a safetensors file"):
        rerank.make(rerank.Options(str(copy)))


def test_a_changed_template_in_a_folder_below_is_a_change(copy: Path) -> None:
    (copy / "additional_chat_templates").mkdir()
    template = copy / "additional_chat_templates" / "default.jinja"
    template.write_text("a", encoding="utf-8")
    saved = hashes_of(Checkpoint(str(copy)))
    template.write_text("b", encoding="utf-8")
    with pytest.raises(InputError, match=r"default.jinja differs"):
        check_unchanged(Checkpoint(str(copy)), saved)


# --- Headers and sizes ---


def _header(content: object) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<Q", 2**63) + b"{}",
        _header({"a": 1}),
        _header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
        _header({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}),
        _header(b'{"a":' + b"[" * 100_000),
    ],
)
def test_an_odd_header_of_weights_is_one_line(copy: Path, data: bytes) -> None:
    (copy / "model.safetensors").write_bytes(data)
    line = refusal(copy)
    assert line.startswith(f"{copy}: it cannot be loaded: the header of {copy / 'model.safetensors'} cannot be read")


def test_weights_that_are_cut_off_are_refused_before_anything_runs(copy: Path) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "model.safetensors cannot be read, or the file is cut off (" in refusal(copy, read=read_checkpoint)


def test_a_missing_shard_is_refused_before_anything_runs(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "1.safetensors")
    change(copy / "model.safetensors.index.json", metadata={}, weight_map={"a": "1.safetensors", "b": "2.safetensors"})
    assert f"{copy / '2.safetensors'}: is missing" in refusal(copy, read=read_checkpoint)


@pytest.mark.parametrize(
    ("file", "values", "says"),
    [
        ("config.json", {"transformers_weights": "adapter_model.bin"}, "'adapter_model.bin' is not a safetensors file"),
        ("adapter_config.json", {"peft_type": "LORA"}, "copy: is an adapter of another model"),
        ("config.json", {"num_hidden_layers": 0}, "config.json: num_hidden_layers is 0; a model has at least one"),
        ("config.json", {"num_attention_heads": -1}, "config.json: num_attention_heads is -1; a model has at least"),
        ("config.json", {"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000; no model has so many"),
        ("config.json", {"num_labels": 10**12}, "config.json: num_labels is 1000000000000; no model has so many"),
        ("config.json", {"num_hidden_layers": 10**6, "layer_types": None}, "far larger than its files"),
        ("config.json", {"hidden_size": 2**14, "intermediate_size": 2**16}, "far larger than its files"),
        ("generation_config.json", {"eos_token_id": [2, "abc"]}, "eos_token_id"),
        ("generation_config.json", {"eos_token_id": -3}, "eos_token_id"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(copy: Path, file: str, values: dict[str, Any], says: str) -> None:
    change(copy / file, **values)
    assert says in refusal(copy)


def test_a_configuration_on_the_hub_is_compared_with_the_weights(
    models: Path, tmp_path: Path, serve: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(models / "alpha", tmp_path / "shelf" / "alpha")
    change(folder / "config.json", hidden_size=2**14, intermediate_size=2**16)
    serve(tmp_path / "shelf")
    with pytest.raises(InputError, match=r"^alpha: its configuration declares a model that is far larger"):
        load_member(ModelSpec(Checkpoint("org/alpha"), "alpha", dtype="float32"))


def _key(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (_key(b"x", 9, struct.pack("<IQ", 0, 8 * 10**6) + bytes(8 * 10**6)), "an array of 8,000,000 entries"),
        (_key(b"x", 9, struct.pack("<IQ", 9, 1) * 50), "arrays within arrays"),
        (_key(b"x", 99, b""), "a value of the unknown type 99"),
        (_key(b"x", 9, struct.pack("<IQ", 8, 10**6) + bytes(80)), "cannot be used ("),
        (_key(b"llama.block_count", 4, struct.pack("<I", 2**32 - 1)), "llama.block_count is 4,294,967,295"),
    ],
)
def test_a_gguf_header_that_would_take_minutes_is_refused(tmp_path: Path, key: bytes, says: str) -> None:
    path = tmp_path / "bomb.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key)
    assert says in refusal(path)


# --- Tokenizers ---


def _retokenize(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    edit(content)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


def _replace(pattern: dict[str, str], text: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": text}


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([_replace({"String": "☃"}, "☃" * 20)] * 12, "times as long"),
        ([_replace({"Regex": ""}, "x" * 20)] * 12, "times as long"),
        ([{"type": "Prepend", "prepend": "x" * 10**6}], "too many tokens"),
    ],
)
def test_a_tokenizer_that_makes_texts_explode_is_refused(copy: Path, steps: list[Any], says: str) -> None:
    _retokenize(copy, lambda content: content.update(normalizer={"type": "Sequence", "normalizers": steps}))
    line = refusal(copy)
    assert "copy: its tokenizer.json cannot be used" in line and says in line


def test_a_tokenizer_that_a_configuration_names_is_tried_too(copy: Path) -> None:
    shutil.copy(copy / "tokenizer.json", copy / "tokenizer.4.0.0.json")
    change(copy / "tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.0.0.json"])
    content = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    content["normalizer"] = {"type": "Prepend", "prepend": "x" * 10**6}
    (copy / "tokenizer.4.0.0.json").write_text(json.dumps(content), encoding="utf-8")
    assert "its tokenizer.4.0.0.json cannot be used" in refusal(copy)


def test_a_tokenizer_without_tokens_is_refused(copy: Path) -> None:
    def empty(content: dict[str, Any]) -> None:
        content["model"] |= {"vocab": {}, "merges": []}
        content["added_tokens"] = []

    _retokenize(copy, empty)
    assert "its tokenizer.json cannot be used (it has no tokens)" in refusal(copy)


def test_a_token_with_an_id_beyond_all_vocabularies_is_refused(copy: Path) -> None:
    _retokenize(copy, lambda content: content["model"]["vocab"].update(zebra=2**32 - 1))
    assert "its tokenizer.json cannot be used (it has a token with the id 4,294,967,295)" in refusal(copy)


@pytest.mark.parametrize("name", real_tokenizers()[::2])
def test_a_real_tokenizer_passes_the_trial(name: str) -> None:
    limited_process().call("ensemble.models.trial:try_tokenizer", str(TOKENIZERS / name / "tokenizer.json"), seconds=60)


# --- Chat templates ---


def _member(models: Path, template: str) -> LocalMember:
    member = load(models / "alpha")
    member.tokenizer.chat_template = template
    return member


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ 1/0 }}", "division by zero"),
        ("{{ missing.key }}", "'missing' is undefined"),
        ("{{ 'a' * 3000000000 }}", "too much memory"),
        ("{{ 'a' * 30000000 }}", "it writes 30,000,000 characters"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 0.5 s"),
        ("{% for %}", "Expected an expression"),
    ],
)
def test_a_chat_template_is_limited(models: Path, monkeypatch: pytest.MonkeyPatch, template: str, says: str) -> None:
    member = _member(models, template)
    limited_process().call("ensemble.models.trial:render", "", [], {})  # it has started, and has read its modules
    if says.endswith(" s"):  # the others need their usual time on a busy machine
        monkeypatch.setattr(LimitedProcess.call, "__kwdefaults__", {"seconds": 0.5})
    with pytest.raises(InputError, match=r"^alpha: its chat template does not take a conversation of user: ") as raised:
        member.encode_prompt([{"role": "user", "content": "Hi"}])
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


TEMPLATES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{# content #}{{ bos_token }}{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% if m.role == 'system' %}{% continue %}{% endif %}{{ ns.n }}:{{ m | tojson }}{{ eos_token }}{% endfor %}",
    "{% for m in messages %}{% generation %}{% set x = 1 %}{{ m['content'] }}{% endgeneration %}{{ x }}{% endfor %}",
    "{# content #}{{ strftime_now('%Y') }}{{ dict(a=1) }}{{ messages | tojson(indent=2) }}",
    "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}{{ messages[-1]['content'] }}",
)
CONVERSATIONS = (
    [{"role": "user", "content": "<Hi> & 'you'"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi "}],
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes, "}],
)


def _rendered(render: Callable[[], object]) -> object:
    try:
        return render()
    except (TemplateError, InputError) as error:
        return str(error)


WITH_TEMPLATES = [
    name
    for name in real_tokenizers()
    if "chat_template" in (TOKENIZERS / name / "tokenizer_config.json").read_text(encoding="utf-8")
]


@pytest.mark.parametrize("tokenizer_name", [None, *WITH_TEMPLATES])
def test_a_chat_template_writes_what_it_writes_in_transformers(tokenizer_name: str | None) -> None:
    tokenizer = load_tokenizer(tokenizer_name) if tokenizer_name else byte_tokenizer((" the",))
    templates = [tokenizer.chat_template] if tokenizer_name else list(TEMPLATES)
    variables = dict(tokenizer.special_tokens_map)
    for template, messages in itertools.product(templates, CONVERSATIONS):
        goes_on = messages[-1]["role"] == "assistant"
        apply = partial(tokenizer.apply_chat_template, messages, chat_template=template, tokenize=False)
        theirs = _rendered(partial(apply, add_generation_prompt=not goes_on, continue_final_message=goes_on))
        render = "ensemble.models.trial:render"
        assert _rendered(partial(limited_process().call, render, template, messages, variables)) == theirs


# --- Configurations ---


def test_a_model_that_also_reads_images_is_a_member(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer((" the", "ing"))
    config = Gemma3Config(
        text_config={
            **{"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2},
            **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64},
            **{"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
        },
        vision_config={
            **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
            **{"image_size": 16, "patch_size": 4},
        },
        mm_tokens_per_image=4,
    )
    save_member(tmp_path / "gemma", Gemma3ForConditionalGeneration(config), tokenizer)
    member = load(tmp_path / "gemma")
    assert (member.context, member.window, member.vocabulary.size) == (64, 8, len(tokenizer))
    assert len(Ensemble([member], cache_dir=tmp_path).generate(["sing the"], max_new_tokens=3)) == 1


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["[" * 100_000, "{", "3"])
def test_an_odd_json_file_is_one_line(copy: Path, name: str, content: str) -> None:
    (copy / name).write_text(content, encoding="utf-8")
    assert "copy" in refusal(copy)


def test_a_command_ends_in_one_line(place: Place, copy: Path) -> None:
    place.task()
    place.pool(str(copy))
    index(copy, "a.bin")
    line = place.refused("select", "--pool", "models.txt", "--task", "task.yaml")
    assert line.startswith("advisor: models.txt:1: ")
    assert "names 'a.bin', which is not a safetensors file of the model" in line
