"""The options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Pool = Annotated[str | None, typer.Option("--pool", metavar="FILE", help="The candidates, one a line; or: demo.")]
Task = Annotated[str | None, typer.Option("--task", metavar="TASK", help="A task's name, or a task file.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder with the task's data, instead of the hub.")]
Split = Annotated[str, typer.Option("--split", help="The split to profile on.")]
Limit = Annotated[int | None, typer.Option("--limit", help="Questions of each split.")]
Shots = Annotated[int | None, typer.Option("--shots", help="Demonstrations before each question.")]
Seed = Annotated[int, typer.Option("--seed", help="Of every draw.")]
Code = Annotated[
    bool, typer.Option("--allow-code-execution", help="Run programs that models wrote, as mbpp does, in a sandbox.")
]
Gap = Annotated[float, typer.Option("--max-gap", help="Points that a member may be behind the best.")]
Ratio = Annotated[float, typer.Option("--max-length-ratio", help="How many times as long, or as short.")]
Models = Annotated[int, typer.Option("--max-models", help="Members at the most.")]
Level = Annotated[float, typer.Option("--level", help="Accepted chance of advising an ensemble that gains nothing.")]
Method = Annotated[str, typer.Option("--method", help="How the set decodes; see: advisor methods.")]
K = Annotated[int, typer.Option("--k", help="Candidates that each member brings to the union.")]
Tokens = Annotated[int | None, typer.Option("--max-new-tokens", help="Where a response is cut off.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16, ...")]
Batch = Annotated[str, typer.Option("--batch-size", help="Prompts at a time, or auto.")]
Template = Annotated[str, typer.Option("--chat-template", help="auto, always or never.")]
Engine = Annotated[str, typer.Option("--engine", help="Where models run: local, one after the other, or ray.")]
Address = Annotated[
    str | None, typer.Option("--ray-address", help="The cluster's host:port; RAY_ADDRESS or one started here if none.")
]
Cache = Annotated[Path | None, typer.Option("--cache-dir", help="Where responses are kept for the next run.")]
Json = Annotated[bool, typer.Option("--json", help="Write the result to standard output, and nothing else there.")]
Race = Annotated[bool, typer.Option("--race", help="Drop candidates as soon as they are surely outside the gap.")]
RaceLevel = Annotated[
    float | None, typer.Option("--race-level", help="Chance that --race changes the selection.", show_default="0.05")
]
Search = Annotated[bool, typer.Option("--search", help="Decode more sets on the dev questions; take the best there.")]
Tries = Annotated[
    int | None,
    typer.Option("--tries", help="Sets that --search decodes, the rules' own among them.", show_default="4"),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no tables.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code that a saved ensemble's members came with.")
]
NoCheck = Annotated[
    bool, typer.Option("--no-check-files", help="Take a saved ensemble's members also where their files changed.")
]
