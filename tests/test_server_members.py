"""Members behind real servers (``advisor serve`` of one model each): the texts of one process, whatever happens."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from running_server import Running, serving
from test_drafting import always
from tiny import save_member, tiny_model, tokenizer_named

from ensemble import Ensemble, Grammar
from ensemble.decode.settings import Batch, Settings
from ensemble.decode.thinking import Thinker
from ensemble.errors import InputError, MemberError
from ensemble.models.load import load_member
from ensemble.models.member import Member, ServerMember
from ensemble.models.spec import Checkpoint, ModelSpec
from ensemble.models.thinking import ThinkingTags
from ensemble.runtime.draft import DraftMode
from ensemble.servers.token_client import TokenClient
from ensemble.servers.token_server import NextToken

PROMPTS = ["The cat sat on", "James and Anna went to the shop", "Café", "3 pears and"]
KINDS = [("bytes", "llama"), ("unigram with bytes", "gpt2")]


def line(server: Running, folder: Path) -> str:
    """As a pool file has it."""
    return f"openai:{server.url}/v1#tiny tokenizer={folder}"


@dataclass(frozen=True)
class Far:
    """The same models in this process and behind servers."""

    folders: list[Path]
    here: Ensemble
    lines: list[str]
    servers: list[Running]
    members: list[ServerMember]

    def ensembles(self, **options: Any) -> tuple[Ensemble, Ensemble]:
        """Both with a method, the one here first."""
        return Ensemble(self.here.members, **options), Ensemble(self.members, **options)


def tiny_folder(parent: Path, number: int = 0) -> Path:
    """The folder of a new model."""
    name, arch = KINDS[number]
    tokenizer = tokenizer_named(name)
    # Sure enough of itself that it drafts.
    return save_member(
        parent / f"model{number}", tiny_model(tokenizer, seed=number, arch=arch, sharpness=6.0), tokenizer
    )


@contextlib.contextmanager
def served(folder: Path, port: int = 0) -> Iterator[Running]:
    member = load_member(ModelSpec(Checkpoint(str(folder)), "tiny", dtype="float64", chat_template="never"))
    with serving(Ensemble([member], cache_dir=folder / "tables"), port=port) as running:
        yield running


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    parent = tmp_path_factory.mktemp("models")
    folders = [tiny_folder(parent, number) for number in range(len(KINDS))]
    here = Ensemble.from_pretrained(folders, dtype="float64")
    with served(folders[0]) as first, served(folders[1]) as second:
        lines = [line(server, folder) for server, folder in zip((first, second), folders, strict=True)]
        members = [cast("ServerMember", member) for member in Ensemble.from_pretrained(lines).members]
        yield Far(folders, here, lines, [first, second], members)


def generate(ensemble: Ensemble, prompts: list[str], settings: Settings, batch: Batch) -> list[Any]:
    made = dict(ensemble.generate_each([ensemble.encode(prompt) for prompt in prompts], settings, batch))
    return [made[n] for n in range(len(prompts))]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("way", get_args(DraftMode))
def test_texts_are_those_of_one_process(far: Far, size: int, way: DraftMode) -> None:
    here, apart = far.ensembles()
    settings, batch = Settings(max_new_tokens=16), Batch(size)
    assert generate(always(apart, way, batch), PROMPTS, settings, batch) == generate(here, PROMPTS, settings, batch)


@pytest.mark.parametrize(
    "options",
    [
        *({"method": "geometric"}, {"method": "safe"}, {"method": "gac"}),
        *({"method": "gac-threshold", "threshold": 0.5}, {"weights": [0.8, 0.2], "k": 3}),
    ],
    ids=str,
)
def test_methods_that_need_the_top_candidates_write_what_they_write_in_one_process(
    far: Far, options: dict[str, Any]
) -> None:
    here, apart = far.ensembles(**options)
    settings, batch = Settings(max_new_tokens=12), Batch(4)
    assert generate(apart, PROMPTS, settings, batch) == generate(here, PROMPTS, settings, batch)


def test_the_published_rule_of_unite_is_refused(far: Far) -> None:
    with pytest.raises(InputError, match=r"^method unite: published needs logits, and members behind servers"):
        Ensemble(far.members, published=True)


def thinking(members: Sequence[Member], budget: int | None = None) -> list[Member]:
    """The members, each with tags of letters that these random models write."""
    tags = (ThinkingTags("is", "q"), ThinkingTags("is", "s"))
    return [
        replace(each, spec=replace(cast("ModelSpec", each.spec), thinking=own, thinking_budget=budget))
        for each, own in zip(members, tags, strict=True)
    ]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("budget", [None, 0, 3, 9])
def test_members_that_think_apart_write_what_they_write_in_one_process(far: Far, size: int, budget: int | None) -> None:
    settings, batch, made = Settings(max_new_tokens=24), Batch(size), []
    for members in (far.here.members, far.members, (far.members[0], far.here.members[1])):
        ensemble = Ensemble(thinking(members, budget), k=5, think="apart")
        made.append(generate(ensemble, [f"{each} is" for each in PROMPTS], settings, batch))
    assert made[0] == made[1] == made[2]
    assert {thought and thought.finish_reason for each in made[0] for thought in each.thinking} >= {"stop"}
    assert any(each.text for each in made[0])


def test_the_budget_of_a_line_with_a_tokenizer_closes_the_thinking_as_in_one_process(far: Far) -> None:
    options = ("thinking=is...q thinking_budget=3", "thinking=is...s thinking_budget=3")
    members = Ensemble.from_pretrained([" ".join(pair) for pair in zip(far.lines, options, strict=True)]).members
    here, apart = (
        Ensemble(each, k=5, think="apart").generate([f"{prompt} is" for prompt in PROMPTS], max_new_tokens=30)
        for each in (thinking(far.here.members, 3), members)
    )
    assert apart == here
    assert "length" in {thought.finish_reason for each in here for thought in each.thinking if thought}


def test_a_member_behind_a_server_thinks_in_few_requests(far: Far) -> None:
    (member, *_) = far.members
    spec = replace(cast("ModelSpec", member.spec), thinking=ThinkingTags("is", "no end"))
    ensemble = Ensemble([replace(member, spec=spec)], think="apart")
    before, tokens = member.client.counts.requests, 0
    for prompt in PROMPTS:
        tokens += ensemble.generate([f"{prompt} is"], max_new_tokens=120)[0].thinking_tokens
    assert tokens > 100
    assert member.client.counts.requests - before < tokens / 2


def test_members_behind_servers_think_at_the_same_time(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    together, step, begun = threading.Barrier(2, timeout=20), Thinker.step, set[int]()

    def first_together(self: Thinker) -> Any:
        if id(self) not in begun:
            begun.add(id(self))
            together.wait()
        return step(self)

    monkeypatch.setattr(Thinker, "step", first_together)
    Ensemble(thinking(far.members), think="apart").generate([f"{PROMPTS[0]} is"], max_new_tokens=4)
    assert not together.broken
    assert len(begun) == 2


def test_a_lone_member_behind_a_server_writes_several_tokens_in_a_request(far: Far) -> None:
    before = far.members[0].client.counts.requests
    (made,) = Ensemble(far.members[:1]).generate(PROMPTS[:1], max_new_tokens=60)
    assert [made] == Ensemble(far.here.members[:1], method="unite").generate(PROMPTS[:1], max_new_tokens=60)
    assert far.members[0].client.counts.requests - before < 30


def test_greedy_and_drawn_texts_of_one_batch_are_those_of_one_process(far: Far) -> None:
    texts = []
    for ensemble in far.ensembles():
        decoder = ensemble.decoder(Batch(4))
        for n, prompt in enumerate(PROMPTS[:4]):
            settings = Settings(max_new_tokens=12, temperature=float(n % 2), top_p=0.9, seed=3)
            decoder.add(n, ensemble.encode(prompt), settings)
        texts.append(dict(decoder))
    assert texts[0] == texts[1]


def test_a_trace_has_the_probabilities_of_one_process(far: Far) -> None:
    here, apart = (ensemble.generate(PROMPTS[:1], max_new_tokens=6, trace=True)[0] for ensemble in far.ensembles())
    for own, other in zip(here.trace, apart.trace, strict=True):
        assert (own.data, own.chosen) == (other.data, other.chosen)
        for one, two in zip(own.candidates, other.candidates, strict=True):
            assert two.data == one.data
            assert two.probabilities == pytest.approx(one.probabilities, abs=1e-9)


@pytest.mark.parametrize(("order", "size"), [((0, 1), 1), ((1, 0), 3)], ids=["server first", "server second"])
def test_a_member_here_and_one_behind_a_server_write_together(far: Far, order: tuple[int, int], size: int) -> None:
    behind = far.members
    mixed = [behind[n] if n == 0 else far.here.members[n] for n in order]
    here = Ensemble([far.here.members[n] for n in order])
    settings, batch = Settings(max_new_tokens=16), Batch(size)
    assert generate(Ensemble(mixed), PROMPTS, settings, batch) == generate(here, PROMPTS, settings, batch)


@pytest.mark.parametrize("way", ["check", "ahead"])
def test_a_draft_takes_fewer_requests_than_its_tokens(far: Far, way: DraftMode) -> None:
    # Two connections to one model, which agree at every step.
    members = [cast("ServerMember", Ensemble.from_pretrained(far.lines[:1]).members[0]) for _ in range(2)]
    batch = Batch(1)
    before = [member.client.counts.requests for member in members]
    (made,) = generate(always(Ensemble(members), way, batch), PROMPTS[1:2], Settings(max_new_tokens=24), batch)
    taken = [member.client.counts.requests - count for member, count in zip(members, before, strict=True)]
    assert max(taken) < len(made.tokens)


def test_what_a_member_has_written_is_not_requested_again(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the members disagree, the one whose token was chosen has written on from there already."""
    told: set[tuple[int, tuple[int, ...]]] = set()
    again = []
    send = TokenClient.write

    def write(self: TokenClient, contexts: Sequence[Sequence[int]], *args: int, **options: bool) -> Any:
        if not options.get("second"):
            again.extend(context for context in contexts if (id(self), tuple(context)) in told)
        wait = send(self, contexts, *args, **options)

        def answer() -> list[list[NextToken]]:
            tokens = wait()
            for context, own in zip(contexts, tokens, strict=True):
                ids = [*context, *(each.token for each in own)]
                told.update((id(self), tuple(ids[: len(context) + n])) for n in range(len(own)))
            return tokens

        return answer

    monkeypatch.setattr(TokenClient, "write", write)
    batch = Batch(3)
    generate(always(Ensemble(far.members), "ahead", batch), PROMPTS[:4], Settings(max_new_tokens=24), batch)
    assert (again, len(told) > 100) == ([], True)


def test_a_batch_takes_one_request_of_a_member_for_all_its_texts(far: Far) -> None:
    counts = far.members[0].client.counts
    before = counts.requests - counts.second
    made = generate(Ensemble(far.members), PROMPTS[:4], Settings(max_new_tokens=6), Batch(4, draft=0))
    assert counts.requests - counts.second - before == max(generation.counts.steps for generation in made)


def test_a_server_that_is_restarted_in_the_middle_changes_no_text(far: Far) -> None:
    here, _ = far.ensembles()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(served(far.folders[1]))
        port = int(server.url.rpartition(":")[2])
        apart = Ensemble.from_pretrained([far.lines[0], line(server, far.folders[1])])
        decoder = apart.decoder(Batch(4))
        for n, prompt in enumerate(PROMPTS[:4]):
            decoder.add(n, apart.encode(prompt), Settings(max_new_tokens=24))
        found = dict(decoder.step())
        stack.close()
        with served(far.folders[1], port):
            found |= dict(decoder)
    assert [found[n] for n in range(4)] == generate(here, PROMPTS[:4], Settings(max_new_tokens=24), Batch(4))


def test_a_server_that_comes_back_with_another_model_is_noticed(far: Far, tmp_path: Path) -> None:
    tokenizer = tokenizer_named(KINDS[1][0])
    other = save_member(tmp_path, tiny_model(tokenizer, seed=9, arch="gpt2", sharpness=6.0), tokenizer)
    with served(far.folders[1]) as server:
        apart = Ensemble.from_pretrained([far.lines[0], line(server, far.folders[1])])
    port = int(server.url.rpartition(":")[2])
    with served(other, port), pytest.raises(MemberError, match=r"^tiny: the server has another model or numeric"):
        apart.generate(PROMPTS[:1], max_new_tokens=4)


@pytest.mark.parametrize(
    ("lines_of", "options", "says"),
    [
        (
            lambda far: [line(far.servers[1], far.folders[0])],
            {},
            r"^tiny: tokenizer=.* is not the tokenizer of the server's model: it writes ",
        ),
        (lambda far: [far.lines[0].partition(" ")[0]], {}, r"^tiny: .* add tokenizer=FOLDER_OR_ID to its line$"),
        # Before any request: there is no such server.
        (lambda _: ["openai:http://127.0.0.1:9/v1#m tokenizer=x"], {"method": "average"}, "^method average: "),
        (lambda far: far.lines, {"k": 25}, "^tiny: its server gives 20 top log-probabilities, .* too few for k=25"),
    ],
)
def test_a_line_that_cannot_be_decoded_with_others_says_why(
    far: Far, lines_of: Callable[[Far], list[str]], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        Ensemble.from_pretrained(lines_of(far), **options)


def test_a_saved_ensemble_names_its_servers_and_needs_consent(far: Far, tmp_path: Path) -> None:
    Ensemble.from_pretrained(far.lines).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"is behind the server http://127\.0\.0\.1:\d+, to which the questions would"):
        Ensemble.from_pretrained(tmp_path)
    loaded = Ensemble.from_pretrained(tmp_path, allow_servers=[server.url for server in far.servers])
    assert loaded.generate(PROMPTS[:1], max_new_tokens=4) == far.here.generate(PROMPTS[:1], max_new_tokens=4)


def test_a_member_that_wrote_to_the_end_of_its_context_is_not_asked_to_go_on(far: Far, tmp_path: Path) -> None:
    tokenizer = tokenizer_named("bytes")
    # Its tokens are shorter than the primary's, and so its context is full earlier.
    folder = save_member(tmp_path, tiny_model(tokenizer, seed=3, positions=40, sharpness=6.0), tokenizer)
    here = Ensemble.from_pretrained([far.folders[1], folder], dtype="float64")
    settings, batch = Settings(max_new_tokens=60), Batch(4)
    with served(folder) as server:
        apart = Ensemble.from_pretrained([far.lines[1], line(server, folder)])
        made = generate(always(apart, "ahead", batch), PROMPTS, settings, batch)
    whole = generate(here, PROMPTS, settings, batch)
    # A server refuses a context that leaves no room for a token, so a text may be one token shorter.
    assert [one.tokens for one in made] == [own.tokens[: len(one.tokens)] for own, one in zip(whole, made, strict=True)]
    assert all(len(own.tokens) - len(one.tokens) <= 1 for own, one in zip(whole, made, strict=True))


def test_a_drawn_request_to_a_method_that_decodes_greedily_only_does_not_end_the_server(far: Far) -> None:
    with serving(Ensemble(far.members, method="gac")) as server:
        body = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 2}
        refused = server.ask("/v1/completions", json.dumps({**body, "temperature": 0.7}))
        assert (refused.status, "greedy decoding only" in refused.error["message"]) == (400, True)
        assert server.ask("/v1/completions", json.dumps(body)).status == 200


@pytest.mark.parametrize("pattern", [r"(yes|no), because [a-z ]{3,12}\.", r"[0-9]{1,3}(,[0-9]{3}){0,2}", r"[ -~]{24}"])
@pytest.mark.parametrize("way", get_args(DraftMode))
def test_texts_under_a_grammar_are_those_of_one_process(far: Far, way: DraftMode, pattern: str) -> None:
    here, apart = far.ensembles()
    settings, batch = Settings(max_new_tokens=24, grammar=Grammar.regex(pattern)), Batch(4)
    assert generate(always(apart, way, batch), PROMPTS, settings, batch) == generate(here, PROMPTS, settings, batch)


def test_a_gate_on_a_servers_probabilities_takes_no_grammar(far: Far) -> None:
    apart = Ensemble(far.members, method="gac-threshold", threshold=0.5)
    with pytest.raises(InputError, match="takes a grammar only where all members are in this process"):
        apart.generate(["x"], grammar=Grammar.regex("a"))
