"""Profiling: what was answered is never computed again, and a failure stays with its question."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pools import Place
from tiny import byte_tokenizer, tiny_model, unigram_tokenizer

from advisor.models import ask
from advisor.models.fingerprint import Fingerprint, identify
from advisor.models.job import Job, question_key
from advisor.models.loaded_models import LocalJobRunner
from advisor.models.local_model import LocalModel
from advisor.models.response_cache import Response, ResponseCache
from advisor.records import Profile
from advisor.tasks import Task, load_task
from advisor.tasks.schema import Scoring
from ensemble import Ensemble
from ensemble.decode.settings import Settings
from ensemble.errors import InputError, MemberError, UniteError
from ensemble.models.load import member_of
from ensemble.models.spec import Checkpoint, EnsembleSpec, ModelSpec, Sides

pytest_plugins = ["pools"]

SHORT = Settings(max_new_tokens=6)
NO_SPEC = EnsembleSpec(())
KEY = {"members": [{"files": {"model.safetensors": "0"}}]}
LOCAL = ModelSpec(Checkpoint("m"), "m", None, "float32", "auto", files={"model.safetensors": "0"})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResponseCache]:
    with ResponseCache(tmp_path / "cache") as opened:
        yield opened


@pytest.fixture
def task(place: Place) -> Task:
    """Six questions, the last of them the longest."""
    lengths = (1, 2, 3, 4, 5, 20)
    records = [{"question": f"{'so ' * n}what?", "answer": "e"} for n in lengths]
    place.task(records * 2)
    return load_task("task.yaml")


@pytest.fixture
def alone() -> Ensemble:
    """A model alone, which a test may spoil."""
    tokenizer = byte_tokenizer(("What", " is"))
    return Ensemble([member_of(tiny_model(tokenizer, hidden=8, positions=256), tokenizer, name="alpha")])


def never() -> Ensemble:
    raise AssertionError("the model was loaded")


def profile(
    task: Task,
    store: ResponseCache,
    make: Callable[[], Ensemble],
    *,
    key: dict[str, Any] | None = None,
    batch_size: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Profile:
    """What the engine of this process makes of a job; ``advance`` hears of its progress."""
    progress: Any = SimpleNamespace(stage=lambda *_: nullcontext(advance), say=lambda _: None)
    job = Job(
        "alpha",
        task,
        task.settings,
        lambda: LocalModel("alpha", make, batch_size),
        key=key or KEY,
        cache=store,
        progress=progress,
        spec=NO_SPEC,
    )
    [finished] = LocalJobRunner(Path("cache")).run([job])
    if isinstance(finished.result, MemberError):
        raise finished.result
    return finished.result


def undisturbed(task: Task, ensemble: Ensemble, tmp_path: Path) -> Profile:
    with ResponseCache(tmp_path / "another") as store:
        return profile(task, store, lambda: ensemble)


def spoil(monkeypatch: pytest.MonkeyPatch, ensemble: Ensemble, before: Callable[[torch.Tensor], None]) -> list[int]:
    """Let a model do something before each pass, with the ids that are fed; the batch sizes of all passes."""
    model = ensemble.members[0].model
    forward, sizes = model.forward, []

    @functools.wraps(forward)
    def spoiled(*args: Any, **kwargs: Any) -> Any:
        sizes.append(len(kwargs["input_ids"]))
        before(kwargs["input_ids"])
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", spoiled)
    return sizes


def errors(profile: Profile) -> list[str | None]:
    return [answer.error for answer in profile.answers]


# --- The store ---


def test_answers_come_in_the_order_of_the_questions(task: Task, store: ResponseCache, alone: Ensemble) -> None:
    found = profile(task, store, lambda: alone)
    assert [answer.id for answer in found.answers] == [example.id for example in task.examples]
    texts = [alone.generate([example.prompt], max_new_tokens=6)[0].text for example in task.examples]
    assert [answer.text for answer in found.answers] == texts
    assert len(set(texts)) > 1
    # The second time no model is loaded.
    assert profile(task, store, never) == found


@pytest.mark.parametrize("stop_after", [1, 5])
def test_an_interrupted_run_goes_on_where_it_was(
    task: Task, store: ResponseCache, alone: Ensemble, tmp_path: Path, stop_after: int
) -> None:
    done: list[int] = []

    def interrupt(number: int) -> None:
        done.append(number)
        if sum(done) == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(task, store, lambda: alone, advance=interrupt)
    counted: list[int] = []
    again = profile(task, store, lambda: alone, advance=counted.append)
    assert counted == [stop_after, *[1] * (6 - stop_after)]
    assert again == undisturbed(task, alone, tmp_path)


def test_everything_that_decides_a_response_is_in_its_key(place: Place, task: Task) -> None:
    identity = Fingerprint(LOCAL)
    changes: list[dict[str, Any]] = [
        {"checkpoint": Checkpoint("org/model", "0" * 40)},
        {"files": {"model.safetensors": "1"}},
        {"dtype": "bfloat16"},
        {"device": "cuda"},
        {"chat_template": "never"},
        {"thinking_budget": 4},
    ]
    others = [Fingerprint(dataclasses.replace(LOCAL, **each)) for each in changes]
    example = task.examples[0]
    key = {"members": [identity.key()]}
    of_question = question_key
    keys = {
        of_question(key, example, task, SHORT),
        of_question(key, example, task, Settings(max_new_tokens=7)),
        of_question(key, dataclasses.replace(example, prompt="other"), task, SHORT),
        of_question(key, example, task, dataclasses.replace(SHORT, stop=("\n",))),
        of_question(key, example, task, dataclasses.replace(SHORT, temperature=1.0)),
        of_question(key, example, task, dataclasses.replace(SHORT, temperature=1.0, seed=1)),
        of_question({**key, "method": "unite", "k": 10}, example, task, SHORT),
        of_question({"members": [identity.key(), identity.key()]}, example, task, SHORT),
        *(of_question({"members": [other.key()]}, example, task, SHORT) for other in others),
    }
    assert len(keys) == 8 + len(others)


def test_a_source_is_part_of_the_key_of_what_reads_it_alone(task: Task) -> None:
    example = task.examples[0]
    sourced = dataclasses.replace(example, source="4")
    keys = []
    for sides in (None, Sides(), Sides(target="deu_Latn"), Sides(reads="prompt")):
        spec = dataclasses.replace(LOCAL, checkpoint=Checkpoint("model", sides=sides or Sides()))
        key = {"members": [Fingerprint(spec, encodes=sides is not None).key()]}
        keys += [question_key(key, one, task, SHORT) for one in (example, sourced)]
    # A causal model's key is the same with and without.
    assert keys[0] == keys[1] and len(set(keys)) == 7


def test_what_decides_no_response_is_not_in_its_key(task: Task) -> None:
    example = task.examples[0]
    other = dataclasses.replace(example, id="other", reference="other", group="other")
    named = dataclasses.replace(task, name="other", metric="number", extract="x", seed=5)
    assert question_key(KEY, example, task, SHORT) == question_key(KEY, other, named, SHORT)


# --- What a model is ---


def test_a_folder_is_known_by_the_content_of_its_files(models: Path, tmp_path: Path) -> None:
    def identity(folder: Path) -> dict[str, Any]:
        return identify(ModelSpec(Checkpoint(str(folder)), "name", place="models.txt:1"), "auto", "auto").key()

    copy = shutil.copytree(models / "alpha", tmp_path / "copy")
    assert identity(copy) == identity(models / "alpha") != identity(models / "gamma")
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}), encoding="utf-8")
    assert identity(copy) != identity(models / "alpha")


def test_the_numeric_type_is_the_lines_then_the_runs_then_the_checkpoints(models: Path) -> None:
    for own, of_run, found in (
        (None, "auto", "float64"),
        (None, "float32", "float32"),
        ("bfloat16", "auto", "bfloat16"),
    ):
        candidate = ModelSpec(Checkpoint(str(models / "alpha")), "alpha", dtype=own, place="models.txt:1")
        assert identify(candidate, of_run, "auto").key()["dtype"] == found


# --- Memory ---


def fake_cuda(_: int) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def processor(_: int) -> None:
    torch.empty(2**60)  # as real as it gets: more than any address space


@pytest.mark.parametrize(("run_out", "room"), [(fake_cuda, 1), (fake_cuda, 5), (processor, 2)])
def test_where_memory_runs_out_fewer_prompts_go_at_a_time(
    task: Task,
    store: ResponseCache,
    alone: Ensemble,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    room: int,
    run_out: Callable[[int], None],
) -> None:
    expected = undisturbed(task, alone, tmp_path)

    def limit(ids: torch.Tensor) -> None:
        if len(ids) > room:
            run_out(len(ids))

    sizes = spoil(monkeypatch, alone, limit)
    assert profile(task, store, lambda: alone) == expected
    assert len([size for size in sizes if size > room]) <= 3  # 6, 3, 1: it is not tried again


@pytest.mark.parametrize(("length", "sizes"), [(1, [12]), (20, [3] * 4)])
def test_so_many_prompts_go_at_a_time_as_there_is_room_for(
    place: Place, store: ResponseCache, alone: Ensemble, monkeypatch: pytest.MonkeyPatch, length: int, sizes: list[int]
) -> None:
    # For each token its layer keeps a key and a value of four numbers in float64 (one head of two).
    assert alone.members[0].token_size == 2 * 4 * 8
    place.task([{"question": f"{'so ' * length}what?{n % 10}", "answer": "e"} for n in range(24)], max_new_tokens=1)
    task = load_task("task.yaml")
    longest = max(len(alone.encode(example.prompt)[0]) for example in task.examples) + 1
    rows = 64 if length == 1 else 3
    monkeypatch.setattr("ensemble.models.member.free_memory", lambda _: 2 * 64 * longest * rows)
    assert alone.most_rows(longest) == rows
    seen = spoil(monkeypatch, alone, lambda _: None)
    profile(task, store, lambda: alone)
    assert [size for size in seen if size > 1] == sizes


# --- Questions that fail ---


def test_a_prompt_that_does_not_fit_is_an_error_and_counted_as_wrong(
    place: Place, store: ResponseCache, alone: Ensemble
) -> None:
    place.task([{"question": "what? " * n, "answer": "e"} for n in (1, 100, 2)] * 2)
    task = load_task("task.yaml")
    found = profile(task, store, lambda: alone)
    assert errors(found)[::2] == [None, None]
    assert (found.answers[1].finish_reason, found.answers[1].score) == ("error", 0)
    assert "tokens does not fit its context of 256" in str(found.answers[1].error)
    assert "alpha" not in str(found.answers[1].error)
    # It is not tried again.
    assert profile(task, store, never) == found


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("shape mismatch\nand a second line"), "RuntimeError: shape mismatch"),
        (torch.OutOfMemoryError("CUDA out of memory"), "not enough memory: CUDA out of memory"),
    ],
)
def test_a_question_that_the_model_fails_on_is_asked_once_more_and_an_error_alone(
    task: Task,
    store: ResponseCache,
    alone: Ensemble,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    says: str,
) -> None:
    expected = undisturbed(task, alone, tmp_path)
    failed: list[int] = []

    def fail(ids: torch.Tensor) -> None:
        if ids.shape[1] > 30:
            failed.append(len(ids))
            raise error

    with monkeypatch.context() as spoilt:
        spoil(spoilt, alone, fail)
        found = profile(task, store, lambda: alone)
    assert errors(found) == [None] * 5 + [says]
    assert found.answers[:5] == expected.answers[:5]
    # Alone, it is tried twice, and more often only where the batch became smaller.
    assert failed.count(1) == 2 or "memory" in says
    # It may have been the machine's fault: the next run asks again, and asks only that.
    counted: list[int] = []
    assert profile(task, store, lambda: alone, advance=counted.append) == expected
    assert counted == [5, 1]


@pytest.mark.parametrize(
    ("count", "says"), [(12, "no question could be answered; the first: "), (400, "")], ids=["few", "many"]
)
def test_a_model_that_fails_on_everything_fails_with_the_reason_and_is_soon_given_up(
    place: Place, store: ResponseCache, alone: Ensemble, monkeypatch: pytest.MonkeyPatch, count: int, says: str
) -> None:
    def fail(_: torch.Tensor) -> None:
        raise ZeroDivisionError("no luck")

    place.task([{"question": f"{n}?", "answer": "e"} for n in range(count)])
    sizes = spoil(monkeypatch, alone, fail)
    with pytest.raises(MemberError, match=f"^alpha: {says}ZeroDivisionError: no luck$"):
        profile(load_task("task.yaml"), store, lambda: alone)
    assert len(sizes) < 30
    assert count == 12 or sizes.count(1) == ask._MAX_FAILURES


def test_a_fault_of_the_store_is_not_the_models(
    task: Task, store: ResponseCache, alone: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(key: str, response: Response) -> None:
        raise UniteError("the disk is full")

    monkeypatch.setattr(store, "put", full)
    with pytest.raises(UniteError, match="the disk is full") as caught:
        profile(task, store, lambda: alone)
    assert not isinstance(caught.value, MemberError)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("one\ntwo"), "^alpha: it cannot be run: RuntimeError: one$"),
        (KeyError(), "^alpha: it cannot be run: KeyError: KeyError$"),
        (InputError("no chat template", of="alpha"), "^alpha: no chat template$"),
        (MemberError("damaged", of="alpha"), "^alpha: damaged$"),
        (MemoryError("no room"), "^alpha: it cannot be run: not enough memory: no room$"),
    ],
)
def test_whatever_loading_raises_is_the_models_failure(
    task: Task, store: ResponseCache, error: Exception, says: str
) -> None:
    def load() -> Ensemble:
        raise error

    with pytest.raises(MemberError, match=says):
        profile(task, store, load)


# --- Choice tasks ---


@pytest.mark.parametrize("scoring", ["texts", "letters", "normalised"])
def test_a_model_chooses_by_the_tasks_scoring(
    place: Place, store: ResponseCache, alone: Ensemble, scoring: Scoring
) -> None:
    records = [{"question": f"{n}?", "answer": "A", "A": "yes", "B": f"not in any way {n}"} for n in range(8)]
    place.task(records, choices=["{{A}}", "{{B}}"], metric="choice", scoring=scoring)
    task = load_task("task.yaml")
    found = profile(task, store, lambda: alone)
    assert profile(task, store, never) == found
    for example, answer in zip(task.examples, found.answers, strict=True):
        scores = alone.score(
            example.prompt, [" A", " B"] if scoring == "letters" else [f" {c}" for c in example.choices]
        )
        assert answer.options == pytest.approx(scores, abs=1e-9)
        if scoring == "normalised":
            scores = [score / len(choice) for score, choice in zip(scores, example.choices, strict=True)]
        assert answer.text == example.choices[scores.index(max(scores))]


def test_many_questions_are_chosen_in_few_passes(
    place: Place, store: ResponseCache, alone: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"question": f"{n}?", "answer": "A", "A": "yes", "B": f"no {n}"} for n in range(8)]
    place.task(records, choices=["{{A}}", "{{B}}"], metric="choice")
    sizes = spoil(monkeypatch, alone, lambda _: None)
    profile(load_task("task.yaml"), store, lambda: alone)
    # Four prompts; then two options of each behind them.
    assert sizes == [4, 8]


def test_an_option_that_cannot_be_written_is_kept_as_such(place: Place, store: ResponseCache) -> None:
    tokenizer = unigram_tokenizer()
    small = Ensemble([member_of(tiny_model(tokenizer, hidden=8), tokenizer, name="alpha")])
    records = [{"question": "the", "answer": "A", "A": "the cat", "B": "🙂"}] * 2
    place.task(records, choices=["{{A}}", "{{B}}"], metric="choice")
    task = load_task("task.yaml")
    found = profile(task, store, lambda: small)
    assert found.answers[0].text == "the cat"
    assert found.answers[0].options[1] is None
    assert profile(task, store, never) == found


def test_options_that_do_not_fit_a_context_are_an_error_alone(
    place: Place, store: ResponseCache, alone: Ensemble
) -> None:
    records = [{"question": "?", "answer": "A", "A": "yes", "B": "no " * n} for n in (1, 200, 2)] * 2
    place.task(records, choices=["{{A}}", "{{B}}"], metric="choice")
    task = load_task("task.yaml")
    found = profile(task, store, lambda: alone)
    assert errors(found)[::2] == [None, None]
    assert "a prompt and an option of" in str(errors(found)[1])
    assert profile(task, store, never) == found


@pytest.mark.parametrize("metric", ["contains", "choice"])
def test_a_question_that_fails_on_its_own_is_asked_once_more(
    place: Place, store: ResponseCache, alone: Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    choices = {"choices": ["yes", "no"]} if metric == "choice" else {}
    place.task([{"question": "what?", "answer": "yes"}], metric=metric, **choices)
    task = load_task("task.yaml")
    expected = undisturbed(task, alone, tmp_path)
    failures = iter([True])

    def fail_once(_: torch.Tensor) -> None:
        if next(failures, False):
            raise RuntimeError("a hiccup")

    spoil(monkeypatch, alone, fail_once)
    assert profile(task, store, lambda: alone) == expected
    assert errors(expected) == [None]
