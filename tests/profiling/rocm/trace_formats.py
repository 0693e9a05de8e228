"""Kernel traces in the format of each profiler version, for tests and for the fake profilers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

_SIZES = "Workgroup_Size_X Workgroup_Size_Y Workgroup_Size_Z Grid_Size_X Grid_Size_Y Grid_Size_Z"
_TIMES = "Correlation_Id Start_Timestamp End_Timestamp"
_SEGMENTS = "Private_Segment_Size Group_Segment_Size"
_REGISTERS = "LDS_Block_Size Scratch_Size VGPR_Count Accum_VGPR_Count SGPR_Count"
_V1 = "Index KernelName gpu-id queue-id queue-index pid tid grd wgr lds scr"
_V1_REGISTERS = "arch_vgpr accum_vgpr sgpr wave_size sig obj"
_V1_TIMES = "DispatchNs BeginNs EndNs CompleteNs"

ROCPROFV3 = {
    "6.2": f"Kind Agent_Id Queue_Id Kernel_Id Kernel_Name {_TIMES} {_SEGMENTS} {_SIZES}",
    "6.4": f"Kind Agent_Id Queue_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name {_TIMES} {_SEGMENTS} {_SIZES}",
    "development": "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name "
    f"{_TIMES} {_SEGMENTS} {_SIZES}",
    "7.0": "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name "
    f"{_TIMES} {_REGISTERS} {_SIZES}",
    "rocpd convert": "Guid Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name "
    f"{_TIMES} Lds_Block_Size Scratch_Size Vgpr_Count Accum_Vgpr_Count Sgpr_Count {_SIZES}",
    "rocpd convert with graphs": "Guid Kind Agent_Id Queue_Id Stream_Id Graph_Exec_Id Graph_Node_Id Thread_Id "
    f"Dispatch_Id Kernel_Id Kernel_Name {_TIMES} Duration Lds_Block_Size Scratch_Size Vgpr_Count "
    f"Accum_Vgpr_Count Sgpr_Count {_SIZES}",
}
ROCPROF = {
    "rocprof --stats": f"{_V1} {_V1_REGISTERS} {_V1_TIMES} DurationNs",
    "rocprof --stats before ROCm 5": f"{_V1} vgpr sgpr fbar sig obj {_V1_TIMES} DurationNs",
    "rocprof -i": f"{_V1} {_V1_REGISTERS} {_V1_TIMES}",
}
HEADERS = {**ROCPROFV3, **ROCPROF}
COLUMNS = {"6.2": 16, "6.4": 18, "development": 19, "7.0": 22, "rocprof --stats": 22}


def csv_text(version: str, rows: list[tuple[str, int, int]], dispatch_ids: Sequence[int] | None = None) -> str:
    """The CSV of `version` for rows of (name, start_ns, end_ns); workgroups of 256, grids of 1024 x 256.

    Dispatch ids, in the versions that have them, count the rows from 1 unless they are given.
    """
    names = HEADERS[version].split()
    bare_header = version == "rocprof -i"
    lines = [",".join(name if bare_header else f'"{name}"' for name in names)]
    for index, (name, start_ns, end_ns) in enumerate(rows):
        values: dict[str, object] = {
            "kind": "KERNEL_DISPATCH",
            "guid": "0000-11",
            "agent_id": 1 if version in ("6.2", "6.4") else "Agent 4",
            "kernel_name": name,
            "kernelname": name,
            "start_timestamp": start_ns,
            "beginns": start_ns,
            "end_timestamp": end_ns,
            "endns": end_ns,
            "completens": end_ns + 100,
            "durationns": end_ns - start_ns,
            "dispatch_id": dispatch_ids[index] if dispatch_ids else index + 1,
            "index": index,
            "sig": "0x0",
            "obj": "0x7f3cb4d2d580",
            "workgroup_size_x": 256,
            "grid_size_x": 256 * 1024,
        }
        cells = [values.get(column.lower(), 0) for column in names]
        lines.append(",".join(f'"{cell}"' if isinstance(cell, str) else str(cell) for cell in cells))
    return "\n".join(lines) + "\n"


def write_rocpd(
    path: str, rows: list[tuple[str, int, int]], view: str = "kernels", dispatch_ids: Sequence[int] | None = None
) -> None:
    """A database as rocprofv3 7.x writes it: tables with a suffix below views with plain names."""
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE rocpd_kernel_dispatch_0000_11 (id INTEGER PRIMARY KEY, kernel TEXT, "
            "start BIGINT, end BIGINT, dispatch_id INT, grid_size_x INT, workgroup_size_x INT)"
        )
        connection.executemany(
            "INSERT INTO rocpd_kernel_dispatch_0000_11 (kernel, start, end, dispatch_id, grid_size_x, "
            "workgroup_size_x) VALUES (?, ?, ?, ?, 262144, 256)",
            [(*row, number) for row, number in zip(rows, dispatch_ids or range(1, len(rows) + 1), strict=True)],
        )
        connection.execute(
            f"CREATE VIEW {view} AS SELECT id, kernel AS name, start, end, (end - start) AS duration, dispatch_id, "
            "grid_size_x AS grid_x, workgroup_size_x AS workgroup_x FROM rocpd_kernel_dispatch_0000_11"
        )
    connection.close()
