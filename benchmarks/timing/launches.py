"""Winners as the measured process launches them, beside Triton's own launcher and torch, in the same rounds.

    python -m benchmarks.timing.launches RESULTS.yaml [--limit 20] [-o FULL.jsonl]

All are captured in CUDA graphs and use the same cold weights. Triton's launcher is that of the generated module, whose
kernels Triton's JIT compiles anew; kernels in CuTe DSL have none. First each is compared with the reference.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.figures import DataFile, geomean, table
from benchmarks.common.workbench import Bench, argument_parser, rows_of, said, say, until, versions_line, workbench
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.kernels.catalogue import FAMILIES
from genkern.kernels.generate import generate
from genkern.kernels.source import load_module
from genkern.profiling.finals import Rounds
from genkern.profiling.loaded_gemm import Call
from genkern.timing.libraries import VENDOR

ROUNDS = 20
OURS, TRITON = "genkern", "triton"


def by_triton(bench: Bench, config: Config, gpu: Gpu, folder: str) -> Call:
    """The config's call by the module that people keep."""
    gemm = bench.gemm
    module = generate(bench.problem, [config], gemm.session.arch, gpu)
    path = Path(folder) / f"{config.name}_{module.file_name}"
    path.write_text(module.text, encoding="utf-8")
    kept = load_module(str(path))
    row = kept.CONFIGS[config.name]
    first = kept.with_workspace(row, gemm.operands_of(0), gemm.units)
    given = [{**first, **gemm.operands_of(copy)} for copy in range(gemm.copies)]

    def call(copy: int) -> None:
        kept.matmul(row, given[copy % len(given)], gemm.units)

    return call


def main(argv: Sequence[str]) -> None:
    arguments = argument_parser(__doc__).parse_args(argv)
    arguments.limit = arguments.limit or 20
    data, taken = DataFile(arguments.output), dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory(prefix="launches-") as folder, workbench(arguments) as at:
        for row in until(arguments.seconds, rows_of(arguments)):
            if row.config is None:
                continue
            name = f"{row.problem.size} {row.config.name}"
            with said(name), at.open(row.problem, [row.config]) as bench:
                calls = {OURS if call == row.config.name else call: made for call, made in bench.calls().items()}
                if FAMILIES[row.config.family].language == TRITON:
                    with said(f"{name}, by Triton's launcher"):
                        kept = by_triton(bench, row.config, at.workshop.gpu, folder)
                        kept(0)
                        calls[TRITON] = kept
                taken[name] = times = bench.times_us(bench.agreeing(calls), Rounds(ROUNDS, ROUNDS, 1.0, 0))
                data.add({"size": row.problem.size, "config": row.config.name, "us": times})
        say(versions_line(at))
    contenders = {OURS: "genkern, us", TRITON: "Triton's launcher, us", VENDOR: "torch, us"}
    cells = [(name, *(f"{us[each]:.2f}" if each in us else "-" for each in contenders)) for name, us in taken.items()]
    print(table(("config", *contenders.values()), cells))
    for other in (TRITON, VENDOR):
        ratios = [us[other] / us[OURS] for us in taken.values() if OURS in us and other in us]
        if ratios:
            print(f"{other} over {OURS}: {geomean(ratios):.3f} (geometric mean of {len(ratios)})")


if __name__ == "__main__":
    main(sys.argv[1:])
