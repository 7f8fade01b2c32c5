r"""Borders: places in a growing text before which no later text changes the ids.

A tokenizer first splits a text into pieces (added tokens, words, numbers), and then cuts each piece into tokens. A
:class:`Stage` is one pattern that splits. Its last pieces can change when text is added: ``'`` and ``ve`` are two
pieces, ``'ve`` is one. The module ``regex`` tells which: a *partial* match is one that reaches the end of the text and
may go on after it. A piece whose search never reached the end is final, whatever follows, for any pattern that looks
ahead only.
"""

from __future__ import annotations

import json
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from typing import Any

import regex  # type: ignore[import-untyped]
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern of a byte-level pre-tokenizer (GPT-2's)."""
_ATOM = r"(?:\[(?:\\.|[^\[\]\\])+\]|\\[pP]\{\^?\w+\}|\\[^\dbBAzZGKkgpP]|[^\\\[\](){}|?*+.^$])"
# Some characters or none, then a run of one kind of characters, and then nothing that must follow.
_RUN = regex.compile(rf"(?P<first>{_ATOM}[?*]?)?(?P<run>{_ATOM})\+(?:{_ATOM}[*?])*")
# What looks back, or depends on where the text begins.
_LOOKS_BACK = regex.compile(
    r"\(\?<[=!]|\\(?![sSpPrntfxu]|[^\w])|(?<!\[)(?<!\\)\^|(?<!\\)\[[^\]]*(?<!\\)\[|&&|\(\?[(R\d&>]|\d\}\+"
)
_KIND = regex.compile(r"\\[sS]|\\[pP]\{[^}]*\}")
_SPACE = r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
"""White space as Rust has it."""

_NFC = normalizers.NFC()

_SHORT, _LONG = 16, 32
"""Characters of a text, with and without a pattern that splits it, before it is worth looking for a border.

It is earlier for texts whose borders are kept; see :meth:`ensemble.vocabulary.token_bytes.Vocabulary.short_text`.
"""


class UnsupportedError(Exception):
    """A part of a tokenizer whose borders are not known."""


class Stage:
    """One step that splits pieces: each match is a piece, and so is the text between two matches.

    A ``splitter`` is the tokenizer's step where it has no pattern itself: it splits before and after each character of
    the kind that the pattern looks for. UnsupportedError if the pattern looks back.
    """

    def __init__(self, pattern: str, splitter: pre_tokenizers.PreTokenizer | None = None) -> None:
        if _LOOKS_BACK.search(pattern):
            raise UnsupportedError(pattern)
        # As in Oniguruma, which the tokenizers library uses, $ is the end of a line.
        self._matches = regex.compile(pattern, regex.M)
        # Fails at each place, but only after all ways to match there; a partial match shows that one reached the end.
        self._open = regex.compile(f"(?:{pattern})(*FAIL)", regex.M)
        self._alternatives = [_Alternative(each) for each in _alternatives(pattern)]
        # Each kind of characters in the pattern, and how the tokenizers library knows it.
        self._kinds = [(self._matches, splitter)] if splitter else [*map(_kind, sorted(set(_KIND.findall(pattern))))]
        self._agreed, self._disputed = set[str](), set[str]()

    def agreed(self, text: str, start: int, end: int) -> int:
        """The place of the first character after ``start`` whose kind is disputed, or else ``end``.

        The Unicode data of the module ``regex`` and of the tokenizers library are not of the same year: to one of them
        some thousand characters are no letters, numbers or signs. The text before them is split in the same way.
        """
        characters = set(text[start:end])
        # Each character is asked for once, as all of Unicode would take a second.
        for each in characters - self._agreed - self._disputed:
            same = all(
                bool(kind.match(each)) == (len(splitter.pre_tokenize_str(each * 2)) == 2)
                for kind, splitter in self._kinds
            )
            (self._agreed if same else self._disputed).add(each)
        return min((text.index(each, start) for each in characters & self._disputed), default=end)

    def split(self, text: str, start: int, end: int) -> tuple[list[int], int, tuple[int, int] | None]:
        """The final borders of the piece from ``start``, ascending; the text after ``end`` is not known.

        Also the index up to which the text after the last of them (or after ``start``) is in one piece for sure, and
        what :meth:`run` says of this piece.
        """
        borders: list[int] = []
        place, open_at = start, -1
        for match in self._matches.finditer(text, start, end):
            first = match.start()
            if first > place:
                open_at = self._first_open(text, place, end) if open_at < place else open_at
                if open_at <= first:
                    return borders, open_at, None
                borders.append(first)
            if self._open.match(text, first, end, partial=True):
                # Without text between, the open match begins at a border.
                run = self.run(text, first, end)
                return borders, first if run is None else run[1], run
            place = match.end()
            borders.append(place)
        if place < end:
            end = self._first_open(text, place, end) if open_at < place else open_at
        return borders, end, None

    def _first_open(self, text: str, start: int, end: int) -> int:
        found = self._open.search(text, start, end, partial=True)
        return found.start() if found else end

    def run(self, text: str, start: int, end: int) -> tuple[int, int] | None:
        """The number of the alternative that reads on from ``start``, and up to where for sure; None if unknown.

        It is a run of one kind of characters. The run can be read in two parts with the same result.
        """
        for number, alternative in enumerate(self._alternatives):
            if (covered := alternative.covered(text, start, end)) is not None:
                return number, covered
            # An alternative that comes first and may still match decides otherwise.
            if alternative.may_end_before(text, start, end):
                return None
        return None


class _Alternative:
    def __init__(self, pattern: str) -> None:
        self._pattern = regex.compile(pattern, regex.M)
        self._open = regex.compile(f"(?:{pattern})(*FAIL)", regex.M)
        self._run = self._all = None
        # White space before a word is read without its last character.
        self._left = int(pattern == r"\s+(?!\S)")
        if self._left:
            self._run = regex.compile(r"\s{2,}")
        elif shape := _RUN.fullmatch(pattern):
            first, run = shape["first"] or "", shape["run"]
            many = first.endswith("*")
            # Among characters of the first kind it ends after the last one of the run's kind.
            self._all = regex.compile(first) if many else None
            self._run = regex.compile(f"{first}{run}" if many else f"{first}{run}+")

    def covered(self, text: str, start: int, end: int) -> int | None:
        """Up to where it reads, whatever follows, if it may go on at the end; None if this is not known."""
        if self._run is None:
            return None
        if self._all is not None:
            found = self._run.match(text, start, end) if self._all.fullmatch(text, start, end) else None
            return found.end() if found else None
        return end - self._left if self._run.fullmatch(text, start, end) else None

    def may_end_before(self, text: str, start: int, end: int) -> bool:
        """Whether it may match now or later, and end before ``end``."""
        if self._all is not None and self._all.fullmatch(text, start, end):
            # Where nothing of the run's kind is known yet, it ends later or does not match.
            return False
        found = self._pattern.match(text, start, end) or self._open.match(text, start, end, partial=True)
        return found is not None


class Borders:
    """Where a tokenizer's text can be cut; UnsupportedError if it has a part whose borders are not known.

    The tokenizer adds nothing before a text, and reads no special tokens in it. ``byte_level``: bytes that are not
    UTF-8 are tokenized in GPT-2's ``alphabet``; otherwise each is one token.
    """

    def __init__(self, tokenizer: Tokenizer, alphabet: dict[int, str], byte_level: bool) -> None:
        self._alphabet = alphabet
        self._byte_level = byte_level
        self._merges = Merges(tokenizer)
        added = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
        if any(token.lstrip or token.single_word for token in added):
            raise UnsupportedError("an added token that depends on the text before it")
        raw = _literals((token.content, token.rstrip) for token in added if not token.normalized)
        normalizer = tokenizer.normalizer
        normalized = _literals(
            (normalizer.normalize_str(token.content) if normalizer else token.content, token.rstrip)
            for token in added
            if token.normalized
        )
        # In the order in which a text goes through them.
        self._steps: list[_Step] = [_splitting(raw)] if raw else []
        self._steps += [_normalizing(step) for step in steps_of(component(normalizer), "normalizers")]
        self._steps += [_splitting(normalized)] if normalized else []
        words = steps_of(component(tokenizer.pre_tokenizer), "pretokenizers")
        self._steps += [step for each in words for step in _pre_tokenizing(each, alphabet)]
        # Patterns that split are slow to read, and many borders are known; merges are quick, but few borders are.
        self.patience = _SHORT if words else _LONG

    def last(self, text: str, *, every: bool = False) -> int:
        """The last known index (in characters, or 0) where a text can be cut without changing any ids.

        The text begins as a text does, or at an earlier index of this kind. ``every`` looks at the tokens of short
        pieces, too.
        """
        reading = _Reading(text)
        for step in self._steps:
            step(reading)
        place = reading.last()
        # Most texts have short pieces. Where nothing is kept, only in a long one the tokens are worth looking at.
        if every or reading.end - reading.start >= _LONG:
            piece = reading.text[reading.start : reading.end]
            reading.add(reading.start + each for each in self._merges.boundaries(piece))
            place = reading.last()
        return place

    def last_of_bytes(self, data: bytes) -> int:
        """The same for bytes that are not UTF-8; in bytes."""
        if not self._byte_level:
            return len(data)
        places = self._merges.boundaries("".join(self._alphabet[byte] for byte in data)) if len(data) >= _LONG else []
        return places[-1] if places else 0


class _Reading:
    """A text on its way through a tokenizer's steps: as converted so far, from ``start`` to ``end`` in one piece."""

    def __init__(self, text: str) -> None:
        self.text, self.start, self.end = text, 0, len(text)
        # For each position at which the text can be cut: the position in the original text.
        self._places = {place: place for place in range(len(text) + 1)}
        # Borders in the original text, each with the number of checks that it must pass.
        self._borders: list[tuple[int, int]] = []
        self._checks: list[Callable[[int], bool]] = []

    def add(self, borders: Iterable[int]) -> None:
        """Note borders of the converted text, in ascending order."""
        count = len(self._checks)
        self._borders += [(self._places[border], count) for border in borders if border in self._places]

    def last(self) -> int:
        """The last border at which the original text can be cut; 0 if no place is known."""
        return next(
            (place for place, count in reversed(self._borders) if all(check(place) for check in self._checks[:count])),
            0,
        )

    def split(self, stage: Stage) -> None:
        # A character of a disputed kind, and all after it, is taken for text that is not known.
        unknown = stage.agreed(self.text, self.start, self.end)
        borders, self.end, run = stage.split(self.text, self.start, unknown)
        self.add(borders)
        self.start = borders[-1] if borders else self.start
        if run is not None:
            text, end = self.text, unknown
            back = {original: place for place, original in self._places.items()}
            # A later cut within the run must leave two parts that the same alternative reads.
            self._checks.append(lambda place: stage.run(text, back[place], end) == run)

    def compose(self) -> None:
        """Normalize the last piece to NFC."""
        piece = self.text[self.start : self.end]
        starters = [n for n, character in enumerate(piece) if _is_starter(character)]
        # What follows may compose with the last of them.
        piece = piece[: starters[-1]] if starters else ""
        # By the library, whose Unicode data may be older or newer than Python's.
        composed = _NFC.normalize_str(piece)
        after = [n for n, character in enumerate([*composed, "."]) if _is_starter(character)]
        # Each starter begins a part that is composed by itself.
        known = zip(after, starters, strict=True) if len(after) == len(starters) else ()
        self._places = {place: self._places[self.start + n] for place, n in known}
        self.text, self.start, self.end = composed, 0, len(composed) if self._places else 0

    def spell(self, alphabet: dict[int, str]) -> None:
        """Write the last piece in characters for bytes."""
        piece, places, offset = self.text[self.start : self.end], dict[int, int](), 0
        for place, character in enumerate([*piece, ""], self.start):
            if place in self._places:
                places[offset] = self._places[place]
            offset += len(character.encode())
        self._places = places
        self.text, self.start, self.end = piece.encode().decode("latin-1").translate(alphabet), 0, offset

    def replace(self, table: dict[int, str]) -> None:
        self.text = self.text.translate(table)


_Step = Callable[[_Reading], None]


def _kind(pattern: str) -> tuple[Any, pre_tokenizers.PreTokenizer]:
    return regex.compile(pattern), pre_tokenizers.Split(Regex(pattern), "isolated")


def _splitting(pattern: str, splitter: pre_tokenizers.PreTokenizer | None = None) -> _Step:
    stage = Stage(pattern, splitter)

    def split(reading: _Reading) -> None:
        reading.split(stage)

    return split


def _replacing(old: str, new: str) -> _Step:
    if len(old) != 1 or len(new) != 1:
        raise UnsupportedError(f"{old!r} becomes {new!r}")
    return lambda reading: reading.replace({ord(old): new})


def _normalizing(step: dict[str, Any]) -> _Step:
    if step["type"] == "NFC":
        return _Reading.compose
    if step["type"] == "Replace" and "String" in step["pattern"]:
        return _replacing(step["pattern"]["String"], step["content"])
    raise UnsupportedError(step["type"])


def _pre_tokenizing(step: dict[str, Any], alphabet: dict[int, str]) -> list[_Step]:
    kind = step["type"]
    if kind == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        pattern = step["pattern"]
        return [_splitting(pattern["Regex"] if "Regex" in pattern else regex.escape(pattern["String"]))]
    if kind == "Digits":
        return [_splitting(r"\p{N}" if step["individual_digits"] else r"\p{N}+", pre_tokenizers.Digits(True))]
    if kind == "Punctuation" and step["behavior"] in ("Isolated", "Contiguous"):
        pattern = r"[\p{P}$+<=>\\^`|~]" + ("+" if step["behavior"] == "Contiguous" else "")
        return [_splitting(pattern, pre_tokenizers.Punctuation("isolated"))]
    if kind == "ByteLevel":
        words = [_splitting(_WORDS)] if step.get("use_regex", True) else []
        return [*words, lambda reading: reading.spell(alphabet)]
    if kind == "Metaspace":
        mark = step["replacement"]
        return [_replacing(" ", mark), *([_splitting(f"(?={mark})")] if step.get("split", True) else [])]
    raise UnsupportedError(kind)


def component(part: Any) -> dict[str, Any] | None:
    """A tokenizer's decoder, normalizer or pre-tokenizer in the JSON form in which it is saved."""
    state: dict[str, Any] | None = json.loads(part.__getstate__()) if part else None
    return state


def steps_of(node: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The steps of a tokenizer's component: the parts of a Sequence, or the component itself."""
    if node is None:
        return []
    return [step for part in node[key] for step in steps_of(part, key)] if node["type"] == "Sequence" else [node]


def _literals(tokens: Iterable[tuple[str, bool]]) -> str:
    """A pattern of the longest of some texts; each may take the white space after it."""
    known = dict(tokens)
    if any(known.values()) and any(content[:1].isspace() for content in known):
        raise UnsupportedError("an added token that begins with white space another one may take")
    return _trie([(content, f"{_SPACE}*" if strips else "") for content, strips in known.items() if content])


def _trie(words: list[tuple[str, str]]) -> str:
    """A pattern of the longest of some words, each with a pattern to follow it; common beginnings are written once."""
    if not words:
        return ""
    groups: dict[str, list[tuple[str, str]]] = {}
    for word, then in words:
        if word:
            groups.setdefault(word[0], []).append((word[1:], then))
    single = [then for word, then in words if not word]
    parts = [regex.escape(character) + _trie(rest) for character, rest in groups.items()]
    longer = parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
    return f"(?:{longer}|{single[0]})" if single and parts else longer if parts else single[0]


def _alternatives(pattern: str) -> Iterator[str]:
    """The parts of a pattern between the bars that are not within brackets."""
    depth, start, in_class, escaped = 0, 0, False, False
    for place, character in enumerate(pattern):
        if escaped or character == "\\":
            escaped = not escaped
        elif in_class or character == "[":
            in_class = character != "]"
        elif character == "|" and not depth:
            yield pattern[start:place]
            start = place + 1
        else:
            depth += {"(": 1, ")": -1}.get(character, 0)
    yield pattern[start:]


def _is_starter(character: str) -> bool:
    """Whether a character never changes with, nor is reordered to, the text before it in NFC; False if in doubt."""
    code = ord(character)
    if code < 0x300:
        return True
    # Vowels and ends of Hangul syllables, and scripts beyond the basic plane with vowels of two parts.
    if 0x1160 <= code < 0x1200 or 0xD7B0 <= code < 0xD800 or 0x10000 <= code < 0x1F000:
        return False
    known = unicodedata.category(character) != "Cn" and not unicodedata.combining(character)
    return known and character not in _seconds() and unicodedata.is_normalized("NFC", character)


@cache
def _seconds() -> frozenset[str]:
    """The characters of the basic plane that compose with the one before them."""
    parts = (unicodedata.decomposition(chr(code)).split() for code in range(0x300, 0x10000))
    return frozenset(chr(int(each[1], 16)) for each in parts if len(each) == 2 and each[0][0] != "<")


class Merges:
    """The tokens of pieces that grow; only for BPE some of them are known to be final.

    BPE merges neighbours, so the tokens before a boundary depend on the text before it only. The token that will hold
    the end of a growing piece begins near that end: at a place from which the rest of the piece is the beginning of a
    token. The tokens before each of these places are known now. Those that are the same for all of them are final.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        model = tokenizer.model
        self._model = model
        self._usable = isinstance(model, BPE) and not (
            model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix
        )

    @cached_property
    def _tokens(self) -> list[str]:
        """All tokens, sorted, so that those with a beginning follow each other."""
        return sorted(self._tokenizer.get_vocab(with_added_tokens=False))

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._tokens))

    @cached_property
    def _unknown(self) -> int | None:
        return self._tokenizer.token_to_id(getattr(self._model, "unk_token", None) or "")

    def boundaries(self, piece: str) -> list[int]:
        """The ascending indices where a token of a piece, as the vocabulary writes it, ends whatever follows."""
        length = len(piece)
        if not self._usable:
            return []
        # Where a whole piece that is a token is not built by merges, a short piece tells nothing about a longer one.
        whole = bool(self._model.ignore_merges)
        if whole and length <= 2 * self._longest + 1:
            return []
        first = max(0, length - self._longest)
        starts = [start for start in range(first, length) if self._begins(piece[start:])]
        common: list[tuple[int, int]] | None = None
        for start in [*starts, length]:
            tokens = self._read(piece[:start])
            if not tokens:
                return []
            common = tokens if common is None else _common(common, tokens)
            if not common:
                return []
        # Unknown characters beside each other may become one token, so none ends there for sure.
        ends = {end for index, end in common or () if index != self._unknown}
        last = length - self._longest - 1 if whole else length
        places, offset = list[int](), 0
        for place, character in enumerate(piece[:last]):
            if offset in ends:
                places.append(place)
            offset += len(character.encode())
        return places

    def _begins(self, text: str) -> bool:
        place = bisect_left(self._tokens, text)
        return place < len(self._tokens) and self._tokens[place].startswith(text)

    def _read(self, piece: str) -> list[tuple[int, int]]:
        """The tokens of a piece: each one's id, and where it ends in bytes; none if some characters have no token."""
        tokens = [(token.id, token.offsets[1]) for token in self._model.tokenize(piece)]
        return tokens if tokens and tokens[-1][1] == len(piece.encode()) else []


def _common(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    length = next((n for n, (one, other) in enumerate(zip(some, others, strict=False)) if one != other), None)
    return some[:length] if length is not None else min(some, others, key=len)
