"""The task file: what a good one gives, and the one line that each fault of a bad one is answered with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from advisor.tasks import Task, load_task, templates
from advisor.tasks.schema import TaskFile
from advisor.tasks.task import Score, clusters_of
from ensemble.errors import InputError
from tests import taskfiles
from tests.logs import write_lines

RECORDS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 9)]
DATA = {"dev": "dev.jsonl", "held_out": "test.jsonl"}
USUAL = {"prompt": "Question: {{question}}\nAnswer:", "metric": "number"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "dev.jsonl", RECORDS[:5])
    write_lines(tmp_path / "test.jsonl", RECORDS[5:])
    return tmp_path


def load(folder: Path, chosen: str = "", **keys: Any) -> Task:
    return taskfiles.load(folder, chosen=chosen, **{"data": DATA, **USUAL, **keys})


def refusal(folder: Path, **keys: Any) -> str:
    return taskfiles.refusal(folder, **{"data": DATA, **USUAL, **keys})


def test_a_task_of_ones_own_needs_five_keys(folder: Path) -> None:
    task = load(folder)
    assert (task.name, task.metric, task.split, task.shots, task.stop) == ("sums", "number", "dev", 0, ())
    example = task.examples[0]
    assert (example.id, example.prompt, example.reference) == ("dev-0", "Question: What is 1 + 1?\nAnswer:", "2")
    assert task.score(example, "2.0").value == 1


def test_a_reference_that_is_a_list_gives_all_accepted_texts(folder: Path) -> None:
    write_lines(folder / "dev.jsonl", [{"question": "q", "answer": ["a b", "c"]}])
    task = load(folder, metric="exact_match")
    assert task.examples[0].reference == task.examples[0].accepted == ("a b", "c")
    assert load(folder, metric="exact_match", reference=["{{answer[0]}}", "x"]).examples[0].reference == ("a b", "x")


def test_extract_names_what_reads_json_or_calls(folder: Path) -> None:
    task = load(folder, extract="json", metric="json", reference='{"a": 1}')
    assert task.score(task.examples[0], 'Here: {"a": 1.0}') == Score(1.0, '{"a":1}')
    problem = "Expecting value: line 1 column 13 (char 12)"
    assert task.score(task.examples[0], 'Here: {"a": }') == Score(0.0, None, problem)
    # The metric `tool_call` takes calls in any order; `json` compares them in theirs.
    calls = '[["f", {}], ["g", {}]]'
    for metric, right in (("tool_call", 1), ("json", 0)):
        task = load(folder, extract="tool_call", metric=metric, reference=calls)
        assert task.score(task.examples[0], '<tool_call>{"name": "g"}</tool_call><tool_call>{"f": {}}').value == right


def test_a_metric_of_json_says_why_there_is_no_answer_without_extract_too(folder: Path) -> None:
    for metric in ("json", "json_fields", "tool_call"):
        task = load(folder, metric=metric, reference="[]")
        assert task.score(task.examples[0], "[1").problem == "Expecting ',' delimiter: line 1 column 3 (char 2)"


def test_extract_is_applied_before_the_metric_and_no_match_is_wrong(folder: Path) -> None:
    task = load(folder, extract="answer is (-?[0-9]+)")
    assert task.score(task.examples[0], "The answer is 2. Not 3.").value == 1
    missed = task.score(task.examples[0], "2")
    assert (missed.value, missed.extracted) == (0, None)


def test_decimal_commas_hold_for_references_extraction_and_responses(folder: Path) -> None:
    write_lines(folder / "dev.jsonl", [{"question": "q", "answer": "1.362,50"}])
    task = load(folder, decimal=",", extract="sind ([0-9.,]+)")
    assert task.metric == "number_comma"
    score = task.score(task.examples[0], "Das sind 1362,5 Euro.")
    assert (score.value, score.extracted) == (1, "1362,5")


def test_the_last_number_counts_and_punctuation_does_not_where_the_task_says_so(folder: Path) -> None:
    write_lines(folder / "dev.jsonl", [{"question": "q", "answer": "2"}])
    task = load(folder, extract="last_number")
    texts = ("#### 18 in 2 steps", "1, 2.0", "1-2", "none", "18 - -2", "$12")
    assert [task.score(task.examples[0], text).extracted for text in texts] == ["2", "2", "2", None, "-2", "12"]
    squad = load(folder, metric="exact_match", normalise="squad", reference="spider-man")
    assert squad.metric == "exact_match_squad"
    assert squad.score(squad.examples[0], "the Spiderman!").value == 1


@pytest.mark.parametrize("name", ["id", "ID", "Id"])
def test_the_field_id_is_known_in_any_case(folder: Path, name: str) -> None:
    write_lines(folder / "dev.jsonl", [{name: "x7", "question": "q", "answer": "1"}])
    assert load(folder).examples[0].id == "x7"


def test_choices_are_rendered_and_empty_ones_at_the_end_dropped(folder: Path) -> None:
    record = {"question": "q", "A": "x", "B": "y", "C": "", "answer": "B"}
    write_lines(folder / "dev.jsonl", [record, {**record, "question": "r", "A": ""}])
    task = load(folder, metric="choice", choices=["{{A}}", "{{B}}", "{{C}}"])
    assert [example.choices for example in task.examples] == [("x", "y")]
    assert task.score(task.examples[0], " y").value == 1
    assert "1 of 2 records left out" in task.notes[0]
    assert "dev.jsonl:2" in task.notes[0]


def test_shots_are_prompt_space_response_joined_by_blank_lines(folder: Path) -> None:
    task = load(folder, shots=2, shot_response="It is {{answer}}.", instructions="Add.")
    start, first, second, question = task.examples[0].prompt.split("\n\n")
    assert start == "Add."
    assert first.startswith("Question: ")
    assert "\nAnswer: It is " in first
    assert first.endswith(".")
    assert second != first
    assert question == task.examples[0].question
    assert all(example.prompt == example.prefix + example.question for example in task.examples)


def test_the_response_of_a_shot_is_the_reference_unless_said_otherwise(folder: Path) -> None:
    assert "Answer: 10\n\n" in load(folder, shots=5, options={"split": "held_out"}).examples[0].prefix


def test_shots_by_group_are_of_the_questions_group(folder: Path) -> None:
    records = [{"question": f"{group}{n}", "answer": str(n), "part": group} for group in "xy" for n in range(6)]
    write_lines(folder / "dev.jsonl", records)
    task = load(folder, shots=2, shots_by_group=True, group="{{part}}", instructions="Add {{part}}.")
    assert len(task.examples) == 8
    for example in task.examples:
        first, *shots, _ = example.prefix.split("\n\n")
        assert first == f"Add {example.group}."
        assert [shot.count(f"Question: {example.group}") for shot in shots] == [1, 1]


def test_a_group_with_too_few_demonstrations_is_named(folder: Path) -> None:
    write_lines(folder / "dev.jsonl", [{"question": "a", "answer": "1", "part": "x"}] * 2)
    with pytest.raises(InputError, match="has only 1 different questions of x; give fewer"):
        load(folder, shots=3, shots_by_group=True, group="{{part}}")


FORMS = {"long": {"prompt": "Say: {{question}}"}, "short": {"shots": 1}}


def test_a_form_changes_its_keys_and_the_first_is_the_default(folder: Path) -> None:
    first, long, short = (load(folder, suffix, forms=FORMS) for suffix in ("", ":long", ":short"))
    assert first.examples == long.examples
    assert first.examples[0].prompt.startswith("Say: ")
    assert short.examples[0].prefix.startswith("Question: ")
    assert [task.name for task in (first, long, short)] == [first.name, f"{first.name}:long", f"{first.name}:short"]


def test_a_form_may_follow_a_variant(folder: Path) -> None:
    task = load(folder, ":b:short", forms=FORMS, variant="a", prompt="{{variant}} {{question}}")
    assert task.examples[0].question.startswith("b ")
    assert task.shots == 1


@pytest.mark.parametrize(
    ("chosen", "keys", "message"),
    [
        (":tall", {"forms": FORMS}, r":long, .*:short"),
        (":b:tall", {"forms": FORMS, "variant": "a"}, "forms has no tall; use one of long, short"),
        ("", {"forms": {"long": {"data": {"dev": "x.jsonl"}}}}, r"forms\.long\.data is not a known key"),
        ("", {"metric": "choice", "choices": ["x", "y"], "scoring": "sum"}, "scoring"),
    ],
)
def test_a_form_that_is_not_known_or_cannot_be_is_refused(
    folder: Path, chosen: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load(folder, chosen, **keys)


def test_letters_and_texts_are_what_is_scored(folder: Path) -> None:
    write_lines(folder / "dev.jsonl", [{"question": "q", "answer": "B"}])
    texts, letters, normalised = (
        load(folder, metric="choice", choices=["longer", "so"], scoring=scoring)
        for scoring in ("texts", "letters", "normalised")
    )
    example = texts.examples[0]
    assert texts.continuations(example) == normalised.continuations(example) == [" longer", " so"]
    assert letters.continuations(example) == [" A", " B"]
    # -3 / 6 characters is more than -2 / 2.
    assert [task.likeliest(example, [-3.0, -2.0]) for task in (texts, letters, normalised)] == ["so", "so", "longer"]


@pytest.mark.parametrize("cluster", ["passage.id", "{{passage.id}}", "{{ passage['id'] }}"])
def test_a_cluster_is_a_field_or_a_template(folder: Path, cluster: str) -> None:
    write_lines(folder / "dev.jsonl", [{**record, "passage": {"id": 7}} for record in RECORDS])
    task = load(folder, cluster=cluster)
    assert {example.cluster for example in task.examples} == {"7"}


def test_a_cluster_that_a_record_lacks_is_refused(folder: Path) -> None:
    assert "dev.jsonl:1" in refusal(folder, cluster="passage_id")
    write_lines(folder / "dev.jsonl", [{**RECORDS[0], "passage_id": " "}])
    assert re.search(r"dev\.jsonl:1: the cluster is blank; ", refusal(folder, cluster="passage_id"))


def test_without_a_label_a_question_is_a_cluster_alone(folder: Path) -> None:
    # Two tasks that are tested together need not both have clusters.
    alone = load(folder)
    write_lines(folder / "dev.jsonl", [{**record, "part": "x"} for record in RECORDS])
    together = load(folder, cluster="part")
    labels = clusters_of(alone, together)
    assert labels is not None
    assert len(labels) == len(alone.examples) + len(together.examples)
    assert len(set(labels)) == len(alone.examples) + 1


def test_the_cluster_changes_the_fingerprint_and_no_prompt(folder: Path) -> None:
    plain, clustered = load(folder), load(folder, cluster="question")
    assert plain.fingerprint != clustered.fingerprint
    assert plain.signature == clustered.signature
    assert [each.prompt for each in plain.examples] == [each.prompt for each in clustered.examples]


def test_the_fingerprint_follows_the_content_and_not_the_layout(folder: Path) -> None:
    fingerprint = load(folder).fingerprint
    text = (folder / "sums.yaml").read_text(encoding="utf-8")
    (folder / "sums.yaml").write_text(f"# a comment\n{text}", encoding="utf-8")
    assert load_task(folder / "sums.yaml").fingerprint == fingerprint
    assert load(folder, max_new_tokens=7).fingerprint != fingerprint
    assert load(folder, options={"split": "held_out"}).fingerprint != fingerprint
    write_lines(folder / "dev.jsonl", RECORDS[:4])
    assert load(folder).fingerprint != fingerprint


def test_the_signature_says_how_a_number_came_about(folder: Path) -> None:
    signature = load(folder, options={"shots": 1, "seed": 3, "limit": 2}).signature
    assert str(signature).startswith("task:sums|metric:number|split:dev|n:2|shots:1|seed:3|prompt:")
    assert "|rules:2|unite-advisor:" in str(signature)
    assert "|sacrebleu:" in str(load(folder, metric="bleu").signature)


def test_the_prompt_hash_changes_with_prompt_and_shots_only(folder: Path) -> None:
    plain = load(folder).prompt_digest
    assert load(folder, options={"limit": 1}).prompt_digest == plain
    assert load(folder, prompt="{{question}}").prompt_digest != plain
    assert load(folder, options={"shots": 1}).prompt_digest != plain


@pytest.mark.parametrize("key", ["name", "data", "prompt", "reference", "metric"])
def test_a_missing_key_is_named(folder: Path, key: str) -> None:
    assert f"sums.yaml: {key} is missing" in refusal(folder, without=key)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"promt": "x"}, "sums.yaml: promt is not a known key"),
        ({"data": {"dev": "dev.jsonl"}}, "sums.yaml: data.held_out is missing"),
        ({"data": ["dev.jsonl"]}, "data should be an object"),
        ({"name": 3}, "name should be text"),
        ({"prompt": " "}, "prompt should be text that is not blank"),
        ({"prompt": "{{question"}, "the template under prompt is broken"),
        ({"reference": []}, "reference should be a text or a list of texts, none of them empty"),
        ({"metric": "accuracy"}, "metric 'accuracy' is not known; choose among bleu, choice, chrf"),
        ({"metric": "choice"}, "choices and `metric: choice` go together"),
        ({"metric": "contains", "decimal": ","}, "sums.yaml: decimal goes with `metric: number`; leave it out"),
        ({"metric": "contains", "extract": "last_number"}, "extract: last_number goes with `metric: number`; leave it"),
        ({"metric": "contains", "normalise": "squad"}, "normalise goes with `metric: exact_match`; leave it out"),
        ({"decimal": ";"}, "sums.yaml: decimal should be . or ,"),
        ({"extract": "answer is ("}, "sums.yaml: extract is not a regular expression that can be used: "),
        ({"stop": [""]}, "stop should be a text or a list of texts"),
        ({"max_new_tokens": 0}, "max_new_tokens should be a whole number from 1 to"),
        ({"shots": 10**12}, "shots should be a whole number from 0 to 1,000,000,000"),
        ({"metric": "x" * 5000}, "metric 'xxx"),
    ],
)
def test_a_wrong_key_is_named_with_the_file(folder: Path, keys: dict[str, Any], message: str) -> None:
    assert message in refusal(folder, **keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nprompt: {{question}}\n", "sums.yaml:2: not valid YAML: found unhashable key; quote text"),
        ("name: a\n  prompt: b\n", "sums.yaml:2: not valid YAML"),
        ("name: a\nname: b\n", "the key name is given twice"),
        ("name: &a b\nprompt: *a\n", "sums.yaml:2: not valid YAML: aliases"),
        ("- name\n", "must hold keys with values"),
        ("", "must hold keys with values"),
        ("prompt: \x00", "not valid YAML"),
        ("a: " + "[" * 1200, "not valid YAML"),
        ("name: !!int ''\n", "not valid YAML"),
        (f"name: 0x{'F' * 6000}\n", "prompt is missing"),
        ("#" * 300_000, "larger than 256 kB"),
        (
            'name: "\\ud800"\ndata: {}\nprompt: a\nreference: b\nmetric: number\n',
            "text without halves of surrogate pairs",
        ),
    ],
)
def test_a_broken_file_is_refused_with_its_line(folder: Path, text: str, message: str) -> None:
    (folder / "sums.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"sums\.yaml") as caught:
        load_task(folder / "sums.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_field_that_no_record_has_is_named_with_the_line(folder: Path) -> None:
    message = refusal(folder, prompt="{{quesiton}}")
    assert "the template under prompt names the field 'quesiton'" in message
    assert "dev.jsonl:1 has only question, answer" in message
    assert "under reference names the field 'anser'" in refusal(folder, reference="{{anser}}")


def test_a_null_is_never_rendered_as_text(folder: Path) -> None:
    write_lines(folder / "dev.jsonl", [{"question": None, "answer": "1"}])
    assert "needs the field 'question', which is null in" in refusal(folder)


@pytest.mark.parametrize(
    "template",
    [
        "{{question.__class__.__mro__}}", "{{question.missing}}", "{{1 / 0}}", "{% include 'x' %}",
        "{% for i in range(10**9) %}{% endfor %}", "{{question | round}}", "{{[].append(1)}}", "{{answer[9].x}}",
    ],
)  # fmt: skip
def test_a_template_that_fails_or_reaches_out_of_the_sandbox_is_the_users_error(folder: Path, template: str) -> None:
    for key in ("prompt", "reference"):
        assert f"the template under {key} fails on" in refusal(folder, **{key: template})


def test_a_reference_that_the_metric_cannot_use_is_named_with_its_line(folder: Path) -> None:
    write_lines(folder / "dev.jsonl", [{"question": "q", "answer": "seven"}])
    assert "dev.jsonl:1: the reference 'seven' is not a number" in refusal(folder)
    write_lines(folder / "dev.jsonl", [{"question": "q", "answer": "E"}])
    assert "dev.jsonl:1: the reference 'E' is neither" in refusal(folder, metric="choice", choices=["x", "y"])
    write_lines(folder / "dev.jsonl", [{"question": "q", "answer": ""}])
    assert "dev.jsonl:1: the reference is empty" in refusal(folder)
    write_lines(folder / "dev.jsonl", [{"question": "q", "answer": []}])
    assert "dev.jsonl:1: the reference is empty" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm9k", "there is no task 'gsm9k'; did you mean gsm8k? `advisor tasks` lists them"),
        ("qqqqqq", "there is no task 'qqqqqq'; `advisor tasks` lists them"),
        ("nowhere/sums.yaml", "there is no task file nowhere/sums.yaml"),
        ("", "there is no task ''"),
        ("a" * 5000, "there is no task 'aaa"),
        ("a" * 5000 + ".yaml", "there is no task file aaa"),
        ("word_problems:easy", "variant is missing, so there is no word_problems:easy"),
    ],
)
def test_an_unknown_task_is_answered_with_the_way_to_the_right_one(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_task(name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "--limit 0: give at least 1"),
        ({"shots": -1}, "--shots -1: give at least 0"),
        ({"shots": 6}, "--shots 6: the split 'dev' has only 5 different questions"),
        ({"shots": 5}, "the split 'dev' has nothing but shots"),
        ({"split": "train"}, "there is no split 'train'; choose among dev, held_out"),
    ],
)
def test_arguments_out_of_range_are_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    assert message in refusal(folder, options=options)


BOMBS = [
    "{{'a' * 3000000000}}",
    "{{10 ** (10 ** 9)}}",
    "{{lipsum(n=10**7)}}",
    "{{question" + " | join('----------------')" * 12 + "}}",
    "{{'%03000000000d' | format(1)}}",
    "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "{% set a = question %}" + "{% set a = a ~ a %}" * 40 + "{{a}}",
    "{% macro m() %}{{m()}}{{m()}}{% endmacro %}{{m()}}",
]


@pytest.mark.parametrize("template", BOMBS)
def test_a_template_that_wastes_time_or_memory_ends_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.2)
    assert re.search(
        r"the template under prompt (is broken|fails on .*dev\.jsonl:1): ", refusal(folder, prompt=template)
    )


def test_a_template_that_is_slow_on_every_record_ends_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "_HONEST_SECONDS", -1.0)  # each record counts as one second more than it takes
    write_lines(folder / "dev.jsonl", RECORDS * 100)
    message = refusal(folder, prompt="{% for i in range(9) %}{{question}}{% endfor %}")
    assert re.search(r"under prompt fails on .*dev\.jsonl:\d: it takes more than \d+ s of processor time", message)


def test_the_length_of_a_text_is_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "LONGEST", 1000)
    assert "dev.jsonl:1: the text has more than 1,000 characters" in refusal(folder, prompt="{{question}}" * 100)


def test_the_length_of_all_texts_together_is_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "LONGEST_TOGETHER", 100)
    assert "all its texts together have more than 100 characters" in refusal(folder, prompt="{{question}}" * 3)


@pytest.mark.parametrize("pattern", ["((((a{100}){100}){100}){100})", "(" * 5000, "a{4294967296}"])
def test_a_pattern_that_wastes_time_or_memory_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    assert "extract is not a regular expression that can be used: " in refusal(folder, extract=pattern)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{question}} {{extra.list[1]}} {{extra['a b']}}", "What is 1 + 1? 2 3.5"),
        ("{% for n in extra.list %}{{loop.index}}:{{n}} {% endfor %}", "1:1 2:2 "),
        ("{{question.split(' ')[0] | upper}}{{extra.none is none}}", "WHATTrue"),
        ("{% set a = extra.list + [3] %}{{a | join('-')}}", "1-2-3"),
        (
            "{{extra.list | join('-')}} {{extra.missing | default('x')}} {{question | replace(' ', '')}}",
            "1-2 x Whatis1+1?",
        ),
        ("{% raw %}{{x}}{% endraw %}\n", "{{x}}\n"),
        ("{{extra.true}} {{extra.list}} {{extra.text}}", "True [1, 2] \u00e9\U0001f600"),
    ],
)
def test_a_template_gives_the_same_text_in_either_process(folder: Path, template: str, text: str) -> None:
    extra = {"list": [1, 2], "a b": 3.5, "none": None, "true": True, "text": "\u00e9\U0001f600"}
    write_lines(folder / "dev.jsonl", [{**RECORDS[0], "extra": extra}])
    assert load(folder, prompt=template).examples[0].prompt == text


def test_the_documentation_describes_every_key() -> None:
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "own-task.md").read_text(encoding="utf-8")
    for key in TaskFile.model_fields:
        assert f"`{key}`" in page or f"{key}:" in page
