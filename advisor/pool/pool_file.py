"""The pool: the candidates, one a line.

    mistralai/Mistral-7B-Instruct-v0.3@c170c708  dtype=bfloat16
    ./models/my-finetune  name=mine  chat_template=never    # a folder beside this file
    facebook/nllb-200-distilled-600M  source=eng_Latn  target=deu_Latn
    ./models/llama-q4.gguf  dtype=bfloat16
    org/llama-gguf  gguf_file=llama-q4.gguf                 # a file of a hub's model
    org/large  device=cuda  num_gpus=1  num_cpus=8          # what it asks of a node, with --engine ray
    openai:http://127.0.0.1:8000/v1#org/name  key_env=MY_KEY

The last one is behind a server; see `remote`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from advisor.pool.resources import OPTIONS, Needs, read_needs
from advisor.servers.address import PREFIX, ServerAddress, read_server_line
from ensemble.errors import InputError
from ensemble.models.gguf import SUFFIX
from ensemble.models.spec import ChatTemplate, Checkpoint, Reads, Sides

DEMO = Path(__file__).parents[1] / "demo" / "pool.txt"
DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")
CHAT_TEMPLATES = ("auto", "always", "never")
READS = ("source", "prompt")
_OPTIONS = (
    *("name", "dtype", "device", "chat_template", "trust_remote_code", "source", "target", "reads", "gguf_file"),
    *OPTIONS,
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line of the pool file. What it leaves open (None) is decided by the run's own options.

    Attributes:
        name: Unique within the pool.
        checkpoint: Where the model is: in files, or behind a server.
        place: File and line, for messages.
        needs: What it asks of a node of a cluster.
    """

    name: str
    checkpoint: Checkpoint | ServerAddress
    place: str
    dtype: str | None = None
    device: str | None = None
    chat_template: ChatTemplate | None = None
    needs: Needs = field(default_factory=Needs)


def read_pool(pool: str) -> tuple[Candidate, ...]:
    """Read a pool file, or the bundled pool where ``pool`` is ``demo`` and no such file is there.

    Raises:
        InputError: The file is not there, is empty, or a line of it cannot be used; names file and line.
    """
    path = DEMO if pool == "demo" and not Path(pool).is_file() else Path(pool)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(
            f"--pool {pool}: there is no such file; give a file with a model a line, or the bundled pool, demo"
        ) from None
    except IsADirectoryError:
        raise InputError(f"--pool {pool}: is a folder; give a text file with a model a line") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--pool {pool}: cannot be read as UTF-8 text ({error})") from None
    candidates = tuple(_candidates(text, path))
    if not candidates:
        raise InputError(f"{path}: no model in it; write a hub id or a local folder on each line")
    return candidates


def _candidates(text: str, path: Path) -> Iterator[Candidate]:
    places: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"{path}:{number}"
        try:
            words = _words(line)
        except ValueError as error:
            raise InputError(f"{place}: {str(error).lower()}; close the quotation mark") from None
        if not words:
            continue
        candidate = _candidate(words, place, path.parent)
        if candidate.name in places:
            raise InputError(
                f"{place}: the name {candidate.name!r} is that of {places[candidate.name]} too; add name=ANOTHER"
            )
        places[candidate.name] = place
        yield candidate


def _words(line: str) -> list[str]:
    """The words of a line, without its comment; in a server's address # stands before the model's name."""
    if not line.lstrip().startswith(PREFIX):
        return shlex.split(line, comments=True)
    address, _, options = line.strip().replace("\t", " ").partition(" ")
    return [address, *shlex.split(options, comments=True)]


def _candidate(words: list[str], place: str, folder: Path) -> Candidate:
    if words[0].startswith(PREFIX):
        return _remote(words, place)
    options = dict(_option(word, place) for word in words[1:])
    if len(options) < len(words) - 1:
        raise InputError(f"{place}: an option is given twice")
    trust = _choice(options, "trust_remote_code", ("true", "false"), place) == "true"
    reads = cast("Reads | None", _choice(options, "reads", READS, place))
    sides = Sides(options.get("source"), options.get("target"), reads)
    checkpoint = replace(_checkpoint(words[0], place, folder, trust), sides=sides, gguf_file=_gguf_file(options, place))
    return Candidate(
        name=_name(options, checkpoint.name, place),
        checkpoint=checkpoint,
        place=place,
        dtype=_choice(options, "dtype", DTYPES, place),
        device=options.get("device"),
        chat_template=_template(options, place),
        needs=read_needs(options, place),
    )


def _remote(words: list[str], place: str) -> Candidate:
    address, options = read_server_line(words, place)
    return Candidate(
        _name(options, address.model.rstrip("/").rsplit("/", 1)[-1], place),
        address,
        place,
        chat_template=_template(options, place),
    )


def _name(options: dict[str, str], usual: str, place: str) -> str:
    name = options.get("name", usual)
    if not name.strip() or not name.isprintable():
        raise InputError(f"{place}: the name {name!r} must be printable and not empty")
    return name


def _template(options: dict[str, str], place: str) -> ChatTemplate | None:
    return cast("ChatTemplate | None", _choice(options, "chat_template", CHAT_TEMPLATES, place))


def _option(word: str, place: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or key not in _OPTIONS:
        raise InputError(f"{place}: {word!r} is no option of a model; there are {', '.join(_OPTIONS)}")
    return key, value


def _choice(options: dict[str, str], key: str, allowed: tuple[str, ...], place: str) -> str | None:
    value = options.get(key)
    if value is not None and value not in allowed:
        raise InputError(f"{place}: {key}={value}: not one of {', '.join(allowed)}")
    return value


def _gguf_file(options: dict[str, str], place: str) -> str | None:
    name = options.get("gguf_file")
    if name is not None and not name.lower().endswith(SUFFIX):
        raise InputError(f"{place}: gguf_file={name}: give the name of a file that ends in {SUFFIX}")
    return name


def _checkpoint(model: str, place: str, folder: Path, trust: bool) -> Checkpoint:
    try:
        path = folder / Path(model).expanduser()
        there, is_folder = path.exists(), path.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, a user that is not known
        raise InputError(f"{place}: {model!r} cannot be read as a path ({error}); correct it") from None
    if is_folder or (there and path.suffix.lower() == SUFFIX):
        # A file's own link stays: what it leads to in the hub's cache has a name without an ending.
        found = path.resolve() if is_folder else path.parent.resolve() / path.name
        return Checkpoint(str(found), trust_remote_code=trust)
    if there:
        raise InputError(f"{place}: {path} is a file, and no {SUFFIX} one; give the folder that it is in")
    if model.startswith((".", "/", "~")):
        what = "file" if path.suffix.lower() == SUFFIX else "folder"
        raise InputError(f"{place}: {path}: there is no such {what}; paths are relative to the pool file")
    return _on_hub(model, place, trust)


def _on_hub(model: str, place: str, trust: bool) -> Checkpoint:
    hub_id, at, revision = model.partition("@")
    if not _HUB_ID.fullmatch(hub_id):
        raise InputError(f"{place}: {model!r} is neither a folder beside the pool file nor a hub id like org/name")
    if at and not revision:
        raise InputError(f"{place}: {model!r} names no revision; write one after the @, or leave the @ out")
    if trust and not _COMMIT.fullmatch(revision):
        raise InputError(
            f"{place}: trust_remote_code runs code from the hub, so it needs a pinned revision: "
            f"{hub_id}@COMMIT with all 40 digits"
        )
    checkpoint = Checkpoint(hub_id, revision or None, trust)
    if checkpoint.is_local:
        raise InputError(
            f"{place}: {hub_id} is a folder of the current directory, and paths are relative to the pool file; "
            "write the path from there"
        )
    return checkpoint
