"""``advisor select`` from Python: the same options by the same names, and the finished run as an object.

    from advisor import select

    run = select("demo", "word_problems", limit=300)
    run.recommendation.text
    run.leaderboard()
    run.plot()

The modules that do the work are imported by the calls, so that ``import advisor`` stays quick.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble.common.extras import check_installed, is_installed
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from advisor.run.result import RecommendedStrategy
    from reports.tables import Table

_LONGEST = 60  # characters of a wrong value in a message


def select(pool: str | None = None, task: str | None = None, **options: Any) -> SelectResult:
    """Profile every candidate, choose a set by the rules, run it on held-out questions, and write a report.

    Args:
        pool: The pool file, or ``demo``.
        task: A task file, or a name that ``advisor tasks`` lists.
        options: Those of ``advisor select`` by their long names, with ``_`` for ``-``: ``limit=300``,
            ``logs=["a.jsonl"]``, ``out="runs/mine"``, ``force=True``. ``quiet=True`` shows no progress.

    Returns:
        The finished run.

    Raises:
        InputError: An option does not exist, is missing or out of range, or the pool, the task or a model cannot be
            used, or the run folder has a run with other settings.
        UniteError: All candidates failed.
    """
    with warnings.catch_warnings():
        # In a notebook without widgets this import warns, and huggingface_hub would make it later.
        warnings.simplefilter("ignore")
        with suppress(ImportError):
            import tqdm.auto  # noqa: F401

    from advisor.commands.command_line import keep_cache
    from advisor.commands.select import select_run
    from advisor.options.new_run import SelectOptions
    from advisor.options.option import from_python
    from advisor.progress import Progress
    from reports import write_report

    given = {name: value for name, value in {"pool": pool, "task": task, **options}.items() if value is not None}
    command = f"select({', '.join(f'{name}={value!r}' for name, value in given.items())})"
    typed = SelectOptions(**from_python(SelectOptions, given, "select"))
    keep_cache(typed)
    folder, _ = select_run(typed, command, Progress(quiet=typed.quiet))
    write_report(folder)
    return SelectResult(folder)


class SelectResult:
    """A finished run, read from its folder.

    Args:
        folder: The run folder, also one that the command line has written.

    Attributes:
        folder: The run folder.
        report: The path of ``report.html``.
        json: The contents of ``result.json``.

    Raises:
        InputError: The folder has no result, or one that cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        from advisor.run.folder import Run
        from ensemble.common.schema import written

        if not isinstance(folder, (str, Path)):
            raise InputError(f"SelectResult: folder should be a path; got {shortened(visible(repr(folder)), _LONGEST)}")
        self.folder = Path(folder)
        self.report = self.folder / "report.html"
        self._result = Run.open(self.folder).result
        self.json: dict[str, Any] = written(self._result)

    @property
    def recommendation(self) -> RecommendedStrategy | None:
        """The strategy to run, with ``text``, ``expected_gain``, ``expected_gain_ci`` and ``probability``.

        If nothing gains, it is the best single model. None if ``no_verify`` or ``scores`` left nothing to compare.
        """
        return self._result.advice.recommendation

    @property
    def summary(self) -> str:
        """What to run, what it gains, how sure that is, and what it costs, in the lines that the command prints."""
        from advisor.run.sentences import summary

        return "\n".join(f"{name}: {sentence}" for name, sentence in summary(self._result).items())

    @property
    def advice(self) -> str:
        """The verdict on the set that the rules choose, in sentences."""
        return self._result.advice.text

    def leaderboard(self) -> pd.DataFrame:
        """The candidates on the dev questions, best first. Accuracies are in points, lengths in characters."""
        from reports.tables import leaderboard

        return _data_frame(leaderboard(self._result))

    def strategies(self) -> pd.DataFrame:
        """What could run in production, on the held-out questions, best first; empty if none was compared."""
        from reports.tables import strategies

        return _data_frame(strategies(self._result))

    def plot(self) -> Axes:
        """Draw the accuracy of each strategy with its interval; of each candidate, if no strategy was compared."""
        from matplotlib import pyplot

        table = self.strategies()
        labels = [each.title for each in self._result.strategies[: len(table)]]
        if table.empty:
            table = self.leaderboard().dropna(subset=["accuracy"])  # a candidate that failed has none
            labels = list(table["model"])
        _, axes = pyplot.subplots(figsize=(7.0, 0.8 + 0.35 * len(table)), layout="constrained")
        # An interval that is not known has no width. The best is on top.
        low, high = (table[end].fillna(table["accuracy"]) for end in ("accuracy_low", "accuracy_high"))
        reach = [table["accuracy"] - low, high - table["accuracy"]]
        axes.errorbar(table["accuracy"], range(len(table), 0, -1), xerr=reach, fmt="o", capsize=3)
        axes.set_yticks(range(len(table), 0, -1), labels)
        axes.set_xlabel("accuracy in points, with 95% intervals")
        return axes

    def __repr__(self) -> str:
        return f"<SelectResult {self.folder}: {self.summary.splitlines()[0]}>"

    def _repr_html_(self) -> str:
        """The result in a notebook."""
        lines = "<br>".join(map(escape, [*self.summary.splitlines(), self.advice, f"Report: {self.report}"]))
        if not is_installed("pandas"):
            return f"<p>{lines}</p>"
        table = self.leaderboard().to_html(index=False, float_format=lambda value: f"{value:.1f}")
        return f"<p>{lines}</p>{table}"


def _data_frame(table: Table) -> pd.DataFrame:
    check_installed("pandas", "a data frame")
    import pandas

    return pandas.DataFrame(table.data)
