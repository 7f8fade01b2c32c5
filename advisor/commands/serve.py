"""``advisor serve``: the recommended strategy of a run, or any models, as an HTTP server with OpenAI's API."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from advisor.commands import options as opt


def serve(
    context: typer.Context,
    run: opt.RunOrModels = None,
    *,
    models: opt.Members = None,
    strategy: opt.StrategyName = None,
    group: opt.Group = None,
    pool: opt.Places = None,
    allow_server: opt.Servers = None,
    allow_key_env: opt.KeyNames = None,
    method: opt.SetMethod = None,
    k: opt.SetK = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", help="The limit for requests that name none. Default: as in the run."),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="A stop string for requests that name none. Default: as in the run."),
    ] = None,
    device: opt.SetDevice = None,
    dtype: opt.SetDtype = None,
    quantization: opt.Quantization = None,
    chat_template: opt.SetTemplate = None,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; only this machine reaches 127.0.0.1.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    name: Annotated[
        str | None, typer.Option("--name", help="The name of the model in requests. Default: the run's folder.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="A file with the key. Default: $ADVISOR_API_KEY, or no key.")
    ] = None,
    batch_size: Annotated[str, typer.Option("--batch-size", help="The number of texts in a batch, or auto.")] = "auto",
    deterministic: opt.Deterministic = False,
    max_requests: Annotated[
        int, typer.Option("--max-requests", min=1, help="Texts that may run or wait; further ones get status 429.")
    ] = 64,
    most_new_tokens: Annotated[
        int, typer.Option("--most-new-tokens", min=1, help="The highest limit that a request may set.")
    ] = 4096,
    most_prompt_tokens: Annotated[
        int | None,
        typer.Option("--most-prompt-tokens", min=1, help="Tokens of a prompt. Default: the members' context."),
    ] = None,
    most_tokens: Annotated[
        int | None,
        typer.Option(
            "--most-tokens",
            min=1,
            help="Tokens in the prompts of all texts that run or wait. Default: 4096 for each of --max-requests.",
        ),
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(
            "--max-connections", min=1, help="Connections at a time. Default: by the limit of open files, at most 1000."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A name by which clients reach the server, for example behind a proxy."),
    ] = None,
    max_body: Annotated[
        int, typer.Option("--max-body", min=1, help="Bytes of a request; a larger one gets status 413.")
    ] = 2**20,
    deadline: Annotated[
        float,
        typer.Option("--deadline", min=1, help="Seconds after which a strategy goes on without a model's answer."),
    ] = 600,
    otel: Annotated[
        bool,
        typer.Option("--otel", help="Send a trace of each request to a collector, which the OTEL_* variables name."),
    ] = False,
    trust_remote_code: opt.Trust = False,
    no_check_files: opt.NoCheck = False,
    debug: opt.Debug = False,
) -> None:
    """Serve the recommended strategy of a run, or any models that decode together, to clients of OpenAI's API."""
    from advisor.config import InferenceConfig
    from advisor.progress import Progress
    from advisor.runs.chosen_set import check_source
    from advisor.runs.strategy_to_run import plan_by_options
    from advisor.serving import starting
    from advisor.strategies.running.plan import StrategyPlan

    check_source(context.params)
    # Before the heavy imports, so that a missing library is one line and not an ImportError.
    starting.check_extra()

    from advisor.serving.middleware import read_key_digest
    from advisor.serving.protocol import RequestLimits
    from advisor.serving.server import GracefulServer, address_of, allowed_hosts, bind, is_loopback

    inference = InferenceConfig.from_options(context.params)
    key_digest = read_key_digest(api_key_file, os.environ)
    chosen = plan_by_options(context.params, Progress().say)
    if not isinstance(chosen, StrategyPlan):
        starting.check_joinable(chosen)
    usual_tokens = chosen.max_new_tokens or 256
    limits = RequestLimits(
        max_requests, most_new_tokens, most_prompt_tokens, max_body, usual_tokens, chosen.stop, most_tokens, deadline
    )
    name = name or (starting.name_of(chosen) if run is None else Path(run).resolve().name)
    shown = name
    if isinstance(chosen, StrategyPlan):
        shown = f"{name} ({chosen.strategy.name} of {', '.join(chosen.strategy.members)})"
    traces = starting.traces_of(name) if otel else None
    # Bound first: a port in use is reported at once and not after minutes of loading.
    with bind(host, port) as bound:
        hosts = allowed_hosts(bound, host, allow_host or ())
        app, engine = starting.make_app_of(chosen, name, limits, key_digest, hosts, inference, group, traces)

        def ready() -> None:
            _print_ready(address_of(bound), shown, open_to_all=not is_loopback(bound), has_key=key_digest is not None)

        server = GracefulServer(app, engine, bound, connections=max_connections, ready=ready, stopping=_print_stopping)
        starting.freeze_garbage_collector()
        server.run_bound()


def _print_ready(address: str, name: str, *, open_to_all: bool, has_key: bool) -> None:
    """Tell people on standard error that the server listens, and scripts on standard output where it does."""
    print(f"advisor: serving {name}; Ctrl-C finishes running requests, then stops", file=sys.stderr)
    if open_to_all:
        clients = "every client with the key" if has_key else "every client, because the server has no key,"
        print(
            f"advisor: {address} is open to other machines: {clients} can use it, and the connection is not encrypted",
            file=sys.stderr,
        )
    print(f"{address}/v1", flush=True)


def _print_stopping() -> None:
    print("advisor: stopping; finishing running requests, a second signal ends them at once", file=sys.stderr)
