"""`collect`: from results files, and what lies beside them, to the record of a report."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import genkern
from genkern.errors import InputError, ResultsError
from genkern.file_io import shown_path
from genkern.files.config_entry import parse_config
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import read_journal
from genkern.journal.run_files import RunFiles
from genkern.recorded.load import problems_of
from genkern.result.result import Result
from genkern.results_report.candidates import (
    MOST_CANDIDATES,
    CandidateSet,
    needs_of,
    of_problems,
    read_candidates,
    shares,
    shown,
)
from genkern.results_report.changes import changes_of
from genkern.results_report.cost import run_of
from genkern.results_report.record import PREDICTED, UNKNOWN, Candidates, Record, Run, Size
from genkern.results_report.sizes import FileRow, device_text, gpu_or_none, groups_of, roofs_of, sizes_of
from genkern.results_report.sources import Texts, sources_of

_SUFFIXES = (".yaml", ".yml", ".json", ".csv")
_IN_MEMORY = "results in memory"
# What the page names at most when it lists sizes in a note.
_NAMED = 5

Results = str | os.PathLike[str] | Sequence[Result]


def collect(
    results: Results,
    old: Results | None = None,
    *,
    candidates: Sequence[str] = (),
    title: str = "",
    most_candidates: int = MOST_CANDIDATES,
    sources: bool = True,
) -> Record:
    """Return the record of a report.

    Args:
        results: a results file, a folder of results files, or rows that `genkern.files` has read.
        old: older results to compare with, in the same forms.
        candidates: files with candidates besides the journals that lie beside results files: a CSV file of
            --profile_file, recorded tables, or folders of these. The first file that has a size is used.
        title: a title instead of the devices and the number of sizes.
        most_candidates: candidates to show one by one, in all; charts of tiles and parameters always use all.
        sources: generate the programs of winners and runners-up, which takes some 10 ms for each.

    Raises:
        ResultsError: a file cannot be read, or has no result.
    """
    files, rows, passed_over = _read(results)
    if not rows:
        raise ResultsError(f"{', '.join(map(shown_path, files))}: no results to report; name a results file")
    groups, group_of = groups_of(rows)
    sizes = sizes_of(rows, group_of)
    notes = list(_row_notes(rows, sizes, passed_over))
    problems = frozenset(each.row.problem for each in rows)
    sets, runs, of_journals = _of_journals(files, problems)
    notes += of_journals
    for path in candidates:
        for found in read_candidates(path, problems):
            sets.append(found)
    sizes, columns = _with_candidates(rows, sizes, sets, most_candidates)
    notes += _candidate_notes(sizes, columns)
    texts = Texts()
    if sources:
        sizes = list(_with_sources(rows, sizes, texts))
        notes += _source_notes(sizes)
    old_files: list[str] = []
    only_old: list[str] = []
    if old is not None:
        old_files, old_rows, _ = _read(old)
        changes, gone = changes_of([each.row for each in rows], [each.row for each in old_rows])
        sizes = [replace(size, change=change) for size, change in zip(sizes, changes, strict=True)]
        only_old = [problem.size for problem in gone]
        notes += _old_notes(sizes, only_old)
    return Record(
        title=title or _title(rows),
        genkern=genkern.__version__,
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        files=tuple(map(shown_path, files)),
        old_files=tuple(map(shown_path, old_files)),
        groups=tuple(groups),
        roofs=tuple(roofs_of(rows)),
        sizes=tuple(sizes),
        candidates=tuple(columns),
        texts=texts.by_key,
        runs=tuple(runs),
        notes=tuple(notes),
        only_old=tuple(only_old),
    )


def _read(results: Results) -> tuple[list[str], list[FileRow], list[str]]:
    """Return the files, their rows, and the files of a folder that are no results files."""
    if not isinstance(results, (str, os.PathLike)):
        return [_IN_MEMORY], [FileRow(row, 0) for row in results], []
    path = os.fspath(results)
    if not Path(path).is_dir():
        return [path], [FileRow(row, 0) for row in read_results(path)], []
    files: list[str] = []
    rows: list[FileRow] = []
    passed_over = []
    for file in sorted(Path(path).iterdir()):
        if file.suffix.lower() not in _SUFFIXES or not file.is_file():
            continue
        try:
            found = read_results(str(file))
        except ResultsError:
            passed_over.append(file.name)
            continue
        found = [row for row in found if row.duration_us is not None or row.config is not None]
        rows += [FileRow(row, len(files)) for row in found]
        files.append(str(file))
    if not files:
        raise ResultsError(f"{shown_path(path)} holds no results file; name a results file, or a folder of them")
    return files, rows, passed_over


def _title(rows: Sequence[FileRow]) -> str:
    devices = list(dict.fromkeys(device_text(each.row) for each in rows))
    few = ", ".join(devices[:3]) + (f" and {len(devices) - 3} more" if len(devices) > 3 else "")
    how = ", predicted for" if all(each.row.predicted for each in rows) else " on"
    return f"{len(rows)} GEMM size{'s' * (len(rows) != 1)}{how} {few}"


def _of_journals(
    files: Sequence[str], problems: frozenset[GemmProblem]
) -> tuple[list[CandidateSet], list[Run], list[str]]:
    """Return the candidates and the costs that the journals beside results files have, and notes about journals."""
    sets: list[CandidateSet] = []
    runs: list[Run] = []
    notes: list[str] = []
    without = []
    for file in files:
        run = RunFiles(file)
        path = next((path for path in (run.journal, run.finished_journal) if path.exists()), None)
        if path is None:
            without.append(file)
            continue
        try:
            journal = read_journal(path)
            if (cost := run_of(journal, shown_path(file))) is not None:
                runs.append(cost)
            if journal.header.get("time_source") == PREDICTED:
                continue
            sets += of_problems(problems_of(journal), shown_path(str(path)), problems)
        except ResultsError as error:
            notes.append(f"No candidates from the journal: {error}.")
    if without:
        if len(files) == len(without):
            notes.append("There is no journal beside the results, so the report does not know what the runs cost.")
        else:
            notes.append(
                f"{len(without)} of {len(files)} results files have no journal: what their runs cost is unknown."
            )
    elif runs and all(run.wall_s is None for run in runs):
        notes.append("The journal has no times at which sizes ended, so there is no timeline; genkern 0.3 writes them.")
    return sets, runs, notes


def _with_candidates(
    rows: Sequence[FileRow], sizes: Sequence[Size], sets: Sequence[CandidateSet], most: int
) -> tuple[list[Size], list[Candidates]]:
    """Return the sizes with indices of their candidates and with the needs of their kernels, and the candidates."""
    by_problem: dict[GemmProblem, list[CandidateSet]] = {}
    for candidate_set in sets:
        by_problem.setdefault(candidate_set.problem, []).append(candidate_set)
    chosen = [_set_of(each.row, by_problem.get(each.row.problem, ())) for each in rows]
    unique = list({id(each): each for each in chosen if each is not None}.values())
    place = {id(each): number for number, each in enumerate(unique)}
    counts = [sum(candidate.time_us is not None for candidate in each.candidates) for each in unique]
    columns = [shown(each, share) for each, share in zip(unique, shares(counts, most), strict=True)]
    found = []
    for each, size, of in zip(rows, sizes, chosen, strict=True):
        if of is None:
            found.append(size)
            continue
        gpu = gpu_or_none(each.row)
        needs, runner_up = (needs_of(of.named(name), gpu) for name in (size.config, size.runner_up))
        found.append(replace(size, candidates=place[id(of)], needs=needs, runner_up_needs=runner_up))
    return found, columns


def _set_of(row: Result, sets: Sequence[CandidateSet]) -> CandidateSet | None:
    """Return the candidates of a row: of its GPU, or from a file that names none."""
    gpu = gpu_or_none(row)
    return next((each for each in sets if not each.gpu or (gpu is not None and each.gpu == gpu.name)), None)


def _with_sources(rows: Sequence[FileRow], sizes: Sequence[Size], texts: Texts) -> Iterator[Size]:
    for each, size in zip(rows, sizes, strict=True):
        row, gpu = each.row, gpu_or_none(each.row)
        if row.config is None or not row.arch or gpu is None or not row.is_genkerns:
            yield size
            continue
        configs = [row.config, *_parsed(row.runner_up)]
        found = sources_of(row.problem, configs, row.arch, gpu, row.source, texts)
        yield replace(size, source=found[0], runner_up_source=found[1] if len(found) > 1 else None)


def _parsed(name: str) -> list[Config]:
    try:
        return [parse_config(name)] if name else []
    except InputError:
        return []


def _row_notes(rows: Sequence[FileRow], sizes: Sequence[Size], passed_over: Sequence[str]) -> Iterator[str]:
    count = len(sizes)
    if passed_over:
        yield f"Not read, since they are not results files: {_few(passed_over)}."
    predicted = [size for size in sizes if size.timed == PREDICTED]
    if predicted:
        yield f"{_of(len(predicted), count)} predicted, not measured, so there is no speed over the library for them."
    if unknown := [size for size in sizes if size.timed == UNKNOWN and size.us is not None]:
        yield f"{_of(len(unknown), count)} of unknown source: their file does not say how they were measured."
    if no_time := [size for size in sizes if size.us is None]:
        yield f"{len(no_time)} of {count} sizes have no time: {_few(size.label for size in no_time)}."
    measured = [size for size in sizes if size.timed != PREDICTED and size.us is not None]
    if without := [size for size in measured if size.library_us is None]:
        yield f"{_all(len(without), count)} no time of a library, so there is no speed over the library for them."
    if noisy := [size for size in measured if size.low_us is None]:
        yield f"{len(noisy)} of {count} sizes have no interval of their time."
    if homeless := [each for each in rows if gpu_or_none(each.row) is None]:
        yield f"{len(homeless)} of {count} sizes name no GPU that genkern knows, so they are not on the roofline."


def _candidate_notes(sizes: Sequence[Size], columns: Sequence[Candidates]) -> Iterator[str]:
    if without := [size for size in sizes if size.candidates is None]:
        yield (
            f"{_all(len(without), len(sizes))} no list of candidates (a journal, --candidates), "
            "so their tile landscape, outcomes and resources are not shown."
        )
    total, here = sum(each.timed for each in columns), sum(len(each.config) for each in columns)
    if here < total:
        yield (
            f"Of {total:,} candidates with a time, the {here:,} fastest are shown one by one, the same number for each "
            "size; tiles, parameters and outcomes count all."
        )


def _source_notes(sizes: Sequence[Size]) -> Iterator[str]:
    if changed := [size for size in sizes if size.source is not None and size.source.as_measured is False]:
        yield f"{len(changed)} of {len(sizes)} winners are generated differently by this genkern; the page marks them."
    if missing := [size for size in sizes if size.source is None and size.config]:
        yield f"{len(missing)} of {len(sizes)} winners have no source that this genkern can generate."


def _old_notes(sizes: Sequence[Size], only_old: Sequence[str]) -> Iterator[str]:
    if new := [size for size in sizes if size.change is None]:
        yield f"{len(new)} of {len(sizes)} sizes are not in the older results."
    if only_old:
        yield f"{len(only_old)} sizes are only in the older results: {_few(only_old)}."
    changes = [size.change for size in sizes if size.change is not None]
    if whys := sorted({change.why for change in changes if change.why}):
        number = sum(bool(change.why) for change in changes)
        yield f"{number} sizes are not compared: {'; '.join(whys)}."
    devices = {(size.change.old_device, size.device) for size in sizes if size.change is not None}
    if other := sorted(f"{before} before, {now} now" for before, now in devices if before != now):
        yield f"The older results are of another device: {'; '.join(other)}."


def _of(number: int, count: int) -> str:
    if count == 1:
        return "The time is"
    return f"All {count} times are" if number == count else f"{number} of {count} times are"


def _all(number: int, count: int) -> str:
    if count == 1:
        return "The size has"
    return f"All {count} sizes have" if number == count else f"{number} of {count} sizes have"


def _few(names: Iterable[str]) -> str:
    each = list(names)
    return ", ".join(each[:_NAMED]) + (f" and {len(each) - _NAMED} more" if len(each) > _NAMED else "")
