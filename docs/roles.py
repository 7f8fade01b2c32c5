"""Turn roles in docstrings, for example ``:class:`ensemble.Ensemble```, into links on the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`(?P<short>~?)(?P<name>[\w.]+)`")


class Roles(griffe.Extension):
    """Replace the roles of docstrings by cross-references."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **_: Any) -> None:  # noqa: ARG002  # griffe's
        """Rewrite the docstring of an object after griffe reads it."""
        if obj.docstring is None:
            return

        def link(match: re.Match[str]) -> str:
            name = match["name"]
            target = next((scope[name].canonical_path for scope in _scopes(obj) if name in scope.members), name)
            label = name.rpartition(".")[2] if match["short"] else name
            # Optional: a module without a page keeps its name as plain code, and the strict build passes.
            return f'<autoref optional identifier="{target}"><code>{label}</code></autoref>'

        obj.docstring.value = ROLE.sub(link, obj.docstring.value)


def _scopes(obj: griffe.Object) -> list[griffe.Object]:
    """The scopes in which to look up the names of a docstring, the innermost first."""
    scopes = []
    scope: griffe.Object | None = obj
    while scope is not None:
        scopes.append(scope)
        scope = scope.parent
    return scopes
