"""Size lists: tune_gemm's YAML, AITER's CSV, and the results files of both, as GemmProblems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from genkern.errors import InputError
from genkern.files import read_text, shown_path
from genkern.formats.aiter_columns import UNTYPED, check_columns, entry_values
from genkern.formats.flat_csv import read_table
from genkern.formats.flat_yaml import read_entries
from genkern.formats.gemm_entry import SIZE_KEYS, GemmDefaults, check_defaults, refuse_unknown, resolve
from genkern.formats.tuned_row import RESULT_KEYS
from genkern.gemm.problem import GemmProblem

__all__ = ["GemmDefaults", "SizeList", "read_sizes"]

_KNOWN_KEYS = tuple(dict.fromkeys(SIZE_KEYS + RESULT_KEYS))


@dataclass(frozen=True)
class SizeList:
    """Unique problems in file order, and one line for everything that was not taken exactly as written."""

    problems: tuple[GemmProblem, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Item:
    line: int
    values: Mapping[str, object]
    notes: tuple[str, ...] = ()
    untyped: bool = False


def read_sizes(path: str, defaults: GemmDefaults, arch: str) -> SizeList:
    """Read the sizes of `path`: CSV when the name ends in .csv, otherwise YAML.

    YAML is tune_gemm's list of `{'M': .., 'N': .., 'K': .., 'rowMajorA': 'T', 'rowMajorB': 'N'}` ('T' is
    row-major), with op, dtype_a, dtype_b, dtype_c, bias and activation as optional keys. CSV has AITER's
    columns, which say nothing of an activation. A results file of either kind serves as a size list too.
    What an entry does not say comes from `defaults`, then from genkern: bf16 for a16w16, the fp8 of `arch`
    with bf16 output for a8w8.

    Raises InputError (one line: file, line, what, what to try) for everything that is wrong.
    """
    where = shown_path(path)
    try:
        check_defaults(defaults, arch)
    except InputError as exc:
        raise InputError(f"command line: {exc}") from None
    text = read_text(path)
    read = _csv_items if path.lower().endswith(".csv") else _yaml_items
    found: list[GemmProblem] = []
    notes: Counter[str] = Counter()
    for item in read(text, where):
        try:
            resolved = resolve(item.values, defaults, arch)
        except InputError as exc:
            raise InputError(f"{where}, line {item.line}: {exc}") from None
        found.append(resolved.problem)
        untyped = (f"{UNTYPED}: {_types(resolved.problem)} are taken",) if item.untyped else ()
        notes.update(untyped + item.notes + resolved.notes)
    if not found:
        raise InputError(f"{where}: holds no sizes; add one, such as M = 16, N = 4096, K = 4096")
    told = [f"{note} ({count} of {len(found)} sizes)" for note, count in notes.items()]
    return SizeList(tuple(dict.fromkeys(found)), tuple(told + _duplicates(found)))


def _yaml_items(text: str, where: str) -> Iterator[_Item]:
    for entry in read_entries(text, where, InputError):
        try:
            refuse_unknown(entry.values.keys(), _KNOWN_KEYS, "key")
        except InputError as exc:
            raise InputError(f"{where}, line {entry.line}: {exc}") from None
        values = {key: entry.values[key] for key in SIZE_KEYS if key in entry.values}
        if "family" in entry.values:
            # A result of genkern's, which names its activation unless there is none.
            values.setdefault("activation", "none")
        yield _Item(entry.line, values)


def _csv_items(text: str, where: str) -> Iterator[_Item]:
    table = read_table(text, where, InputError)
    try:
        check_columns(table.columns)
    except InputError as exc:
        raise InputError(f"{where}: {exc}") from None
    untyped = not {"dtype", "q_dtype_w"} & set(table.columns)
    for row in table.rows:
        try:
            values, notes = entry_values(row.values)
        except InputError as exc:
            raise InputError(f"{where}, line {row.line}: {exc}") from None
        yield _Item(row.line, values, notes, untyped)


def _types(problem: GemmProblem) -> str:
    return f"{problem.op} with A in {problem.dtype_a}, B in {problem.dtype_b} and C in {problem.dtype_c}"


def _duplicates(found: Sequence[GemmProblem]) -> list[str]:
    repeated = {problem: count - 1 for problem, count in Counter(found).items() if count > 1}
    if not repeated:
        return []
    count = sum(repeated.values())
    sizes = "1 duplicate size is" if count == 1 else f"{count} duplicate sizes are"
    return [f"{sizes} tuned once: {_some(problem.size for problem in repeated)}"]


def _some(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
