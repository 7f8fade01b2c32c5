"""The ensemble as a model of lm-eval: beside lm-eval's own backend, and run by its own command line."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pools import Place, Ran, models, place
from tiny import byte_tokenizer, save_member, tiny_model, unigram_tokenizer

from advisor import lm_eval as harness
from ensemble import Ensemble
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.models.load import member_of

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
harness.register()

from lm_eval.api.instance import Instance  # noqa: E402  # where it is installed
from lm_eval.models.huggingface import HFLM  # noqa: E402

from advisor.lm_eval.model import UniteLM, settings_of, windows  # noqa: E402

__all__ = ["models", "place"]
DEMO = Path(__file__).parents[1] / "advisor" / "demo" / "models"
COPIES = tempfile.TemporaryDirectory()
BYTE_LEVEL, SENTENCEPIECE = "terse-olmo", "terse-mistral"
SUMS = [(12, 5), (3, 4), (59, 22), (31, 8)]
QUESTION = "Question: Ann has {} pens. She buys {} more. How many pens does Ann have now?\nAnswer:"
QUESTIONS = [QUESTION.format(*numbers) for numbers in SUMS]
GREEDY = {"until": ["\n"], "max_gen_toks": 24, "do_sample": False}


@cache
def short(name: str) -> Path:
    """A copy of a model of the demo whose context is short, so that a few sentences do not fit."""
    copy = shutil.copytree(DEMO / name, Path(COPIES.name) / name)
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 256}), encoding="utf-8")
    return copy


@cache
def unite(*names: str) -> UniteLM:
    args = {"models": [str(short(name)) for name in names], "dtype": "float32"}
    return UniteLM.create_from_arg_obj(args, {"batch_size": 8, "device": "cuda:0", "max_batch_size": None})


@cache
def theirs(name: str, add_bos_token: bool | None = None) -> HFLM:
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return HFLM(str(short(name)), device="cpu", dtype="float32", batch_size=8, add_bos_token=add_bos_token)


def asked(kind: str, *arguments: Any) -> Instance:
    return Instance(kind, {}, arguments, 0, metadata=("task", 0, 1))


def likelihoods() -> list[Instance]:
    contexts = [*QUESTIONS[:2], f"{QUESTIONS[0]} ", "".join(QUESTIONS) * 3, ""]
    continuations = [" 17", " 7", " The answer is", " The answer is 17.", "17"]
    return [asked("loglikelihood", context, text) for context in contexts for text in continuations]


# --- Beside lm-eval's own backend ---


@pytest.mark.parametrize(("name", "most"), [(BYTE_LEVEL, 1e-3), (SENTENCEPIECE, 0.02)])
def test_one_model_has_the_likelihoods_of_lm_evals_backend(name: str, most: float) -> None:
    requests = likelihoods()
    ours = unite(name).loglikelihood(requests, disable_tqdm=True)
    wanted = theirs(name).loglikelihood(requests, disable_tqdm=True)
    # Special tokens are no candidates here, and take a little of the probability there.
    assert all(-1e-3 <= own - value <= most for (own, _), (value, _) in zip(ours, wanted, strict=True))
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in wanted]
    assert {greedy for _, greedy in ours} == {True, False}


@pytest.mark.parametrize(("name", "add_bos", "most"), [(BYTE_LEVEL, None, 1e-5), (SENTENCEPIECE, False, 2e-3)])
def test_one_model_has_the_rolling_likelihoods_of_lm_evals_backend(
    name: str, add_bos: bool | None, most: float
) -> None:
    requests = [asked("loglikelihood_rolling", text) for text in (QUESTIONS[0], "".join(QUESTIONS) * 6, "No.", "")]
    assert len(windows(unite(name).ensemble.members, requests[1].args[0])) > 2
    ours = unite(name).loglikelihood_rolling(requests, disable_tqdm=True)
    # With a BOS of its own lm-eval would score that token too, behind another BOS.
    assert ours == pytest.approx(theirs(name, add_bos).loglikelihood_rolling(requests, disable_tqdm=True), rel=most)


@pytest.mark.parametrize("name", [BYTE_LEVEL, SENTENCEPIECE])
def test_one_model_writes_what_lm_evals_backend_does(name: str) -> None:
    ways = [GREEDY, {"until": [], "max_tokens": 5}, {"until": [" 1", "."], "max_gen_toks": 24, "temperature": 0.0}]
    prompts = [*QUESTIONS[:2], "".join(QUESTIONS) * 3]
    requests = [asked("generate_until", prompt, dict(way)) for prompt in prompts for way in ways]
    ours = unite(name).generate_until(requests, disable_tqdm=True)
    wanted = theirs(name).generate_until(requests, disable_tqdm=True)
    if name == SENTENCEPIECE:
        # lm-eval decodes what is new by itself, and that loses its first space; then " 1" is no stop at the beginning.
        pairs = [pair for n, pair in enumerate(zip(ours, wanted, strict=True)) if n % len(ways) < 2]
        assert [own.removeprefix(" ") for own, _ in pairs] == [text for _, text in pairs]
    else:
        assert ours == wanted


# --- Several models ---

PAIR = ("terse-neox", BYTE_LEVEL)


def test_greedy_is_what_is_written_and_a_whole_text_is_scored_behind_what_texts_begin_behind() -> None:
    lm = unite(*PAIR)
    written = lm.ensemble.generate([QUESTIONS[1]], max_new_tokens=40, stop=["\n"])[0].text
    texts = [" 17", written, written[:-2] + "?"]
    chosen = lm.loglikelihood([asked("loglikelihood", QUESTIONS[1], text) for text in texts], disable_tqdm=True)
    assert [greedy for _, greedy in chosen] == [False, True, False]
    (found,) = lm.loglikelihood_rolling([asked("loglikelihood_rolling", QUESTIONS[1])], disable_tqdm=True)
    text = lm.ensemble.members[0].vocabulary.opening(QUESTIONS[1])
    question = lm.ensemble.options_behind([member.beginning() for member in lm.ensemble.members], [text])
    ((_, (score,)),) = lm.ensemble.score_each([question])
    assert found == pytest.approx(score.value, abs=1e-3)


def test_windows_hold_every_token_once_and_fit_every_context() -> None:
    sizes = ((unigram_tokenizer(byte_fallback=True), 48), (byte_tokenizer(), 32))
    pair = [member_of(tiny_model(one, positions=size), one, name=f"{size}") for one, size in sizes]
    text = "James and Anna went to the shop and bought 12 apples. " * 4
    found = windows(pair, text)
    vocabulary = pair[0].vocabulary
    tokens = [token for passage in found for token in passage.tokens]
    assert tokens == vocabulary.continue_ids(vocabulary.opening(text).encode())
    for passage in found:
        data = b"".join(vocabulary.token_bytes(token) or b"" for token in passage.tokens)
        lengths = [len(passage.tokens), len(pair[1].vocabulary.continue_ids(data))]
        for member, prompt, length in zip(pair, passage.prompts, lengths, strict=True):
            assert prompt
            assert len(prompt) + length - 1 <= (member.context or 0)
    assert found[0].prompts == [member.beginning() for member in pair]


def test_draws_are_the_ensembles_and_each_repetition_has_its_own() -> None:
    lm = unite(*PAIR)
    way = {"until": ["\n"], "max_gen_toks": 12, "do_sample": True, "temperature": 2.0, "top_p": 0.9}
    found = lm.generate_until([asked("generate_until", QUESTIONS[0], way)] * 4, disable_tqdm=True)
    settings = Settings(12, ("\n",), 2.0, 0.9)
    prompt = lm.ensemble.encode(QUESTIONS[0])
    drawn = dict(lm.ensemble.generate_each([prompt] * 4, settings))
    assert found == [drawn[n].text for n in range(4)]
    assert len(set(found)) > 1


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling", "generate_until"])
def test_logits_that_are_no_numbers_for_one_request_leave_the_others(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = unite.__wrapped__(BYTE_LEVEL)  # another one each time, because it warns once
    more = {"loglikelihood": [" 7"], "generate_until": [GREEDY]}.get(kind, [])
    requests = [asked(kind, text, *more) for text in ("Ann has 3 pens.", "Ann bought @ pens.", "Ann")]
    wanted = getattr(lm, kind)(requests, disable_tqdm=True)
    embed = lm.ensemble.members[0].local.model.get_input_embeddings()
    (at,) = lm.ensemble.members[0].vocabulary.continue_ids(b"@")
    forward = embed.forward

    def spoiled(ids: torch.Tensor) -> torch.Tensor:
        return forward(ids).masked_fill((ids == at)[:, :, None], torch.nan)

    warnings: list[str] = []
    monkeypatch.setattr(embed, "forward", spoiled)
    monkeypatch.setattr(logging.getLogger("lm_eval.models.unite"), "warning", warnings.append)
    failed = {"loglikelihood": (-math.inf, False), "generate_until": ""}.get(kind, -math.inf)
    assert getattr(lm, kind)(requests, disable_tqdm=True) == [wanted[0], failed, wanted[2]]
    assert warnings and "its logits are not numbers (NaN)" in warnings[0]


# --- Conversations ---


@pytest.fixture(scope="session")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models with chat templates of their own; the second's takes no system message."""
    folder = tmp_path_factory.mktemp("chatting")
    refuses = "{% for m in messages if m.role == 'system' %}{{ raise_exception('no system here') }}{% endfor %}"
    for name, head, mark in (("one", "", "#"), ("two", refuses, "@")):
        tokenizer = byte_tokenizer((name,))
        turns = f"{{% for m in messages %}}{mark}{{{{ m.role }}}}:{{{{ m.content }}}}\n{{% endfor %}}"
        tokenizer.chat_template = f"{head}{turns}{{% if add_generation_prompt %}}{mark}assistant:{{% endif %}}"
        save_member(folder / name, tiny_model(tokenizer, seed=len(mark), positions=512), tokenizer)
    return [folder / "one", folder / "two"]


def test_every_member_reads_a_conversation_by_its_own_template(chatting: list[Path]) -> None:
    lm = UniteLM(models=[str(path) for path in chatting])
    history = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "It is"}]
    context = lm.apply_chat_template(history, add_generation_prompt=False)
    read = [member.tokenizer.decode(ids) for member, ids in zip(lm.ensemble.members, lm._read(context), strict=True)]
    assert read == ["#user:a?\n#assistant:It is", "@user:a?\n@assistant:It is"]
    (found,) = lm.generate_until([asked("generate_until", context, GREEDY)], disable_tqdm=True)
    assert found == lm.ensemble.generate([history], max_new_tokens=24, stop=["\n"])[0].text
    user = {"role": "user", "content": "a?"}
    # The second template refuses a system message, which is left out.
    with_system = lm.apply_chat_template([{"role": "system", "content": "Be brief."}, user])
    assert lm._read(with_system) == lm._read(lm.apply_chat_template([user]))
    templates = json.loads(lm.chat_template(True) or "")
    assert templates == {member.name: member.tokenizer.chat_template for member in lm.ensemble.members}


# --- Ways to generate ---


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({}, Settings(99, seed=3)),
        ({"until": "x", "max_new_tokens": 5}, Settings(5, ("x",), seed=3)),
        ({"until": ["x", "", "x"], "do_sample": False, "temperature": 0.7}, Settings(99, ("x",), seed=3)),
        ({"top_k": 50, "top_p": 0.5}, Settings(99, seed=3)),
        ({"temperature": 0.7}, Settings(99, (), 0.7, seed=3)),
        ({"do_sample": True, "temperature": 0.5, "top_p": 0.9, "seed": 7}, Settings(99, (), 0.5, 0.9, 7)),
        ({"do_sample": True, "top_k": 50}, Settings(99, (), 1.0, seed=3, top_k=50)),
        ({"do_sample": True, "top_k": -1}, Settings(99, (), 1.0, seed=3)),
        ({"num_beams": 1, "repetition_penalty": 1.0, "top_k": None, "use_cache": True}, Settings(99, seed=3)),
    ],
)
def test_ways_to_generate_are_read_as_lm_eval_means_them(given: dict[str, Any], settings: Settings) -> None:
    assert settings_of(given, 99, 3) == settings


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"num_beams": 4}, "generation_kwargs num_beams=4: .*; --gen_kwargs num_beams=1 turns it off"),
        ({"do_sample": True, "temperature": 1.0, "min_p": 0.5}, "generation_kwargs min_p=0.5: .* min_p=0"),
        ({"guided_json": "{}"}, "generation_kwargs guided_json={}: .*; take it out of the task"),
        ({"max_gen_toks": 0}, "max_new_tokens is 0; it must be at least 1"),
        ({"do_sample": True, "top_k": "x"}, "top_k is 'x'; it must be a whole number"),
        ({"do_sample": True, "top_p": "x"}, "generation_kwargs top_p='x': give a number"),
    ],
)
def test_a_way_to_generate_that_there_is_not_is_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=f"^{line}"):
        settings_of(given, 99, 0)


# --- Run by lm-eval's command line ---


@pytest.fixture
def run(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`advisor lm-eval run` on tasks in its folder: to index lm-eval's own 14,000 takes seconds."""
    from lm_eval import tasks
    from lm_eval import utils as their_utils

    pairs = zip(QUESTIONS, SUMS, strict=True)
    records = [{"question": text, "options": [f" {a + b}", f" {a}", " no"]} for text, (a, b) in pairs]
    place.write("sums.jsonl", "".join(f"{json.dumps(record)}\n" for record in records))
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(place.folder / "sums.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
    }
    mean = {"aggregation": "mean", "higher_is_better": True}
    write = {"task": "sums_write", "output_type": "generate_until", "doc_to_target": "{{options[0]}}"}
    choose = {"task": "sums_choose", "output_type": "multiple_choice", "doc_to_target": 0, "target_delimiter": ""}
    write |= {"generation_kwargs": dict(GREEDY), "metric_list": [{"metric": "exact_match", **mean}]}
    choose |= {"doc_to_choice": "{{options}}", "metric_list": [{"metric": "acc", **mean}]}
    for task in (write, choose):
        place.write(f"{task['task']}.yaml", yaml.safe_dump({**shared, **task}))
    monkeypatch.setattr(tasks, "TaskManager", partial(tasks.TaskManager, include_defaults=False))
    # Its handler writes to the standard error that there was when it was made.
    logger = logging.getLogger("lm_eval")
    monkeypatch.setattr(their_utils, "_LOGGING_CONFIGURED", False)
    monkeypatch.setattr(logger, "handlers", [])

    def command(model_args: str, *more: str) -> Ran:
        words = ["run", "--model", "unite", "--model_args", *model_args.split(" "), "--include_path", ".", *more]
        return place.advisor("lm-eval", *words)

    yield command
    logger.propagate = True


def results(folder: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """What lm-eval wrote: its results, and each task's samples in order."""
    (path,) = folder.rglob("results_*.json")
    samples = {
        task: [json.loads(line) for line in next(folder.rglob(f"samples_{task}_*.jsonl")).read_text().splitlines()]
        for task in ("sums_write", "sums_choose")
    }
    return json.loads(path.read_text()), samples


def test_the_command_line_runs_tasks_and_a_second_run_asks_no_model(
    run: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = "+".join(str(short(name)) for name in PAIR)
    words = ["--tasks", "sums_write,sums_choose", "--limit", "3", "--log_samples"]
    words += ["--use_cache", "kept", "--batch_size", "auto"]
    first = run(f"models={pair} k=5 dtype=float32", *words, "--output_path", "first")
    assert first.status == 0, first.err
    assert re.search(r"^\| *Tasks *\|", first.out, re.MULTILINE) and "|sums_choose" in first.out
    found, samples = results(place.folder / "first")
    direct = Ensemble.from_pretrained([DEMO / name for name in PAIR], k=5)
    written = [one.text for one in direct.generate(QUESTIONS[:3], max_new_tokens=24, stop=["\n"])]
    assert [sample["resps"][0][0] for sample in samples["sums_write"]] == written
    for sample, question, (a, b) in zip(samples["sums_choose"], QUESTIONS, SUMS, strict=False):
        scores = direct.score(question, [f" {a + b}", f" {a}", " no"])
        assert [float(response[0][0]) for response in sample["resps"]] == pytest.approx(scores, abs=1e-4)
        assert sample["acc"] == float(scores.index(max(scores)) == 0)
    assert found["config"]["method"] == "unite"
    assert [member["name"] for member in found["config"]["members"]] == [*PAIR]

    for name in ("score_each", "generate_each"):
        monkeypatch.setattr(Ensemble, name, lambda *_, **__: pytest.fail("a model was asked again"))
    second = run(f"models={pair} k=5 dtype=float32", *words, "--output_path", "second")
    assert second.status == 0, second.err
    again, same = results(place.folder / "second")
    assert again["results"] == found["results"]
    assert [s["resps"] for s in same["sums_choose"]] == [s["resps"] for s in samples["sums_choose"]]


def test_a_run_folder_and_chat_templates_are_taken(run: Any, place: Place, chatting: list[Path]) -> None:
    loading = {"revision": None, "device": "cpu", "dtype": "float32", "chat_template": "auto"}
    sources = {path.name: {"path_or_id": str(path), **loading} for path in chatting}
    result = {
        "schema_version": 2,
        "task": {"max_new_tokens": 6, "stop": []},
        "selected": ["one", "two"],
        "ensemble": {"method": "gac", "k": 4},
        "provenance": {"models": sources},
    }
    (place.folder / "chosen").mkdir()
    place.write("chosen/result.json", json.dumps(result))
    words = ["--tasks", "sums_write,sums_choose", "--limit", "2", "--log_samples", "--apply_chat_template"]
    ran = run("run=chosen", *words, "--gen_kwargs", "max_gen_toks=5", "--output_path", "out")
    assert ran.status == 0, ran.err
    found, samples = results(place.folder / "out")
    assert (found["config"]["method"], found["config"]["k"]) == ("gac", 4)
    direct = Ensemble.from_pretrained(chatting, method="gac", k=4)
    prompts = [[{"role": "user", "content": question}] for question in QUESTIONS[:2]]
    written = [one.text for one in direct.generate(prompts, max_new_tokens=5, stop=["\n"])]
    assert [sample["resps"][0][0] for sample in samples["sums_write"]] == written
    scores = direct.score(prompts[0], [f" {sum(SUMS[0])}", f" {SUMS[0][0]}", " no"])
    assert [float(one[0][0]) for one in samples["sums_choose"][0]["resps"]] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    ("model_args", "line"),
    [
        ("k=5", "lm-eval: the model needs either a run folder or models; give --model_args run="),
        ("models=nowhere", "nowhere"),
        ("models={alpha} colour=red", "--model_args: unknown argument 'colour'; use one of run, models, method"),
        (
            "models={alpha} method=gac-threshold colour=red",
            "unknown argument 'colour'; .*gac-threshold also has threshold",
        ),
        ("models={alpha} method=unity", "--method unity: not one of unite"),
        ("models={alpha}+ k=5", "--model_args models=.*: an entry is empty"),
        ("models={alpha} k=many", "--model_args k=many: must be a number of candidates"),
        ("models={alpha} device=cpu+cpu", r"--model_args device=cpu\+cpu: 2 devices for 1 models"),
        ("models={alpha} dtype=int3", "--dtype int3: not one of"),
        ("k=5 no_such_task", "lm-eval: ValueError: Tasks not found: no_such_task"),
    ],
)
def test_what_the_model_cannot_be_made_of_is_a_line(model_args: str, line: str, run: Any, models: Path) -> None:
    task = "no_such_task" if "no_such_task" in model_args else "sums_choose"
    ran = run(model_args.removesuffix(" no_such_task").format(alpha=models / "alpha"), "--tasks", task)
    assert ran.status == (1 if task == "no_such_task" else 2)
    assert "Traceback" not in ran.err
    last = ran.err.splitlines()[-1]
    assert last.startswith("advisor: ")
    assert re.search(line, last), last


def test_help_is_ours_and_lm_evals(place: Place) -> None:
    for words in ([], ["--help"]):
        ran = place.advisor("lm-eval", *words)
        assert ran.status == 0
        assert "--model unite --model_args run=runs/demo" in ran.out
        assert "Language Model Evaluation Harness" in ran.out
    assert "--apply_chat_template" in place.advisor("lm-eval", "run", "--help").out


def test_the_entry_point_for_later_releases_names_the_model() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 reads no TOML")
    import tomllib

    with (Path(__file__).parents[1] / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["entry-points"]["lm_eval.models"]
    assert set(declared) == {harness.MODEL}
    assert EntryPoint(harness.MODEL, declared[harness.MODEL], "lm_eval.models").load() is UniteLM
