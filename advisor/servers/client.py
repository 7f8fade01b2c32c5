"""Asking a server: the openai client with its retries, and every fault of the server as one line.

A key is read from the environment when it is needed, is held by nothing that is kept or shown, and is taken out of all
that the server says. What the server says is untrusted: its types are looked at, not believed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from advisor.servers.address import Remote
from ensemble.errors import InputError, MemberError
from ensemble.models.spec import first_line

if TYPE_CHECKING:
    import httpx2

RETRIES = 4
"""After the first try, with the client's own growing pauses: 0.5 s, 1, 2, 4; or those that the server asks for."""
_SECRET = 8
"""Shorter keys ("EMPTY") keep nobody out, and taking them out of texts would spoil these."""
_SHOWN = 200
"""Characters of a server's own words in a message."""

Trouble = Literal["hopeless", "lost", "refused"]
"""Whether all other questions would fail likewise, this one got no proper answer, or the server will not answer it."""


class ServerError(MemberError):
    """A question that a server did not answer.

    Args:
        message: Why, without the key.
        trouble: What that says of other questions.
        status: Of HTTP, where there was an answer with one that says so.
    """

    def __init__(self, message: str, trouble: Trouble, status: int | None = None) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.status = status


class Server:
    """A connection to a server, for several threads at a time.

    Args:
        remote: Where it is.
        retries: After a first try that failed on the way, or for which there was no room.

    Raises:
        InputError: The openai client is not installed, or there is no key where there should be one.
    """

    def __init__(self, remote: Remote, retries: int = RETRIES) -> None:
        try:
            import openai
        except ImportError:
            raise InputError(
                "a model behind a server needs the openai client, which is not installed; "
                "pip install 'unite-advisor[openai]'"
            ) from None
        from advisor.servers.traffic import Guard

        self.remote = remote
        self._key = read_key(remote)
        self._http = Guard(remote, self._key).client()
        # The guard signs requests; the client only wants something in place of a key.
        self._client = openai.OpenAI(
            base_url=remote.url, api_key="none", max_retries=retries, timeout=self._http.timeout, http_client=self._http
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str) -> Mapping[str, Any]:
        """Ask for something that the server has.

        Raises:
            ServerError: There is no proper answer.
        """
        return self._asked(path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the server to do something.

        Raises:
            ServerError: There is no proper answer.
        """
        return self._asked(path, {"model": self.remote.model, **body})

    def hide(self, text: str) -> str:
        """A text of the server's: without the key, should the server repeat it, and without half characters."""
        if self._key is not None and len(self._key) >= _SECRET:
            text = text.replace(self._key, "[key]")
        return text.encode(errors="replace").decode()

    def _asked(self, path: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        import httpx2
        import openai

        try:
            if body is None:
                response = self._client.get(path, cast_to=httpx2.Response)
            else:
                response = self._client.post(path, cast_to=httpx2.Response, body=body)
        except openai.APIStatusError as error:
            # Not chained: the client's message is what the server said, and that may be the key.
            raise self._of_status(error.status_code, error.response) from None
        except openai.APITimeoutError:
            raise ServerError(
                f"{self.remote.url} did not answer within {self.remote.timeout:g} s; give it more with "
                "timeout=SECONDS on its line, or ask less at a time with concurrency=",
                "lost",
            ) from None
        except (UnicodeError, httpx2.InvalidURL):
            raise ServerError(f"{self.remote.url} is no address that can be asked; correct it", "hopeless") from None
        except openai.APIConnectionError as error:
            reason = self.hide(first_line(error.__cause__ or error))
            raise ServerError(
                f"no server answers at {self.remote.url} ({reason}); start it, or correct the address", "lost"
            ) from None
        except MemberError as error:  # of the guard
            raise ServerError(f"{self.remote.url}: {error}", "lost") from None
        return self._read(path, response)

    def _read(self, path: str, response: httpx2.Response) -> Mapping[str, Any]:
        try:
            found = json.loads(response.content)
        except (ValueError, RecursionError):
            begins = self.said(response.text)
            raise self.nonsense(
                path, f"is not JSON; it begins with {begins[:60]!r}" if begins else "is empty"
            ) from None
        if not isinstance(found, dict):
            raise self.nonsense(path, "is not a JSON object")
        if "error" in found and "choices" not in found and "data" not in found:
            raise ServerError(f"{self.remote.url}{path}: {self._complaint(found)}", "lost")
        return found

    def nonsense(self, path: str, what: str) -> ServerError:
        """An answer that is none of a server of this kind."""
        return ServerError(
            f"{self.remote.url}{path}: the answer {what}; is this the address of an OpenAI-compatible server?", "lost"
        )

    def said(self, text: str) -> str:
        """What a server said, as a piece of a line."""
        return " ".join(self.hide(text).split())[:_SHOWN]

    def _complaint(self, found: object) -> str:
        """The message of an error, in one of the forms that servers give it."""
        said = found
        for name in ("error", "message"):
            said = said.get(name, said) if isinstance(said, dict) else said
        if isinstance(said, dict):
            said = said.get("detail", said)
        return self.said(said if isinstance(said, str) else json.dumps(said))

    def _of_status(self, status: int, response: httpx2.Response) -> ServerError:
        url, key_env = self.remote.url, key_variable(self.remote)
        try:
            complaint = self._complaint(json.loads(response.content))
        except (ValueError, RecursionError):
            complaint = self.said(response.text)
        says = f" and says: {complaint}" if complaint else ""
        trouble: Trouble = "lost"
        if status < 400:
            place = self.said(response.headers.get("location", "another place"))
            trouble, text = "hopeless", f"sends on to {place} ({status}); write that address, if you trust it"
        elif status in (401, 403) and key_env is None:
            how = "name the environment variable that holds one with key_env=NAME on its line"
            trouble, text = "hopeless", f"wants a key ({status}); {how}"
        elif status in (401, 403):
            how = f"the key in the environment variable {key_env} ({status})"
            trouble, text = "hopeless", f"refuses {how}; correct the key, or what it may be used for"
        elif status == 404:
            trouble, text = "hopeless", f"has no such thing (404){says}"
        elif status == 429:
            pause = self.said(response.headers.get("retry-after", ""))
            asks = f", and asks for a pause of {pause} s" if pause else ""
            less = "ask less with requests_per_minute= or concurrency= on its line, or later"
            text = f"takes no more requests now (429){asks}{says}; {less}"
        elif status >= 500:
            text = f"failed ({status}){says}"
        else:
            trouble, text = "refused", f"refuses what it is asked ({status}){says}"
        return ServerError(f"{url} {text}", trouble, status)


def key_variable(remote: Remote) -> str | None:
    """The environment variable that a server's key is in; None where it gets none.

    ``OPENAI_API_KEY`` is for its owner's hosts alone, over TLS: every other server gets a key only by name.
    """
    return remote.key_env or ("OPENAI_API_KEY" if remote.is_openai else None)


def read_key(remote: Remote) -> str | None:
    """The key, from the environment.

    Raises:
        InputError: It should be there and is not, or could not be sent.
    """
    variable = key_variable(remote)
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key and remote.key_env is not None:
        # Not named: who mistook the option may have written the key itself.
        raise InputError("the environment variable that key_env names is not set, or is empty; set it to the key")
    if not key:
        raise InputError(f"the environment variable {variable} is not set, or is empty; set it to the key")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"the environment variable {variable} holds what cannot be a key (spaces or odd characters)")
    return key
