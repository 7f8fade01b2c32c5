"""A run's questions as files for a provider's batch API, and the answers from the files that the API gives back.

A line has the body that the run itself would send, so the answers are those of the run's own requests; providers take
less for a batch, and answer within a day. The ``custom_id`` of a line is the key of its response in the cache, a hash
of all that determines it: an answer to another question, or with other options, is never taken for one of this run's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from advisor.config import RunConfig
from advisor.profile.asked_model import as_text
from advisor.profile.job import question_key, stored_texts
from advisor.profile.stored import splits_of
from advisor.profile.turns import next_turns
from advisor.response_cache import Response, ResponseCache
from advisor.runs.run_folder import folder_name
from advisor.servers.completions import CHAT, COMPLETIONS, body_of, response_of, shape_of
from advisor.servers.identity import ServerIdentity
from advisor.tables.streams import Notes, json_lines
from advisor.tasks.task import Example, Task
from ensemble.common.files import write_text
from ensemble.common.text import counted, price, shortened, visible
from ensemble.errors import InputError, UniteError
from ensemble.models.spec import ModelSpec
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import ServerClient

_LONGEST_REASON = 200  # characters of a provider's own words in a message
Say = Callable[[str], None]
Questions = Sequence[tuple[Task, Mapping[str, Example]]]
"""The questions that a model is asked, of each split by the keys of their responses."""


class _Asked(NamedTuple):
    """A model that a batch can ask.

    Attributes:
        entry: Its entry in the pool.
        address: Its server.
        chat: Whether it gets the messages of a chat.
        key: What determines its responses, besides the questions.
    """

    entry: ModelSpec
    address: ServerAddress
    chat: bool
    key: Mapping[str, Any]

    def questions(self, config: RunConfig, task: Task, stored: ResponseCache | None) -> dict[str, Example]:
        """The questions of a task that it can be asked now, by the keys of their responses."""
        inference = config.inference
        known = {} if stored is None else stored_texts(stored, self.key, task, inference, self.entry.thinking)
        examples = next_turns(task, known).examples
        return {question_key(self.key, example, task, inference): example for example in examples}


def write_batches(config: RunConfig, folder: Path, say: Say) -> list[Path]:
    """Write the questions that the cache has no responses to: a file for each model, in JSON Lines.

    Of a conversation, these are the turns that can be asked now: with the answers of an earlier batch, the next ones.
    Judges and draws are left to the run.

    Args:
        config: The run.
        folder: The folder of the files.
        say: Shows which models are left to the run, and how many questions there are.

    Returns:
        The files.

    Raises:
        InputError: A batch can ask no model of the pool, or not the task's questions, or a file exists, or answers
            cannot be used.
        UniteError: A file cannot be written, or a server that must say how to limit the thinking does not answer.
    """
    written = {}
    with ExitStack() as stack:
        stored = None
        if config.batch_results:
            stored = stack.enter_context(ResponseCache(config.cache_dir, say))
            read_batches(config, stored, say)
        elif (config.cache_dir / "responses.sqlite").is_file():
            stored = stack.enter_context(ResponseCache(config.cache_dir, read_only=True))
        for asked in _asked(config, say):
            path = folder / f"{folder_name(asked.entry.name)}.jsonl"
            if path in written or path.exists():
                raise InputError(f"{path}: exists; remove it, or give --batch a new folder")
            questions = [(task, asked.questions(config, task, stored)) for task in splits_of(config)]
            written[path] = dict(_lines(asked, config, questions))
            count = counted(len(written[path]), "question")
            say(f"{asked.entry.name}: {count} without a stored response{_most_dollars(asked, config, questions)}")
    for path, lines in written.items():
        try:
            write_text(path, "".join(f"{json.dumps(line)}\n" for line in lines.values()))
        except OSError as error:
            raise UniteError(f"{path}: cannot be written ({error}); correct that, or give another folder") from error
    return list(written)


def read_batches(config: RunConfig, stored: ResponseCache, say: Say) -> None:
    """Store the answers of batches, so that the run sends no requests for them.

    Args:
        config: The run, with the files.
        stored: The response cache.
        say: Shows what of the files is not used, and how many questions are left.

    Raises:
        InputError: A file cannot be read, or has no answer to a question of this run.
    """
    answers = _answers(config.batch_results, say)
    known = stored.get(answers)
    answers = {key: answer for key, answer in answers.items() if key not in known}
    taken = len(known)
    for asked in _asked(config, say):
        left = 0
        for task in splits_of(config):
            # The key of a later turn has the responses before it, which the same files may give.
            while found := answers.keys() & (questions := asked.questions(config, task, stored)).keys():
                for key in found:
                    place, body = answers.pop(key)
                    if (response := _response(asked, config, task, body, place, say)) is not None:
                        stored.put(key, response)
                        taken += 1
            left += len(questions)
        if left:
            say(f"{asked.entry.name}: {_have(left)} no answer in the batch results")
    if not taken:
        raise InputError(
            f"{config.batch_results[0]}: no line is an answer to a question of this run; give the options, the task "
            "and the revision= with which --batch wrote the questions"
        )
    if answers:
        first, _ = next(iter(answers.values()))
        say(f"{first}: is no answer to a question of this run, nor are {counted(len(answers) - 1, 'other line')}")


def _asked(config: RunConfig, say: Say) -> Iterator[_Asked]:
    """The models of the pool that a batch can ask.

    Raises:
        InputError: No model or no question of the task fits a batch.
    """
    if config.dev.metric == "choice":
        raise InputError(
            f"{config.dev.name}: a task with choices needs log-probabilities, which batches do not give; "
            "run it without --batch"
        )
    count = 0
    for entry in config.candidates:
        address = entry.checkpoint
        if not address.is_remote or address.tokenizer is not None:
            say(f"{entry.name}: no batch asks it, because it is not behind a server that gets texts; the run does")
            continue
        if address.revision is None:
            raise InputError(
                f"{entry.place}: without revision= the answers of {entry.name} hold for one day, and a batch may take "
                "longer; add revision=WORD to its line"
            )
        count += 1
        # With a revision, neither what the server says nor the day is part of the key.
        identity = ServerIdentity(address, entry.chat_template or config.inference.chat_template, {}, "")
        yield _Asked(entry, address, identity.chat, {"members": [identity.key()]})
    if not count:
        raise InputError("the pool has no model that a batch can ask: one behind a server, without tokenizer=")


def _most_dollars(asked: _Asked, config: RunConfig, questions: Questions) -> str:
    """What the answers cost at most, as the end of a sentence; empty without a price."""
    if asked.entry.price is None:
        return ""
    total = sum(
        asked.entry.price.of(example.estimated_tokens, config.inference.limit(task)) or 0.0
        for task, own in questions
        for example in own.values()
    )
    return f"; at most {price(total)} as requests, and {price(total / 2)} where a batch costs half"


def _lines(asked: _Asked, config: RunConfig, questions: Questions) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The requests to a model, by the keys of their responses. Its server is asked at most who runs it."""

    @cache
    def owner() -> str:
        with ServerClient(asked.address) as server:
            return server.owner()

    for task, own in questions:
        settings = config.inference.settings(task)
        for key, example in own.items():
            prompt = as_text(example.model_input, asked.entry.name, chat=asked.chat)
            body = body_of(asked.address, owner, prompt, settings, chat=asked.chat)
            yield (
                key,
                {
                    "custom_id": key,
                    "method": "POST",
                    # Of the API, whatever the path of the address is.
                    "url": f"/v1{CHAT if asked.chat else COMPLETIONS}",
                    "body": {"model": asked.address.model, **body},
                },
            )


def _answers(files: Sequence[Path], say: Say) -> dict[str, tuple[str, Any]]:
    """The answers in files by their ``custom_id``: the place of each, and the body. Of several the first one counts."""
    answers: dict[str, tuple[str, Any]] = {}
    failed: dict[str, tuple[str, str]] = {}
    for path in files:
        notes: Notes = []
        repeated: list[str] = []
        for line, place in json_lines(path, notes):
            response, key = line.get("response"), line.get("custom_id")
            body = response.get("body") if isinstance(response, dict) else None
            # What has no custom_id is no answer to a question of this run, whatever it is.
            key = key if isinstance(key, str) else place
            if not isinstance(body, dict) or "choices" not in body:
                failed[key] = place, _reason(line, body)
            elif key in answers:
                repeated.append(place)
            else:
                answers[key] = place, body
        if repeated:
            notes.append(f"{repeated[0]}: its question has an answer already; {_more(repeated)} left out")
        for note in notes:
            say(note)
    # A question that failed may have been asked again, in another batch.
    failures = [failure for key, failure in failed.items() if key not in answers]
    if failures:
        place, reason = failures[0]
        say(f"{place}: has no answer ({reason}); {_more(failures)} not used")
    return answers


def _have(questions: int) -> str:
    return f"{counted(questions, 'question')} {'has' if questions == 1 else 'have'}"


def _more(lines: Collection[Any]) -> str:
    return "the line is" if len(lines) == 1 else f"{len(lines):,} such lines are"


def _reason(line: Mapping[str, Any], body: Any) -> str:
    """Why a line has no answer, in the provider's words."""
    if "method" in line and "url" in line:
        return "it is a question that --batch wrote"
    error = line.get("error") or (body.get("error") if isinstance(body, dict) else None)
    message = error.get("message") if isinstance(error, dict) else error
    return shortened(visible(message), _LONGEST_REASON) if isinstance(message, str) else "no reason is given"


def _response(asked: _Asked, config: RunConfig, task: Task, body: Any, place: str, say: Say) -> Response | None:
    """The response in the body of an answer; None if it has another shape."""
    from pydantic import ValidationError

    from ensemble.common.schema import first_fault

    try:
        completion = shape_of(chat=asked.chat).model_validate(body)
        response = response_of(completion, config.inference.settings(task))
    except ValidationError as error:
        say(f"{place}: the answer has another shape ({first_fault(error, body)}); it is not used")
    except ValueError as error:
        say(f"{place}: the answer {error}; it is not used")
    else:
        # JSON can spell half a surrogate pair, which no row of the cache can hold.
        return replace(response, text=response.text.encode(errors="replace").decode())
    return None
