"""Greedy decoding of prompts alone and in batches, by transformers' Llama: whether logits are equal to the bit, and how
fast it is.

    python -m benchmarks.serving.invariant_decode BUNDLE [--layers 8] [--tokens 16] [--limit_s 100] [-o DATA.jsonl]
        [--ops FOLDER]
    python -m benchmarks.serving.invariant_decode --sizes > sizes.yaml    # what to tune by `genkern --batch_invariant`

The model is LlamaForCausalLM of Llama-3.1-8B's shape with random weights and, as it comes, separate projections. Its
linear layers are PyTorch's, genkern's (genkern.patch, which merges q, k, v and gate, up; genkern.batch_invariant), and
those of batch_invariant_ops, from FOLDER or where it is installed. "differ": of the logits of 64 prompts of one length
and of what follows them, how many rows have other bits decoded 64 at a time, and 64 in reverse, than decoded alone. For
that test norms and attention, which are no linear layers, are always given 64 sequences, filled up with zeros. Speeds
are of a step with --context tokens in the cache, as it is served, in CUDA graphs that take turns (as
serving/llama.py's).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import genkern
from benchmarks.common.figures import table
from benchmarks.common.kept import Kept
from benchmarks.common.rounds import Limit, alternate
from benchmarks.common.workbench import errors_end, said, say
from benchmarks.serving.dispatching import Place, argument_parser, gpu_place, key_lines
from benchmarks.serving.llama import Capture, Case, Transformers, graph_of, loop_sampler
from benchmarks.serving.llama_model import LLAMA_8B, Shape
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import read_bundle

PYTORCH, GENKERN, OPS = "PyTorch", "genkern", "batch_invariant_ops"
# Prompts that are decoded together, and tokens of each.
TOGETHER, PROMPT = 64, 32
BATCHES = 1, 16, 64
# Of decoding, and of one prompt and of all: TOGETHER * PROMPT.
SIZES_M = 1, 16, 32, 64, 2048
# Of a mode: the model's linear layers are computed so while it lasts.
Linears = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Decoded:
    """Rows of logits that differ from those decoded alone, of how many, and the tokens that do."""

    rows: int
    differ: int
    tokens_differ: int


@dataclass(frozen=True)
class Entry:
    """What one way of computing linear layers came to: `speeds` are tokens a second by batch."""

    who: str
    decoded: Decoded
    speeds: Mapping[str, float]


def sizes_text(shape: Shape) -> str:
    """A list of sizes: N and K of each layer, of those that genkern.patch merges as one, with the M of decoding, of
    prompts alone, and of prompts together.
    """
    hidden, width = shape.hidden, shape.heads * shape.head_dim
    layers = [
        *((width + 2 * shape.kv_heads * shape.head_dim, hidden), (hidden, width)),
        *((2 * shape.intermediate, hidden), (hidden, shape.intermediate), (shape.vocabulary, hidden)),
    ]
    return "".join(size_line(GemmProblem(m, n, k)) for n, k in dict.fromkeys(layers) for m in SIZES_M)


@contextlib.contextmanager
def fixed_shapes(model: nn.Module, together: int = TOGETHER) -> Iterator[None]:
    """Norms and attention always have so many sequences: their kernels are those of one shape, whoever is there."""
    attention = nn.functional.scaled_dot_product_attention
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]

    def filled(x: Any) -> Any:
        return torch.cat((x, x.new_zeros((together - x.shape[0], *x.shape[1:])))) if x.shape[0] < together else x

    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, **more: Any) -> Any:
        count = query.shape[0]
        if attn_mask is not None and attn_mask.shape[0] == count != 1:
            # Prompts of one length have one mask.
            attn_mask = attn_mask[:1]
        given = (filled(each) for each in (query, key, value))
        return attention(*given, attn_mask=attn_mask, **more)[:count]

    def normed(forward: Callable[[Any], Any], x: Any) -> Any:
        return forward(filled(x))[: x.shape[0]]

    for norm in norms:
        norm.forward = partial(normed, norm.forward)
    nn.functional.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = attention
        for norm in norms:
            del norm.forward


@torch.no_grad()
def decoded(model: nn.Module, cache_of: Callable[[int], Any], prompts: torch.Tensor, count: int) -> torch.Tensor:
    """Logits [prompts, length + count - 1, vocabulary] of the prompts and of `count` tokens that follow greedily."""
    length, found, tokens = prompts.shape[1], [], prompts
    cache = cache_of(length + count)
    for step in range(count):
        start = 0 if step == 0 else length + step - 1
        place = torch.arange(start, start + tokens.shape[1], device=prompts.device)
        given = {"past_key_values": cache, "cache_position": place, "position_ids": place[None], "use_cache": True}
        logits = model(input_ids=tokens, **given).logits
        found.append(logits)
        tokens = logits[:, -1:].argmax(-1)
    return torch.cat(found, 1)


def compared(
    model: nn.Module, cache_of: Callable[[int], Any], prompts: torch.Tensor, count: int, limit: Limit
) -> Decoded:
    """Decoded alone, together, and together in reverse; of prompts that there is no time for nothing is said."""
    length = prompts.shape[1]
    together = decoded(model, cache_of, prompts, count)
    reverse = decoded(model, cache_of, prompts.flip(0), count).flip(0)
    rows = differ = tokens = 0
    for number in limit.until(range(len(prompts))):
        alone = decoded(model, cache_of, prompts[number : number + 1], count)[0]
        for other in (together[number], reverse[number]):
            # After a token that differs everything does.
            rows += len(alone)
            differ += int((alone != other).any(-1).sum())
            tokens += int((alone.argmax(-1) != other.argmax(-1))[length - 1 :].sum())
    return Decoded(rows, differ, tokens)


def speeds(
    place: Place, steps: Transformers, linears: Mapping[str, Linears], batch: int, rounds: int, capture: Capture
) -> dict[str, float]:
    """Tokens a second of a step, by whoever computes the linear layers; graphs take turns."""
    samplers = {}
    for who, made in linears.items():
        with said(f"{who}, batch {batch}"), made():
            step = steps.step(Case(batch, 1), steps.model)
            samplers[who] = loop_sampler(capture(step), place.synchronize, step.reset)
    return {who: batch / seconds for who, seconds in alternate(samplers, rounds).items()}


def report(entries: Sequence[Entry], layers: int) -> str:
    """Markdown: a line for each way; then the keys."""
    known = {entry.who: entry for entry in entries}
    rows = [
        (
            entry.who,
            f"{entry.decoded.differ:,} of {entry.decoded.rows:,}",
            entry.decoded.tokens_differ,
            *(f"{entry.speeds[str(batch)]:,.0f}" if str(batch) in entry.speeds else "-" for batch in BATCHES),
        )
        for entry in entries
    ]
    head = ["linear layers", "rows of logits that differ", "tokens", *(f"tokens/s, batch {batch}" for batch in BATCHES)]

    def over(who: str) -> float | None:
        """How many times as fast as that one at batch 16."""
        ours, theirs = (known[name].speeds.get("16") if name in known else None for name in (GENKERN, who))
        return None if ours is None or theirs is None else ours / theirs

    figures = {"invariant_hf_decode_16": over(PYTORCH), "invariant_hf_decode_16_over_ops": over(OPS)}
    return f"{table(head, rows)}\n\n{layers} layers\n{key_lines(figures)}"


def linears_of(model: nn.Module, ops: str | None) -> dict[str, Linears]:
    """The ways that there are here; `ops` is the folder in which the package batch_invariant_ops lies, if it is said.

    Raises ImportError where it does not lie there.
    """

    @contextlib.contextmanager
    def by_genkern() -> Iterator[None]:
        with genkern.batch_invariant(), genkern.patch(model):
            yield

    found: dict[str, Linears] = {PYTORCH: contextlib.nullcontext, GENKERN: by_genkern}
    if ops is not None:
        sys.path.insert(0, ops)
    with contextlib.suppress(*(ImportError,) if ops is None else ()):
        found[OPS] = importlib.import_module(OPS).set_batch_invariant_mode
    return found


def run(
    place: Place,
    argv: Sequence[str],
    shape: Shape = LLAMA_8B,
    linears: Callable[[nn.Module, str | None], Mapping[str, Linears]] = linears_of,
    capture: Capture = graph_of,
) -> str:
    """What is printed. Raises ResultsError."""
    arguments = parser().parse_args(argv)
    limit, kept = Limit(arguments.limit_s), Kept(arguments.output)
    read_bundle(arguments.bundle)
    os.environ["GENKERN_CONFIG"] = arguments.bundle
    shape = replace(shape, layers=arguments.layers)
    steps = Transformers(shape, place.device, arguments.context)
    model, generator = steps.model, torch.Generator().manual_seed(0)
    prompts = torch.randint(0, shape.vocabulary, (arguments.prompts, PROMPT), generator=generator).to(place.device)
    setting = place.setting(__file__, str(Path(__file__).with_name("llama.py")), arguments.bundle)
    own = f"{setting} {shape} {arguments.prompts} {arguments.tokens} {arguments.context}"
    ways = linears(model, arguments.ops)
    known = {who: kept.of(f"{own} {who}") for who in ways}
    missing = {who: made for who, made in ways.items() if known[who] is None}
    times: dict[str, dict[str, float]] = {who: {} for who in missing}
    # A way may move weights, once and for good, and a graph reads those that it was captured with.
    for made in ways.values():
        with made():
            pass
    with torch.no_grad():
        for batch in limit.until(BATCHES if missing else ()):
            found = speeds(place, steps, ways, batch, arguments.rounds, capture)
            for who in missing:
                times[who] |= {str(batch): found[who]} if who in found else {}
            place.release()
        for who in limit.until(list(missing)):
            with said(who), ways[who](), fixed_shapes(model, arguments.prompts):
                cache_of = partial(steps.cache, model)
                result = compared(model, cache_of, prompts, arguments.tokens, limit)
                known[who] = kept.add(f"{own} {who}", asdict(Entry(who, result, times[who])))
                say(f"{who}: {result.differ} of {result.rows} rows differ")
            place.release()
    entries = [
        Entry(each["who"], Decoded(**each["decoded"]), each["speeds"]) for each in known.values() if each is not None
    ]
    return f"{report(entries, shape.layers)}\n{len(entries)} of {len(ways)} on {place}"


def parser() -> argparse.ArgumentParser:
    made = argument_parser(__doc__)
    made.add_argument("--layers", type=int, default=8, help="of the model (default: 8)")
    made.add_argument("--tokens", type=int, default=16, help="that follow each prompt (default: 16)")
    made.add_argument("--prompts", type=int, default=TOGETHER, help=f"decoded together (default: {TOGETHER})")
    made.add_argument("--context", type=int, default=1024, help="tokens in the cache of a timed step (default: 1024)")
    made.add_argument("--ops", metavar="FOLDER", help="where the package batch_invariant_ops lies (default: installed)")
    return made


def main() -> None:
    if "--sizes" in sys.argv[1:]:
        print(sizes_text(LLAMA_8B), end="")
        return
    with errors_end(), contextlib.suppress(KeyboardInterrupt):
        print(run(gpu_place(), sys.argv[1:]))


if __name__ == "__main__":
    main()
