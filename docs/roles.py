"""Docstrings name other things as ``:class:`ensemble.Ensemble```; on the site that is a link, where there is a page."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`(?P<short>~?)(?P<name>[\w.]+)`")


class Roles(griffe.Extension):
    """Turns the roles of docstrings into cross-references that may lead nowhere: not every module has a page."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **_: Any) -> None:  # noqa: ARG002  # griffe's
        """Rewrite one docstring, once it has been read."""
        if obj.docstring is None:
            return

        def link(match: re.Match[str]) -> str:
            name = match["name"]
            found = next((owner[name].canonical_path for owner in _around(obj) if name in owner.members), name)
            shown = name.rpartition(".")[2] if match["short"] else name
            return f'<autoref optional identifier="{found}"><code>{shown}</code></autoref>'

        obj.docstring.value = ROLE.sub(link, obj.docstring.value)


def _around(obj: griffe.Object) -> list[griffe.Object]:
    """The scopes in which a docstring's names are looked up, the innermost first."""
    scopes = []
    scope: griffe.Object | None = obj
    while scope is not None:
        scopes.append(scope)
        scope = scope.parent
    return scopes
