"""Read the rocpd database (sqlite) that rocprofv3 writes by default since ROCm 7.0, through its `kernels` view.

The tables carry a unique suffix; the views without it are the stable interface (rocprofiler-sdk, rocpd schema 3.0).
Reading needs nothing of ROCm.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from urllib.parse import quote

from genkern.errors import ProfilerError
from genkern.gemm.records import Dispatch
from genkern.profiling.rocm.kernel_trace import KernelTrace, clean_symbol, times_are_valid

_NEEDED = ("name", "start", "end")
_OPTIONAL = ("grid_x", "workgroup_x", "dispatch_id")  # grid_x counts work-items, as Grid_Size_X does in the CSV


def read_rocpd(path: str | os.PathLike[str]) -> KernelTrace:
    """Return the kernel dispatches of a rocpd file, which is opened read-only.

    Raises ProfilerError if the file is missing, damaged, or has no `kernels` view with name, start and end.
    """
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise ProfilerError(f"{path} does not exist: the profiler wrote no database; look at its standard error")
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            present = {str(row[1]).lower() for row in connection.execute("PRAGMA table_info(kernels)")}
            if not present.issuperset(_NEEDED):
                missing = ", ".join(name for name in _NEEDED if name not in present)
                raise ProfilerError(
                    f"{path} has no `kernels` view with {missing}: it is not a rocpd trace of kernels; "
                    "run rocprofv3 with --kernel-trace, or with --output-format csv"
                )
            columns = [f'"{name}"' if name in present else "NULL" for name in (*_NEEDED, *_OPTIONAL)]
            rows = connection.execute(f"SELECT {', '.join(columns)} FROM kernels").fetchall()
    except sqlite3.Error as error:
        raise ProfilerError(f"{path} cannot be read as a rocpd database ({error}): measure again") from error
    return _trace(rows)


def _trace(rows: list[tuple[object, ...]]) -> KernelTrace:
    dispatches = []
    for name, start_ns, end_ns, *optional in rows:
        if not (isinstance(name, str) and isinstance(start_ns, int) and isinstance(end_ns, int)):
            continue
        if times_are_valid(start_ns, end_ns):
            values = (value if isinstance(value, int) else None for value in optional)
            dispatches.append(Dispatch(clean_symbol(name), start_ns, end_ns, *values))
    dispatches.sort(key=lambda dispatch: (dispatch.start_ns, dispatch.end_ns))
    return KernelTrace(tuple(dispatches), invalid_rows=len(rows) - len(dispatches))
