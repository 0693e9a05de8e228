"""Llama-3.1-8B's shape with random weights, with and without genkern.patch: tokens a second, and outputs.

    python -m benchmarks.serving.llama BUNDLE [--layers 32] [--batches 1,16,64] [--prefill 2048] [--transformers]

Steps of decoding with --context tokens in the cache, and a prefill of one prompt, eager and as CUDA graphs: all four
take turns, in loops that end with the device idle. The speedups among the keys are those of graphs, as engines decode;
the table has the eager ones too. Outputs are the logits after the last token, each compared with those of the same
model in float32: "error" is the largest difference, as a multiple of the library's own. With --transformers the model
is LlamaForCausalLM, whose projections are not merged: only those whose sizes the bundle has are patched.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from benchmarks.serving.llama_model import LLAMA_8B, Llama, Shape, random_llama, turns
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.linear import Patch

LIBRARY, GENKERN = "library", "genkern"
EAGER, GRAPH = "eager", "graph"
LOOP_S = 0.05
# Before a capture: calls in a row that compile nothing, and how many are tried.
WARM_UP_CALLS, MOST_WARM_UP_CALLS = 3, 12


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Step:
    """A step of a model, and what makes ready for as many as a loop has."""

    call: Callable[[], torch.Tensor]
    reset: Callable[[], None] = _nothing

    def __call__(self) -> torch.Tensor:
        return self.call()


Capture = Callable[[Step], Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """A step: `batch` sequences of `tokens` new ones each. One token is decoding, with a cache that is full."""

    batch: int
    tokens: int

    @property
    def name(self) -> str:
        return f"decode, batch {self.batch}" if self.tokens == 1 else f"prefill, {self.tokens} tokens"

    @property
    def key(self) -> str:
        return f"decode_speedup_{self.batch}" if self.tokens == 1 else "prefill_speedup"


@dataclass(frozen=True)
class Timed:
    """Seconds of a step by who computes it and how, errors over the library's, and how many layers are patched."""

    batch: int
    tokens: int
    patched: int
    times_s: Mapping[str, float]
    error: float

    @property
    def case(self) -> Case:
        return Case(self.batch, self.tokens)

    def speedup(self, how: str) -> float:
        """The library's time over genkern's."""
        return self.times_s[f"{LIBRARY} {how}"] / self.times_s[f"{GENKERN} {how}"]

    def tokens_per_s(self, who: str, how: str) -> float:
        return self.batch * self.tokens / self.times_s[f"{who} {how}"]


class Plain:
    """Steps of the decoder in llama_model.py."""

    def __init__(self, shape: Shape, device: str, context: int) -> None:
        self.model: nn.Module = random_llama(shape, device)
        self._shape, self._context = shape, context

    def step(self, case: Case, model: nn.Module) -> Step:
        """The case by `model`, which is this one or a copy of it in another type."""
        assert isinstance(model, Llama)
        decodes = case.tokens == 1
        model.set_cache(case.batch if decodes else 0, self._context)
        tokens = random_tokens(case, self._shape, model.embedding.weight.device)
        first = self._context - 1 if decodes else 0
        turn = turns(self._shape, first, case.tokens, model.norm.weight)
        return Step(lambda: model(tokens, turn))


class Transformers:
    """Steps of transformers' model, with its static cache. Raises ImportError where it is not installed."""

    def __init__(self, shape: Shape, device: str, context: int) -> None:
        import transformers

        self._transformers, self._shape, self._context = transformers, shape, context
        config = transformers.LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=131072,
            rope_theta=500_000.0,
            attn_implementation="sdpa",
        )
        torch.manual_seed(0)
        with torch.device(device):
            made = transformers.LlamaForCausalLM(config)
        self.model: nn.Module = made.to(torch.bfloat16).eval()

    def step(self, case: Case, model: nn.Module) -> Step:
        """As Plain's, but that each step adds its token to the cache, all of which attention reads whatever is in it:
        reset, it begins in the middle, behind zeros.
        """
        (weight, *_) = model.parameters()
        tokens = random_tokens(case, self._shape, weight.device)
        if case.tokens > 1:
            return Step(lambda: model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[:, -1])
        cache = self.cache(model, self._context)
        place = torch.tensor([[self._context // 2]], device=weight.device)
        given = {"past_key_values": cache, "position_ids": place, "use_cache": True}

        def reset() -> None:
            for layer in cache.layers:
                layer.cumulative_length.fill_(self._context // 2)

        reset()
        return Step(lambda: model(input_ids=tokens, **given).logits[:, -1], reset)

    def cache(self, model: nn.Module, length: int) -> Any:
        """An empty one for so many tokens."""
        return self._transformers.StaticCache(config=model.config, max_cache_len=length)


def random_tokens(case: Case, shape: Shape, device: torch.device) -> torch.Tensor:
    """The same for each model."""
    generator = torch.Generator().manual_seed(case.batch)
    return torch.randint(0, shape.vocabulary, (case.batch, case.tokens), generator=generator).to(device)


def warmed(call: Callable[[], Any]) -> int:
    """Call it until WARM_UP_CALLS in a row have compiled nothing, and return how many it took: torch.compile reads the
    first call of a static cache, which makes its tensors, and again the second, and a capture cannot compile.

    Raises RuntimeError where it is compiled anew at each of MOST_WARM_UP_CALLS.
    """
    # As long to import as PyTorch.
    from torch._dynamo.utils import counters

    stats = counters["stats"]
    known, quiet = stats["unique_graphs"], 0
    for count in range(1, MOST_WARM_UP_CALLS + 1):
        call()
        known, before = stats["unique_graphs"], known
        quiet = quiet + 1 if known == before else 0
        if quiet == WARM_UP_CALLS:
            return count
    raise RuntimeError(f"it is still compiled at call {MOST_WARM_UP_CALLS}, so it cannot be captured")


def graph_of(step: Step) -> Callable[[], Any]:
    """The step as a CUDA graph, after calls on another stream than the current one (PyTorch's notes on CUDA graphs)."""
    aside, current = torch.cuda.Stream(), torch.cuda.current_stream()
    aside.wait_stream(current)
    with torch.cuda.stream(aside):
        warmed(step)
    current.wait_stream(aside)
    torch.cuda.synchronize()
    step.reset()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return lambda: graph.replay()


def loop_sampler(
    call: Callable[[], Any], synchronize: Callable[[], None], reset: Callable[[], None] = _nothing
) -> Callable[[], float]:
    """Seconds of one call, host and device, in a loop of some LOOP_S that ends when the device is idle; `reset` goes
    before.
    """
    reset()
    call()
    synchronize()
    started_s = time.perf_counter()
    call()
    synchronize()
    count = max(1, min(100, int(LOOP_S / (time.perf_counter() - started_s))))

    def sample() -> float:
        reset()
        synchronize()
        started_s = time.perf_counter()
        for _ in range(count):
            call()
        synchronize()
        return (time.perf_counter() - started_s) / count

    return sample


def timed(
    place: Place,
    steps: Plain | Transformers,
    patch: Callable[[nn.Module], Patch],
    case: Case,
    rounds: int,
    capture: Capture = graph_of,
) -> Timed:
    """One case, by everyone; then its outputs."""
    model = steps.model
    step = steps.step(case, model)

    def patched(call: Callable[[], Any]) -> Callable[[], Any]:
        """`call` with the model patched while it lasts."""

        def sample() -> Any:
            with patch(model):
                return call()

        return sample

    with patch(model) as made:
        count = len(made.layers)
        step.reset()
        of_genkern = step().float()
        samplers = {
            f"{GENKERN} {EAGER}": patched(loop_sampler(step, place.synchronize, step.reset)),
            f"{GENKERN} {GRAPH}": loop_sampler(capture(step), place.synchronize, step.reset),
        }
    step.reset()
    of_library = step().float()
    samplers |= {
        f"{LIBRARY} {EAGER}": loop_sampler(step, place.synchronize, step.reset),
        f"{LIBRARY} {GRAPH}": loop_sampler(capture(step), place.synchronize, step.reset),
    }
    times = alternate(samplers, rounds)
    del samplers, step
    place.release()
    error = float("nan")
    with said(f"{case.name}, outputs"):
        exact = copy.deepcopy(model).float()
        error = relative_error(of_genkern, of_library, steps.step(case, exact)())
    return Timed(case.batch, case.tokens, count, times, error)


def relative_error(found: torch.Tensor, of_library: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference from what is expected, over the library's own largest."""
    own = float((of_library - expected).abs().max())
    return float((found - expected).abs().max()) / own if own else float("nan")


def report(found: Sequence[Timed], layers: int) -> str:
    """Markdown: a line a case; then the keys."""
    rows = []
    for each in found:
        cells: list[object] = [each.case.name]
        for how in (EAGER, GRAPH):
            cells += [f"{each.tokens_per_s(who, how):,.0f}" for who in (LIBRARY, GENKERN)]
            cells.append(f"{each.speedup(how):.3f}")
        rows.append((*cells, f"{each.error:.2f}", each.patched))
    head = ["tokens/s", *(f"{who}, {how}" for how in (EAGER, GRAPH) for who in (LIBRARY, GENKERN, "speedup"))]
    figures = {each.case.key: each.speedup(GRAPH) for each in found}
    return f"{table([*head, 'error', 'layers patched'], rows)}\n\n{layers} layers\n{key_lines(figures)}"


def run(
    place: Place,
    argv: Sequence[str],
    patch: Callable[[nn.Module], Patch] = genkern.patch,
    shape: Shape = LLAMA_8B,
    capture: Capture = graph_of,
) -> str:
    """What is printed. Raises ResultsError."""
    parser = argument_parser(__doc__)
    parser.add_argument("--layers", type=int, default=shape.layers, help=f"of the model (default: {shape.layers})")
    parser.add_argument("--batches", default="1,16,64", help="of decoding, with commas (default: 1,16,64)")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a decoding sequence (default: 1024)")
    parser.add_argument("--prefill", type=int, default=2048, help="tokens of the prompt (default: 2048)")
    parser.add_argument("--transformers", action="store_true", help="transformers' model rather than a plain one")
    arguments = parser.parse_args(argv)
    limit, kept = Limit(arguments.limit_s), Kept(arguments.output)
    read_bundle(arguments.bundle)
    os.environ["GENKERN_CONFIG"] = arguments.bundle
    shape = replace(shape, layers=arguments.layers)
    cases = [Case(int(batch), 1) for batch in arguments.batches.split(",")] + [Case(1, arguments.prefill)]
    own = f"{shape} {arguments.context} {arguments.transformers}"
    setting = place.setting(__file__, str(Path(__file__).with_name("llama_model.py")), arguments.bundle)
    known = {case: kept.of(f"{setting} {own} {case.name}") for case in cases}
    missing = [case for case, entry in known.items() if entry is None]
    with torch.no_grad():
        make = Transformers if arguments.transformers else Plain
        steps = make(shape, place.device, arguments.context) if missing else None
        for case in limit.until(missing):
            assert steps is not None
            with said(case.name):
                found = timed(place, steps, patch, case, arguments.rounds, capture)
                known[case] = kept.add(f"{setting} {own} {case.name}", asdict(found))
                say(f"{case.name}: {found.speedup(GRAPH):.3f}")
            place.release()
    entries = [Timed(**entry) for entry in known.values() if entry is not None]
    return f"{report(entries, shape.layers)}\n{len(entries)} of {len(cases)} cases on {place}"


def main() -> None:
    with errors_end(), contextlib.suppress(KeyboardInterrupt):
        print(run(gpu_place(), sys.argv[1:]))


if __name__ == "__main__":
    main()
