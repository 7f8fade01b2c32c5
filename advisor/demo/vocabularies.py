"""The demo's tokenizers: the three kinds that real models use, each learned from word problems."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPACE_MARK = "\u2581"
# Digits stay single in every vocabulary, as in Llama 2, Mistral and Qwen2: tiny models cannot add otherwise.
_DIGITS = pre_tokenizers.Digits(individual_digits=True)


def byte_level(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """GPT-2's kind: BPE over bytes; a space is part of the word that follows it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([_DIGITS, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def sentencepiece_bpe(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """Llama 2's kind: BPE over characters, with ``<0xNN>`` for bytes of other characters, and a BOS."""
    specials = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="always"), _DIGITS])
    trainer = trainers.BpeTrainer(vocab_size=size - len(specials) - len(byte_tokens), show_progress=False)
    # Line by line, so that the newline gets no piece and is spelled <0x0A>, as in real vocabularies.
    learner.train_from_iterator([line for text in texts for line in text.split("\n")], trainer)
    pieces = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    vocabulary = {
        token: index for index, token in enumerate([*specials, *byte_tokens, *(piece for piece, _ in pieces)])
    }
    merges = _merges(learner)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), normalizers.Replace(" ", SPACE_MARK)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def unigram(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """T5's kind: a unigram language model over pieces, which cannot spell unknown characters.

    The pieces are the characters and the most frequent words, with their log frequencies.
    """
    # Not the library's trainer, which starts from substrings of two different words: these texts have too few words.
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("\n"), "isolated"), pre_tokenizers.Metaspace(prepend_scheme="first"), _DIGITS]
    )
    words = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(text))
    characters = Counter(character for word, count in words.items() for character in word * count)
    room = size - len(characters) - 2
    pieces = characters | Counter(dict([item for item in words.most_common() if len(item[0]) > 1][:room]))
    total = sum(pieces.values())
    scores = [(piece, math.log(count / total)) for piece, count in sorted(pieces.items())]
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *scores], unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def _merges(learner: Tokenizer) -> list[tuple[str, str]]:
    """The merges of a trained BPE, in the order in which they were learned."""
    return [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]


KINDS: dict[str, Callable[[Sequence[str], int], PreTrainedTokenizerFast]] = {
    "byte_level": byte_level,
    "sentencepiece_bpe": sentencepiece_bpe,
    "unigram": unigram,
}
