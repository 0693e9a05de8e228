"""genkern's grouped products and mixtures of experts against others', in the same rounds on one GPU.

    python -m benchmarks.kernels.moe RESULTS.yaml [--skewed] [--limit N] [--seconds S] [-o FULL.jsonl]

Of each row of grouped_gemm: the winner, torch._grouped_mm, and DeepGEMM's contiguous or masked kernel (the wheel
sgl-deep-gemm with apache-tvm-ffi; nvcc compiles on first use). Contiguous groups have equal rows here, multiples of the
128 that DeepGEMM asks for where M allows it; masked ones have what they were tuned with.

Of each pair of fused_moe rows (gate_up and down of the same tokens): the whole layer from the router's choice on, by
the winners, by the same kernels with the configs that vLLM ships (moe_peers.yaml), by torch._grouped_mm, and by a loop
over experts whose lists of tokens are known beforehand, which flatters it. For gate_up vLLM's BLOCK_SIZE_N is halved:
its tile has gate and up side by side, so that a program does the same work. All are timed by genkern's finals, and
only who computes the same is in the table; with 8-bit weights torch's ways have the weights in bf16. With `--skewed`
each layer is timed on skewed routing instead, where few experts have most of the tokens: by winners tuned on that where
RESULTS.yaml has them (moe_skewed_sizes.yaml), and by those of balanced routing beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.common.figures import DataFile, figure, table
from benchmarks.common.workbench import (
    Bench,
    Workbench,
    argument_parser,
    rows_of,
    said,
    say,
    until,
    versions_line,
    workbench,
)
from benchmarks.kernels.moe_layer import Layer, LayerOnDevice, layers_of, skewed_layers, vllm_configs
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import groups_of
from genkern.profiling.finals import Rounds
from genkern.profiling.loaded_gemm import Call
from genkern.result.result import Result
from genkern.timing.libraries import VENDOR

OURS, DEEP_GEMM, VLLM, GROUPED_MM, LOOP = "genkern", "DeepGEMM", "vLLM's configs", "torch._grouped_mm", "loop"
# Winners on balanced routing, where it is skewed.
BALANCED = "genkern, tuned on balanced"
ROUNDS = Rounds(9, 40, 1.2, 1)
# DeepGEMM's groups begin at multiples of this (get_m_alignment_for_contiguous_layout).
ALIGNED_ROWS = 128


@dataclass(frozen=True)
class Race:
    """One product or layer: times in microseconds by contender."""

    what: str
    kind: str
    times_us: Mapping[str, float]

    def over_best(self, others: Sequence[str]) -> float | None:
        """Time of the best of others over genkern's; None where none of them ran."""
        found = [self.times_us[name] for name in others if name in self.times_us]
        return min(found) / self.times_us[OURS] if found and OURS in self.times_us else None


def even_rows(problem: GemmProblem, device: str) -> Any:
    """Where groups end, all equal but for the last ones, which have what is left over."""
    import torch

    groups = groups_of(problem)
    assert groups is not None
    each = -(-problem.M // groups.count)
    return (torch.arange(1, groups.count + 1, device=device) * each).clamp(max=problem.M).to(torch.int32)


def deep_gemm_call(builder: Bench) -> Call:
    """DeepGEMM's product on the same operands. Raises what the wheel raises, ValueError for rows it cannot take."""
    import deep_gemm
    import torch

    gemm, problem = builder.gemm, builder.problem
    groups = groups_of(problem)
    assert groups is not None
    narrow = DTYPES[problem.dtype_a].size_bytes == 1
    a, c, index = (gemm.operands[name] for name in ("a", "c", groups.index))
    own_of = [gemm.operands_of(copy) for copy in range(gemm.copies)]
    weights = [own["b"].mT for own in own_of]
    if narrow:
        from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor

        scales = gemm.operands["scale_a"].contiguous()
        scales = scales.view(groups.count, -1, scales.shape[1]) if groups.capacity else scales
        of_a = get_mn_major_tma_aligned_tensor(scales)
        weights = [(weight, own["scale_b"]) for weight, own in zip(weights, own_of, strict=True)]
    kind = "fp8" if narrow else "bf16"
    if groups.capacity:
        a, c = (x.view(groups.count, groups.capacity, -1) for x in (a, c))
        of = (a, of_a) if narrow else a
        masked = getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_masked", None) or getattr(
            deep_gemm, f"{kind}_m_grouped_gemm_nt_masked"
        )
        expected = -(-problem.M // groups.count)
        return lambda copy: masked(of, weights[copy % gemm.copies], c, index, expected)
    rows = torch.diff(index, prepend=index.new_zeros(1))
    if int((rows % ALIGNED_ROWS).any()):
        raise ValueError(f"groups of {rows[0].item()} rows do not begin at multiples of {ALIGNED_ROWS}")
    group_of_row = torch.repeat_interleave(torch.arange(groups.count, device=rows.device, dtype=torch.int32), rows)
    of = (a, of_a) if narrow else a
    contiguous = getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_contiguous")
    return lambda copy: contiguous(of, weights[copy % gemm.copies], c, group_of_row)


def grouped_mm_call(builder: Bench) -> Call:
    """torch._grouped_mm of the same, whose result is a tensor of its own: copied to C only when it is compared."""
    vendor = builder.gemm.module.vendor
    operands = [builder.gemm.operands_of(copy) for copy in range(builder.gemm.copies)]
    return lambda copy: vendor(operands[copy % builder.gemm.copies])


def written_error(found: Any, expected: Any) -> float:
    """AITER's share of elements that are too far off, of rows that the reference has."""
    from genkern.profiling.checking.verdict import error_ratio

    written = ~expected.isnan().any(-1)
    return error_ratio(found[written], expected[written])


def race_grouped(builder: Bench, winner: Config) -> Race:
    """The winner and all others that compute the same."""
    import torch

    groups = groups_of(builder.problem)
    assert groups is not None
    gemm = builder.gemm
    if not groups.capacity:
        gemm.operands[groups.index] = even_rows(builder.problem, "cuda")
    expected, c = gemm.module.reference(gemm.operands_of(0)), gemm.operands["c"]
    made = builder.calls()
    calls: dict[str, Call] = {OURS: made[winner.name]}
    if VENDOR in made:
        calls[GROUPED_MM] = grouped_mm_call(builder)
    with said(f"{builder.problem.name} {DEEP_GEMM}"):
        calls[DEEP_GEMM] = deep_gemm_call(builder)
    right = {}
    for name, call in calls.items():
        with said(f"{builder.problem.name} {name}"):
            c.fill_(float("nan"))
            returned = call(0)
            torch.cuda.synchronize()
            error = written_error(returned if name == GROUPED_MM else c, expected)
            if error <= 0.01:
                right[name] = call
            else:
                say(f"{builder.problem.name} {name}: {error:.1%} of the elements are wrong")
    return Race(builder.problem.name, "grouped", builder.times_us(right, ROUNDS))


def race_layer(bench_of: Workbench, layer: Layer) -> Race:
    """The layer by everyone who computes the same as a loop in float32; 8 bits cost what three bits of fp8 cost."""
    import torch

    peers, balanced = vllm_configs(layer), layer.balanced
    configs = [pair for pair in (layer.configs, peers, balanced) if pair]
    first, second = ([pair[stage] for pair in configs] for stage in (0, 1))
    with bench_of.open(layer.gate_up, first) as one, bench_of.open(layer.down, second) as two:
        on_device = LayerOnDevice(layer, one, two)
        on_device.by_loop(lambda x: x.float())(0)
        expected = on_device.out
        made = {
            OURS: lambda: on_device.by_kernels(layer.configs),
            **({VLLM: lambda: on_device.by_kernels(peers)} if peers else {}),
            **({BALANCED: lambda: on_device.by_kernels(balanced)} if balanced not in (None, layer.configs) else {}),
            GROUPED_MM: on_device.by_grouped_mm,
            LOOP: on_device.by_loop,
        }
        calls = {}
        for name, make in made.items():
            with said(f"{layer.what} {name}"):
                call = make()
                call(0)
                torch.cuda.synchronize()
                error = ((on_device.out.float() - expected).norm() / expected.norm()).item()
                if error <= (0.1 if on_device.narrow else 0.02):
                    calls[name] = call
                else:
                    say(f"{layer.what} {name}: off by {error:.2g} of the result")
        return Race(layer.what, "layer", one.times_us(calls, ROUNDS))


def report(races: Sequence[Race]) -> str:
    """Markdown: a table of each kind, and the figures by their keys."""
    lines = []
    for kind, others, key in (
        ("grouped", (DEEP_GEMM, GROUPED_MM), "grouped_over_deepgemm"),
        ("layer", (VLLM, GROUPED_MM, LOOP), "fused_moe_over_best_peer"),
    ):
        here = [race for race in races if race.kind == kind and OURS in race.times_us]
        if not here:
            continue
        rows, ratios = [], []
        also = [BALANCED] if any(BALANCED in race.times_us for race in here) else []
        counted = (DEEP_GEMM,) if kind == "grouped" else others
        for race in here:
            cells = [f"{race.times_us[name]:.1f}" if name in race.times_us else "" for name in (OURS, *also, *others)]
            ratio = race.over_best(others)
            rows.append((race.what, *cells, f"{ratio:.3f}" if ratio else ""))
            if (of_key := race.over_best(counted)) is not None:
                ratios.append(of_key)
        head = (kind, *(f"{name} us" for name in (OURS, *also, *others)), "best other / genkern")
        lines += [table(head, rows), ""]
        if ratios:
            lines += [*figure(key, ratios), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--skewed", action="store_true", help="layers on skewed routing, and no grouped products")
    arguments = parser.parse_args()
    races: list[Race] = []
    data = DataFile(arguments.output)
    with workbench(arguments) as bench_of:
        rows = rows_of(arguments)
        grouped = [row for row in rows if row.problem.op == "grouped_gemm" and row.config is not None]
        layers = layers_of(rows)
        both: list[Layer | Result] = [*skewed_layers(layers)] if arguments.skewed else [*layers, *grouped]
        for item in until(arguments.seconds, both):
            if isinstance(item, Layer):
                with said(item.what):
                    races.append(race_layer(bench_of, item))
            elif item.config is not None:
                with bench_of.open(item.problem, [item.config]) as builder, said(item.problem.name):
                    races.append(race_grouped(builder, item.config))
            if races:
                data.add(asdict(races[-1]))
        print(report(races))
        print(versions_line(bench_of))


if __name__ == "__main__":
    sys.exit(main())
