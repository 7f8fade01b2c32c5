"""``advisor export --compose``: files for Docker Compose, checked as far as that goes without Docker."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
import yaml

from advisor.cli import app

if TYPE_CHECKING:
    from pools import Place, Prepare

pytest_plugins = ["pools"]

SELECT = ("select", "--pool", "models.txt", "--task", "task.yaml", "--quiet", "--out", "run")
LENIENT = ("--max-gap", "100", "--max-length-ratio", "1e9")
EXPORT = ("export", "run", "out", "--strategy", "unite", "--compose")


@pytest.fixture
def run(place: Place, models: Path, prepare: Prepare) -> Path:
    def make() -> None:
        place.task(metric="contains", stop=["\n\n"])
        place.pool(*(str(models / name) for name in ("alpha", "beta")))
        assert place.advisor(*SELECT, *LENIENT).status == 0

    prepare("export", place, make)
    return place.folder / "run"


def composed(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((place.folder / "out" / "compose.yaml").read_text(encoding="utf-8"))
    return found


def served(command: list[str]) -> dict[str, Any]:
    """What the command line of the server's service says, by the command's own parser."""
    group = typer.main.get_command(app)
    # What Compose does to a word of a command.
    name, *arguments = [word.replace("$$", "$") for word in command]
    serve = group.get_command(group.make_context("advisor", ["lists"], resilient_parsing=True), name)  # type: ignore[attr-defined]
    params: dict[str, Any] = serve.make_context(name, arguments).params
    return params


def move(run: Path, models: Path, number: int, address: str, **options: Any) -> None:
    """Let a run's set have one of its members behind a server."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    name = result["selected"][number]
    remote = {"address": address, "tokenizer": str(models / name), **options}
    result["provenance"]["models"][name] = {"remote": remote, "chat_template": "never"}
    (run / "result.json").write_text(json.dumps(result), encoding="utf-8")


def test_local_models_are_mounted_where_the_export_names_them(place: Place, run: Path, models: Path) -> None:
    assert place.advisor(*EXPORT).status == 0
    content = composed(place)
    assert list(content["services"]) == ["advisor", "prometheus"]
    server = content["services"]["advisor"]
    mounts = {mount["source"]: mount for mount in server["volumes"] if isinstance(mount, dict)}
    out = place.folder / "out"
    members = json.loads((out / "ensemble.json").read_text(encoding="utf-8"))["members"]
    assert {str((out / member["path"]).resolve()) for member in members} | {"./ensemble.json"} == set(mounts)
    assert mounts["./ensemble.json"]["target"] == str(out / "ensemble.json")
    assert all(mount["target"] == mount["source"] for source, mount in mounts.items() if not source.startswith("."))
    assert all(mount["read_only"] for mount in mounts.values())
    said = served(server["command"])
    assert (said["run"], said["host"], said["port"], said["name"]) == (str(out), "0.0.0.0", "8000", "out")


def test_every_service_has_an_image_or_is_built_and_prometheus_reads_them_all(
    place: Place, run: Path, models: Path
) -> None:
    move(run, models, 0, "openai:http://a:8000/v1#org/alpha-7B.Instruct")
    assert place.advisor(*EXPORT).status == 0
    content = composed(place)
    assert list(content["services"]) == ["advisor", "alpha-7b-instruct", "prometheus"]
    assert all(("image" in service) != ("build" in service) for service in content["services"].values())
    volumes = [volume for service in content["services"].values() for volume in service["volumes"]]
    named = {volume.split(":")[0] for volume in volumes if isinstance(volume, str)}
    assert {name for name in named if not name.startswith(".")} == set(content["volumes"])
    scraped = yaml.safe_load((place.folder / "out" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = [target for job in scraped["scrape_configs"] for target in job["static_configs"][0]["targets"]]
    assert targets == ["advisor:8000", "alpha-7b-instruct:8000"]


def test_members_behind_vllm_have_a_service_each_and_the_set_its_addresses(
    place: Place, run: Path, models: Path
) -> None:
    move(run, models, 0, "openai:http://a:8000/v1#org/same", key_env="A_API_KEY", revision="1" * 40)
    move(run, models, 1, "openai:http://b:8000/v1#other/same", revision="our label")
    assert place.advisor(*EXPORT).status == 0
    services = composed(place)["services"]
    first, second = services["same"], services["same-2"]
    assert first["command"][0] == "org/same" and f"--revision={'1' * 40}" in first["command"]
    assert second["command"][0] == "other/same" and not any("--revision" in word for word in second["command"])
    gpus = [s["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for s in (first, second)]
    assert gpus == [["0"], ["1"]]
    saved = json.loads((place.folder / "out" / "ensemble.json").read_text(encoding="utf-8"))
    addresses = [member["server"]["address"] for member in saved["members"]]
    assert addresses == ["openai:http://same:8000/v1#org/same", "openai:http://same-2:8000/v1#other/same"]
    said = served(services["advisor"]["command"])
    assert said["allow_server"] == ["http://same:8000/v1", "http://same-2:8000/v1"]
    assert set(services["advisor"]["depends_on"]) == {"same", "same-2"}
    # The key is named in both, and written in no file.
    assert services["advisor"]["environment"]["A_API_KEY"] == first["environment"]["VLLM_API_KEY"]
    assert first["environment"]["VLLM_API_KEY"].startswith("${A_API_KEY:?")
    assert "VLLM_API_KEY" not in second["environment"]


def test_a_server_elsewhere_keeps_its_address_and_needs_consent(place: Place, run: Path, models: Path) -> None:
    move(run, models, 0, "openai:https://example.org/v1#org/large", key_env="MY_API_KEY")
    refused = place.advisor(*EXPORT)
    assert refused.status == 2 and "add --allow-server https://example.org:443" in refused.line
    consent = ("--allow-server", "https://example.org")
    assert not (place.folder / "out").exists()
    assert place.advisor(*EXPORT, *consent).status == 0
    services = composed(place)["services"]
    assert list(services) == ["advisor", "prometheus"]
    said = served(services["advisor"]["command"])
    assert said["allow_server"] == ["https://example.org/v1"]


def test_what_a_container_does_not_reach_is_refused(place: Place, run: Path, models: Path) -> None:
    move(run, models, 0, "openai:http://127.0.0.1:8000/v1#alpha")
    line = place.advisor(*EXPORT, "--allow-server", "http://127.0.0.1:8000").line
    assert "is behind 127.0.0.1, which in a container is the container itself" in line
    assert not (place.folder / "out").exists()


def test_edited_files_are_not_overwritten(place: Place, run: Path) -> None:
    assert place.advisor(*EXPORT).status == 0
    assert place.advisor(*EXPORT).status == 0
    path = place.folder / "out" / "compose.yaml"
    path.write_text("# mine\n", encoding="utf-8")
    line = place.advisor(*EXPORT).line
    assert "compose.yaml: is another file than this command writes" in line
    assert path.read_text(encoding="utf-8") == "# mine\n"


def test_consent_without_compose_is_refused(place: Place) -> None:
    line = place.advisor("export", "run", "out", "--allow-server", "http://a:8000").line
    assert "has no effect without --compose" in line


def test_a_strategy_that_asks_its_models_has_the_files_too(place: Place, run: Path) -> None:
    assert place.advisor("export", "run", "out", "--strategy", "single", "--compose").status == 0
    assert (place.folder / "out" / "strategy.json").is_file()
    assert list(composed(place)["services"]) == ["advisor", "prometheus"]
    sources = [volume["source"] for volume in composed(place)["services"]["advisor"]["volumes"][1:]]
    assert "./strategy.json" in sources


def test_the_image_does_not_run_as_root_and_has_no_secrets(place: Place, run: Path) -> None:
    assert place.advisor(*EXPORT).status == 0
    lines = (place.folder / "out" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    words = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert set(words) <= {"FROM", "COPY", "RUN", "ENV", "USER", "EXPOSE", "ENTRYPOINT"}
    assert lines.index("USER advisor") < lines.index('ENTRYPOINT ["advisor"]')
    environment = composed(place)["services"]["advisor"]["environment"]
    assert all(re.fullmatch(rf"\$\{{{name}:.*\}}", value) for name, value in environment.items())


def test_the_image_is_built_from_the_wheel_of_this_release_and_from_no_index(place: Place, run: Path) -> None:
    done = place.advisor(*EXPORT)
    assert done.status == 0
    text = (place.folder / "out" / "Dockerfile").read_text(encoding="utf-8")
    (copied,) = re.findall(r"^COPY (\S+) /tmp/$", text, re.MULTILINE)
    assert copied == f"unite_advisor-{metadata.version('unite-advisor')}-*.whl"
    assert f"put {copied} into out" in done.err
    (installed,) = re.findall(r'pip install [^"]*"([^"]+)"', text)
    assert installed == f"$(ls /tmp/{copied})[serve]"
    extras = metadata.metadata("unite-advisor").get_all("Provides-Extra") or []
    assert {"serve", "openai", "gguf"} <= set(extras)


def test_every_image_has_an_exact_version(place: Place, run: Path, models: Path) -> None:
    move(run, models, 0, "openai:http://a:8000/v1#org/alpha")
    assert place.advisor(*EXPORT).status == 0
    images = [service["image"] for service in composed(place)["services"].values() if "image" in service]
    assert len(images) == 2
    assert all(re.fullmatch(r"[\w./-]+:v\d+\.\d+\.\d+", image) for image in images)


def test_a_dollar_in_a_path_is_no_variable(place: Place, models: Path) -> None:
    place.task(metric="contains", stop=["\n\n"])
    (place.folder / "$HOME").mkdir()
    place.pool(*(str(models / name) for name in ("alpha", "beta")))
    assert place.advisor(*SELECT, *LENIENT).status == 0
    assert place.advisor("export", "run", "$HOME/out", "--strategy", "unite", "--compose").status == 0
    command = yaml.safe_load((place.folder / "$HOME/out/compose.yaml").read_text(encoding="utf-8"))["services"][
        "advisor"
    ]["command"]
    assert "$$HOME" in command[1] and served(command)["run"] == str(place.folder / "$HOME" / "out")
