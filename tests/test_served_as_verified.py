"""What was verified is what is served: every strategy of a run on the demo's models, asked again by HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running_server import listening
from sharing import demo_cache

from advisor import cli
from advisor.advice.comparison import Compared, StrategyResult, compare_strategies
from advisor.commands.select import run
from advisor.models.response_cache import ResponseCache
from advisor.models.run_config import InferenceConfig, RunConfig
from advisor.options.finished_run import ServeOptions
from advisor.options.new_run import SelectOptions
from advisor.progress import Progress
from advisor.run.plan import plan_by_options
from advisor.serving.protocol import RequestLimits
from advisor.serving.server import bind
from advisor.serving.starting import make_app_of
from advisor.strategies import label

ASKED = 8
"""Held-out questions that are asked again."""


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[StrategyResult, ...], list[str]]:
    """A run folder, its strategies with their answers, and the prompts of the held-out questions."""
    folder, fusion = tmp_path_factory.mktemp("verified") / "run", "best panel=terse-olmo,terse-mistral rounds=2"
    command = ["advisor", "select", "--pool", "demo", "--task", "word_problems", "--limit", "24", "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(demo_cache(tmp_path_factory)))
        patch.setattr("sys.argv", [*command, "--fusion", fusion, "--out", str(folder)])
        cli.main()
        # The same again in this process, from the stored responses, for the answers of all strategies.
        options = SelectOptions(pool="demo", task="word_problems", limit=24, fusion=fusion)
        config = RunConfig.from_options(options, "")
        compared: list[Compared] = []

        def kept(*args: Any, **options: Any) -> Compared:
            compared.append(compare_strategies(*args, **options))
            return compared[-1]

        patch.setattr("advisor.commands.select.compare_strategies", kept)
        with ResponseCache(config.cache_dir) as cache:
            run(config, cache, Progress(quiet=True))
    assert config.held_out is not None
    return folder, compared[-1].results, [example.prompt for example in config.held_out.examples]


@pytest.mark.slow
def test_each_strategy_serves_the_texts_that_were_verified(
    verified: tuple[Path, tuple[StrategyResult, ...], list[str]],
) -> None:
    folder, strategies, prompts = verified
    assert {each.strategy.name for each in strategies} >= {"single", "unite", "vote", "fusion"}
    for result in strategies:
        name = label(result.strategy, [each.strategy for each in strategies])
        plan = plan_by_options(ServeOptions(run=str(folder), strategy=name), lambda _: None)
        limits = RequestLimits(default_tokens=plan.max_new_tokens or 256, default_stop=plan.stop)
        app, engine = make_app_of(plan, "demo", limits, None, None, InferenceConfig())
        with bind("127.0.0.1", 0) as bound, listening(bound, app, engine) as server, server.client() as client:
            served = [
                client.completions.create(model="demo", prompt=prompt).choices[0].text for prompt in prompts[:ASKED]
            ]
        assert served == [answer.text for answer in result.profile.answers[:ASKED]], name
