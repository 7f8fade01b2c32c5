"""``advisor export --as litellm``: a strategy as configuration of LiteLLM's proxy, loaded by it where it is installed.

``make test-exports`` installs it into ``build`` and runs these tests.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

BUILD = Path(__file__).resolve().parents[1] / "build"
LOAD_LITELLM = """
import asyncio, json, sys
from litellm.proxy.proxy_server import ProxyConfig

async def main():
    router, _, _ = await ProxyConfig().load_config(router=None, config_file_path=sys.argv[1])
    for tags in json.loads(sys.argv[3]):
        metadata = {"metadata": {"tags": tags}} if tags else {}
        found = await router.async_get_available_deployment(sys.argv[2], messages=[], request_kwargs=metadata)
        params = found["litellm_params"]
        print(json.dumps([params[name] for name in ("model", "api_base", "api_key", "input_cost_per_token")]))

asyncio.run(main())
"""
ROUTES = {"law": "b", "art, old": "b", "math": "a", "default": "b", "!x": "c"}
POOL = (
    "openai:http://10.0.0.1:8000/v1#org/a name=a key_env=A_API_KEY price_in=1 price_out=2 requests_per_minute=0.5",
    "openai:http://10.0.0.2:8000/v1#b name=b price_in=3 price_out=4 reasoning_effort=low",
    "openai:http://10.0.0.3:8000/v1#c name=c price_in=5 price_out=6 chat_template=never",
)


def run_of(place: Place, local: tuple[str, ...] = (), **strategy: Any) -> None:
    """A run folder that recommends a strategy of three models behind servers, and a pool file with their prices."""
    place.pool(*POOL)
    models: dict[str, Any] = {
        name: {"remote": {"address": line.split()[0]}, "chat_template": "auto"}
        for name, line in zip("abc", POOL, strict=True)
    }
    models["a"]["remote"]["key_env"] = "A_API_KEY"
    for name in local:
        models[name] = {"path_or_id": "org/x", "revision": "0" * 40, "dtype": "float32", "device": "cpu"}
        models[name]["chat_template"] = "never"
    result = {
        "schema_version": 2,
        "task": {"name": "sums", "metric": "number", "max_new_tokens": 2, "stop": ["\n"]},
        "selected": ["a", "b"],
        "ensemble": None,
        "candidates": [{"model": name, "accuracy": 50.0} for name in "abc"],
        "advice": {"recommendation": {"strategy": "vote", "members": ["a", "b", "c"], **strategy}},
        "provenance": {"models": models},
    }
    (place.folder / "run").mkdir()
    place.write("run/result.json", json.dumps(result))


def exported(place: Place, *options: str) -> tuple[dict[str, Any], list[str], Path]:
    """The configuration, the notes, and the file."""
    ran = place.advisor("export", "run", "out", "--as", "litellm", *(options or ("--pool", "models.txt")))
    assert ran.status == 0, ran.err
    file = place.folder / ran.out.strip()
    text = file.read_text(encoding="utf-8")
    notes = [line.removeprefix("note ") for line in ran.err.splitlines()]
    assert text.startswith("# Written by `advisor export`.\n" + "".join(f"# {note}\n" for note in notes))
    return yaml.safe_load(text), notes, file


def answering(file: Path, name: str, *tags: list[str]) -> list[list[Any]]:
    """Which deployment LiteLLM's proxy takes for requests with tags, by its own loader and router."""
    python = BUILD / "litellm" / "bin" / "python"
    if not python.exists():
        pytest.skip("LiteLLM is not installed; make test-exports installs it")
    # Its list of prices is of the package, so that it asks no other host.
    given = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "A_API_KEY": "the-key"}
    command = [str(python), "-c", LOAD_LITELLM, str(file), name, json.dumps(tags)]
    done = subprocess.run(command, capture_output=True, text=True, env=given, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]


A, B = (
    ["openai/org/a", "http://10.0.0.1:8000/v1", "the-key", 1e-6],
    ["openai/b", "http://10.0.0.2:8000/v1", "none", 3e-6],
)
C = ["text-completion-openai/c", "http://10.0.0.3:8000/v1", "none", 5e-6]


def test_litellm_sends_each_group_to_its_member_and_others_to_the_first(place: Place) -> None:
    run_of(place, strategy="group_router", routes=ROUTES)
    content, notes, file = exported(place)
    assert content["router_settings"]["fallbacks"] == [{"run": ["a", "b", "c"]}]
    assert "a client's request has the tag group:GROUP in metadata.tags" in notes
    assert "the-key" not in file.read_text(encoding="utf-8")
    tags = [[f"group:{group}"] for group in (*ROUTES, "unknown")]
    assert answering(file, "run", *tags, []) == [B, B, A, B, C, A, A]


def test_litellm_calls_a_single_model_by_the_name_of_the_run(place: Place) -> None:
    run_of(place, strategy="single", members=["b"])
    content, notes, file = exported(place)
    assert [each["model_name"] for each in content["model_list"]] == ["b"]
    assert content["model_list"][0]["litellm_params"]["reasoning_effort"] == "low"
    assert notes == ["clients send prompts as the task has them; `advisor serve` makes them of questions"]
    assert answering(file, "run", []) == answering(file, "b", []) == [B]


def test_the_command_that_runs_another_strategy_names_it_and_its_consent(place: Place) -> None:
    run_of(place, strategy="single", members=["a"])
    result = json.loads((place.folder / "run" / "result.json").read_text(encoding="utf-8"))
    result["strategies"] = [{"strategy": "vote", "members": ["a", "b", "c"]}]
    place.write("run/result.json", json.dumps(result))
    servers = [f"--allow-server=http://10.0.0.{n}:8000" for n in (1, 2, 3)]
    export = ("export", "run", "out", "--as", "litellm", "--strategy", "vote")
    consent = " ".join(f"--allow-server http://10.0.0.{n}:8000" for n in (1, 2, 3))
    assert f": `advisor serve run --strategy vote {consent}` runs it" in place.advisor(*export, *servers).err
    with_pool = place.advisor(*export[:2], "other", *export[3:], "--pool", "models.txt").err
    assert ": `advisor serve run --strategy vote --pool models.txt` runs it" in with_pool


@pytest.mark.parametrize(
    ("local", "strategy", "reason"),
    [
        (
            (),
            {"strategy": "vote"},
            "Vote, 3 models cannot run there, because such a program sends each question to one model",
        ),
        ((), {"strategy": "vote"}, "such a program sends each question to one model"),
        (("c",), {"strategy": "group_router", "routes": ROUTES}, "because no server runs c"),
        (("c",), {"strategy": "single", "members": ["c"]}, "c alone cannot run there, because no server runs c: "),
    ],
)
def test_what_a_program_cannot_run_is_behind_advisor_serve(
    place: Place, local: tuple[str, ...], strategy: dict[str, Any], reason: str
) -> None:
    run_of(place, local, **strategy)
    servers = [f"--allow-server=http://10.0.0.{n}:8000" for n in (1, 2, 3)]
    content, notes, _ = exported(place, *servers)
    assert reason in notes[0]
    assert "`advisor serve run --allow-server http://10.0.0.1:8000 " in notes[0]
    assert "` runs it, and the model run of the file is at its address, http://127.0.0.1:8000/v1" in notes[0]
    first = content["model_list"][0]
    assert first["model_name"] == "run"
    assert first["litellm_params"]["api_base"] == "http://127.0.0.1:8000/v1"
    assert first["litellm_params"]["api_key"] == "os.environ/ADVISOR_API_KEY"
    assert "prices" in notes[1]


def test_no_name_of_a_run_becomes_a_secret(place: Place) -> None:
    run_of(place, strategy="single", members=["a"])
    text = (place.folder / "run" / "result.json").read_text(encoding="utf-8")
    place.write("run/result.json", text.replace('"a"', '"os.environ/AWS_SECRET"'))
    line = place.refused("export", "run", "out", "--as", "litellm", "--allow-server=http://10.0.0.1:8000")
    assert "LiteLLM reads this name as a variable of the environment" in line


def test_what_cannot_be_handed_over_is_one_line(place: Place) -> None:
    run_of(place)
    export = ("export", "run", "out", "--as")
    assert "--as ?: not one of litellm" in place.refused(*export, "?")
    assert "add --allow-server http://10.0.0.1:8000" in place.refused(*export, "litellm")
    assert "--as has no effect with --compose" in place.refused(*export, "litellm", "--compose")
    given = ("export", "run", "models.txt", "--as", "litellm", "--pool", "models.txt")
    assert "models.txt: is a file; give a folder" in place.refused(*given)
    (place.folder / "out").mkdir()
    place.write("out/litellm.yaml", "mine")
    assert "is another file than this command writes" in place.refused(*export, "litellm", "--pool", "models.txt")
    secret = json.loads((place.folder / "run" / "result.json").read_text(encoding="utf-8"))
    secret["provenance"]["models"]["a"]["remote"]["key_env"] = "AWS_SECRET"
    place.write("run/result.json", json.dumps(secret))
    line = place.refused(*export, "litellm", *(f"--allow-server=http://10.0.0.{n}:8000" for n in (1, 2, 3)))
    assert "does not end in _API_KEY" in line
