"""What the judges of a run read, before it: how many verdicts they give."""

from __future__ import annotations

from advisor.config import RunConfig
from advisor.jobs.planning.plan import plan_model, tokens_written
from advisor.judge.judge import judging
from advisor.judge.prompts import Shown, judge_task
from advisor.profile.stored import splits_of
from advisor.progress import Progress
from advisor.records import TRIES
from advisor.tasks.task import Rubric, Task
from ensemble.common.text import counted

UNKNOWN = "[response]"
"""A response that is not written yet, in a prompt that is shown."""


def written_anew(config: RunConfig) -> dict[str, int]:
    """How many texts of sets that decode and of a fusion are judged at most for each question of a split."""
    sets = decoded_sets(config)
    if config.held_out is not None and config.fusion is not None:
        sets[config.held_out.split] = sets.get(config.held_out.split, 0) + 1
    return sets


def decoded_sets(config: RunConfig) -> dict[str, int]:
    """How many sets a run decodes at most on each of its splits."""
    if config.held_out is None or len(config.candidates) < 2:
        return {}
    # The rules run one set; predicted gains choose up to so many.
    tried = 1 if config.set_by == "rules" else TRIES
    on_dev = config.decode_on != "held_out"
    return {config.held_out.split: tried, **({config.dev.split: tried} if on_dev else {})}


def verdicts(config: RunConfig, sets: dict[str, int]) -> int:
    """The verdicts that each judge of a run gives at most; 0 without a judge.

    Args:
        config: The run.
        sets: How many strategies write new texts on each split; see :func:`written_anew`.
    """
    models, count = len(config.candidates), 0
    # By its name: `evaluate` has the same questions twice if it learns from none.
    for task in {task.split: task for task in splits_of(config)}.values():
        groups = sets.get(task.split, 0)
        if task.is_relative:
            # Each pair of candidates in both orders, and each set against all candidates (Zheng et al., 2023, 3.4).
            count += len(task.examples) * models * (models - 1 + 2 * groups)
        elif task.rubric is not None:
            count += len(task.examples) * (models + groups)
    return count


def judge_prompts(task: Task, rubric: Rubric) -> tuple[Task, list[int]]:
    """The prompts of a judge with a mark for each response, and how many responses each prompt holds.

    Raises:
        InputError: The template fails on a question.
    """
    each = 1 if rubric.mode == "single" else 2
    shown: dict[str, Shown] = {}
    counts: dict[str, int] = {}
    for example in task.examples:
        earlier = None if example.earlier is None else shown[example.earlier]
        shown[example.id] = Shown(example, (UNKNOWN,) * each, earlier)
        counts[example.id] = each + (0 if example.earlier is None else counts[example.earlier])
    return judge_task(task, rubric, list(shown.values())), list(counts.values())


def say_judging(config: RunConfig, progress: Progress, sets: dict[str, int] | None = None) -> None:
    """Say what the judges of a run take, before it begins; nothing without a judge.

    Args:
        config: The run.
        progress: Shows the messages.
        sets: As for :func:`verdicts`; None for what the run writes by its options.

    Raises:
        InputError: The judge's template fails on a question.
    """
    rubric, inference = config.dev.rubric, config.inference
    count = verdicts(config, written_anew(config) if sets is None else sets)
    if rubric is None or not count or progress.quiet:
        return
    task, responses = judge_prompts(config.dev, rubric)
    new, limit = tokens_written(task, judging(config)), inference.limit(config.dev)
    # `--dry-run` counts them with each judge's tokenizer.
    tokens = sum(example.estimated_tokens for example in task.examples) + limit * sum(responses)
    prompt = int(tokens / len(task.examples)) + 1
    for judge in config.judges:
        begin = f"judge {judge.name}: at most {counted(count, 'verdict')}; those that are stored are not asked again"
        if judge.checkpoint.is_remote or inference.engine == "ray":
            progress.say(begin)
            continue
        plan = plan_model(judge, judging(config), prompt=prompt, new=new)
        # The weights may fit when the candidates are gone, so a problem is no reason to end the run.
        progress.say(f"{begin}; {plan['problem']}" if plan["problem"] else begin)
