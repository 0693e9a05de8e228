"""Write docs/formats.md, the table of number formats, from their declarations and the shipped results: `make docs`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from genkern.cli.ops_table import RESULTS, measured_sizes, searched_archs, state
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.gpus import archs_for_spaces, known_archs
from genkern.ops.op import get_op, op_names

PAGE = Path(__file__).with_name("formats.md")
_HEAD = """# Number formats

`make docs` writes this page from the formats' declarations and from
[results/](../results/nvidia_h100/README.md). A format says what operands hold, and how a kernel loads, scales and
multiplies them. Give its name as `--op`; `genkern ops` prints the second table.
[kernels.md](kernels.md#which-formats) says which families compute which formats,
[your_own_format.md](your_own_format.md) how to add one.

## Operands

The types of A, B and C are those that sm_90 takes by default; the other operands are in the order in which kernels take
them.

"""
_STATES = """
## GPUs

"measured" has the number of sizes in the results that genkern is released with; "compiled" formats have a space to
search, and were not measured on this GPU; "-" means that the GPU or genkern cannot compute the format.

"""
# A size that every format accepts, on the GPU that genkern is measured on.
_SIZE = {"M": 1024, "N": 1024, "K": 1024}
_ARCH = "sm_90"


def page() -> str:
    """Return the page as Markdown."""
    return _HEAD + _table(_operands()) + _STATES + _table(_states())


def _operands() -> list[list[str]]:
    rows = [["format", "types of A and B", "operands", "own options"]]
    for name in op_names():
        op = get_op(name)
        problem = resolve({**_SIZE, "op": name}, GemmDefaults(), _ARCH).problem
        operands = ", ".join(f"{operand.name} ({operand.dtype})" for operand in op.operands(problem))
        fields = ", ".join(f"`--{field.name}`" for field in dataclasses.fields(op.fields)) or "none"
        rows.append([f"`{name}`", ", ".join(op.input_types), operands, fields])
    return rows


def _states() -> list[list[str]]:
    measured, _ = measured_sizes([str(RESULTS)])
    archs = known_archs()
    rows = [["format", *archs]]
    for op in op_names():
        searched = searched_archs(op)
        states = [
            state(op, arch, not searched.isdisjoint(archs_for_spaces(arch)), len(measured.get((op, arch), ())))
            for arch in archs
        ]
        rows.append([f"`{op}`", *states])
    return rows


def _table(rows: list[list[str]]) -> str:
    head, *body = ("| " + " | ".join(row) + " |\n" for row in rows)
    return head + "|" + "---|" * len(rows[0]) + "\n" + "".join(body)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
