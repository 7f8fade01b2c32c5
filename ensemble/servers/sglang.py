"""The adapter for SGLang: ``/generate`` with ``input_ids``.

Written from the source of version 0.5.23, and not yet tried with a server. What it does: no BOS is added to ids;
log-probabilities are the float32 log-softmax over all ids if the temperature is 0; values that are not finite are null
in JSON; EOS is among the tokens. A request that would leave the context is refused, so it is cut here. The server does
not limit ``top_logprobs_num``, but a number above the size of the vocabulary stops it, so no large one is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ensemble.servers.client import ServerClient, ServerError
from ensemble.servers.schema import SglangAnswer, SglangTokens
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
    is_other_kind,
    largest_k,
)

# The server's --preferred-sampling-params sets other defaults. It refuses names that it does not know.
_GREEDY = {
    **{"temperature": 0, "top_p": 1, "min_p": 0, "min_new_tokens": 0, "ignore_eos": False},
    **{"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0},
}
# Contexts and chosen ids of a request; the server has no limits.
_CONTEXTS, _CHOSEN = 256, 128


class SglangServer(TokenServer):
    """A :class:`~ensemble.servers.token_server.TokenServer` behind SGLang."""

    path = "/generate"

    def write(self, contexts: Sequence[Ids], max_tokens: int, k: int) -> list[list[NextToken]]:
        """See :class:`~ensemble.servers.token_server.TokenServer`."""
        return [self._tokens(result, k) for result in self._results(contexts, max_tokens, k)]

    def chosen(self, contexts: Sequence[Ids], ids: Ids) -> list[Logprobs]:
        """See :class:`~ensemble.servers.token_server.TokenServer`."""
        found: list[Logprobs] = []
        for meta in self._results(contexts, 1, 1, list(ids)):
            rows = meta.output_token_ids_logprobs
            values = dict((rows[0] if rows else None) or ())
            # NaN and minus infinity are both null; the token that the server chose tells them apart.
            self._tokens(meta, 1)
            if any(index not in values for index in ids):
                raise self._invalid("lacks log-probabilities of token_ids_logprob")
            found.append({index: values[index] for index in ids})
        return found

    def _results(
        self, contexts: Sequence[Ids], max_tokens: int, k: int, ids: list[int] | None = None
    ) -> Iterator[SglangTokens]:
        """The ``meta_info`` of each context."""
        # The server refuses the whole request if one context has too few places for max_new_tokens. One at least: then
        # it says that the context is full.
        most = self.limits.context
        counts = [max_tokens if most is None else max(1, min(max_tokens, most - len(each))) for each in contexts]
        body = {
            "input_ids": [list(context) for context in contexts],
            "sampling_params": [{**_GREEDY, "max_new_tokens": n} for n in counts],
            **{"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": k, "token_ids_logprob": ids},
            "return_text_in_logprobs": False,
        }
        results = self.client.post_each(self._path, body)
        if len(results) != len(contexts):
            raise self._invalid(f"does not have {len(contexts)} results")
        for context, count, result in zip(contexts, counts, results, strict=True):
            meta = self.client.checked(SglangAnswer, self._path, result).meta_info
            self._check(meta, len(context), count)
            yield meta

    def _check(self, meta: SglangTokens, length: int, max_tokens: int) -> None:
        reason = meta.finish_reason
        if isinstance(reason, dict) and reason.get("type") == "abort":
            raise ServerError(f"{self.client.address.url}: SGLang stopped a request before its end", "temporary")
        # A server that adds BOS, or cuts long contexts, would give the log-probabilities of other contexts.
        if meta.prompt_tokens != length:
            raise self._invalid("does not count the tokens that were sent")
        if not 1 <= len(meta.output_token_logprobs) <= max_tokens:
            raise self._invalid(f"does not have 1 to {max_tokens} tokens")

    def _tokens(self, meta: SglangTokens, k: int) -> list[NextToken]:
        written, tops = meta.output_token_logprobs, meta.output_top_logprobs or ()
        if len(written) != len(tops):
            raise self._invalid("has no top log-probabilities of each token")
        return [self._next_token(*token, dict(top), k) for token, top in zip(written, tops, strict=True)]


def probe(client: ServerClient) -> SglangServer | None:
    """Find out by requests whether a server speaks this form, and what it gives; None if it does not."""
    try:
        server = SglangServer(client, ServerLimits(CAPS[-1], _CONTEXTS, 0, context_length(client)))
        first = server.write([FIRST, SECOND], 2, CAPS[-1])[0][0].top
    except ServerError as error:
        if is_other_kind(error):
            return None
        raise
    chosen = _CHOSEN if gives_chosen(server, first) else 0
    server.limits = replace(server.limits, k=largest_k(server), chosen=chosen)
    return server
