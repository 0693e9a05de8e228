"""Recorded tables as parquet files: add runs, and read them as checked Arrow tables."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from genkern.errors import InputError, OutputError, ResultsError, one_line
from genkern.file_io import read_bytes, shown_path, write_bytes_whole
from genkern.installation import pip_install
from genkern.recorded.columns import BY_NAME, COLUMNS, COMPILED, CONFIG, PROBLEM, REQUIRED, RUN, SCHEMA, Kind
from genkern.recorded.from_journal import RecordedRun, all_rows

SUFFIX = ".parquet"
_METADATA = b"genkern"
_MOST_BYTES = 2**30
_LEVEL = 19
_SEAL, _DIGEST_BYTES = b"genkern sha256 ", 64


def arrow() -> Any:
    """Return the pyarrow package, with pyarrow.parquet. Raises InputError, one line, if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise InputError(f"recorded tables need pyarrow: {pip_install('recorded')}") from None
    return pyarrow


def files_of(path: str) -> list[str]:
    """Return the recorded tables of a path: the file itself, or those in the folder.

    Raises ResultsError if there are none.
    """
    if not Path(path).is_dir():
        return [path]
    if not (found := sorted(str(file) for file in Path(path).glob(f"*{SUFFIX}"))):
        raise ResultsError(f"{shown_path(path)} holds no recorded table (*{SUFFIX}): genkern record writes one")
    return found


def place_of(run: RecordedRun, stem: str, output: str) -> str:
    """Return the file for a run: `output` itself, or in that folder the file that has the run, else a new one."""
    if output.endswith(SUFFIX):
        return output
    known = sorted(Path(output).glob(f"*_{run.name}{SUFFIX}"))
    return str(known[0] if known else Path(output) / f"{stem}_{run.name}{SUFFIX}")


def add(run: RecordedRun, path: str) -> int:
    """Add the run to the file, replacing an earlier version of it; other runs stay. Returns the file's size in bytes.

    Raises ResultsError for a file that is not a recorded table, OutputError if it cannot be written.
    """
    pa = arrow()
    tables, runs = [_table(run)], {run.name: {**run.provenance, "recorded": _now()}}
    if Path(path).exists():
        before, known = read(path)
        others = before.filter(pa.compute.not_equal(before["run"].cast(pa.string()), run.name))
        tables, runs = [others, *tables], {**known, **runs}
    table = pa.concat_tables(tables).unify_dictionaries()
    described = [field.with_metadata({"meaning": BY_NAME[field.name].meaning}) for field in table.schema]
    said = {_METADATA: json.dumps({"schema": SCHEMA, "runs": runs}).encode()}
    data = io.BytesIO()
    # Dictionary encoding is used for columns whose values repeat from row to row, such as those of a binary.
    plain = [column.name for column in CONFIG if column.kind in (Kind.NAME, Kind.NUMBER)]
    words = [column.name for column in COLUMNS if column.kind in (Kind.WORD, Kind.FLAG, Kind.WHOLE)]
    pa.parquet.write_table(
        table.cast(pa.schema(described, said)),
        data,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=[*words, *(column.name for column in COMPILED)],
        column_encoding={
            name: "DELTA_BYTE_ARRAY" if BY_NAME[name].kind is Kind.NAME else "BYTE_STREAM_SPLIT" for name in plain
        },
        row_group_size=2**20,
        write_page_checksum=True,
    )
    if not Path(path).parent.is_dir() and Path(path).parent.exists():
        raise OutputError(f"cannot write {shown_path(path)}: its folder is a file; name another")
    write_bytes_whole(path, sealed := _sealed(data.getvalue()))
    return len(sealed)


def read(path: str) -> tuple[Any, dict[str, Any]]:
    """Return the Arrow table of a file, and the provenance of its runs by name.

    The table has the columns of COLUMNS with their types.

    Columns that the file lacks are null; its other columns are dropped. Raises ResultsError, one line, for damage and
    for a file that is not a recorded table.
    """
    pa, where = arrow(), shown_path(path)
    data = read_bytes(path, ResultsError, _MOST_BYTES)
    if not _is_as_sealed(data):
        raise ResultsError(f"{where}: damaged: its bytes differ from those that genkern record wrote")
    try:
        found = pa.parquet.read_table(pa.BufferReader(data), page_checksum_verification=True)
        said = json.loads((found.schema.metadata or {})[_METADATA])
        schema, runs = int(said["schema"]), dict(said["runs"])
    except KeyError:
        raise ResultsError(f"{where}: a parquet file, but not written by genkern record") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, RecursionError) as error:
        raise ResultsError(f"{where}: not a recorded table, or damaged ({one_line(error)[:120]})") from None
    if schema > SCHEMA:
        raise ResultsError(f"{where} is of a later genkern (schema {schema}, here {SCHEMA}): read it with that version")
    columns = {}
    for name, type_ in _types(pa).items():
        try:
            column = found[name].cast(type_) if name in found.column_names else pa.nulls(len(found), type_)
            # Validates indices into dictionaries, and strings.
            column.validate(full=True)
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise ResultsError(f"{where}, column {name}: {one_line(error)[:120]}") from None
        if name in REQUIRED and column.null_count:
            raise ResultsError(f"{where}, column {name}: missing, or has nulls")
        columns[name] = column
    if unknown := sorted(set(columns["run"].to_pandas().unique()) - set(runs)):
        raise ResultsError(f"{where}: its metadata lacks the provenance of run {str(unknown[0])[:40]!r}")
    return pa.table(columns), {str(name): of for name, of in runs.items()}


def _sealed(data: bytes) -> bytes:
    """Insert the sha256 of a parquet file between its columns and its footer, where no reader looks.

    Page checksums cover neither page headers nor the footer.
    """
    at = _footer_at(data)
    return data[:at] + _SEAL + hashlib.sha256(data).hexdigest().encode() + data[at:]


def _is_as_sealed(data: bytes) -> bool:
    """Return True if the sha256 matches, or if there is none: other programs write none."""
    at = _footer_at(data)
    start = at - len(_SEAL) - _DIGEST_BYTES
    if start < 0 or not data.startswith(_SEAL, start):
        return True
    digest = hashlib.sha256(data[:start])
    digest.update(data[at:])
    return digest.hexdigest().encode() == data[at - _DIGEST_BYTES : at]


def _footer_at(data: bytes) -> int:
    """Return the offset of the footer, whose length precedes the last four bytes."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def _types(pa: Any) -> Mapping[str, Any]:
    words = pa.dictionary(pa.int32(), pa.string())
    of = {
        Kind.WORD: words,
        Kind.NAME: pa.string(),
        Kind.FLAG: pa.bool_(),
        Kind.WHOLE: pa.int32(),
        Kind.NUMBER: pa.float32(),
        Kind.EXACT: pa.float64(),
        Kind.EXACTS: pa.list_(pa.float64()),
    }
    return {column.name: of[column.kind] for column in COLUMNS}


def _table(run: RecordedRun) -> Any:
    pa, types = arrow(), _types(arrow())
    shared = [column.name for column in (*PROBLEM, *RUN)]
    parts = []
    for cells, found in all_rows(run):
        columns = {name: _repeated(pa, cells[name], types[name], found.count) for name in shared}
        columns |= {name: pa.array(values, types[name]) for name, values in found.rows.items()}
        parts.append(pa.table([columns[name] for name in types], names=list(types)))
    return pa.concat_tables(parts).unify_dictionaries()


def _repeated(pa: Any, value: object, type_: Any, count: int) -> Any:
    return pa.array([value] * count, type_)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def names_in(table: Any) -> Sequence[str]:
    """Return the names of the runs in a table."""
    found: Sequence[str] = table["run"].to_pandas().unique().tolist()
    return found
