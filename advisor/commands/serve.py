"""``advisor serve``: a run's chosen set, or any models, behind an OpenAI-compatible HTTP endpoint."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from advisor.commands import options as opt
from ensemble.errors import InputError

if TYPE_CHECKING:
    from ensemble.models.spec import ChatTemplate


def serve(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run folder or a saved one; or --models.")
    ] = None,
    *,
    models: Annotated[list[str] | None, typer.Option("--models", help="A folder or hub id; the primary first.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="How the set decodes.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Candidates that each member brings to the union.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", help="Of a text whose request names no limit; the run's own.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="Ends texts whose requests name none; the run's own.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, ...; the run's own.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32, ...; the run's own.")] = None,
    chat_template: Annotated[str | None, typer.Option("--chat-template", help="auto, ...; the run's own.")] = None,
    host: Annotated[str, typer.Option("--host", help="Where to listen: only this machine reaches 127.0.0.1.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any that is free.")] = 8000,
    name: Annotated[str | None, typer.Option("--name", help="What requests call the model; the run's folder.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="Holds the key; else $ADVISOR_API_KEY, else there is none.")
    ] = None,
    batch_size: Annotated[str, typer.Option("--batch-size", help="Texts decoded at a time, or auto.")] = "auto",
    max_requests: Annotated[
        int, typer.Option("--max-requests", min=1, help="Texts that may run or wait; one more gets 429.")
    ] = 64,
    most_new_tokens: Annotated[
        int, typer.Option("--most-new-tokens", min=1, help="That a request may ask for.")
    ] = 4096,
    most_prompt_tokens: Annotated[
        int | None, typer.Option("--most-prompt-tokens", min=1, help="Of a prompt; the members' contexts.")
    ] = None,
    max_body: Annotated[int, typer.Option("--max-body", min=1, help="Bytes of a request; more get 413.")] = 2**20,
    trust_remote_code: opt.Trust = False,
    no_check_files: opt.NoCheck = False,
    debug: opt.Debug = False,  # noqa: ARG001  # read by main, before the command
) -> None:
    """Serve the chosen set of a run, or any models, to clients that speak OpenAI's protocol."""
    if models and run is not None:
        raise InputError("give a run folder or --models, not both")
    if run is None and not models:
        raise InputError("give a run folder, or --models for each model, the primary first")

    from advisor import checks
    from advisor.serving import starting

    starting.check_extra()
    checks.check_method(method or "unite", 1 if k is None else k)
    checks.check_tokens(max_new_tokens)
    checks.check_loading(dtype or "auto", chat_template or "auto")
    checks.check_stop(stop or ())
    size = checks.check_batch_size(batch_size)

    from advisor.output import chosen_set
    from advisor.profile.loader import hush
    from advisor.serving.middleware import read_key_digest
    from advisor.serving.protocol import RequestLimits
    from advisor.serving.server import GracefulServer, address_of, bind, is_loopback

    hush()
    key_digest = read_key_digest(api_key_file, os.environ)
    if models:
        chosen = chosen_set.chosen_by_hand(models)
    else:
        chosen = chosen_set.chosen_by_folder(
            Path(str(run)), trust_remote_code=trust_remote_code, check_files=not no_check_files
        )
    chosen = chosen.with_decoding(method=method, k=k, max_new_tokens=max_new_tokens, stop=stop)
    chosen = chosen.with_loading(device=device, dtype=dtype, chat_template=cast("ChatTemplate | None", chat_template))
    starting.check_level(chosen.method)
    checks.check_models(chosen.members)
    usual_tokens = chosen.max_new_tokens or 256
    limits = RequestLimits(max_requests, most_new_tokens, most_prompt_tokens, max_body, usual_tokens, chosen.stop)
    name = name or (starting.name_of(chosen) if run is None else Path(run).resolve().name)
    with bind(host, port) as bound:
        app, engine = starting.make_app_of(chosen, name, limits, key_digest, size)

        def ready() -> None:
            _say_ready(address_of(bound), name, open_to_all=not is_loopback(bound), keyed=key_digest is not None)

        server = GracefulServer(app, engine, bound, ready=ready, stopping=_say_stopping)
        starting.freeze_garbage_collector()
        server.run_bound()


def _say_ready(address: str, name: str, *, open_to_all: bool, keyed: bool) -> None:
    """Tell people that it listens, and what that means; and scripts, on standard output, where."""
    print(f"advisor: serving {name}; Ctrl-C finishes what runs, then stops", file=sys.stderr)
    if open_to_all:
        who = "whoever has the key" if keyed else "whoever reaches this machine, as there is no key,"
        print(
            f"advisor: {address} is open to other machines: {who} can use it, and nothing is encrypted on the way",
            file=sys.stderr,
        )
    print(f"{address}/v1", flush=True)


def _say_stopping() -> None:
    print("advisor: stopping; what runs is finished first, and a second signal ends it at once", file=sys.stderr)
