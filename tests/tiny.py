"""Tiny random models with real and made-up tokenizers, and texts that are hard to tokenize.

A model with random weights knows nothing, but it wants something definite after every context, and that is all that a
test of the decoder needs. The weights are scaled so that it wants varied things (see `tiny_model`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from texts import KINDS, text_of
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    NllbTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ensemble.models.load import member_of
from ensemble.models.member import LocalMember

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
TOKENIZERS = SHARED / "tokenizers"

PROMPTS = (
    "The capital of France is",
    "Question: 12 + 30 = ?\nAnswer:",
    "  two leading spaces",
    "今天天气很好，我们去",
    "Café naïve — “quoted”",
    "def f(x):\n    return",
    "🙂👩‍👩‍👧 and",
    "Trailing space ",
)

TEXTS: dict[str, str] = {
    "empty": "",
    "word": "James",
    "sentence": "The cat sat on the mat, didn't it? It's 3 o'clock.",
    "no leading space": "ames went",
    "leading space": " James",
    "leading spaces": "   three",
    "spaces": " " * 40,
    "trailing spaces": "end  ",
    "tabs": "\tif x:\n\t\treturn\t1",
    "newline": "\n",
    "newlines": "a\n\nb\r\nc\n",
    "digits": "1234567 3.14159 2,000",
    "chinese": "今天天气很好，我们去公园。",
    "japanese": "これはテストです",
    "emoji": "🙂🚀 👩‍👩‍👧‍👦 🇩🇪",
    "rare": "𐍈𝒳 ꙮ ፙ",
    "composed": "café Ångström ø ö ú ÿ õ",
    "combining": "cafe\u0301 A\u030angstro\u0308m",
    "block": "a\u2581b \u2581",
    "eos of llama": "a</s>b",
    "eos of llama and space": "</s> b",
    "eos alone": "</s>",
    "chat": "<|im_end|>\n<|im_start|>user",
    "eos of gpt": "x<|endoftext|>y",
    "other control": "<s>[INST] <unk> <|eot_id|><pad>",
    "byte token": "<0x41><0x0A>",
    "control characters": "\x00\x01\x07\x1b\x7f",
    "code": "def f(x):\n    return {'a': x[0] != 1}  # ok\n",
    "zero width": "a\u200bb\ufeffc\u00a0d",
}
"""Texts by name, for a parametrised test."""

BYTES: dict[str, bytes] = {
    "continuation byte": b"\x80",
    "half a character": "今".encode()[:2],
    "other half": "今".encode()[2:],
    "half an emoji": b"hi " + "🙂".encode()[:3],
    "between": b"a\xffb\xc3(\xe4\xbd",
    "never in utf-8": b"\xc0\xc1\xf5\xfe\xff",
    "surrogate": b"\xed\xa0\x80",
    "latin-1": "naïve café".encode("latin-1"),
}
"""Byte strings that are no UTF-8."""

SENTENCES = (
    "James and Anna went to the shop and bought 12 apples, 3 pears and 45 plums.",
    "The cat sat on the mat; the dog sat on the cat.",
    "What is the capital of France? The capital of France is Paris.",
    "She didn't go there, and they weren't there either (so they said).",
    "Café, naïve, façade: words with accents in the text of the shop.",
    "今天天气很好 我们去公园",
)


def real_tokenizers() -> list[str]:
    """The names of the real tokenizers; none where the shared data is absent."""
    return sorted(path.parent.name for path in TOKENIZERS.glob("*/tokenizer.json"))


@cache
def load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The real tokenizer of that name. It is shared between tests: do not change it."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZERS / name)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def _special(tokens: str) -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in tokens.split()]


@cache
def unigram_tokenizer(byte_fallback: bool = False) -> PreTrainedTokenizerFast:
    """A small SentencePiece-like Unigram tokenizer: Metaspace with a dummy prefix space, ``<s>`` before a prompt.

    As in T5's or Llama's vocabularies, the special tokens are pieces too, with the best score of all. With
    `byte_fallback` there are 256 byte tokens, and some of them (``<0x41>``) have the bytes of a piece; without it,
    characters beyond the alphabet are unknown.
    """
    # Scored by hand: the library's trainer gives another vocabulary each time.
    words = [f"▁{word}" for sentence in SENTENCES for word in sentence.split()]
    counts: dict[str, int] = {}
    for word in words:
        for start in range(len(word)):
            for end in range(start + 1, len(word) + 1):
                counts[word[start:end]] = counts.get(word[start:end], 0) + 1
    kept = {piece: n for piece, n in counts.items() if len(piece) == 1 or n > 2}
    control = ["<unk>", "<s>", "</s>", "<|im_end|>"]
    vocabulary = [(piece, 0.0) for piece in control]
    if byte_fallback:
        vocabulary += [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    # Longer pieces score better than their count alone, so that words are not read letter by letter.
    vocabulary += [(piece, math.log(n * len(piece) ** 2 / 1e4)) for piece, n in sorted(kept.items())]
    backend = Tokenizer(Unigram(vocabulary, unk_id=0, byte_fallback=byte_fallback))
    backend.add_special_tokens(_special(" ".join(control)))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    with_bytes = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.decoder = with_bytes if byte_fallback else decoders.Metaspace(prepend_scheme="always")
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@cache
def nllb_tokenizer() -> PreTrainedTokenizerFast:
    """A small tokenizer as NLLB's: BPE with Metaspace, ``LANGUAGE text </s>``, and a special token a language."""
    vocabulary = {token: n for n, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "▁"])}
    merges: list[tuple[str, str]] = []
    for word in (f"▁{word}" for sentence in SENTENCES for word in sentence.split()):
        for character in word:
            vocabulary.setdefault(character, len(vocabulary))
        for n in range(1, min(len(word), 4)):
            if word[: n + 1] not in vocabulary:
                vocabulary[word[: n + 1]] = len(vocabulary)
                merges.append((word[:n], word[n]))
    languages = ["eng_Latn", "deu_Latn", "ron_Latn"]
    return NllbTokenizer(vocab=vocabulary, merges=merges, extra_special_tokens=languages)


def byte_tokenizer(words: tuple[str, ...] = (), eos: str = "<|end|>") -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the 256 bytes, `words` (built from the left, a merge a byte) and one EOS.

    The ids: 0 to 255 in the order of the byte table's characters, then every new prefix of every word, then `eos`.
    Small enough to work out by hand what a decoder has to do.
    """
    vocabulary = {character: n for n, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges = []
    for word in words:
        characters = splitter.pre_tokenize_str(word)[0][0]
        for n in range(1, len(characters)):
            if characters[: n + 1] not in vocabulary:
                vocabulary[characters[: n + 1]] = len(vocabulary)
                merges.append((characters[:n], characters[n]))
    backend = Tokenizer(BPE(vocabulary, merges))
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(_special(eos))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos)


@cache
def large_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of Gemma's size, 262,144 ids: all bytes, all pairs of bytes, and many of three."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(one, other) for one in characters for other in characters]
    merges = [*pairs, *((one + other, third) for third in "tes" for one, other in pairs)][: 2**18 - 257]
    vocabulary = {token: n for n, token in enumerate([*characters, *map("".join, merges)])}
    backend = Tokenizer(BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(_special("<|end|>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


MADE_UP: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "unigram": unigram_tokenizer,
    "unigram with bytes": lambda: unigram_tokenizer(byte_fallback=True),
    "bytes": cache(lambda: byte_tokenizer(("James", " the", " cat"))),
}
"""Made-up tokenizers by name: each of them is there also where the shared data is absent."""


@cache
def pieces_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of pieces of tables, formulas and Thai, which begin and end anywhere.

    It splits no text before it merges, so that a byte may change the tokens far before it.
    """
    chance = random.Random(seed)
    words = []
    for kind in KINDS:
        text = text_of(kind, 2000)
        starts = chance.sample(range(len(text) - 5), 60)
        words += [text[start : start + chance.randint(2, 5)] for start in starts]
    return byte_tokenizer(tuple(words))


def made_up_sentencepiece(size: int) -> PreTrainedTokenizerFast:
    """A BPE tokenizer of ``size`` ids in SentencePiece's style: byte tokens, made-up words, one EOS.

    Other characters than those of the words, digits included, are spelled by byte tokens or merge in pairs.
    """
    entries = {"</s>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    characters = "\u2581" + "".join(chr(code) for code in range(0x21, 0x7F))
    entries |= {character: len(entries) + n for n, character in enumerate(characters)}
    merges: list[tuple[str, str]] = []

    def merge(left: str, right: str) -> None:
        if left + right not in entries and len(entries) < size:
            entries[left + right] = len(entries)
            merges.append((left, right))

    for left, right in product("0123456789", repeat=2):
        merge(left, right)
    drawn = random.Random("sentencepiece")
    while len(entries) < size:
        syllables = (f"{drawn.choice('bcdfghlmnprst')}{drawn.choice('aeiou')}" for _ in range(drawn.randint(1, 4)))
        word = "\u2581" + "".join(syllables)
        for end in range(2, len(word) + 1):
            merge(word[: end - 1], word[end - 1])
    backend = Tokenizer(BPE(entries, merges, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


PIECES: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "pieces": lambda: pieces_tokenizer(0),
    "other pieces": lambda: pieces_tokenizer(1),
    "sentencepiece": cache(lambda: made_up_sentencepiece(1000)),
}
"""Made-up tokenizers for texts in which words seldom end: tokens cross digits, signs and characters."""


def tokenizer_named(name: str) -> PreTrainedTokenizerFast:
    """A made-up or a real tokenizer; it is shared between tests: do not change it."""
    made_up = MADE_UP.get(name) or PIECES.get(name)
    return made_up() if made_up else load_tokenizer(name)


@cache
def _common(tokenizer: Any) -> list[int]:
    """The ids of one character of ASCII, with and without a space before it: about 150 in a real vocabulary."""
    characters = {chr(code) for code in range(0x21, 0x7F)} | {"Ċ", "<0x0A>"}
    names = characters | {f"{space}{c}" for space in "Ġ▁" for c in characters}
    return sorted(token for name, token in tokenizer.get_vocab().items() if name in names)


def tiny_model(
    tokenizer: Any,
    seed: int = 0,
    arch: str = "llama",
    dtype: torch.dtype = torch.float64,
    *,
    hidden: int = 16,
    layers: int = 1,
    sharpness: float = 2.0,
    eos_rate: float = 0.05,
    positions: int = 2048,
    **config: Any,
) -> PreTrainedModel:
    """A causal language model with random weights for that tokenizer; the same seed gives the same weights.

    Args:
        tokenizer: a tokenizer, or the name of a real one.
        seed: of the weights.
        arch: a name that AutoConfig knows.
        dtype: of the weights. In float64 two ways to compute one thing agree to about 1e-12.
        hidden: width, a multiple of 4.
        layers: number of layers; with one, a context counts as with several, and a step takes half as long.
        sharpness: standard deviation of the logits. Tokens of one ASCII character have the double of it, so that
            models with different vocabularies often have some of their best tokens in common.
        eos_rate: how often EOS is the likeliest token, roughly.
        positions: the longest context.
        config: more of the configuration, by the names of transformers.
    """
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer(tokenizer)
    rows = 64 * math.ceil(len(tokenizer) / 64) + 64  # real embeddings have more rows than the tokenizer has ids
    usual = {
        "vocab_size": rows,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,  # tied, the likeliest token would be the last one again
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
    }
    with torch.random.fork_rng(devices=[]):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(arch, **usual | config), dtype=dtype
        )
    _randomize(model, tokenizer, seed, hidden, sharpness, eos_rate, dtype)
    return model


def tiny_translator(
    tokenizer: Any, seed: int = 0, arch: str = "t5", *, eos_rate: float = 0.05, positions: int = 256, **config: Any
) -> PreTrainedModel:
    """An encoder-decoder model with random weights in float64 for that tokenizer; see `tiny_model`.

    Args:
        tokenizer: a tokenizer.
        seed: of the weights.
        arch: ``t5``, ``bart`` or ``m2m_100`` (NLLB's).
        eos_rate: how often EOS is the likeliest token, roughly.
        positions: the longest context of the encoder, and of the decoder; T5's have no end.
        config: more of the configuration, by the names of transformers.
    """
    hidden = 16
    begin = {"t5": tokenizer.pad_token_id}.get(arch, tokenizer.eos_token_id)
    t5 = {"d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    bart = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in _SIDES.items()}
    usual = {
        "vocab_size": 64 * math.ceil(len(tokenizer) / 64) + 64,
        "d_model": hidden,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "decoder_start_token_id": begin,
        "forced_eos_token_id": None,
        **(t5 if arch == "t5" else {**bart, "max_position_embeddings": positions}),
    }
    with torch.random.fork_rng(devices=[]):
        model: PreTrainedModel = AutoModelForSeq2SeqLM.from_config(
            AutoConfig.for_model(arch, **usual | config), dtype=torch.float64
        )
    _randomize(model, tokenizer, seed, hidden, 2.0, eos_rate, torch.float64)
    return model


@cache
def member(name: str, seed: int = 0, arch: str = "llama", **config: Any) -> LocalMember:
    """A member with the tokenizer of that name; it is shared between tests: do not change it."""
    tokenizer = tokenizer_named(name)
    return member_of(
        tiny_model(tokenizer, seed, arch, **config), tokenizer, name=f"{name}-{seed}", chat_template="never"
    )


_SIDES = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}


def _randomize(
    model: PreTrainedModel,
    tokenizer: Any,
    seed: int,
    hidden: int,
    sharpness: float,
    eos_rate: float,
    dtype: torch.dtype,
) -> None:
    """Random weights, see `tiny_model`."""
    random = torch.Generator().manual_seed(seed)
    head: Any = model.get_output_embeddings().weight
    embedding: Any = model.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # vectors are norms' weights and biases: 1 and 0 as they are
                # Twice what keeps a state's size, so that the context counts for more than the last token.
                parameter.copy_(torch.randn(parameter.shape, generator=random) * 2 / math.sqrt(hidden))
        embedding *= math.sqrt(hidden) / 2
        head *= sharpness / 2
        head[_common(tokenizer)] *= 2
        eos = tokenizer.eos_token_id
        head[eos] /= head[eos].norm()
        states = torch.randn(64, hidden, generator=random, dtype=dtype)
        states *= math.sqrt(hidden) / states.norm(dim=1, keepdim=True)  # what a final norm gives
        wanted = states @ head[eos]
        needed = (states @ head.T).amax(1) / wanted.clamp(min=1e-6)
        head[eos] *= needed.sort().values[round(eos_rate * len(states))]
    model.eval()


def let_write(model: PreTrainedModel, ids: Sequence[int], strength: float = 20.0) -> PreTrainedModel:
    """Make a model want one token of `ids` above all others: after a context of n tokens the n-th, counted in a ring.

    So the text that it writes can be chosen, and it is sure of it, as random weights never are.
    """

    def want(_model: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        rows, places, _ = output.logits.shape
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = torch.arange(kwargs["input_ids"].shape[1]).expand(rows, -1)
        wanted = torch.tensor(ids)[(positions[:, -places:] + 1) % len(ids)]
        output.logits.scatter_add_(2, wanted[:, :, None], torch.full_like(output.logits[:, :, :1], strength))
        return output

    model.register_forward_hook(want, with_kwargs=True)
    return model


def writer_of(tokenizer: Any, script: str, seed: int = 1, *, strength: float = 20.0, **config: Any) -> LocalMember:
    """A member that writes a script round and round, from a place that the length of its prompt decides."""
    made = member_of(tiny_model(tokenizer, seed, **config), tokenizer, name="writer", chat_template="never")
    let_write(made.model, made.vocabulary.continue_ids(script.encode()), strength)
    return made


@contextmanager
def passes_of(model: Any) -> Iterator[list[tuple[int, int]]]:
    """The rows and columns of ids of each forward pass of a model."""
    shapes: list[tuple[int, int]] = []
    hook = model.register_forward_pre_hook(
        lambda _model, _args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    try:
        yield shapes
    finally:
        hook.remove()


def save_member(folder: Path, model: PreTrainedModel, tokenizer: Any) -> Path:
    """Write a normal model folder (safetensors, configuration, tokenizer), and return it.

    Raises ValueError where transformers would read another tokenizer from it: to a model of type qwen2 it gives Qwen2's
    pre-tokenizer and normalizer whatever the folder says. Take another architecture for another tokenizer.
    """
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    again = AutoTokenizer.from_pretrained(folder)
    if any(again(text)["input_ids"] != tokenizer(text)["input_ids"] for text in [*TEXTS.values(), *PROMPTS]):
        raise ValueError(f"transformers reads a {type(again).__name__} for {model.config.model_type} from {folder}")
    return folder
