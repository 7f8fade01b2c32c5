"""Where a result came from: the command, the versions and the models' files that it takes to make it again."""

from __future__ import annotations

from dataclasses import dataclass

from reports.fields import Fields


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model came from, and the SHA-256 of its files."""

    name: str
    source: str
    revision: str
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Provenance:
    """What it takes to make the result again; ``facts`` and ``versions`` are names with their values, as text."""

    command: str
    created: str
    facts: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    models: tuple[ModelFiles, ...]


def read_provenance(fields: Fields) -> Provenance:
    """Read the ``provenance`` of ``result.json``."""
    times, models = fields.part("times"), fields.part("models")
    facts = [(_name(name), fields.line(name)) for name in fields.values if _is_fact(fields, name)]
    facts += [(f"{_name(name)} took", _seconds(times, name)) for name in times.values]
    return Provenance(
        command=fields.line("command"),
        created=fields.line("created"),
        facts=tuple(facts),
        versions=_items(fields.part("versions")),
        models=tuple(_model_files(_name(name), models.part(name)) for name in models.values),
    )


def _is_fact(fields: Fields, name: str) -> bool:
    """Return whether a field is a plain value that has no place of its own on the page."""
    value = fields.values[name]
    return name not in ("command", "created") and value is not None and not isinstance(value, dict | list)


def _model_files(name: str, fields: Fields) -> ModelFiles:
    return ModelFiles(name, fields.line("path_or_id"), fields.line("revision"), _items(fields.part("files")))


def _items(fields: Fields) -> tuple[tuple[str, str], ...]:
    return tuple((_name(name), fields.line(name)) for name in fields.values)


def _seconds(times: Fields, name: str) -> str:
    value = times.values[name]
    return f"{value:.1f} s" if times.is_number(name) and times.number(name) is not None else times.line(name)


def _name(key: str) -> str:
    return Fields({"key": key}, "").line("key")
