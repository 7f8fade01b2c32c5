"""Hostile content in every field of all files: the page's markup stays the same, and nothing invisible is in it."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from report_fixture import make_evaluation, make_result, make_samples, write_evaluation, write_json

from reports import write_report
from reports.text import visible

SAMPLES = make_samples(dev=6, held_out=4)
RESULT = make_result(SAMPLES)
EVALUATION = make_evaluation(RESULT)
FIXED = {"status", "verdict", "split", "finish_reason", "level"}
"""Fields whose values are words that the report acts upon; what they may be is checked when they are read."""

NASTY = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "</style><svg onload=alert(1)>",
    "<!--",
    "]]>",
    "\"' onfocus=alert(1) autofocus x='",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1}{0}$ $",
    "\\u003c\\",
    "\u2028\u2029\x00\x1b[31m\r\n\t",
    "\u202eevil\u2066\u200e\ufeff\u00ad",
    "\ud800",
    "\ufffe\uffff\U000e0041",
    "&lt;&#60;&amp",
]


class Structure(HTMLParser):
    """Tags with their attributes' names, in order; the scripts' and styles' text; everything else as text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        # Whether a name on a map gets a line to its point is a matter of its width.
        if tag != "path":
            self.tags.append(f"{tag} {' '.join(name for name, _ in attrs)}")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""
        if tag != "path":
            self.tags.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self.inside in self.raw:
            self.raw[self.inside].append(data)

    def handle_comment(self, _data: str) -> None:
        self.tags.append("comment")


def poisoned(value: Any, poison: Callable[[str], str], key: str = "") -> Any:
    """Return the value with the poison in every string of it, names of models among them."""
    if isinstance(value, str):
        return value if key in FIXED else poison(value)
    if isinstance(value, list):
        return [poisoned(item, poison, key) for item in value]
    if isinstance(value, dict):
        by_name = key in ("responses", "models", "files", "versions", "times", "groups")
        return {poison(name) if by_name else name: poisoned(item, poison, name) for name, item in value.items()}
    return value


def page_with(folder: Path, payload: str) -> str:
    def poison(text: str) -> str:
        return f"{text[:1]}{payload}{text[1:]}"

    samples = [poisoned(sample, poison) for sample in SAMPLES]
    (folder / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    write_evaluation(folder, poisoned(EVALUATION, poison))
    return write_report(write_json(folder, poisoned(RESULT, poison))).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def harmless(folder: Path) -> Structure:
    return Structure(page_with(folder, "harmless"))


def check(page: str, harmless: Structure) -> None:
    structure = Structure(page)
    assert structure.tags == harmless.tags
    assert structure.raw["style"] == harmless.raw["style"]
    data, script = structure.raw["script"]
    assert script == harmless.raw["script"][1]
    assert not set(data) & set("<>&\u2028\u2029")
    assert len(json.loads(data)["examples"]) == len(SAMPLES)
    unseen = {char for char in page if unicodedata.category(char) in ("Cc", "Cf", "Cs")} - set("\n\t\u200c\u200d")
    assert not unseen


@pytest.mark.parametrize("payload", NASTY)
def test_what_is_known_to_be_nasty_does_not_change_the_markup(folder: Path, harmless: Structure, payload: str) -> None:
    check(page_with(folder, payload), harmless)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=st.text(st.characters(), min_size=1, max_size=40))
@example(payload="".join(NASTY))
def test_no_payload_changes_the_markup(folder: Path, harmless: Structure, payload: str) -> None:
    check(page_with(folder, payload), harmless)


@given(text=st.text(st.characters()), keep_lines=st.booleans())
def test_visible_text_has_nothing_unseen_and_stays_as_it_is(text: str, keep_lines: bool) -> None:
    shown = visible(text, keep_lines=keep_lines)
    kept = set("\u200c\u200d\n\t") if keep_lines else set("\u200c\u200d")
    assert not {char for char in shown if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - kept
    assert visible(shown, keep_lines=keep_lines) == shown
    shown.encode("utf-8")


def test_controls_and_bidi_marks_are_spelt_out() -> None:
    assert visible("a\x1b[2J\u202eb\x7f\ud800") == "a␛[2J⟨U+202E⟩b␡⟨U+D800⟩"
    assert visible("a\r\nb\tc", keep_lines=True) == "a\nb\tc"
    assert visible("नमस्ते क्\u200dष 👩\u200d🚀") == "नमस्ते क्\u200dष 👩\u200d🚀"
