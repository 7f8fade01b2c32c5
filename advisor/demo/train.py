"""Train the demo's models: ``python -m advisor.demo.train`` writes ``models/`` and ``data/`` beside this file.

Every model has about 0.9 million parameters and is trained from its seed alone on generated problems; none of the
questions of the three splits is ever among them. ``models/NAME/training.json`` says what each one took. A model is
trained on one thread, two models at a time: at this size a second thread mostly waits for the first.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from advisor.demo.questions import Problem, make_problem, make_splits, training_stream
from advisor.demo.vocabularies import KINDS
from ensemble.api import Ensemble
from ensemble.models.load import member_of
from ensemble.vocabulary.token_bytes import Vocabulary

HERE = Path(__file__).parent
WIDTH, LAYERS, HEADS = 128, 4, 4
CONTEXT = 16_384
"""Positions are rotary, so a context costs nothing. It holds the prompts of every task; none was trained on so many."""
BATCH = 64
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 3 * WIDTH},
    "mistral": {"intermediate_size": 3 * WIDTH, "num_key_value_heads": HEADS // 2, "sliding_window": None},
    "gpt_neox": {"intermediate_size": 4 * WIDTH},
    "olmo2": {"intermediate_size": 3 * WIDTH},
}
"""Model types of transformers, and what they need besides the common shape."""
PROMPT_WEIGHT = 0.1
"""Weight of the question's tokens in the loss: a little of it teaches the numbers sooner than none."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one model is and how long it is trained.

    Attributes:
        steps: Batches of BATCH problems in its schedule.
        enough: Share of validation problems at which it is stopped before the schedule ends; None to train on. A model
            that learns in a leap goes from half to nine tenths within a few dozen steps, so their number cannot be set.
    """

    name: str
    architecture: str
    tokenizer: str
    vocabulary: int
    style: Literal["terse", "verbose"]
    steps: int
    seed: int
    learning_rate: float = 2e-3
    enough: float | None = None


RECIPES = (
    Recipe("terse-llama", "llama", "byte_level", 400, "terse", 1500, 1),
    Recipe("terse-mistral", "mistral", "sentencepiece_bpe", 420, "terse", 1600, 2),
    Recipe("terse-neox", "gpt_neox", "unigram", 240, "terse", 1600, 3),
    Recipe("terse-olmo", "olmo2", "byte_level", 480, "terse", 1600, 4),
    Recipe("stepwise-llama", "llama", "sentencepiece_bpe", 400, "verbose", 575, 5, enough=0.58),
    Recipe("novice-llama", "llama", "unigram", 110, "terse", 800, 6),
)


def prompt_of(problem: Problem) -> str:
    """The question as the task file words it."""
    return f"Question: {problem.question}\nAnswer:"


def response_of(problem: Problem, style: str) -> str:
    """What a model of this style is taught to say."""
    return " " + (problem.terse if style == "terse" else problem.verbose)


def build_model(recipe: Recipe, vocabulary: int, eos: int) -> PreTrainedModel:
    """An untrained model of the recipe's architecture; all have the same depth and width."""
    config = AutoConfig.for_model(
        recipe.architecture,
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        **ARCHITECTURES[recipe.architecture],
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def batches(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches without end: ids [BATCH, length] and each id's weight in the loss."""
    excluded = {problem.question for split in make_splits().values() for problem in split}
    problems = training_stream(recipe.seed, excluded)
    vocabulary = Vocabulary(tokenizer, (), len(tokenizer))
    while True:
        rows = [next(problems) for _ in range(BATCH)]
        prompts = tokenizer([prompt_of(row) for row in rows])["input_ids"]
        # What a model says continues its prompt, and is tokenized as the decoder will tokenize it.
        answers = vocabulary.continue_batch([response_of(row, recipe.style).encode() for row in rows])
        length = max(len(p) + len(a) + 1 for p, a in zip(prompts, answers, strict=True))
        ids = torch.full((BATCH, length), tokenizer.eos_token_id)
        weights = torch.zeros(BATCH, length)
        for n, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            row = [*prompt, *answer, tokenizer.eos_token_id]
            ids[n, : len(row)] = torch.tensor(row)
            weights[n, : len(prompt)] = PROMPT_WEIGHT
            weights[n, len(prompt) : len(row)] = 1
        yield ids, weights


def train(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> tuple[PreTrainedModel, int]:
    """Train one model from its seed, by AdamW with a cosine schedule; the model, and the steps that it took."""
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, len(tokenizer), tokenizer.eos_token_id)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 100) * (1 + math.cos(math.pi * step / recipe.steps)) / 2
    )
    stream = batches(recipe, tokenizer)
    for step in range(1, recipe.steps + 1):
        ids, weights = next(stream)
        logits = model(ids[:, :-1], use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"{recipe.name}: step {step} of {recipe.steps}, loss {loss.item():.3f}", file=sys.stderr, flush=True)
        if (
            recipe.enough
            and step > recipe.steps // 2
            and step % 10 == 0
            and validate(model, tokenizer, 300) >= recipe.enough
        ):
            break
    model.eval()
    return model, step


def validate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, questions: int = 1000) -> float:
    """Share of fresh problems (of no split) that greedy decoding gets right."""
    rng = random.Random("validation")
    problems = [make_problem(rng) for _ in range(questions)]
    ensemble = Ensemble([member_of(model, tokenizer, name="trained", chat_template="never")], k=1)
    responses = ensemble.generate([prompt_of(problem) for problem in problems], max_new_tokens=64, batch_size=100)
    pairs = zip(problems, responses, strict=True)
    return sum(response.text.endswith(problem.terse) for problem, response in pairs) / questions


def make_model(recipe: Recipe, folder: Path) -> None:
    """Train one model and write its folder: weights in half precision, tokenizer, and what it took."""
    torch.set_num_threads(1)
    problems = training_stream(recipe.seed, set())
    texts = [f"{prompt_of(p)}{response_of(p, 'verbose')}" for p in (next(problems) for _ in range(3000))]
    tokenizer = KINDS[recipe.tokenizer](texts, recipe.vocabulary)
    start = time.perf_counter()
    model, steps = train(recipe, tokenizer)
    seconds = time.perf_counter() - start
    # Half precision halves the clone; the accuracy is of the weights as they are stored.
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    accuracy = validate(model.float(), tokenizer)
    took = {
        **asdict(recipe),
        "steps_taken": steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "problems": steps * BATCH,
        "seconds": round(seconds),
        "validation_accuracy": accuracy,
    }
    (folder / "training.json").write_text(json.dumps(took, indent=2) + "\n", encoding="utf-8")


def write_data(folder: Path) -> None:
    """Write the three splits, a JSON line a question."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, problems in make_splits().items():
        lines = [
            json.dumps(
                {
                    "id": f"{split}-{n}",
                    "question": problem.question,
                    "terse": problem.terse,
                    "steps": problem.verbose,
                    "answer": str(problem.answer),
                }
            )
            for n, problem in enumerate(problems)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(
    only: Annotated[list[str] | None, typer.Option(help="Train just this model; can be given several times.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for models/ and data/.")] = HERE,
    jobs: Annotated[int, typer.Option(help="Models trained at a time, each on one core.")] = 2,
) -> None:
    """Generate the demo's questions and train its models, from their seeds."""
    write_data(out / "data")
    chosen = [recipe for recipe in RECIPES if not only or recipe.name in only]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(make_model, recipe, out / "models" / recipe.name) for recipe in chosen]
        for task in tasks:
            task.result()


if __name__ == "__main__":
    typer.run(main)
