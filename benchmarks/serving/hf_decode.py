"""transformers' own LlamaForCausalLM at Llama-3.1-8B's shape, decoding with and without genkern.patch.

    python -m benchmarks.serving.hf_decode [BUNDLE] [--layers 16] [--batches 1,16,64] [--compiled 1] [--ungated]
                                           [--keep BUNDLE]

Random weights, a static cache with --context tokens, one step a call: eager, and in CUDA graphs, in turns. For the
batches of --compiled also what torch.compile(mode="max-autotune-no-cudagraphs") makes of the model, and of the patched
one, in the same graphs. "linear layers" are those alone, by the library in a graph: the share of a step that genkern
can make shorter. With --ungated there is besides what the patch gives without the kernel of gated rows. Without BUNDLE
`genkern model` makes one first, from the model's configuration, and the seconds that it takes are a key. The share that
the bundle covers is of the least time that the products can take.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import genkern
from benchmarks.common.figures import table
from benchmarks.common.rounds import alternate
from benchmarks.common.workbench import errors_end, said, say
from benchmarks.serving.dispatching import Place, gpu_place, key_lines
from benchmarks.serving.llama import (
    EAGER,
    GENKERN,
    GRAPH,
    LIBRARY,
    Capture,
    Case,
    Step,
    Transformers,
    graph_of,
    loop_sampler,
)
from benchmarks.serving.llama_model import LLAMA_8B, Shape
from genkern.files.model_config import ModelConfig
from genkern.gemm.gpus import gpu_for_arch
from genkern.packing.models.coverage import coverage_of
from genkern.packing.models.engines import ENGINES
from genkern.packing.models.products import products_of
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.linear import Patch

COMPILED, BOTH = "compiled graph", "compiled genkern graph"
UNGATED = f"{GENKERN} ungated"
LINEARS = f"{LIBRARY} linear layers"
# Makes a step that is compiled of a step's call.
Compiler = Callable[[Callable[[], Any]], Callable[[], Any]]


@dataclass(frozen=True)
class Timed:
    """Seconds of a step by contender; `difference` of the patched model's logits from the model's, over the largest."""

    batch: int
    times_s: Mapping[str, float]
    patched: int
    merged: int
    difference: float
    gated: int = 0

    def over(self, other: str, how: str = GRAPH, who: str = GENKERN) -> float | None:
        """The other's time over that of the patched model."""
        own = self.times_s[f"{who} {how}"]
        return self.times_s[other] / own if other in self.times_s else None


def timed(
    place: Place,
    steps: Transformers,
    patch: Callable[..., Patch],
    batch: int,
    rounds: int,
    compiled: Compiler | None,
    capture: Capture = graph_of,
    *,
    ungated: bool = False,
) -> Timed:
    """A batch, by everyone, and if it is to be `compiled`, by what that makes of its step and of the patched one's;
    with `ungated` also by a patch without the kernel of gated rows.

    The model is patched first: that moves weights, which graphs must find where they were.
    """
    model, case = steps.model, Case(batch, 1)
    step = steps.step(case, model)

    def patched(call: Callable[[], Any], **own: bool) -> Callable[[], Any]:
        def sample() -> Any:
            with patch(model, **own):
                # What a new patch finds out at its first call is no part of a loop of calls.
                step.reset()
                step()
                return call()

        return sample

    def loop(step: Step) -> Callable[[], float]:
        return loop_sampler(step, place.synchronize, step.reset)

    def in_graph(step: Step) -> Callable[[], float]:
        return loop_sampler(capture(step), place.synchronize, step.reset)

    # Each with an empty cache: what earlier steps left there is read too.
    with patch(model):
        found = steps.step(case, model)().float()
    wanted = steps.step(case, model)().float()
    with patch(model) as made:
        samplers = {f"{GENKERN} {EAGER}": patched(loop(step)), f"{GENKERN} {GRAPH}": in_graph(step)}
    if ungated:
        with patch(model, gated=False):
            samplers[f"{UNGATED} {EAGER}"] = patched(loop(step), gated=False)
            samplers[f"{UNGATED} {GRAPH}"] = in_graph(step)
    samplers |= {f"{LIBRARY} {EAGER}": loop(step), f"{LIBRARY} {GRAPH}": in_graph(step)}
    samplers[LINEARS] = in_graph(linear_layers(model, batch))
    times = alternate(samplers, rounds)
    if compiled is not None:
        # Beside the graphs, once more. PyTorch's allocator does not get over a capture that failed: nothing may follow.
        others = {name: sampler for name, sampler in samplers.items() if name.endswith(GRAPH)}
        with said("torch.compile of the patched model"), patch(model):
            others[BOTH] = in_graph(compiled_step(step, compiled))
        with said("torch.compile"):
            others[COMPILED] = in_graph(compiled_step(step, compiled))
        if len(others) > 2:
            with said("graphs of compiled models"):
                times |= alternate(others, rounds)
        del others
    del samplers
    with said("memory of graphs"):
        place.release()
    difference = float((found - wanted).abs().max() / wanted.abs().max())
    return Timed(batch, times, len(made.layers), len(made.merged), difference, len(made.gated))


def linear_layers(model: nn.Module, batch: int) -> Step:
    """The model's linear layers alone, one behind the other, each given [batch, 1, in_features] of its own."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    given = [layer.weight.new_ones((batch, 1, layer.in_features)) for layer in layers]
    return Step(lambda: [layer(x) for layer, x in zip(layers, given, strict=True)][-1])


def compiled_step(step: Step, compiled: Compiler) -> Step:
    """The step compiled, with its cache, which eager calls have made: the first call is compiled and no other."""
    torch.compiler.reset()
    return Step(compiled(step.call), step.reset)


def by_torch_compile(call: Callable[[], Any]) -> Callable[[], Any]:
    """As PyTorch compiles for the least time of a step, without graphs of its own."""
    return torch.compile(call, mode="max-autotune-no-cudagraphs")


def covered_share(bundle: Bundle, place: Place, config: ModelConfig, batches: Sequence[int]) -> float:
    """The least share of a batch's GEMM time for which the bundle knows who is fastest."""
    products, _ = products_of(config, ENGINES["transformers"], 1, batches)
    identity = place.gpu.identity
    return min(each.covered for each in coverage_of(bundle, identity, gpu_for_arch(identity.arch), products))


def bundle_of(config: Path, folder: Path, batches: str, bundle: str) -> float:
    """The seconds in which `genkern model` makes the bundle of the configuration, from nothing."""
    command = [sys.executable, "-m", "genkern", "model", str(config), "--engine", "transformers", "--nsets", batches]
    environment = {**os.environ, "GENKERN_CACHE_DIR": str(folder / "cache")}
    started_s = time.monotonic()
    # 1: a size without a winner, which is left to PyTorch.
    if subprocess.run([*command, "-o", bundle], check=False, env=environment).returncode > 1:
        raise SystemExit("genkern model failed")
    return time.monotonic() - started_s


def report(found: Sequence[Timed], layers: int, more: Mapping[str, float | None]) -> str:
    """Markdown: a line a batch; then the keys."""
    columns = [f"{who} {how}" for how in (EAGER, GRAPH) for who in (LIBRARY, GENKERN, UNGATED)]
    columns += [LINEARS, COMPILED, BOTH]
    rows: list[tuple[object, ...]] = []
    figures: dict[str, float | None] = {}
    for each in found:
        ms = [f"{each.times_s[name] * 1e3:.3f}" if name in each.times_s else "-" for name in columns]
        rows.append((each.batch, *ms, each.patched, each.merged, each.gated, f"{each.difference:.4f}"))
        figures[f"hf_decode_{each.batch}"] = each.over(f"{LIBRARY} {GRAPH}")
        figures[f"hf_eager_{each.batch}"] = each.over(f"{LIBRARY} {EAGER}", EAGER)
        if f"{UNGATED} {GRAPH}" in each.times_s:
            figures[f"hf_ungated_{each.batch}"] = each.over(f"{LIBRARY} {GRAPH}", GRAPH, UNGATED)
            figures[f"hf_ungated_eager_{each.batch}"] = each.over(f"{LIBRARY} {EAGER}", EAGER, UNGATED)
        if LINEARS in each.times_s:
            figures[f"hf_linears_share_{each.batch}"] = each.times_s[LINEARS] / each.times_s[f"{LIBRARY} {GRAPH}"]
        if COMPILED in each.times_s:
            figures[f"hf_over_compiled_{each.batch}"] = each.over(COMPILED)
            if BOTH in each.times_s:
                figures[f"hf_compiled_patched_{each.batch}"] = each.times_s[COMPILED] / each.times_s[BOTH]
    head = ["batch", *(f"{name}, ms" for name in columns), "layers patched", "groups", "gated", "difference"]
    return f"{table(head, rows)}\n\n{layers} layers\n{key_lines({**figures, **more})}"


def run(
    place: Place,
    argv: Sequence[str],
    patch: Callable[..., Patch] = genkern.patch,
    shape: Shape = LLAMA_8B,
    capture: Capture = graph_of,
    by_compile: Compiler = by_torch_compile,
) -> str:
    """What is printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="?", help="what serves; without one `genkern model` makes it")
    parser.add_argument("--layers", type=int, default=16, help="of the model (default: 16)")
    parser.add_argument("--batches", default="1,16,64", help="with commas (default: 1,16,64)")
    parser.add_argument("--compiled", default="1", help="batches to compare with torch.compile (default: 1; '': none)")
    parser.add_argument("--ungated", action="store_true", help="also patched without the kernel of gated rows")
    parser.add_argument("--context", type=int, default=1024, help="tokens in the cache (default: 1024)")
    parser.add_argument("--rounds", type=int, default=11, help="of which medians are taken (default: 11)")
    parser.add_argument("--keep", help="where the bundle that is made stays, *.genkern, with results beside it")
    parser.add_argument("-o", "--output", help="a file for what is printed")
    arguments = parser.parse_args(argv)
    compiled = {int(batch) for batch in arguments.compiled.split(",") if batch}
    # Those last.
    batches = sorted(map(int, arguments.batches.split(",")), key=lambda batch: (batch in compiled, batch))
    more: dict[str, float | None] = {}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        steps = Transformers(replace(shape, layers=arguments.layers), place.device, arguments.context)
        config: Any = steps.model.config
        file = Path(folder) / "config.json"
        file.write_text(config.to_json_string(use_diff=False))
        bundle = arguments.bundle
        if bundle is None:
            with said("genkern model"):
                bundle = arguments.keep or str(Path(folder) / "model.genkern")
                more["model_command_s"] = bundle_of(file, Path(folder), arguments.batches, bundle)
        os.environ["GENKERN_CONFIG"] = bundle
        values = ModelConfig("config.json", {**config.to_dict(), "torch_dtype": "bfloat16"}, {})
        more["hf_covered_share"] = covered_share(read_bundle(bundle), place, values, batches)
        found = []
        for batch in batches:
            with said(f"batch {batch}"):
                compile = by_compile if batch in compiled else None
                rounds, ungated = arguments.rounds, arguments.ungated
                found.append(timed(place, steps, patch, batch, rounds, compile, capture, ungated=ungated))
                say(f"batch {batch}: {found[-1].over(f'{LIBRARY} {GRAPH}'):.3f}")
    text = f"{report(sorted(found, key=lambda each: each.batch), arguments.layers, more)}\n{place}"
    if arguments.output:
        Path(arguments.output).write_text(text + "\n")
    return text


def main() -> None:
    with errors_end(), contextlib.suppress(KeyboardInterrupt):
        print(run(gpu_place(), sys.argv[1:]))


if __name__ == "__main__":
    main()
