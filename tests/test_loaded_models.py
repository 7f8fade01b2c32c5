"""Models that stay loaded: each is loaded once, and some leave where the memory is short."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pools import LENIENT, SELECT, Place, Prepare

from advisor.models.loaded_models import LoadedModels
from ensemble.errors import MemberError
from ensemble.models import member as member_module
from ensemble.models import memory
from ensemble.models.spec import Checkpoint, EnsembleSpec, ModelSpec

pytest_plugins = ["pools"]

FREE = "advisor.models.loaded_models.free_on"


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedModels:
    # To search all that pytest holds for freed models takes longer than to load these.
    monkeypatch.setattr("advisor.models.local_model.gc", SimpleNamespace(collect=lambda: 0))
    return LoadedModels(tmp_path)


SpecOf = Callable[..., EnsembleSpec]


@pytest.fixture
def spec(models: Path) -> SpecOf:
    def of(*names: str) -> EnsembleSpec:
        members = (ModelSpec(Checkpoint(str(models / name)), name, device="cpu", dtype="float64") for name in names)
        return EnsembleSpec(tuple(members))

    return of


def counts(loaded: LoadedModels) -> dict[str, int]:
    return {name: len(seconds) for name, seconds in loaded.seconds.items()}


def test_a_model_is_loaded_once_for_itself_and_for_sets(loaded: LoadedModels, spec: SpecOf) -> None:
    alone = loaded.ensemble(spec("alpha"))
    together = loaded.ensemble(spec("beta", "alpha"))
    assert together.members[1] is alone.members[0]
    assert counts(loaded) == {"alpha": 1, "beta": 1}


def test_a_set_has_the_threads_that_its_members_need(
    tmp_path: Path, spec: SpecOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"alpha": 3, "beta": 2}
    monkeypatch.setattr("ensemble.models.member.fastest_threads", lambda member, _: counts[member.name])
    before = torch.get_num_threads()
    loaded = LoadedModels(tmp_path)
    used = []
    try:
        for names in (("beta",), ("beta", "alpha"), ("beta",)):
            loaded.ensemble(spec(*names))
            used.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert used == [2, 3, 2]
    assert loaded.threads == counts


@pytest.mark.parametrize(
    ("seconds", "count"),
    [({4: 1.0, 2: 1.0, 1: 1.0}, 1), ({4: 1.0, 2: 1.05, 1: 1.2}, 2), ({4: 1.0, 2: 1.5, 1: 1.0}, 4)],
    ids=["no thread helps", "two help", "four help"],
)
def test_a_model_gets_no_more_threads_than_help(
    loaded: LoadedModels, spec: SpecOf, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], count: int
) -> None:
    member = loaded.ensemble(spec("alpha")).members[0].local
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += seconds[torch.get_num_threads()]
        return now

    monkeypatch.setattr(member_module.time, "perf_counter", clock)
    before = torch.get_num_threads()
    assert member_module.fastest_threads(member, 4) == count
    assert torch.get_num_threads() == before


def test_the_same_name_of_another_model_is_another_model(loaded: LoadedModels, spec: SpecOf) -> None:
    [one], [other] = spec("alpha").members, spec("beta").members
    renamed = ModelSpec(other.checkpoint, one.name, device="cpu", dtype="float64")
    first, second = (loaded.ensemble(EnsembleSpec((model,))).members[0] for model in (one, renamed))
    assert first.tokenizer.get_vocab() != second.tokenizer.get_vocab()


def test_a_model_that_was_loaded_before_a_failure_stays(loaded: LoadedModels, spec: SpecOf) -> None:
    with pytest.raises(MemberError, match="its weights lack"):
        loaded.ensemble(spec("alpha", "incomplete"))
    loaded.ensemble(spec("alpha"))
    assert counts(loaded) == {"alpha": 1}


def test_the_members_of_a_set_never_leave_for_each_other(
    loaded: LoadedModels, spec: SpecOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FREE, lambda _: 1)
    loaded.ensemble(spec("alpha", "beta", "gamma"))
    loaded.ensemble(spec("beta", "gamma"))
    assert counts(loaded) == {"alpha": 1, "beta": 1, "gamma": 1}


def test_the_model_that_is_loaded_fastest_leaves_first(
    loaded: LoadedModels, spec: SpecOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alpha", "beta"):
        loaded.ensemble(spec(name))
    loaded.seconds.update(alpha=[9.0], beta=[1.0])
    room = iter((1, 10**12))
    monkeypatch.setattr(FREE, lambda _: next(room))
    loaded.ensemble(spec("gamma"))
    monkeypatch.setattr(FREE, lambda _: 10**12)
    loaded.ensemble(spec("alpha", "beta"))
    assert counts(loaded) == {"alpha": 1, "beta": 2, "gamma": 1}


@pytest.mark.parametrize("free", [None, 1], ids=["unknown", "short"])
def test_where_memory_is_short_or_unknown_one_model_is_loaded_at_a_time(
    loaded: LoadedModels, spec: SpecOf, monkeypatch: pytest.MonkeyPatch, free: int | None
) -> None:
    monkeypatch.setattr(FREE, lambda _: free)
    first = weakref.ref(loaded.ensemble(spec("alpha")).members[0].local.model)
    loaded.ensemble(spec("beta"))
    gc.collect()
    assert first() is None


def test_a_batch_gets_the_memory_of_models_that_only_stay(
    loaded: LoadedModels, spec: SpecOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.ensemble(spec("alpha"))
    # Enough to load a tiny model, and not for a batch.
    monkeypatch.setattr("ensemble.models.member.free_memory", lambda _: 1)
    loaded.ensemble(spec("beta"))
    assert loaded.idle_bytes() == 0
    assert not loaded.make_room()


def test_idle_models_are_not_counted_as_memory_of_the_one_in_use(loaded: LoadedModels, spec: SpecOf) -> None:
    alpha = loaded.ensemble(spec("alpha")).members[0].local.model
    assert loaded.idle_bytes() == 0
    loaded.ensemble(spec("beta"))
    assert loaded.idle_bytes() == sum(each.nbytes for each in (*alpha.parameters(), *alpha.buffers()))


# --- Whole runs ---


@pytest.fixture
def roomy(place: Place, models: Path, monkeypatch: pytest.MonkeyPatch, prepare: Prepare) -> Place:
    """A run with room for all models, each with three threads, on the processor of a machine with a GPU."""
    # Nothing has asked the GPU for memory then, and CUDA refuses to count it.
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)

    def make() -> None:
        monkeypatch.setattr("ensemble.models.member.fastest_threads", lambda *_: 3)
        before = torch.get_num_threads()
        place.job(models)
        assert place.advisor(*SELECT, *LENIENT, "--out", "roomy", "--cache-dir", "one").status == 0
        assert torch.get_num_threads() == before

    prepare("roomy", place, make)
    return place


def test_short_memory_costs_loads_and_changes_no_response(roomy: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FREE, lambda _: 1)
    assert roomy.advisor(*SELECT, *LENIENT, "--out", "short", "--cache-dir", "two").status == 0
    loads = [roomy.json(f"{folder}/result.json")["provenance"]["loads"] for folder in ("roomy", "short")]
    assert {(each["count"], each["threads"]) for each in loads[0].values()} == {(1, 3)}
    assert min(each["count"] for each in loads[1].values()) > 1
    own, short = (Path(folder, "samples.jsonl").read_bytes() for folder in ("roomy", "short"))
    assert own == short


def test_evaluate_uses_the_models_of_all_methods_again(roomy: Place) -> None:
    ran = roomy.advisor(
        "evaluate", "roomy", "--task", "task.yaml", "--split", "held_out", "--methods", "unite,gac,average", "--json"
    )
    loads = roomy.json("roomy/evaluation.json")["provenance"]["loads"]
    assert ran.status == 0
    assert {each["count"] for each in loads.values()} == {1}


def test_a_judge_that_is_a_candidate_is_loaded_once(place: Place, models: Path) -> None:
    place.task(
        metric="judge", judge={"mode": "single", "prompt": "{{response}}", "verdict": "likelihood"}, max_new_tokens=2
    )
    place.pool(str(models / "alpha"), str(models / "beta"))
    place.select("--judge", str(models / "alpha"))
    assert place.json()["provenance"]["loads"]["alpha"]["count"] == 1


# --- The memory of a container ---


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used", "cache"),
    [
        ("0::/job\n", "job", "memory.max", "memory.current", "inactive_file"),
        ("4:memory:/job\n", "memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        # A container sees its own group as the topmost.
        ("0::/a/path/outside\n", ".", "memory.max", "memory.current", "inactive_file"),
    ],
)
def test_the_limit_of_a_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, folder: str, limit: str, used: str, cache: str
) -> None:
    (tmp_path / "cgroup").write_text(f"1:name=systemd:/job\n{line}")
    group = tmp_path / "fs" / folder
    group.mkdir(parents=True)
    for name, content in ((limit, "1000"), (used, "900"), ("memory.stat", f"anon 1\n{cache} 300")):
        (group / name).write_text(f"{content}\n")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_GROUP_ROOT", tmp_path / "fs")
    assert list(memory.free_in_groups()) == [400]
    (group / limit).write_text("max")
    assert list(memory.free_in_groups()) == []
