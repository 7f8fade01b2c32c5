"""The zoo: the demo's models and more of the same kind, from other seeds, tokenizers and lengths of training.

They are trained by the demo's own script and kept in the user's cache folder; what is there already is not trained
again. Training takes about ten minutes a model on one core.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from advisor.demo.train import HERE, RECIPES, TrainingRecipe, make_model
from ensemble.common.files import default_cache_dir

EXTRA = (
    TrainingRecipe("zoo-llama", "llama", "unigram", 240, "terse", 1500, 11),
    TrainingRecipe("zoo-mistral", "mistral", "byte_level", 480, "terse", 1500, 12),
    TrainingRecipe("zoo-neox", "gpt_neox", "sentencepiece_bpe", 400, "terse", 1300, 13),
    TrainingRecipe("zoo-olmo", "olmo2", "unigram", 240, "terse", 1300, 14),
)
"""What the zoo has besides the demo's models; the numbers of steps were chosen once, before any of it was measured."""


def folders() -> dict[str, Path]:
    """Each model's folder by name, the demo's first; those that are missing are trained before."""
    own = {recipe.name: default_cache_dir() / "zoo" / recipe.name for recipe in EXTRA}
    missing = [recipe for recipe in EXTRA if not (own[recipe.name] / "training.json").is_file()]
    if missing:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            for task in [pool.submit(make_model, recipe, own[recipe.name]) for recipe in missing]:
                task.result()
    return demo_folders() | own


def demo_folders() -> dict[str, Path]:
    """The folders of the demo's models, which come with the project."""
    return {recipe.name: HERE / "models" / recipe.name for recipe in RECIPES}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, folder in folders().items():
        print(f"{name}: {folder}")
