"""Members on nodes of a real local Ray cluster: the texts of one process, whatever dies on the way, and few bytes."""

from __future__ import annotations

import math
import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from running_server import serving
from tiny import save_member, tiny_model, tokenizer_named

from benchmarks._models import made_up_tokenizer
from ensemble import Ensemble
from ensemble.decode.settings import Batch, Settings
from ensemble.distributed.ray_cluster import cluster, settle
from ensemble.errors import InputError, MemberError
from ensemble.models.member import Member
from ensemble.models.spec import Checkpoint, ModelSpec
from ensemble.runtime.draft import Drafter, DraftMode

settle()  # this module is the first to import Ray in a process of tests
ray = pytest.importorskip("ray", reason="Ray is not installed")

from ensemble.distributed import ray_member  # noqa: E402  # needs Ray
from ensemble.distributed.ray_client import RayServer  # noqa: E402  # needs Ray
from ensemble.distributed.ray_member import RayMember, start_members  # noqa: E402  # needs Ray
from ensemble.distributed.ray_worker import MemberWorker  # noqa: E402  # needs Ray

pytestmark = pytest.mark.timeout(600)  # its processes start slowly where others compute

PROMPTS = ["The cat sat on", "James and Anna went to the shop", "Café", "3 pears and"]


@dataclass(frozen=True)
class Pair:
    """The same two models in this process, and on two nodes of the cluster."""

    folders: list[Path]
    here: Ensemble
    apart: Ensemble

    def both(self, **options: Any) -> list[Ensemble]:
        """Both with another method."""
        return [Ensemble(one.members, **options) for one in (self.here, self.apart)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folders = []
    for n, (name, arch) in enumerate([("bytes", "llama"), ("unigram with bytes", "gpt2")]):
        tokenizer = tokenizer_named(name)
        folder = tmp_path_factory.mktemp(f"model{n}")
        # Sure enough of itself that it drafts.
        model = tiny_model(tokenizer, seed=n, arch=arch, sharpness=6.0)
        folders.append(save_member(folder, model, tokenizer))
    with cluster("local"):
        here, apart = (Ensemble.from_pretrained(folders, dtype="float64", engine=engine) for engine in ("local", "ray"))
        yield Pair(folders, here, apart)


def client(member: Member) -> RayServer:
    return cast("RayMember", member).server


def kill(member: Member) -> None:
    """End the process that holds a member, as a machine that fails does."""
    os.kill(ray.get(client(member).actor.process_id.remote()), signal.SIGKILL)


def test_each_member_is_in_a_process_of_its_own(pair: Pair) -> None:
    processes = {ray.get(client(member).actor.process_id.remote()) for member in pair.apart.members}
    assert len(processes - {os.getpid()}) == 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 2},  # prompts that wait take the places of others
        {"temperature": 1.0, "top_p": 0.9, "seed": 7},
        {"trace": True},
    ],
    ids=["greedy", "joining", "drawn", "traced"],
)
def test_a_batch_is_what_one_process_writes(pair: Pair, options: dict[str, Any]) -> None:
    here, apart = (one.generate(PROMPTS, max_new_tokens=12, **options) for one in (pair.here, pair.apart))
    for own, far in zip(here, apart, strict=True):
        assert (own.text, own.tokens, own.finish_reason) == (far.text, far.tokens, far.finish_reason)
        assert [step.data for step in own.trace] == [step.data for step in far.trace]
        assert [[c.data for c in s.candidates] for s in own.trace] == [
            [c.data for c in s.candidates] for s in far.trace
        ]
        for a, b in zip(own.trace, far.trace, strict=True):
            assert [c.mean for c in a.candidates] == pytest.approx([c.mean for c in b.candidates], abs=1e-9)


@pytest.mark.parametrize("method", ["geometric", "safe"])
def test_what_is_built_on_unite_is_the_same(pair: Pair, method: str) -> None:
    here, apart = (one.generate(PROMPTS, max_new_tokens=8) for one in pair.both(method=method, k=4))
    assert here == apart


def test_a_draft_takes_fewer_calls_than_its_tokens_and_changes_nothing(pair: Pair) -> None:
    calls = {}
    for draft in (0, 24):
        encoded = [pair.apart.encode(PROMPTS[1])]
        before = client(pair.apart.members[0]).calls
        settings, batch = Settings(max_new_tokens=24), Batch(1, draft=draft)
        # However long that takes: here a plain step may be faster.
        way: DraftMode = "check" if draft else "plain"
        pair.apart._drafters[batch] = Drafter(pair.apart._joint.members[0], draft, (way,))
        ((_, far),) = pair.apart.generate_each(encoded, settings, batch)
        ((_, own),) = pair.here.generate_each(encoded, settings, batch)
        assert own == far
        calls[draft] = client(pair.apart.members[0]).calls - before
    assert calls[24] < calls[0]


@pytest.mark.parametrize("size", [1, 4])
def test_members_here_on_the_cluster_and_behind_a_server_write_together(pair: Pair, size: int) -> None:
    first, second = pair.here.members
    with serving(Ensemble([first])) as server:
        line = f"openai:{server.url}/v1#tiny tokenizer={pair.folders[0]}"
        (behind,) = Ensemble.from_pretrained([line]).members
        texts = [
            Ensemble(members).generate(PROMPTS, max_new_tokens=12, batch_size=size)
            for members in ([first, second, first], [behind, pair.apart.members[1], first])
        ]
    assert texts[0] == texts[1]


def test_options_have_the_scores_of_one_process(pair: Pair) -> None:
    here, apart = (one.score("The cat sat on", [" the mat", " the dog", " James"]) for one in (pair.here, pair.apart))
    assert all(map(math.isfinite, here))
    assert apart == pytest.approx(here, abs=1e-9)


@pytest.mark.parametrize(
    ("prompts", "temperature"),
    [(PROMPTS, 0.0), (PROMPTS[:1], 0.0), (PROMPTS[:2], 1.0)],
    ids=["batch", "one", "drawn"],
)
def test_a_worker_that_is_killed_mid_run_changes_no_text(pair: Pair, prompts: list[str], temperature: float) -> None:
    settings, batch = Settings(max_new_tokens=16, temperature=temperature), Batch(4)
    victim = pair.apart.members[len(prompts) % 2]
    decoding = pair.apart.decoder(batch)
    for n, prompt in enumerate(prompts):
        decoding.add(n, pair.apart.encode(prompt), settings)
    found = dict(decoding.step())
    kill(victim)
    found |= dict(decoding)
    own = pair.here.generate(prompts, max_new_tokens=16, batch_size=4, temperature=temperature)
    assert [found[n] for n in range(len(prompts))] == own


def test_a_worker_that_dies_again_and_again_is_given_up_by_name(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_member, "RESTARTS", 0)
    (member,) = start_members([ModelSpec(Checkpoint(str(pair.folders[0])), "weak", dtype="float64")])
    alone = Ensemble([member])
    assert alone.generate(["The"], max_new_tokens=1)
    kill(member)
    with pytest.raises(MemberError, match=r"^weak: its process on the cluster died once and is given up; "):
        alone.generate(["The"], max_new_tokens=2)


def test_a_worker_without_the_memory_says_so_in_a_line(pair: Pair, tmp_path: Path) -> None:
    for path in pair.folders[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    # More than any machine has, in a file that is all holes.
    header = b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + 2**42)
    with pytest.raises(MemberError, match=r"^big: its weights need .* GiB in float32, and cpu has .* GiB free"):
        start_members([ModelSpec(Checkpoint(str(tmp_path)), "big", dtype="float32")])


def traffic(of: RayServer) -> tuple[int, int]:
    return of.sent, of.received


def test_a_step_sends_top_candidates_and_asked_for_logits(pair: Pair) -> None:
    clients = [client(member) for member in pair.apart.members]
    before = [traffic(one) for one in clients]
    # Drawn, so that probabilities count and logits are asked for.
    settings = Settings(max_new_tokens=16, temperature=1.0)
    (made,) = pair.apart.generate_each([pair.apart.encode("The")], settings, Batch(1, draft=0))
    steps = len(made[1].tokens)
    for one, (sent, received) in zip(clients, before, strict=True):
        # Of 10 candidates 8 bytes of a logit and 4 of an id; of 10 others an id there, and a logit back.
        assert (one.sent - sent) / steps < 400
        assert (one.received - received) / steps < 500


def test_a_greedy_step_asks_for_logits_only_where_they_can_change_the_winner(pair: Pair) -> None:
    calls = {}
    for name, settings in {
        "greedy": Settings(max_new_tokens=16),
        "with probabilities": Settings(max_new_tokens=16, alternatives=0),
    }.items():
        before = [client(member).calls for member in pair.apart.members]
        ((_, made),) = pair.apart.generate_each([pair.apart.encode("The")], settings, Batch(1, draft=0))
        after = [client(member).calls for member in pair.apart.members]
        steps = len(made.tokens) + (made.finish_reason == "eos")
        calls[name] = max(late - early for early, late in zip(before, after, strict=True)) / steps
    assert calls["greedy"] < 1.5 < calls["with probabilities"]


def test_what_a_step_sends_does_not_grow_with_the_vocabulary(tmp_path: Path) -> None:
    sizes = []
    for ids in (1000, 30_000):
        tokenizer = made_up_tokenizer(ids, "words")
        model = tiny_model(tokenizer, dtype=torch.float32)
        folder = save_member(tmp_path / str(ids), model, tokenizer)
        worker = MemberWorker(ModelSpec(Checkpoint(str(folder)), "m", dtype="float32"), threads=1)
        answer = worker.answer(pickle.dumps(("write", ([[1, 2, 3], [4, 5]], 1, 10)), protocol=5))
        assert [len(tokens[0].top) for tokens in pickle.loads(answer)] == [10, 10]
        sizes.append(len(answer) // 100)
    assert sizes[0] == sizes[1]


def test_methods_over_whole_vocabularies_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^method average: it needs the logits of all .*; use unite, .* or safe$"):
        Ensemble.from_pretrained([tmp_path / "nothing"], method="average", engine="ray")


def test_an_engine_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^engine 'spark': not one of local, ray$"):
        Ensemble.from_pretrained([tmp_path], engine=cast("Any", "spark"))


def test_a_cluster_without_gpus_says_so(pair: Pair) -> None:
    with pytest.raises(InputError, match=r"^2 members are to be on GPUs, and the cluster has 0; "):
        Ensemble.from_pretrained(pair.folders, device="cuda", engine="ray")


def test_weights_that_are_elsewhere_are_refused_where_they_are_needed(pair: Pair) -> None:
    with pytest.raises(
        InputError, match=r"this method needs the model in this process, but it is on a server or another node$"
    ):
        _ = pair.apart.members[0].local
