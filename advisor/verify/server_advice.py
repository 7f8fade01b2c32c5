"""The part of the advice about candidates behind a server, which cannot be decoded token by token."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from advisor.records import Selection, join
from advisor.verify.advice import Advice


def undecodable(selection: Selection, remote: Collection[str]) -> Advice:
    """The verdict if fewer than two candidates can be decoded together; the rules then choose among all candidates.

    Args:
        selection: The rules' outcome; a candidate behind a server is in the set.
        remote: The names of all candidates behind a server.
    """
    best, *others = selection.selected
    if not others:
        left = len(selection.decisions) - 1
        if not left:
            return Advice("single", f"Use {best} alone: it is the only candidate that could be run.")
        return Advice("single", f"By the rules no set can decode together: no other candidate fits {best}.")
    on_server = [name for name in selection.selected if name in remote]
    them = "them" if len(on_server) > 1 else "it"
    return Advice(
        "single",
        f"No set can decode together: by the rules {join(selection.selected)} fit, but {join(on_server)} "
        f"{_are(on_server)} behind a server, which gives texts and no probabilities of a whole vocabulary, so no "
        f"ensemble with {them} can be decoded token by token.",
    )


def behind_server(selection: Selection, remote: Collection[str], voters: Sequence[str]) -> str | None:
    """A sentence on candidates behind a server that voted without being in the set; None if no candidate did.

    Args:
        selection: The rules' outcome.
        remote: The names of all candidates behind a server.
        voters: The candidates of the vote and the router.
    """
    apart = [name for name in voters if name in remote]
    if not apart or remote_in(selection, remote):
        return None
    return (
        f"By the rules {join(apart)} would be in the set, but {_are(apart)} behind a server and cannot be decoded "
        f"token by token: the set was chosen among the others and is also compared with {join(apart)} alone; a vote "
        f"and a router were tried among {join(voters)}."
    )


def remote_in(selection: Selection, remote: Collection[str]) -> bool:
    """Whether a candidate behind a server is in the set."""
    return any(name in remote for name in selection.selected)


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
