"""The judge of the decoder: the page ``../shared/unite.md`` in its plainest form.

Nothing here is fast. Every step runs every member over its whole context without a cache, and the union is made with
dictionaries of byte strings. It was written from the page alone, and it shares no code with ``ensemble``; keep it so.
What the page leaves open is decided where it comes up, in a comment that begins with "Open:".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

import regex
import torch
from tokenizers import Tokenizer

EOS = "<EOS>"
"""The one symbol that all members share. It is a str so that no byte string equals it."""

Entry = bytes | str
"""An entry of the union: a token's bytes, or `EOS`."""

Prompt = str | Sequence[str | Sequence[int]]
"""One text for all members, or one text or one list of ids for each."""

# Open: what an "unused id" is. It has a name like InternLM2's [UNUSED_TOKEN_12] or Gemma's <unused7>.
UNUSED = re.compile(r"[<\[]\|?unused[_ ]?(token)?[_-]?\d+\|?[>\]]", re.IGNORECASE)
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's byte table: printable bytes are themselves, the others are the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF = byte_alphabet()
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}


def style_of(decoder: Mapping[str, Any] | None) -> str:
    """Section "Tokens are bytes": ``byte-level``, ``sentencepiece`` or ``plain``; ValueError for any other decoder."""
    if decoder is None:
        return "plain"
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    types = {step["type"] for step in steps}
    spaces = all(
        step.get("replacement", "▁") == "▁" and step.get("pattern", {"String": "▁"}) == {"String": "▁"}
        for step in steps
    )
    if "ByteLevel" in types and types <= {"ByteLevel", "Fuse"}:
        return "byte-level"
    if (
        types & {"Metaspace", "Replace"}
        and types <= {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
        and spaces
    ):
        return "sentencepiece"
    raise ValueError(f"tokens of the decoder {json.dumps(decoder)} have no bytes that this page defines")


def without_prefix(node: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer that puts no space before the text."""
    if node is None or node["type"] == "Prepend":
        return None
    node = dict(node)
    for parts in ("normalizers", "pretokenizers"):
        if parts in node:
            node[parts] = [kept for part in node[parts] if (kept := without_prefix(part)) is not None]
    if node["type"] == "Metaspace":
        node["prepend_scheme"] = "never"
    if "add_prefix_space" in node:
        node["add_prefix_space"] = False
    return node


def text_tokenizer(spec: dict[str, Any], control: Mapping[int, str]) -> Tokenizer:
    """The tokenizer of `spec` for text that continues: no prefix space, no template, no control tokens.

    `encode_special_tokens` alone is not enough: a Unigram model finds ``</s>`` in its own vocabulary. So the control
    tokens get names that no text holds. No token is taken out, so that every id stays what it is.
    """
    names = {name: f"\ufdd0{token}\ufdd0" for token, name in control.items()}
    model = spec["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(name, name): token for name, token in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(name, name), score] for name, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [m for m in model["merges"] if not names.keys() & {m[0], m[1], "".join(m)}]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    for token in spec["added_tokens"]:
        if token["content"] in names:
            token |= {"content": names[token["content"]], "special": True}
    spec |= {key: without_prefix(spec[key]) for key in ("normalizer", "pre_tokenizer")}
    spec |= {"truncation": None, "padding": None, "post_processor": None}
    backend: Tokenizer = Tokenizer.from_str(json.dumps(spec))
    backend.encode_special_tokens = True
    return backend


def runs(text: bytes) -> Iterator[tuple[bool, str]]:
    """Maximal runs of valid UTF-8 (True) and of other bytes (False; byte NN is U+DCNN, as Python's surrogateescape)."""
    for valid, run in groupby(text.decode("utf-8", "surrogateescape"), lambda c: not "\udc80" <= c <= "\udcff"):
        yield valid, "".join(run)


class ReferenceVocabulary:
    """What the page says of one tokenizer, given the number of logits and the ids of EOS.

    `marks` are special tokens that a model alone may write all the same, as their text (docs/how-to/thinking.md).
    """

    def __init__(self, tokenizer: Any, rows: int, eos_ids: tuple[int, ...], marks: tuple[str, ...] = ()) -> None:
        self.rows = rows
        backend = tokenizer.backend_tokenizer
        spec = json.loads(backend.to_str())
        self.style = style_of(spec["decoder"])
        fallback = spec["model"].get("byte_fallback", False) or "ByteFallback" in json.dumps(spec["decoder"])
        self.fallback = self.style == "sentencepiece" and fallback
        names = {token: name for name, token in backend.get_vocab(with_added_tokens=True).items()}
        added = backend.get_added_tokens_decoder()

        # Roles. Open: the model's unknown token is a special one, whether or not it is marked as such.
        special = set(tokenizer.all_special_ids) | {token for token, a in added.items() if a.special}
        special |= {spec["model"].get("unk_id", backend.token_to_id(spec["model"].get("unk_token") or ""))}
        never = {t for t in special if names.get(t) not in marks}
        self.bytes = {t: self._bytes_of(name, t in added) for t, name in names.items() if t < rows and t not in never}
        unused = {t for t in self.bytes if UNUSED.fullmatch(names[t])}
        candidates = sorted(self.bytes.keys() - unused - {*eos_ids}, key=lambda t: (self._is_byte(names[t]), t))
        self.candidates: dict[bytes, int] = {}  # bytes -> representative
        for token in candidates:
            self.candidates.setdefault(self.bytes[token], token)
        self.candidate_ids = frozenset(self.candidates.values())

        # C_i. An added token that is an EOS is control too, even where it is not marked as special (Phi-3's </s>).
        control = {t: name for t, name in names.items() if t in special or (t in added and t in eos_ids)}
        self._byte_tokens = {byte: backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
        self._backend = text_tokenizer(spec, control)

    def _is_byte(self, name: str) -> bool:
        return self.fallback and BYTE_TOKEN.fullmatch(name) is not None

    def _bytes_of(self, name: str, added: bool) -> bytes:
        """Section "Tokens are bytes"."""
        if added or self.style == "plain":
            return name.encode()
        if self.style == "byte-level":
            # Open: a character outside the table. The tokenizers library takes the whole token as UTF-8 then.
            return bytes(BYTE_OF[c] for c in name) if all(c in BYTE_OF for c in name) else name.encode()
        return bytes([int(name[3:5], 16)]) if self._is_byte(name) else name.replace("▁", " ").encode()

    def continuation(self, text: bytes) -> list[int]:
        """C_i(text): section "Text to ids, as a continuation"."""
        ids: list[int] = []
        for valid, run in runs(text):
            if valid:
                ids += self._backend.encode(run, add_special_tokens=False).ids
                continue
            other = run.encode("utf-8", "surrogateescape")
            if self.style == "byte-level":
                ids += [token.id for token in self._backend.model.tokenize("".join(CHARACTER_OF[b] for b in other))]
            elif self.fallback:
                ids += [self._byte_tokens[byte] for byte in other]
        # Open: an unknown token in a run of valid UTF-8. It is what the tokenizer made of the run, so it stays.
        return [token for token in ids if token < self.rows]


# Building one for a real tokenizer takes a second or two, so members with the same one share it.
vocabulary_of = lru_cache(maxsize=64)(ReferenceVocabulary)


class ReferenceMember:
    """One model and its tokenizer, as the page sees them.

    Args:
        model: a causal language model of transformers, or anything that is called and answers like one.
        tokenizer: a fast tokenizer of transformers; it must not change afterwards.
        prompt_ids: how a prompt becomes ids (a chat template, say); None for the tokenizer's default encoding.
        marks: see `ReferenceVocabulary`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prompt_ids: Callable[[str], Sequence[int]] | None = None,
        marks: tuple[str, ...] = (),
    ) -> None:
        self.model, self.tokenizer, self._prompt_ids = model, tokenizer, prompt_ids
        rows = self.logits([0]).shape[-1]
        ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        ends = [*ends] if isinstance(ends, (list, tuple)) else [ends]
        self.eos_ids = sorted({e for e in (*ends, tokenizer.eos_token_id) if e is not None and e < rows})
        # Open: which of several ids stands for EOS where ids are compared. The lowest.
        self.eos_id = self.eos_ids[0] if self.eos_ids else None
        self.vocabulary = vocabulary_of(tokenizer, rows, tuple(self.eos_ids), marks)
        self.candidates = self.vocabulary.candidates
        self._rows_of_candidates = torch.tensor(list(self.candidates.values()))

    def token_bytes(self, token: int) -> bytes:
        """bytes_i(t); KeyError for an id that is no text: special, or without a token."""
        return self.vocabulary.bytes[token]

    def continuation(self, text: bytes) -> list[int]:
        """C_i(text)."""
        return self.vocabulary.continuation(text)

    def prompt(self, prompt: str | Sequence[int]) -> list[int]:
        """prompt_i; a list of ids is taken as it is. ValueError where there are none."""
        encode = self._prompt_ids or (lambda text: self.tokenizer(text)["input_ids"])
        ids = list(encode(prompt) if isinstance(prompt, str) else prompt)
        if not ids:  # Open: there is nothing to predict from
            raise ValueError(f"the prompt {prompt!r} has no ids")
        return ids

    def logits(self, context: Sequence[int]) -> torch.Tensor:
        """The next-token logits after the whole context: float32, or float64 where the model runs in it."""
        with torch.inference_mode():
            last: torch.Tensor = self.model(input_ids=torch.tensor([list(context)]), use_cache=False).logits[0, -1]
        return last if last.dtype == torch.float64 else last.float()

    def z(self, context: Sequence[int], may: Callable[[Entry], bool] | None = None) -> torch.Tensor:
        """Step 1: the logits, non-candidates at minus infinity, EOS at the largest of its ids' logits.

        A grammar leaves only the candidates that it allows; all of them if it allows none.
        """
        raw = self.logits(context)
        z = torch.full_like(raw, -math.inf)
        z[self._rows_of_candidates] = raw[self._rows_of_candidates]
        if self.eos_id is not None:
            z[self.eos_id] = raw[self.eos_ids].max()
        if may is None:
            return z
        wanted = (z > -math.inf).nonzero().flatten().tolist()
        if refused := [token for token in wanted if not may(self.entry(token))]:
            left = z.index_fill(0, torch.tensor(refused), -math.inf)
            return left if len(refused) < len(wanted) else z
        return z

    def entry(self, token: int) -> Entry:
        """The entry of a candidate id."""
        return EOS if token == self.eos_id else self.token_bytes(token)

    def top(self, z: torch.Tensor, k: int) -> list[Entry]:
        """Step 2: the entries of the k largest logits, equal ones in the order of their ids."""
        least = z.topk(min(k, len(z))).values[-1]
        wanted = ((z >= least) & (z > -math.inf)).nonzero().flatten().tolist()
        best = sorted(wanted, key=lambda token: (-z[token].item(), token))[:k]
        return [self.entry(t) for t in best]

    def id_of(self, entry: Entry) -> int | None:
        """Step 4: id_i(w), or None where the vocabulary cannot express it."""
        if isinstance(entry, str):
            return self.eos_id
        if entry in self.candidates:
            return self.candidates[entry]
        first = self.continuation(entry)[:1]
        # Open: a first id that is no candidate. Its logit is minus infinity (step 1), so it expresses nothing.
        return first[0] if first and first[0] in self.vocabulary.candidate_ids else None


@dataclass(frozen=True)
class Step:
    """What one step saw: the union, and for each of its entries every member's id and P_i, and P."""

    union: list[Entry]
    ids: list[dict[Entry, int | None]]  # for each member
    member_p: list[dict[Entry, float]]  # for each member
    p: dict[Entry, float]
    log_p: dict[Entry, float]
    winner: Entry  # step 7, of the entries that the primary can express
    emitted: int  # id_1(winner)
    margin: float  # P of the winner less the best P of an entry that would emit another id; inf where there is none
    cut: float  # the smallest distance, over the members, between the logits on both sides of the top k


@dataclass(frozen=True)
class ReferenceGeneration:
    """What `generate` made; `ids` are all that were emitted, also those of a stop string, which `text` lacks."""

    ids: list[int]
    text: str
    finish_reason: str  # eos, stop or length
    steps: list[Step]

    @property
    def margin(self) -> float:
        """The smallest distance that decided anything: below about 1e-9 in float64 (1e-4 in float32) it is a tie."""
        return min((min(step.margin, step.cut) for step in self.steps), default=math.inf)


def anything(entry: Entry) -> bool:  # one of two functions
    """What is allowed without a grammar."""
    return True


def step(
    members: Sequence[ReferenceMember],
    contexts: Sequence[Sequence[int]],
    k: int = 10,
    weights: Sequence[float] | None = None,
    also: Sequence[Entry] = (),
    may: Callable[[Entry], bool] = anything,
) -> Step:
    """Section "One step", 1 to 7; `also` are entries that the union holds besides, `may` is what a grammar allows."""
    given = [1.0] * len(members) if weights is None else list(weights)
    a = torch.tensor(given, dtype=torch.float64) / sum(given)
    zs = [member.z(context, may) for member, context in zip(members, contexts, strict=True)]  # 1
    tops = [member.top(z, k) for member, z in zip(members, zs, strict=True)]  # 2
    union = list(dict.fromkeys([entry for top in tops for entry in top] + list(also)))  # 3
    ids = [[member.id_of(entry) for entry in union] for member in members]  # 4
    on_union = [
        torch.stack([z.new_tensor(-math.inf) if token is None else z[token] for token in own])
        for z, own in zip(zs, ids, strict=True)
    ]
    member_p = torch.stack([values.softmax(0).double() for values in on_union])  # 5
    p = a @ member_p  # 6
    order = sorted(  # 7
        (
            (-p[n].item(), -member_p[0, n].item(), token, n)
            for n, token in enumerate(ids[0])
            if token is not None and may(members[0].entry(token))
        )
    )
    winner, rivals = order[0], [other for other in order if other[2] != order[0][2]]
    ranked = [z.topk(min(k + 1, len(z))).values for z in zs]
    # The same P in the logarithm, for entries so unlikely that P itself is rounded to 0.
    log_p = (a.log()[:, None] + torch.stack([values.log_softmax(0).double() for values in on_union])).logsumexp(0)
    return Step(
        union=union,
        ids=[dict(zip(union, own, strict=True)) for own in ids],
        member_p=[dict(zip(union, row, strict=True)) for row in member_p.tolist()],
        p=dict(zip(union, p.tolist(), strict=True)),
        log_p=dict(zip(union, log_p.tolist(), strict=True)),
        winner=union[winner[3]],
        emitted=winner[2],
        margin=rivals[0][0] - winner[0] if rivals else math.inf,
        cut=min(((z[k - 1] - z[k]).item() for z in ranked if len(z) > k and z[k] > -math.inf), default=math.inf),
    )


@dataclass(frozen=True)
class Expression:
    """A regular expression over ASCII, followed by trying: `regex` tells whether a text begins a match."""

    pattern: str

    def may(self, text: bytes, entry: Entry) -> bool:
        """Whether a text with an entry is the beginning of a match; with EOS, a match."""
        whole = text if isinstance(entry, str) else text + entry
        if not whole.isascii():
            return False
        return regex.fullmatch(self.pattern, whole.decode(), partial=not isinstance(entry, str)) is not None

    def is_complete(self, text: bytes) -> bool:
        """Whether a text is a match, and no longer text begins one."""
        return self.may(text, EOS) and not any(self.may(text, bytes([byte])) for byte in range(128))


def prompts_of(members: Sequence[ReferenceMember], prompt: Prompt) -> list[list[int]]:
    """prompt_i for each member."""
    own = [prompt] * len(members) if isinstance(prompt, str) else prompt
    return [member.prompt(text) for member, text in zip(members, own, strict=True)]


def contexts_of(
    members: Sequence[ReferenceMember], prompts: Sequence[list[int]], emitted: Sequence[int]
) -> list[list[int]]:
    """Section "The contexts": the primary keeps what it emitted, the others read the text."""
    text = b"".join(members[0].token_bytes(token) for token in emitted)
    others = [ids + member.continuation(text) for member, ids in zip(members[1:], prompts[1:], strict=True)]
    return [prompts[0] + list(emitted), *others]


def generate(
    members: Sequence[ReferenceMember],
    prompt: Prompt,
    *,
    k: int = 10,
    weights: Sequence[float] | None = None,
    max_new_tokens: int,
    stop: Sequence[str] = (),
    grammar: Expression | None = None,
) -> ReferenceGeneration:
    """Greedy UNITE over one prompt; the first member is the primary."""
    if "" in stop:
        raise ValueError("every text holds the empty stop string")
    prompts = prompts_of(members, prompt)
    ids: list[int] = []
    steps: list[Step] = []
    text, reason = b"", "length"
    while len(ids) < max_new_tokens:
        may = partial(grammar.may, text) if grammar else anything
        steps.append(step(members, contexts_of(members, prompts, ids), k, weights, may=may))
        if steps[-1].winner == EOS:  # 8
            reason = "eos"
            break
        ids.append(steps[-1].emitted)
        text += members[0].token_bytes(ids[-1])
        # Open: where several stop strings are there, the text is cut before the earliest.
        found = [at for s in stop if (at := text.find(s.encode())) >= 0]
        if found:
            text, reason = text[: min(found)], "stop"
            break
        if grammar and grammar.is_complete(text):
            reason = "eos"
            break
    return ReferenceGeneration(ids, text.decode("utf-8", "replace"), reason, steps)


def score(
    members: Sequence[ReferenceMember],
    prompt: Prompt,
    option: str | bytes,
    k: int = 10,
    weights: Sequence[float] | None = None,
) -> float:
    """Section "Scoring an option": the natural logarithm of the option's probability after the prompt."""
    prompts = prompts_of(members, prompt)
    ids = members[0].continuation(option.encode() if isinstance(option, str) else option)
    total = 0.0
    for t, token in enumerate(ids):
        wanted = members[0].token_bytes(token)
        total += step(members, contexts_of(members, prompts, ids[:t]), k, weights, also=[wanted]).log_p[wanted]
    return total
