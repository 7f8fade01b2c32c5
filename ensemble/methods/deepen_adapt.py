"""DeePEn-Adapt: DeePEn with more weight for members that did better on development questions (section 3.5).

``alpha_i = s_i / sum_j s_j``, ``s_i`` being the accuracy above chance. Accuracies and chance are given as options, in
points; where a member is at chance or below, its weight is 0 (the paper is silent). All else is as in
:mod:`ensemble.methods.deepen`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._relative import Search, make_rule
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="DeePEn with weights from the members' accuracies (Huang et al., 2024)",
    when="to compare with DeePEn, where the members' accuracies are known and differ",
)
_DEFAULT = Search()


@dataclass(frozen=True, slots=True)
class Options:
    """DeePEn-Adapt's settings.

    Attributes:
        accuracies: One for each member, on development questions, from 0 to 100; needed.
        chance: What guessing would reach, from 0 to 100: 100 / K with K choices, 0 for free text.
        steps: See :class:`ensemble.methods._relative.Search`.
        learning_rate: Likewise.
        sharpness: Likewise.
    """

    accuracies: Sequence[float] = ()
    chance: float = 0.0
    steps: int = _DEFAULT.steps
    learning_rate: float = _DEFAULT.learning_rate
    sharpness: float = _DEFAULT.sharpness

    def __post_init__(self) -> None:
        if any(not 0 <= value <= 100 for value in (*self.accuracies, self.chance)):
            raise InputError(f"accuracies {list(self.accuracies)}, chance {self.chance}: each must be from 0 to 100")
        _ = self.search  # which raises for what is out of range

    @property
    def search(self) -> Search:
        """How the way back is searched for."""
        return Search(self.steps, self.learning_rate, self.sharpness)


def adaptive_weights(accuracies: Sequence[float], chance: float) -> list[float]:
    """The weights of section 3.5.

    Raises:
        InputError: Nobody is above chance.
    """
    above = [max(accuracy - chance, 0.0) for accuracy in accuracies]
    if not sum(above) > 0:
        raise InputError(
            f"method deepen-adapt: no accuracy of {list(accuracies)} is above chance ({chance:g}); use deepen"
        )
    return [own / sum(above) for own in above]


def make(setup: Setup, options: Options) -> TokenRule:
    """DeePEn-Adapt for some members.

    Raises:
        InputError: Accuracies are missing, or there are weights besides; or see :func:`ensemble.methods.deepen.make`.
    """
    members = len(setup.members)
    if len(options.accuracies) != members:
        raise InputError(
            f"method deepen-adapt: it needs accuracies, one for each of {members} models, and has "
            f"{len(options.accuracies)}; give them, or use deepen"
        )
    if max(setup.weights) - min(setup.weights) > 1e-9:
        raise InputError(
            "method deepen-adapt: its weights follow from the accuracies; leave the weights out, or use deepen"
        )
    return make_rule("deepen-adapt", setup, adaptive_weights(options.accuracies, options.chance), options.search)
