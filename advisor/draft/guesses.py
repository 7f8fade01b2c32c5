"""What the columns of some data probably mean: the question, the reference, the options, the metric, and why.

A guess is a few keys of a task file, each with its reason. Names decide first, then values; what the user gives decides
before both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from advisor.draft.columns import Columns
from advisor.draft.open_ended import id_of, judge_of, reference_of
from advisor.tasks.metrics import get_metric, metric_names
from advisor.tasks.task import JUDGE
from ensemble.errors import InputError

_QUESTIONS = (
    *("question", "question_text", "query", "problem", "goal", "instruction", "input", "prompt"),
    *("text", "sentence", "turns", "frage", "pregunta"),
)
_REFERENCES = (
    *("reference", "target", "gold", "expected", "expected_answer", "ground_truth", "correct_answer", "correct_option"),
    *("correct", "answers", "answer", "answer_key", "label", "labels", "output", "response", "solution", "completion"),
    *("final_answer", "gold_answer", "ideal_answer", "model_answer", "reference_answer", "right_answer"),
    *("expected_output", "expected_result", "right_result", "correct_result", "result", "ideal", "truth"),
    *("antwort", "lösung", "respuesta", "réponse", "reponse"),
)
_OPTIONS = ("options", "choices", "candidates", "endings", "alternatives", "mc_options")
_SEPARATORS = (" | ", "|", "; ", ";", ", ", ",")
_CONTEXTS = ("context", "passage", "article", "story", "document", "paragraph")
_GROUPS = ("group", "category", "subject", "topic", "domain", "subset", "level", "difficulty", "language")
_CLUSTERS = ("passage_id", "context_id", "document_id", "story_id", "article_id", "conversation_id", "cluster")
_SOLUTIONS = ("code", "canonical_solution")
_NUMBERED = re.compile(r"(?i)(option|opt|choice|opt_|op|ans|answer|sol|solution|ending|alternative)?[ _]?([a-j]|\d)")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTER = re.compile(r"[^\W\d_]")
_LONG, _FEW_LABELS = 12, 20
"""Words from which a reference is a text and no short answer; the most labels of a classification."""
# How references of worked solutions end; the part after it is the answer.
_MARKS = ("####", "answer is", "Answer:", "answer:")


@dataclass(slots=True)
class Guess:
    """Keys of a task file, in their order, and why each is what it is.

    Attributes:
        keys: The values by key.
        why: The reason by key; keys without one need none.
        question: The column of the question.
        reference: The column of the reference; None for programs and for what a judge grades.
        options: The columns of the options, or one column with lists; empty for tasks without options.
    """

    keys: dict[str, object] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    question: str = ""
    reference: str | None = None
    options: tuple[str, ...] = ()

    def add(self, key: str, value: object, why: str = "") -> None:
        """Set a key and its reason."""
        self.keys[key] = value
        if why:
            self.why[key] = why


@dataclass(frozen=True, slots=True)
class Given:
    """What the user decides; None for what is guessed.

    Attributes:
        question: A column.
        reference: A column.
        choices: Columns of the options, or one with lists; empty for a task without options.
        metric: The name of a metric.
    """

    question: str | None = None
    reference: str | None = None
    choices: tuple[str, ...] | None = None
    metric: str | None = None


def guess(columns: Columns, given: Given, *, is_of_parts: bool = False) -> Guess:
    """Guess the keys of a task file from its columns.

    Args:
        columns: The data.
        given: What the user decides.
        is_of_parts: Whether the name of a record's file says what the question is about.

    Raises:
        InputError: A given column does not exist, or no column can be the question or the reference.
    """
    if given.metric is not None and given.metric not in metric_names():
        raise InputError(f"--metric {given.metric}: choose among {', '.join(metric_names())}")
    found = Guess()
    # First, because columns of tests would pass for references.
    tests = _tests(columns) if given.reference is None and given.metric in (None, "pass_at_1") else ()
    options, why_options = _options(columns, given)
    if given.metric == "choice" and not options:
        raise InputError(f"--metric choice needs options; give --choices with some of {columns.listed()}")
    found.question, why = _question(columns, given, taken={*options, *tests})
    found.why["prompt"] = why
    if tests:
        _program(found, columns, tests)
    elif reason := _is_open(columns, given, found.question, options):
        _judged(found, columns, given, reason)
    else:
        found.reference, why = _reference(columns, given, taken={found.question, *options})
        right = _choice_reference(columns, found.reference, options)
        is_choice = right is not None and given.metric in (None, "choice")
        if options and not is_choice and (given.choices or given.metric == "choice"):
            raise InputError(
                f"the values of {found.reference} are no option's text, letter or number of {', '.join(options)}; "
                "give --reference with the right column, or --choices none"
            )
        if is_choice and right is not None:
            found.options = options
            _choice(found, columns, right, why, why_options)
        else:
            if options:
                found.why["prompt"] += f"; {', '.join(options)} are no options of {found.reference}"
            _text(found, columns, given.metric, why)
    _parts(found, columns, is_of_parts=is_of_parts)
    return found


def _question(columns: Columns, given: Given, taken: set[str]) -> tuple[str, str]:
    if given.question is not None:
        return columns.named(given.question), "the question is the column that was given"
    taken = taken | ({columns.named(given.reference)} if given.reference else set())
    name = columns.usual(_QUESTIONS, taken)
    if name is not None:
        return name, f"{name} is the question, by its name"
    texts = [other for other in columns.values if other not in taken and _can_be_question(columns, other)]
    # A sort keeps the order of equal ones, so the first of two columns is taken.
    texts.sort(key=columns.words, reverse=True)
    if not texts:
        raise InputError(f"no column looks like a question; give --question with one of {columns.listed()}")
    return texts[0], f"{texts[0]} is the question, because no other column has such long texts"


def _can_be_question(columns: Columns, name: str) -> bool:
    # Questions differ from record to record, and are more than a word.
    if name.lower() in (*_REFERENCES, *_GROUPS, *_CLUSTERS) or name.lower().endswith("id") or "url" in name.lower():
        return False
    return not columns.is_list(name) and columns.words(name) >= 2 and columns.distinct(name) > columns.count / 2


def _reference(columns: Columns, given: Given, taken: set[str]) -> tuple[str, str]:
    if given.reference is not None:
        return columns.named(given.reference), "the column that was given"
    name = columns.usual(_REFERENCES, taken)
    if name is not None:
        return name, "by its name"
    # A key of an object: answers.text of SQuAD, answer.aliases of TriviaQA.
    for root in _REFERENCES:
        for key in ("text", "aliases", "value"):
            if f"{root}.{key}" in columns.values and columns.filled(f"{root}.{key}"):
                return f"{root}.{key}", "by its name"
    left = _left(columns, taken)
    if len(left) == 1:
        return left[0], "because no other column is left"
    raise InputError(
        f"no column looks like the reference, the right answer; give --reference with one of {columns.listed()}, or "
        "--metric judge if no answer is right or wrong"
    )


def _left(columns: Columns, taken: set[str]) -> list[str]:
    """The columns that no name explains and that have values."""
    known = (*_GROUPS, *_CLUSTERS, *_CONTEXTS, *_OPTIONS, "idx", "index", "url", "split", "source", "comment", "notes")
    return [
        name
        for name in columns.values
        if name not in taken and name.lower() not in known and not name.lower().endswith("id") and columns.filled(name)
    ]


def _is_open(columns: Columns, given: Given, question: str, options: Sequence[str]) -> str:
    """Why no answer is right or wrong; empty if one may be."""
    if given.metric is not None or given.reference is not None or options:
        return "the metric that was given" if given.metric == JUDGE else ""
    reference = columns.usual(_REFERENCES, (question,))
    if columns.is_list(question) and (reference is None or columns.filled(reference) < 1):
        return "the questions have several turns, and not all have a reference: a judge grades the answers"
    if reference is None and not _left(columns, {question}):
        return "no column has right answers: a judge grades the answers"
    return ""


def _judged(found: Guess, columns: Columns, given: Given, why: str) -> None:
    """The keys of a task whose answers a judge grades."""
    question = found.question
    reference = columns.named(given.reference) if given.reference else columns.usual(_REFERENCES, (question,))
    has_turns = columns.is_list(question)
    if ids := id_of(columns, question):
        found.add("id", ids, f"{ids} is different in each record")
    found.add("prompt", f"{{{{{question}[0]}}}}" if has_turns else _with_context(found, columns))
    if has_turns:
        found.add("follow_ups", f"{{{{{question}[1:]}}}}", "the other turns are asked after the model's answer")
    if reference is not None:
        some = f"{reference} is shown to the judge where a question has it"
        found.add("reference", reference_of(columns, question, reference), some)
    found.add("metric", JUDGE, f"{why}; --judge names the model")
    found.add("max_new_tokens", 1024)
    found.add("judge", judge_of(has_reference=reference is not None), "one grade for each answer; change the prompt")


def _options(columns: Columns, given: Given) -> tuple[tuple[str, ...], str]:
    """The columns of the options, or one column with lists of them, and why."""
    if given.choices is not None:
        chosen = tuple(columns.named(name) for name in given.choices)
        if len(chosen) == 1:
            chosen = (_as_list(columns, chosen[0]) or chosen[0],)
        return chosen, "the columns that were given"
    if given.metric not in (None, "choice"):
        return (), ""
    for name in (*_OPTIONS, *(f"{root}.text" for root in _OPTIONS)):
        found = columns.usual((name,))
        parts = None if found is None else _as_list(columns, found)
        if parts is not None:
            return (parts,), f"{found} has the lists of options, by its name"
    # Columns such as A, B, C or option1, option2: their common beginning makes them a series.
    series: dict[str, dict[str, str]] = {}
    for name in columns.values:
        match = _NUMBERED.fullmatch(name)
        if match is not None:
            series.setdefault((match[1] or "").lower(), {})[match[2].upper()] = name
    for members in series.values():
        for alphabet in (_LETTERS, "123456789", "0123456789"):
            names = []
            for mark in alphabet:
                if mark not in members:
                    break
                names.append(members[mark])
            # All of them: a gap means that the letters are something else.
            if len(names) >= 2 and len(names) == len(members):
                return tuple(names), f"{', '.join(names)} are the options, by their names"
    return (), ""


def _as_list(columns: Columns, name: str) -> str | None:
    """The expression of a column's lists: the column, or its texts split at a separator; None if it has no lists."""
    if columns.is_list(name):
        return name
    # A cell of a table has its list as one text, which templates can split.
    texts = [items[0] if items else "" for items in columns.texts(name)]
    for mark in _SEPARATORS:
        lists = [text.split(mark) for text in texts]
        if all(len(parts) > 1 and all(parts) for parts in lists):
            return columns.add(f"{name}.split({mark!r})", lists)
    return None


def _choice_reference(columns: Columns, reference: str, options: Sequence[str]) -> tuple[str, str] | None:
    """The template of the right option, and what to score; None if the values of the reference are no options."""
    if not options:
        return None
    records = range(columns.count)
    lists = [_trimmed([columns.values[name][number] for name in options]) for number in records]
    texts = columns.texts(reference)
    # A common conversion of ARC has records whose options are empty; tasks leave them out.
    pairs = [(texts[n][0].strip(), lists[n]) for n in records if texts[n] and len(lists[n]) > 1 and all(lists[n])]
    if not pairs:
        return None
    # ARC on the hub: {"text": [...], "label": ["A", ...] or ["1", ...]}
    labels = f"{options[0].removesuffix('.text')}.label"
    if labels in columns.values:
        return f"{{{{'{_LETTERS}'[{labels}.index({reference})]}}}}", "letters"
    plain = f"{{{{{reference}}}}}"
    forms: list[tuple[str, str, Callable[[str, list[str]], bool]]] = [
        (plain, "normalised", lambda text, choices: text in [choice.strip() for choice in choices]),
        (plain, "letters", lambda text, choices: text.strip("().").upper() in list(_LETTERS[: len(choices)])),
        (f"{{{{'{_LETTERS}'[{reference} | int]}}}}", "letters", lambda text, choices: _is_index(text, 0, choices)),
        # Numbers from 1: a blank in front of A shifts the letters.
        (f"{{{{' {_LETTERS}'[{reference} | int]}}}}", "letters", lambda text, choices: _is_index(text, 1, choices)),
    ]
    shares = [sum(fits(text, choices) for text, choices in pairs) / len(pairs) for _, _, fits in forms]
    expression, scoring, _ = forms[shares.index(max(shares))]  # the first of equal ones
    # Not all: a wrong record gets an error with its row, and one of a thousand must not change the metric.
    return (expression, scoring) if max(shares) >= 0.9 else None


def _is_index(text: str, first: int, choices: Sequence[str]) -> bool:
    return text.isdecimal() and 0 <= int(text[:9]) - first < len(choices)


def _trimmed(cells: Sequence[object]) -> list[str]:
    items = cells[0] if len(cells) == 1 and isinstance(cells[0], (list, tuple)) else cells
    texts = ["" if item is None else str(item) for item in items]
    # A question with three options can be in a file of four columns.
    while texts and not texts[-1].strip():
        texts.pop()
    return texts


def _choice(found: Guess, columns: Columns, right: tuple[str, str], why: str, why_options: str) -> None:
    """The keys of a task whose options are scored by their likelihood."""
    expression, scoring = right
    options = found.options
    is_list = len(options) == 1
    question = _with_context(found, columns)
    found.add("prompt", f"{question}\n{{{{_options | join('\\n')}}}}\nAnswer:")
    found.add("choices", f"{{{{{options[0]}}}}}" if is_list else [f"{{{{{name}}}}}" for name in options], why_options)
    found.add("reference", expression, f"{found.reference} is the reference, {why}")
    found.add("metric", "choice", "the likelihood of the options decides; nothing is generated")
    reasons = {
        "letters": "the prompt lists the options and the reference names one: letters are scored",
        "normalised": "the reference is an option's text: texts are scored, by character",
    }
    found.add("scoring", scoring, reasons[scoring])


def _tests(columns: Columns) -> tuple[str, ...]:
    """The columns of a program's tests, and of what the tests need."""
    for name in columns.values:
        first = next((texts[0] for texts in columns.texts(name) if texts), "")
        if columns.is_list(name) and first.lstrip().startswith("assert "):
            setup = [other for other in ("test_imports", "test_setup_code") if other in columns.values]
            return (*setup, name)
    return ("test", "entry_point") if {"test", "entry_point"} <= columns.values.keys() else ()


def _program(found: Guess, columns: Columns, tests: Sequence[str]) -> None:
    question = f"{{{{{found.question}}}}}"
    solution = columns.usual(_SOLUTIONS, (found.question,))
    # HumanEval's tests are a function that gets the program; those of MBPP are assertions.
    if "entry_point" in tests:
        found.add("prompt", f"Complete this Python function. Write the whole function.\n\n{question}\n[BEGIN]\n")
        found.add("reference", "{{test}}\ncheck({{entry_point}})", "the tests are Python code")
        solution = f"{question}{{{{{solution}}}}}" if solution else None
    else:
        shown = f"{{{{{tests[-1]} | join('\\n')}}}}"
        task = f"Write Python code for this task: {question}\nIt must pass these tests:\n{shown}"
        found.add("prompt", f"{task}\n[BEGIN]\n")
        found.add("reference", [f"{{{{{name}}}}}" for name in tests], f"{tests[-1]} has tests in Python code")
        solution = f"{{{{{solution}}}}}" if solution else None
    if solution:
        found.add("shot_response", f"{solution}\n[DONE]")
    found.add("metric", "pass_at_1", "programs must pass the tests; this needs --allow-code-execution")
    found.add("stop", ["[DONE]"])
    found.add("max_new_tokens", 512)


def _text(found: Guess, columns: Columns, metric: str | None, why: str) -> None:
    """The keys of a task whose models write a text."""
    reference = found.reference or ""
    name = found.question
    asked = sum(text[0].rstrip().endswith("?") for text in columns.texts(name) if text)
    if name == "prompt" and asked < columns.count / 2:
        found.add("prompt", _with_context(found, columns))
        found.why["prompt"] += "; it is the whole prompt"
    else:
        found.add("prompt", f"{_with_context(found, columns, 'Question: ')}\nAnswer:")
    texts = [texts for texts in columns.texts(reference) if texts]
    expression, last, after = _last_part(reference, texts)
    if columns.is_list(name) and columns.is_list(reference):
        expression, after = f"{{{{{reference}[0]}}}}", "; the one of the first turn"
    found.add("reference", expression, f"{reference} is the reference, {why}{after}")
    guessed, reason = _metric(last)
    if guessed == "chrf" and _is_of_question(columns, name, reference):
        guessed, reason = "exact_match", "the references have only words of the question, in the right order"
    found.add("metric", metric or guessed, "the metric that was given" if metric else reason)
    if ".split(" in expression:
        # A demonstration shows the whole solution.
        found.add("shot_response", f"{{{{{reference}}}}}")
    lengths = sorted(len(text[0]) for text in texts)
    # Not the longest: one long reference would slow down every response that does not end.
    long = lengths[int(0.95 * len(lengths))] if lengths else 0
    if found.keys["metric"] in ("number", "pass_at_1", "contains"):
        # Chat models put blank lines between the steps of a solution.
        found.add("stop", ["\nQuestion:"], "a model that goes on after its answer writes the next question")
        found.add("max_new_tokens", max(256, min(1024, long // 2)))
    elif found.keys["metric"] == "exact_match":
        found.add("stop", ["\n"], "the answer is one line")
        found.add("max_new_tokens", max(32, min(256, long // 2)))
    else:
        found.add("stop", ["\nQuestion:"])
        why = f"nineteen of twenty references have at most {long:,} characters"
        found.add("max_new_tokens", max(64, min(1024, long // 2)), why)


def _with_context(found: Guess, columns: Columns, before: str = "") -> str:
    """The question, after its passage if there is one."""
    name = found.question
    # A list of turns: the first one is asked.
    question = f"{before}{{{{{name}[0]}}}}" if columns.is_list(name) else f"{before}{{{{{name}}}}}"
    if columns.is_list(name):
        found.why["prompt"] += "; only its first turn is asked"
    names = (*_CONTEXTS, "input") if name == "instruction" else _CONTEXTS
    context = columns.usual(names, {name, found.reference or "", *found.options})
    if context is None:
        return question
    found.why["prompt"] += f"; {context} is shown before it"
    before = f"{{{{{context}}}}}\n\n"
    return before + question if columns.filled(context) == 1 else f"{{% if {context} %}}{before}{{% endif %}}{question}"


def _last_part(reference: str, texts: Sequence[Sequence[str]]) -> tuple[str, list[list[str]], str]:
    """The template of the answer, the answers, and why: the whole reference, or the end of a worked solution."""
    plain = f"{{{{{reference}}}}}"
    for mark in _MARKS:
        if texts and all(len(items) == 1 and mark in items[0] for items in texts):
            ends = [[items[0].split(mark)[-1].strip().rstrip(".")] for items in texts]
            if all(end[0] and len(end[0].split()) <= _LONG for end in ends):
                template = f"{{{{{reference}.split('{mark}')[-1].strip().rstrip('.')}}}}"
                return template, ends, f"; the answer is what comes after the last '{mark}'"
    return plain, [list(items) for items in texts], ""


def _is_of_question(columns: Columns, question: str, reference: str) -> bool:
    pairs = zip(columns.texts(question), columns.texts(reference), strict=True)
    # As in BBH's word sorting: the answer is long, and yet there is only one right one.
    taken = [set(right[0].split()) <= set(" ".join(asked).split()) for asked, right in pairs if right]
    return sum(taken) > 0.9 * len(taken)


def _metric(texts: Sequence[Sequence[str]]) -> tuple[str, str]:
    number = get_metric("number")
    flat = [text for items in texts for text in items]
    if flat and all(not _LETTER.search(text) and number.problem((text,), ()) is None for text in flat):
        return "number", "all references are numbers: the last number of a response counts"
    # Each label several times, or it is no classification.
    labels = {items[0] for items in texts}
    if 2 <= len(labels) <= _FEW_LABELS and len(texts) >= 5 * len(labels) and all(len(label) <= 40 for label in labels):
        return "exact_match", f"the references are {len(labels)} labels; `contains` accepts sentences that have one"
    lengths = sorted(len(min(items, key=len).split()) for items in texts)
    if lengths[len(lengths) // 2] < _LONG:
        return "exact_match", "the references are short; if your models answer in sentences, take `contains`"
    return "chrf", "the references are long texts: a graded comparison of characters (0 to 1)"


def _parts(found: Guess, columns: Columns, *, is_of_parts: bool) -> None:
    """The group and the cluster of a question."""
    taken = {found.question, found.reference or "", *found.options}
    group = columns.usual(_GROUPS, taken)
    if is_of_parts:
        found.add("group", "{{_part}}", "accuracy by file")
    elif (
        group is not None and 2 <= columns.distinct(group) <= min(200, columns.count / 2) and columns.filled(group) == 1
    ):
        found.add("group", f"{{{{{group}}}}}", f"accuracy by {group}")
    cluster = columns.usual((*_CLUSTERS, *_CONTEXTS), taken)
    if cluster is not None and columns.filled(cluster) == 1 and 1 < columns.distinct(cluster) < 0.9 * columns.count:
        found.add("cluster", f"{{{{{cluster}}}}}", f"questions that share {cluster} are not independent")
