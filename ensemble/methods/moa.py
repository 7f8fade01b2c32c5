"""Mixture-of-Agents: a member of the set reads the responses of all members, and writes the answer (Wang et al., 2024).

With the members m_1 ... m_n, a question q and the aggregator Agg, which is one of the members,

    y = Agg(q, {m_1(q), ..., m_n(q)})

With several layers each member first reads all responses of the layer before: r_i^1 = m_i(q),
r_i^l = m_i(q, {r_1^(l-1), ..., r_n^(l-1)}), and y = Agg(q, {r_1^L, ..., r_n^L}). The paper counts the aggregator as a
layer, too: its three layers are ``layers=2`` here, and its MoA-Lite has ``layers=1``.

What differs from the paper: members answer by greedy decoding, where the paper draws at temperature 0.7; the prompt has
another wording; and it puts the responses before the question and its demonstrations, so that the text ends as the task
wants it and models without a chat template can continue it. A response is read as the rest of the prompt is: a special
token of the aggregator that is in it stays one.

If a model cannot read the responses to a question, for example because they do not fit its context, an earlier response
takes the place of its answer: in a layer its response of the layer before, at the end that of the primary.
"""

from __future__ import annotations

from dataclasses import dataclass

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._response import Aggregation, read_prompt

METHOD = Method(
    level="response",
    summary="a new response that one member writes after it reads those of all (Mixture-of-Agents, Wang et al., 2024)",
    when="open questions, and members that follow instructions and read several responses in their context",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of Mixture-of-Agents.

    Attributes:
        aggregator: The member that writes the answer; None for the primary.
        layers: How many times the members answer before the aggregator does, at least 1. From the second time on each
            member reads the responses of all.
        prompt: A file with the aggregator's prompt, a Jinja2 template: ``{{ prompt }}`` is all that a member reads of a
            question, ``{{ question }}`` is the question alone, and ``responses`` is a list. None for the prompt of this
            project.
    """

    aggregator: str | None = None
    layers: int = 1
    prompt: str | None = None

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise InputError(f"layers {self.layers!r}: give a whole number, at least 1")


def make(options: Options) -> Aggregation:
    """Make the method; InputError if the prompt's file cannot be read."""
    return Aggregation(*read_prompt(options.prompt), options.aggregator, options.layers)
