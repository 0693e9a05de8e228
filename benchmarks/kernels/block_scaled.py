"""genkern's block-scaled fp8 winners against DeepGEMM, cuBLASLt and vLLM's configs, in the same rounds.

    python -m benchmarks.kernels.block_scaled RESULTS.yaml [--vllm FOLDER] [--limit N] [-o FULL.jsonl]

cuBLASLt is its best algorithm, as the run that tuned found it, and PyTorch's own choice (torch._scaled_mm). DeepGEMM is
the wheel sgl-deep-gemm with apache-tvm-ffi, whose kernels nvcc compiles on first use. "vLLM's configs" is
genkern's `tiled` kernel, which computes as vLLM's does, with the config that vLLM ships for the nearest M: FOLDER has
its JSON files (vllm/model_executor/layers/quantization/utils/configs), and sizes that they do not cover have none. Who
is not installed, refuses a size or computes something else has an empty column. Scales of A are laid out beforehand
for everyone: what an engine does once a token is not in anyone's time. All are timed by genkern's finals, weights cold
in rotation.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.common.figures import DataFile, figure, table
from benchmarks.common.workbench import (
    Bench,
    argument_parser,
    errors_end,
    rows_of,
    said,
    until,
    versions_line,
    workbench,
)
from genkern.errors import InputError
from genkern.files.exchange import vllm
from genkern.files.peer_config import Candidate
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.profiling.algorithms import Algorithms
from genkern.profiling.finals import Rounds
from genkern.profiling.loaded_gemm import Call
from genkern.result.result import Result
from genkern.timing.libraries import CUBLASLT, VENDOR, library_of

BEST, DEEP_GEMM, VLLM = "cuBLASLt", "DeepGEMM", "vLLM's configs"
PEERS = (VENDOR, BEST, DEEP_GEMM)
ROUNDS = Rounds(least=15, most=60, cap_s=1.5, seed=1)


@dataclass(frozen=True)
class Race:
    """One size: times in microseconds by contender; the winner's by the name of its config."""

    size: str
    config: str
    times_us: Mapping[str, float]

    def over(self, others: Sequence[str]) -> float | None:
        """Time of the best of others over the winner's; None where none of them ran."""
        found = [self.times_us[name] for name in others if name in self.times_us]
        return min(found) / self.times_us[self.config] if found and self.config in self.times_us else None


def shipped_in(folder: str) -> list[Candidate]:
    """What vLLM's files in `folder` say; other files there are left alone. Raises InputError."""
    paths = [path for path in sorted(Path(folder).glob("*.json")) if vllm.is_named(path.name)]
    if not paths:
        raise InputError(f"{folder}: has no file named as vLLM names its own, N=...,K=...,device_name=....json")
    return [each for path in paths for each in vllm.read(path.read_text(), str(path), path.name, None).candidates]


def config_for(problem: GemmProblem, shipped: Collection[Candidate]) -> Config | None:
    """The config of the nearest M, as vLLM chooses (of two as near the first); None where (N, K) is not covered."""
    near = [each for each in shipped if each.config and replace(each.problem, M=problem.M) == problem]
    return min(near, key=lambda each: abs(each.problem.M - problem.M)).config if near else None


def deep_gemm_call(builder: Bench) -> Call:
    """DeepGEMM's product on the same operands and copies of the weights. Raises what the wheel raises."""
    import deep_gemm
    from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor

    gemm = builder.gemm
    scales = get_mn_major_tma_aligned_tensor(gemm.operands["scale_a"].contiguous())
    a, c = gemm.operands["a"], gemm.operands["c"]

    own_of = [gemm.operands_of(copy) for copy in range(gemm.copies)]

    def call(copy: int) -> None:
        own = own_of[copy % gemm.copies]
        deep_gemm.fp8_gemm_nt((a, scales), (own["b"].T, own["scale_b"]), c)

    return call


def race(builder: Bench, row: Result, of_vllm: Config | None) -> Race:
    """The row's winner, the library's calls, DeepGEMM and vLLM's config in the same shuffled rounds."""
    assert row.config is not None
    winner = row.config.name
    calls = builder.calls(library=not get_op(builder.problem.op).no_vendor(builder.problem))
    if of_vllm is not None and of_vllm.name in calls:
        calls[VLLM] = calls[of_vllm.name]
    if library_of(row.vendor) == CUBLASLT:
        with said(f"{builder.problem.size} {BEST}"):
            calls[BEST] = Algorithms(builder.gemm).call(row.vendor)
    with said(f"{builder.problem.size} {DEEP_GEMM}"):
        calls[DEEP_GEMM] = deep_gemm_call(builder)
    wanted = {name: call for name, call in calls.items() if name in (winner, *PEERS, VLLM)}
    return Race(builder.problem.size, winner, builder.times_us(builder.agreeing(wanted), ROUNDS))


def report(races: Sequence[Race]) -> str:
    """Markdown: a line per size, then what peers take over genkern's time, by key."""
    rows = []
    for item in races:
        cells = [f"{item.times_us[name]:.2f}" if name in item.times_us else "" for name in (item.config, *PEERS, VLLM)]
        ratios = [f"{ratio:.3f}" if ratio else "" for ratio in (item.over(PEERS), item.over([VLLM]))]
        rows.append((item.size, *cells, *ratios, item.config))
    head = ("size", "genkern us", "torch us", f"{BEST} us", f"{DEEP_GEMM} us", f"{VLLM} us")
    lines = [table((*head, "better peer / genkern", f"{VLLM} / genkern", "config"), rows), ""]
    peers, configs = ([ratio for item in races if (ratio := item.over(others))] for others in (PEERS, [VLLM]))
    lines += figure("blockscale_over_best_peer", peers, least="blockscale_least")
    lines += figure("blockscale_over_vllm_configs", configs)
    return "\n".join(lines)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--vllm", metavar="FOLDER", help="folder of vLLM's JSON files for fp8 with scales of blocks")
    arguments = parser.parse_args()
    with errors_end():
        shipped = shipped_in(arguments.vllm) if arguments.vllm else []
    races: list[Race] = []
    data = DataFile(arguments.output)
    with workbench(arguments) as bench_of:
        for row in until(arguments.seconds, rows_of(arguments)):
            theirs = config_for(row.problem, shipped)
            configs = [config for config in (row.config, theirs) if config is not None]
            with bench_of.open(row.problem, configs) as builder, said(row.problem.size):
                races.append(race(builder, row, theirs))
                data.add(asdict(races[-1]))
        print(report(races))
        print(versions_line(bench_of))


if __name__ == "__main__":
    sys.exit(main())
