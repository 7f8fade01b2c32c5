"""Scoring: the log-probability of each of some texts after a prompt, or of a long text, under all members together.

The scored texts are known in advance, so no step waits for another: each member reads few rows after one prompt (see
:class:`ChoiceQuestion`), and then steps 1 to 6 of UNITE run over all tokens of all options together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from ensemble.common.text import check_text
from ensemble.errors import InputError, MemberError
from ensemble.models.member import Member, step_device
from ensemble.runtime.local_runner import LocalRunner, common_prefix
from ensemble.runtime.logits import Logits
from ensemble.step.sampler import Detokenizer, Draw, Sampler, no_token
from ensemble.step.token_method import AppendsOnly, TokenRule
from ensemble.vocabulary.joint import NONE, JointVocabulary
from ensemble.vocabulary.retokenize import Continuation
from ensemble.vocabulary.token_bytes import Vocabulary

State = tuple[int, ...]
"""The ids that a member has read after the prompt."""


@dataclass(frozen=True, slots=True)
class Paths:
    """A member's states as prefixes of few rows."""

    rows: list[State]  # ids to read after the prompt
    row_of: dict[State, int]  # for each state the number of a row that begins with it


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A prompt and its options, as the members read them.

    Before the t-th token of an option a member has read its prompt and ``C_i`` of the bytes up to there. If one of
    these states is a prefix of another, one pass over the longer one reads both. So all states of a question's options
    fit into few rows after one prompt, which is read once.
    """

    prompts: Sequence[list[int]]  # the prompt's ids in each member
    known: list[float]  # the score of each option that no model decides: minus infinity if it cannot be written, else 0
    owners: list[int]  # for each token to score, the number of its option
    tokens: list[int]  # for each token to score, the primary's id
    entries: list[int]  # for each token to score, its entry of the joint vocabulary
    states: list[list[State]]  # for each member, and for each token to score, the member's state before it
    paths: list[Paths]  # for each member, all of its states

    def rows(self) -> int:
        """Rows after the prompt, in the member that has the most."""
        return max(len(path.rows) for path in self.paths)

    def longest(self) -> int:
        """Tokens of the longest row after the prompt, in any member."""
        return max(len(row) for path in self.paths for row in path.rows)


def states(vocabularies: Sequence[Vocabulary], tokens: Sequence[int]) -> list[list[State]]:
    """For each member, its state before each token of an option, given as the primary's ids without EOS."""
    primary, *others = vocabularies
    return [
        [tuple(tokens[:n]) for n in range(len(tokens))],
        *([tuple(ids) for ids in _read(Continuation(each), primary, tokens)] for each in others),
    ]


def _read(reader: Continuation, primary: Vocabulary, tokens: Sequence[int]) -> list[list[int]]:
    """Let a member read tokens of the primary; its ids before each of them."""
    before = []
    for token in tokens:
        before.append([*reader.ids])
        reader.extend(primary.token_bytes(token) or b"")
    return before


def paths(reached: Iterable[State]) -> Paths:
    """The fewest rows that lead through all states: the states that are no prefix of another one."""
    rows: list[State] = []
    row_of: dict[State, int] = {}
    # In descending order a sequence comes right after those that begin with it.
    for state in sorted({*reached, ()}, reverse=True):
        if not rows or rows[-1][: len(state)] != state:
            rows.append(state)
        row_of[state] = len(rows) - 1
    return Paths(rows, row_of)


def batches(questions: Sequence[ChoiceQuestion], max_rows: int, max_places: int) -> Iterator[list[int]]:
    """The numbers of questions of similar length, the longest first, in batches within two limits.

    ``max_rows`` are rows in any member, and ``max_places`` rows times the longest; a single question may have more.
    """
    batch: list[int] = []
    rows = longest = 0
    for n in sorted(range(len(questions)), key=lambda n: -len(questions[n].prompts[0])):
        new_rows, length = questions[n].rows(), max(longest, questions[n].longest() + 1)
        if batch and (rows + new_rows > max_rows or (rows + new_rows) * length > max_places):
            yield batch
            batch, rows, length = [], 0, questions[n].longest() + 1
        batch.append(n)
        rows, longest = rows + new_rows, length
    if batch:
        yield batch


def choice_question(
    members: Sequence[Member],
    joint: JointVocabulary,
    prompts: Sequence[list[int]],
    options: Sequence[str],
    *,
    shorten: bool = False,
) -> ChoiceQuestion:
    """The question of a prompt and options; InputError for an empty or invalid one, or one that does not fit.

    With ``shorten`` a prompt may lose its first tokens, to fit together with the longest option.
    """
    if not options or not all(options):
        raise InputError("score needs at least one option, and none of them empty")
    for option in options:
        check_text("an option", option)
    vocabularies = [member.vocabulary for member in members]
    known = [0.0] * len(options)
    owners: list[int] = []
    all_tokens: list[int] = []
    all_entries: list[int] = []
    reached: list[list[State]] = [[] for _ in members]
    for n, option in enumerate(options):
        # Not with the prompt's text: the ids of the prompt stay as they are, as in decoding.
        tokens = vocabularies[0].continue_ids(option.encode())
        entries = entries_of(vocabularies[0], joint, tokens)
        # No model runs for such an option; its score is known, and the others' scores need no row of it.
        if not tokens or NONE in entries:
            known[n] = -math.inf
            continue
        owners += [n] * len(tokens)
        all_tokens += tokens
        all_entries += entries
        for member_states, new in zip(reached, states(vocabularies, tokens), strict=True):
            member_states.extend(new)
    if shorten:
        # Each member loses as few tokens as its own context demands.
        rooms = [max(map(len, member_states), default=0) for member_states in reached]
        prompts = [member.shorten(prompt, room) for member, prompt, room in zip(members, prompts, rooms, strict=True)]
    check_lengths(members, prompts, reached)
    return ChoiceQuestion(prompts, known, owners, all_tokens, all_entries, reached, [paths(each) for each in reached])


def check_lengths(members: Sequence[Member], prompts: Sequence[list[int]], reached: Sequence[Sequence[State]]) -> None:
    """Raise InputError if a prompt and the longest state after it do not fit a member's context."""
    for member, prompt, member_states in zip(members, prompts, reached, strict=True):
        length = len(prompt) + max(map(len, member_states), default=0)
        most = member.most_tokens(prompt)
        if most is not None and length > most:
            raise InputError(
                f"a prompt and an option of {length} tokens together do not fit its context of {member.context}",
                of=member.name,
            )


def entries_of(primary: Vocabulary, joint: JointVocabulary, tokens: Sequence[int]) -> list[int]:
    """The entries of some of the primary's ids; NONE for ids that are unused or add no text."""
    texts = [primary.token_bytes(token) or b"" for token in tokens]
    representatives = torch.tensor([primary.representatives.get(data, NONE) for data in texts], dtype=torch.long)
    entry_of = joint.members[0].entry_of
    entries = entry_of[representatives.to(entry_of.device)].tolist()
    return [NONE if index == NONE else entry for index, entry in zip(representatives.tolist(), entries, strict=True)]


Q = TypeVar("Q")
S = TypeVar("S")

MAX_LOGITS = 2**26
"""Logits of a member to hold at a time (256 MiB in float32), unless a single question has more."""
_PLACES = 64
"""Tokens to combine at a time: a method may need all entries of all vocabularies for each."""
_PIECE = 16
"""Tokens of a piece of a passage: in a longer one, each place where two tokenizations differ has more tokens to read
again."""
_PIECE_ALONE = 256
"""Tokens of a piece where only one tokenization counts: the logits of a whole prompt can need gigabytes."""
_ROWS_OF_PIECE = 4
"""Rows of a piece of a passage, roughly: about one token in four ends within another member's token."""


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """The score of an option."""

    value: float  # its log-probability
    greedy: bool | None = None  # whether greedy decoding would write it, perhaps with more text; None unless requested


def in_batches(
    questions: Sequence[Q], batches: Iterable[Sequence[int]], score: Callable[[Sequence[Q]], Sequence[S | MemberError]]
) -> Iterator[tuple[int, S]]:
    """Yield questions' numbers and scores; after all others, raise the first MemberError with its question's number."""
    failures: list[tuple[int, MemberError]] = []
    for batch in batches:
        for n, scored in zip(batch, score([questions[n] for n in batch]), strict=True):
            if isinstance(scored, MemberError):
                failures.append((n, scored))
            else:
                yield n, scored
    if failures:
        number, failure = min(failures, key=lambda item: item[0])
        # A single question needs no number: its caller knows it.
        where = f" for number {number}; {len(failures)} of {len(questions)} have no score"
        raise MemberError(f"{failure}{where if len(questions) > 1 else ''}")


class Scorer:
    """Scores options with some members, and with ``greedy`` tells what greedy decoding would write."""

    def __init__(self, members: Sequence[Member], rule: TokenRule, *, greedy: bool = False) -> None:
        self._members = members
        self._vocabularies = [member.vocabulary for member in members]
        self._combine = rule.combine
        self._device = step_device(members)
        self._runners = [member.runner() for member in members]
        self._detokenizer = Detokenizer(self._vocabularies)
        self._sampler = Sampler(rule, len(members), self._detokenizer, trace=False) if greedy else None

    def run(self, questions: Sequence[ChoiceQuestion], batch_size: int) -> Iterator[tuple[int, list[ChoiceScore]]]:
        """Score ``batch_size`` rows at a time; yields questions' numbers and the scores of their options.

        A MemberError for NaN logits, with the member and the first question's number, follows all others.
        """
        places = MAX_LOGITS // max(vocabulary.size for vocabulary in self._vocabularies)
        yield from in_batches(questions, batches(questions, batch_size, places), self._score)

    @torch.inference_mode()
    def _score(self, questions: Sequence[ChoiceQuestion]) -> list[list[ChoiceScore] | MemberError]:
        """The scores of all options of all questions, in one pass; the error of a question that has none."""
        with_tokens = [question for question in questions if question.entries]
        values: list[float] = []
        chosen: list[int] = []
        logits: list[Logits] = []
        if with_tokens:
            for n, runner in enumerate(self._runners):
                prompts = [question.prompts[n] for question in with_tokens]
                logits.append(runner.score(prompts, *continuations(n, with_tokens)).to(self._device))
            values, chosen = self.token_scores(with_tokens, logits)
        scores: list[list[ChoiceScore] | MemberError] = []
        first = 0
        for question in questions:
            end = first + len(question.entries)
            if any(map(math.isnan, values[first:end])):
                scores.append(no_token(zip(self._members, logits, strict=True), range(first, end)))
            else:
                scores.append(self._total(question, values[first:end], chosen[first:end]))
            first = end
        return scores

    def token_scores(
        self, questions: Sequence[ChoiceQuestion], logits: Sequence[Logits]
    ) -> tuple[list[float], list[int]]:
        """The log-probability of each token, and greedy choices if requested, from logits [tokens, V]."""
        # On the device once, since the parts below are slices of it.
        entries = torch.tensor([[entry] for question in questions for entry in question.entries], device=self._device)
        places = [(question, place) for question in questions for place in range(len(question.entries))]
        values: list[float] = []
        chosen: list[int] = []
        for first in range(0, len(entries), _PLACES):
            some = slice(first, first + _PLACES)
            wanted, part = entries[some], [z[some] for z in logits]
            if self._sampler is not None:
                sampled = self._sampler(part, [Draw()] * len(wanted), self._appends_only(places[some]))
                chosen += [token.token for token in sampled]
            step = self._combine(part, wanted)
            values += step.mean[step.present & (step.entries == wanted)].log().tolist()
        return values, chosen

    def _appends_only(self, places: Sequence[tuple[ChoiceQuestion, int]]) -> AppendsOnly:
        """Whether a token leaves every other member's last ids unchanged, for rows at these places of questions."""

        def appends_only(row: int, token: int) -> bool:
            question, place = places[row]
            text = b"".join(self._detokenizer.data(index) or b"" for index in question.states[0][place])
            data = self._detokenizer.data(token)
            if data is None:
                return True
            ids = [(each.continue_ids(text), each.continue_ids(text + data)) for each in self._vocabularies[1:]]
            return all(after[: len(before)] == before for before, after in ids)

        return appends_only

    def _total(self, question: ChoiceQuestion, values: Sequence[float], chosen: Sequence[int]) -> list[ChoiceScore]:
        """The scores of a question's options from those of its tokens."""
        totals = list(question.known)
        places_of: list[list[int]] = [[] for _ in totals]
        for place, (option, value) in enumerate(zip(question.owners, values, strict=True)):
            totals[option] += value
            places_of[option].append(place)
        if self._sampler is None:
            return [ChoiceScore(total) for total in totals]
        return [
            ChoiceScore(total, self._is_greedy([question.tokens[n] for n in places], [chosen[n] for n in places]))
            for total, places in zip(totals, places_of, strict=True)
        ]

    def _is_greedy(self, tokens: Sequence[int], chosen: Sequence[int]) -> bool:
        """Whether greedy decoding, with these choices before each token, writes the tokens."""
        place = 0
        while place < len(tokens):
            # A choice may have several ids, and the choices within it do not count.
            ids = self._detokenizer.ids(chosen[place])
            if list(tokens[place : place + len(ids)]) != ids[: len(tokens) - place]:
                return False
            place += len(ids)
        # An option that cannot be written has no tokens; greedy decoding does not write it.
        return bool(tokens)


def continuations(
    member: int, questions: Sequence[ChoiceQuestion]
) -> tuple[list[int], list[list[int]], list[tuple[int, int]]]:
    """The ``parents``, ``new`` and ``places`` (before each token to score) that a member's runner scores."""
    parents: list[int] = []
    new: list[list[int]] = []
    places: list[tuple[int, int]] = []
    for n, question in enumerate(questions):
        paths = question.paths[member]
        places += [(len(new) + paths.row_of[state], len(state)) for state in question.states[member]]
        parents += [n] * len(paths.rows)
        # The prompt's last token is read again: the logits after it are those before an option's first token.
        new += [[question.prompts[member][-1], *row] for row in paths.rows]
    return parents, new, places


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to score as a whole."""

    prompts: Sequence[list[int]]  # what comes before it, in each member's ids; at least one id
    tokens: Sequence[int]  # the text, in the primary's ids


def pieces_of(
    members: Sequence[Member], passage: Passage, entries: Sequence[int], size: int
) -> Iterator[ChoiceQuestion]:
    """A passage in questions of one option: ``size`` tokens after the ones before; InputError if it does not fit."""
    primary, *others = [member.vocabulary for member in members]
    readers = [Continuation(vocabulary) for vocabulary in others]
    for first in range(0, len(passage.tokens), size):
        tokens = list(passage.tokens[first : first + size])
        stems = [list(passage.tokens[:first])]
        reached: list[list[State]] = [[tuple(tokens[:n]) for n in range(len(tokens))]]
        for reader in readers:
            states = _read(reader, primary, tokens)
            # A piece may change ids of the text before it, so the prompt holds only what all states begin with.
            stems.append(common_prefix(states))
            reached.append([tuple(state[len(stems[-1]) :]) for state in states])
        prompts = [[*prompt, *stem] for prompt, stem in zip(passage.prompts, stems, strict=True)]
        check_lengths(members, prompts, reached)
        known, owners = [0.0], [0] * len(tokens)
        piece_entries = list(entries[first : first + size])
        member_paths = [paths(states) for states in reached]
        yield ChoiceQuestion(prompts, known, owners, tokens, piece_entries, reached, member_paths)


class PassageScorer:
    """Scores passages: the log-probability of every token after all the text before it.

    An option is read in one pass, with a row for each place where tokenizations differ. Over a thousand tokens would
    need hundreds of rows of that length. So a passage is cut into pieces of few tokens, and each is scored like an
    option after the pieces before it. The members' runners keep those.
    """

    def __init__(self, members: Sequence[Member], joint: JointVocabulary, rule: TokenRule) -> None:
        self._members = members
        self._joint = joint
        self._scorer = Scorer(members, rule)
        self._size = _PIECE if len(members) > 1 else _PIECE_ALONE

    def run(self, passages: Sequence[Passage], batch_size: int) -> Iterator[tuple[int, float]]:
        """Score passages of similar length together; yields their numbers and log-probabilities.

        ``batch_size`` is at least 1; fewer run together if their logits would take too much memory. InputError if a
        context cannot hold a passage; MemberError for NaN, after all others, with the member and the first number.
        """
        widest = max(member.vocabulary.size for member in self._members)
        rows = _ROWS_OF_PIECE if len(self._members) > 1 else 1
        size = max(1, min(batch_size, MAX_LOGITS // (widest * self._size * rows)))
        # The longest first: if memory runs out, then at once and not after hours.
        order = sorted(range(len(passages)), key=lambda n: -len(passages[n].tokens))
        groups = (order[first : first + size] for first in range(0, len(order), size))
        yield from in_batches(passages, groups, self._score)

    @torch.inference_mode()
    def _score(self, passages: Sequence[Passage]) -> list[float | MemberError]:
        """The log-probability of each passage, or its error; one piece of each runs at a time."""
        totals = [0.0] * len(passages)
        failures: dict[int, MemberError] = {}
        running: list[tuple[int, Iterator[ChoiceQuestion], ChoiceQuestion]] = []
        for n, passage in enumerate(passages):
            entries = entries_of(self._members[0].vocabulary, self._joint, passage.tokens)
            # A token that no step can emit makes the whole text impossible, so its pieces are not run.
            if NONE in entries:
                totals[n] = -math.inf
                continue
            pieces = pieces_of(self._members, passage, entries, self._size)
            running += [(n, pieces, question) for question in [next(pieces, None)] if question is not None]
        runners = [member.local.runner() for member in self._members]
        for member, runner in enumerate(runners) if running else ():
            runner.prefill([question.prompts[member] for _, _, question in running])
        while running:
            questions = [question for _, _, question in running]
            logits = [
                runner.branch(*continuations(member, questions)).to(self._members[0].device)
                for member, runner in enumerate(runners)
            ]
            values, _ = self._scorer.token_scores(questions, logits)
            first = 0
            # The values of all questions are in one list, in the order of the questions.
            for n, _, question in running:
                end = first + len(question.tokens)
                totals[n] += sum(values[first:end])
                if math.isnan(totals[n]) and n not in failures:
                    failures[n] = no_token(zip(self._members, logits, strict=True), range(first, end))
                first = end
            following = [next(pieces, None) for _, pieces, _ in running]
            for member, runner in enumerate(runners):
                _advance(runner, member, questions, following)
            running = [
                (n, pieces, question)
                for (n, pieces, _), question in zip(running, following, strict=True)
                if question is not None
            ]
        return [failures.get(n, total) for n, total in enumerate(totals)]


def _advance(
    runner: LocalRunner, member: int, questions: Sequence[ChoiceQuestion], following: Sequence[ChoiceQuestion | None]
) -> None:
    """Turn a runner's rows, which hold some questions' paths, into the prompts of the questions that follow."""
    kept, keep, new = [], [], []
    first = 0
    for question, after in zip(questions, following, strict=True):
        rows = question.paths[member].rows
        if after is not None:
            prompt = after.prompts[member]
            shared = [len(common_prefix([[*question.prompts[member], *row], prompt])) for row in rows]
            # Of the question's rows, the one with the longest prefix of the next prompt goes on.
            best = max(range(len(rows)), key=shared.__getitem__)
            kept.append(first + best)
            # A row is always fed at least one token, so the last one is read again.
            keep.append(min(shared[best], len(prompt) - 1))
            new.append(prompt[keep[-1] :])
        first += len(rows)
    runner.drop(kept)
    if kept:
        runner.extend(keep, new)
