"""The pool file: the candidates, one per line.

    mistralai/Mistral-7B-Instruct-v0.3@c170c708  dtype=bfloat16
    ./models/my-finetune  name=mine  chat_template=never    # a folder next to this file
    facebook/nllb-200-distilled-600M  source=eng_Latn  target=deu_Latn
    ./models/llama-q4.gguf  dtype=bfloat16
    org/llama-gguf  gguf_file=llama-q4.gguf                 # a file of a hub model
    org/large  quantization=4bit                            # rounded while it is loaded, on a GPU
    org/large  device=cuda  num_gpus=1  num_cpus=8          # its resources on a node, with --engine ray
    openai:http://127.0.0.1:8000/v1#org/name  key_env=MY_API_KEY
    openai:http://127.0.0.1:8001/v1#org/big   tokenizer=./tokenizers/big
    ./models/my-finetune  name=steps  prompt=steps.txt      # the same model with another prompt

``#*`` stands for all models of a server; see :mod:`ensemble.models.spec` for the options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from advisor.records import fits, fits_patterns
from ensemble.common.text import did_you_mean
from ensemble.errors import InputError
from ensemble.methods._response import read_prompt
from ensemble.models.choices import GGUF_SUFFIX
from ensemble.models.prompts import LONGEST_TEMPLATE
from ensemble.models.spec import COMMIT, HUB_ID, Checkpoint, ModelSpec
from ensemble.servers.address import ALL, PREFIX, read_address

DEMO = Path(__file__).parents[1] / "demo" / "pool.txt"
BUNDLED = {"demo": DEMO, "demo-thinking": DEMO.with_name("thinking.txt")}
_ADDRESS = re.compile(
    r"(?:https?:)?//|(?:localhost|[\w.-]+\.[\w-]+):\d+(?:/|$)|(?:www\.)?huggingface\.co/", re.IGNORECASE
)
URL = re.compile(rf"(?:{PREFIX})?https?://", re.IGNORECASE)
_DATA = {".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx"}
TASKS = {".yaml", ".yml"}
_MODEL = re.compile(rf"\s*({PREFIX}\S+|\S+/\S*|\S+{GGUF_SUFFIX})(\s+\w+=\S+)*\s*(#.*)?")


def read_pool(pool: str) -> tuple[ModelSpec, ...]:
    """Read a pool file, or ``demo`` or ``demo-thinking``, which are bundled (``./demo`` is a file), or ask a server."""
    if URL.match(pool):
        return tuple(_specs(_words(f"{PREFIX}{pool.removeprefix(PREFIX)}", "--pool"), "--pool", Path()))
    # The bundled pool first: a stranger's file must not take the place of a name that the documentation gives.
    path = BUNDLED.get(pool, Path(pool))
    # Its first line as a model would have a message about a model.
    if {suffix.lower() for suffix in path.suffixes} & (_DATA | TASKS) and path.is_file():
        raise InputError(
            f"--pool {pool}: this looks like data or a task file, and a pool file has one model per line; "
            f"`advisor {pool}` says what it is for"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(
            f"--pool {pool}: no such file; {did_you_mean(pool, BUNDLED)}give one with one model per line, or a "
            "bundled pool: demo or demo-thinking"
        ) from None
    except IsADirectoryError:
        raise InputError(f"--pool {pool}: this is a folder; give a text file with one model per line") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or error
        raise InputError(
            f"--pool {pool}: cannot be read as text ({reason}); give a text file with one model per line"
        ) from None
    entries = tuple(_entries(text, path))
    if not entries:
        raise InputError(f"{path}: the pool is empty; write a hub id or a local folder on each line")
    return entries


def is_pool(data: str) -> bool:
    """Whether a path is a text file of which every line names a model."""
    path = Path(data)
    is_text = path.suffix.lower() == ".txt" and path.is_file()
    try:
        text = path.read_text(encoding="utf-8-sig") if is_text else ""
    except (OSError, UnicodeDecodeError):
        return False
    lines = [line for line in text.splitlines() if line.partition("#")[0].strip()]
    return bool(lines) and all(map(_MODEL.fullmatch, lines))


def entries_named(entries: tuple[ModelSpec, ...], globs: Sequence[str], pool: str) -> tuple[ModelSpec, ...]:
    """The candidates that ``--only`` takes (see :func:`advisor.records.fits_patterns`), in the order of the pool."""
    names = ", ".join(entry.name for entry in entries)
    for glob in globs:
        if not any(fits(entry.name, glob.removeprefix("!")) for entry in entries):
            raise InputError(f"--only {glob}: no candidate of --pool {pool} has this name; its names are {names}")
    chosen = tuple(entry for entry in entries if fits_patterns(entry.name, globs))
    if not chosen:
        raise InputError(f"--only {','.join(globs)}: no candidate of --pool {pool} is left; its names are {names}")
    return chosen


def _entries(text: str, path: Path) -> Iterator[ModelSpec]:
    places: dict[str, str] = {}
    # Not splitlines(), which also splits at \v, \f and U+2028: the numbers must be those of the user's editor.
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"{path}:{number}"
        words = _words(line, place)
        if not words:
            continue
        for entry in _specs(words, place, path.parent):
            if entry.name in places:
                raise InputError(f"{places[entry.name]} has the name {entry.name!r}, too; add name=ANOTHER", of=place)
            places[entry.name] = place
            yield entry


def read_line(line: str, place: str) -> ModelSpec:
    """Read one line as a pool file has it, from a command line: paths are relative to the current folder."""
    words = _words(line, place)
    if not words:
        raise InputError("the line is empty; give a folder, a hub id or a server", of=place)
    found = _specs(words, place, Path())
    if len(found) > 1:
        raise InputError(f"one model is needed, and #{ALL} gives {len(found)}; give one with #MODEL", of=place)
    return found[0]


def _words(line: str, place: str) -> list[str]:
    """The words of a line, without its comment."""
    address, options = "", line
    # In the address of a server, # comes before the model's name and does not begin a comment.
    if line.lstrip().startswith(PREFIX):
        address, _, options = line.strip().replace("\t", " ").partition(" ")
    try:
        return [*([address] if address else []), *shlex.split(options, comments=True)]
    except ValueError as error:
        raise InputError(f"{str(error).lower()}; close the quotation mark", of=place) from None


def _specs(words: list[str], place: str, folder: Path) -> list[ModelSpec]:
    """The model of a line, or those that a server lists where the line names none."""
    from ensemble.models.spec import read_options

    remote = words[0].startswith(PREFIX)
    given = read_options(words, place, remote=remote)
    if (file := given.get("prompt")) is not None:
        given["prompt"] = _template(file, place, folder)
    if not remote:
        spec = ModelSpec.read(_checkpoint(words[0], place, folder), given, place)
        if given.get("trust_remote_code"):
            check_pinned(spec.weights, place)
        return [spec]
    if (tokenizer := given.get("tokenizer")) is not None:
        given["tokenizer"] = _tokenizer(tokenizer, place, folder)
    url, _, model = words[0].partition("#")
    if model in ("", ALL):
        # Its client takes time to import.
        from advisor.models.endpoint import models_at

        return models_at(read_address(f"{url}#{ALL}", place), given, place, takes_all=model == ALL)
    return [ModelSpec.read(read_address(words[0], place), given, place)]


def _template(name: str, place: str, folder: Path) -> str:
    """The text of a file with a template of prompts."""
    # Its library takes time to import.
    from advisor.tasks.templates import Template

    try:
        path = (folder / name).resolve()
        # A stranger's pool must not send other files to its servers.
        if not path.is_relative_to(folder.resolve()):
            raise InputError(f"prompt={name}: give a file in the folder of the pool file")
        text, file = read_prompt(str(path))
        fields = Template(text, file=file, key="").named
    except InputError as error:
        raise InputError(str(error), of=place) from None
    if not fields or len(text) > LONGEST_TEMPLATE:
        size = f"{LONGEST_TEMPLATE:,} characters"
        raise InputError(f"{file}: it names a field of the question or {{{{prompt}}}}, in at most {size}", of=place)
    return text


def _checkpoint(model: str, place: str, folder: Path) -> Checkpoint:
    if _ADDRESS.match(model):
        # The address is not repeated: it may have a key.
        way_out = (
            "give the model's id alone: ORG/NAME"
            if "huggingface.co/" in model
            else f"begin it with {PREFIX} for a model behind a server: {PREFIX}http://HOST:PORT/v1#MODEL"
        )
        raise InputError(f"the line begins with an address; {way_out}", of=place)
    try:
        path = folder / Path(model).expanduser()
        exists, is_folder = path.exists(), path.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, or ~ with an unknown user
        raise InputError(f"{model!r} cannot be read as a path ({error}); correct it", of=place) from None
    if is_folder or (exists and path.suffix.lower() == GGUF_SUFFIX):
        # The link of a file stays, because its target in the hub's cache has a name without a suffix.
        absolute = path.resolve() if is_folder else path.parent.resolve() / path.name
        return Checkpoint(str(absolute))
    if exists:
        raise InputError(f"{path} is a file, but not a {GGUF_SUFFIX} file; give the folder of the model", of=place)
    if model.startswith((".", "/", "~")):
        kind = "file" if path.suffix.lower() == GGUF_SUFFIX else "folder"
        raise InputError(f"{path}: no such {kind}; paths are relative to the pool file", of=place)
    return _on_hub(model, place)


def _tokenizer(model: str, place: str, folder: Path) -> str:
    """The tokenizer of a model behind a server: the absolute path of a folder, or an id on the hub."""
    try:
        checkpoint = _checkpoint(model, place, folder)
    except InputError as error:
        raise InputError(f"tokenizer={error.without(place)}", of=place) from None
    if checkpoint.gguf is not None:
        raise InputError(f"tokenizer={model}: give a folder or a hub id, not a {GGUF_SUFFIX} file", of=place)
    return f"{checkpoint.path_or_id}@{checkpoint.revision}" if checkpoint.revision else checkpoint.path_or_id


def _on_hub(model: str, place: str) -> Checkpoint:
    hub_id, at, revision = model.partition("@")
    if not HUB_ID.fullmatch(hub_id):
        raise InputError(f"{model!r} is neither a folder next to the pool file nor a hub id like org/name", of=place)
    if at and not revision:
        raise InputError(f"{model!r} has no revision after the @; write one, or remove the @", of=place)
    checkpoint = Checkpoint(hub_id, revision or None)
    if checkpoint.is_local:
        raise InputError(
            f"{hub_id} is a folder of the current directory, but paths are relative to the pool file; "
            "write the path from there",
            of=place,
        )
    return checkpoint


def check_pinned(checkpoint: Checkpoint, place: str) -> None:
    """Check that the code of a model on the hub cannot change between two runs, because its revision is a commit."""
    if not checkpoint.is_local and not COMMIT.fullmatch(checkpoint.revision or ""):
        raise InputError(
            f"trust_remote_code runs code from the hub, so it needs a pinned revision: "
            f"{checkpoint.path_or_id}@COMMIT with all 40 digits",
            of=place,
        )
