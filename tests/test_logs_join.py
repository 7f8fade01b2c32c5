"""Joining: only the same question is the same question, and what is left out is said with counts."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from advisor.logs.join import JoinedLogs, Scoring, join_logs
from advisor.logs.sources import LogOptions
from advisor.strategies.replay import codes_of
from advisor.tasks.task import clusters_of
from ensemble.errors import InputError
from ensemble.methods.voting import vote
from tests.logs import write_lines

Row = Mapping[str, Any]


def row(
    number: int | str, *models: str, right: float = 1, question: str = "", reference: str = "r", **more: Any
) -> Row:
    """A line of a pool: the models give the reference if they are right."""
    answers = {name: [reference if right else "other", right, 10] for name in models}
    return {"id": number, "question": question or f"q{number}", "reference": reference, "models": answers, **more}


def joined(folder: Path, *logs: Sequence[Row], **options: Any) -> JoinedLogs:
    return join_logs([str(write_lines(folder / f"log{n}.jsonl", rows)) for n, rows in enumerate(logs)], **options)


def said(logs: JoinedLogs, text: str) -> bool:
    return any(text in note for note in logs.notes)


def test_answers_of_different_logs_are_joined_by_question(tmp_path: Path) -> None:
    logs = joined(tmp_path, [row(n, "a") for n in range(5)], [row(n, "b", right=0) for n in reversed(range(5))])
    assert [example.id for example in logs.examples] == ["0", "1", "2", "3", "4"]
    assert {name: profile.accuracy for name, profile in logs.profiles.items()} == {"a": 100.0, "b": 0.0}
    assert [answer.id for answer in logs.profiles["b"].answers] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("changed", [{"reference": "changed"}, {"question": "changed"}])
def test_an_id_with_another_question_or_reference_is_not_joined_and_is_counted(
    tmp_path: Path, changed: dict[str, str]
) -> None:
    first = [row(n, "a") for n in range(10)]
    second = [row(n, "b", **(changed if n == 3 else {})) for n in range(10)]
    logs = joined(tmp_path, first, second)
    assert [example.id for example in logs.examples] == [str(n) for n in range(10) if n != 3]
    assert said(logs, "1 id has another question or reference in one log than in another")


@pytest.mark.parametrize(
    ("numbers", "says"),
    [(range(5), "few (5); name a model"), (range(20, 25), "few (0); their logs may be of another evaluation")],
)
def test_a_model_that_shares_few_questions_is_left_out_and_named(tmp_path: Path, numbers: range, says: str) -> None:
    logs = joined(tmp_path, [row(n, "a", "b") for n in range(10)], [row(n, "few") for n in numbers])
    assert list(logs.profiles) == ["a", "b"]
    assert said(logs, says)


def test_records_that_name_no_evaluation_can_be_chosen_among_others(tmp_path: Path) -> None:
    rows = [row(n, "a", "b") for n in range(10)]
    assert len(joined(tmp_path, rows, options=LogOptions(evaluation="no name")).examples) == 10
    with pytest.raises(InputError, match=r"no evaluation of the logs matches; they have no name \(20\)"):
        joined(tmp_path, rows, options=LogOptions(evaluation="math"))


def test_letters_of_options_are_not_scored_without_options(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the questions of the logs have no options; give --metric exact_match"):
        joined(tmp_path, [row(n, "a", "b") for n in range(4)], scoring=Scoring("choice"))


def test_a_compressed_log_that_was_cut_off_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.xz"
    lines = "".join(f"{json.dumps(row(n, 'a', 'b', question=os.urandom(500).hex()))}\n" for n in range(300))
    path.write_bytes(lzma.compress(lines.encode())[:100_000])
    with pytest.raises(InputError, match=r"log\.jsonl\.xz: the compressed data is damaged"):
        join_logs([str(path)])


def test_a_model_that_is_named_is_kept_and_the_questions_are_those_of_all(tmp_path: Path) -> None:
    rows = [[row(n, "a", "b") for n in range(10)], [row(n, "half") for n in range(5)]]
    logs = joined(tmp_path, *rows, models=["a", "b", "half"])
    assert len(logs.examples) == 5
    assert list(logs.profiles) == ["a", "b", "half"]
    assert said(logs, "5 questions answered by all models; answers to other questions are left out: a (5), b (5)")


def test_models_without_a_common_question_are_refused_with_their_counts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no question is in the logs of all models.*a \(3\), b \(2\)"):
        joined(tmp_path, [row(n, "a") for n in range(3)], [row(n, "b") for n in range(7, 9)])


def test_a_repeated_question_counts_once_and_is_named(tmp_path: Path) -> None:
    logs = joined(tmp_path, [row(1, "a", "b"), row(1, "a", "b", right=0), row(2, "a", "b")])
    assert logs.profiles["a"].accuracy == 100.0
    assert said(logs, "a: 1 record repeats a question")
    assert said(logs, "log0.jsonl:2")


def test_globs_choose_models_and_a_wrong_one_lists_those_of_the_logs(tmp_path: Path) -> None:
    rows = [row(n, "qwen-7b", "qwen-72b", "llama") for n in range(4)]
    assert list(joined(tmp_path, rows, models=["qwen-*"]).profiles) == ["qwen-7b", "qwen-72b"]
    assert list(joined(tmp_path, rows, models=["qwen-*", "!qwen-7b"]).profiles) == ["qwen-72b"]
    with pytest.raises(InputError, match=r"!\*: no model of the logs is left; they have"):
        joined(tmp_path, rows, models=["!*"])
    for wrong in (["Qwen*"], ["llama", "Qwen*"]):
        with pytest.raises(InputError, match=r"Qwen\*: no model of the logs matches; they have .*qwen-7b \(4\)"):
            joined(tmp_path, rows, models=wrong)
    # Square brackets are no glob.
    assert list(joined(tmp_path, [row(n, "m[1]", "other") for n in range(4)], models=["m[1]"]).profiles) == ["m[1]"]


def test_a_damaged_file_in_a_folder_is_left_out_and_a_named_one_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "good.jsonl", [row(n, "a", "b") for n in range(4)])
    bad = tmp_path / "bad.csv"
    bad.write_text('id,question,score\n1,q,1\n2,"q,1\n', encoding="utf-8")
    logs = join_logs([str(tmp_path)])
    assert len(logs.examples) == 4
    assert said(logs, "not CSV")
    with pytest.raises(InputError, match="not CSV"):
        join_logs([str(tmp_path / "good.jsonl"), str(bad)])


def test_of_two_logs_with_a_model_the_one_that_is_given_first_counts(tmp_path: Path) -> None:
    first, second = [row(n, "a", right=0) for n in range(3)], [row(n, "a") for n in range(3)]
    paths = [str(write_lines(tmp_path / name, rows)) for name, rows in (("z.jsonl", first), ("b.jsonl", second))]
    assert join_logs(paths).profiles["a"].accuracy == 0.0


def test_the_split_depends_on_the_seed_and_has_every_question_once(tmp_path: Path) -> None:
    logs = joined(tmp_path, [row(n, "a") for n in range(50)])
    dev, held_out = logs.split(0)
    assert sorted(dev + held_out) == list(range(50))
    assert len(dev) == 25
    assert logs.split(0) == (dev, held_out)
    assert logs.split(1) != (dev, held_out)
    assert len(logs.split(0, 10)[0]) == 10


def test_questions_of_a_cluster_stay_on_one_side_of_the_split(tmp_path: Path) -> None:
    rows = [row(n, "a", group=f"passage {n // 5}") for n in range(50)]
    logs = joined(tmp_path, rows, options=LogOptions(cluster="group"))
    dev, held_out = logs.split(0)
    labels = logs.clusters
    assert labels is not None
    assert not {labels[n] for n in dev} & {labels[n] for n in held_out}
    assert clusters_of(logs.task("held_out", [0, 4, 7], 0)) == ("passage 0", "passage 0", "passage 1")
    assert clusters_of(joined(tmp_path, rows).task("held_out", [0, 4, 7], 0)) is None


def test_a_cluster_field_that_questions_lack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 of 3 questions have no such field"):
        joined(tmp_path, [row(0, "a", group="x"), row(1, "a"), row(2, "a")], options=LogOptions(cluster="group"))


def test_responses_that_a_log_does_not_have_cannot_be_scored_again(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--metric: a has no responses in its log"):
        joined(tmp_path, [row(n, "a") for n in range(3)], scoring=Scoring("exact_match"))


@pytest.mark.parametrize(
    ("scoring", "says"),
    [
        ({"metric": "nope"}, "--metric nope: not one of"),
        ({"metric": "pass_at_1"}, "--metric pass_at_1: not one of"),
        ({"metric": "number", "extract": "("}, r"--metric number:\(:"),
    ],
)
def test_a_scoring_that_cannot_be_used_is_refused(scoring: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Scoring(**scoring)


def test_a_task_scores_logs_without_its_data_unless_its_metric_runs_code() -> None:
    assert Scoring.of_task("gsm8k").metric == "number"
    with pytest.raises(InputError, match=r"mbpp\.yaml: its metric pass_at_1 runs code"):
        Scoring.of_task("mbpp")


@pytest.mark.parametrize("path", ["~no-such-user/log", "a" * 300, "loop"])
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(InputError, match="no such file or folder"):
        join_logs([path])


def test_long_answers_are_compared_by_digests_and_kept_as_texts(tmp_path: Path) -> None:
    call = "word " * 100
    rows = [{**row(n), "models": {"a": ["x", 0, 1], "b": [call, 1, 500], "c": [call + "\n", 1, 501]}} for n in range(4)]
    logs = joined(tmp_path, rows)
    profiles = [logs.profiles[name] for name in "abc"]
    assert vote(codes_of(profiles)).tolist() == [1] * 4
    assert profiles[1].answers[0].extracted == call


def test_answers_are_votes_if_most_are_there_and_short_or_given_by_several_models(tmp_path: Path) -> None:
    assert joined(tmp_path, [row(n, "a", "b") for n in range(4)]).can_vote
    call = "word " * 100
    for second, can_vote in ((call, True), (call.replace(" ", "\n"), True), (call + "x", False)):
        long = [{**row(n), "models": {"a": [call, 1, 500], "b": [second, 1, 500]}} for n in range(4)]
        assert joined(tmp_path, long).can_vote == can_vote
    none = [{**row(n), "models": {"a": [None, 0, 5], "b": [None, 1, 5]}} for n in range(4)]
    assert not joined(tmp_path, none).can_vote
    assert "no votes are compared" in (joined(tmp_path, none).no_vote_note or "")
