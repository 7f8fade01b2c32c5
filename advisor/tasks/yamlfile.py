"""A YAML file of settings, and typed access to its keys, with messages that name the file and the key.

Not covered: several documents in one file, tags, keys that are not text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ensemble.errors import InputError


class Keys:
    """The keys of one mapping of a YAML file.

    Args:
        values: The mapping.
        file: The file, for messages.
        under: The keys above this mapping, each followed by a dot, for messages.
    """

    __slots__ = ("file", "under", "values")

    def __init__(self, values: Mapping[str, object], file: str, under: str = "") -> None:
        self.values, self.file, self.under = values, file, under

    def error(self, key: str, message: str) -> InputError:
        """An error about one key."""
        return InputError(f"{self.file}: {self.under}{key} {message}")

    def check(self, required: Iterable[str], allowed: Iterable[str]) -> None:
        """Raise InputError where a required key is missing or one is neither required nor allowed."""
        required = tuple(required)
        known = {*required, *allowed}
        for key in self.values:
            if key not in known:
                raise self.error(key, f"is not a key of a task file here; there are {', '.join(sorted(known))}")
        for key in required:
            if key not in self.values:
                raise self.error(key, "is missing; add it")

    def text(self, key: str) -> str | None:
        """A text, None where the key is absent."""
        value = self.values.get(key)
        if value is None and key not in self.values:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"must be text that is not blank, not {_shown(value)}")
        return self._valid(key, value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A text or a list of texts, as a tuple; empty where the key is absent. White space alone is text here."""
        if key not in self.values:
            return ()
        value = self.values[key]
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            raise self.error(key, f"must be a text or a list of texts, none of them empty, not {_shown(value)}")
        return tuple(self._valid(key, item) for item in items)

    def count(self, key: str, *, least: int) -> int | None:
        """A whole number of at least ``least``, None where the key is absent."""
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(key, f"must be a whole number of at least {least}, not {_shown(value)}")
        return value

    def mapping(self, key: str) -> Keys:
        """The mapping under a key; empty where the key is absent."""
        value = self.values.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise self.error(key, f"must hold keys of text with values, not {_shown(value)}")
        return Keys(value, self.file, f"{self.under}{key}.")

    def _valid(self, key: str, text: str) -> str:
        # "\\ud800" in YAML is half a surrogate pair, which no tokenizer and no file in UTF-8 can hold.
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise self.error(key, "holds half a surrogate pair; write the whole character")
        return text


class _Loader(yaml.SafeLoader):
    """The safe loader, without two things that do harm in a shared file.

    A key that is given twice is refused, since the later would silently win; so are aliases, by which a short file
    can stand for an endless one.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            names = [self.construct_object(key) for key, _ in node.value]
            twice = next(name for name in names if names.count(name) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice} is given twice", node.start_mark)
        return mapping


def read_yaml(path: Path) -> Keys:
    """Read a file that holds one mapping.

    Raises:
        InputError: The file cannot be read, is not YAML, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(
            f"{path} is not there; give the path of a task file, or a name that `advisor tasks` lists"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; give the path of a task file in UTF-8") from error
    try:
        # The class derives from SafeLoader: no object but the plain ones is ever made.
        values = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(_yaml_message(path, error)) from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{path} must hold keys with values, such as `name: refunds`, not {_shown(values)}")
    return Keys(values, str(path))


def _yaml_message(path: Path, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    what = str(getattr(error, "problem", None) or error).partition("\n")[0]
    where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
    hint = "quote text that begins with {{" if "unhashable" in what else "correct the line"
    return f"{where}: not valid YAML: {what}; {hint}"


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
