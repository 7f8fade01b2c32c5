"""ME: the distribution of its texts against sums over all texts, and which members run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from scipy.stats import chi2
from tiny import tiny_model
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, MemberError
from ensemble.models.load import member_of
from ensemble.models.member import Member

PROMPT = "abc"
PROMPTS = ("abc", "cab", "a", "bcbcab", "ccc", "abca", "b", "cc")
DRAWS = 100_000
WEIGHTS = (0.7, 0.3)
TOKENS = 3
"""Of the longest text."""
CERTAIN = 1 - 1e-6
"""A correct method fails so rarely."""


def small_tokenizer(merges: Sequence[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of three letters, the given pieces, and one EOS; a piece is its beginning and one letter."""
    pieces = ["a", "b", "c", *merges]
    backend = Tokenizer(BPE({piece: n for n, piece in enumerate(pieces)}, [(each[:-1], each[-1]) for each in merges]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


@cache
def member(seed: int, merges: tuple[str, ...] = ("ab", "bc")) -> Member:
    tokenizer = small_tokenizer(merges)
    return member_of(tiny_model(tokenizer, seed, sharpness=1.0, eos_rate=0.2), tokenizer, name=f"m{seed}")


SETS = {
    "one tokenizer": lambda: [member(1), member(2)],
    "two tokenizers": lambda: [member(1), member(2, ("ca", "cab", "cc"))],
}


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def me(members: Sequence[Member], tables: Path, **options: object) -> Ensemble:
    return Ensemble(members, method="me", cache_dir=tables, weights=WEIGHTS[: len(members)], **options)  # type: ignore[arg-type]


class Slow:
    """The sums of the module's equation, over whole forward passes."""

    def __init__(self, members: Sequence[Member], shaped: tuple[float, float] = (1.0, 1.0)) -> None:
        self._members, (self._temperature, self._top_p) = members, shaped
        self._own = cache(self._of_member)

    def _of_member(self, number: int, ids: tuple[int, ...]) -> dict[bytes | None, float]:
        """What one member writes next, by its bytes; None for EOS."""
        own = self._members[number]
        with torch.no_grad():
            logits = own.local.model(torch.tensor([list(ids)])).logits[0, -1].double()
        eos = set(own.vocabulary.eos_ids)
        names = {n: None if n in eos else own.vocabulary.token_bytes(n) for n in range(len(own.tokenizer))}
        whole = sum(math.exp(logits[n] / self._temperature) for n in names)
        shares = {data: math.exp(logits[n] / self._temperature) / whole for n, data in names.items()}
        kept: dict[bytes | None, float] = {}
        for data, share in sorted(shares.items(), key=lambda item: -item[1]):
            if sum(kept.values()) < self._top_p:
                kept[data] = share
        return {data: share / sum(kept.values()) for data, share in kept.items()}

    def next(self, tokens: Sequence[int], text: bytes) -> dict[bytes | None, float]:
        mean: dict[bytes | None, float] = defaultdict(float)
        for number, (own, weight) in enumerate(zip(self._members, WEIGHTS, strict=True)):
            # The primary has emitted its own ids; the others read the text.
            written = tokens if number == 0 else own.vocabulary.continue_ids(text)
            for data, share in self._own(number, (*own.encode_prompt(PROMPT), *written)).items():
                mean[data] += weight * share
        return mean

    def texts(self, tokens: tuple[int, ...] = (), text: bytes = b"") -> dict[tuple[bytes, str], float]:
        """Each text of at most TOKENS tokens and why it ends, with its probability."""
        found: dict[tuple[bytes, str], float] = defaultdict(float)
        primary = self._members[0].vocabulary
        for data, share in self.next(tokens, text).items():
            if data is None:
                found[text, "eos"] += share
                continue
            longer = (*tokens, *primary.continue_ids(data))[:TOKENS]
            grown = text + b"".join(primary.token_bytes(n) or b"" for n in longer[len(tokens) :])
            rest = self.texts(longer, grown) if len(longer) < TOKENS else {(grown, "length"): 1.0}
            for end, chance in rest.items():
                found[end] += share * chance
        return found


def assert_drawn_from(expected: dict[tuple[bytes, str], float], found: Counter[tuple[bytes, str]]) -> None:
    """A chi-squared test at 1e-6; the rare texts, of which fewer than 5 are expected, count as one."""
    assert sum(expected.values()) == pytest.approx(1)
    assert set(found) <= set(expected)
    total = sum(found.values())
    likely = [text for text, share in expected.items() if share * total >= 5]
    cells = [(found[text], expected[text] * total) for text in likely]
    rare = total - sum(count for count, _ in cells), total - sum(mean for _, mean in cells)
    cells += [rare] if rare[1] >= 5 else []
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    assert len(cells) > 20
    assert statistic < chi2.ppf(CERTAIN, len(cells) - 1)


def drawn(ensemble: Ensemble, **settings: float) -> Counter[tuple[bytes, str]]:
    prompts = [ensemble.encode(PROMPT)] * DRAWS
    given = Settings(TOKENS, **{"temperature": 1.0, **settings})  # type: ignore[arg-type]
    made = ensemble.generate_each(prompts, given, Batch(10_000))
    return Counter((each.text.encode(), each.finish_reason) for _, each in made)


@pytest.mark.parametrize("members", SETS)
def test_texts_have_the_distribution_of_the_mean(members: str, tables: Path) -> None:
    own = SETS[members]()
    assert_drawn_from(Slow(own).texts(), drawn(me(own, tables)))
