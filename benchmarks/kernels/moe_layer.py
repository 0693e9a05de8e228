"""A mixture of experts as benchmarks/kernels/moe.py times it: its tensors, and who computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common.workbench import Bench
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem, Own
from genkern.kernels.cute.source_file import path_of
from genkern.kernels.source import load_module
from genkern.ops.op import groups_of
from genkern.profiling.loaded_gemm import Call
from genkern.result.result import Result
from genkern.runtime.routed.order import order_of, quantized
from genkern.runtime.routed.row_calls import MOST_ORDERED
from genkern.runtime.routed.row_kernels import BLOCK, BLOCKS, FILE, RowKernel, ordering, quantizing

PEERS = Path(__file__).with_name("moe_peers.yaml")


@dataclass(frozen=True)
class Layer:
    """Both products of a mixture of experts, for the same tokens, and their winners; of one on skewed routing also the
    winners on `balanced` routing.
    """

    gate_up: GemmProblem
    down: GemmProblem
    configs: tuple[Config, Config]
    balanced: tuple[Config, Config] | None = None

    @property
    def what(self) -> str:
        own, p = dict(self.gate_up.own), self.gate_up
        scales = f" {own.get('scales', 'per_tensor')}" if p.dtype_a != p.dtype_c else ""
        text = f"{p.M} tokens, {own.get('experts', 1)} experts, top {own.get('top_k', 1)}, hidden {p.K}, width {p.N}"
        return f"{text}, {p.dtype_a}{scales}{', skewed' if own.get('routing') == 'skewed' else ''}"


def layers_of(rows: Sequence[Result]) -> list[Layer]:
    """Pairs of rows whose problems are the two stages of a layer."""
    downs = {row.problem: row for row in rows if row.problem.op == "fused_moe"}
    found = []
    for row in downs.values():
        p = row.problem
        own = tuple(pair for pair in p.own if pair != ("stage", "gate_up"))
        down = downs.get(replace(p, N=p.K, K=p.N, activation="none", own=own))
        if own != p.own and down is not None and row.config and down.config:
            found.append(Layer(p, down.problem, (row.config, down.config)))
    return found


def skewed_layers(layers: Sequence[Layer]) -> list[Layer]:
    """The layers on skewed routing: tokens go to experts as 1 / rank (genkern/ops/groups.py).

    With winners tuned on that where there are, else with those of the balanced layer, whose kernels are the same.
    """
    tuned = {layer.gate_up: layer for layer in layers}
    found: dict[GemmProblem, Layer] = {}
    for layer in sorted(layers, key=lambda layer: layer.gate_up.own == _skewed(layer.gate_up.own)):
        gate_up, down = (replace(p, own=_skewed(p.own)) for p in (layer.gate_up, layer.down))
        balanced = layer.configs if gate_up != layer.gate_up else None
        found.setdefault(gate_up, Layer(gate_up, down, tuned.get(gate_up, layer).configs, balanced))
    return list(found.values())


def _skewed(own: Own) -> Own:
    return tuple(sorted({**dict(own), "routing": "skewed"}.items()))


def vllm_configs(layer: Layer) -> tuple[Config, Config] | None:
    """What vLLM ships for the layer on the H200, by the nearest number of tokens; None where it ships nothing."""
    p, own = layer.gate_up, dict(layer.gate_up.own)
    scales = str(own.get("scales", "per_tensor")) if DTYPES[p.dtype_a].size_bytes == 1 else "none"
    for entry in yaml.safe_load(PEERS.read_text()):
        if (entry["experts"], entry["N"], entry["scales"]) == (own.get("experts"), p.N, scales):
            tokens = min(entry["tokens"], key=lambda m: abs(m - p.M))
            block_m, block_n, block_k, group, warps, stages = entry["tokens"][tokens]
            down = Config("tiled", block_m, block_n, block_k, group, 1, warps, stages)
            return replace(down, BLOCK_SIZE_N=block_n // 2), down
    return None


@dataclass
class LayerOnDevice:
    """A layer's tensors, and its contenders as calls of the copy of the weights; `out` is what the last call gave."""

    layer: Layer
    one: Bench
    two: Bench
    out: Any = None

    def __post_init__(self) -> None:
        import torch

        groups = groups_of(self.layer.gate_up)
        assert groups is not None
        tokens, top_k = self.layer.gate_up.M, groups.top_k
        a, b = self.one.gemm.operands, self.two.gemm.operands
        generator = torch.Generator("cuda").manual_seed(1)
        p = self.layer.gate_up
        out_type = getattr(torch, DTYPES[p.dtype_c].torch)
        self.x = torch.randn(tokens, p.K, generator=generator, device="cuda").to(out_type)
        slots = groups.values(tokens, groups.operands(tokens)[1]).long()
        ends = groups.values(tokens, groups.operands(tokens)[0])
        experts = torch.searchsorted(ends, torch.arange(len(slots)), right=True)
        ids = torch.empty(len(slots), dtype=torch.int64).scatter_(0, slots, experts)
        self.ids = ids.view(tokens, top_k).cuda()
        self.numbers = torch.arange(groups.count, device="cuda")
        weights = torch.rand(tokens, top_k, generator=generator, device="cuda").softmax(-1)
        self.ends, self.slots = a["ends"], a["slots"]
        b["ends"], b["slots"], b["routing_weights"] = self.ends, self.slots, weights.view(-1).contiguous()
        self.weights, self.top_k = weights, top_k
        self.narrow = DTYPES[p.dtype_a].size_bytes == 1
        if not self.narrow:
            a["a"], b["a"] = self.x, a["c"]
        self.wide = self._wide_weights()

    def _wide_weights(self) -> list[tuple[Any, Any]]:
        """Weights of gate_up and down [experts, N, K] for PyTorch: those there are, or bf16 of those in 8 bits."""
        import torch

        found = []
        for copy in range(min(self.one.gemm.copies, self.two.gemm.copies)):
            pair = []
            for builder in (self.one, self.two):
                own = builder.gemm.operands_of(copy)
                weight = own["b"].mT
                if self.narrow:
                    made = torch.empty(weight.shape, dtype=self.x.dtype, device="cuda")
                    for expert in range(len(weight)):
                        made[expert] = (weight[expert].float() * spread(own["scale_b"][expert], weight[expert])).to(
                            made
                        )
                    weight = made
                pair.append(weight)
            found.append((pair[0], pair[1]))
        return found

    def order(self) -> None:
        """Rows in the order of their experts, by PyTorch's calls."""
        import torch

        ordered, slots = self.ids.view(-1).sort(stable=True)
        torch.searchsorted(ordered, self.numbers, right=True, out_int32=True, out=self.ends)
        self.slots.copy_(slots)

    def by_kernels(self, configs: tuple[Config, Config]) -> Call:
        """genkern's kernels, with these configs; rows are ordered and quantised as the dispatcher does it."""
        calls = []
        for builder, config in zip((self.one, self.two), configs, strict=True):
            made = builder.calls()
            if config.name not in made:
                raise ValueError(f"{config.name} cannot be launched")
            calls.append(made[config.name])
        first, second = calls
        a, b = self.one.gemm.operands, self.two.gemm.operands
        order = ordered_by(self.ids, self.ends, self.slots)
        narrow_first: Callable[[], None] = _nothing
        narrow_second: Callable[[], None] = _nothing
        if self.narrow:
            narrow_first, narrow_second = (
                narrowed_by(self.layer.gate_up, self.x, a),
                narrowed_by(self.layer.down, a["c"], b),
            )

        def call(copy: int) -> None:
            order()
            narrow_first()
            first(copy)
            narrow_second()
            second(copy)
            self.out = b["c"]

        return call

    def by_grouped_mm(self) -> Call:
        """Gathered rows through torch._grouped_mm, twice."""
        import torch

        silu = torch.nn.functional.silu
        n = self.layer.gate_up.N

        def call(copy: int) -> None:
            gate_up, down = self.wide[copy % len(self.wide)]
            self.order()
            tokens = self.slots // self.top_k
            both = torch._grouped_mm(self.x[tokens], gate_up.mT, offs=self.ends)
            rows = torch._grouped_mm(silu(both[:, :n]) * both[:, n:], down.mT, offs=self.ends)
            rows = rows * self.weights.view(-1)[self.slots, None].to(rows.dtype)
            self.out = torch.zeros_like(self.x).index_add_(0, tokens, rows)

        return call

    def by_loop(self, wide: Callable[[Any], Any] = lambda x: x) -> Call:
        """Expert after expert, whose tokens are known beforehand; `wide` is how everything is converted first."""
        import torch

        silu, n = torch.nn.functional.silu, self.layer.gate_up.N
        self.order()
        ends, slots = self.ends.tolist(), self.slots.long().clone()
        lists = [slots[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]

        def call(copy: int) -> None:
            gate_up, down = self.wide[copy % len(self.wide)]
            x = wide(self.x)
            out = torch.zeros_like(x)
            for expert, mine in enumerate(lists):
                if len(mine):
                    tokens = mine // self.top_k
                    both = x[tokens] @ wide(gate_up[expert]).mT
                    rows = (silu(both[:, :n]) * both[:, n:]) @ wide(down[expert]).mT
                    out.index_add_(0, tokens, (rows * self.weights.view(-1)[mine, None]).to(out.dtype))
            self.out = out

        return call


def _nothing() -> None:
    """What a layer of 16 bits quantises."""


def ordered_by(ids: Any, ends: Any, slots: Any) -> Callable[[], None]:
    """Rows in the order of their experts, by the kernel that bundles have; many by PyTorch's sort, as dispatched."""
    kernel = ordering(ids.dtype)
    if kernel is not None and ids.numel() <= MOST_ORDERED:
        return row_launch(kernel, len(ends), ids, ends, slots, ids.numel())

    def sort() -> None:
        for into, found in zip((ends, slots), order_of(ids, len(ends)), strict=True):
            into.copy_(found)

    return sort


def narrowed_by(problem: GemmProblem, x: Any, into: dict[str, Any]) -> Callable[[], None]:
    """x quantised into the operands a and scale_a of a product, likewise."""
    scales = str(dict(problem.own).get("scales", "per_tensor"))
    kernel = quantizing(problem.dtype_c, problem.dtype_a, scales)
    rows, k = x.shape
    if kernel is not None and scales == "blocks":
        return row_launch(kernel, (rows, -(-k // (BLOCK * BLOCKS))), x, into["a"], into["scale_a"], rows, k)
    if kernel is not None:
        return row_launch(kernel, rows, x, into["a"], into["scale_a"], k)

    def by_torch() -> None:
        for name, found in zip(("a", "scale_a"), quantized(x, into["a"].dtype, scales), strict=True):
            into[name].copy_(found)

    return by_torch


def row_launch(kernel: RowKernel, grid: int | tuple[int, int], *given: Any) -> Callable[[], None]:
    """A launch of a kernel beside products, by Triton's own launcher: in a graph who launched says nothing."""
    function = getattr(load_module(str(path_of(FILE))), kernel.function)
    programs = grid if isinstance(grid, tuple) else (grid,)

    def launch() -> None:
        function[programs](*given, **dict(kernel.constants), num_warps=kernel.num_warps)

    return launch


def spread(scale: Any, weight: Any) -> Any:
    """The scale of each element of a weight [N, K]: one, of rows [1, N], or of blocks."""
    if scale.numel() == 1:
        return scale
    if scale.shape[0] == 1:
        return scale.mT
    rows, columns = weight.shape
    return scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
