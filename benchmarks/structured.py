"""Texts under a grammar: ``python -m benchmarks.structured``.

Random JSON schemas are drawn, and a set of two small random models, whose tokenizers differ, writes a text for each by
drawing tokens. Each finished text is read by Python's ``json`` and checked by jsonschema. And the time of a step with
a grammar is put over that without one, for two random models of a middle size with real vocabularies, one text at a
time and without drafts.

Of the pool of tool calls in ``../shared/pools``, the gain of the vote that ``advisor select --logs`` reports on the
held-out questions is compared with one counted here, by digests of the calls as they stand in the log.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import torch

from advisor import select
from benchmarks._measure import Figure, Timer, arguments, progress, ratio, tell
from benchmarks._models import MIDDLE, TINY, TOKENIZERS, made_up_tokenizer, random_member, vocabulary
from benchmarks.studies._pools import POOLS
from ensemble import Ensemble, InputError
from ensemble.common.grammar import Grammar
from ensemble.decode.settings import Batch, Settings

PAIR = ("llama-3", "qwen2")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "lost"]}},
        "note": {"type": "string"},
    },
    "required": ["name", "age", "tags", "note"],
    "additionalProperties": False,
}
_TOKENS = 400
"""Of a text at most; those that are longer are counted, and not checked."""
_AT_ONCE = 64
"""Texts that are decoded together."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print it, keep it where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--schemas", type=int, default=10_000, help="random schemas, a text for each")
    options = parser.parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    count = 64 if options.quick else options.schemas
    timer = Timer(options.rounds or (1 if options.quick else 7), options.clock)
    figures = [*_validity(count), _step(options.quick, timer), _tool_calls()]
    tell("structured", figures, options)
    return 0


def _validity(count: int) -> Iterator[Figure]:
    members = [
        random_member(name, made_up_tokenizer(2000, name), 2048, replace(TINY, hidden=32, layers=1), sure=False)
        for name in ("a", "b")
    ]
    ensemble, chance = Ensemble(members), Random(0)
    finished = invalid = refused = 0
    for start in range(0, count, _AT_ONCE):
        progress(f"benchmarks.structured: {start} of {count} schemas")
        schemas: list[dict[str, Any]] = []
        decoder = ensemble.decoder(Batch(_AT_ONCE))
        for n in range(min(_AT_ONCE, count - start)):
            schema = random_schema(chance)
            try:
                grammar = Grammar.json_schema(schema)
            except InputError:
                refused += 1
                schemas.append({})
                continue
            schemas.append(schema)
            prompt = ensemble.encode(f"Question {start + n}:")
            decoder.add(n, prompt, Settings(_TOKENS, temperature=1.0, seed=start + n, grammar=grammar))
        for n, made in decoder:
            if made.finish_reason == "eos":
                finished += 1
                invalid += not is_valid(made.text, schemas[n])
    note = f"{count} random schemas, two random models of one layer, drawn at temperature 1"
    yield Figure("invalid_outputs", invalid, limit="0", note=f"of {finished} finished texts; {note}")
    yield Figure("finished_share", finished / count, note=f"within {_TOKENS} tokens; {note}")
    yield Figure("refused_schemas", refused, limit="0", note=note)


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    """Whether a text is JSON and valid by a schema."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def random_schema(chance: Random, depth: int = 0) -> dict[str, Any]:
    """A random schema: objects, arrays, choices, texts with patterns and lengths, numbers with limits."""
    kinds: dict[str, Callable[[], dict[str, Any]]] = {
        "boolean": lambda: {"type": "boolean"},
        "null": lambda: {"type": "null"},
        "integer": lambda: {"type": "integer", "minimum": chance.randint(-50, 0), "maximum": chance.randint(1, 5000)},
        "number": lambda: {"type": "number", "minimum": -1, "maximum": chance.choice([1, 2.5, 100])},
        "string": lambda: {"type": "string", "maxLength": chance.randint(0, 12)},
        "pattern": lambda: {
            "type": "string",
            "pattern": chance.choice(["^[a-z]{1,5}$", "^(yes|no)$", "^\\d{3}-\\d{2}$"]),
        },
        "enum": lambda: {"enum": chance.sample(["é", "a b", "", 'say "x"', 1, 2.5, None, True, "\\", "\n"], 3)},
        "const": lambda: {"const": chance.choice([{"a": [1]}, "x", 7, []])},
    }
    if depth < 3:
        kinds["array"] = lambda: {
            "type": "array",
            "items": random_schema(chance, depth + 1),
            "minItems": (least := chance.randint(0, 1)),
            "maxItems": least + chance.randint(0, 2),
        }
        kinds["object"] = lambda: _random_object(chance, depth)
        kinds["anyOf"] = lambda: {"anyOf": [random_schema(chance, depth + 1) for _ in range(2)]}
    name = "object" if not depth else chance.choice(sorted(kinds))
    return kinds[name]()


def _random_object(chance: Random, depth: int) -> dict[str, Any]:
    names = chance.sample(["name", "age", "ü", "a b", 'q"', "x/y", "", "id"], chance.randint(0, 4))
    return {
        "type": "object",
        "properties": {name: random_schema(chance, depth + 1) for name in names},
        "required": [name for name in names if chance.random() < 0.7],
        "additionalProperties": False,
    }


def _step(quick: bool, timer: Timer) -> Figure:
    """A step with a grammar over one without."""
    real = not quick and all((TOKENIZERS / name).is_dir() for name in PAIR)
    members = []
    for name in PAIR:
        tokenizer, rows = (made_up_tokenizer(2000, name), 2048) if quick else vocabulary(name, real=real)
        members.append(random_member(name, tokenizer, rows, TINY if quick else MIDDLE, sure=True))
    ensemble = Ensemble(members)
    prompt = ensemble.encode("Question: Who is Ann? Answer in JSON.\nAnswer:")

    def part(settings: Settings) -> Callable[[], int]:
        def decode() -> int:
            made = ensemble.generate_each([prompt], settings, Batch(1, draft=0))
            return sum(generation.counts.steps for _, generation in made)

        return decode

    tokens = 8 if quick else 64
    grammar = Grammar.json_schema(PERSON)
    times = timer({"plain": part(Settings(tokens)), "grammar": part(Settings(tokens, grammar=grammar))})
    kind = "real" if real else "made-up"
    sizes = " + ".join(f"{name} ({member.vocabulary.size:,} rows)" for name, member in zip(PAIR, members, strict=True))
    shape = TINY if quick else MIDDLE
    note = f"two random models, {shape.layers} layers of width {shape.hidden}, {kind} vocabularies of {sizes}"
    return ratio("grammar_over_plain", times["grammar"], times["plain"], limit="at most 1.3", note=note)


def _tool_calls() -> Figure:
    """By how much the gain of a vote over tool calls differs from one by digests."""
    name = "tool_calls_gain_difference"
    log = POOLS / "bfcl-part.jsonl.xz"
    if not log.is_file():
        return Figure(name, None, limit="at most 0.3", note="../shared/pools is absent")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        select(logs=[str(log)], out=str(run), quiet=True)
        result = json.loads((run / "result.json").read_text())
        lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    vote = max((each for each in result["strategies"] if each["strategy"] == "vote"), key=lambda each: each["n"])
    questions = [line["responses"] for line in lines if line["split"] == "held_out"]
    right = sum(_by_digest([question[member] for member in vote["members"]]) for question in questions)
    counted = 100 * right / len(questions) - vote["best_single_accuracy"]
    difference = abs(counted - (vote["accuracy"] - vote["best_single_accuracy"]))
    note = f"{counted:+.2f} points by digests, {len(questions)} held-out questions, {len(vote['members'])} models"
    return Figure(name, difference, limit="at most 0.3", note=note)


def _by_digest(answers: Sequence[dict[str, Any]]) -> float:
    """The score of the call that most models make; of equally many, the earliest model's. No call is no vote."""
    digests = [each["extracted"] and hashlib.sha256(each["extracted"].encode()).digest() for each in answers]
    counts = Counter(digest for digest in digests if digest)
    winner = max(range(len(answers)), key=lambda n: (counts[digests[n]], -n))
    score: float = answers[winner]["score"]
    return score


if __name__ == "__main__":
    sys.exit(main())
