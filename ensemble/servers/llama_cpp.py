"""The adapter for llama.cpp's ``llama-server``: ``/completion`` with prompts as token ids.

What version 0.5.0 does, found in its source and by trials: no BOS is added to ids; log-probabilities are the softmax of
all logits before any sampler; minus infinity is the smallest number of float32. A token after which the text ends in
the middle of a character is in ``tokens``, but its log-probabilities are left out. With speculative decoding they are
left out too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ensemble.servers.client import ServerClient, ServerError
from ensemble.servers.schema import LlamaCppAnswer, LlamaCppPlace, LlamaCppToken, Tokenized
from ensemble.servers.token_server import (
    FIRST,
    SECOND,
    Ids,
    Logprobs,
    NextToken,
    ServerLimits,
    TokenServer,
    given,
    is_close,
    is_other_kind,
)

# The command line of the server sets other defaults. Samplers that are not in the list are not used.
_GREEDY = {
    **{"temperature": 0, "dynatemp_range": 0, "mirostat": 0, "samplers": ["temperature"], "ignore_eos": False},
    **{"cache_prompt": True, "post_sampling_probs": False, "backend_sampling": False, "return_tokens": True},
    "response_fields": ["tokens", "tokens_evaluated", "stop_type", "completion_probabilities"],
}
# Contexts and chosen ids at a time. The server has no limits; it works through long lists.
_CONTEXTS, _CHOSEN = 64, 128
# The server has no limit, but the log-probabilities of a whole large vocabulary are longer than the client reads.
_LARGEST_K = 10_000
# Top log-probabilities in which chosen ids are looked up first.
_USUAL_K = 500
# Log-probabilities of one answer: each has 100 to 200 bytes, and the client reads up to 4 MiB.
_VALUES = 20_000
# Is added to a logit for sampling only: the log-probabilities are those of the logits without it.
_FORCED = 1e9


class LlamaCppServer(TokenServer):
    """A :class:`~ensemble.servers.token_server.TokenServer` behind ``llama-server``; ``limits`` by :func:`probe`."""

    path = "/completion"

    def __init__(self, client: ServerClient, limits: ServerLimits, plain: int) -> None:
        super().__init__(client, limits)
        # An id whose text is a whole character: where it is forced, the server leaves no log-probabilities out.
        self._plain = plain

    def write(self, contexts: Sequence[Ids], max_tokens: int, k: int) -> list[list[NextToken]]:
        """See :class:`~ensemble.servers.token_server.TokenServer`."""
        results = _results(self.client, contexts, max_tokens, k)
        return [
            [self._next_token(*place, k) for place in self._places(context, result, k)]
            for context, result in zip(contexts, results, strict=True)
        ]

    def chosen(self, contexts: Sequence[Ids], ids: Ids) -> list[Logprobs]:
        """See :class:`~ensemble.servers.token_server.TokenServer`."""
        tops = [tokens[0].top for tokens in self.write(contexts, 1, min(_USUAL_K, self.limits.k))]
        found = [{index: top[index] for index in ids if index in top} for top in tops]
        # One by one, because a request can force only one token, in all of its contexts.
        for index in ids:
            rows = [n for n, logprobs in enumerate(found) if index not in logprobs]
            for n, value in zip(rows, self._logprobs([contexts[n] for n in rows], index), strict=True):
                found[n][index] = value
        return list(found)

    def tokenize(self, text: str) -> list[int] | None:
        """See :class:`~ensemble.servers.token_server.TokenServer`."""
        body = {"content": text, "add_special": False, "parse_special": True}
        path = self.client.root + "/tokenize"
        return list(self.client.checked(Tokenized, path, self.client.post(path, body)).tokens)

    def _places(self, context: Ids, result: LlamaCppAnswer, k: int) -> list[tuple[int, float, Logprobs]]:
        """The tokens of a result, their log-probabilities, and the top ones at their places.

        Where the server left log-probabilities out, all places are read again.
        """
        tokens = list(result.tokens)
        places = [(place.id, place.logprob, place.top) for place in result.completion_probabilities]
        if [token for token, *_ in places] == tokens and all(len(top) >= k for *_, top in places):
            return list(places)
        # One by one, because it is not clear which places are left out: two tokens in a row may be equal.
        tops = self._tops([[*context, *tokens[:n]] for n in range(len(tokens))], k)
        return [(token, top.get(token, -math.inf), top) for token, top in zip(tokens, tops, strict=True)]

    def _forced(self, contexts: Sequence[Ids], index: int, k: int) -> list[LlamaCppPlace | None]:
        """The place after each context, with its top log-probabilities and that of an id; None if it is left out."""
        places: list[LlamaCppPlace | None] = []
        for result in _results(self.client, contexts, 1, k, logit_bias=[[index, _FORCED]]):
            if result.tokens != (index,):
                raise self._invalid("has another token than the one that logit_bias forces")
            read = result.completion_probabilities
            places.append(read[0] if read and read[0].id == index else None)
        return places

    def _tops(self, contexts: Sequence[Ids], k: int) -> list[Logprobs]:
        """The top log-probabilities after each context, whatever the likeliest token is."""
        places = self._forced(contexts, self._plain, k)
        if None in places:
            raise self._invalid("has no log-probabilities of each token")
        return [place.top for place in places if place is not None]

    def _logprobs(self, contexts: Sequence[Ids], index: int) -> list[float]:
        """The log-probability of an id after each context."""
        places = self._forced(contexts, index, 1) if contexts else []
        if None not in places:
            return [place.logprob for place in places if place is not None]
        # The text of this id ends in the middle of a character, so the server leaves it out where it is forced.
        tops = self._tops(contexts, self.limits.k)
        if not all(index in top for top in tops):
            raise ServerError(
                f"{self.client.address.url}: llama-server gives the log-probability of token {index}, whose text is a "
                f"part of a character, only among the likeliest {self.limits.k}; use vLLM or SGLang for this model",
                "refused",
            )
        return [top[index] for top in tops]


def probe(client: ServerClient) -> LlamaCppServer | None:
    """Find out by requests whether a server speaks this form, and what it gives; None if it does not."""
    try:
        # The answer to a list has another form, and that to a large number shows the size of the vocabulary.
        list(_results(client, [FIRST, SECOND], 1, 1))
        (result,) = _results(client, [FIRST], 1, _LARGEST_K)
        place = result.completion_probabilities[0]
        top, plain = place.top, next(each.id for each in place.top_logprobs if _is_plain(each))
    except (IndexError, StopIteration):
        return None
    except ServerError as error:
        if is_other_kind(error):
            return None
        raise
    server = LlamaCppServer(client, ServerLimits(len(top), _CONTEXTS, _CHOSEN, _context(client)), plain)
    (forced,) = given(lambda: server._forced([FIRST], plain, 1)) or [None]
    # A forced token has the log-probability that it has among the top ones, if the server gives that of any token.
    if forced is None or not is_close(forced.logprob, top[plain]):
        server.limits = replace(server.limits, chosen=0)
    return server


def _context(client: ServerClient) -> int | None:
    """Tokens of a context, as the server's settings say; None if they do not."""
    try:
        settings = client.get(client.root + "/props").get("default_generation_settings")
    except ServerError:
        return None
    length = settings.get("n_ctx") if isinstance(settings, dict) else None
    return length if isinstance(length, int) and length > 1 else None


def _results(
    client: ServerClient, contexts: Sequence[Ids], max_tokens: int, k: int, **fields: object
) -> Iterator[LlamaCppAnswer]:
    """The result of each context, in requests whose answers are not too long."""
    size, path = max(1, _VALUES // (max_tokens * k)), client.root + LlamaCppServer.path
    for start in range(0, len(contexts), size):
        prompts = [list(context) for context in contexts[start : start + size]]
        body = {**_GREEDY, **fields, "prompt": prompts, "n_predict": max_tokens, "n_probs": k}
        results = client.post_each(path, body)
        if len(results) != len(prompts):
            raise client.invalid_answer(path, f"does not have {len(prompts)} results")
        for prompt, answer in zip(prompts, results, strict=True):
            result = client.checked(LlamaCppAnswer, path, answer)
            # A server that adds BOS, or cuts long contexts, would give the log-probabilities of other contexts.
            if result.tokens_evaluated != len(prompt):
                raise client.invalid_answer(path, "does not count the tokens that were sent")
            count, stop = len(result.tokens), result.stop_type
            if not 1 <= count <= max_tokens or (count < max_tokens and stop not in ("eos", "limit")):
                raise client.invalid_answer(
                    path, f"has {count} of {max_tokens} tokens, and stops because of {str(stop)[:20]!r}"
                )
            yield result


def _is_plain(token: LlamaCppToken) -> bool:
    """Whether the text of a token is printable ASCII."""
    values = token.bytes
    return isinstance(values, list) and len(values) > 0 and all(value in range(0x21, 0x7F) for value in values)
