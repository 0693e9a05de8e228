"""Times vLLM's decode steps, prefill and start with random weights, with or without genkern's plugin.

    python -m genkern model MODEL --engine vllm --nsets 1,16,64,256,2048,8192 -o b.genkern
    python -m benchmarks.serving.vllm_decode MODEL -o stock.json
    GENKERN_CONFIG=b.genkern python -m benchmarks.serving.vllm_decode MODEL -o genkern.json --over stock.json

MODEL is a folder with a config.json, such as those of benchmarks/serving/engine_models. Prompts have 256 tokens.
ms of a step = (shortest of 3 times of 136 tokens less shortest of 3 of 8) / 128. The prefill is of 16 prompts of 1,024
tokens, the shortest of 5. With --over the command prints the ratios (stock over genkern) and the number of equal greedy
tokens. `genkern engine-check` does the same for a user's model, and looks for the layer that makes a batch slower.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

BATCHES = (1, 16, 64, 256)
SHORT, LONG = 8, 136


def prompts(count: int, tokens: int, step: int) -> list[dict[str, list[int]]]:
    """`count` prompts of `tokens` token ids each, the same in every run."""
    return [{"prompt_token_ids": [(step * (i + 1) * (j + 1)) % 120_000 for j in range(tokens)]} for i in range(count)]


def measured(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The ms of a step by batch, of the prefill, the seconds of the start, and the first greedy tokens."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "1" if "tensor_parallel_size" in arguments else "0")
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    started = time.perf_counter()
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=2048,
        gpu_memory_utilization=0.80,
        max_num_seqs=max(BATCHES),
        enable_prefix_caching=False,
        seed=0,
        compilation_config={"cudagraph_capture_sizes": list(BATCHES)},
        **arguments,
    )
    found: dict[str, Any] = {"start_s": time.perf_counter() - started, "tokens": {}}

    def seconds(asked: list[dict[str, list[int]]], tokens: int) -> tuple[float, Any]:
        greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        answers = llm.generate(asked, greedy, use_tqdm=False)
        return time.perf_counter() - begun, answers

    for batch in BATCHES:
        asked = prompts(batch, 256, 7919)
        seconds(asked, SHORT)
        short, long = (min(seconds(asked, tokens)[0] for _ in range(3)) for tokens in (SHORT, LONG))
        found[str(batch)] = (long - short) / (LONG - SHORT) * 1e3
        found["tokens"][str(batch)] = [list(each.outputs[0].token_ids) for each in seconds(asked, SHORT)[1]]
    asked = prompts(16, 1024, 104_729)
    seconds(asked, 1)
    found["prefill"] = min(seconds(asked, 1)[0] for _ in range(5)) * 1e3
    return found


def compared(stock: dict[str, Any], found: dict[str, Any]) -> str:
    """One line: stock's times over these, and how many greedy tokens are equal."""
    ratios = {key: round(stock[key] / found[key], 3) for key in (*map(str, BATCHES), "prefill", "start_s")}
    pairs = [
        (a, b)
        for batch, rows in stock["tokens"].items()
        for row, other in zip(rows, found["tokens"][batch], strict=True)
        for a, b in zip(row, other, strict=True)
    ]
    return f"over stock: {ratios}; {sum(a == b for a, b in pairs)} of {len(pairs)} tokens equal"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="JSON of what was measured")
    parser.add_argument("--over", type=Path, metavar="FILE", help="the JSON of a run without genkern, to compare with")
    parser.add_argument("--arguments", default="{}", metavar="JSON", help="further arguments of vllm.LLM")
    options = parser.parse_args()
    found = measured(options.model, json.loads(options.arguments))
    options.output.write_text(json.dumps(found))
    print({key: round(value, 3) for key, value in found.items() if key != "tokens"}, flush=True)
    if options.over:
        print(compared(json.loads(options.over.read_text()), found), flush=True)


if __name__ == "__main__":
    main()
