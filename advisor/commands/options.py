"""What the commands share: their options, and the form of what they print.

A command passes ``context.params``, its options by parameter name, to the ``from_options`` of a configuration.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
RunOrModels = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="A run folder or a saved ensemble; or give --models.")
]
Members = Annotated[
    list[str] | None,
    typer.Option(
        "--models",
        help="A folder, a hub id, or a server as in a pool file, once for each model; the primary first.",
    ),
]
Pool = Annotated[
    str | None, typer.Option("--pool", metavar="FILE", help="A file with one candidate per line, or demo.")
]
Task = Annotated[str | None, typer.Option("--task", metavar="TASK", help="The name of a task, or a task file.")]
Judge = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="LINE",
        help="For a task with metric judge: a candidate's name, or another model as a line of a pool file has it.",
    ),
]
SecondJudge = Annotated[
    str | None,
    typer.Option("--second-judge", metavar="LINE", help="Another judge, to see how far the two agree."),
]
Data = Annotated[Path | None, typer.Option("--data", help="A folder with the task's data, instead of the hub.")]
Split = Annotated[str, typer.Option("--split", help="The split to profile on.")]
Limit = Annotated[int | None, typer.Option("--limit", help="The number of questions of each split.")]
Shots = Annotated[int | None, typer.Option("--shots", help="The number of demonstrations before each question.")]
Seed = Annotated[int, typer.Option("--seed", help="The seed of every draw.")]
Code = Annotated[
    bool, typer.Option("--allow-code-execution", help="Run programs that models write, in a sandbox; mbpp needs it.")
]
WeakSandbox = Annotated[
    bool,
    typer.Option("--allow-weak-sandbox", help="Run them also where the sandbox cannot protect your keys and files."),
]
Gap = Annotated[
    float | None,
    typer.Option(
        "--max-gap",
        help="Points that a member may be worse than the best model.",
        show_default="10; 15 for votes",
    ),
]
Calls = Annotated[int, typer.Option("--max-calls", help="The maximum number of models in a vote or a cascade.")]
Logs = Annotated[
    list[str] | None,
    typer.Option("--logs", help="A file, folder or glob with logs of other tools; can be given several times."),
]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", help="The format of the logs. Default: recognised from their content.")
]
LogTask = Annotated[
    str | None, typer.Option("--log-task", help="The evaluation to take, as a glob, if the logs have several.")
]
LogModels = Annotated[
    str | None,
    typer.Option("--models", metavar="GLOB,...", help="The models to take from the logs or the pool. Default: all."),
]
LogScore = Annotated[
    str | None,
    typer.Option("--score", help="The score to use if a log has several, for example exact_match,flexible-extract."),
]
Metric = Annotated[str | None, typer.Option("--metric", help="Score the responses of logs again with this metric.")]
Extract = Annotated[
    str | None, typer.Option("--extract", help="With --metric: a regular expression that finds the answer.")
]
Column = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="ROLE=NAME", help="A column of a table, for example question=prompt."),
]
ModelColumns = Annotated[
    str | None, typer.Option("--model-columns", metavar="GLOB,...", help="The columns of a table with one per model.")
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="The field that says which questions share a passage or a document.")
]
DevSize = Annotated[
    int | None,
    typer.Option("--dev-size", help="Questions of the logs that choose.", show_default="300, at most half"),
]
Ratio = Annotated[
    float, typer.Option("--max-length-ratio", help="How many times longer or shorter a member's responses may be.")
]
Models = Annotated[int, typer.Option("--max-models", help="The maximum number of members.")]
Level = Annotated[float, typer.Option("--level", help="Accepted probability of a false alarm, below 0.5.")]
MinGain = Annotated[
    float,
    typer.Option("--min-gain", help="Points that a strategy with more than one model or call must gain."),
]
VerifyOn = Annotated[
    str,
    typer.Option(
        "--verify-on",
        help="Where the set decodes: held_out, or dev+held_out, which shows a gain with fewer held-out questions.",
    ),
]
Method = Annotated[str, typer.Option("--method", help="How the set decodes; see advisor methods.")]
K = Annotated[int, typer.Option("--k", help="Candidate tokens of each member in a step.")]
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        help="The members' weights: equal, accuracy or ece (from the dev questions), perplexity (of each prompt), or "
        "a number for each model of the pool or the set: 2,1,1.",
    ),
]
SetMethod = Annotated[
    str | None, typer.Option("--method", help="How the set decodes; see advisor methods. Default: as in the run.")
]
SetK = Annotated[
    int | None, typer.Option("--k", help="Candidate tokens of each member in a step. Default: as in the run.")
]
SetDevice = Annotated[
    str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps, ... Default: as in the run, or auto.")
]
SetDtype = Annotated[str | None, typer.Option("--dtype", help="auto, float32, bfloat16, ... Default: as in the run.")]
SetTemplate = Annotated[
    str | None, typer.Option("--chat-template", help="auto, always or never. Default: as in the run.")
]
Tokens = Annotated[int | None, typer.Option("--max-new-tokens", help="The maximum number of tokens of a response.")]
Device = Annotated[
    str,
    typer.Option(
        "--device", help="cpu, cuda, cuda:1, mps, ..., or auto: CUDA, MPS or the CPU, the first that is there."
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16, ...")]
Quantization = Annotated[
    str | None,
    typer.Option("--quantization", help="4bit or 8bit: round all models' weights while they are loaded; on a GPU."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show prompts, token counts, time, memory and price; run nothing.")
]
Batch = Annotated[str, typer.Option("--batch-size", help="The number of prompts in a batch, or auto.")]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="Decode each text by itself, so that it does not depend on the others in bfloat16 and float16; slow.",
    ),
]
SetDeterministic = Annotated[
    bool | None,
    typer.Option(
        "--deterministic/--no-deterministic",
        help="Decode each text by itself; slow. Default: as in the run.",
        show_default=False,
    ),
]
Template = Annotated[str, typer.Option("--chat-template", help="auto, always or never.")]
Engine = Annotated[str, typer.Option("--engine", help="Where models run: local, or ray for a cluster.")]
Address = Annotated[
    str | None,
    typer.Option(
        "--ray-address", help="host:port of the cluster. Default: RAY_ADDRESS, or a new cluster on this machine."
    ),
]
Cache = Annotated[Path | None, typer.Option("--cache-dir", help="The folder of responses that later runs use again.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on standard output.")]
Race = Annotated[bool, typer.Option("--race", help="Drop candidates as soon as they are surely outside the gap.")]
RaceLevel = Annotated[
    float | None,
    typer.Option("--race-level", help="Probability that --race changes the selection.", show_default="0.05"),
]
Choose = Annotated[
    str | None,
    typer.Option(
        "--choose",
        metavar="HOW",
        help="rules, predicted (verify the sets with the largest predicted gains), or search (decode sets on dev).",
        show_default="rules",
    ),
]
Tries = Annotated[
    int | None,
    typer.Option("--tries", help="The most sets that --choose predicted or search decodes.", show_default="4"),
]
UntilSure = Annotated[
    bool, typer.Option("--until-sure", help="Ask held-out questions in batches until the test shows a difference.")
]
MaxQuestions = Annotated[
    int | None,
    typer.Option("--max-questions", help="Held-out questions that --until-sure asks at most.", show_default="850"),
]
KeyNames = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-key-env",
        metavar="NAME",
        help="A variable that may hold a server's key; *_API_KEY needs no permission.",
    ),
]
StrategyName = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="A strategy that the run compared, for example vote, cascade/3 or single. Default: the recommended one.",
    ),
]
Group = Annotated[str | None, typer.Option("--group", help="The group of the prompt, for a router by groups.")]
Places = Annotated[
    str | None,
    typer.Option("--pool", metavar="FILE", help="A pool file that says where the models of the run are, by name."),
]
Servers = Annotated[
    list[str] | None,
    typer.Option("--allow-server", metavar="URL", help="A server of the run's candidates that may be contacted."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress, notes and tables. The report has the notes.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code that comes with the members of a saved ensemble.")
]
NoCheck = Annotated[
    bool, typer.Option("--no-check-files", help="Load a saved ensemble even if the files of a member have changed.")
]


def command_line() -> str:
    """The command line, for the record."""
    return shlex.join(["advisor", *sys.argv[1:]])


def for_output(text: str) -> str:
    """A model's text for standard output."""
    from ensemble.common.text import visible

    # A terminal would obey escape sequences in it; a file or a program gets the text unchanged.
    return visible(text, keep_lines=True) if sys.stdout.isatty() else text


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    # ASCII, because the reader's encoding is unknown, and so that no escape of a model's text reaches a terminal.
    print(json.dumps(value, indent=2, ensure_ascii=True))
