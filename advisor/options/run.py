"""The options of ``advisor run``."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.options.chosen import ChosenOptions, SourceArgument
from advisor.options.option import Range, argument, changed, option
from advisor.options.shared import SeedOptions
from ensemble.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PromptArguments(SourceArgument):
    """A folder, and a prompt."""

    prompt: str | None = argument(
        "A question of the run's task or another prompt, or - for standard input.", "PROMPT", None
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(ChosenOptions, PromptArguments, panel="Decoding"):
    """Of ``advisor run``."""

    seed: int = changed(SeedOptions, "seed")
    temperature: float = option(0.0, "0 takes the most likely token.", within=Range(least=0))
    top_p: float = option(
        1.0, "Draw from the most likely tokens that have this probability together.", within=Range(above=0, most=1)
    )
    stream: bool = option(False, "Print the text while it is written.")
    trace: bool = option(False, "Show the candidates of every member at every step.")
    answer: bool = option(False, "Print only the answer that the task's metric reads in the text.")

    def __post_init__(self) -> None:
        if self.models and self.prompt is None:
            # With --models, the only argument is the prompt.
            object.__setattr__(self, "prompt", self.run)
            object.__setattr__(self, "run", None)
        if self.prompt is None:
            raise InputError(
                "the prompt is missing; give a run folder (or --models) and a prompt, or - to read standard input"
            )
        if self.stream and self.answer:
            raise InputError("--stream and --answer: the answer is known at the end of the text; leave out one")
        super().__post_init__()
