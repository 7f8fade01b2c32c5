"""Finding out what a server gives: each kind of server is tried by requests, and nothing is assumed."""

from __future__ import annotations

from ensemble.errors import InputError
from ensemble.servers import llama_cpp, sglang, vllm
from ensemble.servers.address import ServerAddress
from ensemble.servers.client import ServerClient, ServerError
from ensemble.servers.token_server import Logprobs, TokenServer

_PROBES = (vllm.probe, sglang.probe, llama_cpp.probe)
# A busy server may drop a connection, but an absent one must be reported soon.
_RETRIES = 2
_CONTEXT = tuple(range(10, 20))


def connect(address: ServerAddress, name: str) -> TokenServer:
    """The connection to a model behind a server, as a member of a token-level ensemble.

    Args:
        address: The server and the model.
        name: The member, for messages.

    Raises:
        InputError: The server does not have the model, it refuses the key, or it does not give top log-probabilities by
            token id; the message says which option would give them.
        ServerError: No server answers, or it is too busy.
    """
    client = ServerClient(address, retries=_RETRIES)
    try:
        server = next((found for probe in _PROBES if (found := probe(client)) is not None), None)
        if server is None:
            raise InputError(
                "its server does not give top log-probabilities by token id, so it cannot be decoded token by "
                "token; serve the model with vLLM, SGLang or llama.cpp, or let it vote with whole texts (leave "
                "tokenizer= out)",
                of=name,
            )
        _check_values(server, name)
        # A fault may mean that the server was restarted, which the member must know.
        client.stop_retrying()
    except ServerError as error:
        client.close()
        if error.failure == "temporary":
            # The server may give everything, and does not answer now.
            raise ServerError(f"{name}: {error}", error.failure, error.status) from None
        raise InputError(str(error), of=name) from None
    except InputError:
        client.close()
        raise
    return server


def _check_values(server: TokenServer, name: str) -> None:
    """Make sure that the values are log-probabilities of the model, before any sampling option changes them."""
    ((token,),) = server.write([_CONTEXT], 1, min(5, server.limits.k))
    if not _are_logprobs(token.top) or token.top.get(token.token) != max(token.top.values()):
        raise InputError(
            "its server does not give the model's own log-probabilities; start it with --logprobs-mode raw_logprobs",
            of=name,
        )


def _are_logprobs(top: Logprobs) -> bool:
    # Rounding may put the log-probability of a certain token a little above 0.
    return all(value <= 1e-3 for value in top.values())
