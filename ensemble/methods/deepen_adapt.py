"""DeePEn-Adapt: DeePEn with larger weights for members that did better on development questions (section 3.5).

``alpha_i = s_i / sum_j s_j``, where ``s_i`` is the member's accuracy above chance. Accuracies and chance are options,
in points. A member at chance or below has weight 0 (the paper is silent). All else is as in
:mod:`ensemble.methods.deepen`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ensemble.errors import InputError
from ensemble.methods import Method, deepen
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="DeePEn with weights from the members' accuracies (Huang et al., 2024)",
    when="comparisons with DeePEn, when the members' accuracies are known and differ",
    version=2,
)


@dataclass(frozen=True, slots=True)
class Options(deepen.Options):
    """Options of DeePEn-Adapt; see :class:`ensemble.methods.deepen.Options` for ``steps`` and the others.

    Attributes:
        accuracies: Each member's accuracy on development questions, from 0 to 100; required.
        chance: The accuracy of guessing, from 0 to 100: 100 / K with K choices, 0 for free text.
    """

    accuracies: Sequence[float] = ()
    chance: float = 0.0

    def __post_init__(self) -> None:
        # super() without arguments does not work here: a data class with slots is a copy of the class.
        deepen.Options.__post_init__(self)
        if any(not 0 <= value <= 100 for value in (*self.accuracies, self.chance)):
            raise InputError(f"accuracies {list(self.accuracies)}, chance {self.chance}: each must be from 0 to 100")


def adaptive_weights(accuracies: Sequence[float], chance: float) -> list[float]:
    """The weights of section 3.5; InputError if no accuracy is above chance."""
    above = [max(accuracy - chance, 0.0) for accuracy in accuracies]
    if not sum(above) > 0:
        raise InputError(
            f"no accuracy of {list(accuracies)} is above chance ({chance:g}); use deepen", of="method deepen-adapt"
        )
    return [value / sum(above) for value in above]


def make(setup: Setup, options: Options) -> TokenRule:
    """Make the rule; InputError without accuracies, with weights, or as :func:`ensemble.methods.deepen.make`."""
    members = len(setup.members)
    if len(options.accuracies) != members:
        raise InputError(
            f"it needs accuracies, one for each of {members} models, and has "
            f"{len(options.accuracies)}; give them, or use deepen",
            of="method deepen-adapt",
        )
    if max(setup.weights) - min(setup.weights) > 1e-9:
        raise InputError(
            "its weights follow from the accuracies; leave the weights out, or use deepen", of="method deepen-adapt"
        )
    return deepen.make_rule("deepen-adapt", setup, adaptive_weights(options.accuracies, options.chance), options)
