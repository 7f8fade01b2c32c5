"""The strategy `consensus`: of texts that cannot be counted, the one that agrees most with the others."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from pools import Place
from sacrebleu.metrics.chrf import CHRF

from advisor.records import Answer, Profile
from advisor.run.folder import Run
from advisor.strategies.consensus import Consensus
from advisor.strategies.replay import replay_all
from advisor.strategies.schema import strategy_json, strategy_of
from advisor.strategies.strategy import AnsweredSplit, TrainingData
from advisor.tasks.task import Example, Task

pytest_plugins = ["pools"]

WORDS = [
    "river",
    "stone",
    "cloud",
    "garden",
    "window",
    "letter",
    "summer",
    "winter",
    "bridge",
    "harbour",
    "forest",
    "candle",
    "silver",
    "market",
]
MEMBERS = ("a", "b", "c", "d")


def sentences(seed: int, n: int, share: float, references: Sequence[str]) -> list[str]:
    """The references with some of their words replaced."""
    chance = random.Random(seed)
    return [
        " ".join(chance.choice(WORDS) if chance.random() < share else word for word in references[number].split())
        for number in range(n)
    ]


def references_of(n: int) -> list[str]:
    chance = random.Random(7)
    return [" ".join(chance.choices(WORDS, k=12)) for _ in range(n)]


def split_of(n: int = 60, shares: Sequence[float] = (0.2, 0.25, 0.25, 0.3)) -> AnsweredSplit:
    """Texts of four models whose errors are independent."""
    references = references_of(n)
    examples = tuple(Example(str(k), "q", "q", references[k]) for k in range(n))
    chrf = CHRF()
    profiles = {
        name: Profile(
            name,
            tuple(
                Answer(str(k), text, text, chrf.sentence_score(text, [references[k]]).score / 100, "eos")
                for k, text in enumerate(sentences(seed, n, share, references))
            ),
        )
        for seed, (name, share) in enumerate(zip(MEMBERS, shares, strict=True))
    }
    return AnsweredSplit(Task("translation", "chrf", "dev", examples, (), 1, 0, 0, None, (), ""), profiles)


def learn(split: AnsweredSplit, *, can_vote: bool = False) -> list[Consensus]:
    ranked = sorted(split.profiles.values(), key=lambda each: -each.accuracy)
    names = tuple(each.model for each in ranked)
    return list(Consensus.learn(TrainingData(split, names[0], names, names, 5, can_vote)))


def slow_choice(texts: Sequence[str], agreement: float) -> tuple[int, int]:
    """Which text is taken, and how many are asked for."""
    chrf = CHRF()
    if chrf.sentence_score(texts[0], [texts[1]]).score / 100 >= agreement:
        return 0, 2
    means = [sum(chrf.sentence_score(text, [other]).score for other in texts) for text in texts]
    return max(range(len(texts)), key=lambda n: (round(means[n], 7), -n)), len(texts)


@pytest.mark.parametrize("agreement", [0.0, 0.6, 0.75, 1.0])
def test_it_takes_the_text_that_is_most_like_the_others(agreement: float) -> None:
    split = split_of()
    found = replay_all(Consensus(MEMBERS, "chrf", agreement), split)
    texts = list(zip(*([each.text or "" for each in split.profiles[name].answers] for name in MEMBERS), strict=True))
    expected = [slow_choice(own, agreement) for own in texts]
    assert [MEMBERS.index(name) for name, _ in found.takes] == [taken for taken, _ in expected]
    assert found.calls_per_question == pytest.approx(sum(calls for _, calls in expected) / len(texts))


def test_it_gains_at_few_calls_on_questions_that_taught_nothing() -> None:
    split = split_of(200)
    (strategy,) = learn(split.part(range(100)))
    fresh = split.part(range(100, 200))
    found = replay_all(strategy, fresh)
    best = max(each.accuracy for each in fresh.profiles.values())
    assert found.profile.accuracy > best + 1
    assert found.calls_per_question < 3


def test_a_model_that_failed_is_left_out() -> None:
    split = split_of(10)
    answers = tuple(replace(each, text=None, error="no answer", score=0.0) for each in split.profiles["a"].answers)
    failed = replace(split, profiles={**split.profiles, "a": Profile("a", answers)})
    found = replay_all(Consensus(MEMBERS, "chrf", 0.5), failed)
    assert all(name != "a" for name, _ in found.takes)


@pytest.mark.parametrize("why", ["answers can be counted", "a text is missing", "two models"])
def test_it_is_not_offered_without_several_texts(why: str) -> None:
    split = split_of(20)
    if why == "a text is missing":
        answers = split.profiles["b"].answers
        short = Profile("b", (replace(answers[0], text=None), *answers[1:]))
        split = replace(split, profiles={**split.profiles, "b": short})
    elif why == "two models":
        split = replace(split, profiles={name: split.profiles[name] for name in "ab"})
    assert learn(split, can_vote=why == "answers can be counted") == []


def test_its_file_is_read_back_and_a_metric_that_compares_no_texts_is_refused() -> None:
    strategy = Consensus(MEMBERS, "chrf", 0.625)
    values = strategy_json(strategy)
    assert strategy_of(values, "strategy.json", "export it again") == strategy
    with pytest.raises(Exception, match=r"strategy\.json: metric should be one of chrf, bleu; export it again"):
        strategy_of({**values, "metric": "number"}, "strategy.json", "export it again")


def test_logs_of_translations_are_advised_by_it(place: Place) -> None:
    n = 120
    references = references_of(n)
    rows = [
        {"id": str(k), "question": f"q{k}", "reference": references[k], "model": name, "response": text}
        for seed, name in enumerate(MEMBERS)
        for k, text in enumerate(sentences(seed, n, 0.25, references))
    ]
    place.write("logs.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert place.advisor("select", "--logs", "logs.jsonl", "--metric", "chrf", "--out", "run").status == 0
    advice = Run.open(place.folder / "run").result.advice.recommendation
    assert advice is not None and advice.strategy == "consensus"
    assert "take the text that is most like the others" in advice.text
