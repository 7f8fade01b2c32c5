"""Prompts that join and leave a running decoder, each decoded in its own way; what one becomes, no other one changes.

Also what a text's steps say of how likely they were.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tiny import PROMPTS, member
from ways import assert_alike

from ensemble import Ensemble, Generation
from ensemble.decode.decoder import Decoder
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError

KINDS = (
    Settings(14),
    Settings(9, ("e", "\n"), alternatives=0),
    Settings(12, temperature=1.0, seed=3),
    Settings(17, (".",), temperature=0.7, top_p=0.8, seed=4, alternatives=3),
    Settings(11, alternatives=5),
    Settings(6, temperature=2.0, top_p=0.4),
)


def joined(decoder: Decoder) -> list[int]:
    """How many prompts join in each step, until all are finished."""
    counts = []
    while not decoder.done:
        waiting = len(decoder.waiting)
        decoder.step()
        counts.append(waiting - len(decoder.waiting))
    return counts


def test_of_many_waiting_prompts_several_join_at_a_time(pair: Ensemble) -> None:
    decoder, prompt = pair.decoder(Batch(8, draft=0)), pair.encode(PROMPTS[0])
    for number in range(48):
        decoder.add(number, prompt, Settings(4 + number % 9))
    first, *later = [count for count in joined(decoder) if count]
    assert first == 8 and sum(later) == 40
    # Texts have 8 tokens on average, so prompts join every fourth step, and a step frees one of the eight places.
    assert len(later) <= 40 / 3


def test_prompts_do_not_wait_for_long_texts(pair: Ensemble) -> None:
    decoder, prompt = pair.decoder(Batch(8, draft=0)), pair.encode(PROMPTS[0])
    for number in range(7):
        decoder.add(number, prompt, Settings(100))
    for number in range(7, 12):
        decoder.add(number, prompt, Settings(4))
    for _ in range(40):
        decoder.step()
    assert not decoder.waiting and len(decoder.running) == 7


def test_a_prompt_joins_at_once_if_no_more_wait_than_places_are_free(pair: Ensemble) -> None:
    decoder, prompt = pair.decoder(Batch(8, draft=0)), pair.encode(PROMPTS[0])
    for number in range(20):
        decoder.add(number, prompt, Settings(4))
    joined(decoder)
    for number in range(7):
        decoder.add(number, prompt, Settings(20))
    decoder.step()
    decoder.add(7, prompt, Settings(20))
    decoder.step()
    assert not decoder.waiting


def alone(ensemble: Ensemble, prompt: list[list[int]], settings: Settings) -> Generation:
    ((_, made),) = ensemble.generate_each([prompt], settings)
    return made


def run(decoder: Decoder, steps: Iterable[Callable[[], object]] = ()) -> dict[int, Generation]:
    """Decode to the end, doing something before each step."""
    found: dict[int, Generation] = {}
    waiting = list(steps)
    while waiting or not decoder.done:
        if waiting:
            waiting.pop(0)()
        if not decoder.done:
            found |= decoder.step()
    return found


@pytest.mark.parametrize("method", ["unite", "gac", "gac-threshold", "safe"])
def test_a_text_is_what_it_is_alone_whoever_joins_and_leaves(method: str, tables: Path) -> None:
    members = [member("bytes"), member("unigram with bytes", 1)]
    ensemble = Ensemble(members, method=method, cache_dir=tables)
    decoder = ensemble.decoder(Batch(size=6))
    texts = [(ensemble.encode(prompt), kind) for prompt in PROMPTS[:3] for kind in KINDS]
    chance = random.Random(method)
    order = list(range(len(texts)))
    chance.shuffle(order)
    leaving = set(order[3::5])

    def join(number: int) -> Callable[[], None]:
        return lambda: decoder.add(number, *texts[number])

    def leave(number: int) -> Callable[[], None]:
        return lambda: decoder.remove(number)

    steps = [join(number) for number in order]
    for number in leaving:
        steps.insert(order.index(number) + chance.randint(2, 4), leave(number))
    found = run(decoder, steps)
    assert set(order) - leaving <= set(found)
    for number, made in found.items():
        assert_alike(made, alone(ensemble, *texts[number]))


def test_a_text_that_was_drafted_goes_on_in_a_batch_and_is_drafted_again(sure: Ensemble) -> None:
    decoder = sure.decoder(Batch(size=4))
    long, short = Settings(60, alternatives=2), Settings(3, temperature=1.0)
    first, second = sure.encode("x"), sure.encode("yy")
    nothing = [lambda: None]
    steps = [lambda: decoder.add(0, first, long), *nothing, lambda: decoder.add(1, second, short)]
    found = run(decoder, steps)
    assert_alike(found[0], alone(sure, first, long))
    assert_alike(found[1], alone(sure, second, short))


def test_whoever_leaves_frees_a_place_at_once(pair: Ensemble) -> None:
    decoder = pair.decoder(Batch(size=2))
    for number in range(4):
        decoder.add(number, pair.encode("x"), Settings(30))
    decoder.step()
    assert list(decoder.running) == [0, 1]
    decoder.remove(0)
    decoder.remove(3)
    decoder.remove(99)
    assert list(decoder.running) == [1]
    decoder.step()
    assert list(decoder.running) == [1, 2]
    decoder.remove(1)
    decoder.remove(2)
    assert decoder.done


def test_a_limit_of_tokens_keeps_long_texts_waiting_and_changes_none(pair: Ensemble) -> None:
    prompts = [pair.encode(text) for text in ("x" * 40, "y" * 41, "z", "long " * 30)]
    decoder = pair.decoder(Batch(size=4, tokens=90, draft=0))
    for number, prompt in enumerate(prompts):
        decoder.add(number, prompt, Settings(9))
    together, found = 0, {}
    while not decoder.done:
        found |= dict(decoder.step())
        together = max(together, len(decoder.running))
    assert together == 2
    assert found == dict(pair.generate_each(prompts, Settings(9)))


def test_draws_are_those_of_the_seed_the_prompt_and_their_number(pair: Ensemble) -> None:
    prompt, kind = pair.encode("x"), Settings(12, temperature=1.0)
    decoder = pair.decoder()
    for number in range(6):
        decoder.add(number, prompt, kind, draw=1 + number % 3)
    found = run(decoder)
    assert [found[n] for n in range(3)] == [found[n] for n in range(3, 6)]
    assert len({made.tokens for made in found.values()}) == 3
    assert found[0] == alone(pair, prompt, kind)


def test_a_method_of_spans_has_no_decoder_to_join(tables: Path) -> None:
    members = [member("bytes"), member("unigram with bytes", 1), member("unigram", 2)]
    with pytest.raises(InputError, match="method sweetspan: it does not write tokens; use a token-level one"):
        Ensemble(members, method="sweetspan", cache_dir=tables).decoder()


# Likelihoods


@pytest.mark.parametrize("method", ["unite", "gac", "average"])
def test_likelihoods_are_those_of_the_trace(method: str, tables: Path) -> None:
    members = [member("bytes"), member("bytes" if method == "average" else "unigram with bytes", 1)]
    ensemble = Ensemble(members, method=method, cache_dir=tables)
    prompts = [ensemble.encode(prompt) for prompt in PROMPTS[:4]]
    made = dict(ensemble.generate_each(prompts, Settings(10, temperature=1.0, alternatives=4), Batch(trace=True)))
    for generation in made.values():
        assert len(generation.likelihoods) == len(generation.trace) == generation.counts.steps
        for likelihood, step in zip(generation.likelihoods, generation.trace, strict=True):
            # What the primary emits for several of the candidates has the probability of all of them.
            shares: dict[object, float] = {}
            for candidate in step.candidates:
                key = candidate.data if candidate.token is None else candidate.token
                shares[key] = shares.get(key, 0) + candidate.mean
            won = step.candidates[step.chosen]
            assert likelihood.emitted.data == step.data
            key = won.data if won.token is None else won.token
            assert likelihood.emitted.logprob == pytest.approx(math.log(shares[key]))
            # In a tie any of them may come first.
            wanted = sorted((math.log(share) for share in shares.values() if share > 0), reverse=True)
            found = [alternative.logprob for alternative in likelihood.alternatives]
            assert found == pytest.approx(wanted[: len(found)])
            assert len(found) == min(4, len(wanted))


def test_no_likelihoods_unless_asked_for(pair: Ensemble) -> None:
    assert alone(pair, pair.encode("x"), Settings(4)).likelihoods == ()
    kept = alone(pair, pair.encode("x"), Settings(4, alternatives=0)).likelihoods
    assert kept
    assert all(step.alternatives == () for step in kept)


def test_texts_that_are_decoded_together_share_the_time_of_their_steps(pair: Ensemble) -> None:
    decoder = pair.decoder(Batch(4, draft=0))
    for n, most in enumerate((2, 4, 4, 6)):
        decoder.add(n, pair.encode(PROMPTS[n]), Settings(most))
    start = time.perf_counter()
    counts = {n: generation.counts for n, generation in decoder}
    whole = time.perf_counter() - start
    assert [counts[n].steps for n in range(4)] == [2, 4, 4, 6]
    first, second, third, last = (counts[n].seconds for n in range(4))
    assert 0 < first < second == third < last
    assert first + second + third + last <= whole
