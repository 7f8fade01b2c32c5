"""Recorded answers of a real vLLM: members behind it write what the same models write in this process.

``python -m benchmarks.vllm --record tests/data/vllm_exchanges.json`` makes the file again. That is needed where the
requests change: a request that was not recorded is an error here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from servers import Answer, Raw, as_json, raw_server

from ensemble import Ensemble
from ensemble.decode.sequences import Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.servers.address import read_address
from ensemble.servers.client import ServerClient
from ensemble.servers.token_server import ServerLimits
from ensemble.servers.vllm import VllmServer

MODELS = Path(__file__).resolve().parents[1] / "advisor" / "demo" / "models"
EXCHANGES = Path(__file__).parent / "data" / "vllm_exchanges.json"
K = 10


class Replay:
    """Gives the recorded answers of a server; see :attr:`servers.Raw.answer`.

    Attributes:
        unknown: The requests that were not recorded.
    """

    def __init__(self, exchanges: list[dict[str, Any]]) -> None:
        self._exchanges = exchanges
        self.unknown: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, path: str, body: dict[str, Any]) -> Answer:
        for each in self._exchanges:
            if each["path"] == path and (each["request"] or {}) == body:
                return as_json(each["answer"], each["status"])
        self.unknown.append((path, body))
        # Not 500, after which a client tries again for minutes.
        return as_json({"error": {"message": "this request was not recorded"}}, 404)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(EXCHANGES.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def behind_vllm(recorded: dict[str, Any]) -> Iterator[Ensemble]:
    with ExitStack() as stack:
        lines, replays = [], []
        for member in recorded["members"]:
            server = stack.enter_context(raw_server())
            server.answer = Replay(member["exchanges"])
            replays.append(server.answer)
            lines.append(f"openai:{server.url}#{member['model']} tokenizer={MODELS / member['model']}")
        yield Ensemble.from_pretrained(lines, k=K, dtype="float32")
        assert [replay.unknown for replay in replays] == [[] for _ in replays]


@pytest.fixture(scope="module")
def here(recorded: dict[str, Any]) -> Ensemble:
    return Ensemble.from_pretrained([MODELS / member["model"] for member in recorded["members"]], k=K, dtype="float32")


def written(ensemble: Ensemble, recorded: dict[str, Any]) -> Generation:
    """A text without drafts, whose length depends on the time that requests take."""
    encoded = [ensemble.encode(recorded["prompt"])]
    [(_, generation)] = ensemble.generate_each(encoded, Settings(recorded["max_tokens"]), Batch(1, 0))
    return generation


def test_members_behind_vllm_write_what_they_write_here(
    behind_vllm: Ensemble, here: Ensemble, recorded: dict[str, Any]
) -> None:
    generation = written(behind_vllm, recorded)
    assert generation == written(here, recorded)
    assert (generation.text, generation.finish_reason) == (recorded["text"], "eos")


def test_members_behind_vllm_score_options_as_they_do_here(
    behind_vllm: Ensemble, here: Ensemble, recorded: dict[str, Any]
) -> None:
    scores = behind_vllm.score(recorded["prompt"], recorded["options"])
    assert scores == pytest.approx(here.score(recorded["prompt"], recorded["options"]), abs=1e-4)
    # Options are seldom among the top candidates, so their log-probabilities are asked for by id.
    requests = [exchange["request"] or {} for member in recorded["members"] for exchange in member["exchanges"]]
    assert any("logprob_token_ids" in request and len(request["prompt"]) > 1 for request in requests)


def test_a_version_without_chosen_ids_gives_them_as_the_last_tokens_of_prompts(raw: Raw) -> None:
    # As vLLM 0.32 answered it; of three prompt tokens, the first has no log-probability.
    prompt = [None, {"11": {"logprob": -6.490607261657715, "rank": 34, "decoded_token": "5"}}]
    values = {3: -8.178279876708984, 50: -6.317311763763428}
    choices = [
        {"index": n, "text": "9", "logprobs": None, "prompt_logprobs": [*prompt, {str(token): {"logprob": value}}]}
        for n, (token, value) in enumerate(values.items())
    ]
    raw.answer = lambda _path, _body: as_json({"choices": choices, "usage": {"prompt_tokens": 6}})
    with ServerClient(read_address(f"openai:{raw.url}#m", "a test")) as client:
        old = VllmServer(client, ServerLimits(k=20, contexts=8, chosen=16))
        old.appends = True
        assert old.chosen([[10, 11]], [3, 50]) == [values]
    assert [body["prompt"] for _, _, body in raw.asked] == [[[10, 11, 3], [10, 11, 50]]]
