"""The adapter for vLLM: ``/completions`` with prompts as token ids. ``advisor serve`` of one model takes the same.

What vLLM 0.32 does, found by trials: no BOS is added to ids; without ``return_tokens_as_token_ids`` tokens with equal
texts collide; ``logprob_token_ids`` replaces the top log-probabilities; minus infinity is written as -9999.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ensemble.servers.client import ServerClient, ServerError
from ensemble.servers.schema import VllmAnswer, VllmChoice
from ensemble.servers.token_server import (
    CAPS,
    FIRST,
    SECOND,
    Ids,
    Logprobs,
    NextToken,
    ServerLimits,
    TokenServer,
    context_length,
    gives_chosen,
    largest_k,
)

_PATH = "/completions"
# The defaults come from the model's generation_config.json, so every one of them is sent.
_GREEDY = {
    **{"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0},
    **{"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0},
    "return_tokens_as_token_ids": True,
}
_CONTEXTS, _CHOSEN = 1024, 128
"""vLLM's limits of a request."""


class VllmServer(TokenServer):
    """A :class:`~ensemble.servers.token_server.TokenServer` behind vLLM."""

    appends = False
    """Whether chosen ids are appended to prompts: versions without ``logprob_token_ids`` give them so."""

    def __init__(self, client: ServerClient, limits: ServerLimits) -> None:
        super().__init__(client, limits)
        self._path = _PATH

    def write(self, contexts: Sequence[Ids], max_tokens: int, k: int) -> list[list[NextToken]]:
        """See :class:`~ensemble.servers.token_server.TokenServer`."""
        choices = self._choices(contexts, max_tokens=max_tokens, logprobs=k)
        return [self._tokens(choice, max_tokens, k) for choice in choices]

    def chosen(self, contexts: Sequence[Ids], ids: Ids) -> list[Logprobs]:
        """See :class:`~ensemble.servers.token_server.TokenServer`."""
        if self.appends:
            return self._appended(contexts, ids)
        choices = self._choices(contexts, max_tokens=1, logprobs=1, logprob_token_ids=list(ids))
        # The server adds the token that it would write, which may be none of these ids.
        tops = [self._tokens(choice, 1, 0)[0].top for choice in choices]
        if any(index not in top for top in tops for index in ids):
            raise self._invalid("lacks log-probabilities of logprob_token_ids")
        return [{index: top[index] for index in ids} for top in tops]

    def _appended(self, contexts: Sequence[Ids], ids: Ids) -> list[Logprobs]:
        """The log-probability of each id as the last token of a prompt."""
        prompts = [[*context, index] for context in contexts for index in ids]
        choices = self._choices(prompts, max_tokens=1, prompt_logprobs=0)
        values = []
        for choice, prompt in zip(choices, prompts, strict=True):
            logprobs = choice.prompt_logprobs or ()
            entry = (logprobs[-1] or {}).get(str(prompt[-1])) if len(logprobs) == len(prompt) else None
            if entry is None:
                raise self._invalid("has no prompt_logprobs of every token")
            values.append(entry.logprob)
        starts = range(0, len(values), len(ids))
        return [dict(zip(ids, values[start : start + len(ids)], strict=True)) for start in starts]

    def _choices(self, contexts: Sequence[Ids], **fields: object) -> list[VllmChoice]:
        answer = self.client.post(_PATH, {**_GREEDY, **fields, "prompt": [list(context) for context in contexts]})
        read = self.client.checked(VllmAnswer, _PATH, answer)
        choices = sorted(read.choices, key=lambda choice: choice.index)
        if [choice.index for choice in choices] != list(range(len(contexts))):
            raise self._invalid(f"does not have {len(contexts)} choices with their index")
        # A server that adds BOS to the ids would give the log-probabilities of other contexts.
        if read.usage.prompt_tokens != sum(map(len, contexts)):
            raise self._invalid("does not count the tokens that were sent")
        return choices

    def _tokens(self, choice: VllmChoice, max_tokens: int, k: int) -> list[NextToken]:
        """What a choice tells of each token, with at least k log-probabilities; 0 if they are those of chosen ids."""
        if (found := choice.logprobs) is None:
            raise self._invalid("has no log-probabilities of each token")
        ids, values, tops = found.tokens, found.token_logprobs, found.top_logprobs
        if not 1 <= len(ids) == len(values) == len(tops) <= max_tokens:
            raise self._invalid("has no log-probabilities of each token")
        places = list(zip(ids, values, tops, strict=True))
        # Chosen ids need not have the likeliest one among them.
        return [self._next_token(*place, k) if k else NextToken(place[0], place[2]) for place in places]


def probe(client: ServerClient) -> VllmServer | None:
    """Find out by requests whether a server speaks this form, and what it gives; None if it does not."""
    server = VllmServer(client, ServerLimits(CAPS[-1], _CONTEXTS, 0, context_length(client)))
    try:
        first = server.write([FIRST, SECOND], 2, CAPS[-1])[0][0].top
    except ServerError as error:
        # Refused, or answered in another form: not a vLLM. Anything else will not go better with another adapter.
        if error.failure == "refused" or (error.status is None and error.failure == "invalid"):
            return None
        raise
    server.limits = replace(server.limits, k=largest_k(server))
    # Each pair of a context and an appended id is a prompt.
    for contexts, chosen, appends in ((_CONTEXTS, _CHOSEN, False), (_CONTEXTS // 16, 16, True)):
        server.appends = appends
        if gives_chosen(server, first):
            server.limits = replace(server.limits, contexts=contexts, chosen=chosen)
            break
    return server
