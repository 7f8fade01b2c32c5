"""The benchmarks run and keep their promises about what they print; how fast anything is, no test says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from servers import as_json, raw_server

from advisor.demo import train
from advisor.records import Answer, Profile
from benchmarks import (
    _methods_page,
    _rows,
    decode,
    equality,
    fusion,
    gpu,
    pool,
    profiling,
    serving,
    start,
    steps,
    structured,
    sync,
)
from benchmarks._measure import Figure, Timer, ratio
from benchmarks._models import made_up_tokenizer
from benchmarks._proxies import delayed, recorded
from benchmarks.studies import _method_budgets, _outcomes, advice, methods
from ensemble.methods import list_methods


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_decode_prints_one_json_object_with_every_promised_ratio(capsys):
    assert decode.main(["--quick", "--json", "--threads", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(decode.KEYS) <= set(printed)
    assert all(value is None or value > 0 for value in printed.values())
    for name in ("step_over_topk", "plain_over_members_middle", "tables_first_s", "tables_again_s", "peak_memory_mib"):
        assert printed[name] is not None, name


def test_equality_counts_its_cases_and_finds_no_difference(capsys):
    assert equality.main(["--quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert tuple(printed) == equality.KEYS
    assert (printed["reference_cases"], printed["ensembles_cases"], printed["kinds_cases"]) == (7, 2, 5)
    assert not any(printed[key] for key in equality.KEYS if key.endswith("_differences"))


def test_fusion_prints_one_json_object_with_shares(capsys):
    assert fusion.main(["--quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed) == 16
    assert all(0 <= value <= 1 for value in printed.values())


def test_start_prints_one_json_object_with_every_figure(capsys):
    assert start.main(["--quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert tuple(printed) == start.KEYS
    assert printed["help_over_python"] > 0


def test_gpu_runs_on_a_processor_too_and_keeps_its_result_with_the_hardware(capsys, tmp_path: Path):
    assert gpu.main(["--quick", "--json", "--device", "cpu", "--threads", "1", "--save", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    for name in ("step_over_topk", "plain_over_members_qwen2_llama3", "speculative_over_primary_llama2_qwen2"):
        assert printed[name] > 0, name
    kept = json.loads((tmp_path / "gpu-cpu.json").read_text(encoding="utf-8"))
    assert {"processor", "cores", "memory_gib", "torch", "torch_threads"} <= set(kept["machine"])
    assert {name: figure["value"] for name, figure in kept["figures"].items()} == printed


def test_profiling_writes_as_much_as_lm_eval_and_the_same(capsys, tmp_path: Path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    # The other parts start process after process, each of which loads torch.
    options = ["--quick", "--json", "--threads", "1", "--only", "throughput"]
    assert profiling.main([*options, "--save", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(profiling.KEYS) <= set(printed)
    assert printed["throughput_over_lm_eval"] > 0
    assert printed["same_responses"] == 1
    assert json.loads((tmp_path / "profiling.json").read_text(encoding="utf-8"))["quick"] is True


def test_gpu_prints_one_table_that_says_what_was_left_out(capsys):
    assert gpu.main(["--quick", "--device", "cpu", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| name | measured | unit | limit | note |"
    rows = {cells[0]: cells[1:] for line in lines[2:] if len(cells := line.strip("| ").split(" | ")) > 1}
    assert all(line.count("|") == 6 for line in lines)
    assert rows["device"][0] == "cpu"
    assert rows["torch"][0] == torch.__version__
    assert rows["host_ms_per_step_1"][1:3] == ["ms", "at most 0.3"]
    assert rows["joining_peak_over_held"][0] == "not measured"
    assert "cpu does not report" in rows["joining_peak_over_held"][-1]


def test_gpu_leaves_out_what_fails_and_what_has_no_time(monkeypatch: pytest.MonkeyPatch, capsys):
    now = 0.0
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now)

    def fail(_: gpu.Run) -> list[Figure]:
        raise NotImplementedError("no such operation\non this device")

    def take_all(_: gpu.Run) -> list[Figure]:
        nonlocal now
        now = 60.0
        return [Figure("taken", 1.0)]

    monkeypatch.setattr(gpu, "_steps", fail)
    monkeypatch.setattr(gpu, "_half", take_all)
    assert gpu.main(["--quick", "--device", "cpu", "--minutes", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| step_over_topk | not measured | ratio |  | NotImplementedError: no such operation |" in lines
    assert "| taken | 1 |  |  |  |" in lines
    assert "| host_ms_per_step | not measured | ms |  | the 1 minutes were over |" in lines


def test_structured_finds_no_invalid_text(capsys):
    assert structured.main(["--quick", "--json", "--threads", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["invalid_outputs"] == printed["refused_schemas"] == 0
    assert printed["finished_share"] > 0.5
    assert printed["grammar_over_plain"] > 0
    assert printed["tool_calls_gain_difference"] in (None, 0)


def test_sync_counts_for_every_way_to_decode(capsys, tmp_path: Path):
    assert sync.main(["--quick", "--json", "--threads", "1", "--save", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    for name in ("device_reads_per_step", "kernels_per_step_1", "copies_per_step_1", "host_ms_per_step_1_three_tiny"):
        assert printed[name] > 0, name
    ways = [printed[f"device_reads_{way}"] for way in ("plain", "traced", "sampled", "logprobs")]
    assert printed["device_reads_per_step"] == max(ways)
    # It would be an error on a machine with a device.
    assert printed["mixed_operations"] == 0
    assert json.loads((tmp_path / "sync.json").read_text(encoding="utf-8"))["quick"] is True


@pytest.mark.skipif(
    torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU that torch sees"
)
def test_gpu_says_that_there_is_none(capsys):
    assert gpu.main(["--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == {}
    assert len(output.err.splitlines()) == 1


def test_pool_does_the_whole_job_on_stored_responses(capsys, tmp_path: Path):
    assert pool.main(["--quick", "--json", "--threads", "1", "--save", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    for name in ("seconds_2", "seconds_4", "seconds_first", "growth", "memory_4_mib", "report_mib"):
        assert printed[name] is not None, name
    assert printed["seconds_4"] >= printed["seconds_report"] > 0
    assert json.loads((tmp_path / "pool.json").read_text(encoding="utf-8"))["quick"] is True


def test_steps_measures_every_token_level_method_that_fits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert steps.main(["--quick", "--json", "--threads", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    names = [name.replace("-", "_") for name, method in list_methods().items() if method.level == "token"]
    whole = {"unite_ms", "peak_memory_mib"}
    assert printed.keys() == {*whole, *(f"{name}_over_unite" for name in names[1:])}
    unmeasured = {name for name, value in printed.items() if value is None}
    assert unmeasured == {"average_over_unite", "deepen_adapt_over_unite"}


def test_advice_decodes_a_zoo_and_tells_what_each_strategy_loses(capsys, tmp_path: Path):
    assert advice.main(["--quick", "--json", "--threads", "1", "--save", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["models"], printed["sets"]) == (3, 4)
    for name in ("regret_single", "regret_rules", "regret_recommended", "false_ensemble"):
        assert printed[name] is not None, name
    assert printed["best_set"] > 0
    assert 0 < printed["coverage"] <= 1
    assert json.loads((tmp_path / "advice.json").read_text(encoding="utf-8"))["quick"] is True


def test_outcomes_that_were_kept_are_read_as_they_were(tmp_path: Path):
    def answers(digits: str) -> tuple[Answer, ...]:
        return tuple(
            Answer(f"test-{n}", "x" * n, None if one == "-" else one, float(one == "R"), "eos")
            for n, one in enumerate(digits)
        )

    profiles = {name: Profile(name, answers(digits)) for name, digits in {"a": "RR57-R5R7", "b": "R75--R5R5"}.items()}
    right = np.array([True, False, False, True, True, False, True, False, True])
    outcomes = _outcomes.Outcomes("task:sums", ("a", "b"), profiles, {("a", "b"): right})
    _outcomes.keep(outcomes, tmp_path / "zoo.json")
    again = _outcomes.read(tmp_path / "zoo.json")
    assert (again.signature, again.models) == ("task:sums", ("a", "b"))
    assert again.sets["a", "b"].tolist() == right.tolist()
    for name, profile in profiles.items():
        assert [answer.score for answer in again.profiles[name].answers] == [one.score for one in profile.answers]
        assert again.profiles[name].mean_length == profile.mean_length
    said = [[one.answers[n].extracted for n in range(9)] for one in again.profiles.values()]
    # The same wrong answer to a question has the same name, and another one another.
    assert [a == b and a is not None for a, b in zip(*said, strict=True)] == [
        *(True, False, True, False, False, True, True, True, False)
    ]
    assert said[0][4] is None


def test_methods_stand_side_by_side_with_figures_and_their_table(capsys, tmp_path: Path):
    assert methods.main(["--quick", "--json", "--threads", "1", "--save", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    for name in ("unite_accuracy", "deepen_adapt_accuracy", "voting_delta", "gac_p", "gac_over_unite"):
        assert printed[name] is not None, name
    # Without training, every seed has the same models.
    assert printed["unite_seed1"] == printed["unite_seed2"] == pytest.approx(printed["unite_accuracy"])
    assert printed["gac_threshold_over_gate"] > 0 <= printed["gac_threshold_share"]
    kept = json.loads((tmp_path / "methods.json").read_text(encoding="utf-8"))
    assert "| `unite` |" in _methods_page.measured(kept)
    assert [entry["method"] for entry in kept["table"]["methods"]] == [*list_methods(), "self-consistency"]
    left_out = {entry["method"]: entry["left_out"] for entry in kept["table"]["methods"] if entry["left_out"]}
    # Six questions teach no router.
    assert set(left_out) == {"average", "fuse", "rerank", "router"}
    assert "it needs a reward model" in left_out["rerank"]


def test_a_budget_is_the_tokens_of_all_models():
    def entry(name: str, level: str, tokens: float, share: float | None = None) -> dict[str, Any]:
        costs = {"seconds_per_question": 0.002 * tokens, "ms_per_token": 2.0, "share_ensembled": share}
        return {"method": name, "level": level, "left_out": None, "tokens_per_question": 0, **costs}

    rows = [
        entry("unite", "token", 6, 1.0),
        entry("safe", "token", 6, 0.1),
        entry("gac-threshold", "token", 6, 0.5),
        entry("sweetspan", "span", 6, 1.0),
        entry("voting", "response", 1),
        entry("router", "response", 1),
        {**entry("moa", "response", 1), "tokens_per_question": 25},
        entry("self-consistency", "control", 4),
        {"method": "average", "level": "token", "left_out": "it needs one vocabulary"},
    ]
    alone = [entry(name, "single", tokens) for name, tokens in (("a", 5), ("b", 6), ("c", 7))]
    tokens = _method_budgets.tokens_of({"members": alone, "methods": rows})
    # Only where members wait do the steps of one model cost less.
    expected = {"unite": 18, "safe": 18, "gac-threshold": 12, "sweetspan": 18}
    expected |= {"voting": 18, "router": 6, "moa": 25}
    assert tokens == pytest.approx({**expected, "self-consistency": 4})
    assert [_method_budgets.draws_of(budget, tokens, 3) for budget in (6, 18, 21)] == [3, 4, 5]


def test_the_order_of_methods_holds_where_no_two_trainings_contradict_each_other():
    right = np.array([[1.0] * n + [0.0] * (10 - n) for n in range(11)])

    def trained(*correct: int) -> _method_budgets.Trained:
        own = {name: right[n] for name, n in zip("abc", correct, strict=True)}
        return _method_budgets.Trained(None, {}, own, right[0], {}, {}, {})  # type: ignore[arg-type]  # not read here

    figures = {each.name: each for each in _method_budgets.order(["a", "b", "c"], [trained(9, 5, 4), trained(8, 3, 3)])}
    assert figures["order_held"].value == 1.0
    figures = {each.name: each for each in _method_budgets.order(["a", "b", "c"], [trained(9, 5, 4), trained(8, 3, 4)])}
    assert figures["order_held"].value == pytest.approx(2 / 3)


def test_only_the_missing_models_of_a_seed_are_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    called: list[dict[str, Any]] = []
    monkeypatch.setattr(train, "main", lambda **given: called.append(given))
    models = tmp_path / "demo-seed-2" / "models"
    (models / "terse-neox").mkdir(parents=True)
    (models / "terse-neox" / "training.json").write_text("{}", encoding="utf-8")
    assert methods.models_of(2, ["terse-neox", "terse-olmo"], tmp_path) == models
    assert called == [{"only": ["terse-olmo"], "out": models.parent, "seed": 2}]


def test_no_two_models_of_any_training_have_the_same_seed():
    seeds = [recipe.seed for training in (1, 2, 3) for recipe in train.recipes_of(training)]
    assert len({*seeds}) == len(seeds)
    assert train.recipes_of(1) == [*train.RECIPES]


def test_parts_take_turns_and_the_first_turn_does_not_count():
    turns: list[str] = []
    times = Timer(2)({name: lambda name=name: turns.append(name) or 1 for name in "ab"})
    assert turns == ["a", "b"] * 3
    assert [len(rounds) for rounds in times.values()] == [2, 2]


def test_a_ratio_is_taken_within_each_round():
    figure = ratio("some", [2.0, 40.0, 6.0], [1.0, 10.0, 1.0], [1.0, 10.0, 1.0])
    assert (figure.value, figure.low, figure.high) == (2.0, 1.0, 3.0)


def test_made_up_vocabularies_have_their_size_share_words_and_read_text():
    one, other = (made_up_tokenizer(3000, name) for name in ("one", "other"))
    assert len(one) == len(other) == 3000
    assert 0.3 < len(one.get_vocab().keys() & other.get_vocab().keys()) / 3000 < 0.95
    assert one.decode(one("Tell me of 12 things.")["input_ids"]) == "Tell me of 12 things."


def test_serving_loses_no_request_and_refuses_one_over_the_limit(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    assert serving.main(["--quick", "--json", "--threads", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(serving.KEYS) <= set(printed)
    if printed["serving_speedup"] is not None:
        assert (printed["lost"], printed["same_texts"]) == (0, 1)
        assert printed["refused_over_limit"] >= 1


@pytest.mark.parametrize(
    ("value", "limit", "held"),
    [(3.0, "at most 3.0", True), (3.1, "at most 3.0", False), (0.9, "at least 0.9", True), (1, "0", False)],
)
def test_a_figure_is_held_within_its_limit(value: float, limit: str, held: bool):
    assert Figure("some", value, limit=limit).held is held


def test_a_figure_that_was_not_measured_is_not_held():
    assert not Figure("some", None, limit="0").held


def test_a_delayed_server_sends_the_same_bytes():
    with raw_server() as server, delayed(urlsplit(server.url).port or 0, 0.001) as port:
        server.answer = lambda _path, body: as_json(body)
        sent = {"prompt": [*range(100_000)]}
        for _ in range(2):
            with urlopen(f"http://127.0.0.1:{port}/v1", json.dumps(sent).encode()) as answer:
                assert json.load(answer) == sent


def test_the_recorder_keeps_each_request_once_with_its_answer():
    exchanges: list[dict[str, object]] = []
    with raw_server() as server, recorded(urlsplit(server.url).port or 0, exchanges) as port:
        server.answer = lambda _path, body: as_json({"echo": body["n"]}, 400)
        for n in (1, 2, 1):
            with pytest.raises(HTTPError, match="400"):
                urlopen(f"http://127.0.0.1:{port}/v1/completions", json.dumps({"n": n}).encode())
    same = {"method": "POST", "path": "/v1/completions", "status": 400}
    assert exchanges == [{**same, "request": {"n": n}, "answer": {"echo": n}} for n in (1, 2)]


def test_rows_of_the_page_are_filled_from_figures():
    figures = {
        "some_ms": Figure("some_ms", 0.0482, limit="at most 0.05"),
        "others": Figure("others", 1.4, limit="at most 1.3"),
        "all": Figure("all", 700, limit="at least 700"),
        "none": Figure("none", None, limit="0"),
    }
    rows = ("| a | `some_ms` | - |  |", "| b | `others` | 1 | at most 1: missed (why) |", "| c | `all` | - | |")
    assert [_rows.row_of(row, figures) for row in (*rows, "| d | `none` | 3 | 0 |", "| e | `absent` | 1 | |")] == [
        "| a | `some_ms` | 0.048 | at most 0.05 |",
        "| b | `others` | 1.40 | at most 1.3: missed (why) |",
        "| c | `all` | 700 | at least 700 |",
        "| d | `none` | not measured | 0: missed |",
        "| e | `absent` | 1 | |",
    ]
