"""What llama.cpp takes for a GGUF file, by its binding `cyllama`: ``PYTHON benchmarks/studies/_llama_cpp.py FILE``.

It runs in an interpreter of its own, which has the binding and none of this project's packages; `real.py` starts it.
It prints seconds of the processor for each token, with one thread, as JSON: of a prompt, of one text token by token,
and of several texts at once. None of these takes the logits, so they are a little too small; whether the binding
gives these at all is printed as well.
"""

import json
import sys
import time
from typing import Any

PROMPT, STEPS, BATCH = 256, 32, 16
"""Tokens of the prompt; steps that follow it; texts at once, which take half of the steps."""


def measure(path: str) -> "dict[str, Any]":
    """The seconds for each token, and ``logits``: empty if they can be had, else why not."""
    import cyllama.llama.llama_cpp as binding  # type: ignore[import-not-found]

    binding.disable_logging()
    model = binding.LlamaModel(path_model=path, params=binding.LlamaModelParams(), verbose=False)
    params = binding.LlamaContextParams()
    # The context is shared out among the texts.
    params.n_ctx, params.n_seq_max = BATCH * 2 * (PROMPT + STEPS), BATCH
    params.n_batch = params.n_ubatch = PROMPT
    params.n_threads = params.n_threads_batch = 1
    context = binding.LlamaContext(model=model, params=params, verbose=False)
    whole, one, many = (binding.LlamaBatch(n_tokens=n, embd=0, n_seq_max=BATCH) for n in (PROMPT, 1, BATCH))

    def seconds(batch: Any, fill: "list[list[tuple[int, int, int]]]") -> float:
        start = time.process_time()
        for rows in fill:
            batch.reset()
            for token, place, row in rows:
                batch.add(token, place, [row], token >= 0)
            context.decode(batch)
        return (time.process_time() - start) / sum(map(len, fill))

    whole.set_batch(ids(PROMPT), 0, False)
    start = time.process_time()
    context.decode(whole)
    found: dict[str, Any] = {"prompt": (time.process_time() - start) / PROMPT}
    found["one"] = seconds(one, [[(token, PROMPT + n, 0)] for n, token in enumerate(ids(STEPS))])
    try:
        context.get_logits_ith(0)
        found["logits"] = ""
    except (AttributeError, RuntimeError, ValueError) as error:
        found["logits"] = f"{type(error).__name__}: {error}"
    context.kv_cache_clear(True)
    rows = [[(token, n, row) for row, token in enumerate(ids(BATCH))] for n in range(STEPS // 2)]
    found["many"] = seconds(many, rows)
    return found


def ids(count: int) -> "list[int]":
    """Some tokens that every vocabulary has."""
    return [(37 * n) % 10_000 + 300 for n in range(count)]


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
