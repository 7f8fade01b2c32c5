"""ME: the distribution of its texts against sums over all texts, and which members run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from tiny import save_member, tiny_model
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from ensemble import Ensemble, Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError, MemberError
from ensemble.methods import check_distributed
from ensemble.models.load import member_of
from ensemble.models.member import Member
from ensemble.step.token_method import Mixture

PROMPT = "abc"
PROMPTS = ("abc", "cab", "a", "bcbcab", "ccc", "abca", "b", "cc")
DRAWS = 100_000
WEIGHTS = (0.7, 0.3)
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
    return member_of(tiny_model(tokenizer, seed, sharpness=1.0, eos_rate=0.001), tokenizer, name=f"m{seed}")


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

    def texts(self, most: int, tokens: tuple[int, ...] = (), text: bytes = b"") -> dict[tuple[bytes, str], float]:
        """Each text of at most so many tokens and why it ends, with its probability."""
        found: dict[tuple[bytes, str], float] = defaultdict(float)
        primary = self._members[0].vocabulary
        for data, share in self.next(tokens, text).items():
            if data is None:
                found[text, "eos"] += share
                continue
            longer = (*tokens, *primary.continue_ids(data))[:most]
            grown = text + b"".join(primary.token_bytes(n) or b"" for n in longer[len(tokens) :])
            rest = self.texts(most, longer, grown) if len(longer) < most else {(grown, "length"): 1.0}
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


def drawn(ensemble: Ensemble, tokens: int, count: int = DRAWS, **settings: float) -> Counter[tuple[bytes, str]]:
    prompts = [ensemble.encode(PROMPT)] * count
    given = Settings(tokens, **{"temperature": 1.0, **settings})  # type: ignore[arg-type]
    made = ensemble.generate_each(prompts, given, Batch(10_000))
    return Counter((each.text.encode(), each.finish_reason) for _, each in made)


# Three tokens, because a member may have missed several of them only then.
@pytest.mark.parametrize(
    ("members", "tokens", "draws"),
    [
        ("one tokenizer", 2, DRAWS // 4),
        ("two tokenizers", 3, DRAWS // 4),
        pytest.param("two tokenizers", 3, DRAWS, marks=pytest.mark.second_lane),
    ],
)
def test_texts_have_the_distribution_of_the_mean(members: str, tokens: int, draws: int, tables: Path) -> None:
    own = SETS[members]()
    assert_drawn_from(Slow(own).texts(tokens), drawn(me(own, tables), tokens, draws))


def test_temperature_and_top_p_change_each_member_before_the_mean(tables: Path) -> None:
    own, shaped = SETS["two tokenizers"](), {"temperature": 1.5, "top_p": 0.8}
    expected = Slow(own, (1.5, 0.8)).texts(2)
    assert_drawn_from(expected, drawn(me(own, tables), 2, 20_000, **shaped))


def test_a_wrong_distribution_is_found(tables: Path) -> None:
    own = SETS["two tokenizers"]()
    with pytest.raises(AssertionError):
        assert_drawn_from(Slow(own).texts(2), drawn(me(own, tables), 2, 20_000, temperature=1.1))


@pytest.mark.parametrize("members", SETS)
def test_a_text_is_the_same_in_a_batch_alone_streamed_traced_and_with_log_probabilities(
    members: str, tables: Path
) -> None:
    ensemble = me(SETS[members](), tables)
    given = {"temperature": 1.0, "max_new_tokens": 12, "seed": 4}
    made = ensemble.generate(PROMPTS, **given)
    texts = [each.text for each in made]
    assert len(set(texts)) > 4
    assert [each.text for each in ensemble.generate(PROMPTS, batch_size=3, **given)] == texts
    assert [ensemble.generate([prompt], **given)[0].text for prompt in PROMPTS] == texts
    assert ["".join(ensemble.stream(prompt, **given)) for prompt in PROMPTS] == texts
    assert [each.text for each in ensemble.generate(PROMPTS, trace=True, **given)] == texts
    told = Settings(12, temperature=1.0, seed=4, alternatives=2)
    prompts = [ensemble.encode(prompt) for prompt in PROMPTS]
    assert [each.text for _, each in sorted(ensemble.generate_each(prompts, told))] == texts


def test_log_probabilities_are_those_of_the_mean(tables: Path) -> None:
    own = SETS["two tokenizers"]()
    ensemble = me(own, tables)
    told = Settings(1, temperature=1.0, alternatives=9)
    ((_, made),) = ensemble.generate_each([ensemble.encode(PROMPT)], told)
    (step,) = made.likelihoods
    found = {each.data: math.exp(each.logprob) for each in step.alternatives}
    assert found == pytest.approx(dict(Slow(own).next((), b"")), abs=1e-6)


def test_options_have_the_scores_of_the_mean(tables: Path) -> None:
    own, options = SETS["two tokenizers"](), ["a", "bc", "cab"]
    wanted = Ensemble(own, method="gac", weights=WEIGHTS, cache_dir=tables).score(PROMPT, options)
    assert me(own, tables).score(PROMPT, options) == wanted


@contextmanager
def passes(members: Sequence[Member]) -> Iterator[list[list[tuple[int, ...]]]]:
    """The shapes of what each member reads, pass by pass."""
    shapes: list[list[tuple[int, ...]]] = [[] for _ in members]
    hooks = [
        own.local.model.register_forward_pre_hook(
            lambda _, __, given, read=read: read.append(tuple(given["input_ids"].shape)), with_kwargs=True
        )
        for own, read in zip(members, shapes, strict=True)
    ]
    yield shapes
    for hook in hooks:
        hook.remove()


def test_a_step_of_one_text_is_one_pass_of_one_member(tables: Path) -> None:
    own = SETS["two tokenizers"]()
    with passes(own) as shapes:
        (made,) = me(own, tables).generate([PROMPT], temperature=1.0, max_new_tokens=40, seed=10)
    counts = [len(each) for each in shapes]
    assert sum(counts) == made.counts.steps > 10
    assert min(counts) > 1
    # What a member missed it reads in one pass, and little is read again.
    assert all(sum(shape[1] for shape in each) < 2 * made.counts.steps for each in shapes)


def test_a_member_reads_only_the_prompts_of_texts_that_draw_it(tables: Path) -> None:
    own = SETS["one tokenizer"]()
    ensemble = Ensemble(own, method="me", weights=[0.9, 0.1], cache_dir=tables)
    with passes(own) as shapes:
        ensemble.generate(PROMPTS, temperature=1.0, max_new_tokens=3, seed=5)
    assert 0 < max(rows for rows, _ in shapes[1]) < len(PROMPTS)


def test_a_member_of_weight_0_never_runs(tables: Path) -> None:
    own = SETS["two tokenizers"]()
    ensemble = Ensemble(own, method="me", weights=[0, 1], cache_dir=tables)
    with passes(own) as shapes:
        ensemble.generate(PROMPTS, temperature=1.0, max_new_tokens=9)
    assert not shapes[0]


def test_a_member_that_fails_is_named_and_stops_no_text_that_does_not_draw_it(tables: Path) -> None:
    own = SETS["one tokenizer"]()
    ensemble = Ensemble(own, method="me", weights=[0.8, 0.2], cache_dir=tables)
    prompts, given = [ensemble.encode(prompt) for prompt in PROMPTS], Settings(3, temperature=1.0, seed=5)
    wanted = dict(ensemble.generate_each(prompts, given))
    found: dict[int, Generation] = {}

    def spoil(_: object, __: object, output: Any) -> None:
        output.logits.fill_(math.nan)

    hook = own[1].local.model.register_forward_hook(spoil)
    with pytest.raises(MemberError, match=r"^m2: its logits are not numbers \(NaN\) at step \d"):
        for number, made in ensemble.generate_each(prompts, given):
            found[number] = made
    hook.remove()
    assert found == {number: wanted[number] for number in found} != {}


def test_greedy_decoding_is_refused_unless_a_temperature_is_set(tables: Path) -> None:
    own = SETS["two tokenizers"]()
    with pytest.raises(InputError, match="no greedy decoding; give a temperature above 0"):
        me(own, tables).generate(PROMPTS)
    drawing = me(own, tables, temperature=1.0)
    assert drawing.generate(PROMPTS, max_new_tokens=9) == me(own, tables).generate(
        PROMPTS, max_new_tokens=9, temperature=1.0
    )
    assert drawing.generate(PROMPTS, max_new_tokens=9, temperature=0.4) != drawing.generate(PROMPTS, max_new_tokens=9)


@pytest.mark.parametrize("temperature", [-1.0, 1e400, True])
def test_an_option_out_of_range_is_refused(temperature: float, tables: Path) -> None:
    with pytest.raises(InputError, match="temperature"):
        me(SETS["one tokenizer"](), tables, temperature=temperature)


def test_a_saved_ensemble_keeps_its_temperature(tables: Path, tmp_path: Path) -> None:
    folders = [save_member(tmp_path / own.name, own.local.model, own.tokenizer) for own in SETS["one tokenizer"]()]
    ensemble = Ensemble.from_pretrained(folders, method="me", temperature=1.0, device="cpu", cache_dir=tables)
    ensemble.save_pretrained(tmp_path / "saved")
    again = Ensemble.from_pretrained(tmp_path / "saved", device="cpu", cache_dir=tables)
    assert again.generate(PROMPTS, max_new_tokens=5) == ensemble.generate(PROMPTS, max_new_tokens=5)


def test_members_behind_servers_are_refused() -> None:
    with pytest.raises(InputError, match="method me: it needs the logits of all tokens"):
        check_distributed("me")


def test_one_random_number_draws_a_member_and_a_uniform_place() -> None:
    mixture = Mixture((0.25, 0.0, 0.75), (), 0.0)
    found = [mixture.draw(n / 4000) for n in range(4000)]
    assert Counter(member for member, _ in found) == {0: 1000, 2: 3000}
    places = [place for member, place in found if member == 2]
    assert places == pytest.approx([n / 3000 for n in range(3000)])
    # The weights' sum may be rounded below 1.
    assert Mixture((0.5, 0.4), (), 0.0).draw(0.95)[0] == 1
    assert Mixture((0.5, 0.5), (), 0.0).draw(1 - 2**-53)[1] < 1
