"""Read recorded spaces: as a pandas frame (`load`), or problem by problem as records (`recorded_problems`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from genkern.errors import InputError, ResultsError
from genkern.file_io import shown_path
from genkern.files.gemm_entry import problem_of_cells
from genkern.gemm.gpus import gpu_for_device
from genkern.gemm.records import Outcome
from genkern.journal.facts import JournalFacts, read_journal
from genkern.journal.run_files import find_runs
from genkern.journal.search_steps import parsed
from genkern.recorded.columns import BY_NAME, COLUMNS, COMPILED, CONFIG, PROBLEM, Column, Kind
from genkern.recorded.from_journal import all_rows, run_of
from genkern.recorded.parquet import SUFFIX, arrow, files_of, read
from genkern.recorded.problem import RecordedProblem
from genkern.timing.libraries import is_call

if TYPE_CHECKING:
    import pandas as pd

Runs = Literal["best", "all"]
_NUMBERS = tuple(column.name for column in (*CONFIG, *COMPILED) if column.kind in (Kind.NUMBER, Kind.EXACT, Kind.WHOLE))
_TIMES = ("screen_us", "final_us", "took_ms", "compile_s")
_OBJECTS = ("outcome", "right", "unit", "copy_of")
_KEYS = (*(column.name for column in PROBLEM), "arch", "device")


def load(path: str, runs: Runs = "best") -> pd.DataFrame:
    """Return the rows of a recorded table, or of all in a folder, with the columns of `genkern.recorded.columns`.

    If several runs have a problem on one device, "best" takes the last run that measured its whole space, or the last
    run if none did; "all" takes all. `attrs["runs"]` has the provenance of each run by its name. Raises ResultsError,
    one line, for a file that is not a recorded table, and InputError if pyarrow is not installed.
    """
    table, known = _read_all(path, runs)
    frame: pd.DataFrame = table.to_pandas()
    for column in COLUMNS:
        if column.kind is Kind.NUMBER:
            frame[column.name] = _digits(frame[column.name].to_numpy(), column)
        elif column.kind is Kind.WHOLE:
            # With nulls, pandas would convert integers to floats.
            frame[column.name] = frame[column.name].astype("Int32")
    frame.attrs["runs"] = known
    return frame


def recorded_problems(path: str, runs: Runs = "best") -> Iterator[RecordedProblem]:
    """Yield the problems of a recorded table, of all in a folder, or of the journals of a results file or folder.

    `runs` as in `load`. Raises ResultsError, one line, if `path` is none of these.
    """
    if path.endswith(SUFFIX) or _has_tables(path):
        yield from _of_table(path, runs)
        return
    for run in find_runs(path):
        yield from problems_of(read_journal(run.journal if run.journal.exists() else run.finished_journal))


def problems_of(journal: JournalFacts) -> Iterator[RecordedProblem]:
    """Yield the problems of a journal. Raises ResultsError if nothing was measured, and for inconsistent facts."""
    for cells, found in all_rows(run_of(journal)):
        numbers = {name: np.array(found.rows[name], dtype=np.float64) for name in _NUMBERS}
        yield _problem(cells, found.rows, numbers)


def provenance_of(path: str) -> dict[str, Any]:
    """Return the provenance of each run that `recorded_problems` may yield problems of, by the run's name."""
    if path.endswith(SUFFIX) or _has_tables(path):
        known = {name: of for file in files_of(path) for name, of in read(file)[1].items()}
        return {name: of if isinstance(of, dict) else {} for name, of in known.items()}
    found = (run.journal if run.journal.exists() else run.finished_journal for run in find_runs(path))
    return {run.name: run.provenance for run in map(run_of, map(read_journal, found))}


def _has_tables(path: str) -> bool:
    try:
        return files_of(path) != [path]
    except ResultsError:
        return False


def _of_table(path: str, runs: Runs) -> Iterator[RecordedProblem]:
    table, _ = _read_all(path, runs)
    frame = table.select([*_KEYS, "run", "whole"]).to_pandas()
    columns = {name: _digits(table[name].to_numpy(), BY_NAME[name]) for name in _NUMBERS}
    _check(columns, path)
    names = table["config"].dictionary_encode().combine_chunks()
    words, places = names.dictionary.to_pylist(), names.indices.to_numpy()
    outcomes = {column: table[column].to_pandas().astype(object).to_numpy() for column in _OBJECTS}
    for rows in frame.groupby([*_KEYS, "run"], sort=False, observed=True, dropna=False).indices.values():
        first = frame.iloc[rows[0]]
        of = {
            "config": [words[place] for place in places[rows].tolist()],
            **{column: values[rows].tolist() for column, values in outcomes.items()},
        }
        try:
            found = _problem(first, of, {name: values[rows] for name, values in columns.items()})
        except (InputError, ValueError) as error:
            raise ResultsError(f"{shown_path(path)}, {first['M']}x{first['N']}x{first['K']}: {error}") from None
        yield found


def _problem(cells: Mapping[str, Any], rows: Mapping[str, Any], numbers: Mapping[str, Any]) -> RecordedProblem:
    problem = problem_of_cells({column.name: str(cells[column.name]) for column in PROBLEM})
    is_config = np.array([not is_call(name) for name in rows["config"]])
    names = _ours(rows["config"], is_config)
    configs = tuple(map(parsed, names))
    right, copies = _ours(rows["right"], is_config), _ours(rows["copy_of"], is_config)
    finals_us = zip(rows["config"], numbers["final_us"].tolist(), is_config, strict=True)
    return RecordedProblem(
        problem=problem,
        gpu=gpu_for_device(str(cells["device"]), str(cells["arch"])),
        run=str(cells["run"]),
        whole=cells["whole"] is True or bool(cells["whole"] == True),  # noqa: E712  a NumPy bool or null
        names=tuple(names),
        configs=configs,
        outcomes=tuple(map(Outcome, _ours(rows["outcome"], is_config))),
        keys=tuple(key if isinstance(key, str) else None for key in _ours(rows["unit"], is_config)),
        columns={name: values[is_config] for name, values in numbers.items()},
        copies={config: parsed(name) for config, name in zip(configs, copies, strict=True) if isinstance(name, str)},
        wrong=frozenset(config for config, each in zip(configs, right, strict=True) if each is False),
        library_us={name: us for name, us, ours in finals_us if not ours and us == us},
    )


def _ours(values: Sequence[Any], is_config: Any) -> list[Any]:
    return [value for value, ours in zip(values, is_config, strict=True) if ours]


def _read_all(path: str, runs: Runs) -> tuple[Any, dict[str, Any]]:
    """Return the rows of all tables of the path as one table, and the provenance of the runs in it."""
    pa = arrow()
    tables: list[Any] = []
    known: dict[str, Any] = {}
    for file in files_of(path):
        table, said = read(file)
        tables.append(table)
        known |= said
    table = pa.concat_tables(tables).unify_dictionaries()
    if runs == "best" and len(known) > 1:
        table = table.filter(pa.array(_of_best(table, known)))
    left = set(table["run"].to_pandas().unique())
    return table, {name: of for name, of in known.items() if name in left}


def _of_best(table: Any, known: Mapping[str, Any]) -> Any:
    """Return a mask of the rows of the run that counts for their problem on their device."""
    frame = table.select([*_KEYS, "run", "whole"]).to_pandas()
    dates = {name: str(of.get("date", "")) if isinstance(of, dict) else "" for name, of in known.items()}
    problem = frame.groupby(list(_KEYS), sort=False, observed=True, dropna=False).ngroup()
    each = frame.assign(problem=problem).drop_duplicates(["problem", "run"])
    merit = zip(each["problem"], each["whole"] == True, each["run"].map(str).map(dates), each["run"], strict=True)  # noqa: E712
    best: dict[int, tuple[bool, str, str]] = {}
    for place, *rank in merit:
        best[place] = max(best.get(place, (False, "", "")), (bool(rank[0]), str(rank[1]), str(rank[2])))
    return (frame["run"].astype(str) == problem.map({place: rank[2] for place, rank in best.items()})).to_numpy()


def _digits(values: Any, column: Column) -> Any:
    """Return 32-bit numbers as 64-bit numbers rounded to the column's digits, which restores the journal's values."""
    values = values.astype(np.float64)
    if column.decimals is not None:
        return np.rint(values * 10**column.decimals) / 10**column.decimals
    if column.digits is None:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        places = column.digits - 1 - np.floor(np.log10(np.abs(values)))
    places = np.where(np.isfinite(places), places, 0)
    # Powers of ten are exact as factors and divisors, but not as fractions.
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    return np.rint(values * up / down) / up * down


def _check(columns: Mapping[str, Any], path: str) -> None:
    for name in _TIMES:
        values = columns[name]
        if np.any((values < 0) | np.isinf(values)):
            raise ResultsError(f"{shown_path(path)}, column {name}: a value is not a time: the table is damaged")
