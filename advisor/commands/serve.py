"""``advisor serve``: a strategy of a run, or any models that decode together, for clients of OpenAI's API."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from advisor.options.finished_run import ServeOptions
from advisor.progress import Progress
from advisor.run.plan import StrategyPlan, plan_by_options
from advisor.run.task_prompt import prompt_of
from advisor.serving import starting
from ensemble.common.garbage import keep_present


def serve(options: ServeOptions) -> None:
    """Load what answers, and serve it until a signal stops the server."""
    from advisor.serving.protocol import RequestLimits
    from advisor.serving.server import GracefulServer, address_of, allowed_hosts, bind, is_loopback, read_key_digest

    key_digest = read_key_digest(options.api_key_file, os.environ, options.api_key_env)
    chosen = plan_by_options(options, Progress().say)
    if not isinstance(chosen, StrategyPlan):
        starting.check_joinable(chosen)
    prompt = prompt_of(chosen, options, Progress().say)
    usual_tokens = chosen.max_new_tokens or 256
    limits = RequestLimits(
        options.max_texts,
        options.request_max_new_tokens,
        options.max_body,
        usual_tokens,
        chosen.stop,
        options.max_queued_tokens,
        options.deadline,
    )
    members = "+".join(model.name for model in chosen.members)
    name = options.name or (members if options.run is None else Path(options.run).resolve().name)
    shown = name
    if isinstance(chosen, StrategyPlan):
        shown = f"{name} ({chosen.strategy.name} of {', '.join(chosen.strategy.members)})"
    # Bound first: a port in use is reported at once and not after minutes of loading.
    with bind(options.host, options.port) as bound:
        hosts = allowed_hosts(bound, options.host, options.allow_host)
        app, engine = starting.make_app_of(chosen, name, limits, key_digest, hosts, options, prompt=prompt)

        def ready() -> None:
            _print_ready(address_of(bound), shown, open_to_all=not is_loopback(bound), has_key=key_digest is not None)
            if prompt is not None:
                Progress().say(
                    f"the last message of a chat is filled into the prompt of the run's task: {prompt.example}; "
                    "--raw and /v1/completions send texts as they are"
                )

        def stopping() -> None:
            print("advisor: stopping; finishing running requests, a second signal ends them at once", file=sys.stderr)

        connections = options.max_connections
        server = GracefulServer(app, engine, bound, connections=connections, ready=ready, stopping=stopping)
        # Many requests cause collections, which would visit libraries and models while the decoder waits.
        keep_present()
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
