"""Train the demo's models: ``python -m advisor.demo.train`` writes ``models/`` and ``data/`` beside this file.

Every model has about 0.9 million parameters and is trained from its seed on generated problems, which exclude the
questions of the three splits. ``models/NAME/training.json`` says how long the training took.
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
"""Tokens; enough for the prompts of every task. Training uses far fewer. Rotary positions make a long context free."""
BATCH = 64
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 3 * WIDTH},
    "mistral": {"intermediate_size": 3 * WIDTH, "num_key_value_heads": HEADS // 2, "sliding_window": None},
    "gpt_neox": {"intermediate_size": 4 * WIDTH},
    "olmo2": {"intermediate_size": 3 * WIDTH},
}
"""Model types of transformers, and their settings beyond the common shape."""
PROMPT_WEIGHT = 0.1
"""Weight of the question's tokens in the loss: a small weight teaches the numbers sooner than none."""


Style = Literal["terse", "verbose", "thinking"]
"""How a model answers: at once, step by step, or with the steps as thinking before the answer."""


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """A model, and the length of its training.

    Attributes:
        steps: Batches of BATCH problems in its schedule.
        enough: Share of right validation problems, 0 to 1, at which training stops early; None to finish the schedule.
    """

    name: str
    architecture: str
    tokenizer: str
    vocabulary: int
    style: Style
    steps: int
    seed: int
    learning_rate: float = 2e-3
    enough: float | None = None


RECIPES = (
    TrainingRecipe("terse-llama", "llama", "byte_level", 400, "terse", 1500, 1),
    TrainingRecipe("terse-mistral", "mistral", "sentencepiece_bpe", 420, "terse", 1600, 2),
    TrainingRecipe("terse-neox", "gpt_neox", "unigram", 240, "terse", 1600, 3),
    TrainingRecipe("terse-olmo", "olmo2", "byte_level", 480, "terse", 1600, 4),
    TrainingRecipe("stepwise-llama", "llama", "sentencepiece_bpe", 400, "verbose", 575, 5, enough=0.58),
    TrainingRecipe("novice-llama", "llama", "unigram", 110, "terse", 800, 6),
)
THINKING = TrainingRecipe("thinking-llama", "llama", "byte_level", 440, "thinking", 750, 7, enough=0.58)
"""The model that thinks, of the pool ``demo-thinking``."""


def prompt_of(problem: Problem) -> str:
    """The prompt, as in the task file."""
    return f"Question: {problem.question}\nAnswer:"


def response_of(problem: Problem, style: Style) -> str:
    """The response that a model of this style learns."""
    return f" {getattr(problem, style)}"


def build_model(recipe: TrainingRecipe, vocabulary: int, eos: int) -> PreTrainedModel:
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


def batches(recipe: TrainingRecipe, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """An endless stream of batches: ids [BATCH, length] and each id's weight in the loss [BATCH, length]."""
    excluded = {problem.question for split in make_splits().values() for problem in split}
    problems = training_stream(recipe.seed, excluded)
    vocabulary = Vocabulary(tokenizer, (), len(tokenizer))
    while True:
        rows = [next(problems) for _ in range(BATCH)]
        prompts = tokenizer([prompt_of(row) for row in rows])["input_ids"]
        # A response continues its prompt, so it is tokenized as the decoder tokenizes continuations.
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


def train(recipe: TrainingRecipe, tokenizer: PreTrainedTokenizerFast) -> tuple[PreTrainedModel, int]:
    """Train one model from its seed, by AdamW with a cosine schedule; the model, and the number of steps."""
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
        # A model that writes every step goes from half to nine tenths right within a few dozen steps, and when this
        # happens differs between machines. So its accuracy ends the training, not a number of steps.
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
    """Share of new problems, which are in no split, that greedy decoding gets right."""
    rng = random.Random("validation")
    problems = [make_problem(rng) for _ in range(questions)]
    ensemble = Ensemble([member_of(model, tokenizer, name="trained", chat_template="never")], k=1)
    responses = ensemble.generate([prompt_of(problem) for problem in problems], max_new_tokens=64, batch_size=100)
    pairs = zip(problems, responses, strict=True)
    return sum(response.text.endswith(problem.terse) for problem, response in pairs) / questions


def make_model(recipe: TrainingRecipe, folder: Path) -> None:
    """Train one model and write its folder: weights in half precision, tokenizer, and training.json."""
    # At this size a second thread mostly waits for the first; `main` trains two models at a time instead.
    torch.set_num_threads(1)
    problems = training_stream(recipe.seed, set())
    # All terse models have the same words in their vocabularies as the one that writes the steps.
    style: Style = "thinking" if recipe.style == "thinking" else "verbose"
    texts = [f"{prompt_of(p)}{response_of(p, style)}" for p in (next(problems) for _ in range(3000))]
    tokenizer = KINDS[recipe.tokenizer](texts, recipe.vocabulary)
    start = time.perf_counter()
    model, steps = train(recipe, tokenizer)
    seconds = time.perf_counter() - start
    # Half precision halves the size of the repository; the accuracy is that of the stored weights.
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    accuracy = validate(model.float(), tokenizer)
    training = {
        **asdict(recipe),
        "steps_taken": steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "problems": steps * BATCH,
        "seconds": round(seconds),
        "validation_accuracy": accuracy,
    }
    (folder / "training.json").write_text(json.dumps(training, indent=2) + "\n", encoding="utf-8")


def write_data(folder: Path) -> None:
    """Write the three splits, one JSON line for each question."""
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
    only: Annotated[list[str] | None, typer.Option(help="Train only this model; can be given several times.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for models/ and data/.")] = HERE,
    jobs: Annotated[int, typer.Option(help="Number of models to train at a time, each on one core.")] = 2,
) -> None:
    """Generate the demo's questions and train its models, from their seeds."""
    write_data(out / "data")
    chosen = [recipe for recipe in (*RECIPES, THINKING) if not only or recipe.name in only]
    # Spawned and not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(make_model, recipe, out / "models" / recipe.name) for recipe in chosen]
        for task in tasks:
            task.result()  # raises what the process raised


if __name__ == "__main__":
    typer.run(main)
