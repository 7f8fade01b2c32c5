"""YAML from untrusted files: no Python objects, no aliases, no key twice, and one line for every fault."""

from __future__ import annotations

from typing import Any

import yaml

from ensemble.errors import InputError


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses two things that do harm in a shared file."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # By aliases a short file can describe an endless one.
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        # YAML would silently take the last of two equal keys.
        if len(mapping) < len(node.value):
            names = [self.construct_object(key) for key, _ in node.value]
            twice = next(name for name in names if names.count(name) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice} is given twice", node.start_mark)
        return mapping


def parse_yaml(text: str, place: str) -> object:
    """The value of a YAML text; `place` is the file, for messages, which name the line."""
    try:
        # The class derives from SafeLoader, so YAML tags cannot create Python objects.
        return yaml.load(text, Loader=_Loader)
    # Not only YAMLError: the library's own tags raise what their conversion raises. `!!int ""` is an IndexError,
    # `!!bool x` a KeyError, `!!timestamp x` an AttributeError.
    except (
        yaml.YAMLError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or error).partition("\n")[0]
        where = f"{place}:{mark.line + 1}" if mark is not None else place
        hint = "quote text that begins with {{" if "unhashable" in problem else "correct the line"
        raise InputError(f"{where}: not valid YAML: {problem}; {hint}") from error
