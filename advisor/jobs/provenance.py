"""Where a result comes from: the command, the versions, the models' files. It is enough to repeat the run."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from advisor.jobs.planning.machine import version_of
from advisor.judge.judge import Judge
from advisor.logs import sources
from advisor.logs.join import JoinedLogs
from advisor.models.fingerprint import Fingerprint
from advisor.models.profiler import Profiler
from advisor.models.run_config import RunConfig
from advisor.models.server_identity import ServerIdentity
from advisor.run.result import LogOrigin, Provenance, ScoringSource
from advisor.tasks import metrics
from ensemble import methods as registry
from ensemble.models.spec import ModelSpec

_PACKAGES = ("unite-advisor", "torch", "transformers", "tokenizers", "sacrebleu", "scipy", "scikit-learn")
"""The packages that can change a number."""


def of_run(
    config: RunConfig, profiler: Profiler, methods: Sequence[str] = (), judge: Judge | None = None
) -> Provenance:
    """``provenance`` of a run with models, after these have answered; `methods` are those besides the run's own."""
    inference, judges = config.inference, judge.identities if judge else {}
    models = {entry.name: _model(entry, profiler.identities[entry.name]) for entry in config.candidates}
    here = [model for model in models.values() if model.get("remote") is None]
    versions = [registry.plugins().version(name) for name in (config.method, *methods)]
    if config.dev.scorer is None:  # otherwise the metric is another tool's
        versions.append(metrics.plugins().version(config.dev.metric))
    values = {
        "command": config.command,
        "seed": config.seed,
        "versions": _versions(*versions),
        "engine": inference.engine,
        "machine": f"{platform.system()} {platform.machine()}",
        # What the models had, because "auto" means something else on each machine.
        "device": ", ".join(dict.fromkeys(model["device"] for model in here)) or None,
        "dtype": ", ".join(dict.fromkeys(model["dtype"] for model in here)) or None,
        "chat_template": inference.chat_template,
        "models": models,
        **({"data": config.dev.origin} if config.dev.origin else {}),
        **({"judges": {each.name: _model(each, judges[each.name]) for each in config.judges}} if judges else {}),
        "loads": {
            name: {"count": len(seconds), "seconds_total": sum(seconds)}
            | ({"threads": profiler.threads[name]} if name in profiler.threads else {})
            for name, seconds in profiler.loads.items()
        },
    }
    return Provenance.model_validate(values)


def of_numbers(command: str, path: Path) -> Provenance:
    """``provenance`` of a run on published or earlier numbers."""
    return Provenance(command=command, profiles=str(path), versions=_versions(), models={})


def of_logs(command: str, seed: int, logs: JoinedLogs) -> Provenance:
    """``provenance`` of a run on logs."""
    versions = [sources.plugins().version(source.format) for source in logs.sources]
    if logs.scoring is not None:
        versions.append(metrics.plugins().version(logs.scoring.metric))
    return Provenance(
        command=command,
        seed=seed,
        versions=_versions(*versions),
        logs=tuple(LogOrigin(path=str(source.path), format=source.format) for source in logs.sources),
        # Without it only the log's tool knows how the answers were read from the responses.
        scoring=None if logs.scoring is None else ScoringSource(**asdict(logs.scoring)),
        models={},
    )


def _versions(*plugins: Mapping[str, str]) -> dict[str, str]:
    """Versions of this project's packages, and of those that plug-ins came from."""
    versions = {"python": platform.python_version()}
    versions |= {package: version_of(package) or "unknown" for package in _PACKAGES}
    for found in plugins:
        versions.update(found)
    return versions


def _model(entry: ModelSpec, model_id: Fingerprint | ServerIdentity) -> dict[str, Any]:
    if isinstance(model_id, ServerIdentity):
        # A server has no files: its address and what it says of itself are all that is known.
        return {**entry.options("result"), **model_id.as_dict()}
    revision, files = model_id.spec.weights.revision, dict(model_id.spec.files)
    place = {"path_or_id": entry.checkpoint.path_or_id, "revision": revision, "files": files}
    return {**place, **model_id.spec.options("result")}
