"""The zoo: small models, all pairs and triples of which decode together: ``python -m benchmarks.studies.zoo``.

The models are the demo's, and more of the same kind from other seeds, tokenizers and lengths of training. The latter
are trained by the demo's own script and kept in the user's cache folder. Training takes about ten minutes a model on
one core, and decoding a set minutes, so what came out is kept in results/zoo.json, small enough for a repository:

    model   a hexadecimal digit a question: 0 right, f no answer, else which of the wrong answers to that question it is
            (two models with the same digit gave the same answer); and two digits for the length of the response
    set     a bit a question, 1 where it was right, four of them to a hexadecimal digit

Sets decode in the order of their members' accuracy on the demo's dev questions, of which none is among these.

With --weights likelihood the sets inside the rules decode with these weights, of the demo's models unless others are
named, and results/zoo_weights.json has the weights of each set and its bits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.advice.rules import select
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import EQUAL, LIKELIHOOD, RunConfig
from advisor.options.new_run import SelectOptions
from advisor.progress import Progress
from advisor.records import Answer, Limits, Profile
from advisor.statistics import scores
from advisor.tasks import load_task
from benchmarks._measure import RESULTS, progress
from benchmarks.studies.demo_models import DEMO, RECIPES, TrainingRecipe, make_models
from ensemble.common.files import default_cache_dir
from ensemble.models.spec import Checkpoint, ModelSpec

EXTRA = (
    TrainingRecipe("zoo-llama", "llama", "unigram", 240, "terse", 1500, 11),
    TrainingRecipe("zoo-mistral", "mistral", "byte_level", 480, "terse", 1500, 12),
    TrainingRecipe("zoo-neox", "gpt_neox", "sentencepiece_bpe", 400, "terse", 1300, 13),
    TrainingRecipe("zoo-olmo", "olmo2", "unigram", 240, "terse", 1300, 14),
)
"""What the zoo has besides the demo's models; the numbers of steps were chosen once, before any of it was measured."""
KEPT = RESULTS / "zoo.json"
KEPT_WEIGHTS = RESULTS / "zoo_weights.json"
_WRONG, _NONE = 1, 15
_LONGEST = 255
_ROWS = 256
"""Questions at a time: the models are so small that a step of many rows takes hardly longer than one of few."""


def main(given: Sequence[str] | None = None) -> int:
    """Train what is missing, decode all sets, and keep what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", nargs="+", metavar="NAME", help="these of the zoo; all without")
    parser.add_argument("--questions", type=int, default=500, help="how many of the demo's 1,000")
    parser.add_argument("--largest", type=int, choices=(2, 3), default=3, help="pairs, or triples too")
    parser.add_argument("--weights", choices=(EQUAL, LIKELIHOOD), default=EQUAL, help="of the sets' members")
    options = parser.parse_args(given)
    default = [recipe.name for recipe in (*RECIPES, *(EXTRA if options.weights == EQUAL else ()))]
    wanted = folders(options.models or default)
    cache_dir, limits = default_cache_dir() / "benchmarks", (options.questions, options.largest)
    if options.weights == EQUAL:
        keep(decode(wanted, cache_dir, *limits)[0])
        return 0
    outcomes, weights = decode(wanted, cache_dir, *limits, weights=options.weights)
    found = {
        names: {"weights": weights[tuple(names.split(" "))], "right": right} for names, right in outcomes.bits.items()
    }
    kept = {"signature": outcomes.signature, "questions": outcomes.questions, "sets": found}
    KEPT_WEIGHTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


def folders(names: Sequence[str]) -> dict[str, Path]:
    """Each model's folder by name; those that are missing are trained before."""
    own = {recipe.name: default_cache_dir() / "zoo" / recipe.name for recipe in EXTRA if recipe.name in names}
    missing = [each for each in EXTRA if each.name in own and not (own[each.name] / "training.json").is_file()]
    if missing:
        make_models(missing, default_cache_dir() / "zoo")
    known = {recipe.name: DEMO / "models" / recipe.name for recipe in RECIPES} | own
    return {name: known[name] for name in names}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What came out, question by question.

    Attributes:
        signature: Of the questions.
        models: In order of accuracy on other questions, those of the sets' order.
        profiles: Each model's answers, by name; of a text only the length is known, of an answer which ones are equal.
        sets: Whether a set was right, by its members in order.
    """

    signature: str
    models: tuple[str, ...]
    profiles: Mapping[str, Profile]
    sets: Mapping[tuple[str, ...], NDArray[np.bool_]]

    @property
    def questions(self) -> int:
        """How many there are."""
        return len(next(iter(self.profiles.values())).answers)

    @property
    def bits(self) -> dict[str, str]:
        """Whether each set was right, as the file has it."""
        return {" ".join(models): np.packbits(right).tobytes().hex() for models, right in self.sets.items()}

    def as_dict(self) -> dict[str, Any]:
        """As JSON has them."""
        digits = dict(zip(self.models, answer_digits([self.profiles[name] for name in self.models]), strict=True))
        return {
            "signature": self.signature,
            "questions": self.questions,
            "models": {name: _packed_model(self.profiles[name], each) for name, each in digits.items()},
            "sets": self.bits,
        }


def answer_digits(profiles: Sequence[Profile]) -> list[str]:
    """The answers of models to the same questions as digits, a text for each model.

    Wrong answers are numbered question by question as they are met.
    """
    known: dict[tuple[int, str], int] = {}
    met = [0] * len(profiles[0].answers)

    def digit(question: int, answer: Answer) -> int:
        if answer.score == 1:
            return 0
        if answer.extracted is None:
            return _NONE
        if (question, answer.extracted) not in known:
            met[question] += 1
            known[question, answer.extracted] = met[question]
        return known[question, answer.extracted]

    return ["".join(f"{digit(n, answer):x}" for n, answer in enumerate(profile.answers)) for profile in profiles]


def answer_of(digit: str) -> str | None:
    """What stands for the answer that a digit tells; None for none."""
    return None if int(digit, 16) == _NONE else digit


def read(path: Path = KEPT) -> Outcomes:
    """Read outcomes that were kept."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    profiles = {name: _unpacked_model(name, one) for name, one in kept["models"].items()}
    bits = {
        tuple(names.split(" ")): np.unpackbits(np.frombuffer(bytes.fromhex(packed), dtype=np.uint8))
        for names, packed in kept["sets"].items()
    }
    sets = {models: right[: kept["questions"]].astype(bool) for models, right in bits.items()}
    return Outcomes(kept["signature"], tuple(profiles), profiles, sets)


def keep(outcomes: Outcomes, path: Path = KEPT) -> None:
    """Write outcomes, a line for each model and set, so that a change of one is a change of a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcomes.as_dict(), indent=1) + "\n", encoding="utf-8")


def decode(
    folders: Mapping[str, Path],
    cache_dir: Path,
    questions: int | None = None,
    largest: int = 3,
    weights: str = EQUAL,
) -> tuple[Outcomes, dict[tuple[str, ...], tuple[float, ...] | None]]:
    """Have all models, and all sets of them, answer the demo's test questions; and the weights of the sets.

    Args:
        folders: The models by name.
        cache_dir: Where responses are looked up and kept, so that an interruption loses nothing.
        questions: Only so many of them.
        largest: Members of the largest sets, at least 2.
        weights: As ``--weights``; other ones than equal are for the sets inside the rules only.
    """
    dev, test = load_task("word_problems", split="dev"), load_task("word_problems", split="test")
    if questions is not None:
        dev, test = (replace(task, examples=task.examples[:questions]) for task in (dev, test))
    # Weights are stored in half precision; processors compute faster, and the same everywhere, in float32.
    candidates = tuple(ModelSpec(Checkpoint(str(folder)), name, dtype="float32") for name, folder in folders.items())
    plan = RunConfig(
        options=SelectOptions(batch_size=_ROWS, weights=weights),
        candidates=candidates,
        dev=dev,
        held_out=None,
        cache_dir=cache_dir,
        command="python -m benchmarks.studies.zoo",
    )
    with ResponseCache(cache_dir) as store:
        profiler = Profiler(plan, store, Progress(quiet=True))
        on_dev = profiler.alone(list(folders), dev)
        ordered = _by_accuracy(list(on_dev.values()))
        alone = profiler.alone(ordered, test)
        sets = {}
        wanted = [models for size in range(2, largest + 1) for models in combinations(ordered, size)]
        if weights != EQUAL:
            wanted = [each for each in wanted if len(_by_rules([on_dev[name] for name in each])) == len(each)]
        for number, models in enumerate(wanted, start=1):
            found = profiler.together(models, test)
            sets[models] = scores(found) == 1
            progress(f"{number} of {len(wanted)}: {', '.join(models)}: {found.accuracy:.1f}")
        shares = {models: profiler.weights(models) for models in sets}
    return Outcomes(test.signature, ordered, alone, sets), shares


def _by_rules(profiles: Sequence[Profile]) -> tuple[str, ...]:
    return select([profile.standing for profile in profiles], Limits()).selected


def _by_accuracy(profiles: Sequence[Profile]) -> tuple[str, ...]:
    standings = [profile.standing for profile in profiles]
    return tuple(decision.model for decision in select(standings, Limits()).decisions)


def _answer(id_: str, digit: int, length: int) -> Answer:
    return Answer(id_, "x" * length, answer_of(f"{digit:x}"), float(digit == 0), "eos")


def _packed_model(profile: Profile, digits: str) -> dict[str, str]:
    lengths = bytes(min(answer.length or 0, _LONGEST) for answer in profile.answers)
    return {"answers": digits, "lengths": lengths.hex()}


def _unpacked_model(name: str, kept: Mapping[str, str]) -> Profile:
    lengths = bytes.fromhex(kept["lengths"])
    pairs = enumerate(zip(kept["answers"], lengths, strict=True))
    return Profile(name, tuple(_answer(f"test-{n}", int(digit, 16), length) for n, (digit, length) in pairs))


if __name__ == "__main__":
    sys.exit(main())
