"""What the columns of some data probably mean: the question, the reference, the options, the metric, and why.

A guess is a few keys of a task file, each with its reason. Names decide first, then values; what the user gives decides
before both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from advisor.options.new_run import InitOptions
from advisor.tasks.draft.columns import (
    Columns,
    Texts,
    answer_template,
    decimal_mark,
    id_of,
    judge_of,
    metric_of,
    options_in,
    reference_of,
    texts_of,
    usual_mark,
)
from advisor.tasks.metrics import get_metric, metric_names
from advisor.tasks.task import JUDGE
from ensemble.errors import InputError

_QUESTIONS = (
    *("question", "question_text", "query", "problem", "goal", "instruction", "input", "prompt"),
    *("text", "sentence", "turns", "frage", "fragestellung", "aufgabe", "pregunta", "énoncé"),
)
_WORDS = {
    **dict.fromkeys(("frage", "fragestellung", "aufgabe"), ("Frage: ", "Antwort:")),
    "pregunta": ("Pregunta: ", "Respuesta:"),
    "énoncé": ("Question : ", "Réponse :"),
}
_COMMON = {
    "question": ("the", "is", "are", "of", "what", "which", "how", "does", "to"),
    "frage": ("der", "das", "den", "ist", "und", "wie", "wer", "wo", "welche", "welcher", "ein", "eine", "nicht"),
    "pregunta": ("el", "los", "del", "una", "qué", "cuál", "cuánto", "cuántos", "cuántas", "cómo", "quién"),
    "énoncé": ("le", "les", "du", "une", "est", "et", "quel", "quelle", "combien", "qui"),
}
"""Common words of a language, by the name that a column has in it; the first of several that fit counts."""
_PLACES = ("answer_idx", "answer_index", "correct_idx", "correct_index", "correct_answer_id", "cop")
_REFERENCES = (
    *("reference", "target", "gold", "expected", "expected_answer", "ground_truth", "correct_answer", "correct_option"),
    *("correct", "answers", "answer", "answer_key", "label", "labels", "output", "response", "solution", "completion"),
    *("final_answer", "gold_answer", "ideal_answer", "model_answer", "reference_answer", "right_answer"),
    *("best_answer", *_PLACES),
    *("expected_output", "expected_result", "right_result", "correct_result", "result", "ideal", "truth"),
    *("antwort", "musterantwort", "lösung", "loesung", "musterlösung", "ergebnis", "richtige_antwort"),
    *("respuesta", "réponse", "reponse", "bonne_réponse", "réponse_attendue", "référence"),
)
_OPTIONS = (
    *("options", "choices", "candidates", "endings", "alternatives", "mc_options", "question.choices", "mc1_targets"),
    *("answer_options", "answer_choices", "antworten", "optionen", "opciones"),
)
_SEPARATORS = (", ", ",", " / ")
_CONTEXTS = ("context", "passage", "article", "story", "document", "paragraph")
_GROUPS = (
    *("group", "category", "subject", "topic", "domain", "subset", "level", "difficulty", "language"),
    *("gruppe", "kategorie", "thema", "fach", "sprache", "catégorie", "matière", "langue"),
)
_CLUSTERS = ("passage_id", "context_id", "document_id", "story_id", "article_id", "conversation_id", "cluster")
_SOLUTIONS = ("code", "canonical_solution")
_WRONG = re.compile(
    r"(?i)(distractors?|distraktor(en)?|incorrect|wrong|false|falsche?)"
    r"([ _-]?(answers?|options?|choices?|antwort(en)?))?[ _-]?\w?"
)
_NUMBERED = re.compile(
    r"(?i)(option|opt|choice|opt_|op|ans|answer|antwort|réponse|sol|solution|ending|alternative)?[ _]?([a-j]|\d)"
)
_NUMBERS = "all references are numbers"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_IN_BOX = r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*)\}"
_LATEX_NUMBER = re.compile(
    r"[-+]? ?(\\?[$£€])?(\d[\d,.!{}\\]*(/\d+)?|\.\d+|\\[dt]?frac ?(\{-?\d+\}\{\d+\}|\d\d))"
    r"( ?\\?%|\^\{?\\circ\}?|\\text\{[^{}]*\})?"
)
_FEW = 8
"""Questions whose right options are in one place by chance."""


@dataclass(slots=True)
class Guess:
    """Keys of a task file, in their order, and why each is what it is."""

    keys: dict[str, object] = field(default_factory=dict)  # the values by key
    why: dict[str, str] = field(default_factory=dict)  # the reason by key; keys without one need none
    question: str = ""  # the column of the question
    reference: str | None = None  # the column of the reference; None for programs and for what a judge grades
    # The columns of the options, or one column with lists; empty for tasks without options.
    options: tuple[str, ...] = ()

    def add(self, key: str, value: object, why: str = "") -> None:
        """Set a key and its reason."""
        self.keys[key] = value
        if why:
            self.why[key] = why


def choice_columns(text: str) -> tuple[str, ...]:
    """The columns that ``--choices`` names; empty for ``none``."""
    return () if text.strip().lower() in ("", "none") else tuple(part.strip() for part in text.split(","))


def guess(columns: Columns, given: InitOptions, *, is_of_parts: bool = False) -> Guess:
    """Guess the keys of a task file from its columns, where no option gives them.

    With parts, the file of a record says what it is about.
    """
    if given.metric is not None and given.metric not in metric_names():
        raise InputError(f"--metric {given.metric}: choose among {', '.join(metric_names())}")
    if given.decimal not in (None, ".", ","):
        raise InputError(f"--decimal {given.decimal}: give . or ,")
    given = _with_messages(columns, given)
    for option, column in (("question", given.question), ("reference", given.reference)):
        if column is not None and not columns.filled(columns.named(column)):
            raise InputError(f"{column} is empty in all records; give --{option} with another column")
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
        found.options = options
        right = _choice_reference(columns, found.reference, found)
        is_choice = right is not None and given.metric in (None, "choice")
        if options and not is_choice and (given.choices or given.metric == "choice"):
            raise InputError(
                f"the values of {found.reference} are no option's text, letter or number of {', '.join(options)}; "
                "give --reference with the right column, or --choices none"
            )
        if is_choice and right is not None:
            _choice(found, columns, right, why, why_options)
        else:
            found.options = ()
            if options:
                found.why["prompt"] += f"; {', '.join(options)} are no options of {found.reference}"
            _text(found, columns, given, why)
    _parts(found, columns, is_of_parts=is_of_parts)
    return found


def _with_messages(columns: Columns, given: InitOptions) -> InitOptions:
    """What is given, where a column has messages: what they ask is the question, and their response the reference."""
    question = given.question or columns.usual(_QUESTIONS)
    reference = given.reference or columns.usual(_REFERENCES, (question or "",))
    names = [name for name, values in columns.values.items() if str(values[0]).startswith("[{")]
    if given.question is not None or (question and reference):
        names = [name for name in names if name == given.question]
    if (request := next(filter(None, (columns.add(f"{name} | request") for name in names)), None)) is None:
        return given
    response = None if reference or given.metric == JUDGE else columns.add(request.replace("request", "response"))
    return replace(given, question=request, reference=response or given.reference)


def _question(columns: Columns, given: InitOptions, taken: set[str]) -> tuple[str, str]:
    if given.question is not None:
        return columns.named(given.question), "the question is the column that was given, or that has messages"
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


def _reference(columns: Columns, given: InitOptions, taken: set[str]) -> tuple[str, str]:
    if given.reference is not None:
        return columns.named(given.reference), "the column that was given, or that has messages"
    # mc1_targets of TruthfulQA: {"choices": [...], "labels": [1, 0, ...]}
    labels = next((f"{name}.labels" for name in taken if f"{name}.labels" in columns.values), None)
    labels = labels or next(filter(None, (columns.add(f"({name} | parsed).labels") for name in taken)), None)
    name = labels or columns.usual(_REFERENCES, taken)
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


def _is_open(columns: Columns, given: InitOptions, question: str, options: Sequence[str]) -> str:
    """Why no answer is right or wrong; empty if one may be."""
    if given.metric is not None or given.reference is not None or options:
        return "the metric that was given" if given.metric == JUDGE else ""
    reference = columns.usual(_REFERENCES, (question,))
    if columns.is_list(question) and (reference is None or columns.filled(reference) < 1):
        return "the questions have several turns, and not all have a reference: a judge grades the answers"
    if reference is None and not _left(columns, {question}):
        return "no column has right answers: a judge grades the answers"
    return ""


def _judged(found: Guess, columns: Columns, given: InitOptions, why: str) -> None:
    """The keys of a task whose answers a judge grades."""
    question = found.question
    reference = columns.named(given.reference) if given.reference else columns.usual(_REFERENCES, (question,))
    has_turns = columns.is_list(question)
    if ids := id_of(columns, (question,)):
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


def _options(columns: Columns, given: InitOptions) -> tuple[tuple[str, ...], str]:
    """The columns of the options, or one expression that gives all of them, and why."""
    if given.choices is not None:
        why = "the columns that were given"
        names = choice_columns(given.choices)
        if len(names) != 1:
            return tuple(map(columns.named, names)), why
        name = names[0] if names[0] in columns.objects else columns.named(names[0])
        return (_as_list(columns, name) or columns.named(name),), why
    if given.metric not in (None, "choice"):
        return (), ""
    structs = [name for name in columns.objects if f"{name}.labels" in columns.values]
    # Beside the place of the right one, answers are no list of accepted ones.
    structs += columns.named_like(["answers"] if columns.usual(_PLACES) else [])
    for found in (*columns.named_like((*_OPTIONS, *(f"{root}.text" for root in _OPTIONS))), *structs):
        parts = _as_list(columns, found)
        if parts is not None:
            return (parts,), f"{found} has the options, by its name"
    if names := _series(columns):
        return names, f"{', '.join(names)} are the options, by their names"
    return _mixed(columns, given)


def _series(columns: Columns) -> tuple[str, ...]:
    """Columns such as A, B, C or option1, option2: their common beginning makes them a series."""
    series: dict[str, dict[str, str]] = {}
    for name in columns.values:
        match = _NUMBERED.fullmatch(name)
        if match is not None:
            series.setdefault((match[1] or "").lower(), {})[match[2].upper()] = name
    for members in series.values():
        for alphabet in (_LETTERS, "123456789", "0123456789"):
            marks = alphabet[: len(members)]
            # All of them: a gap means that the letters are something else.
            if len(members) >= 2 and set(marks) == members.keys():
                return tuple(members[mark] for mark in marks)
    return ()


def _mixed(columns: Columns, given: InitOptions) -> tuple[tuple[str, ...], str]:
    """The options in columns of right and wrong answers, or in the text of the question."""
    wrong = [name for name in columns.values if _WRONG.fullmatch(name)]
    right = columns.named(given.reference) if given.reference else columns.usual(_REFERENCES, wrong)
    if wrong and right is not None:
        # Of several columns each has one answer, even if it looks like a list.
        others = f"{wrong[0]} | options" if len(wrong) == 1 and columns.add(wrong[0], options_in) else ", ".join(wrong)
        if mixed := columns.add(f"{right} | shuffled({others})", options_in):
            return (mixed,), f"{right} and {', '.join(wrong)} are the options, in an order without a rule"
    question, _ = _question(columns, given, set())
    if _shows(columns, question, right) and (listed := columns.add(f"{question} | options", options_in)):
        return (listed,), f"{question} has the options and their letters"
    return (), ""


def _labels(columns: Columns, reference: str) -> list[str]:
    """The letters, or the few small numbers, that all references are; empty if they are something else."""
    words = [texts[0].split() for texts in columns.accepted(reference) if texts]
    # "(B)" and "Option B" name what "B" names.
    labels = sorted({found[-1].strip("().:[]").upper() for found in words if len(found) <= 2})
    is_number = set(labels) <= set("012345") and not {"0", "5"} <= set(labels) and len(words) >= 3 * len(labels)
    is_label = is_number or set(labels) <= set(_LETTERS[:10])
    return labels if is_label and all(len(found) <= 2 for found in words) else []


def _shows(columns: Columns, question: str, reference: str | None) -> bool:
    """Whether the questions have the letters or numbers of the reference as a list has them: "A)", "(B)", "1."."""
    labels = [] if reference is None else _labels(columns, reference)
    marks = [re.compile(rf"(?<!\w)[(\[]?{label}\s?[).:\]=-]", re.IGNORECASE) for label in labels[:2]]
    texts = [" ".join(texts) for texts in columns.texts(question)]
    return bool(marks) and sum(all(mark.search(text) for mark in marks) for text in texts) > 0.9 * len(texts)


def _check_shown(columns: Columns, found: Guess, reference: str) -> None:
    """Refuse references that are letters or small numbers where no prompt says what these mean."""
    labels = _labels(columns, reference)
    shown = [name for name in (found.question, _context(found, columns)) if name is not None]
    # "What is 7 - 5?": a number that is calculated from others is an answer.
    numbers = [len(re.findall(r"\d+", " ".join(texts))) for texts in columns.texts(found.question)]
    is_sum = labels[:1] < ["A"] and sum(count > 1 for count in numbers) > columns.count / 2
    if labels and not is_sum and not any(_shows(columns, name, reference) for name in shown):
        raise InputError(
            f"{reference} has only {', '.join(labels)}, and no column with the options was found, so no prompt would "
            f"say what they mean; give --choices with the options (the columns are {columns.listed()}), or --choices "
            "none if each question says it, or asks for a number"
        )


def _as_list(columns: Columns, name: str) -> str | None:
    """The expression of a column's options: the column, or its texts split at a separator; None if it has none."""
    if columns.add(name, options_in) or name not in columns.values:
        return name if name in columns.values else None
    # A cell of a table has its list as one text, which templates can split.
    texts = [items[0] if items else "" for items in columns.texts(name)]
    for mark in _SEPARATORS:
        if all(len(parts) > 1 and all(parts) for parts in (text.split(mark) for text in texts)):
            return columns.add(f"{name}.split({mark!r})", options_in)
    return None


def _choice_reference(columns: Columns, reference: str, found: Guess) -> tuple[str, str] | None:
    """The template of the right option, and what to score; None if the values of the reference are no options."""
    options = found.options
    if not options:
        return None
    cells = zip(*(columns.values[name] for name in options), strict=True)
    # A common conversion of ARC has records whose options are empty; tasks leave them out.
    lists = [texts_of(row[0] if len(row) == 1 else row) for row in cells]
    used = [n for n, texts in enumerate(columns.texts(reference)) if texts and len(lists[n]) > 1]
    if not used:
        return None
    labels = f"{options[0].removesuffix('.text')}.label"
    forms = [
        # ARC on the hub: {"text": [...], "label": ["A", ...] or ["1", ...]}
        *([f"'{_LETTERS}'[{labels}.index({reference})]"] if labels in columns.values else []),
        reference,
        f"'{_LETTERS}'[{reference} | int(99)]",
        # Numbers from 1: a blank in front of A shifts the letters.
        f"' {_LETTERS}'[{reference} | int(99)]",
        # A 1 among zeros.
        f"'{_LETTERS}'[({reference} | options).index('1')]",
    ]
    for form in forms:
        named = columns.accepted(form)
        places = [_place(named[n], lists[n]) for n in used]
        # Not all: a wrong record gets an error with its row, and one of a thousand must not change the metric.
        if sum(place is not None for place in places) >= 0.9 * len(used):
            break
    else:
        return None
    is_text = sum(named[n][0] in lists[n] for n in used if named[n]) > len(used) / 2
    # A right option that is always in one place would be known by it.
    if len(used) >= _FEW and len(set(places)) == 1:
        form = f"({options[0]} | options)[{places[0]}]" if len(options) == 1 else options[places[0] or 0]
        others = f"({', '.join(options[1:])})" if len(options) > 1 else ""
        found.options = (columns.add(f"{options[0]} | shuffled{others}", options_in) or "",)
        found.why["choices"] = "; in an order without a rule, because the right one is always in one place"
    return f"{{{{{form}}}}}", "normalised" if is_text or found.options != options else "letters"


def _place(named: Sequence[str], choices: Sequence[str]) -> int | None:
    """The place of the only option that the metric takes for the reference; None if it takes none or several."""
    metric, accepted, options = get_metric("choice"), tuple(named), tuple(choices)
    if not named or metric.problem(accepted, options) is not None:
        return None
    places = [place for place, choice in enumerate(choices) if metric.score(choice, accepted, options)[0]]
    return places[0] if len(places) == 1 else None


def _choice(found: Guess, columns: Columns, right: tuple[str, str], why: str, why_options: str) -> None:
    """The keys of a task whose options are scored by their likelihood."""
    expression, scoring = right
    options = found.options
    is_list = len(options) == 1
    question = _with_context(found, columns)
    # The question may have its options already.
    shown = "" if options[0] == f"{found.question} | options" else "\n{{_options | join('\\n')}}"
    found.add("prompt", f"{question}{shown}\n{_words(found, columns)[1]}")
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


def _text(found: Guess, columns: Columns, given: InitOptions, why: str) -> None:
    """The keys of a task whose models write a text."""
    name, reference = found.question, found.reference or ""
    asked = sum(text[0].rstrip().endswith("?") for text in columns.texts(name) if text)
    before, then = _words(found, columns)
    if name == "prompt" and asked < columns.count / 2:
        found.add("prompt", _with_context(found, columns))
        found.why["prompt"] += "; it is the whole prompt"
    else:
        found.add("prompt", f"{_with_context(found, columns, before)}\n{then}")
    texts = [texts for texts in columns.accepted(reference) if texts]
    expression, last, after = answer_template(reference, texts)
    if given.metric is None and given.choices is None:
        _check_shown(columns, found, reference)
    is_solution = after.startswith("; the answer is")
    if expression.endswith("| boxed}}"):
        _boxed(found, given, last, then, f"{reference} is the reference, {why}{after}")
    else:
        _plain(found, columns, given, (expression, last), (why, after))
    if is_solution:
        # A demonstration shows the whole solution.
        found.add("shot_response", f"{{{{{reference}}}}}")
    lengths = sorted(len(text[0]) for text in texts)
    # Not the longest: one long reference would slow down every response that does not end.
    long = lengths[int(0.95 * len(lengths))] if lengths else 0
    next_question = [f"\n{before.strip()}"]
    if is_solution or found.keys["metric"] in ("number", "contains"):
        # Chat models put blank lines between the steps of a solution.
        found.add("stop", next_question, "a model that goes on after its answer writes the next question")
        found.add("max_new_tokens", max(256, min(1024, long // 2)))
    elif found.keys["metric"] == "exact_match":
        found.add("stop", ["\n"], "the answer is one line")
        found.add("max_new_tokens", max(32, min(256, long // 2)))
    else:
        found.add("stop", next_question)
        why = f"nineteen of twenty references have at most {long:,} characters"
        found.add("max_new_tokens", max(64, min(1024, long // 2)), why)


def _plain(
    found: Guess, columns: Columns, given: InitOptions, answers: tuple[str, Texts], reasons: tuple[str, str]
) -> None:
    """The reference and the metric where the references are the answers themselves, or their ends."""
    (expression, last), (why, after), name, reference = answers, reasons, found.question, found.reference or ""
    if columns.is_list(name) and columns.is_list(reference):
        expression, after = f"{{{{{reference}[0]}}}}", "; the one of the first turn"
    is_number = given.metric in (None, "number")
    decimal = decimal_mark(columns, name, reference, last, given.decimal) if is_number else None
    if given.decimal is not None and decimal is None:
        raise InputError(
            f"--decimal {given.decimal} goes with numbers, and not all of {reference} are numbers; leave it out"
        )
    if decimal == "." and given.decimal is None and columns.has_floats(reference) and usual_mark(columns, name) == ",":
        decimal, expression = ",", f"{{{{{reference} | string | replace('.', ',')}}}}"
        after += "; with decimal commas, as the questions have"
    found.add("reference", expression, f"{reference} is the reference, {why}{after}")
    guessed, reason = metric_of(reference, last) if decimal is None else ("number", _NUMBERS)
    if guessed == "chrf" and _is_of_question(columns, name, reference):
        guessed, reason = "exact_match", "the references have only words of the question, in the right order"
    found.add("metric", given.metric or guessed, "the metric that was given" if given.metric else reason)
    if decimal == ",":
        found.add("decimal", ",", "the references have decimal commas, and so should the responses")


def _boxed(found: Guess, given: InitOptions, answers: Texts, then: str, why: str) -> None:
    """The reference and the metric where the answers are in LaTeX boxes, and the prompt asks for one."""
    found.keys["prompt"] = f"{str(found.keys['prompt']).removesuffix(then)}Put the answer into \\boxed{{}}.\n{then}"
    found.add("reference", f"{{{{{found.reference} | boxed}}}}", why)
    read = get_metric("number")
    is_number = all(_LATEX_NUMBER.fullmatch(text) and read.problem((text,), ()) is None for (text,) in answers)
    guessed = ("number", _NUMBERS) if is_number else ("exact_match", "not all of the boxed references are numbers")
    found.add("metric", given.metric or guessed[0], "the metric that was given" if given.metric else guessed[1])
    if found.keys["metric"] != "number":
        found.add("extract", _IN_BOX, "what a response has in \\boxed{}")


def _words(found: Guess, columns: Columns) -> tuple[str, str]:
    """What is before the question and before the answer, in the language of the column's name or of its texts."""
    name = re.split(r"\W|_", found.question.lower())[0]
    if name not in _WORDS:
        texts = [set(re.findall(r"\w+", " ".join(texts).lower())) for texts in columns.texts(found.question)]
        name = max(_COMMON, key=lambda language: sum(len(words.intersection(_COMMON[language])) for words in texts))
    return _WORDS.get(name, ("Question: ", "Answer:"))


def _with_context(found: Guess, columns: Columns, before: str = "") -> str:
    """The question, after its passage if there is one."""
    name = found.question
    # A list of turns: the first one is asked.
    question = f"{before}{{{{{name}[0]}}}}" if columns.is_list(name) else f"{before}{{{{{name}}}}}"
    if columns.is_list(name):
        found.why["prompt"] += "; only its first turn is asked"
    context = _context(found, columns)
    if context is None:
        return question
    found.why["prompt"] += f"; {context} is shown before it"
    before = f"{{{{{context}}}}}\n\n"
    return before + question if columns.filled(context) == 1 else f"{{% if {context} %}}{before}{{% endif %}}{question}"


def _context(found: Guess, columns: Columns) -> str | None:
    """The column with the passage that a question is about."""
    names = (*_CONTEXTS, "input") if found.question == "instruction" else _CONTEXTS
    return columns.usual(names, {found.question, found.reference or "", *found.options})


def _is_of_question(columns: Columns, question: str, reference: str) -> bool:
    pairs = zip(columns.texts(question), columns.texts(reference), strict=True)
    # As in BBH's word sorting: the answer is long, and yet there is only one right one.
    taken = [set(right[0].split()) <= set(" ".join(asked).split()) for asked, right in pairs if right]
    return sum(taken) > 0.9 * len(taken)


def _parts(found: Guess, columns: Columns, *, is_of_parts: bool) -> None:
    """The id, the group and the cluster of a question."""
    taken = {found.question, found.reference or "", *found.options}
    ids = id_of(columns, taken)
    # The field id is one without this key.
    if ids is not None and "id" not in found.keys and ids.lower() != "id":
        found.add("id", ids, f"{ids} is different in each record")
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
    else:
        _repeated(found, columns)


def _repeated(found: Guess, columns: Columns) -> None:
    """Put questions that occur several times into clusters; the turns of a conversation are one without that."""
    if columns.is_list(found.question):
        return
    context = _context(found, columns)
    names = [*([context] if context else []), found.question, *found.options]
    # Of records with ids, those that are the same throughout are one question without this.
    has_ids = columns.usual(("id",)) is not None or "id" in found.keys
    answers: dict[str, list[list[str]]] = {}
    for number in columns.different() if has_ids else range(columns.count):
        if texts_of(columns.values[found.question][number]):
            right = [] if found.reference is None else texts_of(columns.values[found.reference][number])
            answers.setdefault(repr([columns.values[name][number] for name in names]), []).append(right)
    count = sum(map(len, answers.values()))
    repeated = count - len(answers)
    if repeated and len(answers) == 1:
        raise InputError(
            f"{found.question} has the same text in all records; give --question with another column of "
            f"{columns.listed()}"
        )
    if repeated:
        why = f"{repeated:,} of {count:,} questions repeat an earlier one: tests count equal questions as one"
        if unequal := sum(any(right != each[0] for right in each) for each in answers.values()):
            why += f"; {unequal:,} have different references, so correct these, or put all into one record as a list"
        texts = [f"{{{{{name} | default('', true)}}}}" if name == context else f"{{{{{name}}}}}" for name in names]
        options = ["{{_options | join(' ')}}"] if found.options else []
        found.add("cluster", " ".join([*texts[: len(names) - len(found.options)], *options]), why)
