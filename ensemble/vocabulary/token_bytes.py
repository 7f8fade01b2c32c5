"""Tokens as bytes: the byte string of each id of a tokenizer, and the ids of a text that continues another one.

Across vocabularies, a token is the byte string that it adds to a text. Id 4290 of Llama 2's tokenizer is ``b" city"``,
and the same bytes are id 1748 of GPT-2's, so the two are one entry of the joint vocabulary. Three kinds of fast
tokenizer are supported, by their decoder: byte-level, SentencePiece-style, and without a decoder. Other decoders raise
an error that names them, because their tokens are not plain byte strings (WordPiece's ``##ing``, for example).
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer
from tokenizers.models import Unigram
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ensemble.errors import InputError
from ensemble.vocabulary.borders import Borders, UnsupportedError, component, steps_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Names of ids without a token, as InternLM2's [UNUSED_TOKEN_12] and Gemma's <unused7>.
_UNUSED = re.compile(r"[<\[]\|?unused[_ ]?(token)?[_-]?\d+\|?[>\]]", re.IGNORECASE)
# A noncharacter of Unicode, so no text holds a name that begins with it.
_HIDDEN = "\ufdd0"
_OPENING_LENGTH = 64
"""Characters that are enough to see how a tokenizer writes the beginning of a text."""
_WORD_LENGTH = 32
"""Bytes of the longest words whose ids are kept."""
_SHORT_LENGTH, _MOST_SHORT = 8, 2**14
"""Bytes of the longest other texts whose ids are kept, and how many of them."""
_LAST_RUN = re.compile("[\udc80-\udcff]+\\Z|[^\udc80-\udcff]+\\Z")
"""The last run of bytes that are UTF-8, or are not."""
_SENTENCEPIECE_STEPS = {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}


BYTE_TO_CHARACTER: dict[int, str] = bytes_to_unicode()
"""GPT-2's alphabet: a printable character for each of the 256 bytes."""
CHARACTER_TO_BYTE = {character: byte for byte, character in BYTE_TO_CHARACTER.items()}


def utf8_runs(data: bytes) -> Iterator[tuple[bytes, str | None]]:
    """Split bytes into maximal runs of valid UTF-8, with their text, and runs of other bytes, with None."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # Each byte that is not UTF-8 becomes one character of this range; valid UTF-8 never decodes to it.
        for part in re.findall("[\udc80-\udcff]+|[^\udc80-\udcff]+", data.decode(errors="surrogateescape")):
            raw = part.encode(errors="surrogateescape")
            yield raw, None if "\udc80" <= part[0] <= "\udcff" else part
    else:
        if data:
            yield data, text


class Vocabulary:
    """A fast tokenizer: its tokens as bytes, their roles, and the ids of a continued text; else an InputError."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: tuple[int, ...],  # those of the generation configuration; the tokenizer's EOS id is added
        size: int,  # rows of the model's output; ids from it on, which some tokenizers have, are not used
        marks: Collection[int] = (),  # special tokens that a model alone may write, as text: those of its thinking
        ends: Collection[int] = (),  # special tokens at the end of an answer, which end a generation among others too
    ) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        name = str(tokenizer.name_or_path)
        if backend is None:
            raise InputError("its tokenizer has no fast form (tokenizer.json), which ensembles need", of=name)
        self.name = name
        self.size = size
        self.marks, self.ends = frozenset(marks), frozenset(ends)
        decoder = component(backend.decoder)
        self.is_byte_level = _is_byte_level(decoder, name)
        self._plain = decoder is None
        has_byte_tokens = getattr(backend.model, "byte_fallback", False) or "ByteFallback" in json.dumps(decoder)
        self._byte_fallback = bool(has_byte_tokens) and not self.is_byte_level and not self._plain
        self._tokens: dict[int, str] = {
            index: token for token, index in backend.get_vocab(with_added_tokens=True).items()
        }
        if not self._tokens:
            raise InputError("its tokenizer has no tokens; take it from the model's publisher", of=name)
        added = backend.get_added_tokens_decoder()
        self._literal: dict[int, str] = {index: token.content for index, token in added.items() if not token.special}
        # Some models end a generation by other ids than their tokenizer's EOS, for example at the end of a chat turn.
        own_eos = tokenizer.eos_token_id
        all_eos = {*eos_ids, *self.ends, *([own_eos] if isinstance(own_eos, int) else [])}
        self.eos_ids = tuple(sorted(index for index in all_eos if index < size))
        special = {index for index, token in added.items() if token.special}
        self._special = special | set(tokenizer.all_special_ids) | {*self.eos_ids, *_unknown_ids(backend)}
        self._backend = backend
        self._fits = max(self._tokens) < size
        self._bytes: dict[int, bytes | None] = {}
        self._words: dict[bytes, list[int] | None] = {}
        self._short: dict[bytes, tuple[list[int], tuple[int, int] | None]] = {}

    @cached_property
    def _continuation(self) -> Tokenizer:
        """The tokenizer without a prefix before a text, and without special tokens in a text."""
        return _continuation_backend(self._backend, {i: t for i, t in self._tokens.items() if i in self._special})

    @property
    def special_tokens(self) -> dict[int, str]:
        """The special tokens that the model has a row for, without those of EOS that are no :attr:`ends`."""
        eos = set(self.eos_ids) - self.ends
        known = (index for index in self._special - eos if index in self._tokens and index < self.size)
        return {index: self._tokens[index] for index in known}

    def token_bytes(self, index: int) -> bytes | None:
        """The bytes that an id adds to a text; None for ids without a token and for special tokens (EOS included)."""
        # Kept, because the sampler and the decoder need the same tokens for every row at every step.
        try:
            return self._bytes[index]
        except KeyError:
            return self._bytes.setdefault(index, self._bytes_of(index))

    def _bytes_of(self, index: int) -> bytes | None:
        if (index in self._special and index not in self.marks) or index not in self._tokens:
            return None
        token = self._tokens[index]
        if self._plain or index in self._literal or index in self.marks:
            return self._literal.get(index, token).encode()
        if self.is_byte_level:
            # An added token can hold characters outside of the byte alphabet; then it is plain text.
            known = all(character in CHARACTER_TO_BYTE for character in token)
            return bytes(CHARACTER_TO_BYTE[character] for character in token) if known else token.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.replace(SPACE_MARK, " ").encode()

    def is_byte_token(self, index: int) -> bool:
        """Whether an id is one of SentencePiece's ``<0xNN>``, which spell characters that no other token holds."""
        possible = self._byte_fallback and index not in self._literal
        return possible and _BYTE_TOKEN.fullmatch(self._tokens.get(index, "")) is not None

    @cached_property
    def representatives(self) -> dict[bytes, int]:
        """The candidate id of each byte string: the lowest id; a byte token only if no other token has these bytes."""
        chosen: dict[bytes, int] = {}
        byte_tokens: dict[bytes, int] = {}
        # In ascending order, so that the lowest id of equal byte strings is kept.
        for index in sorted(self._tokens):
            data = self.token_bytes(index) if index < self.size else None
            if data and not _UNUSED.fullmatch(self._tokens[index]):
                (byte_tokens if self.is_byte_token(index) else chosen).setdefault(data, index)
        return byte_tokens | chosen

    def continue_ids(self, data: bytes) -> list[int]:
        """``C_i``: the ids of a text that continues another one: no BOS, no dummy space, no special tokens."""
        ids: list[int] = []
        for run, text in utf8_runs(data):
            if text is None:
                ids.extend(self._spell(run))
            else:
                ids.extend(self._continuation.encode(text, add_special_tokens=False).ids)
        return self._embedded(ids)

    def control_ids(self, text: str) -> list[int]:
        """The ids of a text that is control: its :attr:`marks` are read as such, and not as their characters."""
        names = {self._tokens[index]: index for index in self.marks}
        pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        parts = re.split(f"({pattern})", text) if names else [text]
        return [i for part in parts for i in ([names[part]] if part in names else self.continue_ids(part.encode()))]

    def opening(self, text: str) -> str:
        """A text as this tokenizer reads it at the beginning of a prompt: some tokenizers add a space."""
        begun = text[:_OPENING_LENGTH]
        ids = self._backend.encode(begun, add_special_tokens=False).ids
        data = b"".join(self.token_bytes(index) or b"" for index in ids)
        spaces = [len(part) - len(part.lstrip(b" ")) for part in (data, begun.encode())]
        return " " * (spaces[0] - spaces[1]) + text

    def _embedded(self, ids: list[int]) -> list[int]:
        """The ids that the model has a row for; some tokenizers have more ids."""
        return ids if self._fits else [index for index in ids if index < self.size]

    def continue_batch(self, texts: list[bytes]) -> list[list[int]]:
        """``continue_ids`` of many byte strings."""
        # All valid UTF-8 goes to the tokenizer in one call, which is much faster than one call for each.
        valid = [(n, text) for n, data in enumerate(texts) if (text := _as_text(data)) is not None]
        encodings = self._continuation.encode_batch_fast([text for _, text in valid], add_special_tokens=False)
        encoded = {n: encoding.ids for (n, _), encoding in zip(valid, encodings, strict=True)}
        return [self._embedded(encoded[n]) if n in encoded else self.continue_ids(data) for n, data in enumerate(texts)]

    def word_ids(self, data: bytes) -> list[int] | None:
        """The ids of a short text that is safe to cut from an ASCII letter before it; None for other texts."""
        if len(data) > _WORD_LENGTH:
            return None
        if data not in self._words:
            text = _as_text(data)
            safe = text is not None and self.cuts is not None and self.cuts.match(f"a{text}", 1)
            self._words[data] = self.continue_ids(data) if safe else None
        return self._words[data]

    def short_text(self, data: bytes) -> tuple[list[int], int, int] | None:
        """The ids of a short text after a border, and what :meth:`last_border` says of it; None for longer texts.

        The first time a text that ends in an ASCII letter is asked for, no border is looked for: 0 and 0.
        """
        if len(data) > _SHORT_LENGTH:
            return None
        known = self._short.get(data)
        if known is None:
            # A stranger's text may have very many.
            if len(self._short) >= _MOST_SHORT:
                self._short.clear()
            known = self._short[data] = self.continue_ids(data), None
            # To find a border takes longer than the ids, and most beginnings of words do not come again. In other
            # scripts than the Latin one, a few letters are mostly a word already.
            if data[-1:].isalpha():
                return known[0], 0, 0
        ids, border = known
        if border is None:
            border = self.last_border(data, ids, every=True)
            self._short[data] = ids, border
        return ids, *border

    def last_border(self, data: bytes, ids: list[int], *, every: bool = False) -> tuple[int, int]:
        """The last border, in bytes, of a text that grows, and the final ids before it; 0 and 0 if not known.

        ``data`` is the text from a border or its beginning on. ``every`` looks for borders within a short piece, too.
        """
        cut = 0
        # Without borders only the safe cuts are known.
        if self.borders is not None:
            # The first bytes of a character at the end are left out: others may follow.
            text, _ = codecs.utf_8_decode(data, "surrogateescape", False)
            run = _LAST_RUN.search(text)
            last = run[0] if run else ""
            cut = len(text[: len(text) - len(last)].encode(errors="surrogateescape"))
            if "\udc80" <= last[:1] <= "\udcff":
                cut += self.borders.last_of_bytes(last.encode(errors="surrogateescape"))
            else:
                cut += len(last[: self.borders.last(last, every=every)].encode())
        cut = cut or last_cut(data, self.cuts)
        return (cut, len(ids) - self._count(data[cut:], ids)) if cut else (0, 0)

    def _count(self, data: bytes, ids: list[int]) -> int:
        """How many of the last ids of a text are those of ``data``, which is its end."""
        count, left = 0, len(data)
        while left > 0 and count < len(ids):
            count += 1
            left -= len(self.token_bytes(ids[-count]) or b"")
        written = b"".join(self.token_bytes(index) or b"" for index in ids[len(ids) - count :])
        # Where ids do not have the bytes of the text (composed or unknown characters), the end is read by itself.
        return count if written == data else len(self.continue_ids(data))

    def _spell(self, data: bytes) -> list[int]:
        """The ids of bytes that are not UTF-8, without bytes that the vocabulary cannot express."""
        if self.is_byte_level:
            characters = "".join(BYTE_TO_CHARACTER[byte] for byte in data)
            return [token.id for token in self._continuation.model.tokenize(characters)]
        if not self._byte_fallback:
            return []
        spelled = (self._continuation.token_to_id(f"<0x{byte:02X}>") for byte in data)
        return [index for index in spelled if index is not None]

    @cached_property
    def cuts(self) -> re.Pattern[str] | None:
        """Where text can be cut without changing its ids; see :func:`ensemble.vocabulary.token_bytes.safe_cuts`."""
        # An added token with rstrip takes the white space after it, so a cut before that white space is not safe.
        added = self._backend.get_added_tokens_decoder().values()
        if any(token.rstrip and not token.special and token.content[-1:].isalpha() for token in added):
            return None
        crossing = (self.token_bytes(index) for index, token in self._tokens.items() if _MAY_CROSS.search(token))
        return safe_cuts([data for data in crossing if data], self._knows)

    @cached_property
    def borders(self) -> Borders | None:
        """Where a growing text can be cut, whatever follows; None for tokenizers for which only ``cuts`` are known.

        These are tokenizers whose patterns look back, with normalizers other than NFC and the replacement of a
        character (T5's, for example), or with added tokens that depend on the text before them.
        """
        try:
            return Borders(self._continuation, BYTE_TO_CHARACTER, self.is_byte_level)
        except UnsupportedError:
            return None

    def _knows(self, character: str) -> bool:
        """Whether a character never becomes the unknown token."""
        token = SPACE_MARK if character == " " and not self._plain else character
        return self.is_byte_level or self._byte_fallback or self._backend.token_to_id(token) is not None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides bytes, roles and ids: the tokenizer's content, special ids and the size."""
        roles = f"{sorted(self.eos_ids)} {sorted(self._special - self.marks)} {self.size}"
        # The pickled state holds the bytes of to_str() and saves a conversion. A hash of the file would be quicker, but
        # wrong after a change of the tokenizer in memory.
        return hashlib.sha256(self._backend.__getstate__() + roles.encode()).hexdigest()


def _as_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _is_byte_level(decoder: dict[str, Any] | None, name: str) -> bool:
    """Whether tokens are written in GPT-2's byte alphabet; otherwise in SentencePiece's style, or as plain text."""
    steps = steps_of(decoder, "decoders")
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return True
    marks = any(
        step["type"] == "Metaspace" or step.get("pattern") == {"String": SPACE_MARK}
        for step in steps
        if step["type"] in ("Metaspace", "Replace")
    )
    if decoder is None or (marks and kinds <= _SENTENCEPIECE_STEPS):
        return False
    raise InputError(
        f"its tokenizer decodes by {' + '.join(sorted(kinds))}, which is not supported; use a model with a "
        "byte-level or SentencePiece-style tokenizer",
        of=name,
    )


def _unknown_ids(backend: Tokenizer) -> list[int]:
    """The id of a tokenizer's unknown token, even if it is not marked as special."""
    if isinstance(backend.model, Unigram):
        # A Unigram model has an id instead of a token, and shows it only in its saved form.
        match = re.search(rb'"unk_id":(\d+)', backend.model.__getstate__())
        return [int(match[1])] if match else []
    index = backend.token_to_id(getattr(backend.model, "unk_token", None) or "")
    return [] if index is None else [index]


def _continuation_backend(backend: Tokenizer, special: dict[int, str]) -> Tokenizer:
    """A copy of the tokenizer that adds no prefix and does not recognise special tokens in a text."""
    normalizer = [step for step in steps_of(component(backend.normalizer), "normalizers") if step["type"] != "Prepend"]
    pre_tokenizer = component(backend.pre_tokenizer)
    for step in steps_of(pre_tokenizer, "pretokenizers"):
        # Both would add a space before the text, which continues another one.
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
        elif step["type"] == "ByteLevel":
            step["add_prefix_space"] = False
    # A tokenizer with an empty model parses the edited parts: parsing the whole vocabulary again takes seconds.
    parts: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizer} if normalizer else None,
        "pre_tokenizer": pre_tokenizer,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    shell = Tokenizer.from_str(json.dumps(parts))
    copy = Tokenizer.from_str(backend.to_str())
    # Removing the special tokens instead would renumber the added tokens after them (DeepSeek).
    copy.encode_special_tokens = True
    if any(special.keys() & copy.encode(token, add_special_tokens=False).ids for token in special.values()):
        # A Unigram model has </s> as an ordinary piece, and would still find it in a text.
        copy = _hide(json.loads(backend.to_str()), set(special.values()))
    # A saved tokenizer may truncate or pad.
    copy.no_truncation()
    copy.no_padding()
    copy.normalizer = shell.normalizer
    copy.pre_tokenizer = shell.pre_tokenizer
    return copy


def _hide(spec: dict[str, Any], names: set[str]) -> Tokenizer:
    """A tokenizer with some tokens renamed to names that no text holds; all ids stay the same."""

    def renamed(name: str) -> str:
        return f"{_HIDDEN}{name}" if name in names else name

    model = spec["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {renamed(name): index for name, index in model["vocab"].items()}
    else:
        model["vocab"] = [[renamed(name), score] for name, score in model["vocab"]]
    # A merge that uses or makes a renamed token would name a token that is missing.
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not names & {*pair, "".join(pair)}]
    if model.get("unk_token"):
        model["unk_token"] = renamed(model["unk_token"])
    for token in spec["added_tokens"]:
        token["content"] = renamed(token["content"])
    # It adds special tokens by name, and is not needed for continuations.
    spec["post_processor"] = None
    hidden = Tokenizer.from_str(json.dumps(spec))
    hidden.encode_special_tokens = True
    return hidden


# Safe cuts: places where a growing text can be cut, so that the part before the cut is tokenized only once. A tokenizer
# joins characters only if a token of the vocabulary holds them together. If no token holds a letter followed by a
# separator, then no token crosses a cut between the two, and the text on one side does not change the ids of the other.
_SEPARATORS = " \n，。、！？"
_LETTERS = {"[A-Za-z]": "[A-Za-z]", r"[^\W\d_A-Za-z]": r"(?:[^\W\d_A-Za-z]|[\udc80-\udcff])"}
"""ASCII letters and all other letters; for each a pattern of its end in a token. A single byte NN of a longer character
is decoded to U+DCNN (surrogateescape), so it may be the end of a letter that is not ASCII."""
# A quick filter: any character, then a separator or its first byte, in all ways in which vocabularies write them.
_MAY_CROSS = re.compile(rf"(?s).[{_SEPARATORS}\u2581\u0120\u010aïã]")


def safe_cuts(tokens: Iterable[bytes], is_known: Callable[[str], bool]) -> re.Pattern[str] | None:
    """A pattern of where text can be cut without changing ids: before a separator between two letters; or None.

    ``tokens`` are those that ``_MAY_CROSS`` finds. ``is_known`` tells whether a character never becomes the unknown
    token; a run of unknown characters may be one token.
    """
    texts = [token.decode(errors="surrogateescape") for token in tokens]
    places = [
        rf"(?<={letter}){separator}(?=[^\W\d_])"
        for separator in filter(is_known, _SEPARATORS)
        for letter, end in _LETTERS.items()
        if not any(map(_crossing(end, separator).search, texts))
    ]
    return re.compile("|".join(places)) if places else None


def last_cut(data: bytes, cuts: re.Pattern[str] | None) -> int:
    """The last place in a text where it can be cut, in bytes; 0 if it cannot be cut."""
    if cuts is None:
        return 0
    text = data.decode(errors="surrogateescape")
    # The last match only; a list of all would grow with the text.
    last = deque(cuts.finditer(text), maxlen=1)
    return len(text[: last[0].start()].encode(errors="surrogateescape")) if last else 0


def _crossing(end: str, separator: str) -> re.Pattern[str]:
    """A pattern of a letter's end before a separator, or before the first bytes of a separator at a token's end."""
    raw = separator.encode()
    # A byte-level token may end within a separator's bytes.
    beginnings = [raw[:n].decode(errors="surrogateescape") + "$" for n in range(1, len(raw))]
    return re.compile(f"{end}(?:{'|'.join([separator, *beginnings])})")
