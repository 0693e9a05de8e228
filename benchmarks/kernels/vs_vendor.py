"""Tuned results against the vendor library, from the times that one run took of all, round by round.

    python -m benchmarks.kernels.vs_vendor RESULTS.yaml... [--brief] [--key NAME [--least NAME] [--over torch]]

A table of sizes and one of geometric means by M for each file. Of several files, whose sizes may be the same, a last
table has each distinct size once, as the last file has it. "library" is the library's best call, in rows from before
algorithms were raced PyTorch's. "called" is what won: genkern's kernel, or where that is no faster the library's call.
Where nobody can say who is faster, it is a tie, and a win of neither; rows from before count ties as lost.

With a key a last line has by it what the library's best takes over genkern's own kernel, or with `--over torch` what
PyTorch's call takes, over the distinct sizes of all files; and one says how many of the library's calls are algorithms
of cuBLASLt.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.common.figures import figure, geomean, table
from benchmarks.common.workbench import errors_end
from genkern.errors import ResultsError
from genkern.files.file_kind import read_results
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS, TIE, VENDOR_WINS
from genkern.result.result import Result
from genkern.timing.libraries import CUBLASLT, library_of


@dataclass(frozen=True)
class Compared:
    """A row with the times of one call in microseconds; PyTorch's is None where the row does not say."""

    row: Result
    genkern_us: float
    library_us: float
    torch_us: float | None

    @property
    def called_us(self) -> float:
        return self.genkern_us if self.row.choice == CONFIG_WINS else self.library_us


def compared_of(rows: Iterable[Result]) -> list[Compared]:
    """The rows with a time of both sides, by M, N and K."""
    both = [
        Compared(row, row.duration_us, row.vendor_us, row.torch_us) for row in rows if row.duration_us and row.vendor_us
    ]
    return sorted(both, key=lambda each: (each.row.problem.M, each.row.problem.N, each.row.problem.K))


def sizes_table(compared: Iterable[Compared]) -> str:
    """Markdown: one line a size."""
    cells = [
        (
            *(p.M, p.N, p.K, f"{each.genkern_us:.2f}", f"{each.library_us:.2f}"),
            f"{each.torch_us:.2f}" if each.torch_us else "-",
            f"{each.library_us / each.genkern_us:.3f}",
            each.row.config.name if each.row.config else "-",
        )
        for each in compared
        for p in (each.row.problem,)
    ]
    columns = "M", "N", "K", "genkern us", "library us", "torch.mm us", "library / genkern", "config"
    return table(columns, cells)


def means_table(compared: Iterable[Compared]) -> str:
    """Markdown: geometric mean and least ratios by M and over all, and how many sizes genkern's kernels won."""
    groups: dict[object, list[Compared]] = {}
    for each in compared:
        groups.setdefault(each.row.problem.M, []).append(each)
    groups["all"] = [each for group in groups.values() for each in group]
    cells = [
        (
            *(name, len(group)),
            *_mean_and_least([each.library_us / each.genkern_us for each in group]),
            *_mean_and_least([each.library_us / each.called_us for each in group]),
            *_mean_and_least([each.torch_us / each.called_us for each in group if each.torch_us]),
            ", ".join(
                str(sum(each.row.choice == choice for each in group)) for choice in (CONFIG_WINS, TIE, VENDOR_WINS)
            ),
        )
        for name, group in groups.items()
    ]
    ratios = "library / genkern", "library / called", "torch.mm / called"
    columns = "M", "sizes", *(cell for ratio in ratios for cell in (ratio, "least")), "won, tied, lost"
    return table(columns, cells)


def _mean_and_least(ratios: Sequence[float]) -> tuple[str, str]:
    return (f"{geomean(ratios):.3f}", f"{min(ratios):.3f}") if ratios else ("-", "-")


def key_lines(compared: Sequence[Compared], key: str, least: str, over_torch: bool) -> list[str]:
    """A headline figure, and whose calls genkern's kernels were set against."""
    with_times = [(each, each.torch_us if over_torch else each.library_us) for each in compared]
    ratios = [us / each.genkern_us for each, us in with_times if us]
    if over_torch:
        return figure(key, ratios, least)
    of_lt = sum(library_of(each.row.vendor) == CUBLASLT for each in compared)
    return [
        *figure(key, ratios, least),
        f"the library's call: an algorithm of cuBLASLt for {of_lt} sizes, PyTorch's own for {len(compared) - of_lt}",
    ]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="results files of genkern, YAML")
    parser.add_argument("--brief", action="store_true", help="without the tables of sizes")
    parser.add_argument("--key", help="print the mean of the ratios by this key")
    parser.add_argument("--least", default="", help="and the least of them by this one")
    parser.add_argument("--over", choices=("library", "torch"), default="library", help="whose time a key is of")
    options = parser.parse_args(argv)
    distinct: dict[GemmProblem, Result] = {}
    with errors_end():
        for path in options.results:
            compared = compared_of(read_results(path))
            if not compared:
                raise ResultsError(f"{path}: no size has the vendor library's time; tune again with a GPU")
            sizes = "" if options.brief else f"{sizes_table(compared)}\n\n"
            print(f"{path}\n\n{sizes}{means_table(compared)}\n")
            distinct |= {each.row.problem: each.row for each in compared}
    together = compared_of(distinct.values())
    if len(options.results) > 1:
        print(f"{len(options.results)} files, each distinct size once\n\n{means_table(together)}\n")
    if options.key:
        print("\n".join(key_lines(together, options.key, options.least, options.over == "torch")))


if __name__ == "__main__":
    main(sys.argv[1:])
