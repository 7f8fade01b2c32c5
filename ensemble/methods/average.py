"""Plain averaging of next-token probabilities, for members that share one vocabulary.

``P(w) = sum_i a_i P_i(w)`` over all candidates. Special tokens except EOS, and ids without a token, are not candidates.
The result equals UNITE with k as large as the vocabulary; it is GaC over one vocabulary. The members may have different
ids and different sizes of embeddings, but they must have the same byte strings.
"""

from __future__ import annotations

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods.gac import over_all
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="the mean over one vocabulary that all members share",
    when="models that have the same tokenizer",
)


def make(setup: Setup, options: None) -> TokenRule:  # noqa: ARG001
    """Make the rule; InputError if the members do not share one vocabulary."""
    first, *others = setup.members
    tokens = first.vocabulary.representatives.keys()
    for member in others:
        if different := len(tokens ^ member.vocabulary.representatives.keys()):
            raise InputError(
                f"it needs one vocabulary, and {first.name} and {member.name} differ in {different} "
                "tokens; use unite or gac",
                of="method average",
            )
        if bool(first.vocabulary.eos_ids) != bool(member.vocabulary.eos_ids):
            raise InputError(
                f"it needs one vocabulary, and only one of {first.name} and {member.name} has an EOS "
                "token; use unite or gac",
                of="method average",
            )
    return TokenRule(over_all(setup.joint, setup.weights))
