"""The columns of recorded tables: how files store them, what they mean, and their types after loading.

A row is a config that was measured or refused, or a library call, of one problem in one run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from genkern.gemm.records import Resources

# Version of the file format. A reader refuses later versions.
SCHEMA = 1


class Kind(Enum):
    """Type of a column. Every column may contain nulls, except the columns in `REQUIRED`."""

    WORD = "word"
    NAME = "name"
    FLAG = "flag"
    WHOLE = "whole number"
    NUMBER = "number"
    EXACT = "number, 64 bits"
    EXACTS = "list of numbers, 64 bits"


@dataclass(frozen=True)
class Column:
    """One column.

    name: name in the file
    kind: its type; a NUMBER has 32 bits in files
    meaning: description, stored in the file
    digits, decimals: number of significant digits, or of decimals, to which a NUMBER is rounded after loading, which
        restores the journal's value
    """

    name: str
    kind: Kind
    meaning: str
    digits: int | None = None
    decimals: int | None = None


# Keys of problems in genkern's YAML (genkern.ops.fields.problem_cells).
PROBLEM = (
    Column("M", Kind.WHOLE, "rows of A and C"),
    Column("N", Kind.WHOLE, "columns of B and C"),
    Column("K", Kind.WHOLE, "columns of A, rows of B"),
    Column("op", Kind.WORD, "the format"),
    Column("dtype_a", Kind.WORD, "type of A"),
    Column("dtype_b", Kind.WORD, "type of B"),
    Column("dtype_c", Kind.WORD, "type of C"),
    Column("rowMajorA", Kind.WORD, "T: A is row-major; N: column-major"),
    Column("rowMajorB", Kind.WORD, "the same of B"),
    Column("bias", Kind.FLAG, "a vector of N is added"),
    Column("activation", Kind.WORD, "applied to the sums"),
    Column("own", Kind.WORD, "the format's own fields, name=value"),
)
RUN = (
    Column(
        "run", Kind.WORD, "name of the run in the file's metadata (`genkern`, JSON), which has the run's provenance"
    ),
    Column("arch", Kind.WORD, "the GPU's architecture"),
    Column("device", Kind.WORD, "the GPU's name, as its driver reports it"),
    Column("space", Kind.WHOLE, "number of configs after pruning"),
    Column("whole", Kind.FLAG, "true if each of these configs has an outcome"),
)
CONFIG = (
    Column("config", Kind.NAME, "the config, or the library's call"),
    Column("unit", Kind.WORD, "content address of the config's binary"),
    Column("outcome", Kind.WORD, "how the measurement ended, or why there was none"),
    Column("copy_of", Kind.NAME, "for an identical config: the config that it equals"),
    Column("screen_us", Kind.NUMBER, "microseconds per call, first measurement", digits=5),
    Column("samples_us", Kind.EXACTS, "samples of the first measurement, if there was more than one"),
    Column("took_ms", Kind.NUMBER, "milliseconds that the measurement took", decimals=2),
    Column("final_us", Kind.EXACT, "median of the finals, in microseconds"),
    Column("final_samples_us", Kind.EXACTS, "samples of the finals, in microseconds"),
    Column("final_outcome", Kind.WORD, "how the finals ended for this config"),
    Column("usual_mhz", Kind.EXACT, "usual clock during the finals, in MHz"),
    Column("watts", Kind.EXACT, "power at the end of the finals, in watts"),
    Column("right", Kind.FLAG, "true if the output was right; null if it was not checked"),
)
# Needs of the main binary.
_NEEDS = (
    Column("registers", Kind.WHOLE, "registers per thread"),
    Column("accumulator_registers", Kind.WHOLE, "accumulation registers among these (AMD)"),
    Column("scalar_registers", Kind.WHOLE, "scalar registers (AMD)"),
    Column("spills", Kind.WHOLE, "spilled registers"),
    Column("shared_bytes", Kind.WHOLE, "shared memory per block, in bytes"),
    Column("scratch_bytes", Kind.WHOLE, "local memory per thread, in bytes"),
    Column("loop_instructions", Kind.WHOLE, "instructions in the main loop"),
    Column("loop_matrix", Kind.WHOLE, "matrix instructions in it"),
    Column("loop_fma", Kind.WHOLE, "fused multiply-adds in it"),
    Column("loop_shared", Kind.WHOLE, "accesses to shared memory in it"),
    Column("loop_loads", Kind.WHOLE, "loads and copies from global memory in it"),
    Column("loop_syncs", Kind.WHOLE, "barriers and waits in it"),
)
_KNOWN = {field.name for field in fields(Resources)}
# Columns that this version reads from binaries.
NEEDS = tuple(column for column in _NEEDS if column.name in _KNOWN)
COMPILED = (Column("compile_s", Kind.NUMBER, "seconds that the compile took", decimals=3), *NEEDS)
COLUMNS = (*PROBLEM, *RUN, *CONFIG, *COMPILED)
BY_NAME = {column.name: column for column in COLUMNS}
# Columns without nulls.
REQUIRED = frozenset(column.name for column in (*PROBLEM, *RUN[:3])) | {"config", "outcome"}
