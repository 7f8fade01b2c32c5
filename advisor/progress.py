"""Progress bars and notes on standard error, or in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from time import perf_counter

import rich.progress
from rich.console import Console
from rich.text import Text

from ensemble.common.text import visible


class Progress:
    """Shows how far a run is, unless it is quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bars: rich.progress.Progress | None = None
        self._stages = 0

    def starting(self) -> None:
        """Show a sign of life to a person who waits for slow imports."""
        # Only on a terminal: in a log the line would say nothing.
        if self._console.is_terminal:
            self._console.print("Starting: the libraries take a few seconds to load", style="dim")

    @contextmanager
    def stage(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        """Begin a stage of ``total`` parts, and yield a function that takes the number of parts that are newly done."""
        if self._console.is_jupyter and find_spec("ipywidgets") is None:
            # Without widgets a notebook cannot change what it shows, and rich would warn instead of drawing a bar.
            with self._one_line(description, total) as advance:
                yield advance
            return
        # Two displays of rich at the same time write over each other, so all stages share one.
        if self._bars is None:
            self._bars = rich.progress.Progress(
                rich.progress.SpinnerColumn(finished_text="[green]✓"),
                rich.progress.TextColumn("{task.description}", markup=False),
                rich.progress.BarColumn(),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TimeElapsedColumn(),
                rich.progress.TimeRemainingColumn(),
                console=self._console,
            )
            self._bars.start()
        bars = self._bars
        self._stages += 1
        try:
            # Names of models come from files: they must not control the terminal.
            task = bars.add_task(visible(description), total=total)
            yield lambda done: bars.advance(task, done)
        finally:
            self._stages -= 1
            # The display of rich belongs to all bars, so it stops with the last stage.
            if not self._stages:
                bars.stop()
                self._bars = None

    @contextmanager
    def _one_line(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        """A stage that becomes a line when it ends."""
        done, start = [0], perf_counter()

        def advance(more: int) -> None:
            done[0] += more

        yield advance
        figures = f"{done[0]}/{total} in {perf_counter() - start:.0f} s"
        self._console.print(Text(f"{visible(description)}: {figures}"), soft_wrap=True)

    def say(self, text: str) -> None:
        """Show a note: what was left out, set aside or slow."""
        self._console.print(Text.assemble(("note ", "yellow"), visible(text)), soft_wrap=True)
