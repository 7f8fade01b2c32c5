"""What is said of candidates behind a server in the advice: what they can be used for, and what not."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from advisor.records import Selection
from advisor.verify.advice import Advice


def undecodable(selection: Selection, remote: Collection[str]) -> Advice:
    """The verdict where fewer than two candidates can be decoded together, so that the rules chose among all of them.

    Args:
        selection: The rules' outcome, with a candidate behind a server in the set.
        remote: The names of all that are behind a server.
    """
    best, *others = selection.selected
    if not others:
        left = len(selection.decisions) - 1
        why = "it is the only candidate that could be run" if not left else "by the rules no other candidate joins it"
        return Advice("single", f"Use {best} alone: {why}.")
    behind = [name for name in selection.selected if name in remote]
    them = "them" if len(behind) > 1 else "it"
    return Advice(
        "single",
        f"Use {best} alone: by the rules {_join(selection.selected)} fit, but {_join(behind)} "
        f"{_are(behind)} behind a server, which gives texts and no probabilities of a whole vocabulary, so no ensemble "
        f"with {them} can be decoded token by token.",
    )


def behind_server(selection: Selection, remote: Collection[str], voters: Sequence[str]) -> str | None:
    """A sentence on candidates behind a server that are not in the set; None where there are none, or none in a vote.

    Args:
        selection: The rules' outcome.
        remote: The names of all that are behind a server.
        voters: Whose answers to the held-out questions a vote and a router took.
    """
    away = [name for name in voters if name in remote]
    if not away or remote_in(selection, remote):
        return None
    return (
        f"By the rules {_join(away)} would be in the set, but {_are(away)} behind a server and cannot be decoded token "
        f"by token: the set was chosen among the others and is held against {_join(away)} alone, too; a vote and a "
        f"router were tried among {_join(voters)}."
    )


def remote_in(selection: Selection, remote: Collection[str]) -> bool:
    """Whether a candidate behind a server is in the set."""
    return any(name in remote for name in selection.selected)


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
