"""Host time of one eager call of a mixture of experts: dispatched, beside PyTorch's unfused way with the same routing.

    python -m benchmarks.serving.moe_host_time BUNDLE [-o DATA.jsonl] [--limit_s 60]

Of each pair of winners that are the two products of one layer, from the router's choice on: the layer as tuned_gemm has
it, by the C extension and through ctypes; the same with rows ordered and quantised by PyTorch's calls, as with a bundle
that has no kernels for that; and gathered rows through torch._grouped_mm, twice (of 8-bit weights, with bf16 ones). A
time is that of a Python loop of calls, as in host_time.py, without gradients. "in a graph" is the device's time of a
call, weights warm; "off by" how far layers are from PyTorch's way, as a part of the result's norm.
"""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchmarks.common.figures import table
from benchmarks.common.kept import Kept
from benchmarks.common.rounds import Limit, alternate
from benchmarks.common.workbench import errors_end, said
from benchmarks.kernels.moe_layer import spread
from benchmarks.serving.dispatching import Place, argument_parser, gpu_place, key_lines, launched_by, native_available
from benchmarks.serving.host_time import calls_of, loop_sampler
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.operators import define
from genkern.runtime.routed.order import quantized

NATIVE, CTYPES, SORTED, GROUPED_MM = "genkern", "through ctypes", "ordered by PyTorch", "torch._grouped_mm"
ON_DEVICE = "in a graph"
COLUMNS = NATIVE, CTYPES, SORTED, GROUPED_MM
# The device's queue takes 1,024 launches; PyTorch's way has some twenty.
MOST_CALLS = 40
_numbers = itertools.count()


@dataclass(frozen=True)
class Timed:
    """Microseconds of the host for a call of a layer by contender, on the device in a graph, and the largest error."""

    what: str
    times_us: Mapping[str, float]
    device_us: Mapping[str, float]
    error: float

    @property
    def ratio(self) -> float:
        """A dispatched layer's host time over that of PyTorch's unfused way."""
        return self.times_us[NATIVE] / self.times_us[GROUPED_MM]


def layers_of(winners: Iterable[Result]) -> list[GemmProblem]:
    """The first products of layers whose second one has won as well, few tokens first."""
    won = {winner.problem for winner in winners if winner.calls}
    return sorted((problem for problem in won if second_of(problem) in won), key=lambda problem: problem.M)


def second_of(problem: GemmProblem) -> GemmProblem | None:
    """The second product of the layer whose first one it is."""
    own = tuple(pair for pair in problem.own if pair != ("stage", "gate_up"))
    return replace(problem, N=problem.K, K=problem.N, activation="none", own=own) if own != problem.own else None


class LayerCalls:
    """A layer's tensors on a device, and its contenders as functions."""

    def __init__(self, problem: GemmProblem, place: Place, bundle: Bundle) -> None:
        own = dict(problem.own)
        experts, top_k = int(own.get("experts", 1)), int(own.get("top_k", 1))
        tokens, n, k, device = problem.M, problem.N, problem.K, place.device
        generator = torch.Generator(device).manual_seed(0)
        dtype = getattr(torch, DTYPES[problem.dtype_c].torch)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, dtype=dtype, device=device, generator=generator)

        x, gate_up, down = normal(tokens, k), normal(experts, 2 * n, k) / k**0.5, normal(experts, k, n) / n**0.5
        drawn = torch.rand(tokens, experts, device=device, generator=generator)
        weights, ids = drawn.topk(top_k)
        self._place, self._bundle, self._op = place, bundle, problem.op
        self._wide, self._routing = (x, gate_up, down), (weights.softmax(-1), ids)
        self._given: tuple[Any, ...] = (*self._wide, *self._routing)
        self._more: dict[str, Any] = {name: own[name] for name in ("routing", "routing_seed") if name in own}
        if problem.dtype_a != problem.dtype_c:
            scales = str(own.get("scales", "per_tensor"))
            narrow = [narrowed(each, getattr(torch, DTYPES[problem.dtype_b].torch), scales) for each in (gate_up, down)]
            self._given = (x, *(weight for weight, _ in narrow), *self._routing, *(scale for _, scale in narrow))
            self._more |= {"scales": scales, "accumulate": own.get("accumulate", "fast")}
            self._wide = x, *(dequantized(weight, scale, dtype) for weight, scale in narrow)  # type: ignore[assignment]
        self._experts = torch.arange(experts, device=device)

    def contenders(self) -> dict[str, Callable[[], Any]]:
        """A function for each, which has been called."""
        found: dict[str, Callable[[], Any]] = {}
        for name, native, has_kernels in ((NATIVE, True, True), (CTYPES, False, True), (SORTED, True, False)):
            if native and not native_available():
                continue
            context = self._place.context([self._bundle])
            if not has_kernels:
                context.row_kernel = lambda *_: None  # type: ignore[method-assign]
            layer = Experts(self._op, context)
            layer.operator = define(layer, f"{layer.__name__}_timed_{next(_numbers)}")
            with launched_by(native):
                layer(*self._given, **self._more)
            found[name] = lambda layer=layer: layer(*self._given, **self._more)  # type: ignore[misc]
        found[GROUPED_MM] = self.by_grouped_mm
        for call in found.values():
            call()
        return found

    def by_grouped_mm(self) -> torch.Tensor:
        """Rows gathered in the order of their experts, through torch._grouped_mm, and added up."""
        (x, gate_up, down), (weights, ids) = self._wide, self._routing
        ordered, slots = ids.view(-1).sort(stable=True)
        ends = torch.searchsorted(ordered, self._experts, right=True, out_int32=True)
        tokens = slots // ids.shape[1]
        gate, up = torch._grouped_mm(x[tokens], gate_up.mT, offs=ends).chunk(2, -1)
        rows = torch._grouped_mm(torch.nn.functional.silu(gate) * up, down.mT, offs=ends)
        rows = rows * weights.view(-1)[slots, None].to(rows.dtype)
        return torch.zeros_like(x).index_add_(0, tokens, rows)


def narrowed(weight: torch.Tensor, dtype: Any, scales: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [experts, rows, columns] in 8 bits, and its scales as the format has them."""
    experts, rows, columns = weight.shape
    if scales == "blocks":
        pad = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
        blocks = pad.view(experts, pad.shape[1] // 128, 128, pad.shape[2] // 128, 128).abs().amax((2, 4))
        scale = blocks.float() / torch.finfo(dtype).max
        across = scale.repeat_interleave(128, 1)[:, :rows].repeat_interleave(128, 2)[:, :, :columns]
        return (weight / across).to(dtype), scale
    if scales == "per_tensor":
        found = [quantized(each, dtype, scales) for each in weight]
        return torch.stack([each for each, _ in found]), torch.stack([scale for _, scale in found]).view(-1, 1, 1)
    narrow, scale = quantized(weight.reshape(-1, columns), dtype, scales)
    return narrow.view(weight.shape), scale.view(experts, 1, rows)


def dequantized(weight: torch.Tensor, scale: torch.Tensor, dtype: Any) -> torch.Tensor:
    """What PyTorch multiplies instead."""
    pairs = zip(weight, scale, strict=True)
    return torch.stack([(each.float() * spread(of_it, each)).to(dtype) for each, of_it in pairs])


def timed(place: Place, bundle: Bundle, problem: GemmProblem, rounds: int) -> Timed:
    """One layer. Python collects no garbage meanwhile."""
    layer = LayerCalls(problem, place, bundle)
    calls = layer.contenders()
    wanted = calls[GROUPED_MM]().float()
    error = max(
        ((calls[name]().float() - wanted).norm() / wanted.norm()).item() for name in calls if name != GROUPED_MM
    )
    numbered = {name: lambda copy, call=call: call() for name, call in calls.items()}
    launch_us = {name: place.timer.launch_us(call, 1) for name, call in numbered.items()}
    count = min(MOST_CALLS, calls_of(max(launch_us.values())))
    samplers = {name: loop_sampler(call, count, place.synchronize) for name, call in calls.items()}
    gc.disable()
    try:
        times = alternate(samplers, rounds)
    finally:
        gc.enable()
    device = alternate({name: place.timer.prepare(call, range(4)) for name, call in numbered.items()}, rounds)
    own = dict(problem.own)
    sizes = f"{problem.M} tokens, {own.get('experts', 1)} experts, top {own.get('top_k', 1)}"
    scales = f" {own.get('scales', 'per_tensor')}" if problem.dtype_a != problem.dtype_c else ""
    what = f"{sizes}, hidden {problem.K}, width {problem.N}, {problem.dtype_a}{scales}"
    return Timed(what + ", skewed" * (own.get("routing") == "skewed"), times, device, error)


def report(found: Sequence[Timed]) -> str:
    """Markdown: a line a layer; then the keys."""
    rows = []
    for each in found:
        host = [f"{each.times_us[name]:.1f}" if name in each.times_us else "-" for name in COLUMNS]
        device = [
            f"{each.device_us[name]:.1f}" if name in each.device_us else "-" for name in (NATIVE, SORTED, GROUPED_MM)
        ]
        ratio = f"{each.ratio:.2f}" if NATIVE in each.times_us else "-"
        rows.append((each.what, *host, ratio, *device, f"{each.error:.2g}"))
    graphs = (f"{name} {ON_DEVICE}" for name in (NATIVE, SORTED, GROUPED_MM))
    head = ("layer", *COLUMNS, f"{NATIVE} / {GROUPED_MM}", *graphs, "off by")
    ratios = [each.ratio for each in found if NATIVE in each.times_us]
    hosts = [each.times_us[NATIVE] for each in found if NATIVE in each.times_us]
    figures = {
        "moe_host_over_grouped_mm_worst": max(ratios, default=None),
        "moe_host_us_worst": max(hosts, default=None),
    }
    return f"us of the host for one layer\n\n{table(head, rows)}\n\n{key_lines(figures)}"


def run(place: Place, argv: Sequence[str]) -> str:
    """What is printed. Raises ResultsError."""
    arguments = argument_parser(__doc__).parse_args(argv)
    limit, kept = Limit(arguments.limit_s), Kept(arguments.output)
    bundle, setting = read_bundle(arguments.bundle), place.setting(__file__, arguments.bundle)
    wanted = layers_of(winner for winner in bundle.winners if place.gpu.identity.has(winner))
    known = {problem: kept.of(f"{setting} {problem.name}") for problem in wanted}
    with torch.no_grad():
        for problem in limit.until([problem for problem, entry in known.items() if entry is None]):
            with said(problem.name):
                found = timed(place, bundle, problem, arguments.rounds)
                known[problem] = kept.add(f"{setting} {problem.name}", asdict(found))
            place.release()
    entries = [Timed(**entry) for entry in known.values() if entry is not None]
    built = "" if native_available() else "the C extension is not built: python3 setup.py build_ext --inplace\n"
    return f"{built}{report(entries)}\n{len(entries)} of {len(wanted)} layers on {place}"


def main() -> None:
    with errors_end():
        print(run(gpu_place(), sys.argv[1:]))


if __name__ == "__main__":
    main()
