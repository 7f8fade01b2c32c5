"""Adapters of servers that give log-probabilities by token id.

vLLM's answers are recorded from a real server. ``python -m benchmarks.vllm --record tests/data/vllm_exchanges.json``
makes them again, which is needed where the requests change: a request that was not recorded is an error here.
llama.cpp's are recorded, too, see ``data/llama_cpp_exchanges.json``. SGLang's are not: they are written as the source
of version 0.5.23 forms them.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from servers import Answer, Raw, as_json, models, raw_server
from transformers import AutoModelForCausalLM

from ensemble import Ensemble
from ensemble.decode.sequences import Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.errors import InputError
from ensemble.servers import llama_cpp, sglang
from ensemble.servers.address import ServerAddress, read_address
from ensemble.servers.client import ServerClient, ServerError
from ensemble.servers.llama_cpp import LlamaCppServer
from ensemble.servers.sglang import SglangServer
from ensemble.servers.token_client import connect
from ensemble.servers.token_server import ServerLimits
from ensemble.servers.vllm import VllmServer

ROOT = Path(__file__).resolve().parents[1]
RECORDED = json.loads((ROOT / "tests/data/llama_cpp_exchanges.json").read_text(encoding="utf-8"))
CONTEXTS = next(each["request"]["prompt"] for each in RECORDED["plain"] if each["request"].get("n_probs") == 8)
"""Contexts that were sent to the recorded server."""


@contextmanager
def connected(model: str = "m") -> Iterator[tuple[Raw, ServerClient]]:
    with raw_server() as raw, ServerClient(ServerAddress(raw.url, model), retries=0) as client:
        yield raw, client


def replay(exchanges: list[dict[str, Any]]) -> Callable[[str, dict[str, Any]], Answer]:
    """A server's answers to recorded requests; not 500 to others, after which a client tries again for minutes."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        found = [each for each in exchanges if (each["path"], each["request"] or {}) == (path, body)]
        return as_json(found[0]["answer"], found[0]["status"]) if found else as_json({"error": "not recorded"}, 418)

    return answer


@contextmanager
def recorded(kind: str = "plain", k: int = 110, context: int = 256, plain: int = 15) -> Iterator[LlamaCppServer]:
    """The recorded llama.cpp server."""
    with connected({"plain": "novice-llama"}.get(kind, kind)) as (raw, client):
        raw.answer = replay(RECORDED[kind])
        yield LlamaCppServer(client, ServerLimits(k, 64, 128, context), plain)


def without_path(function: Callable[[list[int]], Any]) -> Callable[[str, dict[str, Any]], Answer]:
    """A llama.cpp server whose answers to one context come from a function."""
    return lambda _path, body: as_json([function(context) for context in body["prompt"]])


def test_llama_cpp_gives_transformers_log_probabilities_and_its_limits() -> None:
    """The recorded log-probabilities are those of the same weights in transformers."""
    model = AutoModelForCausalLM.from_pretrained(ROOT / "advisor/demo/models/novice-llama", dtype=torch.float32)
    with connected("novice-llama") as (raw, client):
        raw.answer = replay(RECORDED["plain"])
        server = llama_cpp.probe(client)
        assert server is not None
        assert server.limits == ServerLimits(k=110, contexts=64, chosen=128, context=256)
        answers = server.write(CONTEXTS, 1, 8)
    for context, (token,) in zip(CONTEXTS, answers, strict=True):
        expected = model(torch.tensor([context])).logits[0, -1].log_softmax(-1)
        assert token.token == expected.argmax()
        assert list(token.top) == expected.topk(8).indices.tolist()
        assert list(token.top.values()) == pytest.approx(expected.topk(8).values.tolist(), abs=1e-4)


def test_llama_cpp_draft_ends_with_eos() -> None:
    with recorded() as server:
        ((*_, last),) = server.write(CONTEXTS[:1], 40, 1)
    assert last.token == 1
    assert last.top == {1: pytest.approx(-0.00037, abs=1e-5)}


def test_llama_cpp_draft_ends_at_the_end_of_the_context() -> None:
    context = [20, 21] * 126 + [22]
    with recorded() as server:
        (tokens,) = server.write([context], 8, 1)
    assert len(context) + len(tokens) == 256


def test_llama_cpp_refuses_a_full_context() -> None:
    with recorded() as server, pytest.raises(ServerError, match="exceeds the available context size") as error:
        server.write([[20] * 256], 1, 1)
    assert error.value.failure == "refused"


def test_llama_cpp_gives_chosen_ids_that_are_not_among_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "_USUAL_K", 4)
    with recorded() as server:
        values = server.chosen([CONTEXTS[0], [40, 41]], [1, 5, 50])
    model = AutoModelForCausalLM.from_pretrained(ROOT / "advisor/demo/models/novice-llama", dtype=torch.float32)
    for context, logprobs in zip([CONTEXTS[0], [40, 41]], values, strict=True):
        expected = model(torch.tensor([context])).logits[0, -1].log_softmax(-1)
        assert logprobs == {index: pytest.approx(expected[index].item(), abs=1e-4) for index in (1, 5, 50)}


def test_llama_cpp_reads_places_within_a_character_again() -> None:
    """llama.cpp leaves out the log-probabilities of a token after which a character is not complete."""
    with recorded("partial", 400, 512, 269) as server:
        (tokens,) = server.write([[44, 310, 276, 210, 19, 124]], 4, 2)
    assert [token.token for token in tokens] == [229, 229, 229, 175]
    assert all(set(token.top) == {229, 175} for token in tokens)


def test_llama_cpp_names_a_chosen_id_that_it_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "_USUAL_K", 4)
    says = "log-probability of token 230, whose text is a part of a character"
    with recorded("partial", 20, 512, 269) as server, pytest.raises(ServerError, match=says):
        server.chosen([[44, 310, 276, 210, 19, 124]], [230])


def test_llama_cpp_reads_places_of_speculative_decoding_again() -> None:
    with recorded("speculative", 400, 512, 14) as server:
        (tokens,) = server.write([[200, 391, 218, 23, 135, 264, 251, 210]], 12, 1)
    assert [token.token for token in tokens] == [14, 276, 276, 25, 14, 276, 14, 276, 14, 14, 14, 14]
    assert all(-10 < token.top[token.token] < 0 for token in tokens)


def test_llama_cpp_answers_are_split_by_their_size() -> None:
    """Three contexts whose log-probabilities would exceed the largest answer are sent one by one."""
    with connected() as (raw, client):
        top = [{"id": index, "logprob": -5.0} for index in range(8_000)]
        raw.answer = without_path(lambda context: entries(context, [{"id": 0, "logprob": -5.0, "top_logprobs": top}]))
        answers = LlamaCppServer(client, ServerLimits(8_000, 64, 0), 15).write([[1], [2], [3]], 1, 8_000)
    assert [len(answer) for answer in answers] == [1, 1, 1]
    assert [len(body["prompt"]) for _, _, body in raw.asked] == [2, 1]


def test_llama_cpp_tokenizes() -> None:
    with recorded() as server:
        ids = server.tokenize("Tom has 3 apples.")
    assert ids == [56, 31, 46, 44, 56, 40, 33, 49, 56, 9, 56, 33, 47, 47, 43, 37, 49, 5]


@pytest.mark.parametrize("probe", [llama_cpp.probe, sglang.probe])
@pytest.mark.parametrize(
    "answer",
    [
        as_json({"error": {"message": "File Not Found"}}, 404),
        as_json({"detail": "Method Not Allowed"}, 405),
        as_json({"error": {"message": "prompt must be a string"}}, 400),
        as_json({"content": "Hello"}),
        as_json([1, 2]),
        (200, {}, b"<html>"),
    ],
)
def test_a_server_of_another_kind_is_none_and_a_wrong_key_is_not_another_kind(
    probe: Callable[[ServerClient], object], answer: Answer
) -> None:
    with connected() as (raw, client):
        raw.answer = lambda path, _body: models("m") if path == "/v1/models" else answer
        assert probe(client) is None
        raw.answer = lambda _path, _body: as_json({"error": {"message": "Unauthorized"}}, 401)
        with pytest.raises(ServerError, match="needs a key"):
            probe(client)


def test_requests_beside_v1_carry_the_key_and_keep_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_API_KEY", "a-long-secret")
    with raw_server() as raw:
        raw.answer = replay(RECORDED["plain"])
        with ServerClient(ServerAddress(raw.url, "novice-llama", key_env="OWN_API_KEY")) as client:
            assert llama_cpp.probe(client) is not None
    assert {headers["authorization"] for _, headers, _ in raw.asked} == {"Bearer a-long-secret"}
    assert {path for path, _, _ in raw.asked} == {"/completion", "/props"}


def entries(context: list[int], probabilities: list[Any], tokens: list[Any] | None = None) -> dict[str, Any]:
    """A result of llama.cpp."""
    return {
        "tokens": tokens or [each["id"] for each in probabilities],
        "tokens_evaluated": len(context),
        "stop_type": "limit",
        "completion_probabilities": probabilities,
    }


def hostile(*changes: tuple[list[Any], Any]) -> Any:
    """Test cases: a place in an answer, and what is there instead."""
    return pytest.mark.parametrize(("place", "value"), changes, ids=[f"{place}={value}" for place, value in changes])


@contextmanager
def invalid(place: str) -> Iterator[None]:
    """The block ends with the error of one line for an answer of this address."""
    with pytest.raises(ServerError) as error:
        yield
    assert error.value.failure == "invalid"
    assert f"{place}: the answer" in str(error.value)
    assert "\n" not in str(error.value)


def changed(answer: Any, place: list[Any], value: Any) -> Any:
    answer = copy.deepcopy(answer)
    at = answer
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    return answer


_ENTRY = {"id": 5, "logprob": -0.1, "top_logprobs": [{"id": 5, "logprob": -0.1}, {"id": 6, "logprob": -2.5}]}
_PLACE = ["completion_probabilities", 0]


@hostile(
    (["tokens"], []),
    (["tokens", 0], -1),
    (["tokens_evaluated"], 3),
    (["completion_probabilities"], []),
    (_PLACE, None),
    ([*_PLACE, "id"], 7),
    ([*_PLACE, "logprob"], None),
    ([*_PLACE, "top_logprobs"], [{"id": 5, "logprob": -0.1}]),
    ([*_PLACE, "top_logprobs", 1, "id"], 5),
    ([*_PLACE, "top_logprobs", 1, "logprob"], math.nan),
    ([*_PLACE, "top_logprobs", 1, "logprob"], 0.5),
    ([*_PLACE, "top_logprobs", 0, "logprob"], -3.4e38),
    ([*_PLACE, "top_logprobs", 1, "logprob"], -0.01),
)
def test_llama_cpp_hostile_answers_are_one_line(place: list[Any], value: Any) -> None:
    with connected() as (raw, client):
        raw.answer = without_path(lambda context: changed(entries(context, [_ENTRY]), place, value))
        with invalid(f"{raw.url.removesuffix('/v1')}/completion"):
            LlamaCppServer(client, ServerLimits(100, 64, 128), 9).write([[1, 2]], 1, 2)
        # One result for two contexts.
        raw.answer = lambda _path, body: as_json(entries(body["prompt"][0], [_ENTRY]))
        with pytest.raises(ServerError, match="does not have 2 results"):
            LlamaCppServer(client, ServerLimits(100, 64, 128), 9).write([[1, 2], [3, 4]], 1, 2)


_SIZE, _EOS, _LENGTH = 110, 1, 64
"""Vocabulary, EOS and context of the written SGLang."""


def toy_logprobs(context: list[int]) -> torch.Tensor:
    """Log-probabilities of a toy model."""
    logits = torch.randn(_SIZE, generator=torch.Generator().manual_seed(random.Random(str(context)).randrange(2**31)))
    return (3 * logits).log_softmax(-1)


def sglang_answer(path: str, body: dict[str, Any]) -> Answer:
    """What SGLang 0.5.23 answers, written from its source and not recorded."""
    if path == "/v1/models":
        return as_json({"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": _LENGTH}]})
    if path == "/tokenize":
        return as_json({"tokens": [5, 6], "count": 2, "max_model_len": _LENGTH})
    results = []
    for number, context in enumerate(body["input_ids"]):
        wanted = body["sampling_params"][number]["max_new_tokens"]
        if len(context) >= _LENGTH or len(context) + wanted > _LENGTH:
            return as_json({"error": {"message": f"The input ({len(context)} tokens) is longer than the model's"}}, 400)
        written: list[int] = []
        chosen: list[Any] = []
        tops: list[Any] = []
        own: list[Any] = []
        while len(written) < wanted and _EOS not in written:
            logprobs = toy_logprobs([*context, *written])
            written.append(int(logprobs.argmax()))
            chosen.append([logprobs[written[-1]].item(), written[-1], None])
            top = logprobs.topk(body["top_logprobs_num"])
            tops.append(
                [[value, index, None] for value, index in zip(top.values.tolist(), top.indices.tolist(), strict=True)]
            )
            own.append([[logprobs[index].item(), index, None] for index in body["token_ids_logprob"] or ()] or None)
        stop = {"type": "stop", "matched": _EOS} if _EOS in written else {"type": "length", "length": wanted}
        meta = {
            **{"id": "0", "finish_reason": stop, "prompt_tokens": len(context), "completion_tokens": len(written)},
            **{
                "input_token_logprobs": [],
                "output_token_logprobs": chosen,
                "output_token_logprobs_length": len(chosen),
            },
            **{"input_top_logprobs": [], "output_top_logprobs": tops},
        }
        if body["token_ids_logprob"] is not None:
            meta |= {"input_token_ids_logprobs": [], "output_token_ids_logprobs": own}
        results.append({"text": "", "output_ids": written, "meta_info": meta})
    return as_json(results)


def test_sglang_gives_the_models_log_probabilities_and_its_limits() -> None:
    contexts = [[3, 4, 5], [6]]
    with connected() as (raw, client):
        raw.answer = sglang_answer
        server = sglang.probe(client)
        assert server is not None
        assert server.limits == ServerLimits(k=64, contexts=256, chosen=128, context=_LENGTH)
        answers = server.write(contexts, 4, 7)
    for context, tokens in zip(contexts, answers, strict=True):
        for token in tokens:
            expected = toy_logprobs(context).topk(7)
            assert token.token == expected.indices[0]
            assert token.top == dict(zip(expected.indices.tolist(), expected.values.tolist(), strict=True))
            context.append(token.token)


def test_sglang_gives_chosen_ids() -> None:
    with connected() as (raw, client):
        raw.answer = sglang_answer
        (values,) = SglangServer(client, ServerLimits(64, 256, 128)).chosen([[3, 4]], [7, 100, 2])
    assert values == {index: toy_logprobs([3, 4])[index].item() for index in (7, 100, 2)}


def test_sglang_is_not_asked_for_tokens_beyond_its_context() -> None:
    """SGLang refuses a request that might leave the context, so each context gets its own number of tokens."""
    with connected() as (raw, client):
        raw.answer = sglang_answer
        answers = SglangServer(client, ServerLimits(64, 256, 128, _LENGTH)).write([[3] * (_LENGTH - 1), [4]], 6, 1)
    assert len(answers[0]) == 1
    assert [each["max_new_tokens"] for each in raw.asked[0][2]["sampling_params"]] == [1, 6]


@pytest.mark.parametrize(
    ("answer", "says", "failure"),
    [
        (sglang_answer, "longer than the model's", "refused"),
        (
            lambda _path, _body: as_json([{"meta_info": {"finish_reason": {"type": "abort"}}}]),
            "stopped a request",
            "temporary",
        ),
    ],
    ids=["full context", "stopped"],
)
def test_a_request_that_sglang_does_not_finish_says_whether_it_may_be_sent_again(
    answer: Callable[[str, dict[str, Any]], Answer], says: str, failure: str
) -> None:
    with connected() as (raw, client):
        raw.answer = answer
        with pytest.raises(ServerError, match=says) as error:
            SglangServer(client, ServerLimits(64, 256, 128, _LENGTH)).write([[3] * _LENGTH], 1, 1)
    assert error.value.failure == failure


def test_sglang_tokenizes() -> None:
    with connected() as (raw, client):
        raw.answer = sglang_answer
        server = SglangServer(client, ServerLimits(64, 256, 128))
        assert server.tokenize("Hello") == [5, 6]
        raw.answer = lambda _path, _body: as_json({"detail": "Not Found"}, 404)
        assert server.tokenize("Hello") is None


_META = {
    **{"finish_reason": {"type": "length", "length": 1}, "prompt_tokens": 2},
    "output_token_logprobs": [[-0.1, 5, None]],
    "output_top_logprobs": [[[-0.1, 5, None], [-2.5, 6, None]]],
    "output_token_ids_logprobs": [[[-2.5, 6, None]]],
}


@hostile(
    (["prompt_tokens"], 3),
    (["output_token_logprobs"], None),
    (["output_token_logprobs", 0, 0], None),
    (["output_token_logprobs", 0, 0], math.nan),
    (["output_token_logprobs", 0, 1], -5),
    (["output_top_logprobs"], [[], []]),
    (["output_top_logprobs", 0], [[-0.1, 5, None]]),
    (["output_top_logprobs", 0, 1, 0], -0.01),
    (["output_top_logprobs", 0, 1, 0], 0.5),
)
def test_sglang_hostile_answers_are_one_line(place: list[Any], value: Any) -> None:
    with connected() as (raw, client):
        raw.answer = lambda _path, _body: as_json([{"meta_info": changed(_META, place, value)}])
        with invalid(f"{raw.url.removesuffix('/v1')}/generate"):
            SglangServer(client, ServerLimits(64, 256, 128)).write([[1, 2]], 1, 2)


@hostile(
    (["output_token_ids_logprobs"], None),
    (["output_token_ids_logprobs"], []),
    (["output_token_ids_logprobs"], [None]),
    (["output_token_ids_logprobs", 0, 0, 0], "x"),
    (["output_token_ids_logprobs", 0, 0, 1], 7),
    (["output_token_logprobs", 0, 0], None),
)
def test_sglang_hostile_chosen_ids_are_one_line(place: list[Any], value: Any) -> None:
    with connected() as (raw, client):
        raw.answer = lambda _path, _body: as_json([{"meta_info": changed(_META, place, value)}])
        with invalid("/generate"):
            SglangServer(client, ServerLimits(64, 256, 128)).chosen([[1, 2]], [6])


def vllm_answer() -> dict[str, Any]:
    """As vLLM 0.32 answers one context of two ids."""
    top = {"token_id:5": -0.1, "token_id:6": -2.5}
    logprobs = {"text_offset": [0], "token_logprobs": [-0.1], "tokens": ["token_id:5"], "top_logprobs": [top]}
    choice = {"index": 0, "text": " a", "logprobs": logprobs, "finish_reason": "length"}
    return {"choices": [choice], "usage": {"prompt_tokens": 2, "total_tokens": 3, "completion_tokens": 1}}


_LOGPROBS = ["choices", 0, "logprobs"]


@hostile(
    (["choices"], []),
    (["choices", 0], None),
    (["choices", 0, "index"], 1),
    (["usage"], None),
    (["usage", "prompt_tokens"], 3),
    (_LOGPROBS, None),
    ([*_LOGPROBS, "tokens"], []),
    ([*_LOGPROBS, "tokens", 0], "token_id:-5"),
    ([*_LOGPROBS, "tokens", 0], "token_id:6"),
    ([*_LOGPROBS, "token_logprobs"], []),
    ([*_LOGPROBS, "token_logprobs", 0], None),
    ([*_LOGPROBS, "top_logprobs", 0], {"token_id:5": -0.1}),
    ([*_LOGPROBS, "top_logprobs", 0, "token_id:6"], math.nan),
)
def test_vllm_hostile_answers_are_one_line(place: list[Any], value: Any) -> None:
    with connected() as (raw, client):
        raw.answer = lambda _path, _body: as_json(changed(vllm_answer(), place, value))
        with invalid(f"{raw.url}/completions"):
            VllmServer(client, ServerLimits(20, 64, 128)).write([[1, 2]], 1, 2)


def test_minus_infinity_is_read_as_each_server_writes_it() -> None:
    with connected() as (raw, client):
        lowest = changed(entries([1], [_ENTRY]), [*_PLACE, "top_logprobs", 1, "logprob"], -3.4028234663852886e38)
        raw.answer = without_path(lambda _: lowest)
        ((token,),) = LlamaCppServer(client, ServerLimits(100, 64, 128), 9).write([[1]], 1, 2)
        assert token.top == {5: -0.1, 6: -math.inf}
        answer = changed(vllm_answer(), [*_LOGPROBS, "top_logprobs", 0, "token_id:6"], -9999.0)
        raw.answer = lambda _path, _body: as_json(answer)
        ((token,),) = VllmServer(client, ServerLimits(20, 64, 128)).write([[1, 2]], 1, 2)
        assert token.top == {5: -0.1, 6: -math.inf}
        meta = changed(_META, ["output_token_ids_logprobs", 0, 0, 0], None)
        raw.answer = lambda _path, _body: as_json([{"meta_info": meta}])
        assert SglangServer(client, ServerLimits(64, 256, 128)).chosen([[1, 2]], [6]) == [{6: -math.inf}]


def test_values_that_are_no_log_probabilities_say_which_option_gives_them() -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        if path.endswith("/models"):
            return as_json({"data": [{"id": "m", "max_model_len": 64}]})
        contexts, count, k = body["prompt"], body["max_tokens"], body.get("logprobs", 1)
        top = {f"token_id:{n}": 9.5 - n for n in range(k)}
        logprobs = {"tokens": ["token_id:0"] * count, "token_logprobs": [9.5] * count, "top_logprobs": [top] * count}
        choices = [{"index": n, "text": "", "logprobs": logprobs} for n in range(len(contexts))]
        return as_json({"choices": choices, "usage": {"prompt_tokens": sum(map(len, contexts))}})

    with raw_server() as raw:
        raw.answer = answer
        with pytest.raises(InputError, match=r"^name: its server does not give .* --logprobs-mode raw_logprobs$"):
            connect(ServerAddress(raw.url, "m"), "name")


# --- Recorded answers of a real vLLM: members behind it write what the same models write in this process ---

MODELS = ROOT / "advisor" / "demo" / "models"
EXCHANGES = Path(__file__).parent / "data" / "vllm_exchanges.json"
K = 10


@pytest.fixture(scope="module")
def of_vllm() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(EXCHANGES.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def behind_vllm(of_vllm: dict[str, Any]) -> Iterator[Ensemble]:
    with ExitStack() as stack:
        lines = []
        for member in of_vllm["members"]:
            server = stack.enter_context(raw_server())
            server.answer = replay(member["exchanges"])
            lines.append(f"openai:{server.url}#{member['model']} tokenizer={MODELS / member['model']}")
        yield Ensemble.from_pretrained(lines, k=K, dtype="float32")


@pytest.fixture(scope="module")
def here(of_vllm: dict[str, Any]) -> Ensemble:
    return Ensemble.from_pretrained([MODELS / member["model"] for member in of_vllm["members"]], k=K, dtype="float32")


def written(ensemble: Ensemble, of_vllm: dict[str, Any]) -> Generation:
    """A text without drafts, whose length depends on the time that requests take."""
    encoded = [ensemble.encode(of_vllm["prompt"])]
    [(_, generation)] = ensemble.generate_each(encoded, Settings(of_vllm["max_tokens"]), Batch(1, 0))
    return generation


def test_members_behind_vllm_write_what_they_write_here(
    behind_vllm: Ensemble, here: Ensemble, of_vllm: dict[str, Any]
) -> None:
    generation = written(behind_vllm, of_vllm)
    assert generation == written(here, of_vllm)
    assert (generation.text, generation.finish_reason) == (of_vllm["text"], "eos")


def test_members_behind_vllm_score_options_as_they_do_here(
    behind_vllm: Ensemble, here: Ensemble, of_vllm: dict[str, Any]
) -> None:
    scores = behind_vllm.score(of_vllm["prompt"], of_vllm["options"])
    assert scores == pytest.approx(here.score(of_vllm["prompt"], of_vllm["options"]), abs=1e-4)
    # Options are seldom among the top candidates, so their log-probabilities are asked for by id.
    requests = [exchange["request"] or {} for member in of_vllm["members"] for exchange in member["exchanges"]]
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
