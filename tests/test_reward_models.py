"""Reward models in their published layouts, with small random weights: each against a forward pass from its parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny import SENTENCES, byte_tokenizer
from tokenizers import AddedToken
from transformers import (
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DebertaV2Model,
    DebertaV2Tokenizer,
    GPTNeoXConfig,
    GPTNeoXModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerBase,
)

from ensemble.errors import InputError
from ensemble.methods import get_module, make_options
from ensemble.methods._reward_models import load_reward_model

PROMPT = "Where did the cat and the dog sit?"
TEXTS = ("The cat sat on the mat.", "James and Anna went to the shop.", "The cat sat on the mat.", "the dog", "")
MARKS = ["<|source|>", "<|candidate1|>", "<|candidate2|>", "<|candidate|>"]
PAIRRM = {
    "ranker_type": "pairranker",
    "model_type": "deberta",
    "model_name": "microsoft/deberta-v3-large",
    "source_maxlength": 1224,
    "candidate_maxlength": 412,
    "n_tasks": 1,
    "drop_out": 0.05,
    "inference_mode": "bubble",
}
"""The settings in config.json of llm-blender/PairRM."""


def rewards(folder: Path, prompt: str = PROMPT, texts: Sequence[str] = TEXTS) -> list[float]:
    return load_reward_model("rerank", str(folder), "pointwise", "cpu").rewards(prompt, texts)


def deberta_tokenizer() -> DebertaV2Tokenizer:
    """As DeBERTa-v3's: SentencePiece pieces, with [CLS] and [SEP] around a text."""
    pieces = sorted({f"▁{word}" for sentence in SENTENCES for word in sentence.split()})
    letters = sorted({letter for sentence in SENTENCES for letter in sentence} - {" "})
    scored = [(piece, -float(n)) for n, piece in enumerate(["▁", *pieces, *letters], start=1)]
    special = [(token, 0.0) for token in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    return DebertaV2Tokenizer(vocab=[*special, *scored], unk_id=3)


def deberta_config(tokenizer: PreTrainedTokenizerBase, **values: Any) -> DebertaV2Config:
    """As DeBERTa-v3's, but small."""
    return DebertaV2Config(
        vocab_size=len(tokenizer) + 3,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=1,
        intermediate_size=32,
        relative_attention=True,
        position_buckets=16,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        type_vocab_size=0,
        layer_norm_eps=1e-7,
        **values,
    )


def spread(*modules: torch.nn.Module) -> None:
    """Scale random weights, so that outputs differ clearly."""
    with torch.no_grad():
        for module in modules:
            for weight in module.parameters():
                weight.mul_(4)


def write(folder: Path, config: dict[str, Any], parts: dict[str, torch.nn.Module]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    save_file({key: value.contiguous() for key, value in weights.items()}, folder / "model.safetensors")
    return folder


# --- PairRM ---


class PairRm:
    """PairRM in a folder, and its parts."""

    def __init__(self, folder: Path, layout: str, **settings: Any) -> None:
        torch.manual_seed(1)
        tokenizer = deberta_tokenizer()
        tokenizer.add_tokens(MARKS)
        config = deberta_config(tokenizer)
        self.deberta = DebertaV2Model(config).eval()
        self.linear, self.out = torch.nn.Linear(128, 64), torch.nn.Linear(64, 2)
        spread(self.deberta, self.linear, self.out)
        own = {**PAIRRM, **settings}
        if layout == "PairRM-hf":
            own = {**config.to_dict(), "architectures": ["DebertaV2PairRM"], "n_tasks": 2, "drop_out": 0.05, **settings}
        parts = {"pretrained_model": self.deberta, "head_layer.1": self.linear, "head_layer.4": self.out}
        tokenizer.save_pretrained(folder)
        self.folder = write(folder, own, parts)
        # Without the configuration transformers looks for a tokenizer of DeBERTa's first version.
        self.tokenizer = DebertaV2Tokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def logit(self, source: str, first: str, second: str, lengths: tuple[int, int] = (1224, 412)) -> float:
        ids = self.tokenizer.encode(f"<|source|>{source}", truncation=True, max_length=lengths[0])
        room = (lengths[0] + 2 * lengths[1] - len(ids)) // 2
        for mark, text in (("<|candidate1|>", first), ("<|candidate2|>", second)):
            ids = ids + self.tokenizer.encode(mark + text, truncation=True, max_length=room)
        state = self.deberta(torch.tensor([ids])).last_hidden_state[0]
        at = [ids.index(self.tokenizer.convert_tokens_to_ids(mark)) for mark in MARKS[:3]]
        scores = [self.out(torch.tanh(self.linear(torch.cat([state[at[0]], state[n]])))) for n in at[1:]]
        return float((scores[0] - scores[1]).mean())

    def expected(self, source: str, texts: Sequence[str], lengths: tuple[int, int] = (1224, 412)) -> list[float]:
        """The sums of the authors' matrix of comparisons, minus its transpose."""
        n = range(len(texts))
        matrix = torch.tensor(
            [[self.logit(source, texts[i], texts[j], lengths) if i != j else 0.0 for j in n] for i in n]
        )
        sums: list[float] = (matrix - matrix.T).sum(dim=1).tolist()
        return sums


@pytest.mark.parametrize("layout", ["PairRM", "PairRM-hf"])
def test_pairrm_reads_its_published_format(tmp_path: Path, layout: str) -> None:
    pairrm = PairRm(tmp_path, layout)
    ids = pairrm.tokenizer.encode("<|source|>the dog")
    assert pairrm.tokenizer.convert_ids_to_tokens(ids)[:2] == ["[CLS]", "<|source|>"]
    assert pairrm.tokenizer.convert_ids_to_tokens(ids)[-1] == "[SEP]"
    expected = pairrm.expected(PROMPT, TEXTS)
    assert max(expected) - min(expected) > 1e-3
    assert rewards(tmp_path) == pytest.approx(expected, abs=1e-4)


def test_pairrm_cuts_the_question_and_the_responses_apart(tmp_path: Path) -> None:
    pairrm = PairRm(tmp_path, "PairRM", source_maxlength=12, candidate_maxlength=9)
    for prompt in ("the cat", "the cat sat on the mat; " * 9):
        texts = ["the dog sat on the cat. " * 9, "the capital of France is Paris. " * 9, "Anna"]
        assert rewards(tmp_path, prompt, texts) == pytest.approx(pairrm.expected(prompt, texts, (12, 9)), abs=1e-4)
