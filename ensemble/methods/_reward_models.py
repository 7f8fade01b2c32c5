"""Reward models: networks that read a question with its responses, and give each response a reward.

The weights in a model's folder say which one it is:

- **PairRM** (Jiang et al., LLM-Blender, 2023), in the layout of ``llm-blender/PairRM``, whose ``config.json`` has the
  ranker's settings only, and in that of ``llm-blender/PairRM-hf``. It reads ``<|source|>question``,
  ``<|candidate1|>response`` and ``<|candidate2|>response``, each between ``[CLS]`` and ``[SEP]``. The question is cut
  to 1,224 tokens and the responses share what is left of 2,048 (other numbers if the configuration has them). A small
  network reads the states at the three marks and says how much better the first response is. Each pair is read in both
  orders, and the reward of a response is the sum of its leads over all other responses (the authors' ``max_logits``).
- **UltraRM** (Cui et al., 2023): a Llama with a regression head at the last token of
  ``Human: question``, an empty line and ``Assistant: response``.
- **OpenAssistant**'s Pythia models (Köpf et al., 2023): a GPT-NeoX with an output layer at the last token, or at the
  mean of all, of ``<|prompter|>question<|endoftext|><|assistant|>response<|endoftext|>``.
- Any other model is a **sequence classifier** of transformers, as OpenAssistant's DeBERTa models. It reads the question
  and one response as a pair of texts and has one output; or, if the user says ``pairwise``, the question and two
  responses with the separator between them (a blank line if the tokenizer has no separator). Its output says how much
  better the first one is, or there are two outputs, a logit for each response.

In the texts a special token becomes a space, so that a response cannot mark its own end. PairRM's authors do this for
the separator. Weights are read from safetensors files only, and no code that came with a model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2Model,
    GPTNeoXConfig,
    GPTNeoXModel,
    LlamaConfig,
    LlamaModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2PreTrainedModel
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXPreTrainedModel
from transformers.models.llama.modeling_llama import LlamaPreTrainedModel

from ensemble.common.text import without_tokens
from ensemble.errors import InputError, MemberError, UniteError, first_line
from ensemble.models.hub import check_on_hub
from ensemble.models.load import parse_device
from ensemble.models.model_files import check_files, check_size, json_of, stored_weights, weight_shapes
from ensemble.models.spec import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Kind = Literal["pointwise", "pairwise"]
"""How many responses a sequence classifier reads at a time."""
MARKS = ("<|source|>", "<|candidate1|>", "<|candidate2|>", "<|candidate|>")
"""PairRM's added tokens, in the order of their ids; the last one is used in training only."""
_ROLES = ("<|prompter|>", "<|assistant|>", "<|endoftext|>")
_ULTRARM = "Human: {}\n\nAssistant: {}"
_OASST = "<|prompter|>{}<|endoftext|><|assistant|>{}<|endoftext|>"
_SOURCE_LENGTH, _CANDIDATE_LENGTH = 1224, 412  # of the published PairRM
_BATCH = 8
"""Sequences that are read at once: five responses make 20 pairs, and DeBERTa's attention to 2,048 tokens is large."""
_SENSIBLE = range(8, 2**20 + 1)
"""Tokens that a model can be limited to; a tokenizer without a limit says 10^30."""


class RewardModel(Protocol):
    """A reward model."""

    def rewards(self, prompt: str, texts: Sequence[str]) -> list[float]:
        """The reward of each response to a question; a higher one is better.

        Raises:
            MemberError: The model cannot read a text, or its outputs are not numbers.
        """
        ...


# --- The published networks ---


class PairRmNetwork(DebertaV2PreTrainedModel):
    """PairRM: a DeBERTa, and a head that reads the states at the marks.

    Args:
        config: The DeBERTa's configuration, with ``n_tasks``, the number of the head's outputs.

    Attributes:
        marks: The ids of the marks of the question and of both responses.
    """

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.marks: tuple[int, int, int] = (0, 0, 0)
        self.pretrained_model = DebertaV2Model(config)
        # The dropouts do nothing here, but count: the published names of the weights have the layers' numbers.
        self.head_layer = nn.Sequential(
            nn.Dropout(), nn.Linear(2 * size, size), nn.Tanh(), nn.Dropout(), nn.Linear(size, config.n_tasks)
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SequenceClassifierOutput:
        """How much better the first response of each row is, (rows, 1)."""
        states = self.pretrained_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        rows = torch.arange(len(states), device=states.device)
        source, first, second = (states[rows, (input_ids == mark).int().argmax(dim=1)] for mark in self.marks)
        lead = self.head_layer(torch.cat([source, first], 1)) - self.head_layer(torch.cat([source, second], 1))
        return SequenceClassifierOutput(logits=lead.mean(dim=1, keepdim=True))


class UltraRmNetwork(LlamaPreTrainedModel):
    """UltraRM: a Llama, and a regression head at the last token.

    Args:
        config: The Llama's configuration.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model = LlamaModel(config)
        self.regression_head = nn.Linear(config.hidden_size, 1, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SequenceClassifierOutput:
        """The reward of each row, (rows, 1)."""
        states = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        return SequenceClassifierOutput(logits=self.regression_head(_last(states, attention_mask)))


class OasstNetwork(GPTNeoXPreTrainedModel):
    """OpenAssistant's Pythia reward model: a GPT-NeoX, and an output layer.

    Args:
        config: The GPT-NeoX's configuration; ``pooling`` is ``last`` or ``mean``.
    """

    def __init__(self, config: GPTNeoXConfig) -> None:
        super().__init__(config)
        self.gpt_neox = GPTNeoXModel(config)
        self.out_proj = nn.Linear(config.hidden_size, 1)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SequenceClassifierOutput:
        """The reward of each row, (rows, 1)."""
        states = self.gpt_neox(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        if self.config.pooling == "mean":
            read = attention_mask[:, :, None].to(states.dtype)
            pooled = (states * read).sum(dim=1) / read.sum(dim=1)
        else:
            pooled = _last(states, attention_mask)
        return SequenceClassifierOutput(logits=self.out_proj(pooled))


def _last(states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """The states at each row's last token; the padding is on the right."""
    return states[torch.arange(len(states), device=states.device), attention_mask.sum(dim=1) - 1]


# --- What they read ---


class _Network:
    """A network with its tokenizer.

    Args:
        method: The method that needs it, for messages.
        place: Where it is from, for messages.
        model: The network.
        tokenizer: Its tokenizer.
    """

    # Added tokens of the input format; a tokenizer does not always list them among its special ones.
    _marks: tuple[str, ...] = ()

    def __init__(self, method: str, place: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._method, self._place, self._model, self._tokenizer = method, place, model, tokenizer

    def rewards(self, prompt: str, texts: Sequence[str]) -> list[float]:
        """See :class:`RewardModel`."""
        with running(self._method, self._place):
            return self._rewards(prompt, texts)

    def _rewards(self, prompt: str, texts: Sequence[str]) -> list[float]:
        raise NotImplementedError

    def _plain(self, text: str) -> str:
        return without_tokens(text, [*self._tokenizer.all_special_tokens, *self._marks])

    def _outputs(self, encodings: Mapping[str, Any]) -> torch.Tensor:
        """The outputs for token ids, attention masks and the like, a list for each row: (rows, outputs)."""
        batches = []
        for start in range(0, len(encodings["input_ids"]), _BATCH):
            part = {key: rows[start : start + _BATCH] for key, rows in encodings.items()}
            width = max(map(len, part["input_ids"]))
            pads = {"input_ids": self._tokenizer.pad_token_id or 0}
            padded = {
                key: torch.tensor([[*row, *[pads.get(key, 0)] * (width - len(row))] for row in rows])
                for key, rows in part.items()
            }
            check_ids(self._model, padded["input_ids"])
            with torch.inference_mode():
                logits = self._model(**{key: rows.to(self._model.device) for key, rows in padded.items()}).logits
            batches.append(logits.float().cpu())
        outputs = torch.cat(batches)
        if bool(outputs.isnan().any()):
            raise ValueError("the reward model's outputs are not numbers (NaN)")
        return outputs


class Classifier(_Network):
    """A sequence classifier that reads one response at a time."""

    def _rewards(self, prompt: str, texts: Sequence[str]) -> list[float]:
        pair = [self._plain(prompt)] * len(texts), [self._plain(text) for text in texts]
        return [float(row[0]) for row in self._outputs(self._tokenizer(*pair, truncation="longest_first"))]


class PairwiseClassifier(_Network):
    """A sequence classifier that reads two responses at a time."""

    def _rewards(self, prompt: str, texts: Sequence[str]) -> list[float]:
        return _sum_of_leads(texts, partial(self._leads, self._plain(prompt)))

    def _leads(self, prompt: str, pairs: Sequence[tuple[str, str]]) -> list[float]:
        separator = self._tokenizer.sep_token or "\n\n"
        both = [f"{self._plain(a)}{separator}{self._plain(b)}" for a, b in pairs]
        outputs = self._outputs(self._tokenizer([prompt] * len(pairs), both, truncation="longest_first"))
        return [float(row[0] - row[1]) if len(row) == 2 else float(row[0]) for row in outputs]


class PairRanker(_Network):
    """PairRM.

    Args:
        method: The method that needs it, for messages.
        place: Where it is from, for messages.
        model: The network.
        tokenizer: Its tokenizer.
        source_length: The most tokens of a question.
        candidate_length: The most tokens of a response, beside a question of full length.
    """

    _marks = MARKS

    def __init__(
        self,
        method: str,
        place: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        source_length: int,
        candidate_length: int,
    ) -> None:
        super().__init__(method, place, model, tokenizer)
        self._source_length, self._length = source_length, source_length + 2 * candidate_length

    def _rewards(self, prompt: str, texts: Sequence[str]) -> list[float]:
        return _sum_of_leads(texts, partial(self._leads, prompt))

    def _leads(self, prompt: str, pairs: Sequence[tuple[str, str]]) -> list[float]:
        source = self._ids(MARKS[0], prompt, self._source_length)
        # A short question leaves more tokens for the responses.
        room = (self._length - len(source)) // 2
        rows = [[*source, *self._ids(MARKS[1], a, room), *self._ids(MARKS[2], b, room)] for a, b in pairs]
        return self._outputs({"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]})[:, 0].tolist()

    def _ids(self, mark: str, text: str, length: int) -> list[int]:
        ids: list[int] = self._tokenizer(mark + self._plain(text), truncation=True, max_length=length)["input_ids"]
        return ids


class TextReader(_Network):
    """A network that reads the question and one response as one text.

    Args:
        method: The method that needs it, for messages.
        place: Where it is from, for messages.
        model: The network.
        tokenizer: Its tokenizer.
        template: The text, with a place for the question and one for the response.
    """

    _marks = _ROLES

    def __init__(
        self, method: str, place: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, template: str
    ) -> None:
        super().__init__(method, place, model, tokenizer)
        self._template = template
        # The reward is read at the end, so a text that is too long loses its beginning.
        self._tokenizer.truncation_side = "left"

    def _rewards(self, prompt: str, texts: Sequence[str]) -> list[float]:
        whole = [self._template.format(self._plain(prompt), self._plain(text)) for text in texts]
        inputs = self._tokenizer(whole, truncation=True)
        return self._outputs({key: inputs[key] for key in ("input_ids", "attention_mask")})[:, 0].tolist()


@contextmanager
def running(method: str, place: str) -> Iterator[None]:
    """Turn each failure of a method's model, from a place, into a MemberError of one line."""
    try:
        yield
    except Exception as error:  # tokenizers and networks of strangers raise errors of many kinds
        raise MemberError(
            f"{place} failed while it was run ({type(error).__name__}: {first_line(error)}); take "
            "all its files from its publisher, or name another model",
            of=f"method {method}",
        ) from error


def check_ids(model: PreTrainedModel, ids: torch.Tensor) -> None:
    """Make sure that a model has an embedding for each token, also for the padding.

    Raises:
        ValueError: It lacks one.
    """
    # Before it runs, because on a GPU such an id ends all further work of the process there.
    if (most := int(ids.max())) >= model.config.vocab_size:
        raise ValueError(f"its tokenizer has a token {most}, and the model only {model.config.vocab_size} tokens")


def positions(model: PreTrainedModel) -> int:
    """The most tokens that a model reads; a large number for those without such a limit, as T5."""
    most = getattr(model.config, "max_position_embeddings", None)
    most = most if type(most) is int and most in _SENSIBLE else _SENSIBLE[-1]
    tables = [part for name, part in model.named_modules() if name.endswith("position_embeddings")]
    padding = [table.padding_idx for table in tables if isinstance(table, nn.Embedding)]
    # RoBERTa counts positions from the one after the padding id, so its table has fewer than it has rows.
    return most - max((1 + row for row in padding if row is not None), default=0)


def _sum_of_leads(texts: Sequence[str], leads: Callable[[Sequence[tuple[str, str]]], Sequence[float]]) -> list[float]:
    """The reward of each response from comparisons in pairs: the sum of its leads over all others, in both orders."""
    # Several members often write the same text. A pair of texts is read once, and counts for every pair of members.
    pairs = list(permutations(dict.fromkeys(texts), 2))
    lead = dict(zip(pairs, leads(pairs), strict=True)) if pairs else {}
    # Rounded, so that the order of the additions does not decide a tie.
    return [round(sum(lead[text, other] - lead[other, text] for other in texts if other != text), 6) for text in texts]


# --- Loading ---


def load_reward_model(method: str, place: str, kind: Kind, device: str) -> RewardModel:
    """Load a reward model; its weights say which of those above it is.

    Args:
        method: The method that needs it, for messages.
        place: A folder, or an id on the hub.
        kind: How many responses a sequence classifier reads at a time; other models do not need it.
        device: ``auto``, ``cpu``, ``cuda``, ...

    Raises:
        InputError: It is not a reward model, or its files are not safe.
        MemberError: Its weights are damaged.
    """
    checkpoint = checked(place)
    shapes, settings = weight_shapes(place, checkpoint), json_of(checkpoint, "config.json")
    config: Any
    if "head_layer.4.weight" in shapes:
        config = _pairrm_config(method, place, shapes, settings)
        model, tokenizer = load_pretrained(method, checkpoint, PairRmNetwork, config, "PairRM", device)
        tokenizer.add_tokens(list(MARKS))
        rows = shapes["pretrained_model.embeddings.word_embeddings.weight"][0]
        model.marks = _ids_of(method, place, tokenizer, MARKS[:3], rows)
        lengths = (
            value if type(value := settings.get(name)) is int and value > 8 else usual
            for name, usual in (("source_maxlength", _SOURCE_LENGTH), ("candidate_maxlength", _CANDIDATE_LENGTH))
        )
        return PairRanker(method, place, model, tokenizer, *lengths)
    if "regression_head.weight" in shapes:
        config = _config(method, place, LlamaConfig, settings, "UltraRM")
        model, tokenizer = load_pretrained(method, checkpoint, UltraRmNetwork, config, "UltraRM", device)
        return TextReader(method, place, model, tokenizer, _ULTRARM)
    if "out_proj.weight" in shapes and any(key.startswith("gpt_neox.") for key in shapes):
        wanted = "a reward model of OpenAssistant"
        config = _config(method, place, GPTNeoXConfig, {"pooling": "last", **settings}, wanted)
        model, tokenizer = load_pretrained(method, checkpoint, OasstNetwork, config, wanted, device)
        _ids_of(method, place, tokenizer, _ROLES, shapes["gpt_neox.embed_in.weight"][0])
        return TextReader(method, place, model, tokenizer, _OASST)
    return _load_classifier(method, checkpoint, kind, device)


def checked(place: str) -> Checkpoint:
    """A folder, or an id on the hub, after the checks that members get: these files come from strangers, too.

    Raises:
        InputError: Its files are not safe, or the hub does not have them.
    """
    checkpoint = Checkpoint(place)
    if not checkpoint.is_local:
        check_on_hub(checkpoint)
    check_files(checkpoint)
    return checkpoint


def load_pretrained(
    method: str, checkpoint: Checkpoint, model_class: Any, config: PreTrainedConfig | None, wanted: str, device: str
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load a model with all its weights, and its tokenizer.

    Args:
        method: The method that needs it, for messages.
        checkpoint: The model, :func:`checked`.
        model_class: The class of transformers that loads it.
        config: Its configuration; None for the folder's own.
        wanted: What it is, for messages.
        device: ``auto``, ``cpu``, ``cuda``, ...

    Raises:
        InputError: It is another model, or weights are missing.
    """
    place, location, on = checkpoint.path_or_id, checkpoint.location, parse_device(device)
    stored = stored_weights(place, checkpoint)
    if stored is None and checkpoint.is_local and json_of(checkpoint, "config.json"):
        raise InputError(
            f"{place} has no weights in safetensors files, and only those are loaded; save the model in this format",
            of=f"method {method}",
        )
    # Always said, because transformers asks on the terminal where trust_remote_code is missing, and runs code on a yes.
    options: dict[str, Any] = {**checkpoint.options, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(location, **options) if config is None else config
        if stored is not None:
            is_auto = hasattr(model_class, "from_config")
            make = partial(model_class.from_config, trust_remote_code=False) if is_auto else model_class
            check_size(place, config, partial(make, config), stored[0])
        # With the configuration, because the folder's own may name a model that transformers does not know.
        tokenizer = AutoTokenizer.from_pretrained(location, config=config, **options)
        # Only safetensors, because reading a pickle can run code.
        model, loaded = model_class.from_pretrained(
            location, config=config, use_safetensors=True, output_loading_info=True, **options
        )
    except UniteError:
        raise
    except Exception as error:  # damaged files raise errors of many libraries
        raise InputError(
            f"{place} cannot be loaded as {wanted} ({first_line(error)})", of=f"method {method}"
        ) from error
    # transformers fills missing weights with random numbers; rewards of a base model would mean nothing.
    if missing := sorted(loaded["missing_keys"]):
        raise InputError(f"{place} has no trained {missing[0]}; name {wanted}", of=f"method {method}")
    # A batch needs padding, and some classifiers use the padding id to find the last token of each text.
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id or 0
    # A stranger's file has the tokenizer's limit: it can be missing, no number, or more than the model's positions.
    limit, most = tokenizer.model_max_length, positions(model)
    tokenizer.model_max_length = min(limit, most) if type(limit) is int and limit in _SENSIBLE else most
    return model.to(on).eval(), tokenizer


def _load_classifier(method: str, checkpoint: Checkpoint, kind: Kind, device: str) -> RewardModel:
    place, wanted = checkpoint.path_or_id, "a sequence classifier"
    model, tokenizer = load_pretrained(method, checkpoint, AutoModelForSequenceClassification, None, wanted, device)
    labels = model.config.num_labels
    if labels > (1 if kind == "pointwise" else 2):
        needs = "one output, a reward" if kind == "pointwise" else "one output or two"
        raise InputError(f"{place} has {labels} outputs; {kind} needs {needs}", of=f"method {method}")
    return (Classifier if kind == "pointwise" else PairwiseClassifier)(method, place, model, tokenizer)


def _config(
    method: str, place: str, config_class: type[PreTrainedConfig], settings: Mapping[str, Any], wanted: str
) -> PreTrainedConfig:
    """A configuration of a class, from a folder whose own type transformers may not know."""
    try:
        config: PreTrainedConfig = config_class.from_dict({**settings, "model_type": config_class.model_type})
    except Exception as error:  # damaged settings raise errors of many libraries
        raise InputError(
            f"{place} cannot be loaded as {wanted} ({first_line(error)})", of=f"method {method}"
        ) from error
    return config


def _pairrm_config(
    method: str, place: str, shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, Any]
) -> PreTrainedConfig:
    """The configuration of PairRM's DeBERTa.

    The first published layout only names the DeBERTa. The shapes of its weights have the sizes, and the rest is the
    same in all of DeBERTa-v3: heads of 64 numbers, and relative positions that share the attention's weights.
    """
    own = {**settings, "n_tasks": shapes["head_layer.4.weight"][0]}
    if "hidden_size" in settings:
        return _config(method, place, DebertaV2Config, own, "PairRM")
    words, positions, inner = (
        shapes.get(f"pretrained_model.{name}.weight", ())
        for name in ("embeddings.word_embeddings", "encoder.rel_embeddings", "encoder.layer.0.intermediate.dense")
    )
    # Other DeBERTas have a convolution, or separate weights for positions.
    is_other = any(".conv." in key or ".pos_key_proj." in key for key in shapes)
    if is_other or not len(words) == len(positions) == len(inner) == 2 or words[1] % 64:
        raise InputError(
            f"{place} is a ranker of LLM-Blender, and not on DeBERTa-v3 as PairRM; name llm-blender/PairRM",
            of=f"method {method}",
        )
    sizes = {
        "vocab_size": words[0],
        "hidden_size": words[1],
        "num_attention_heads": words[1] // 64,
        "intermediate_size": inner[0],
        "position_buckets": positions[0] // 2,
        "num_hidden_layers": sum(key.endswith(".intermediate.dense.weight") for key in shapes),
    }
    constant = {
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "max_position_embeddings": 512,
        "layer_norm_eps": 1e-7,
    }
    return _config(method, place, DebertaV2Config, {**sizes, **constant, "n_tasks": own["n_tasks"]}, "PairRM")


def _ids_of(
    method: str, place: str, tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str], rows: int
) -> tuple[int, ...]:
    """The ids of the tokens of an input format; InputError if the model lacks one."""
    vocabulary = tokenizer.get_vocab()
    for token in tokens:
        if vocabulary.get(token, rows) >= rows:
            raise InputError(
                f"{place}: its tokenizer has no token {token} that the weights know; take the "
                "tokenizer from the model's publisher",
                of=f"method {method}",
            )
    return tuple(vocabulary[token] for token in tokens)
