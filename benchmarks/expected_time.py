"""The time that ``advisor doctor`` expects against the time that models take: ``python -m benchmarks.expected_time``.

The models are those of the demo, which are so small that calls take nearly all of their time, and one of random weights
that is large enough to be read from memory. Each answers the same prompts with as many tokens as are expected; the
calibration is measured in each round, because the speed of a machine drifts. Not here: accelerators.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from advisor.jobs.planning.speed import measure_speed
from advisor.pool.fit import need_of_model
from advisor.pool.pool_file import DEMO, read_pool
from advisor.profile.loader import silence_libraries
from benchmarks._measure import Figure, Timer, arguments, spread, tell
from ensemble import Ensemble
from ensemble.models.spec import Checkpoint, ModelSpec

KEYS = ("expected_over_measured_demo", "expected_over_measured_large")
"""What is always in the JSON object."""
_PROMPT = "Question: Tim has 9 cards. He wins 8 more. How many cards does Tim have now?\nAnswer:"
_ROWS = 16


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Hold the two times against each other, for each kind of model."""
    silence_libraries(quiet=True)
    rounds = 2 if options.quick else options.rounds or 5
    new = 8 if options.quick else 32
    demo = [ratio for entry in read_pool(str(DEMO)) for ratio in _ratios(entry, rounds, new, options.clock)]
    yield spread("expected_over_measured_demo", demo, "", "all models of the demo; 1 is exact")
    with tempfile.TemporaryDirectory() as folder:
        large = _large(Path(folder, "large"), hidden=256 if options.quick else 1024)
        found = list(_ratios(large, rounds, new, options.clock))
    yield spread("expected_over_measured_large", found, "", "weights that no cache of a processor holds; 1 is exact")


def _ratios(entry: ModelSpec, rounds: int, new: int, clock: str) -> Iterator[float]:
    need = need_of_model(entry, "float32")
    if need is None or entry.checkpoint.is_remote:
        return
    ensemble = Ensemble.from_pretrained([entry.checkpoint], dtype="float32", device="cpu")
    prompts = [f"{n}. {_PROMPT}" for n in range(_ROWS)]
    tokens = sum(len(row[0]) for row in map(ensemble.encode, prompts)) / _ROWS

    def steps() -> int:
        made = ensemble.generate(prompts, max_new_tokens=new)
        # A text may end early, and the batch goes on with the others.
        return max(len(each.tokens) for each in made)

    timer = Timer(1, clock)
    for _ in range(rounds):
        speed = measure_speed("cpu", "float32")
        (measured,) = timer({"model": steps})["model"]
        written = steps()
        yield speed.seconds(need, _ROWS, tokens, written, _ROWS) / (measured * written)


def _large(folder: Path, *, hidden: int) -> ModelSpec:
    """A model of random weights, with the tokenizer of a demo model."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO.parent / "models" / "terse-llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=8,
        num_attention_heads=8,
        vocab_size=len(tokenizer),
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ModelSpec(Checkpoint(str(folder)), "large")


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = arguments("Hold the expected time of models against the time that they take.").parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    tell("expected_time", list(figures(options)), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
