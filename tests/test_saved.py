"""Saved ensembles: what is written, what is loaded of it, and what a file from anywhere may not do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import yaml
from hubserver import COMMIT, READER
from transformers import BitsAndBytesConfig

from ensemble import Ensemble
from ensemble.errors import InputError, UniteError
from ensemble.models.load import member_of, quantization_of
from ensemble.models.spec import Checkpoint, EnsembleSpec, ModelSpec
from ensemble.saved.ensemble_json import from_json, to_json
from ensemble.saved.folder import read

pytest_plugins = ["hubs", "pools"]

PROMPT = "What is 1 + 1?"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "tables"


def saved(folder: Path, *models: str | Path | Checkpoint, **options: Any) -> Ensemble:
    made = Ensemble.from_pretrained(list(models), cache_dir=folder.parent / "tables", **options)
    made.save_pretrained(folder)
    return made


def content(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "ensemble.json").read_text(encoding="utf-8"))
    return found


def metadata(card: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(card.split("---")[1])
    return found


def changed(folder: Path, place: str, value: object) -> None:
    """Set one key of a saved ensemble, ``members.0.id`` say; Ellipsis removes it."""
    values = content(folder)
    *parents, last = place.split(".")
    target: Any = values
    for key in parents:
        target = target[int(key) if key.isdigit() else key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    (folder / "ensemble.json").write_text(json.dumps(values), encoding="utf-8")


# Saving and loading


def test_what_is_loaded_is_what_was_saved(models: Path, tmp_path: Path, cache: Path) -> None:
    options: dict[str, Any] = {"weights": [3, 1], "k": 4, "dtype": "float64", "method": "safe", "sharpen": 0.2}
    first = saved(tmp_path / "saved", models / "alpha", models / "beta", **options)
    again = Ensemble.from_pretrained(tmp_path / "saved", cache_dir=cache)
    assert (again.method, again.k, again.weights, again.options) == ("safe", 4, (0.75, 0.25), {"sharpen": 0.2})
    assert [(m.name, m.model.dtype, m.chat_template) for m in again.members] == [
        (m.name, m.model.dtype, m.chat_template) for m in first.members
    ]
    assert again.generate([PROMPT], max_new_tokens=8) == first.generate([PROMPT], max_new_tokens=8)
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"ensemble.json", "README.md"}


def test_what_is_said_goes_before_what_is_saved(models: Path, tmp_path: Path, cache: Path) -> None:
    saved(tmp_path / "saved", models / "alpha", models / "beta", method="safe", sharpen=0.2, weights=[3, 1], k=4)
    load = Ensemble.from_pretrained
    said = load(str(tmp_path / "saved"), k=2, weights=[1, 3], dtype="float64", cache_dir=cache)
    assert (said.k, said.weights, said.options) == (2, (0.25, 0.75), {"sharpen": 0.2})
    assert {str(member.model.dtype) for member in said.members} == {"torch.float64"}
    # Settings are a method's own, and go with it.
    assert load(tmp_path / "saved", cache_dir=cache).weights == (0.75, 0.25)
    assert load(tmp_path / "saved", method="gac", cache_dir=cache).options == {}


def test_members_beside_the_folder_move_with_it(models: Path, tmp_path: Path, cache: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "alpha").symlink_to(models / "alpha")
    saved(here / "saved", here / "alpha", models / "beta")
    assert [member["path"] for member in content(here / "saved")["members"]] == ["../alpha", str(models / "beta")]
    here.rename(tmp_path / "there")
    again = Ensemble.from_pretrained(tmp_path / "there" / "saved", cache_dir=cache)
    assert [member.name for member in again.members] == ["alpha", "beta"]


def test_two_members_of_one_name_are_told_apart(models: Path, tmp_path: Path) -> None:
    saved(tmp_path / "saved", models / "alpha", models / "alpha")
    assert [member["name"] for member in content(tmp_path / "saved")["members"]] == ["alpha", "alpha-2"]


def test_a_quantization_is_written_down_and_read_again(tmp_path: Path) -> None:
    config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=4.0)
    part = ModelSpec(Checkpoint("org/a", COMMIT), "a", dtype="float32", chat_template="never", quantization=config)
    text = to_json(EnsembleSpec((part,)), tmp_path)
    (again,) = from_json(text, "ensemble.json", None).members
    made: Any = quantization_of(again)
    assert made.to_dict() == config.to_dict()


def test_a_member_that_came_from_nowhere_cannot_be_saved(models: Path, tmp_path: Path, cache: Path) -> None:
    member = Ensemble.from_pretrained([models / "alpha"], cache_dir=cache).members[0]
    made = Ensemble([member_of(member.model, member.tokenizer, name="made")], cache_dir=cache)
    with pytest.raises(InputError, match="made: it was made from a model in memory"):
        made.save_pretrained(tmp_path / "saved")


# What is written over


def test_a_folder_of_something_else_is_left_alone(models: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"other: is not a saved ensemble, and has config.json in it"):
        saved(tmp_path / "other", models / "alpha")
    (tmp_path / "other" / "ensemble.json").write_text('{"mine": 1}', encoding="utf-8")
    with pytest.raises(InputError, match=r"ensemble.json: is not a saved ensemble, so it is not overwritten"):
        saved(tmp_path / "other", models / "alpha")
    with pytest.raises(InputError, match=r"config.json: is a file; give a folder"):
        saved(tmp_path / "other" / "config.json", models / "alpha")
    assert (tmp_path / "other" / "ensemble.json").read_text(encoding="utf-8") == '{"mine": 1}'


def test_a_saved_ensemble_is_written_over_but_a_card_of_ones_own_is_kept(models: Path, tmp_path: Path) -> None:
    saved(tmp_path / "saved", models / "alpha", k=3)
    saved(tmp_path / "saved", models / "alpha", models / "beta", k=5)
    assert (content(tmp_path / "saved")["k"], len(content(tmp_path / "saved")["members"])) == (5, 2)
    card = tmp_path / "saved" / "README.md"
    assert "beta" in card.read_text(encoding="utf-8")
    card.write_text("# My own words\n", encoding="utf-8")
    saved(tmp_path / "saved", models / "alpha", k=7)
    assert (content(tmp_path / "saved")["k"], card.read_text(encoding="utf-8")) == (7, "# My own words\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "tables"]


# Bad input


def refused(place: str | Path, **how: Any) -> str:
    with pytest.raises(InputError) as raised:
        read(place, **how)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_place_that_is_no_saved_ensemble_is_said(models: Path, tmp_path: Path) -> None:
    assert refused(models / "alpha").endswith(
        "is a model, not a saved ensemble; give a list of models, the primary first"
    )
    assert "has no ensemble.json" in refused(models)
    assert "no such folder" in refused(tmp_path / "gone")


def test_a_local_member_that_changed_is_refused_with_a_way_out(models: Path, tmp_path: Path, cache: Path) -> None:
    shutil.copytree(models / "alpha", tmp_path / "alpha")
    saved(tmp_path / "saved", tmp_path / "alpha")
    config = tmp_path / "alpha" / "generation_config.json"
    config.write_text(config.read_text(encoding="utf-8") + " ", encoding="utf-8")
    said = refused(tmp_path / "saved")
    assert "changed since the ensemble was saved (generation_config.json differs)" in said
    assert "check_files=False" in said
    assert Ensemble.from_pretrained(tmp_path / "saved", check_files=False, cache_dir=cache).members[0].name == "alpha"
    (tmp_path / "alpha" / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert "(adapter_config.json is new)" in refused(tmp_path / "saved")
    shutil.rmtree(tmp_path / "alpha")
    assert "does not exist; correct the path" in refused(tmp_path / "saved")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("schema_version", 2, "schema_version should be 1"),
        ("schema_version", ..., "not a saved ensemble, because schema_version is missing"),
        ("hook", "os.system", "hook is not a known key"),
        ("method", "nothing", "method 'nothing': not one of"),
        ("method", "voting", "method voting: it works at response level"),
        ("k", 0, "k should be at least 1"),
        ("weights", [1], "weights should be 2 numbers"),
        ("weights", [1, -1], "weights should be null, or a list of numbers of at least 0"),
        ("weights", [0, 0], "weights should be a list with at least one number above 0"),
        ("options", {"cache_dir": "/"}, "options: method unite has no option cache_dir"),
        ("options", {"think": 1}, "options: method unite: think 1: not one of apart"),
        ("generation", {"stop": [""]}, "generation.stop[0] should be a text that is not empty"),
        ("members", [], "members should be a list of at least 1"),
        ("members.0.path", ..., "members[0] should be a member with one of id, path and server"),
        ("members.0.id", "org/a", "members[0] should be a member with one of id, path and server"),
        ("members.0.name", "a\nb", "members[0].name should be a printable name"),
        ("members.0.name", "beta", "two members have the name 'beta'"),
        ("members.0.dtype", "int8", "members[0].dtype should be one of auto, float32"),
        ("members.0.files", {"model.safetensors": "1"}, "members[0].files.model.safetensors should be a SHA-256"),
        ("members.0.files", {}, "members[0] should be a local member with the SHA-256 of each file"),
        ("members.0.revision", COMMIT, "members[0] should be a local member without revision"),
    ],
)
def test_every_key_of_a_file_is_checked(models: Path, tmp_path: Path, key: str, value: object, says: str) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    parts = [
        ModelSpec(Checkpoint(str(models / name)), name, dtype="float32", chat_template="never", files={"x": "0" * 64})
        for name in ("alpha", "beta")
    ]
    (folder / "ensemble.json").write_text(to_json(EnsembleSpec(tuple(parts)), folder), encoding="utf-8")
    changed(folder, key, value)
    said = refused(folder, check_files=False)
    assert said.startswith(str(folder / "ensemble.json"))
    assert says in said


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 10**5, '{"schema_version": 1, "k": NaN}', "\x00"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "ensemble.json").write_text(text, encoding="utf-8")
    assert refused(tmp_path).startswith(str(tmp_path / "ensemble.json"))


def test_a_file_of_no_reasonable_size_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "ensemble.json").write_text(" " * 2**21, encoding="utf-8")
    assert "2,097,152 bytes" in refused(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("revision", "main", "members[0].revision should be a commit with all 40 digits"),
        ("id", "../../secret", "members[0].id should be an id like org/name"),
        ("gguf_file", "../x.gguf", "members[0].gguf_file should be the name of a file"),
        ("trust_remote_code", True, f"its member a runs the code in org/a@{COMMIT}; read that code, and then"),
    ],
)
def test_a_member_of_the_hub_is_pinned_and_runs_no_code(tmp_path: Path, key: str, value: object, says: str) -> None:
    part = ModelSpec(Checkpoint("org/a", COMMIT), "a", dtype="float32", chat_template="never")
    (tmp_path / "ensemble.json").write_text(to_json(EnsembleSpec((part,)), tmp_path), encoding="utf-8")
    changed(tmp_path, f"members.0.{key}", value)
    assert says in refused(tmp_path)


def test_consent_to_run_code_is_the_users_own(tmp_path: Path) -> None:
    part = ModelSpec(Checkpoint("org/a", COMMIT, trust_remote_code=True), "a", dtype="float32", chat_template="never")
    (tmp_path / "ensemble.json").write_text(to_json(EnsembleSpec((part,)), tmp_path), encoding="utf-8")
    (given,) = read(tmp_path, trust_remote_code=True).members
    assert given.checkpoint.options == {"revision": COMMIT, "trust_remote_code": True}
    # Consent makes nothing run that did not ask for it.
    changed(tmp_path, "members.0.trust_remote_code", ...)
    assert not read(tmp_path, trust_remote_code=True).members[0].checkpoint.trust_remote_code


# The hub: a small one on this machine


def test_what_is_pushed_is_loaded_by_its_id(shelf: Path, tmp_path: Path, cache: Path) -> None:
    first = Ensemble.from_pretrained(["org/alpha", "org/beta"], cache_dir=cache)
    address = first.save_pretrained(tmp_path / "saved", push_to_hub="org/pair")
    assert address is not None and address.endswith(f"/org/pair/commit/{COMMIT}")
    assert {path.name for path in (shelf / "pair").iterdir()} == {".gitattributes", "ensemble.json", "README.md"}
    assert (shelf / "pair" / ".gitattributes").read_text(encoding="utf-8") == "private"
    members = content(shelf / "pair")["members"]
    assert [(member["id"], member["revision"]) for member in members] == [("org/alpha", COMMIT), ("org/beta", COMMIT)]
    card = (shelf / "pair" / "README.md").read_text(encoding="utf-8")
    assert metadata(card)["base_model"] == ["org/alpha", "org/beta"]
    for place in ("org/pair", "org/pair@main", f"org/pair@{COMMIT}"):
        again = Ensemble.from_pretrained(place, cache_dir=cache)
        assert again.generate([PROMPT], max_new_tokens=6) == first.generate([PROMPT], max_new_tokens=6)
    first.save_pretrained(tmp_path / "saved", push_to_hub="org/pair")


def test_what_was_loaded_from_the_hub_does_while_it_is_away(
    shelf: Path, tmp_path: Path, cache: Path, hub: Callable[[str], None]
) -> None:
    Ensemble.from_pretrained(["org/alpha"], cache_dir=cache).save_pretrained(tmp_path / "s", push_to_hub="org/one")
    Ensemble.from_pretrained("org/one", cache_dir=cache)
    hub("http://127.0.0.1:9")
    assert Ensemble.from_pretrained("org/one", cache_dir=cache).members[0].name == "alpha"
    assert "not downloaded before, and the hub cannot be reached" in refused("org/other")


def test_nothing_else_on_the_hub_is_written_over(shelf: Path, tmp_path: Path, cache: Path) -> None:
    made = Ensemble.from_pretrained(["org/alpha"], cache_dir=cache)
    before = sorted(path.name for path in (shelf / "beta").iterdir())
    with pytest.raises(UniteError, match="org/beta: the hub already has a model with this id and other files"):
        made.save_pretrained(tmp_path / "saved", push_to_hub="org/beta")
    assert sorted(path.name for path in (shelf / "beta").iterdir()) == before


@pytest.mark.parametrize(
    ("token", "says"),
    [
        (READER, "org/new: the hub does not allow this token to write"),
        ("hf_wrong", "org/new: the hub does not accept this token"),
    ],
)
def test_a_hub_that_refuses_is_said_in_a_line(
    shelf: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, token: str, says: str
) -> None:
    made = Ensemble.from_pretrained(["org/alpha"], cache_dir=cache)
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(UniteError) as raised:
        made.save_pretrained(tmp_path / "saved", push_to_hub="org/new")
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value) and token not in str(raised.value)


def test_a_hub_that_is_away_is_said_in_a_line(
    shelf: Path, tmp_path: Path, cache: Path, hub: Callable[[str], None]
) -> None:
    made = Ensemble.from_pretrained(["org/alpha"], cache_dir=cache)
    hub("http://127.0.0.1:9")
    with pytest.raises(UniteError, match=r"org/new: it cannot be pushed \(ConnectError: .*check the network"):
        made.save_pretrained(tmp_path / "saved", push_to_hub="org/new")
    assert huggingface_hub.constants.ENDPOINT == "http://127.0.0.1:9"


def test_an_ensemble_of_the_hub_has_no_local_member(models: Path, shelf: Path, tmp_path: Path) -> None:
    saved(shelf / "trap", models / "alpha")
    assert refused("org/trap").startswith("org/trap: ensemble.json: members[0].path: ")


def test_a_model_of_the_hub_is_no_saved_ensemble(shelf: Path) -> None:
    assert "org/alpha: it has no ensemble.json, so it is not a saved ensemble; give models as a list" in refused(
        "org/alpha"
    )
    assert "the hub has no model with this name" in refused("org/gone")
    assert "the hub has no revision v9" in refused("org/alpha@v9")
