"""``Ensemble``: several models, one text."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ensemble.common.files import default_cache_dir
from ensemble.common.grammar import Grammar
from ensemble.decode.decoder import Decoder, PromptDecoder, PromptMethod, make_drafter
from ensemble.decode.sequences import Generation, Pieces
from ensemble.decode.settings import Batch, Settings
from ensemble.decode.thinking import THINKING_DRAFT, Thinker, ThinkingDecoder
from ensemble.errors import InputError, MemberError
from ensemble.methods import DEFAULT, check_members, get_method, get_module, make_options, plugins
from ensemble.models.choices import ChatTemplate
from ensemble.models.load import check_models, load_members
from ensemble.models.member import Member, Prompt, ServerMember, step_device
from ensemble.models.memory import rows_that_fit
from ensemble.models.prompts import Dialogue
from ensemble.models.spec import THINK, Checkpoint, EnsembleSpec, ModelSpec, read_options, resolve_device
from ensemble.runtime.draft import Drafter
from ensemble.saved.folder import read as read_saved
from ensemble.saved.folder import save, specs_of
from ensemble.score import (
    ChoiceQuestion,
    ChoiceScore,
    Passage,
    PassageScorer,
    Scorer,
    choice_question,
)
from ensemble.servers.address import PREFIX, ServerAddress, read_address
from ensemble.step.distribution import Weights, normalised
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import load_or_build


class Ensemble:
    """Several models that write one text together. The first of them is the primary.

    Args:
        members: Loaded models, the primary first; at least one.
        method: A token-level or span-level one of :func:`ensemble.methods.list_methods`.
        k: Candidates that each member brings to the union, at least 1 (10 in the paper).
        weights: One for each member, none of them negative; equal if None. They are normalised to sum to 1.
        cache_dir: The folder that keeps the joint vocabulary's tables; the user's cache folder if None.
        options: The method's settings; see ``Options`` in its module. Of every token-level method,
            ``think="apart"`` lets each member think alone, and then all members answer together; see
            :mod:`ensemble.decode.thinking`.

    Raises:
        InputError: An argument is out of its range, or the method needs what the members lack.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        method: str = "unite",
        k: int = 10,
        weights: Weights = None,
        cache_dir: Path | None = None,
        **options: object,
    ) -> None:
        _check_shape(len(members), method, k)
        # Options are checked before the tables are built, which takes seconds for large vocabularies.
        self._settings = make_options(method, options)
        for member in members:
            if isinstance(member, ServerMember):
                member.check_k(k)
        self.members = tuple(member.as_writing(alone=len(members) == 1) for member in members)
        self.method = method
        self.k = k
        self.weights = normalised(weights, len(members))
        self.options = options
        self._cache_dir = cache_dir
        self._joint = load_or_build(
            [member.vocabulary for member in self.members], cache_dir or default_cache_dir() / "tables"
        ).to(step_device(members))
        # A budget limits what a model thinks, also where it answers alone.
        spec = members[0].spec if len(members) == 1 else None
        has_budget = spec is not None and spec.thinking_budget is not None
        self._thinks_apart = has_budget or self.options.get(THINK) is not None
        self._drafters: dict[Batch, Drafter] = {}
        with plugins().running(method):
            self._made: TokenRule | PromptMethod = get_module(method).make(
                Setup(self.members, self._joint, k, self.weights), self._settings
            )

    @classmethod
    def from_pretrained(  # noqa: PLR0913  # how to load and how to decode, all by name
        cls,
        models: Sequence[str | Path | Checkpoint | ServerAddress] | str | Path,
        *,
        method: str | None = None,
        k: int | None = None,
        weights: Weights = None,
        device: str | Sequence[str] = "auto",
        dtype: str | None = None,
        chat_template: ChatTemplate | None = None,
        quantization: object | None = None,
        cache_dir: Path | None = None,
        trust_remote_code: bool | Sequence[str] = False,
        check_files: bool = True,
        allow_servers: Sequence[str] = (),
        **options: object,
    ) -> Ensemble:
        """Load models from folders or the hub; see :class:`Ensemble` and :func:`ensemble.models.load.load_member`.

        A model may also be behind a server: ``openai:http://127.0.0.1:8000/v1#NAME tokenizer=FOLDER_OR_ID``, with the
        options of a pool file's line.

        Everything is checked before the first weights are read.

        Args:
            models: The models, the primary first; or one folder or hub id that :meth:`save_pretrained` wrote.
            method: If None, the saved one, else ``unite``.
            k: If None, the saved one, else 10.
            weights: If None, the saved ones, else equal ones.
            device: One for all models, or one for each: ``auto`` (CUDA if torch sees a GPU, else MPS, else the CPU),
                ``cpu``, ``cuda:1``, ... Models on different devices compute at the same time.
            dtype: If None, the saved one, else float32 on the CPU, and ``auto`` elsewhere: the type of the stored
                weights.
            chat_template: If None, the saved one, else ``never``.
            quantization: If None, the saved one, else no quantization.
            cache_dir: See :class:`Ensemble`.
            trust_remote_code: For a saved ensemble: the members that may run the code in their own files, by name or
                id; True for all.
            check_files: For a saved ensemble: whether to check that the files of local members are unchanged.
            allow_servers: For a saved ensemble: the URLs of the servers that may be sent the prompts.
            options: The method's settings.

        Raises:
            InputError: An argument, a folder or an id cannot be used.
            MemberError: A model failed while it was loaded.
        """
        is_saved = isinstance(models, str | Path)
        if isinstance(models, str | Path):
            spec = read_saved(
                models, trust_remote_code=trust_remote_code, check_files=check_files, allow_servers=allow_servers
            )
        else:
            spec = EnsembleSpec(tuple(map(_spec_of, models)))
        spec = spec.with_loading(dtype=dtype, chat_template=chat_template, quantization=quantization).with_decoding(
            method=method, k=k, weights=weights, options=options
        )
        _check_shape(len(spec.members), spec.method, spec.k)
        normalised(spec.weights, len(spec.members))
        make_options(spec.method, spec.options)
        check_members(spec.method, spec.members)
        specs = _on_devices(spec.members, device)
        if dtype is None and not is_saved:
            # CPUs compute fast and exactly in float32; an accelerator's memory is short, and made for half precision.
            on_cpu = [resolve_device(each.device or "auto").startswith("cpu") for each in specs]
            types = ["float32" if is_cpu else "auto" for is_cpu in on_cpu]
            specs = [replace(each, dtype=dtype) for each, dtype in zip(specs, types, strict=True)]
        # Every model's files are checked before the first is loaded: loading takes minutes.
        check_models(specs)
        return cls(
            load_members(specs), method=spec.method, k=spec.k, weights=spec.weights, cache_dir=cache_dir, **spec.options
        )

    def save_pretrained(
        self, folder: str | Path, *, push_to_hub: str | None = None, private: bool = True
    ) -> str | None:
        """Write the models' names, commits and file hashes, and how they decode; no weights.

        Args:
            folder: A new or empty folder, or one that this method wrote.
            push_to_hub: A hub id to push the folder to. Local members cannot be pushed.
            private: Whether a repository made on the hub is private.

        Returns:
            The address on the hub; None if it was not pushed.

        Raises:
            InputError: The folder has other files, a member was made in memory, or a local member would be pushed;
                nothing is written.
            UniteError: The folder cannot be written, or the hub refuses.
        """
        # Equal weights are written as null, so that a member added by hand needs no new weights.
        numbers = None if len(set(self.weights)) == 1 else self.weights
        spec = EnsembleSpec(specs_of(self.members), self.method, self.k, numbers, self.options)
        return save(spec, Path(folder), push_to_hub, private=private)

    def generate(  # noqa: PLR0913  # how to decode, all by name
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int = 256,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        grammar: Grammar | None = None,
        trace: bool = False,
        batch_size: int = 32,
        deterministic: bool = False,
    ) -> list[Generation]:
        """Continue prompts; return their generations in the same order.

        In bfloat16 and float16 a text may differ from that of the same prompt alone: see
        :class:`ensemble.decode.settings.Batch`.

        Args:
            prompts: Texts or conversations; each member encodes them with its tokenizer.
            max_new_tokens: The largest number of the primary's tokens, at least 1.
            stop: Strings that end a generation; it is cut before them.
            temperature: 0 for greedy decoding (the paper's), else the temperature of the draws.
            top_p: In (0, 1]; a draw is among the most likely entries that together reach it.
            top_k: A draw is among so many of the likeliest entries; 0 for all.
            seed: Of the draws.
            grammar: What each text must be, a JSON text or a match of a regular expression; None for any text.
            trace: Whether each generation holds what every member wanted at every step.
            batch_size: Prompts to decode at a time, at least 1.
            deterministic: Whether each text is the same, bit for bit, as with single prompts and plain decoding. Then
                prompts are decoded one by one, without drafts: 16 of them take 5 to 8 times as long, one 1.6 times.

        Raises:
            InputError: An argument is out of its range, or a prompt is empty or too long for a member.
            MemberError: No token could be chosen for a prompt, for example because a member's logits are NaN. To keep
                the other prompts' generations, use :meth:`generate_each`.
        """
        settings = Settings(max_new_tokens, _strings(stop), temperature, top_p, seed, top_k=top_k, grammar=grammar)
        batch = Batch(batch_size, trace=trace, deterministic=deterministic)
        if isinstance(prompts, str):
            raise InputError("prompts is one text; give a list of them")
        generations = dict(self.generate_each([self.encode(prompt) for prompt in prompts], settings, batch))
        return [generations[n] for n in range(len(prompts))]

    def generate_each(
        self, prompts: Sequence[list[list[int]]], settings: Settings, batch: Batch | None = None
    ) -> Iterator[tuple[int, Generation]]:
        """Continue prompts that :meth:`encode` made; yield each one's number and generation when it is finished.

        A prompt that occurs twice gets different draws each time.

        Raises:
            MemberError: No token could be chosen for a prompt, for example because a member's logits are NaN. It is
                raised after the other generations, which are the same as without this prompt.
        """
        batch = batch or Batch()
        return iter(self._decode(prompts, settings, batch))

    def decoder(self, batch: Batch | None = None) -> Decoder:
        """A decoder without prompts; its caller adds and removes them one by one.

        Raises:
            InputError: The method decodes whole spans.
        """
        if not isinstance(self._made, TokenRule):
            raise InputError("it does not write tokens; use a token-level one", of=f"method {self.method}")
        return self._decoder(self._made, batch or Batch())

    def _decoder(self, rule: TokenRule, batch: Batch) -> Decoder:
        # Kept, because it has learned how long these members take, and how often they agree.
        if batch not in self._drafters:
            self._drafters[batch] = make_drafter(self.members, self._joint, batch)
        parts = (self.members, self._joint, rule, batch, self._drafters[batch])
        if not self._thinks_apart:
            return Decoder(*parts)
        own = replace(batch, trace=False, draft=THINKING_DRAFT if batch.draft else 0)
        thinkers = [Thinker(each.members, each._joint, each._rule(), own) for each in self._alone]
        return ThinkingDecoder(*parts, thinkers)

    @cached_property
    def _alone(self) -> Sequence[Ensemble]:
        """Each member alone."""
        if len(self.members) == 1:
            return [self]
        # As a single model is asked: a draw is from all its tokens, if they are here.
        methods = ["average" if member.is_here else DEFAULT for member in self.members]
        return [
            Ensemble([member], method=method, k=self.k, cache_dir=self._cache_dir)
            for member, method in zip(self.members, methods, strict=True)
        ]

    def stream(  # noqa: PLR0913  # as for generate
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 256,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        grammar: Grammar | None = None,
        deterministic: bool = False,
    ) -> Iterator[str]:
        """Continue a prompt; yield its text in pieces of whole characters, without a stop string.

        See :meth:`generate` for the arguments.
        """
        settings = Settings(max_new_tokens, _strings(stop), temperature, top_p, seed, top_k=top_k, grammar=grammar)
        encoded, batch = self.encode(prompt), Batch(size=1, deterministic=deterministic)
        return _pieces(self._decode([encoded], settings, batch), Pieces([string.encode() for string in stop]))

    def score(self, prompt: Prompt, options: Sequence[str]) -> list[float]:
        """The log-probability of each option as the continuation of a prompt, under the ensemble.

        It is the sum over the primary's tokens of the option; at each of them the union also holds that token. An
        option that the primary cannot write, or with an unused token, has minus infinity. A method's gate plays no
        part.

        Raises:
            InputError: There is no option, or one is empty; the prompt is empty; a member's context is too short; the
                method scores no tokens.
            MemberError: A member's logits are NaN.
        """
        ((_, scores),) = self.score_each([self.encode_options(prompt, options)])
        return [score.value for score in scores]

    def score_each(
        self, questions: Sequence[ChoiceQuestion], batch_size: int = 32, *, greedy: bool = False
    ) -> Iterator[tuple[int, list[ChoiceScore]]]:
        """Score questions that :meth:`encode_options` made, batch by batch; yield each one's number and scores.

        Args:
            questions: In any order; those of similar length run together.
            batch_size: Rows at a time, at least 1. A question needs a row for each branch of its options, and is never
                split. With 1 each question is scored by itself, so in bfloat16 and float16 it has the scores that
                :meth:`score` gives; in larger batches the last digits may differ.
            greedy: Whether to find out if greedy decoding, with the method's gate, would write each option.

        Raises:
            MemberError: A member's logits are NaN for a question; raised after the other questions' scores, with the
                member and the first question's number.
        """
        return Scorer(self.members, self._rule(), greedy=greedy).run(questions, batch_size)

    def encode_options(self, prompt: Prompt | Dialogue, options: Sequence[str]) -> ChoiceQuestion:
        """The question of a prompt and options that may follow it, as the members read them.

        Raises:
            InputError: See :meth:`score`.
        """
        return self.options_behind(self.encode(prompt), options)

    def options_behind(
        self, prompts: Sequence[list[int]], options: Sequence[str], *, shorten: bool = False
    ) -> ChoiceQuestion:
        """Like :meth:`encode_options`, for a prompt that is encoded already.

        Args:
            prompts: The prompt's ids in every member.
            options: The texts to score.
            shorten: Whether a prompt may lose its first tokens if it does not fit a context.

        Raises:
            InputError: See :meth:`score`.
        """
        self._rule()
        return choice_question(self.members, self._joint, prompts, options, shorten=shorten)

    def score_passages(self, passages: Sequence[Passage], batch_size: int = 32) -> Iterator[tuple[int, float]]:
        """Score long texts like :meth:`score`; yield each one's number and its log-probability.

        Args:
            passages: The texts.
            batch_size: Passages at a time, at least 1.

        Raises:
            InputError: A member's context cannot hold a passage, or the method scores no tokens.
            MemberError: A member's logits are NaN for a passage; raised after the other passages' values, with the
                member and the first passage's number.
        """
        return PassageScorer(self.members, self._joint, self._rule()).run(passages, batch_size)

    def most_rows(self, tokens: int) -> int | None:
        """How many rows of so many tokens fit into the free memory; None if that is not known."""
        counts = []
        # Members at one place share its memory.
        for place, member in {member.place: member for member in self.members}.items():
            size = sum(member.token_size for member in self.members if member.place == place)
            counts.append(rows_that_fit(size, tokens, member.free_memory()))
        return min((rows for rows in counts if rows is not None), default=None)

    def encode(self, prompt: Prompt | Dialogue) -> list[list[int]]:
        """A prompt's ids in every member.

        Raises:
            InputError: It is empty, not Unicode text, or too long for a member's context.
        """
        return [member.encode_prompt(prompt) for member in self.members]

    def _rule(self) -> TokenRule:
        """The method, if it is a token-level one."""
        if not isinstance(self._made, TokenRule):
            raise InputError("it scores no tokens; use a token-level one", of=f"method {self.method}")
        return self._made

    def _decode(self, prompts: Sequence[list[list[int]]], settings: Settings, batch: Batch) -> PromptDecoder:
        if not isinstance(self._made, TokenRule):
            if settings.grammar is not None:
                raise InputError(
                    "it takes no grammar; use a token-level one, such as unite", of=f"method {self.method}"
                )
            return self._made(prompts, settings, batch)
        decoder = self._decoder(self._made, batch)
        for number, prompt, draw in _numbered(prompts):
            decoder.add(number, prompt, settings, draw)
        return decoder


def _spec_of(model: str | Path | Checkpoint | ServerAddress) -> ModelSpec:
    """A model as its user wrote it: a checkpoint, a path or id, or a server's address with its options."""
    if isinstance(model, str) and model.startswith(PREFIX):
        try:
            words = shlex.split(model)
        except ValueError as error:
            raise InputError(f"models: {str(error).lower()}; close the quotation mark") from None
        given = {"chat_template": "never", **read_options(words, "models", remote=True)}
        return ModelSpec.read(read_address(words[0], "models"), given, "models")
    checkpoint = model if isinstance(model, Checkpoint | ServerAddress) else Checkpoint(str(model))
    return ModelSpec(checkpoint, checkpoint.name, chat_template="never")


def _check_shape(members: int, method: str, k: int) -> None:
    if not members:
        raise InputError("an ensemble needs at least one model; none was given")
    get_method(method, ("token", "span"))
    if k < 1:
        raise InputError(f"k is {k}; each member must bring at least 1 candidate")


def _on_devices(specs: Sequence[ModelSpec], device: str | Sequence[str]) -> list[ModelSpec]:
    """The models with their devices: one for all, or one for each."""
    devices = [device] * len(specs) if isinstance(device, str) else list(device)
    if len(devices) != len(specs):
        raise InputError(f"{len(devices)} devices for {len(specs)} models; give one for each, or one for all")
    return [replace(spec, device=device) for spec, device in zip(specs, devices, strict=True)]


def _strings(stop: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stop, str):
        raise InputError(f"stop is {stop!r}; give a list of strings, none of them empty")
    return tuple(stop)


def _numbered(prompts: Sequence[list[list[int]]]) -> Iterator[tuple[int, list[list[int]], int]]:
    """Each prompt with its number, and how often it occurred so far, which decides its draws."""
    draws: Counter[tuple[int, ...]] = Counter()
    # Prompts of similar length are decoded together, so that little of a batch is padding.
    for number, prompt in sorted(enumerate(prompts), key=lambda item: -len(item[1][0])):
        ids = tuple(prompt[0])
        draws[ids] += 1
        yield number, prompt, draws[ids]


def _pieces(decoder: PromptDecoder, pieces: Pieces) -> Iterator[str]:
    """The text of the only prompt, piece by piece."""
    while not decoder.done:
        finished = decoder.step()
        result = finished[0][1] if finished else None
        if isinstance(result, MemberError):
            raise result
        # The last piece comes from the text, which is cut before a stop string.
        piece = pieces.grow(decoder.running[0]) if result is None else pieces.finish(result.text)
        if piece:
            yield piece
