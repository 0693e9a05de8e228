"""The candidates of each size: from a run's journal, a list of candidates (--profile_file), or recorded tables."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genkern.cli.candidates_file import COLUMNS
from genkern.compile.occupancy import occupancy
from genkern.errors import InputError, ResultsError
from genkern.file_io import read_text, shown_path
from genkern.files.gemm_entry import problem_of_cells
from genkern.gemm.config import Config
from genkern.gemm.gpu import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome, Resources
from genkern.journal.search_steps import parsed
from genkern.kernels.legality import block_warps
from genkern.recorded.columns import NEEDS
from genkern.recorded.load import recorded_problems
from genkern.recorded.parquet import SUFFIX
from genkern.recorded.problem import RecordedProblem
from genkern.results_report.record import Candidates, Needs, Tile

# Candidates that a report shows one by one. A page with 500 sizes and this many candidates stays below 4 MB.
MOST_CANDIDATES = 30_000
_LOOP = {
    "loop_matrix": "matrix instructions",
    "loop_fma": "multiply-adds",
    "loop_shared": "shared memory",
    "loop_loads": "loads from global memory",
    "loop_syncs": "barriers and waits",
}
_FINAL = "final"


@dataclass(frozen=True)
class Candidate:
    """One candidate: its config, outcome, times in microseconds, and what its binary needs."""

    config: Config
    outcome: str
    us: float | None
    final_us: float | None
    resources: Resources

    @property
    def time_us(self) -> float | None:
        """The first measurement, which all measured candidates have, or else the time of the finals.

        None for a candidate whose output is wrong, since its time means nothing.
        """
        if self.outcome == Outcome.WRONG:
            return None
        return self.us if self.us is not None else self.final_us


@dataclass(frozen=True)
class CandidateSet:
    """The candidates of one problem on one GPU; `gpu` is its name, or "" if the file does not name it."""

    problem: GemmProblem
    gpu: str
    origin: str
    predicted: bool
    whole: bool
    candidates: tuple[Candidate, ...]

    def named(self, config: str) -> Candidate | None:
        """Return the candidate of this name, if it is among them."""
        return next((each for each in self.candidates if each.config.name == config), None)


def of_problems(
    found: Iterable[RecordedProblem], origin: str, wanted: frozenset[GemmProblem]
) -> Iterator[CandidateSet]:
    """Yield the candidates of those recorded problems that are wanted."""
    for each in found:
        if each.problem in wanted:
            yield CandidateSet(each.problem, each.gpu.name, origin, False, each.whole, tuple(_recorded(each)))


def _recorded(found: RecordedProblem) -> Iterator[Candidate]:
    columns = {name: values.tolist() for name, values in found.columns.items()}
    for place, (config, outcome) in enumerate(zip(found.configs, found.outcomes, strict=True)):
        needs = {column.name: _whole(columns[column.name][place]) for column in NEEDS}
        wrong = config in found.wrong
        us, final_us = (_number(columns[name][place]) for name in ("screen_us", "final_us"))
        yield Candidate(config, Outcome.WRONG.value if wrong else outcome.value, us, final_us, Resources(**needs))  # type: ignore[arg-type]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None


def read_candidates(path: str, wanted: frozenset[GemmProblem]) -> Iterator[CandidateSet]:
    """Yield the candidates of the wanted problems in a file that a user names.

    `path`: a CSV file of --profile_file, a recorded table, or a folder of recorded tables. Raises ResultsError.
    """
    if not Path(path).is_dir() and not path.endswith(SUFFIX):
        yield from _listed(path, wanted)
        return
    yield from of_problems(recorded_problems(path), shown_path(path), wanted)


def _listed(path: str, wanted: frozenset[GemmProblem]) -> Iterator[CandidateSet]:
    where = shown_path(path)
    rows = csv.reader(io.StringIO(read_text(path, ResultsError)))
    by_problem: dict[GemmProblem, list[Candidate]] = {}
    predicted: set[GemmProblem] = set()
    try:
        if next(rows, None) != list(COLUMNS):
            raise ResultsError(
                f"{where} is no list of candidates: name the file of --profile_file, or a recorded table"
            )
        problems: dict[tuple[str, ...], GemmProblem] = {}
        cells_of_problem = COLUMNS.index("config")
        for row in rows:
            cells = dict(zip(COLUMNS, row, strict=True))
            key = tuple(row[:cells_of_problem])
            if key not in problems:
                problems[key] = problem_of_cells(cells)
            if (problem := problems[key]) in wanted:
                by_problem.setdefault(problem, []).append(_of_cells(cells))
                if cells["time_source"] == "predicted":
                    predicted.add(problem)
    except ResultsError:
        raise
    except (InputError, ValueError, csv.Error) as error:
        raise ResultsError(f"{where}, line {rows.line_num}: {' '.join(str(error).split())[:200]}") from None
    for problem, candidates in by_problem.items():
        yield CandidateSet(problem, "", where, problem in predicted, False, tuple(candidates))


def _of_cells(cells: Mapping[str, str]) -> Candidate:
    us = float(cells["us"]) if cells["us"] else None
    if us is not None and not 0 < us < math.inf:
        raise ValueError(f"us = {us} is not a time")
    numbers = {
        name: int(cells[name]) if cells[name] else None
        for name in ("registers", "spills", "shared_bytes", "scratch_bytes")
    }
    is_final = cells["stage"] == _FINAL
    resources = Resources(**numbers)  # type: ignore[arg-type]
    return Candidate(
        parsed(cells["config"]), cells["outcome"][:40], None if is_final else us, us if is_final else None, resources
    )


def needs_of(candidate: Candidate | None, gpu: Gpu | None) -> Needs | None:
    """Return what a candidate's kernel needs; None if its binary is unknown."""
    if candidate is None or candidate.resources == Resources():
        return None
    known, config = candidate.resources, candidate.config
    warps = block_warps(config, gpu) if gpu is not None else config.num_warps
    blocks = occupancy(known, warps, gpu) if gpu is not None and known.registers is not None else None
    loop = {said: count for name, said in _LOOP.items() if (count := getattr(known, name)) is not None}
    if known.loop_instructions is not None:
        loop["other instructions"] = known.loop_instructions - sum(loop.values())
    return Needs(
        registers=known.registers,
        spills=known.spills,
        shared_bytes=known.shared_bytes,
        scratch_bytes=known.scratch_bytes,
        blocks_per_unit=blocks,
        warps_per_unit=None if blocks is None else blocks * warps,
        warps_most=None if gpu is None or blocks is None else gpu.threads_per_unit_max // gpu.warp_size,
        loop=loop,
    )


def shares(counts: Sequence[int], most: int) -> list[int]:
    """Return how many of each size's candidates to show, `most` in all: small sets whole, large ones cut alike."""
    left, limit = most, 0
    for place, count in enumerate(sorted(counts)):
        limit = left // (len(counts) - place)
        if count > limit:
            break
        left, limit = left - count, count
    return [min(count, limit) for count in counts]


def shown(of: CandidateSet, most: int) -> Candidates:
    """Return the candidates of a size as the report has them: totals over all, and the `most` fastest in columns."""
    timed = sorted((each for each in of.candidates if each.time_us is not None), key=lambda each: each.time_us or 0.0)
    fastest = timed[:most]
    values = [each.config.values for each in timed]
    names = dict.fromkeys(name for each in values for name in each)
    varying = [name for name in names if len({each.get(name) for each in values}) > 1]
    return Candidates(
        origin=of.origin,
        predicted=of.predicted,
        whole=of.whole,
        outcomes=dict(Counter(each.outcome for each in of.candidates).most_common()),
        timed=len(timed),
        config=tuple(each.config.name for each in fastest),
        family=tuple(each.config.family for each in fastest),
        us=tuple(each.time_us for each in fastest),
        final_us=tuple(each.final_us for each in fastest),
        registers=tuple(each.resources.registers for each in fastest),
        shared_bytes=tuple(each.resources.shared_bytes for each in fastest),
        spills=tuple(each.resources.spills for each in fastest),
        parameters={name: tuple(each.get(name) for each in values[: len(fastest)]) for name in varying},
        tiles=tuple(_tiles(timed)),
        best_by={name: _best_by(name, timed, values) for name in varying},
    )


def _tiles(timed: Sequence[Candidate]) -> Iterator[Tile]:
    best: dict[tuple[int, int], Candidate] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for each in timed:
        tile = each.config.BLOCK_SIZE_M, each.config.BLOCK_SIZE_N
        counts[tile] += 1
        best.setdefault(tile, each)
    for (block_m, block_n), each in sorted(best.items()):
        yield Tile(block_m, block_n, each.time_us or 0.0, counts[block_m, block_n], each.config.name)


def _best_by(
    name: str, timed: Sequence[Candidate], values: Sequence[Mapping[str, int | str]]
) -> tuple[tuple[int | str, float, int], ...]:
    best: dict[int | str, tuple[float, int]] = {}
    for each, of in zip(timed, values, strict=True):
        if (value := of.get(name)) is not None:
            us, count = best.get(value, (each.time_us or 0.0, 0))
            best[value] = us, count + 1
    return tuple((value, *best[value]) for value in sorted(best, key=lambda value: (isinstance(value, str), value)))
