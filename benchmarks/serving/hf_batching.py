"""transformers' continuous batching of LlamaForCausalLM at Llama-3.1-8B's shape, with genkern.patch and without.

    python -m benchmarks.serving.hf_batching BUNDLE [--layers 16] [--requests 64] [--prompt 128] [--tokens 64]

Random weights. All requests are there from the start (`generate_batch`): tokens a second of the whole, prompts
included, in turns, after a run of each. Prompts are of several lengths, up to --prompt, so that steps have any M. Of
greedy tokens the share that is the same is told: logits differ in their last bits, and random weights have near ties.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import genkern
from benchmarks.common.figures import table
from benchmarks.common.workbench import errors_end, said
from benchmarks.serving.dispatching import Place, gpu_place, key_lines
from benchmarks.serving.llama import GENKERN, LIBRARY, Transformers
from benchmarks.serving.llama_model import LLAMA_8B, Shape
from genkern.runtime.bundle import read_bundle
from genkern.runtime.linear import Patch

# Tokens of a page of the cache, which has as many pages as all requests may need, and the most of a step.
PAGE, MOST_TOKENS = 256, 1024
# What each request was answered, by its place.
Answers = Sequence[Sequence[int]]


def prompts(count: int, longest: int, vocabulary: int) -> list[list[int]]:
    """Of random tokens, of lengths from a quarter of the longest on."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(max(1, longest // 4), longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def served(model: Any, asked: Sequence[list[int]], tokens: int) -> tuple[float, Answers]:
    """Seconds until all are answered with so many tokens each, and the answers."""
    import transformers

    pages = max(-(-(len(prompt) + tokens) // PAGE) for prompt in asked)
    room = transformers.ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=len(asked) * pages + 1, max_batch_tokens=MOST_TOKENS
    )
    wanted = transformers.GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    started_s = time.perf_counter()
    found = model.generate_batch(inputs=list(asked), generation_config=wanted, continuous_batching_config=room)
    taken_s = time.perf_counter() - started_s
    if len(found) != len(asked):
        raise SystemExit(f"{len(found)} of {len(asked)} requests were answered")
    return taken_s, [found[f"req_{number}"].generated_tokens for number in range(len(asked))]


def same_share(one: Answers, other: Answers) -> float:
    """The share of tokens that both have at the same place."""
    pairs = [pair for answers in zip(one, other, strict=True) for pair in zip(*answers, strict=False)]
    return sum(a == b for a, b in pairs) / len(pairs)


def report(times_s: Mapping[str, Sequence[float]], tokens: int, same: float, patched: Patch) -> str:
    """Markdown: a line for each; then the keys."""
    medians = {who: statistics.median(each) for who, each in times_s.items()}
    rows = [(who, f"{tokens / each:,.0f}", f"{each:.2f}") for who, each in medians.items()]
    counts = f"{len(patched.layers)} layers patched, {len(patched.merged)} groups, {len(patched.gated)} gated"
    figures = {"hf_batching": medians[LIBRARY] / medians[GENKERN], "hf_batching_same_tokens": same}
    return f"{table(('served by', 'tokens/s', 's'), rows)}\n\n{counts}\n{key_lines(figures)}"


def run(
    place: Place, argv: Sequence[str], patch: Callable[[nn.Module], Patch] = genkern.patch, shape: Shape = LLAMA_8B
) -> str:
    """What is printed. Raises ResultsError."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", help="what serves")
    parser.add_argument("--layers", type=int, default=16, help="of the model (default: 16)")
    parser.add_argument("--requests", type=int, default=64, help="that are there at once (default: 64)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the longest prompt (default: 128)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default: 64)")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (default: 3)")
    arguments = parser.parse_args(argv)
    read_bundle(arguments.bundle)
    os.environ["GENKERN_CONFIG"] = arguments.bundle
    asked = prompts(arguments.requests, arguments.prompt, shape.vocabulary)
    model = Transformers(replace(shape, layers=arguments.layers), place.device, arguments.prompt).model
    times: dict[str, list[float]] = {LIBRARY: [], GENKERN: []}
    answers: dict[str, Answers] = {}
    for number in range(1 + arguments.rounds):
        for who in times:
            with said(f"{who}, {number} of {arguments.rounds}"), contextlib.ExitStack() as stack:
                made = stack.enter_context(patch(model)) if who == GENKERN else None
                taken_s, answers[who] = served(model, asked, arguments.tokens)
                # The first of each compiles and warms up.
                times[who] += [taken_s] if number else []
            place.release()
    assert made is not None
    tokens = sum(map(len, asked)) + sum(map(len, answers[GENKERN]))
    return f"{report(times, tokens, same_share(answers[LIBRARY], answers[GENKERN]), made)}\n{place}"


def main() -> None:
    with errors_end(), contextlib.suppress(KeyboardInterrupt):
        print(run(gpu_place(), sys.argv[1:]))


if __name__ == "__main__":
    main()
