"""Reads size lists as GemmProblems: tune_gemm's YAML, AITER's CSV, and the results files of both."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from genkern.errors import InputError
from genkern.file_io import read_text, shown_path
from genkern.files.aiter_columns import BY_COLUMN
from genkern.files.file_kind import kind_of
from genkern.files.format_in_names import BATCHED, StatedFormat, format_in_file_name, known_op, word_in_name
from genkern.files.gemm_entry import (
    GemmDefaults,
    SizeItem,
    check_defaults,
    names_types,
    of_format,
    resolve,
    widths_of,
)
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import op_names

__all__ = ["GemmDefaults", "SizeList", "parse_sizes", "read_sizes"]


@dataclass(frozen=True)
class SizeList:
    """Unique problems in file order, and one line for everything that was not taken exactly as written."""

    problems: tuple[GemmProblem, ...]
    notes: tuple[str, ...]


def read_sizes(path: str, defaults: GemmDefaults, arch: str | None) -> SizeList:
    """Read the sizes in `path`: CSV if the name ends in .csv, otherwise YAML.

    YAML is tune_gemm's list of `{'M': .., 'N': .., 'K': .., 'rowMajorA': 'T', 'rowMajorB': 'N'}` ('T' is row-major),
    with op, dtype_a, dtype_b, dtype_c, bias and activation as optional keys. CSV has AITER's columns, which have no
    activation. A results file of either kind serves as a size list too. Values that an entry lacks come from
    `defaults`, then from the file's name if it names a format (AITER's tables are identified so:
    a8w8_untuned_gemm.csv), then from genkern: bf16 for a16w16; for a8w8 the fp8 of `arch` with bf16 output. Assumed
    types are reported in a note; tune_gemm itself assumes fp16. Without an `arch` types stay as they are written.

    A list of a format that genkern does not have (w4a8, a16w16 with shuffled weights) is refused rather than tuned as
    another format, whether its name, a column or a kernel's name states the format. An `op` in the entry or in
    `defaults` overrides the file's and the kernel's name. A list whose name has a word that identifies no single format
    (awq, mxfp4) is also refused, unless each entry or `defaults` gives the op or a type.

    Raises InputError (one line: file, line, what, what to try) if anything is wrong.
    """
    try:
        check_defaults(defaults, arch)
    except InputError as exc:
        raise InputError(f"command line: {exc}") from None
    return parse_sizes(read_text(path), path, defaults, arch)


def parse_sizes(text: str, path: str, defaults: GemmDefaults, arch: str | None) -> SizeList:
    """Parse the text of a size list; see `read_sizes`."""
    where = shown_path(path)
    name = os.path.basename(path)
    by_name, word = format_in_file_name(name), word_in_name(name)
    found: list[GemmProblem] = []
    notes: Counter[str] = Counter()
    file_notes: list[str] = []
    for item in kind_of(path).size_items(text, where):
        try:
            values, told = _with_format(item, by_name, word, defaults)
            resolved = resolve(values, defaults, arch)
        except InputError as exc:
            raise InputError(f"{where}, line {item.line}: {exc}") from None
        found.append(resolved.problem)
        if not names_types(item.values, defaults):
            notes[f"{item.untyped}: {_types(resolved.problem)} are taken{item.untyped_advice}"] += 1
        notes.update(told + resolved.notes)
        file_notes += item.file_notes
    if not found:
        raise InputError(f"{where}: holds no sizes; add one, such as M = 16, N = 4096, K = 4096")
    counted = [f"{note} ({count} of {len(found)} sizes)" for note, count in notes.items()]
    return SizeList(tuple(dict.fromkeys(found)), tuple(file_notes + counted + _duplicates(found)))


def _with_format(
    item: SizeItem, by_name: StatedFormat, word: str, defaults: GemmDefaults
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the entry's values with the op that other parts of the file state, and its notes. Raises InputError."""
    values, notes = dict(item.values), item.notes
    asked = values.get("op") or defaults.op
    for said, where in ((item.said, item.said_where), (by_name, "the name of the file")):
        if not said.special:
            continue
        both = said | item.said | by_name
        if asked and where != BY_COLUMN:
            # A column that states batches does not state the types.
            widths = asked.removeprefix(BATCHED) if both.batched and isinstance(asked, str) else widths_of(values)
            named = both.op_name(widths)
            # "a4w4" in a name means a4w4_blockscale, too.
            if named != asked and not str(asked).startswith(f"{named}_"):
                notes += (f"{where} says {named}, but {asked} was asked for",)
        else:
            op = known_op(both, widths_of(values), where)
            untyped = not values.keys() & {"dtype_a", "dtype_b"}
            values = {**of_format(op, values), "op": op, **(item.meant.get(op, {}) if untyped else {})}
        return values, notes
    if not asked and not names_types(values, defaults):
        if by_name.widths:
            values["op"] = by_name.widths
        elif word:
            raise InputError(
                f"the name of the file says {word}, and nothing says which format that is (genkern has "
                f"{', '.join(op_names())}); name its op in the entry, or by --op"
            )
    if not values.keys() & {"dtype_a", "dtype_b"} and "op" not in item.values:
        values |= item.meant.get(str(values.get("op") or asked), {})
    return values, notes


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
