"""Weights from each member's perplexity of the prompt: PackLLM-sim (Mavromatis et al., "Pack of LLMs", 2024).

With ``l_i`` the mean negative log-probability of a prompt's tokens under member i, the logarithm of its perplexity:

    a_i = exp(-l_i / t) / sum_j exp(-l_j / t), with t = 1 as in the authors' code

So each prompt has other weights. A difference from the authors: they compute ``l_i`` over one member's vocabulary, to
which the others are mapped; here each member reads its own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy

from ensemble.errors import InputError, MemberError
from ensemble.models.member import Member

_PIECE = 256
"""Tokens to read at a time: the logits of a whole prompt can need gigabytes."""


def perplexity_weights(members: Sequence[Member], prompts: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """The members' weights for a prompt, 1 in all.

    Args:
        members: Causal models in this process.
        prompts: The prompt's ids in each member.

    Raises:
        InputError: A member is an encoder-decoder model, or its weights are elsewhere.
        MemberError: A member's logits are not numbers.
    """
    losses = [prompt_loss(member, prompt) for member, prompt in zip(members, prompts, strict=True)]
    weights: list[float] = torch.tensor(losses, dtype=torch.float64).neg().softmax(dim=0).tolist()
    return tuple(weights)


@torch.inference_mode()
def prompt_loss(member: Member, prompt: Sequence[int]) -> float:
    """The mean negative log-probability of a prompt's tokens after the first, in nats; 0 for a single token.

    Raises:
        InputError: See :func:`perplexity_weights`.
        MemberError: See :func:`perplexity_weights`.
    """
    # The ids that an encoder reads are negative.
    if min(prompt) < 0:
        raise InputError("weights perplexity needs causal models, and it has an encoder", of=member.name)
    runner = member.local.runner()
    logits = runner.prefill([prompt[:1]])
    loss = 0.0
    for first in range(1, len(prompt), _PIECE):
        piece = list(prompt[first : first + _PIECE])
        before = logits[0, -1:].double()
        logits = runner.extend([first], [piece], last=len(piece))
        scores = torch.cat([before, logits[0, :-1].double()])
        loss += float(cross_entropy(scores, torch.tensor(piece, device=scores.device), reduction="sum"))
    if loss != loss:  # noqa: PLR0124  # NaN
        raise MemberError("its logits are not numbers (NaN)", of=member.name)
    return loss / max(1, len(prompt) - 1)
