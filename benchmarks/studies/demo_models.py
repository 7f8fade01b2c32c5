"""Train the demo's models: ``python -m benchmarks.studies.demo_models`` writes ``models`` and ``data`` of advisor/demo.

Every model has about 0.9 million parameters and is trained from its seed on generated problems, which exclude the
questions of the three splits. ``models/NAME/training.json`` says how long the training took.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from benchmarks._measure import ROOT, progress
from ensemble.api import Ensemble
from ensemble.models.load import member_of
from ensemble.vocabulary.token_bytes import Vocabulary

DEMO = ROOT / "advisor" / "demo"
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
    """A model, and the length of its training."""

    name: str
    architecture: str
    tokenizer: str
    vocabulary: int
    style: Style
    steps: int  # batches of BATCH problems in its schedule
    seed: int
    learning_rate: float = 2e-3
    enough: float | None = None  # share of right validation problems, 0 to 1, at which training stops early


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
            progress(f"{recipe.name}: step {step} of {recipe.steps}, loss {loss.item():.3f}")
        # A model that writes every step goes from half to nine tenths right within a few dozen steps, and when this
        # happens differs between machines. So its accuracy ends the training, not a number of steps.
        is_due = recipe.enough is not None and step > recipe.steps // 2 and step % 10 == 0
        if is_due and validate(model, tokenizer, 300) >= (recipe.enough or 0):
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
        rows = ((f"{split}-{n}", p.question, p.terse, p.verbose, str(p.answer)) for n, p in enumerate(problems))
        lines = [
            json.dumps(dict(zip(("id", "question", "terse", "steps", "answer"), row, strict=True))) for row in rows
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(
    only: Annotated[list[str] | None, typer.Option(help="Train only this model; can be given several times.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for models/ and data/.")] = DEMO,
    jobs: Annotated[int, typer.Option(help="Number of models to train at a time, each on one core.")] = 2,
) -> None:
    """Generate the demo's questions and train its models, from their seeds."""
    write_data(out / "data")
    chosen = [recipe for recipe in (*RECIPES, THINKING) if not only or recipe.name in only]
    make_models(chosen, out / "models", jobs)


def make_models(recipes: Sequence[TrainingRecipe], folder: Path, jobs: int = 2) -> None:
    """Train models, some at a time, each into a folder of its name."""
    # Spawned and not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for task in [pool.submit(make_model, recipe, folder / recipe.name) for recipe in recipes]:
            task.result()  # raises what the process raised


SPACE_MARK = "\u2581"
# Digits stay single in every vocabulary, as in Llama 2, Mistral and Qwen2: tiny models cannot add otherwise.
_DIGITS = pre_tokenizers.Digits(individual_digits=True)


def byte_level(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """GPT-2's kind: BPE over bytes; a space is part of the word that follows it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([_DIGITS, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def sentencepiece_bpe(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """Llama 2's kind: BPE over characters, with ``<0xNN>`` for bytes of other characters, and a BOS."""
    specials = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="always"), _DIGITS])
    trainer = trainers.BpeTrainer(vocab_size=size - len(specials) - len(byte_tokens), show_progress=False)
    # Line by line, so that the newline gets no piece and is spelled <0x0A>, as in real vocabularies.
    learner.train_from_iterator([line for text in texts for line in text.split("\n")], trainer)
    pieces = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    vocabulary = {
        token: index for index, token in enumerate([*specials, *byte_tokens, *(piece for piece, _ in pieces)])
    }
    merges = [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), normalizers.Replace(" ", SPACE_MARK)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def unigram(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """T5's kind: a unigram language model over characters and the most frequent words, with their log frequencies."""
    # Not the library's trainer, which starts from substrings of two different words: these texts have too few words.
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("\n"), "isolated"), pre_tokenizers.Metaspace(prepend_scheme="first"), _DIGITS]
    )
    words = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(text))
    characters = Counter(character for word, count in words.items() for character in word * count)
    room = size - len(characters) - 2
    pieces = characters | Counter(dict([item for item in words.most_common() if len(item[0]) > 1][:room]))
    total = sum(pieces.values())
    scores = [(piece, math.log(count / total)) for piece, count in sorted(pieces.items())]
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *scores], unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


KINDS: dict[str, Callable[[Sequence[str], int], PreTrainedTokenizerFast]] = {
    "byte_level": byte_level,
    "sentencepiece_bpe": sentencepiece_bpe,
    "unigram": unigram,
}


PEOPLE = {
    "She": ("Mia", "Ann", "Zoe", "Eva", "Lea", "Ida", "Amy", "Kim"),
    "He": ("Tom", "Ben", "Max", "Leo", "Sam", "Jan", "Ali", "Tim"),
}
THINGS = ("apples", "shells", "coins", "books", "cards", "stamps", "pens", "eggs", "nuts", "beads", "balls", "keys")
GAINS = ("buys {n} more", "finds {n} more", "wins {n} more", "gets {n} from {other}")
LOSSES = ("gives {n} to {other}", "loses {n}", "sells {n}", "drops {n}")

LARGEST = 99
"""The largest number in a problem and in the steps to its answer."""

SPLITS = {"dev": 300, "held_out": 500, "test": 1000}
"""Questions in each split; they are never used in training."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, the steps to its answer, and the answer in three styles."""

    question: str
    steps: tuple[str, ...]
    answer: int

    @property
    def terse(self) -> str:
        """The answer in one short sentence."""
        return f"The answer is {self.answer}."

    @property
    def verbose(self) -> str:
        """Every step, then the same sentence."""
        return " ".join((*self.steps, self.terse))

    @property
    def thinking(self) -> str:
        """The steps as thinking, then the same sentence."""
        return f"<think>{' '.join(self.steps)}</think> {self.terse}"


def make_problem(rng: random.Random) -> Problem:
    """Draw one problem: a start, one to three gains or losses, a question."""
    # Sorted, so that the order of the lines above does not change the published questions.
    pronoun = rng.choice(sorted(PEOPLE))
    hero = rng.choice(PEOPLE[pronoun])
    other = rng.choice([name for names in PEOPLE.values() for name in names if name != hero])
    thing = rng.choice(THINGS)
    total = rng.randint(2, 60)
    sentences = [f"{hero} has {total} {thing}."]
    steps = []
    for _ in range(rng.randint(1, 3)):
        sign, number, verb = _draw_step(rng, total)
        result = total + number if sign == "+" else total - number
        sentences.append(f"{pronoun} {verb.format(n=number, other=other)}.")
        steps.append(f"{total} {sign} {number} = {result}.")
        total = result
    sentences.append(f"How many {thing} does {hero} have now?")
    return Problem(" ".join(sentences), tuple(steps), total)


def _draw_step(rng: random.Random, total: int) -> tuple[str, int, str]:
    """One gain or loss that keeps the running total between 0 and LARGEST."""
    gain = rng.random() < 0.5
    room = LARGEST - total if gain else total
    # At the border only a step in the other direction is possible.
    if room == 0:
        gain, room = not gain, LARGEST
    number = rng.randint(1, min(room, 40))
    return ("+", number, rng.choice(GAINS)) if gain else ("-", number, rng.choice(LOSSES))


def make_splits() -> dict[str, list[Problem]]:
    """The three evaluation splits: disjoint, without repeats, and always the same."""
    # A text as the seed: its numbers differ from those of the training, whose seed may be 0.
    rng = random.Random("word problems 0")
    found: dict[str, Problem] = {}
    while len(found) < sum(SPLITS.values()):
        problem = make_problem(rng)
        found.setdefault(problem.question, problem)
    problems = iter(found.values())
    return {split: list(islice(problems, size)) for split, size in SPLITS.items()}


def training_stream(seed: int, excluded: set[str]) -> Iterator[Problem]:
    """An endless stream of problems whose questions are not in ``excluded``."""
    rng = random.Random(f"training {seed}")
    while True:
        problem = make_problem(rng)
        if problem.question not in excluded:
            yield problem


if __name__ == "__main__":
    typer.run(main)
