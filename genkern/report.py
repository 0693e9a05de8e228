"""What a person reads at the end: the table of winners, the count of outcomes, and the candidates' file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd
from rich.console import Console
from rich.table import Table

from genkern.config import Config
from genkern.files import write_whole
from genkern.gpus import Gpu
from genkern.records import Outcome, Winner
from genkern.tune import Report

CANDIDATE_COLUMNS = (
    "M,N,K,op,dtype_a,dtype_b,dtype_c,config,outcome,us,time_source,stage,samples,"
    "registers,spills,shared_bytes,scratch_bytes,message"
).split(",")


def percent_of_peak(winner: Winner, gpu: Gpu) -> float | None:
    """Share of the device's dense matrix peak for the operands' type, in percent; None without such a peak."""
    kind = "fp8" if winner.problem.dtype_a.startswith("fp8") else winner.problem.dtype_a
    peak = gpu.peak_tflops.get(kind)
    return None if peak is None else 100 * winner.problem.tflops(winner.duration_us) / peak


def percent_of_roofline(winner: Winner, gpu: Gpu) -> float | None:
    """Share of the larger bound, arithmetic or memory, in percent: 100 would be as fast as the device allows."""
    peak = percent_of_peak(winner, gpu)
    memory = winner.problem.gb_per_s(winner.duration_us) / (gpu.memory_tb_per_s * 1e3) * 100
    return None if peak is None else max(peak, memory)


def winners_table(winners: Sequence[Winner], gpu: Gpu) -> Table:
    """The table of the results: one line a problem."""
    table = Table(title=f"{gpu.name} ({gpu.arch})", title_justify="left", box=None, pad_edge=False)
    for name in ("size", "winner", "us", "TFLOPS", "% peak", "% roofline", "vs vendor", "check", "source"):
        table.add_column(name, justify="left" if name in ("size", "winner", "check", "source") else "right", no_wrap=name != "winner", overflow="fold")
    for w in winners:
        peak, roofline = percent_of_peak(w, gpu), percent_of_roofline(w, gpu)
        table.add_row(
            w.problem.size,
            w.config.name,
            f"{w.duration_us:.2f}",
            f"{w.problem.tflops(w.duration_us):.1f}",
            "-" if peak is None else f"{peak:.1f}",
            "-" if roofline is None else f"{roofline:.1f}",
            "-" if w.vendor_us is None else f"{w.vendor_us / w.duration_us:.3f}x",
            "-" if w.check is None else f"ok ({w.check.method} {w.check.problem_size})",
            w.time_source,
        )
    return table


def print_winners(console: Console, winners: Sequence[Winner], gpu: Gpu) -> None:
    """Print the table wide enough for config names even where the output is no terminal."""
    wide = console if console.is_terminal else Console(file=console.file, width=200)
    wide.print(winners_table(winners, gpu))


def outcome_line(outcomes: Counter[Outcome]) -> str:
    """For example `measured 672, compile_failed 3, pruned 131,328`; every candidate is in exactly one of them."""
    order = [outcome for outcome in reversed(Outcome) if outcomes[outcome]]
    return ", ".join(f"{outcome.value} {outcomes[outcome]:,}" for outcome in order)


def candidate_rows(report: Report) -> list[dict[str, object]]:
    """One row per candidate of a problem, fastest first."""
    problem = report.problem
    rows: list[dict[str, object]] = []
    for name, m in report.candidates.items():
        resources = report.binaries[name].resources if name in report.binaries else None
        rows.append(
            {
                **{key: getattr(problem, key) for key in ("M", "N", "K", "op", "dtype_a", "dtype_b", "dtype_c")},
                "config": Config.parse(name).name,
                "outcome": m.outcome.value,
                "us": m.duration_us,
                "time_source": m.time_source,
                "stage": m.stage,
                "samples": len(m.samples_us),
                "registers": resources and resources.registers,
                "spills": resources and resources.spills,
                "shared_bytes": resources and resources.shared_bytes,
                "scratch_bytes": resources and resources.scratch_bytes,
                "message": m.message,
            }
        )
    return sorted(rows, key=lambda row: (row["us"] is None, row["us"] or 0.0, str(row["config"])))


def write_candidates(path: str, rows: Sequence[dict[str, object]]) -> None:
    """Write every candidate with its outcome as CSV (--profile_file). Raises OutputError."""
    table = pd.DataFrame({column: [row[column] for row in rows] for column in CANDIDATE_COLUMNS})
    write_whole(path, table.to_csv(index=False))
