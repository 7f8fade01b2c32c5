"""``advisor export``: a folder with a card, files for Docker Compose, and the configuration of LiteLLM’s proxy.

``make test-exports`` installs LiteLLM into ``build``, which then loads the configuration; without it these tests skip.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from markdown_it import MarkdownIt
from pools import Place, Prepare
from scipy.stats import binomtest

from advisor.cli import app
from advisor.run.folder import Run
from reports.formats import evidence

TOGETHER = ("--strategy", "unite")
pytest_plugins = ["hubs", "pools"]

HOSTILE = "](http://x)<script>alert(1)</script>|`*_\n# {{ 7 * 7 }} <!--"


@pytest.fixture
def run(place: Place, models: Path, prepare: Prepare) -> Place:
    """A place with a run of two models."""

    def make() -> None:
        place.task(metric="contains", stop=["\n\n"])
        place.pool(*(str(models / name) for name in ("alpha", "beta")))
        place.select("--quiet")

    prepare("export", place, make)
    return place


def test_what_a_run_chose_is_exported_and_runs_alike(run: Place) -> None:
    ran = run.advisor("export", "run", "out", *TOGETHER)
    assert (ran.status, ran.out) == (0, "out\n")
    result, saved = run.json(), run.json("out/ensemble.json")
    sources = result["provenance"]["models"]
    assert [member["name"] for member in saved["members"]] == result["selected"]
    assert [member["files"] for member in saved["members"]] == [sources[name]["files"] for name in result["selected"]]
    assert saved["generation"] == {"max_new_tokens": 6, "stop": ["\n\n"]}
    prompt = "What is 1 + 1?\nAnswer:"
    assert run.advisor("run", "out", prompt).out == run.advisor("run", "run", prompt, *TOGETHER).out
    # What is said goes before its own.
    long = run.advisor("run", "out", "What is", "--max-new-tokens", "20", "--method", "gac", "--dtype", "float32")
    assert (long.status, long.err) == (0, "")

    card = (run.folder / "out" / "README.md").read_text(encoding="utf-8")
    figures = result["ensemble"]
    assert f"| {figures['accuracy']:.1f} |" in card
    assert f"On {figures['n']} held-out questions" in card
    (entry,) = yaml.safe_load(card.split("---")[1])["model-index"]
    assert entry["results"][0]["metrics"][0]["value"] == round(figures["accuracy"], 2)


def test_no_name_or_text_is_markup_in_a_card(run: Place, tmp_path: Path) -> None:
    result = run.json()
    result["task"]["name"] = result["advice"]["text"] = result["candidates"][0]["model"] = HOSTILE
    result["ensemble"]["best_single_model"] = result["ensemble"]["members"][0]["model"] = HOSTILE
    result["selected"][0] = HOSTILE
    (tmp_path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    text = evidence(Run.open(tmp_path).result)
    page = MarkdownIt("commonmark").enable("table").render(text)
    assert "{{ 7 * 7 }}" in page
    for markup in ("<script", "<a ", "<h1", "<!--", "<code"):
        assert markup not in page
    # A row of the table of members has its four cells, whatever a name has in it.
    assert all(row.count("<td") in (4, 5) for row in page.split("<tr>")[2:] if "<td" in row)


def test_the_interval_that_a_card_names_for_ten_questions_is_wilsons(run: Place) -> None:
    found = binomtest(7, 10).proportion_ci(0.95, method="wilson")
    text = " ".join(evidence(Run.open(run.folder / "run").result).split())
    assert f"7 right of 10 fits any accuracy from {100 * found.low:.1f} to {100 * found.high:.1f}" in text


def test_a_set_that_was_not_verified_says_so(place: Place, models: Path) -> None:
    place.job(models, "alpha", "beta")
    assert place.select("--quiet", "--no-verify").status == 0
    assert place.advisor("export", "run", "out").status == 0
    assert "nothing was verified on held-out questions" in place.advisor("run", "run", "What is 1 + 1?").err
    card = (place.folder / "out" / "README.md").read_text(encoding="utf-8")
    assert "The set was not run on held-out questions" in card
    assert "model-index" not in card


def test_what_cannot_be_exported_is_refused_in_a_line(run: Place) -> None:
    assert "is a local model, which others cannot load" in run.refused("export", "run", "out", "--push", "org/new")
    assert "gone: no such folder; give a run folder" in run.refused("export", "gone", "out")
    assert "is not a saved ensemble, and has " in run.refused("export", "run", "run")
    result = run.json()
    files = result["provenance"]["models"][result["selected"][0]]["files"]
    files["config.json"] = "0" * 64
    run.write("run/result.json", json.dumps(result))
    assert "changed since the run (config.json differs)" in run.refused("export", "run", "out")


def test_a_set_of_the_hub_is_pushed(place: Place, shelf: Path) -> None:
    place.task()
    place.pool("org/alpha", "org/beta")
    place.select("--quiet")
    ran = place.advisor("export", "run", "out", "--push", "org/set", "--public", *TOGETHER)
    assert ran.status == 0
    assert "/org/set/commit/" in ran.out
    assert (shelf / "set" / ".gitattributes").read_text(encoding="utf-8") == "public"
    card = (shelf / "set" / "README.md").read_text(encoding="utf-8")
    assert sorted(yaml.safe_load(card.split("---")[1])["base_model"]) == ["org/alpha", "org/beta"]


COMPOSE = ("export", "run", "out", *TOGETHER, "--compose")


def composed(place: Place, out: str = "out") -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((place.folder / out / "compose.yaml").read_text(encoding="utf-8"))
    return found


def served(command: list[str]) -> dict[str, Any]:
    """What the command line of the server's service says, by the command's own parser."""
    group = typer.main.get_command(app)
    # What Compose does to a word of a command.
    name, *arguments = [word.replace("$$", "$") for word in command]
    serve = group.get_command(group.make_context("advisor", ["lists"], resilient_parsing=True), name)  # type: ignore[attr-defined]
    params: dict[str, Any] = serve.make_context(name, arguments).params
    return params


def move(run: Place, models: Path, number: int, address: str, **options: Any) -> None:
    """Let a run's set have one of its members behind a server."""
    name = run.json()["selected"][number]
    remote = {"address": address, "tokenizer": str(models / name), **options}
    source = {"remote": remote, "chat_template": "never"}
    run.edit(lambda result: result["provenance"]["models"].update({name: source}))


def test_local_models_are_mounted_where_the_export_names_them(run: Place, models: Path) -> None:
    assert run.advisor(*COMPOSE).status == 0
    content = composed(run)
    assert list(content["services"]) == ["advisor", "prometheus"]
    server = content["services"]["advisor"]
    mounts = {mount["source"]: mount for mount in server["volumes"] if isinstance(mount, dict)}
    out = run.folder / "out"
    members = run.json("out/ensemble.json")["members"]
    assert {str((out / member["path"]).resolve()) for member in members} | {"./ensemble.json"} == set(mounts)
    assert mounts["./ensemble.json"]["target"] == str(out / "ensemble.json")
    assert all(mount["target"] == mount["source"] for source, mount in mounts.items() if not source.startswith("."))
    assert all(mount["read_only"] for mount in mounts.values())
    said = served(server["command"])
    assert (said["run"], said["host"], said["port"], said["name"]) == (str(out), "0.0.0.0", "8000", "out")


def test_every_service_has_an_image_of_an_exact_version_or_is_built_and_prometheus_reads_them_all(
    run: Place, models: Path
) -> None:
    move(run, models, 0, "openai:http://a:8000/v1#org/alpha-7B.Instruct")
    assert run.advisor(*COMPOSE).status == 0
    content = composed(run)
    assert list(content["services"]) == ["advisor", "alpha-7b-instruct", "prometheus"]
    assert all(("image" in service) != ("build" in service) for service in content["services"].values())
    images = [service["image"] for service in content["services"].values() if "image" in service]
    assert len(images) == 2 and all(re.fullmatch(r"[\w./-]+:v\d+\.\d+\.\d+", image) for image in images)
    volumes = [volume for service in content["services"].values() for volume in service["volumes"]]
    named = {volume.split(":")[0] for volume in volumes if isinstance(volume, str)}
    assert {name for name in named if not name.startswith(".")} == set(content["volumes"])
    scraped = yaml.safe_load((run.folder / "out" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = [target for job in scraped["scrape_configs"] for target in job["static_configs"][0]["targets"]]
    assert targets == ["advisor:8000", "alpha-7b-instruct:8000"]


def test_members_behind_vllm_have_a_service_each_and_the_set_its_addresses(run: Place, models: Path) -> None:
    move(run, models, 0, "openai:http://a:8000/v1#org/same", key_env="A_API_KEY", revision="1" * 40)
    move(run, models, 1, "openai:http://b:8000/v1#other/same", revision="our label")
    assert run.advisor(*COMPOSE).status == 0
    services = composed(run)["services"]
    first, second = services["same"], services["same-2"]
    assert first["command"][0] == "org/same" and f"--revision={'1' * 40}" in first["command"]
    assert second["command"][0] == "other/same" and not any("--revision" in word for word in second["command"])
    gpus = [s["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for s in (first, second)]
    assert gpus == [["0"], ["1"]]
    saved = run.json("out/ensemble.json")
    addresses = [member["server"]["address"] for member in saved["members"]]
    assert addresses == ["openai:http://same:8000/v1#org/same", "openai:http://same-2:8000/v1#other/same"]
    said = served(services["advisor"]["command"])
    assert said["allow_server"] == ["http://same:8000/v1", "http://same-2:8000/v1"]
    assert set(services["advisor"]["depends_on"]) == {"same", "same-2"}
    # The key is named in both, and written in no file.
    assert services["advisor"]["environment"]["A_API_KEY"] == first["environment"]["VLLM_API_KEY"]
    assert first["environment"]["VLLM_API_KEY"].startswith("${A_API_KEY:?")
    assert "VLLM_API_KEY" not in second["environment"]


def test_a_server_elsewhere_keeps_its_address_and_needs_consent(run: Place, models: Path) -> None:
    move(run, models, 0, "openai:http://127.0.0.1:8000/v1#alpha")
    line = run.advisor(*COMPOSE, "--allow-server", "http://127.0.0.1:8000").line
    assert "is behind 127.0.0.1, which in a container is the container itself" in line
    move(run, models, 0, "openai:https://example.org/v1#org/large", key_env="MY_API_KEY")
    refused = run.advisor(*COMPOSE)
    assert refused.status == 2 and "add --allow-server https://example.org:443" in refused.line
    consent = ("--allow-server", "https://example.org")
    assert not (run.folder / "out").exists()
    assert run.advisor(*COMPOSE, *consent).status == 0
    services = composed(run)["services"]
    assert list(services) == ["advisor", "prometheus"]
    said = served(services["advisor"]["command"])
    assert said["allow_server"] == ["https://example.org/v1"]


def test_edited_files_are_not_overwritten(run: Place) -> None:
    assert run.advisor(*COMPOSE).status == 0
    assert run.advisor(*COMPOSE).status == 0
    path = run.folder / "out" / "compose.yaml"
    path.write_text("# mine\n", encoding="utf-8")
    line = run.advisor(*COMPOSE).line
    assert "compose.yaml: is another file than this command writes" in line
    assert path.read_text(encoding="utf-8") == "# mine\n"


def test_a_strategy_that_asks_its_models_has_the_files_too(run: Place) -> None:
    assert run.advisor("export", "run", "out", "--strategy", "single", "--compose").status == 0
    assert (run.folder / "out" / "strategy.json").is_file()
    assert list(composed(run)["services"]) == ["advisor", "prometheus"]
    sources = [volume["source"] for volume in composed(run)["services"]["advisor"]["volumes"][1:]]
    assert "./strategy.json" in sources


def test_the_image_is_of_this_release_does_not_run_as_root_and_has_no_secrets(run: Place) -> None:
    done = run.advisor(*COMPOSE)
    assert done.status == 0
    text = (run.folder / "out" / "Dockerfile").read_text(encoding="utf-8")
    lines = text.splitlines()
    words = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert set(words) <= {"FROM", "COPY", "RUN", "ENV", "USER", "EXPOSE", "ENTRYPOINT"}
    assert lines.index("USER advisor") < lines.index('ENTRYPOINT ["advisor"]')
    environment = composed(run)["services"]["advisor"]["environment"]
    assert all(re.fullmatch(rf"\$\{{{name}:.*\}}", value) for name, value in environment.items())
    # It is built from the wheel, and from no index.
    (copied,) = re.findall(r"^COPY (\S+) /tmp/$", text, re.MULTILINE)
    assert copied == f"unite_advisor-{metadata.version('unite-advisor')}-*.whl"
    assert f"put {copied} into out" in done.err
    (installed,) = re.findall(r'cd /tmp && pip install [^"]*"([^"]+)"', text)
    assert installed == f"$(ls {copied})[local]"


def test_a_dollar_in_a_path_is_no_variable(run: Place) -> None:
    (run.folder / "$HOME").mkdir()
    assert run.advisor("export", "run", "$HOME/out", *TOGETHER, "--compose").status == 0
    command = composed(run, "$HOME/out")["services"]["advisor"]["command"]
    assert "$$HOME" in command[1] and served(command)["run"] == str(run.folder / "$HOME" / "out")


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
SERVERS = [f"--allow-server=http://10.0.0.{n}:8000" for n in (1, 2, 3)]


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


def test_the_command_that_runs_another_strategy_names_it(place: Place) -> None:
    run_of(place, strategy="single", members=["a"])
    place.edit(lambda result: result.update(strategies=[{"strategy": "vote", "members": ["a", "b", "c"]}]))
    export = ("export", "run", "out", "--as", "litellm", "--strategy", "vote")
    assert ": `advisor serve run --strategy vote` runs it" in place.advisor(*export, *SERVERS).err
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
        (("c",), {"strategy": "group_router", "routes": ROUTES}, "because no server runs c"),
        (("c",), {"strategy": "single", "members": ["c"]}, "c alone cannot run there, because no server runs c: "),
    ],
)
def test_what_a_program_cannot_run_is_behind_advisor_serve(
    place: Place, local: tuple[str, ...], strategy: dict[str, Any], reason: str
) -> None:
    run_of(place, local, **strategy)
    content, notes, _ = exported(place, *SERVERS)
    assert reason in notes[0]
    assert "`advisor serve run` runs it, and the model run of the file is at its address" in notes[0]
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
    place.edit(lambda result: result["provenance"]["models"]["a"]["remote"].update(key_env="AWS_SECRET"))
    line = place.refused(*export, "litellm", *SERVERS)
    assert "does not end in _API_KEY" in line
