"""``advisor run``: a strategy of a run, or any models that decode together, answer one prompt."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.commands.command_line import for_output, print_json
from advisor.options.finished_run import RunOptions
from advisor.progress import Progress
from advisor.run.asking import Answered, answer_prompt
from advisor.run.plan import StrategyPlan, answer_reader, load_chosen, plan_by_options
from advisor.run.task_prompt import prompt_of
from advisor.strategies.vote import VoteReader
from ensemble.decode.settings import Settings
from ensemble.errors import InputError, UniteError
from reports.terminal import trace_lines

if TYPE_CHECKING:
    from ensemble.models.member import Prompt

EMPTY = (
    "the text is empty; is the prompt like the questions of the task that the models were chosen for? A model that "
    "thinks may need more tokens (--max-new-tokens)"
)


def run(options: RunOptions) -> None:
    """Load what answers, and print its text, or the answer in it."""
    progress = Progress()
    spec = plan_by_options(options, progress.say)
    question = _read_prompt(options.prompt or "")
    text: Prompt = question
    if (made := prompt_of(spec, options, progress.say)) is not None:
        text, note = made.fill(question)
        if note is not None:
            progress.say(note)
    reader = answer_reader(spec) if options.answer or options.as_json else None
    if options.answer and reader is None:
        metric = "no metric is known" if spec.task is None else f"the metric {spec.task.metric} needs a reference"
        raise InputError(f"--answer: {metric} to read an answer; leave out --answer")
    settings: dict[str, Any] = {
        "max_new_tokens": spec.max_new_tokens or 256,
        "stop": spec.stop,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
    }
    if isinstance(spec, StrategyPlan):
        answered = _answered(spec, text, Settings(**settings), options, progress)
        response = answered.response
        took = {"finish_reason": response.finish_reason, "tokens": response.tokens, **answered.figures}
        _print_text(response.text, took, reader, options, progress)
        return
    ensemble = load_chosen(spec)
    if options.stream and not options.trace:
        is_empty = True
        for piece in ensemble.stream(text, deterministic=options.deterministic, **settings):
            print(for_output(piece), end="", flush=True)
            is_empty = is_empty and not piece.strip()
        print()
        if is_empty:
            progress.say(EMPTY)
        return
    (generation,) = ensemble.generate([text], trace=options.trace, deterministic=options.deterministic, **settings)
    if options.trace:
        names = [member.name for member in spec.members]
        print(*trace_lines(generation.trace, names), sep="\n", file=sys.stderr)
    took = {"finish_reason": generation.finish_reason, "tokens": generation.new_tokens}
    _print_text(generation.text, took, reader, options, progress)


def _print_text(
    text: str, took: Mapping[str, Any], reader: VoteReader | None, options: RunOptions, progress: Progress
) -> None:
    """Print a text, all that is known of it, or the answer in it; UniteError if that is wanted and it has none."""
    if not text.strip():
        progress.say(EMPTY)
    answer = None if reader is None else reader.read(text)
    if options.as_json:
        print_json({"text": text, "answer": answer, **took})
        return
    if options.answer and answer is None:
        problem = reader.problem(text) if reader is not None else None
        reason = f" ({problem})" if problem else ""
        raise UniteError(
            f"no answer can be read in the text {text[:200]!r}{reason}; without --answer the whole text is printed"
        )
    print(for_output(text if answer is None else answer))


def _answered(
    plan: StrategyPlan, prompt: Prompt, settings: Settings, options: RunOptions, progress: Progress
) -> Answered:
    """The answer of a strategy; notes say what failed, and with a trace what each model answered."""
    answered = answer_prompt(plan, prompt, settings, options.group)
    for name, reason in answered.failures:
        progress.say(f"{name} failed, and the others answered: {reason}")
    if plan.reader is not None and all(answer is None for _, answer in answered.answers):
        progress.say(f"no model gave an answer, so there was no vote, and the response is that of {answered.model}")
    if options.trace:
        for name, answer in answered.answers:
            what = "answered" if plan.reader is None else "gave no answer" if answer is None else f"answered {answer!r}"
            progress.say(f"{name} {what}")
        progress.say(f"the response is that of {answered.model}, after {answered.calls} calls")
    return answered


def _read_prompt(prompt: str) -> str:
    try:
        text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
        # An argument that is not valid UTF-8 has surrogates, which only fail when they are encoded.
        text.encode()
    except UnicodeError as error:
        raise InputError(f"the prompt is not UTF-8 text ({error}); convert it") from None
    if not text:
        raise InputError("the prompt is empty; give a text to continue")
    return text
