"""What reads each kind of untrusted input, as the commands do; and inputs to begin with."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ensemble.errors import InputError, UniteError

_ROOT = Path(__file__).resolve().parents[1]
_MODELS = _ROOT / "advisor" / "demo" / "models"
_SEEDS = _ROOT / "tests" / "fuzz" / "seeds"
POOL = b"""models/terse-llama name=a dtype=float32 device=cpu chat_template=never
org/name@c170c708 source=eng_Latn target=deu_Latn trust_remote_code=false num_gpus=1 num_cpus=8
openai:http://127.0.0.1:9/v1#m key_env=A_KEY timeout=120 concurrency=4 requests_per_minute=60
"""
TASK = b"""name: sums
data: {dev: dev.jsonl, held_out: held_out.jsonl}
prompt: "Q: {{question}}\\nA:"
reference: "{{answer}}"
instructions: "Add."
metric: exact_match
extract: "is (-?[0-9]+)"
stop: ["\\n"]
max_new_tokens: 8
shots: 1
"""
NUMBERS = json.dumps(
    {"task": "t", "profiles": [{"model": name, "accuracy": 50.5, "mean_length": 20} for name in "abc"]}
).encode()
STORED = json.dumps(
    {"text": " 4", "tokens": 3, "finish_reason": "stop", "seconds": 0.5, "error": None, "settled": True}
    | {"options": [-1.5, None], "steps": 3, "combined": 2, "handled": 60}
).encode()
_CHAT = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}]}
_COMMON = {"model": "tiny", "max_tokens": 5, "temperature": 0.7, "top_p": 0.9, "stop": ["\n"], "seed": 3, "n": 1}
REQUESTS = (
    json.dumps({**_COMMON, "prompt": ["x", "y"], "logprobs": 2, "stream": False, "user": "u"}).encode(),
    json.dumps({**_COMMON, **_CHAT, "logprobs": True, "top_logprobs": 3}).encode(),
    json.dumps({**_COMMON, **_CHAT, "stream": True, "stream_options": {"include_usage": True}}).encode(),
    json.dumps(
        {
            **{"model": "tiny", "instructions": "s", "max_output_tokens": 5, "temperature": 0.7, "stream": False},
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "function_call", "id": "f", "call_id": "c", "name": "a", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "y"},
            ],
            "tools": [{"type": "function", "name": "a", "parameters": {"type": "object"}, "strict": True}],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        }
    ).encode(),
)
_SAYS = {"object": "list", "data": [{"id": "m", "created": 1, "owned_by": "x", "root": "r", "meta": {"n": 1}}]}
_LOGPROBS = {"tokens": ["a", " 4"], "token_logprobs": [None, -0.5], "text_offset": [0, 1], "top_logprobs": None}
_TEXT = {"text": "a 4", "finish_reason": "stop", "message": {"content": " 4"}, "logprobs": _LOGPROBS}
REPLIES = (
    json.dumps({"choices": [_TEXT], "usage": {"completion_tokens": 3}, "system_fingerprint": "f", **_SAYS}).encode(),
    json.dumps({"error": {"message": "no", "code": 1}, **_SAYS}).encode(),
)
_SAMPLE = {"id": 1, "epoch": 1, "input": "1 + 1?", "target": "2", "model_usage": {"m": {"output_tokens": 5}}}
_SAMPLE |= {
    "scores": {"match": {"value": "C", "answer": "2"}, "judge": {"value": {"a": 1, "b": "I"}}},
    "choices": ["1"],
}
_SAMPLE |= {"output": {"choices": [{"message": {"role": "assistant", "content": "2"}, "stop_reason": "stop"}]}}
_OUTPUT = {"completions": [{"text": " A", "tokens": [{"text": " A"}]}], "request_time": 0.5, "success": True}
_INSTANCE = {"id": "id1", "input": {"text": "?"}, "references": [{"output": {"text": "no"}, "tags": ["correct"]}]}
_STATE = {"instance": _INSTANCE, "train_trial_index": 0, "output_mapping": {"A": "no"}, "result": _OUTPUT}
_DOC = {"doc_id": 0, "doc": {"question": "?", "choices": ["a", "b"]}, "target": "1", "filter": "none"}
LOGS = (
    json.dumps(
        {
            **_DOC,
            "resps": [["2", "3"]],
            "filtered_resps": [["2", "3"]],
            "metrics": ["em", "f1"],
            "em": 1.0,
            "f1": [0, 1],
        }
        | {"arguments": {"gen_args_0": {"arg_0": "?"}}}
    ).encode(),
    json.dumps(
        {**_DOC, "resps": [[["-1.5", "True"]], [["-2.5", "False"]]], "filtered_resps": [], "metrics": ["acc"], "acc": 1}
        | {"arguments": {f"gen_args_{n}": {"arg_0": "?", "arg_1": f" {n}"} for n in (0, 1)}}
    ).encode(),
    json.dumps(
        {
            "version": 2,
            "status": "success",
            "eval": {"task": "t", "created": "", "model": "m"},
            "samples": [_SAMPLE] * 2,
        }
    ).encode(),
    json.dumps({"adapter_spec": {"model": "m"}, "request_states": [_STATE]}).encode(),
    json.dumps(
        {"schema_version": "0.3.0", "evaluation_id": "e", "model_id": "m", "evaluation_name": "t", "sample_id": "q1"}
        | {"input": {"raw": "?", "reference": ["2"]}, "output": {"raw": ["2"]}, "evaluation": {"score": 0.5}}
        | {"answer_attribution": [{"extracted_value": "2"}], "performance": {"latency_ms": 250}, "error": None}
    ).encode(),
)


def header_of(model: Path) -> bytes:
    """The JSON header of a model's safetensors file."""
    data = (model / "model.safetensors").read_bytes()
    return data[8 : 8 + struct.unpack("<Q", data[:8])[0]]


@cache
def gguf_header() -> bytes:
    """A GGUF file with a few values and one tensor."""
    import tempfile

    import numpy as np
    from gguf import GGUFWriter

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        writer = GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "b", "ab"])
        writer.add_token_merges(["a b"])
        writer.add_token_types([1, 1, 1])
        writer.add_eos_token_id(0)
        writer.add_tensor("output.weight", np.zeros((2, 4), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def read_result_json(folder: Path, data: bytes) -> None:
    """As ``report``, ``run``, ``serve``, ``evaluate`` and ``export`` read ``result.json``."""
    from advisor.commands import evaluate as evaluation
    from advisor.commands.export import export_run
    from advisor.options.finished_run import ExportOptions, ServeOptions
    from advisor.run.folder import Run
    from advisor.run.plan import candidates_of_run, plan_by_options

    run = _run_folder(folder, "result.json", data)
    (folder / "models").symlink_to(_MODELS)

    def evaluate() -> None:
        opened = Run.open(run)
        candidates = candidates_of_run(opened)
        evaluation.learned_options(opened, ["deepen-adapt"], SimpleNamespace(candidates=candidates))  # type: ignore[arg-type]

    _each(
        lambda: Run.open(run).result,
        lambda: plan_by_options(ServeOptions(run=str(run)), lambda _: None),
        evaluate,
        lambda: export_run(ExportOptions(run=run, folder=folder / "out")),
    )


def read_report(folder: Path, data: bytes) -> None:
    """The whole report of a ``result.json``."""
    from reports import write_report

    write_report(_run_folder(folder, "result.json", data))


def read_samples_jsonl(folder: Path, data: bytes) -> None:
    """As the report reads ``samples.jsonl``."""
    _examples(_run_folder(folder, "samples.jsonl", data))


def read_evaluation_json(folder: Path, data: bytes) -> None:
    """As the report reads ``evaluation.json``."""
    _examples(_run_folder(folder, "evaluation.json", data))


def read_store(folder: Path, data: bytes) -> None:
    """A row of the response cache, written by another program."""
    import sqlite3

    from advisor.models.response_cache import ResponseCache

    with ResponseCache(folder):
        pass
    connection = sqlite3.connect(folder / "responses.sqlite")
    with connection:
        for table in ("responses", "measured"):
            connection.execute(f"INSERT INTO {table} VALUES ('a', CAST(? AS TEXT))", (data,))
    connection.close()
    with ResponseCache(folder) as cache:
        for response in cache.get(["a"]).values():
            f"{response.tokens / 2:.1f} {response.seconds:.1f} {sum(filter(None, response.options)):.1f}".encode()
            response.text.encode()
        cache.value("a")


def read_numbers(folder: Path, data: bytes) -> None:
    """The file of ``--scores``, to the tables and the report."""
    from advisor.commands.select import run_on_numbers
    from advisor.records import Limits
    from ensemble.common.schema import written
    from reports.tables import leaderboard

    path = folder / "numbers.json"
    path.write_bytes(data)
    result = run_on_numbers(path, Limits(), "advisor")
    json.dumps(written(result), allow_nan=False)
    leaderboard(result)


def read_logs(folder: Path, data: bytes) -> None:
    """A log of another tool, by each format that claims it."""
    from advisor.logs.sources import FORMATS, LogFile, LogOptions, get_format, records_of

    path = folder / "samples_t_2025-01-02T03-04-05.jsonl"
    path.write_bytes(data)
    notes: list[str] = []
    for name in FORMATS:
        for source in get_format(name).recognise([LogFile(path, given=False)], notes):
            for record in records_of(source, LogOptions(cluster="group"), notes):
                texts = (record.model, record.task, record.id, record.question, record.response)
                "\n".join(text or "" for text in texts).encode()
                f"{record.score or 0:.1f} {record.seconds or 0:.1f} {record.tokens or 0}".encode()


def read_pool_file(folder: Path, data: bytes) -> None:
    """A pool file."""
    from advisor.models.pool_file import read_pool

    (folder / "models").symlink_to(_MODELS)
    (folder / "pool.txt").write_bytes(data)
    # A line that has lost its model would ask a server.
    with patch("advisor.models.endpoint.listed_models", return_value=["m"]):
        read_pool("pool.txt")


def read_task_file(folder: Path, data: bytes) -> None:
    """A task file, with its data."""
    from advisor.tasks import load_task

    for split in ("dev", "held_out"):
        lines = (json.dumps({"question": f"{split} {n} + {n}", "answer": str(2 * n)}) for n in range(4))
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "task.yaml").write_bytes(data)
    task = load_task("task.yaml", limit=2)
    task.score_all([(example, "the answer is 4") for example in task.examples])


def read_ensemble_json(folder: Path, data: bytes) -> None:
    """A saved ensemble."""
    from ensemble.saved.folder import read

    (folder / "models").symlink_to(_MODELS)
    (folder / "ensemble.json").write_bytes(data)
    read(folder)


def read_config(folder: Path, data: bytes) -> None:
    """A model's configuration."""
    _load(folder, "config.json", data)


def read_tokenizer(folder: Path, data: bytes) -> None:
    """A model's tokenizer."""
    _load(folder, "tokenizer.json", data)


def read_safetensors(folder: Path, data: bytes) -> None:
    """Weights whose header is changed."""
    weights = (_MODELS / "terse-llama" / "model.safetensors").read_bytes()
    rest = weights[8 + struct.unpack("<Q", weights[:8])[0] :]
    _load(folder, "model.safetensors", struct.pack("<Q", len(data)) + data + rest)


def read_gguf(folder: Path, data: bytes) -> None:
    """A GGUF file."""
    (folder / "model.gguf").write_bytes(data)
    _load_checkpoint(str(folder / "model.gguf"))


def read_request(folder: Path, data: bytes) -> None:
    """The body of a request, through the whole application but without sockets and models."""
    del folder
    fields = {b'"messages"': "/v1/chat/completions", b'"input"': "/v1/responses"}
    path = next((path for field, path in fields.items() if field in data), "/v1/completions")
    asyncio.run(_ask(data, path))


def read_reply(folder: Path, data: bytes) -> None:
    """The same answer of a server to every request."""
    del folder
    from unittest import mock

    import httpx2

    from advisor.models.completions import generate, likeliest_text
    from advisor.models.server_model import identify_server
    from ensemble.decode.settings import Settings
    from ensemble.models.spec import ModelSpec
    from ensemble.servers.address import ServerAddress
    from ensemble.servers.client import ServerClient

    address = ServerAddress("http://127.0.0.1:9/v1", "m")
    spec = ModelSpec(address, "m")

    def answer(_: object, __: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "application/json"}, stream=httpx2.ByteStream(data))

    def texts() -> None:
        with ServerClient(address, retries=0) as server:
            for chat in (True, False):
                generate(server, "x", Settings(5, ("\n",)), chat=chat)[0].text.encode()
            likeliest_text(server, "a", [" 4"])

    with (
        mock.patch.object(httpx2.HTTPTransport, "handle_request", answer),
        mock.patch("ensemble.servers.client.FIRST_PAUSE_S", 0.0),
    ):
        _each(lambda: json.dumps(identify_server(spec).as_dict(), allow_nan=False).encode(), texts)


def _each(*steps: Callable[[], object]) -> None:
    """Run all steps, also where an earlier one refuses; then raise the first refusal."""
    refusals: list[UniteError] = []
    for step in steps:
        try:
            step()
        except UniteError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def _run_folder(folder: Path, name: str, data: bytes) -> Path:
    """A run folder with one changed file."""
    run = folder / "run"
    run.mkdir()
    for path in _SEEDS.iterdir():
        if path.name != "ensemble.json":
            (run / path.name).write_bytes(data if path.name == name else path.read_bytes())
    return run


def _examples(run: Path) -> None:
    """Read a run and make what the page has of samples and methods, without the drawings, which take a second."""
    from advisor.run.folder import Run
    from reports.page import script_data
    from reports.report_data import report_data
    from reports.sections import questions

    data = report_data(Run.open(run))
    script_data(data).encode()
    questions.examples(data)


def _load(folder: Path, name: str, data: bytes) -> None:
    """Load a model, one file of which is changed."""
    model = folder / "model"
    model.mkdir()
    for path in (_MODELS / "terse-llama").iterdir():
        if path.name != name:
            # Copies: a link that leads out of the folder is refused, and nothing else would be tried.
            shutil.copyfile(path, model / path.name)
    (model / name).write_bytes(data)
    _load_checkpoint(str(model))


def _load_checkpoint(place: str) -> None:
    from advisor.models.fit import check_set
    from ensemble.models.load import load_member
    from ensemble.models.spec import Checkpoint, ModelSpec

    spec = ModelSpec(Checkpoint(place), "m")
    check_set([spec])
    member = load_member(spec)
    member.encode_prompt("1 + 1 =")


async def _ask(body: bytes, path: str) -> None:
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.sleep(3600)
        raise AssertionError  # the application does not wait for the client to leave

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
    }
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "client": ("127.0.0.1", 9)}
    scope |= {"server": ("127.0.0.1", 8000), "root_path": ""}
    scope["headers"] = [(b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json")]
    await _app()(scope, receive, send)
    status = sent[0]["status"]
    json.loads(b"".join(message.get("body", b"") for message in sent))
    # The engine accepts nothing, so a request that it would run gets 503.
    if status != 503:
        if not 400 <= status < 500:
            raise AssertionError(f"status {status}")
        raise InputError(f"status {status}")


@cache
def _app() -> Any:
    from advisor.serving.app import make_app
    from advisor.serving.metrics import Metrics
    from advisor.serving.protocol import RequestLimits
    from advisor.serving.request import unavailable
    from advisor.serving.responses import ServedModel

    def submit(_: object) -> None:
        raise unavailable("there is no model")

    served = ServedModel("tiny", ("a",), "unite", "f", 0)
    engine: Any = SimpleNamespace(submit=submit, refusing="", DECODES=False)
    return make_app(engine, served, RequestLimits(), Metrics(), None)


def offline(environment: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Set what keeps libraries from the network and from more threads; called before they are imported."""
    environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment.setdefault("OMP_NUM_THREADS", "1")


_IMPORTS = {
    "numbers": ("advisor.commands.select", "reports.terminal"),
    "logs": ("advisor.logs.lm_eval", "advisor.logs.helm", "advisor.logs.every_eval_ever", "inspect_ai.log"),
    "task": ("advisor.tasks", "datasets"),
    "request": ("advisor.serving.app",),
    "reply": ("openai", "advisor.models.server_model", "advisor.tasks.task"),
    **dict.fromkeys(
        ("config", "tokenizer", "safetensors", "gguf"), ("ensemble.models.load", "transformers.models.auto")
    ),
    **dict.fromkeys(
        ("result", "ensemble"), ("advisor.commands.evaluate", "advisor.commands.export", "ensemble.models.load")
    ),
    **dict.fromkeys(("report", "samples", "evaluation"), ("matplotlib.backends.backend_svg", "reports.page")),
}


def warm(names: Sequence[str]) -> None:
    """Import what the readers need, so that each child process need not."""
    for name in names:
        for module in _IMPORTS.get(name, ()):
            importlib.import_module(module)
