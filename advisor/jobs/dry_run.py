"""A dry run: what ``advisor select`` would ask each model, how often, what that costs, and what each model needs.

Only tokenizers are loaded. Nothing is written, and no request goes to a server of a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

from advisor.jobs.played import are_drawn, are_judged, reading_task
from advisor.judge.prompts import Shown, judge_task
from advisor.models.fit import check_pool, device_of, free_on, need_of_model, resources_of, too_large, weights_here
from advisor.models.job import continued
from advisor.models.own_prompts import asked_of
from advisor.models.profiler import splits_of, stored_responses, unanswered
from advisor.models.run_config import RunConfig
from advisor.options.shared import EngineName, InferenceOptions
from advisor.progress import Progress
from advisor.records import TRIES, Answer, join
from advisor.strategies import asked_for
from advisor.strategies.best_of import BestOf
from advisor.strategies.fusion import own_drafts
from advisor.strategies.replay import play, question_of
from advisor.strategies.self_consistency import SelfConsistency
from advisor.strategies.strategy import FEWEST_VOTERS, Call, QuestionText, Strategy
from advisor.tasks.schema import Rubric
from advisor.tasks.task import Example, Task
from ensemble.common.text import counted, memory, price, visible
from ensemble.errors import UniteError, first_line
from ensemble.models.choices import ChatTemplate
from ensemble.models.gguf import check_name
from ensemble.models.model_files import check_on_hub, weights_on_hub
from ensemble.models.prompts import Dialogue, Sourced
from ensemble.models.spec import Checkpoint, ModelSpec, Price

SHOWN = 3
"""Prompts that are shown of each model."""
TOKEN = Price(1e6, 1e6)
"""The price of a token, read or written, where not all prices are known."""
ROWS = 64
"""Questions of a batch, if the memory holds so many."""


def dry_run(config: RunConfig) -> dict[str, Any]:
    """Plan a run: its models, the new calls of strategies (``readers``), its judges, what is loaded, and the total."""
    options, engine = config.options, config.cluster.engine
    # Checked before anything else looks at a model: this finds a hub that does not answer with one request.
    problems = {entry.name: problem_of(entry, options, engine) for entry in config.candidates}
    known = [entry for entry in config.candidates if problems[entry.name] is None and not _has_to_come(entry)]
    stored = stored_responses(config, known)
    models = []
    for entry in config.candidates:
        said = stored.get(entry.name, ({}, {}))
        left = [unanswered(task, each) for task, each in zip(splits_of(config), said, strict=False)]
        # The questions with the responses that are stored, and a mark for each of the others.
        known_or_not = {example.id: said[0].get(example.id, UNKNOWN) for example in config.dev.examples}
        asked = continued(config.dev, known_or_not)
        missing = [sum(response == UNKNOWN for _, response in example.exchanges) for example in asked.examples]
        plan = _plan(config, entry, asked, missing, sum(left), problems[entry.name])
        models.append({**plan, "profiling": left[0], "alone": sum(left[1:])})
    judges, sets = [], decoded_sets(config)
    if (rubric := config.dev.rubric) is not None:
        task, responses = judge_prompts(config.dev, rubric)
        for judge in config.judges:
            problem = problem_of(judge, options, engine)
            judges.append(_plan(config, judge, task, responses, verdicts(config, written_anew(config)), problem))
    readers = _readers(config, problems)
    every = [*models, *readers, *judges]
    distinct = weights_once(models, config.candidates)
    together = None if config.held_out is None else plan_together(distinct, config.options.rules.max_models)
    prices = [plan["price"] for plan in every if plan["price"] is not None]
    return {
        "task": config.dev.name,
        "dev": len(config.dev.examples),
        "held_out": None if config.held_out is None else len(config.held_out.examples),
        "models": models,
        "readers": readers,
        "judges": judges,
        "together": together,
        "problems": [plan["problem"] for plan in every if plan["problem"] is not None],
        "total": {
            "profiling": sum(model["profiling"] for model in models),
            "alone": sum(model["alone"] for model in models),
            "together": sum(sets.get(task.split, 0) * len(task.examples) for task in splits_of(config)),
            "reading": sum(reader["questions"] for reader in readers),
            "judging": sum(judge["questions"] for judge in judges),
            "price": sum(prices) if prices else None,
        },
    }


def _readers(config: RunConfig, problems: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """The plans of the new calls of strategies: drafts that are drawn, and prompts with drafts.

    The dev questions choose the best model and the voters. A strategy that depends on them is planned with the dearest.
    """
    task = config.held_out
    by_name = {entry.name: entry for entry in config.candidates}
    names = list(by_name)
    if task is None or not (config.options.equal_cost or asked_for(config.options, names, names, names)):
        return []
    are_priced = all(entry.price is not None and entry.price.of(1, 1) for entry in config.candidates)
    questions = [question_of(example) for example in task.examples]

    def plan(role: str, name: str, prompts: Mapping[int, str | None], count: int) -> dict[str, Any]:
        # Later turns of conversations have the writer's own texts before them, which are as long as drafts.
        missing = [0 if prompt is None else prompt.count(UNKNOWN) for prompt in prompts.values()]
        new = {n: prompt for n, prompt in prompts.items() if prompt is not None}
        asked = reading_task(task, new) if new else task
        return {"role": role, **_plan(config, by_name[name], asked, missing, count, problems[name])}

    def cost(name: str) -> float:
        own = plan("", name, every, 1)
        price = by_name[name].price if are_priced else None
        return (price or TOKEN).of(own["read_tokens"], own["new_tokens"]) or 0.0

    every = dict[int, str | None].fromkeys(range(len(questions)))
    dearest = sorted(by_name, key=cost, reverse=True)
    plans = list[dict[str, Any]]()
    strategies = asked_for(config.options, names, dearest[:1], dearest[: config.options.max_voters])
    draws = _draws(config, strategies)
    for strategy in [*strategies, *(own_drafts(strategies, draws) if draws else ())]:
        new = _new_calls(strategy, questions)
        # Of each question the last prompt: those of a later round are the longest.
        plans += [plan(role, name, dict(calls), len(calls)) for (role, name), calls in new.items()]
    if draws and (are_drawn(task) or are_judged(task)):
        # A judge grades responses to the held-out questions only.
        splits, kind = (splits_of(config), SelfConsistency) if are_drawn(task) else ([task], BestOf)
        count = draws * sum(len(each.examples) for each in splits)
        plans.append(plan(f"{kind.KIND}, responses of", dearest[0], every, count))
    return plans


def _draws(config: RunConfig, strategies: Sequence[Strategy]) -> int:
    """How many responses of one model a question takes at most for a comparison at equal cost; 0 without it."""
    if config.held_out is None or not config.options.equal_cost:
        return 0
    question = [question_of(example) for example in config.held_out.examples[:1]]
    calls = (len(each.members) + sum(map(len, _new_calls(each, question).values())) for each in strategies)
    return max(FEWEST_VOTERS, config.options.max_voters, config.options.max_models, *calls)


def _new_calls(
    strategy: Strategy, questions: Sequence[QuestionText]
) -> dict[tuple[str, str], list[tuple[int, str | None]]]:
    """The new calls of a strategy: by what they are for and who answers, the numbers of questions and new prompts."""

    def unknown(calls: Sequence[tuple[int, Call]]) -> list[Answer]:
        return [Answer(str(n), UNKNOWN, None, 0.0, "unknown") for n, _ in calls]

    found: dict[tuple[str, str], list[tuple[int, str | None]]] = {}
    for n, way in enumerate(play(strategy.flow, questions, unknown)):
        for call in way.calls:
            if call.prompt is None and call.draw is None:
                continue  # the models answer the questions in any case
            what = "written" if call is way.calls[-1] else "drafts read"
            role = "drafts of" if call.prompt is None else f"{what} by"
            key = f"{strategy.name}, {role}", strategy.members[call.members[0]]
            found.setdefault(key, []).append((n, call.prompt))
    # Who writes comes first.
    return dict(sorted(found.items(), key=lambda each: each[0][0], reverse=True))


def _has_to_come(entry: ModelSpec) -> bool:
    """Whether even the tokenizer would be a large download: in GGUF it is in the file of the weights."""
    checkpoint = entry.checkpoint
    if checkpoint.is_remote or checkpoint.gguf is None or checkpoint.is_local:
        return False
    return weights_here(entry.name, checkpoint) is None


def _plan(
    config: RunConfig, entry: ModelSpec, task: Task, missing: Sequence[int], questions: int, problem: str | None
) -> dict[str, Any]:
    """The plan of a model that answers so many questions with prompts like those of a task.

    Of each prompt, `missing` parts are responses of candidates that are not written yet.
    """
    task = asked_of(task, [entry])
    limit, new = config.dev.max_new_tokens, tokens_written(task)
    shown, counted, trouble = _encoded(entry, config.options.chat_template, task.examples, problem)
    lengths = [count + each * limit for count, each in zip(counted, missing, strict=False)]
    tokens = {"min": min(lengths), "median": int(median(lengths)), "max": max(lengths)} if lengths else None
    plan = plan_model(
        entry,
        config.options,
        config.cluster.engine,
        prompt=max(lengths or [512]),
        new=new,
        problem=problem or trouble,
    )
    if plan["fits"] is False and not questions:
        # All its responses are stored, so it is not loaded.
        plan["problem"] = None
    texts = [each.estimated_tokens + count * limit for each, count in zip(task.examples, missing, strict=True)]
    read, price = mean(lengths or texts), None
    if entry.price is not None:
        if task.metric == "choice" and entry.is_remote:
            # A server reads the prompt again with each option.
            read *= mean(len(each.choices) for each in task.examples)
        price = (entry.price.price_in * read + entry.price.price_out * new) * questions / 1e6
    return {
        **plan,
        "prompts": shown,
        "prompt_tokens": tokens,
        "read_tokens": read,
        "new_tokens": new,
        "questions": questions,
        "price": price,
    }


def _encoded(
    entry: ModelSpec, template: ChatTemplate, examples: Sequence[Example], problem: str | None
) -> tuple[list[dict[str, Any]], list[int], str | None]:
    """The first prompts as the model gets them, the tokens of all, and why the tokenizer cannot be used."""
    sides = None if entry.checkpoint.is_remote else entry.checkpoint.sides
    # A translation model may read the bare source. Only encoder-decoder models have languages.
    reads_source = sides is not None and bool(sides.key()) and sides.reads != "prompt"
    given = [example.model_input for example in examples]
    inputs = [((reads_source and each.source) or each.prompt) if isinstance(each, Sourced) else each for each in given]
    texts = [each.text if isinstance(each, Dialogue) else each for each in inputs[:SHOWN]]
    plain = [{"id": each.id, "text": text, "tokens": None} for each, text in zip(examples[:SHOWN], texts, strict=True)]
    if problem is not None or _has_to_come(entry) or not entry.can_decode:
        return plain, [], None
    from ensemble.models.load import load_tokenizer_only

    try:
        member = load_tokenizer_only(entry, entry.chat_template or template)
        encoded = [member.prompt_ids(each) for each in inputs]
    except UniteError as error:
        return plain, [], str(error)
    except Exception as error:  # noqa: BLE001  # damaged tokenizers raise errors of many libraries
        return plain, [], f"{entry.name}: its tokenizer cannot be used ({type(error).__name__}: {first_line(error)})"
    shown = [
        {"id": example.id, "text": member.tokenizer.decode(ids), "tokens": len(ids)}
        for example, ids in zip(examples[:SHOWN], encoded, strict=False)
    ]
    return shown, [len(ids) for ids in encoded], None


UNKNOWN = "[response]"
"""A response that is not written yet, in a prompt that is shown."""


def written_anew(config: RunConfig) -> dict[str, int]:
    """How many texts of sets and of strategies that write are judged at most for each question of a split."""
    sets, task = decoded_sets(config), config.held_out
    if task is None:
        return sets
    names = [entry.name for entry in config.candidates]
    asked = asked_for(config.options, names, names, names)
    draws = _draws(config, asked)
    # As many writers read their own drafts. Which one it is depends on the dev questions.
    count = len({each.name for each in asked}) * (2 if draws else 1) + (draws if are_judged(task) else 0)
    return {**sets, task.split: sets.get(task.split, 0) + count} if count else sets


def decoded_sets(config: RunConfig) -> dict[str, int]:
    """How many sets a run decodes at most, by split."""
    if config.held_out is None or len(config.candidates) < 2:
        return {}
    # The rules run one set; predicted gains choose up to so many.
    return {config.held_out.split: 1 if config.options.set_by == "rules" else TRIES}


def verdicts(config: RunConfig, sets: dict[str, int]) -> int:
    """The verdicts that each judge of a run gives at most, if so many sets write new texts on each split."""
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
    """The prompts of a judge with a mark for each response, and how many responses each prompt holds."""
    each = 1 if rubric.mode == "single" else 2
    shown: dict[str, Shown] = {}
    counts: dict[str, int] = {}
    for example in task.examples:
        earlier = None if example.earlier is None else shown[example.earlier]
        shown[example.id] = Shown(example, (UNKNOWN,) * each, earlier)
        counts[example.id] = each + (0 if example.earlier is None else counts[example.earlier])
    return judge_task(task, rubric, list(shown.values())), list(counts.values())


def say_judging(config: RunConfig, rubric: Rubric, progress: Progress, sets: dict[str, int] | None) -> None:
    """Say what the judges of a run take, before it begins; without `sets`, for what the run writes by its options."""
    count = verdicts(config, written_anew(config) if sets is None else sets)
    if not count or progress.quiet:
        return
    task, responses = judge_prompts(config.dev, rubric)
    new, limit = tokens_written(task), config.dev.max_new_tokens
    # `--dry-run` counts them with each judge's tokenizer.
    tokens = sum(example.estimated_tokens for example in task.examples) + limit * sum(responses)
    prompt = int(tokens / len(task.examples)) + 1
    for judge in config.judges:
        begin = f"judge {judge.name}: at most {counted(count, 'verdict')}; those that are stored are not asked again"
        if judge.checkpoint.is_remote or config.cluster.engine == "ray":
            progress.say(begin)
            continue
        plan = plan_model(judge, config.options, prompt=prompt, new=new)
        # The weights may fit when the candidates are gone, so a problem is no reason to end the run.
        progress.say(f"{begin}; {plan['problem']}" if plan["problem"] else begin)


def tokens_written(task: Task) -> int:
    """Tokens of a response at most; 0 for choice tasks, whose options are read and scored."""
    return 0 if task.metric == "choice" else task.max_new_tokens


def problem_of(entry: ModelSpec, inference: InferenceOptions, engine: EngineName = "local") -> str | None:
    """Why a model cannot run, by its files and its place; None if nothing speaks against it, and for a server."""
    if entry.checkpoint.is_remote:
        return None
    try:
        if engine == "ray":
            resources_of(entry.resources, entry.device or inference.device, entry.place)
        checkpoint = entry.checkpoint
        if checkpoint.gguf is not None and weights_here(entry.name, checkpoint) is None and not checkpoint.is_local:
            # The configuration of a GGUF file is in the file, and that is the whole download.
            check_name(checkpoint.gguf)
            check_on_hub(checkpoint)
        else:
            check_pool([entry], inference.device, inference.chat_template, on_this_machine=engine == "local")
    except UniteError as error:
        return str(error)
    return None


def plan_model(
    entry: ModelSpec,
    inference: InferenceOptions,
    engine: EngineName = "local",
    *,
    prompt: int = 512,
    new: int = 256,
    problem: str | None = None,
) -> dict[str, Any]:
    """The plan of one model, which is not loaded, for prompts and responses of so many tokens; sizes are in bytes."""
    names = (
        "device",
        "parameters",
        "dtype",
        "kind",
        "weights",
        "memory",
        "rows",
        "free",
        "fits",
        "download",
        "resources",
    )
    plan: dict[str, Any] = {
        "model": entry.name,
        **dict.fromkeys(names),
        "quantization": entry.rounding,
        "kind": None,
        "problem": problem,
    }
    # A server's memory is not ours to count.
    if entry.checkpoint.is_remote:
        return {**plan, "device": entry.checkpoint.url}
    if problem is not None:
        return plan
    place = device_of(entry, inference.device, engine)
    plan |= {"device": place, "download": download_size(entry.checkpoint)}
    if engine == "ray":
        # The memory and the files of the cluster's nodes are known there only.
        wanted = resources_of(entry.resources, place, entry.place)
        plan |= {"resources": {"num_cpus": wanted.num_cpus, "num_gpus": wanted.num_gpus}, "download": None}
    else:
        plan["free"] = free_on(place)
    need = need_of_model(entry, inference.dtype, place)
    if need is None:
        return plan
    from ensemble.models.memory import rows_that_fit

    # The weights decide whether it fits, because a batch becomes smaller where memory is short, as in `local_model`.
    left = None if plan["free"] is None else plan["free"] - need.weights
    rows = inference.batch_size or min(ROWS, rows_that_fit(need.per_token, prompt + new, left) or ROWS)
    fits = None if plan["free"] is None else need.weights <= plan["free"]
    return {
        **plan,
        "parameters": need.parameters,
        "dtype": need.dtype,
        "kind": need.kind,
        "quantization": need.quantization,
        "weights": need.weights,
        "memory": need.total(rows, prompt + new),
        "rows": rows,
        "fits": fits,
        "problem": too_large({entry.name: need}, place, plan["free"]) if fits is False else None,
    }


def download_size(checkpoint: Checkpoint) -> int | None:
    """Bytes that the first run downloads; 0 for local and downloaded models, None if the hub does not tell."""
    if checkpoint.is_local:
        return 0
    try:
        if weights_here(checkpoint.name, checkpoint) is not None:
            return 0
        found = weights_on_hub(checkpoint)
    except UniteError:
        return None
    return None if found is None else found[1]


def _by_device(plans: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The plans of models in this process by their device, the largest first; a cluster has nodes of its choice."""
    by_device: dict[str, list[dict[str, Any]]] = {}
    for plan in sorted((each for each in plans if each["weights"] is not None), key=lambda each: -each["weights"]):
        if plan["resources"] is None:
            by_device.setdefault(plan["device"], []).append(plan)
    return by_device


def weights_once(plans: Sequence[dict[str, Any]], entries: Sequence[ModelSpec]) -> list[dict[str, Any]]:
    """The plans of a pool's entries, those without weights that share the ones of an earlier entry."""
    first = {entry.loaded: entry for entry in reversed(entries)}
    return [
        plan if first[entry.loaded] is entry or plan["weights"] is None else {**plan, "weights": 0}
        for plan, entry in zip(plans, entries, strict=True)
    ]


def plan_together(plans: Sequence[dict[str, Any]], most: int) -> dict[str, Any] | None:
    """The bytes of the largest set of at most `most` members, on the device where it needs most; None for one model."""
    found = []
    for device, each in _by_device(plans).items():
        # Which models will be chosen is not known yet, so the largest ones count.
        largest = each[:most]
        needed, free = sum(plan["weights"] for plan in largest), largest[0]["free"]
        names = [plan["model"] for plan in largest]
        fits = None if free is None else needed <= free
        found.append({"device": device, "models": names, "memory": needed, "free": free, "fits": fits})
    return max(found, key=lambda each: each["memory"]) if len(plans) > 1 and found else None


def model_line(plan: Mapping[str, Any]) -> str:
    """A model of a plan, in one line."""
    if plan["problem"] is not None:
        return f"{plan['model']}: cannot run: {plan['problem']}"
    where = plan["device"]
    if (wanted := plan["resources"]) is not None:
        where = f"on a node of the cluster ({', '.join(f'{name}={value:g}' for name, value in wanted.items())})"
    # A model behind a server, or one whose files do not tell.
    if plan["weights"] is None:
        return f"{plan['model']}: {where}; its size is not known here"
    fits = {True: "fits", False: "does not fit", None: "free memory unknown"}[plan["fits"]]
    parts = [
        f"{plan['parameters']:,} parameters",
        plan["kind"],
        f"weights {memory(plan['weights'])}, {memory(plan['memory'])} with {counted(plan['rows'], 'text')} at a time",
        where if wanted is not None else f"{fits} on {where} ({memory(plan['free'])} free)",
    ]
    # 0 if the files are here already.
    if plan["download"]:
        parts.append(f"download {memory(plan['download'])}")
    return f"{plan['model']}: {', '.join(parts)}"


def set_summary(together: Mapping[str, Any] | None) -> Iterator[str]:
    """The set of a plan, in one line; none without two models."""
    if together is not None:
        fits = {True: "fit", False: "do not fit", None: "free memory unknown"}[together["fits"]]
        yield (
            f"together, at most {len(together['models'])} models on {together['device']}: weights "
            f"{memory(together['memory'])}, {fits} ({memory(together['free'])} free)"
        )


def dry_run_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """A dry run for a terminal. Prompts come from files, so control characters are shown as their numbers."""
    asked = [("", model) for model in plan["models"]]
    asked += [(f"{reader['role']} ", reader) for reader in plan["readers"]]
    asked += [("judge ", judge) for judge in plan["judges"]]
    for role, model in asked:
        for n, prompt in enumerate(model["prompts"], start=1):
            tokens = "unknown number of" if prompt["tokens"] is None else f"{prompt['tokens']:,}"
            place = f"prompt {n} of {len(model['prompts'])} ({prompt['id']}, {tokens} tokens)"
            yield visible(f"--- {role}{model['model']}, {place}\n{prompt['text']}", keep_lines=True)
    yield ""
    for role, model in asked:
        yield visible(f"{role}{model_line(model)}")
        tokens = model["prompt_tokens"]
        if tokens is not None:
            new = model["new_tokens"]
            written = f"responses of at most {new:,}" if new else "options are scored, so nothing is written"
            yield (
                f"  prompts of {tokens['min']:,} to {tokens['max']:,} tokens, median {tokens['median']:,}; {written}"
            )
    yield from set_summary(plan["together"])
    total = plan["total"]
    yield f"profiling    {counted(total['profiling'], 'generation')}; what the cache has is subtracted"
    if plan["held_out"] is not None:
        yield f"verifying    at most {total['alone']:,} of single models, and {total['together']:,} of sets"
    if plan["readers"]:
        yield f"writing      at most {counted(total['reading'], 'call')}; those that are stored are not asked again"
    if plan["judges"]:
        yield f"judging      at most {counted(total['judging'], 'verdict')}; those that are stored are not asked again"
    if total["price"] is None:
        yield "price        no prices in the pool file"
    else:
        strategies = dict.fromkeys(f"the {reader['role'].partition(',')[0]}" for reader in plan["readers"])
        whose = join(["single models", *strategies, *(["judges"] if total["judging"] else [])])
        yield f"price        at most {price(total['price'])} for {whose}"
    said = {model["problem"] for _, model in asked}
    yield from (visible(f"problem      {problem}") for problem in plan["problems"] if problem not in said)
    yield "Nothing was run or written."
