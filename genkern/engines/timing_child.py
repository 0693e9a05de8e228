"""Child process of `genkern engine-check`: starts vLLM on one model, times decoding and a prefill, and records tokens.

    python -m genkern.engines.timing_child REQUEST.json

REQUEST.json holds a Request as a dict. The result, a dict, is written to its `output` at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Number of top log-probabilities that are compared per token, and number of tokens for which they are compared: the
# first token comes from the prefill, the second from a decode step.
LOGPROBS, COMPARED = 20, 2
# Number of tokens of the shorter run. The time of the decode steps is a longer run's time minus the shorter run's.
SHORT = 8


@dataclass(frozen=True)
class Request:
    """What to measure: `tokens` decode steps per batch size, `repeats` times, after prompts of `prompt` tokens.

    Each of `prefills` is a number of prompts and the number of tokens of each.
    """

    model: str
    output: str
    batches: tuple[int, ...]
    prefills: tuple[tuple[int, int], ...]
    tokens: int
    prompt: int
    repeats: int
    vocabulary: int
    tp: int = 1
    load_format: str = "dummy"
    engine_args: dict[str, Any] = field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    """Runs the request of the file named in argv, and writes the result."""
    with open(argv[0], encoding="utf-8") as file:
        data = json.load(file)
    prefills = tuple((int(count), int(length)) for count, length in data["prefills"])
    request = Request(**{**data, "batches": tuple(data["batches"]), "prefills": prefills})
    result = measured(request)
    partial = f"{request.output}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(partial, request.output)
    return 0


def measured(request: Request) -> dict[str, Any]:
    """Returns the result: seconds of the start, and per batch size milliseconds, tokens and log-probabilities.

    Also milliseconds of each prefill, by its name, the largest number of tokens in a step, and the version of vLLM.
    """
    began = time.perf_counter()
    # Imported here: the import is a part of the start.
    from vllm import LLM, SamplingParams

    llm = LLM(**arguments(request))
    start_s = time.perf_counter() - began

    def generate(prompts: list[Any], count: int, logprobs: int | None = None) -> tuple[float, list[Any]]:
        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False, logprobs=logprobs)
        begin = time.perf_counter()
        found = llm.generate(prompts, sampling, use_tqdm=False)
        return (time.perf_counter() - begin) * 1e3, [each.outputs[0] for each in found]

    batches = {str(batch): _batch(request, batch, generate) for batch in request.batches}
    prefill_ms = {}
    for count, length in request.prefills:
        prompts = _prompts(count, length, request.vocabulary, 104729)
        generate(prompts, 1)
        prefill_ms[prefill_name(count, length)] = [generate(prompts, 1)[0] for _ in range(request.repeats)]
    return {
        "start_s": start_s,
        "batches": batches,
        "prefill_ms": prefill_ms,
        "most_tokens": _most_tokens(llm),
        "version": _version(),
    }


def prefill_name(count: int, length: int) -> str:
    """Returns the name of a prefill of `count` prompts of `length` tokens."""
    return f"prefill {count}x{length}"


def arguments(request: Request) -> dict[str, Any]:
    """Returns the arguments of vllm.LLM. Arguments that the user gave (`engine_args`) replace genkern's."""
    most = max((*request.batches, *(count for count, _ in request.prefills), 1))
    lengths = request.prompt + SHORT + request.tokens, *(length + 1 for _, length in request.prefills)
    usual: dict[str, Any] = {
        "model": request.model,
        "load_format": request.load_format,
        "skip_tokenizer_init": True,
        "max_model_len": max(lengths),
        "max_num_seqs": most,
        "gpu_memory_utilization": 0.8,
        "enable_prefix_caching": False,
        "seed": 0,
        "tensor_parallel_size": request.tp,
    }
    if request.batches:
        usual["compilation_config"] = {"cudagraph_capture_sizes": sorted(request.batches)}
    return {**usual, **request.engine_args}


def _batch(request: Request, batch: int, generate: Any) -> dict[str, Any]:
    prompts = _prompts(batch, request.prompt, request.vocabulary, 7919)
    long = SHORT + request.tokens
    generate(prompts, SHORT)
    step_ms = []
    for _ in range(request.repeats):
        (few_ms, _), (many_ms, outputs) = generate(prompts, SHORT), generate(prompts, long)
        step_ms.append((many_ms - few_ms) / request.tokens)
    return {
        "step_ms": step_ms,
        "tokens": [list(map(int, each.token_ids)) for each in outputs],
        "logprobs": _logprobs(prompts, generate),
    }


def _logprobs(prompts: list[Any], generate: Any) -> list[Any]:
    """Returns for each prompt the top log-probabilities of its first tokens, by token; [] if the engine gives none."""
    try:
        _, outputs = generate(prompts, COMPARED, LOGPROBS)
        return [
            [{str(token): float(each.logprob) for token, each in place.items()} for place in output.logprobs]
            for output in outputs
        ]
    except Exception as error:
        print(f"engine-check: no log-probabilities: {type(error).__name__}: {error}", file=sys.stderr)
        return []


def _prompts(count: int, length: int, vocabulary: int, factor: int) -> list[dict[str, list[int]]]:
    return [
        {"prompt_token_ids": [(factor * (i + 1) * (j + 1)) % vocabulary for j in range(length)]} for i in range(count)
    ]


def _most_tokens(llm: Any) -> int:
    """Returns the largest number of tokens in a step, the largest M of a prefill; 0 if vLLM does not say."""
    try:
        return int(llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens)
    except AttributeError:
        return 0


def _version() -> str:
    from genkern.engines.hooks import version_of

    return version_of("vllm")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
