"""What the measures of pairs need of the models themselves: their tokenizers, and what they make of each other's texts.

Both are kept in the store like responses. A tokenizer is read without its model. Reading takes the models, one in
memory at a time, a second time after all have been profiled, since only then is there something to read; so it is
limited to the candidates that the rules take or nearly take.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from advisor.choose.rules import select
from advisor.compare.prediction import Reading, Text, read_texts
from advisor.compare.tokenizer_overlap import Tokenization, common_words, tokenization_of
from advisor.config import RunConfig
from advisor.profile.generate import free_memory
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Profile, Rules, Standing
from advisor.response_cache import Store, key_of
from advisor.verify.advice import Margin
from ensemble.errors import UniteError
from ensemble.models.check import check
from ensemble.models.spec import Checkpoint, Sourced, first_line

if TYPE_CHECKING:
    from ensemble.vocabulary.token_bytes import Vocabulary

READERS = 8
"""Candidates that read each other, at the most."""
QUESTIONS = 20
"""Questions whose responses they read."""
_NO_TOKENIZER = re.compile(r".*\.safetensors(\.index\.json)?|(generation_)?config\.json")
"""Files that say nothing of the tokenizer, but for what is read from the configuration."""
_LOG = logging.getLogger(__name__)
_FORM = 1
"""Part of every key; raised by a change after which the same models give other values."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Looks at the models of a run for the sake of its pairs."""

    plan: RunConfig
    profiler: Profiler
    store: Store
    watcher: Progress

    def tokenizations(self, names: Sequence[str]) -> dict[str, Tokenization]:
        """What each candidate's tokenizer does with its tokens and with the commonest words of the dev questions.

        The words are the task's own: they are what the members read, in whatever language, and the lists of common
        words that there are may not be passed on.

        Args:
            names: Candidates that were profiled.

        Returns:
            By name, without those behind a server, and without those whose tokenizer cannot be looked at; that is said.
        """
        words = common_words(example.prompt for example in self.plan.dev.examples)
        found: dict[str, Tokenization] = {}
        known: dict[str, Tokenization] = {}
        for name in names:
            if self.profiler.is_remote(name):
                continue  # its server has the tokenizer
            try:
                checkpoint = self.profiler.model(name).checkpoint
                config = check(checkpoint)
                rows = config.get_text_config().vocab_size
                # The library takes some tokenizers' parts from the model's type, whatever their files say.
                what = {**self._tokenizer(name), "type": config.model_type, "rows": rows, "words": words}
                key = key_of({**what, "tokenization": _FORM})
                if key not in known:
                    known[key] = self._tokenization(key, checkpoint, rows, words)
            except Exception as error:
                if type(error) is UniteError:  # of the store
                    raise
                self._leave_out(name, "tokenizer cannot be compared with the others'", error)
            else:
                found[name] = known[key]
        return found

    def _tokenization(self, key: str, checkpoint: Checkpoint, rows: int, words: Sequence[str]) -> Tokenization:
        try:
            return Tokenization.from_dict(self.store.value(key))
        except (AttributeError, KeyError, TypeError, ValueError):
            pass  # it is not there, or no longer what was kept
        tokenization = tokenization_of(_vocabulary(checkpoint, rows), words)
        self.store.keep(key, tokenization.as_dict())
        return tokenization

    def _tokenizer(self, name: str) -> dict[str, Any]:
        """What decides a candidate's tokenizer: models that were made from one have the same, which is read once."""
        key = self.profiler.identities[name].key()
        files = {file: digest for file, digest in key["files"].items() if not _NO_TOKENIZER.fullmatch(file)}
        return {"hub_id": key["hub_id"], "revision": key["revision"], "files": files}

    def readings(self, names: Sequence[str], profiles: Mapping[str, Profile]) -> dict[tuple[str, str], Reading]:
        """How often each candidate would have written what another one did, on a seeded sample of the dev questions.

        It costs each of them as many passes over a response as there are others, times the questions (at most 140),
        and as many over a prompt as there are questions: a small part of what profiling it cost.

        Args:
            names: The candidates that read each other; none does where there is one alone.
            profiles: Their answers on the dev questions, by name.

        Returns:
            By reader and writer; without the readers that failed, which is said.
        """
        # Where an option is chosen by its likelihood, nobody wrote anything.
        if len(names) < 2 or self.plan.dev.metric == "choice":
            return {}
        count = len(self.plan.dev.examples)
        asked = sorted(random.Random(self.plan.seed).sample(range(count), min(QUESTIONS, count)))
        found: dict[tuple[str, str], Reading] = {}
        for reader in names:
            if self.profiler.is_remote(reader):
                continue  # it is read by the others, and does not say what it makes of their texts
            answered = [n for n in asked if profiles[reader].answers[n].error is None]
            texts = {writer: self._texts(profiles[writer], answered) for writer in names if writer != reader}
            # One question after the other, so that its prompt is read once for all who answered it.
            in_order = dict.fromkeys(text for n in asked for each in texts.values() if (text := each.get(n)))
            try:
                with self.watcher.stage(f"{reader} reads the others", len(in_order)) as advance:
                    read = self._read(reader, list(in_order), advance)
            except Exception as error:  # of transformers, torch, or of code that came with the model
                if type(error) is UniteError:  # of the store
                    raise
                self._leave_out(reader, "reading of the others' responses failed", error)
            else:
                for writer, each in texts.items():
                    found[reader, writer] = sum((read[text] for text in each.values()), Reading(0, 0))
            free_memory()
        return found

    def _texts(self, profile: Profile, numbers: Sequence[int]) -> dict[int, Text]:
        """A candidate's responses to some questions, by number, without the empty ones."""
        answers = {n: profile.answers[n] for n in numbers}
        return {
            n: Text(self.plan.dev.examples[n].model_input, answer.text, cut=answer.finish_reason != "eos")
            for n, answer in answers.items()
            if answer.text
        }

    def _read(self, reader: str, texts: Sequence[Text], advance: Any) -> dict[Text, Reading]:
        keys = {
            text: self._key(reader, reading=_FORM, prompt=_spelled(text.prompt), text=text.text, cut=text.cut)
            for text in texts
        }
        read = {text: one for text, key in keys.items() if (one := _reading(self.store.value(key))) is not None}
        advance(len(read))
        missing = [text for text in texts if text not in read]
        if missing:
            [member] = self.profiler.load([reader]).members
            for text, one in zip(missing, read_texts(member, missing), strict=True):
                read[text] = one
                self.store.keep(keys[text], [one.agreed, one.positions])
                advance(1)
        return read

    def _key(self, name: str, **what: Any) -> str:
        return key_of({"members": [self.profiler.identities[name].key()], **what})

    def _leave_out(self, name: str, what: str, error: Exception) -> None:
        _LOG.debug("%s is left out", name, exc_info=error)
        self.watcher.say(f"{name}: its {what}, and is left out of that: {first_line(error)}")


def readers(standings: Sequence[Standing], margins: Mapping[str, Margin], rules: Rules) -> list[str]:
    """The candidates that are worth reading each other: those that fit by the rules, then those that nearly do.

    Args:
        standings: The candidates, best first.
        margins: How close each decision was, by name.
        rules: The limits; how many models a set may have does not count here.
    """
    fitting = select(standings, replace(rules, max_models=len(standings))).selected
    flips = [name for name, margin in margins.items() if margin.gap_flips or margin.length_flips]
    near = [standing.model for standing in standings if standing.model in flips and standing.model not in fitting]
    return [*fitting, *near][:READERS]


def _vocabulary(checkpoint: Checkpoint, rows: int) -> Vocabulary:
    """A model's tokens, by its tokenizer alone and the rows of its output."""
    from transformers import AutoTokenizer

    from ensemble.vocabulary.token_bytes import Vocabulary

    tokenizer = AutoTokenizer.from_pretrained(checkpoint.location, **checkpoint.options)
    # More ends than the tokenizer's own may stand in the generation configuration; special tokens they are anyway.
    return Vocabulary(tokenizer, (), rows)


def _spelled(prompt: str | Sourced) -> str | list[str]:
    """A prompt as part of a key."""
    return prompt if isinstance(prompt, str) else [prompt.prompt, prompt.source]


def _reading(kept: object) -> Reading | None:
    """A reading as it was kept; None where it is not there, or cannot be read."""
    if isinstance(kept, list) and len(kept) == 2 and all(isinstance(number, int) for number in kept):
        return Reading(*kept)
    return None
