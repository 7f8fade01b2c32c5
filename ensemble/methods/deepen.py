"""DeePEn-Avg: "Ensemble Learning for Heterogeneous Large Language Models with Deep Parallel Collaboration", section 3.

(Huang et al., NeurIPS 2024.) Each member's distribution becomes a vector of likenesses to the tokens that all members
have (Eq. 2 to 4), the mean of these vectors is taken (Eq. 5, weights equal unless given), and the primary's
distribution is moved by gradient steps until its own vector comes near to the mean (Eq. 6 and 7; T = 5). The anchors
are all common tokens (section 5.2), EOS one of them. The paper looks for an eta between 0.05 and 0.30 for each task;
0.15 is the default here.

Where the paper is silent, or this differs from it:

- Which embeddings: those that a model reads tokens by, as in the authors' published code.
- Eq. 4 as it stands is nearly flat, because cosines lie between -1 and 1 and anchors are many: with ``sharpness=1`` not
  one of 100 texts of the demo's models differed from the primary's own. The authors' code multiplies rows of length 1
  by 100 instead. Here the cosines are multiplied by ``sharpness``; 10 was chosen on those 100 questions among 1, 5,
  10, 20 and 40.
- How p stays a distribution under Eq. 7: the step is taken on its logarithm, which is normalised after
  (``p <- p exp(-eta dl/dp) / Z``, mirror descent on the simplex), so no probability becomes 0 or negative. The
  authors' code optimises logits with AdamW. The loss is KL(mean || own).
- Distributions are over candidates: special tokens but EOS, and ids that stand for nothing, have no share.
"""

from __future__ import annotations

from ensemble.methods import Method
from ensemble.methods._relative import Search, make_rule
from ensemble.step.token_method import Setup, TokenRule

METHOD = Method(
    level="token",
    summary="the mean in a space of likeness to common tokens, searched back from (DeePEn, Huang et al., 2024)",
    when="to compare with it: every step goes through all pairs of tokens, which are billions in real vocabularies",
)

Options = Search


def make(setup: Setup, options: Search) -> TokenRule:
    """DeePEn for some members.

    Raises:
        InputError: They have too few tokens in common, or a model's embeddings cannot be read.
    """
    return make_rule("deepen", setup, setup.weights, options)
