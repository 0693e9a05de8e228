"""Writes into the package what `genkern ops` says of an installed genkern: the formats that results/ has measured."""

from __future__ import annotations

from genkern.cli.ops_table import RESULTS, SHIPPED, measured_sizes
from genkern.file_io import write_whole


def text() -> str:
    """The number of measured sizes by format and architecture, as YAML."""
    found, _ = measured_sizes([str(RESULTS)])
    lines = ["# Measured sizes of results/ by format and architecture; results/measured.py writes this file.\n"]
    for op in sorted({op for op, _ in found}):
        counts = ", ".join(f"{arch}: {len(found[op, arch])}" for arch in sorted(a for o, a in found if o == op))
        lines.append(f"{op}: {{{counts}}}\n")
    return "".join(lines)


if __name__ == "__main__":
    write_whole(str(SHIPPED), text())
