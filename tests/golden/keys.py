"""The keys that responses are stored under: of lines of a pool file, of sets, and of kinds of questions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

from advisor.models.job import question_key
from advisor.models.profiler import Profiler
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import RunConfig
from advisor.models.server_model import ServerIdentity
from advisor.options.new_run import SelectOptions
from advisor.progress import Progress
from ensemble import Ensemble
from ensemble.models.memory import Processor
from tests.ggufs import write_gguf
from tests.running_server import serving
from tests.servers import COMMIT, as_json, into_hub_cache, models, raw_server
from tests.tiny import byte_tokenizer, nllb_tokenizer, save_member, tiny_model, tiny_translator

DEMO = Path(__file__).resolve().parents[2] / "advisor" / "demo" / "models"
LOADED = (
    "",
    "dtype=float32",
    "dtype=bfloat16",
    "dtype=float16 device=cuda:1",
    "dtype=float32 chat_template=always",
    "dtype=float32 chat_template=never",
    "dtype=float32 thinking_budget=16",
    "dtype=float32 thinking=<a>...</a>",
    "dtype=float32 thinking=<a>...</a> thinking_budget=0",
    "dtype=float32 price_in=1 price_out=2 num_cpus=2",
)
ROUNDED = ("dtype=bfloat16 quantization=4bit device=cuda", "dtype=bfloat16 quantization=8bit device=cuda")
SERVED = (
    "",
    "chat_template=never",
    "chat_template=always",
    "revision=v1",
    "thinking_budget=64",
    "reasoning_effort=low",
    "thinking=<a>...</a>",
    "timeout=9 concurrency=2 requests_per_minute=1000",
    "price_in=1 price_out=2",
    "chat_template=never revision=v2 thinking_budget=8",
)
TRANSLATOR = "dtype=float32 source=eng_Latn target=deu_Latn"


def all_keys(work: Path) -> dict[str, Any]:
    """Each line with its model's part of the key, and the key of one question; then sets and kinds of questions."""
    hub = work / "hub"
    into_hub_cache(hub, "org/terse", DEMO / "terse-llama")
    (hub / "hub" / "models--org--terse" / "refs" / "v1").write_text(COMMIT, encoding="utf-8")
    model = tiny_model(byte_tokenizer(), hidden=8, layers=2)
    file = write_gguf(work / "tiny.gguf", model, byte_tokenizer())
    (work / "empty").mkdir()
    into_hub_cache(hub, "org/gguf", work / "empty")
    (hub / "hub" / "models--org--gguf" / "snapshots" / COMMIT / "tiny.gguf").write_bytes(file.read_bytes())
    save_member(work / "tiny", model, byte_tokenizer())
    save_member(work / "translator", tiny_translator(nllb_tokenizer(), arch="m2m_100"), nllb_tokenizer())
    local = str(DEMO / "terse-llama")
    # Processors with units for 16 bits compute in them, and the keys say so.
    plain = patch("ensemble.models.memory.this_processor", lambda: Processor(frozenset(), 2**35))
    with plain, raw_server() as raw, serving(Ensemble.from_pretrained([str(work / "tiny")])) as tokens:
        said = as_json({"choices": [{"text": "Hi", "message": {"content": "Hi"}, "finish_reason": "stop"}]})
        raw.answer = lambda path, _: models("ada") if path.endswith("/models") else said
        lines = [f"{local} {options}" for options in LOADED + ROUNDED]
        lines += [f"org/terse{at} dtype=float32" for at in ("", "@main", "@v1", f"@{COMMIT}")]
        lines += [f"org/terse@{COMMIT} {options}" for options in LOADED[2:] + ROUNDED]
        lines += [f"{file} {options}" for options in LOADED]
        lines += [f"org/gguf gguf_file=tiny.gguf {options}" for options in LOADED[:2]]
        lines += [f"openai:{raw.url}#ada {options}" for options in SERVED]
        lines += [
            f"openai:{tokens.url}/v1#tiny tokenizer={work / 'tiny'} {options}" for options in ("", SERVED[1], SERVED[3])
        ]
        lines += [f"{work / 'translator'} {TRANSLATOR}{more}" for more in ("", " reads=prompt")]
        (work / "pool.txt").write_text("".join(f"{line} name=m{n}\n" for n, line in enumerate(lines)), encoding="utf-8")
        config = _config(pool=str(work / "pool.txt"), task="word_problems")
        with ResponseCache(work / "keys") as cache:
            profiler = Profiler(config, cache, Progress(quiet=True))
            found = _keys(profiler, config, lines)
        places = {raw.url: "SERVER", tokens.url: "SERVER", str(work): "WORK", str(DEMO): "DEMO"}
        for place, name in places.items():
            found = {line.replace(place, name).strip(): value for line, value in found.items()}
        return found


def _keys(profiler: Profiler, config: RunConfig, lines: list[str]) -> dict[str, Any]:
    profiler.identities = {name: _steady(identity) for name, identity in profiler.identities.items()}
    example, settings = config.dev.examples[0], config.dev.settings

    def key(*names: str, task: Any = config.dev, asked: Any = example, how: Any = None, of: Any = None) -> str:
        return question_key(profiler.key(names, of), asked, task, how or task.settings)

    names = list(profiler.identities)
    found: dict[str, Any] = {
        line: {"model": profiler.identities[name].key(), "key": key(name)}
        for name, line in zip(names, lines, strict=True)
    }
    sets: dict[str, Any] = {
        "unite": profiler.decoding(names[:2]),
        "unite of three": profiler.decoding(names[:3]),
        "unite, k": dataclasses.replace(profiler.decoding(names[:2]), k=5),
        "unite, weights": dataclasses.replace(profiler.decoding(names[:2]), weights=(2.0, 1.0)),
        "unite, apart": profiler.decoding(names[:2], options={"think": "apart"}),
        "gac": profiler.decoding(names[:2], "gac"),
        "average": profiler.decoding(names[:2], "average"),
        "safe": profiler.decoding(names[:2], "safe"),
        "geometric": profiler.decoding(names[:2], "geometric"),
    }
    found |= {name: key(*names[: 3 if "three" in name else 2], of=each) for name, each in sets.items()}
    found["unite, apart, tags"] = key("m0", "m7", of=sets["unite, apart"])
    choice = dataclasses.replace(config.dev, metric="choice")
    options = dataclasses.replace(example, choices=("5", "6"))
    translator, server = names[-1], names[lines.index(next(line for line in lines if "#ada" in line))]
    shots = _config(pool="demo", task="word_problems", shots=2).dev
    return found | {
        "at most 9 tokens": key("m1", how=dataclasses.replace(settings, max_new_tokens=9)),
        "drawn": key("m1", how=dataclasses.replace(settings, temperature=0.7, seed=3)),
        "drawn by a server": key(server, how=dataclasses.replace(settings, temperature=0.7, seed=3)),
        "two shots": key("m1", asked=shots.examples[0], task=shots),
        "other ends": key("m1", task=dataclasses.replace(config.dev, stop=("\n", "END"))),
        "second turn": key("m1", asked=dataclasses.replace(example, exchanges=(("Hello", "Good day"),))),
        "choice": key("m1", task=choice, asked=options),
        "choice, letters": key("m1", task=dataclasses.replace(choice, scoring="letters"), asked=options),
        "source": key(translator, asked=dataclasses.replace(example, source="A cat.")),
        "source of a causal model": key("m1", asked=dataclasses.replace(example, source="A cat.")),
    }


def _config(**options: Any) -> RunConfig:
    return RunConfig.from_options(SelectOptions(device="cpu", limit=2, **options), "")


def _steady(identity: Any) -> Any:
    """An identity without what differs by day, port and library: files made here have their names as hashes."""
    if isinstance(identity, ServerIdentity):
        address = dataclasses.replace(identity.address, url="http://server/v1")
        spec = dataclasses.replace(identity.spec, checkpoint=address)
        says = json.loads(json.dumps(dict(identity.says)))
        tokenizer = {name: name for name in identity.tokenizer}
        return dataclasses.replace(identity, spec=spec, says=says, day="2026-01-01", tokenizer=tokenizer)
    if "training.json" in identity.spec.files:
        return identity
    spec = dataclasses.replace(identity.spec, files={name: name for name in identity.spec.files})
    return dataclasses.replace(identity, spec=spec)
