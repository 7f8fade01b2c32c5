"""Weights of a set's members by how well they tell right texts, without decoding.

Each member reads the texts once (:mod:`ensemble.reading`). At each place, a greedy step of the set with some weights
writes what the text has next, or something else. The weights are those with which the set writes most of the texts: on
a grid, the mean of all that are within one standard error of the best, so that noise decides little. Cross-validation
over texts says what they are worth on other texts.

The likelihood of the texts under the members' mixture, which EM maximises, counts all places that every member is sure
of, where no weights matter. On the demo's models such weights gave no more right steps than the best member alone has,
and equal ones 0.8 to 1.0 points more.

Which texts: of a metric that compares with a text (chrF, BLEU), the references of the dev questions; of a choice task
the right options; else right responses of the set's own members, the same number of each. A reference such as "35" is
not what a model writes, and a text in the style of another model tells little about these.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from advisor.models.loaded_models import ALONE, LoadedModels
from advisor.models.response_cache import ResponseCache, key_of
from advisor.progress import Progress
from advisor.records import Profile, signed
from advisor.statistics import Floats
from advisor.tasks.metrics import COMPARING
from advisor.tasks.task import Task
from ensemble.errors import InputError, MemberError, UniteError, first_line
from ensemble.models.spec import EnsembleSpec, ModelSpec

if TYPE_CHECKING:
    from ensemble.reading import Reading, ReadSteps
    from ensemble.vocabulary.token_bytes import Vocabulary

_LOG = logging.getLogger(__name__)
_MOST_CHARACTERS = 40_000
"""Characters of the right texts of all candidates together: some 10,000 tokens, which each model reads once."""
_RIGHT = 0.5
"""The score above which a response counts as right."""
_PARTS = {1: 1, 2: 20, 3: 10}
"""Into how many parts the grid of weights divides 1, by the number of members; 5 for more of them."""
_FOLDS = 5
_FORM = 2
"""Part of the keys of readings and of what they tell; another form is not read."""
_ROWS = 64
"""Texts to read at a time, where memory allows it."""

Text = tuple[int, str, bool]
"""The number of a question, a text after its prompt, and whether it ends there."""
Share = Annotated[float, Field(ge=0, le=1)]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ReadSet:
    """What the steps of a set tell at the places of right texts; the cache keeps it.

    Attributes:
        weights: Those with which most steps are right, 1 in all, the primary's first.
        steps: How many there are.
        texts: Of how many texts.
        equal: The share of steps that the set with equal weights writes as the texts have them.
        weighted: The same with weights from other texts, by cross-validation.
        error: The standard error of the last one minus that with equal weights.
    """

    weights: tuple[Share, ...]
    steps: int
    texts: int
    equal: Share
    weighted: Share
    error: float

    def __str__(self) -> str:
        weights, gain = " : ".join(f"{weight:.2f}" for weight in self.weights), 100 * (self.weighted - self.equal)
        return (
            f"{weights}, from {self.steps:,} tokens of {self.texts:,} right texts; on texts left out {signed(gain)} "
            f"points of right tokens over equal weights (standard error {100 * self.error:.1f})"
        )


_READ_SET = TypeAdapter(ReadSet)


class SetReader:
    """Reads texts with models, and says what sets of them make of these; the cache keeps both."""

    def __init__(
        self,
        models: LoadedModels,
        cache: ResponseCache,
        progress: Progress,
        dev: Task,
        texts: Mapping[str, Sequence[Text]],  # those of each model, by :func:`texts_of`
        specs: Mapping[str, ModelSpec],
        keys: Mapping[str, Any],  # what identifies each model
        k: int,
    ) -> None:
        self._models, self._cache, self._progress = models, cache, progress
        self._dev, self._texts, self._specs, self._keys, self._k = dev, texts, specs, keys, k
        self._all = sorted({text for own in texts.values() for text in own})
        self._readings: dict[str, Mapping[Text, Reading]] = {}
        self._vocabularies: dict[str, Vocabulary] = {}

    def read(self, sets: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], ReadSet]:
        """What each set, its primary first, makes of its members' texts; MemberError where a model cannot read.

        Left out are sets with models behind servers, and those without a step.
        """
        found = {names: self._stored(names) for names in sets if self._texts.keys() >= set(names)}
        missing = [names for names, stored in found.items() if stored is None and self._own(names)]
        if missing:
            from ensemble.reading import set_vocabulary, steps_of
            from ensemble.vocabulary.joint import build

            models = list(dict.fromkeys(name for names in missing for name in names))
            for name in models:
                self._read(name)
            joint = build([self._vocabularies[name] for name in models])
            for names in missing:
                own = self._own(names)
                readings = [[self._readings[name][text] for text in own] for name in names]
                numbers = [models.index(name) for name in names]
                known = found[names] = read_set(steps_of(readings, set_vocabulary(joint, numbers), self._k))
                if known is not None:
                    self._cache.keep(self._key(names), asdict(known))
        return {names: known for names, known in found.items() if known is not None}

    def _own(self, names: Sequence[str]) -> list[Text]:
        """The texts of a set: the same number of each member."""
        same = min(len(self._texts[name]) for name in names)
        return sorted({text for name in names for text in self._texts[name][:same]})

    def _key(self, names: Sequence[str]) -> str:
        members = [self._keys[name] for name in names]
        texts = [[self._dev.examples[n].prompt, text, ends] for n, text, ends in self._own(names)]
        return key_of({"read_set": _FORM, "members": members, "k": self._k, "texts": texts})

    def _stored(self, names: Sequence[str]) -> ReadSet | None:
        try:
            return _READ_SET.validate_python(self._cache.value(self._key(names)))
        except ValidationError:
            return None

    def _read(self, name: str) -> None:
        """Read all texts with a model, unless it has read them."""
        if name in self._readings:
            return
        try:
            self._readings[name] = dict(self._read_texts(name))
        except UniteError:
            raise
        except Exception as error:  # of transformers, torch, or of code that came with the model
            _LOG.debug("%s cannot read", name, exc_info=error)
            raise MemberError(f"it cannot read the right texts: {first_line(error)}", of=name) from error

    def _read_texts(self, name: str) -> Iterator[tuple[Text, Reading]]:
        """Each text and what the model would write along it, from the cache or from the model."""
        from ensemble.reading import GivenText, Reading, read

        keys = {
            text: key_of(
                {
                    "reading": _FORM,
                    "members": [self._keys[name]],
                    "prompt": self._dev.examples[text[0]].prompt_of(name),
                    "text": text[1:],
                }
            )
            for text in self._all
        }
        stored = {text: self._cache.value(key) for text, key in keys.items()}
        yield from ((text, Reading.unpacked(value)) for text, value in stored.items() if value is not None)
        left = [text for text, value in stored.items() if value is None]
        # Also where all is stored: the tokenizer is needed.
        ensemble = self._models.ensemble(EnsembleSpec((self._specs[name],), ALONE))
        member = ensemble.members[0].as_writing(alone=False)
        self._vocabularies[name] = member.vocabulary
        groups, prompts = [], []
        for n, own in groupby(left, key=lambda text: text[0]):
            groups.append(list(own))
            try:
                prompts.append(member.encode_prompt(self._dev.examples[n].model_input))
            except InputError:
                # It cannot answer this question either, so it has no place in these texts.
                yield from ((text, Reading.empty()) for text in groups.pop())
        given = [[GivenText(text.encode(), ends) for _, text, ends in own] for own in groups]
        rows = min(_ROWS, ensemble.most_rows(max(map(len, prompts), default=1)) or _ROWS)
        with self._progress.stage(f"{name} reads right texts", len(self._all)) as advance:
            advance(len(self._all) - len(left))
            for place, readings in read(member, prompts, given, rows):
                for text, reading in zip(groups[place], readings, strict=True):
                    self._cache.keep(keys[text], reading.packed())
                    yield text, reading
                advance(len(readings))


def texts_of(dev: Task, profiles: Mapping[str, Profile]) -> dict[str, list[Text]]:
    """The right texts of dev questions for each model, in the order of the questions."""
    # What a later turn answers depends on what each model said before.
    first = [n for n, example in enumerate(dev.examples) if example.earlier is None]
    if dev.metric == "choice":
        own = [
            (n, option, False)
            for n in first
            for option, choice in zip(dev.continuations(dev.examples[n]), dev.examples[n].choices, strict=True)
            if dev.score(dev.examples[n], choice).value > _RIGHT
        ]
    elif dev.metric in COMPARING:
        before = _beginning(profiles)
        own = [(n, f"{before}{dev.examples[n].accepted[0]}", False) for n in first]
    else:
        most = _MOST_CHARACTERS // max(len(profiles), 1)
        return {name: _up_to(most, _right(profile, first)) for name, profile in profiles.items()}
    return dict.fromkeys(profiles, _up_to(_MOST_CHARACTERS, own))


def _right(profile: Profile, numbers: Sequence[int]) -> list[Text]:
    return [
        (n, answer.text, answer.finish_reason == "eos")
        for n, answer in ((n, profile.answers[n]) for n in numbers)
        # After thinking that is left out, a model writes what it would not write after the prompt alone.
        if answer.score > _RIGHT and answer.text and not answer.thought
    ]


def _up_to(most: int, texts: Sequence[Text]) -> list[Text]:
    """The first texts that have at most so many characters together, but one at least."""
    lengths = np.cumsum([len(text) for _, text, _ in texts])
    return list(texts[: max(1, int((lengths <= most).sum()))])


def _beginning(profiles: Mapping[str, Profile]) -> str:
    """The white space with which most responses begin."""
    texts = [answer.text for profile in profiles.values() for answer in profile.answers if answer.text]
    found = Counter(text[: len(text) - len(text.lstrip())] for text in texts)
    return found.most_common(1)[0][0] if found else ""


def read_set(steps: ReadSteps) -> ReadSet | None:
    """What the steps of a set tell; None without steps."""
    count, members = len(steps.texts), len(steps.members)
    if not count:
        return None
    alone = np.stack([steps.right(own.tolist()).numpy() for own in np.eye(members)])
    # Where all members want what the text has, any weights are right.
    open_steps = steps.part(alone.sum(axis=0) < members)
    sure = count - len(open_steps.texts)
    texts, grid = open_steps.texts.numpy(), weights_to_try(members)
    right = np.stack([open_steps.right(weights.tolist()).numpy() for weights in grid])
    others = by_other_texts(open_steps, grid, right)
    lengths = np.bincount(steps.texts.numpy())
    gains = np.bincount(texts, others.astype(float) - right[0], len(lengths))
    return ReadSet(
        weights=tuple(best_weights(grid, right).tolist()),
        steps=count,
        texts=int((lengths > 0).sum()),
        equal=float(sure + right[0].sum()) / count,
        weighted=float(sure + others.sum()) / count,
        error=float(np.sqrt(np.square(gains - gains.sum() / count * lengths).sum()) / count),
    )


def by_other_texts(steps: ReadSteps, grid: Floats, right: Flags) -> Flags:
    """Whether each step is right with the weights that are best on the texts of other folds.

    The weights to try are [grid, members], and with each of them the steps are right or not [grid, steps].
    """
    folds = steps.texts.numpy() % _FOLDS
    found: Flags = right[0].copy()
    for fold in range(_FOLDS):
        out = folds == fold
        if out.any() and not out.all():
            found[out] = steps.right(best_weights(grid, right[:, ~out]).tolist()).numpy()[out]
    return found


def weights_to_try(members: int) -> Floats:
    """A grid of weights [grid, members], equal ones first."""
    parts = _PARTS.get(members, 5)
    points = np.stack(np.meshgrid(*[np.arange(parts + 1)] * members, indexing="ij"), axis=-1).reshape(-1, members)
    return np.vstack([np.full(members, 1 / members), points[points.sum(axis=1) == parts] / parts])


def best_weights(grid: Floats, right: Flags) -> Floats:
    """The mean of the weights [grid, members] with as many right steps [grid, steps] as the best, but for noise."""
    counts = right.sum(axis=1)
    lost = counts.max() - counts
    changed = (right != right[counts.argmax()]).sum(axis=1)
    weights: Floats = grid[lost <= np.sqrt(changed)].mean(axis=0)
    return weights
