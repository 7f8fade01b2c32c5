"""Ensembles of members behind servers against the same models in this process: equal texts, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from benchmarks._decoding import BATCH, K
from benchmarks._measure import Figure
from benchmarks._models import demo_prompts
from benchmarks._vllm_servers import MODELS, VllmProcess, serving
from ensemble import Ensemble
from ensemble.decode.sequences import Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.models.member import ServerMember

THIRD, FOURTH = "terse-neox", "terse-olmo"
TOKENS = 64
PLAIN = Batch(1, 0)
WAYS = (PLAIN, Batch(1), Batch(BATCH, 0), Batch(BATCH))
# Words of the demo's questions in an order that no question has: models of word problems are unsure after them.
WORDS = "Leo Tim buys gives finds loses has many How nuts beads cards 3 12 28 more now? to from the answer is"
FREE_TOKENS = 100


class Requests:
    """How many requests the members of an ensemble have sent since this was made."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._counts = [member.client.counts for member in ensemble.members if isinstance(member, ServerMember)]
        self._all, self._second = self._now()

    @property
    def all(self) -> int:
        """All requests."""
        return self._now()[0] - self._all

    @property
    def second(self) -> int:
        """Those for chosen ids, or for more candidates, where the top candidates were not enough."""
        return self._now()[1] - self._second

    def _now(self) -> tuple[int, int]:
        return sum(each.requests for each in self._counts), sum(each.second for each in self._counts)


class Comparison:
    """Compares generations, and counts what they took.

    Attributes:
        second: Second requests of greedy decoding, one text at a time.
        steps: Its steps.
    """

    def __init__(self) -> None:
        self.second = self.steps = 0

    def differences(
        self,
        theirs: Ensemble,
        ours: Ensemble,
        prompts: Sequence[str],
        settings: Settings,
        batches: Sequence[Batch],
    ) -> tuple[int, int]:
        """How many generations of ``theirs`` are not those of ``ours``, and the steps of one pass over the prompts."""
        expected = generations(ours, prompts, settings, PLAIN)
        differ = 0
        for batch in batches:
            requests = Requests(theirs)
            made = generations(theirs, prompts, settings, batch)
            differ += sum(one != other for one, other in zip(made, expected, strict=True))
            # In a batch a request has the contexts of many texts; draws need exact values and not only the winner.
            if batch.size == 1 and not settings.temperature:
                self.second += requests.second
                self.steps += sum(one.counts.steps for one in made)
        return differ, sum(one.counts.steps for one in expected)


def remote(servers: Sequence[VllmProcess], ports: Sequence[int] = (), here: Sequence[str] = ()) -> Ensemble:
    """An ensemble of members behind servers.

    Args:
        servers: Their servers.
        ports: Those of proxies; without them, those of the servers.
        here: Models that this process loads, behind the others.
    """
    lines = [server.line(port) for server, port in zip(servers, ports or [one.port for one in servers], strict=True)]
    return Ensemble.from_pretrained([*lines, *(str(MODELS / name) for name in here)], k=K, dtype="float32")


def local(names: Sequence[str]) -> Ensemble:
    """An ensemble in this process."""
    return Ensemble.from_pretrained([str(MODELS / name) for name in names], k=K, dtype="float32")


def generations(ensemble: Ensemble, prompts: Sequence[str], settings: Settings, batch: Batch) -> list[Generation]:
    """What an ensemble writes after each prompt."""
    finished = dict(ensemble.generate_each([ensemble.encode(prompt) for prompt in prompts], settings, batch))
    return [finished[n] for n in range(len(prompts))]


def equality(servers: Sequence[VllmProcess], prompts: int, steps: int, kinds: int) -> list[Figure]:
    """The figures.

    Args:
        servers: Those of the pair.
        prompts: Of the demo, for 2 and 3 members.
        steps: Of unsure text, at least.
        kinds: Prompts of the demo for four kinds of tokenizers.
    """
    comparison, settings, texts = Comparison(), Settings(TOKENS), demo_prompts(prompts)
    names = [server.name for server in servers]
    pair, pair_here = remote(servers), local(names)
    differ, _ = comparison.differences(pair, pair_here, texts, settings, WAYS)
    free, unsure = _unsure(comparison, pair, pair_here, steps)
    with serving([THIRD], first_core=len(servers)) as third:
        more, _ = comparison.differences(remote([*servers, *third]), local([*names, THIRD]), texts, settings, WAYS)
        with serving([FOURTH], first_core=len(servers) + 1) as fourth:
            # The primary of the pair is loaded here, so that members of both kinds decode together.
            mixed = remote([*fourth, *third, servers[1]], here=[names[0]])
            same = local([FOURTH, THIRD, names[1], names[0]])
            of_kinds, _ = comparison.differences(mixed, same, demo_prompts(kinds), settings, [Batch(1)])
    ways = f"plain and drafted, 1 and {BATCH} texts at a time"
    share = comparison.second / comparison.steps
    note = f"{comparison.second} in {comparison.steps} steps, one text at a time"
    return [
        Figure("differences", differ + more, limit="0", note=f"{prompts} prompts, 2 and 3 members, {ways}"),
        Figure("differences_free", free, limit="0", note=f"{unsure} steps of unsure text, half of them drawn"),
        Figure("differences_kinds", of_kinds, limit="0", note=f"{kinds} prompts, four tokenizers, one member local"),
        Figure("second_per_step", share, limit="at most 0.01", note=note),
    ]


def _unsure(comparison: Comparison, theirs: Ensemble, ours: Ensemble, steps: int) -> tuple[int, int]:
    """Differences where the models are unsure, and the steps of these texts."""
    chance = Random(0)
    differ = done = 0
    while done < steps:
        prompts = [" ".join(chance.choices(WORDS.split(), k=6)) for _ in range(BATCH)]
        for settings, batch in ((Settings(FREE_TOKENS), Batch(1)), (Settings(FREE_TOKENS, temperature=1.0), PLAIN)):
            more, taken = comparison.differences(theirs, ours, prompts, settings, [batch])
            differ, done = differ + more, done + taken
    return differ, done
