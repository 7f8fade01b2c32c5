"""A dry run: what ``advisor select`` would ask each model, how often, and what that is expected to take.

Only tokenizers are loaded. Nothing is written, and no request goes to a server of a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoTokenizer

from advisor.config import RunConfig
from advisor.planning import words
from advisor.planning.plan import expected_seconds, plan_model, plan_together
from advisor.pool.pool_file import PoolEntry
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.response_cache import ResponseCache
from advisor.tasks.task import Example
from ensemble.errors import InputError, UniteError, first_line
from ensemble.models.check import check_tokenizer
from ensemble.models.member import Member
from ensemble.models.spec import ChatTemplate, Dialogue, Sourced, tokenizer_of
from ensemble.runtime.model_runner import ModelRunner
from ensemble.servers.address import ServerAddress
from ensemble.vocabulary.token_bytes import Vocabulary
from reports.text import counted, visible

SHOWN = 3
"""Prompts that are shown of each model."""


class _TokenizerOnly(Member):
    """A member without weights: it writes prompts as the loaded member would."""

    def runner(self) -> ModelRunner:
        raise InputError(f"{self.name}: a dry run loads no weights")

    def free_memory(self) -> int | None:
        return None


def dry_run(config: RunConfig) -> dict[str, Any]:
    """Plan a run.

    Args:
        config: The run.

    Returns:
        ``models``: the plan of each candidate (see :func:`advisor.planning.plan.plan_model`) with its prompts, its
        token counts, the generations that the cache lacks, seconds and dollars at most; and ``total``.
    """
    stored = _stored(config)
    models = [_plan(entry, config, stored.get(entry.name, {})) for entry in config.candidates]
    together = plan_together(models, config.rules.max_models) if config.held_out is not None else None
    sets = 0
    if config.held_out is not None and len(models) > 1:
        # The rules run one set; the other ways to choose run at most `tries` sets. A search decodes them on dev.
        tried = 1 if config.choose == "rules" else config.tries
        asked = len(config.held_out.examples)
        on_dev = config.verify_on != "held_out" or config.choose == "search"
        sets = tried * (asked + (len(config.dev.examples) if on_dev else 0))
    seconds = [model["seconds"] for model in models]
    prices = [model["price"] for model in models if model["price"] is not None]
    return {
        "task": config.dev.name,
        "dev": len(config.dev.examples),
        "held_out": None if config.held_out is None else len(config.held_out.examples),
        "models": models,
        "together": together,
        "total": {
            "profiling": sum(model["profiling"] for model in models),
            "alone": sum(model["alone"] for model in models),
            "together": sets,
            "seconds": None if None in seconds else sum(seconds),
            "price": sum(prices) if prices else None,
        },
    }


def _stored(config: RunConfig) -> dict[str, dict[str, int]]:
    """How many responses the cache has of each model that is loaded here, by split."""
    # What is stored of a model behind a server depends on what the server says today, and it is not asked.
    here = tuple(entry for entry in config.candidates if not isinstance(entry.checkpoint, ServerAddress))
    file = config.cache_dir / "responses.sqlite"
    if not here or not file.is_file():
        return {}
    with TemporaryDirectory() as folder:
        # A copy, because the cache also keeps hashes of files, and this run writes nothing.
        for ending in ("", "-wal"):
            if (part := Path(f"{file}{ending}")).is_file():
                Path(folder, part.name).write_bytes(part.read_bytes())
        with ResponseCache(Path(folder)) as cache:
            found: dict[str, dict[str, int]] = {}
            for entry in here:
                try:
                    alone = Profiler(replace(config, candidates=(entry,), weights="equal"), cache, Progress(quiet=True))
                except UniteError:
                    continue  # the model's plan says why it cannot run
                splits = [config.dev, *([config.held_out] if config.held_out is not None else [])]
                found[entry.name] = {
                    kind: alone.stored_alone(entry.name, task)
                    for kind, task in zip(("dev", "held_out"), splits, strict=False)
                }
            return found


def _plan(entry: PoolEntry, config: RunConfig, stored: dict[str, int]) -> dict[str, Any]:
    inference, dev = config.inference, config.dev
    held_out = config.held_out.examples if config.held_out is not None else ()
    shown, lengths, trouble = _prompts(entry, inference.chat_template, dev.examples)
    tokens = {"min": min(lengths), "median": int(median(lengths)), "max": max(lengths)} if lengths else None
    # Choice tasks read the options and write nothing.
    limit = 0 if dev.metric == "choice" else inference.limit(dev)
    plan = plan_model(entry, inference.device, inference.dtype, prompt=max(lengths or [512]), new=limit)
    plan["problem"] = plan["problem"] or trouble
    profiling = len(dev.examples) - stored.get("dev", 0)
    alone = len(held_out) - stored.get("held_out", 0)
    mean = sum(lengths) / len(lengths) if lengths else None
    seconds = None if mean is None else expected_seconds(plan, profiling + alone, mean, limit)
    price = None
    if entry.price is not None:
        # Without a tokenizer here a token counts as four characters.
        typical = mean or sum(len(each.prompt) for each in dev.examples) / len(dev.examples) / 4
        price = (entry.price.price_in * typical + entry.price.price_out * limit) * (profiling + alone) / 1e6
    return {
        **plan,
        "prompts": shown,
        "prompt_tokens": tokens,
        "new_tokens": limit,
        "profiling": profiling,
        "alone": alone,
        "questions": profiling + alone,
        "seconds": seconds,
        "price": price,
    }


def _prompts(
    entry: PoolEntry, template: ChatTemplate, examples: Sequence[Example]
) -> tuple[list[dict[str, Any]], list[int], str | None]:
    """The first prompts as the model gets them, the tokens of all, and why the tokenizer cannot be used."""
    plain = [{"id": each.id, "text": each.prompt, "tokens": None} for each in examples[:SHOWN]]
    if isinstance(entry.checkpoint, ServerAddress) and entry.checkpoint.tokenizer is None:
        return plain, [], None
    try:
        member = _tokenizer_only(entry, entry.chat_template or template)
        encoded = [member.prompt_ids(_text(entry, example)) for example in examples]
    except UniteError as error:
        return plain, [], str(error)
    except Exception as error:  # noqa: BLE001  # damaged tokenizers raise errors of many libraries
        return plain, [], f"its tokenizer cannot be used ({type(error).__name__}: {first_line(error)})"
    shown = [
        {"id": example.id, "text": member.tokenizer.decode(ids), "tokens": len(ids)}
        for example, ids in zip(examples[:SHOWN], encoded, strict=False)
    ]
    return shown, [len(ids) for ids in encoded], None


def _text(entry: PoolEntry, example: Example) -> str | Dialogue:
    """What a model reads of a question: a translation model may read the bare source instead of the prompt."""
    given = example.model_input
    if not isinstance(given, Sourced):
        return given
    sides = None if isinstance(entry.checkpoint, ServerAddress) else entry.checkpoint.sides
    # Only encoder-decoder models have languages; a causal model reads the prompt.
    return given.source if sides is not None and sides.key() and sides.reads != "prompt" else given.prompt


def _tokenizer_only(entry: PoolEntry, template: ChatTemplate) -> Member:
    address = entry.checkpoint
    checkpoint = tokenizer_of(address, entry.name) if isinstance(address, ServerAddress) else address
    if isinstance(address, ServerAddress):
        check_tokenizer(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.location, **checkpoint.options)
    if template == "always" and not tokenizer.chat_template:
        raise InputError(f"{entry.name}: its tokenizer has no chat template; use chat_template=auto or never")
    return _TokenizerOnly(
        name=entry.name,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer, (), max(tokenizer.get_vocab().values()) + 1),
        context=None,
        chat_template=template,
        seq2seq=None,
        device=torch.device("cpu"),
        place="",
        token_size=0,
    )


def lines_of(plan: dict[str, Any]) -> Iterator[str]:
    """A dry run for a terminal. Prompts come from files, so control characters are shown as their numbers."""
    for model in plan["models"]:
        for line in words.prompt_lines(model["model"], model["prompts"]):
            yield visible(line, keep_lines=True)
    yield ""
    for model in plan["models"]:
        yield visible(words.model_line(model))
        tokens = model["prompt_tokens"]
        if tokens is not None:
            yield (
                f"  prompts of {tokens['min']:,} to {tokens['max']:,} tokens, median {tokens['median']:,}; "
                f"responses of at most {model['new_tokens']:,}"
            )
    yield from words.together_line(plan["together"])
    total = plan["total"]
    yield f"profiling: {counted(total['profiling'], 'generation')}; what the cache has is subtracted"
    if plan["held_out"] is not None:
        yield f"verifying: at most {total['alone']:,} of single models, and {total['together']:,} of sets"
    price = "no prices in the pool file" if total["price"] is None else f"${total['price']:.2f}"
    yield f"single models: at most about {words.duration(total['seconds'])}; {price}. Nothing was run or written."
