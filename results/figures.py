"""Compute the figures that follow from rows of results, and write all where documents quote them: `make docs`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from genkern.files.file_kind import read_results
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result

ROOT = Path(__file__).resolve().parent.parent
FIGURES = Path("results", "figures.yaml")
ROWS = Path("results")
# A figure, then its key: 1.087<!-- anchors_over_torch -->
_QUOTED = re.compile(r"([0-9][0-9.,]*)(<!--\s*([a-z][a-z0-9_]*)\s*-->)")


def changes(root: Path = ROOT) -> dict[Path, str]:
    """The files that would change, with what they would hold."""
    path = root / FIGURES
    text = path.read_text(encoding="utf-8")
    known: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)["figures"]
    values = {key: str(figure["value"]) for key, figure in known.items()}
    for key, figure in known.items():
        if "rows" in figure:
            values[key] = value_of(root / ROWS, **figure["rows"])
            text = re.sub(rf'(?m)(^  {key}:\n(?:    .*\n)*?    value: )"[^"]*"', rf'\g<1>"{values[key]}"', text)
    found = {path: text}
    for document in documents(root):
        found[document] = _QUOTED.sub(
            lambda quote: values.get(quote[3], quote[1]) + quote[2], document.read_text(encoding="utf-8")
        )
    return {path: text for path, text in found.items() if text != path.read_text(encoding="utf-8")}


def documents(root: Path) -> list[Path]:
    """The documents that may quote figures."""
    return [*sorted(root.glob("*.md")), *sorted(root.glob("docs/*.md")), *sorted(root.glob("*/**/README.md"))]


def value_of(results: Path, device: str, files: list[str], ratio: str, of: str, M: int | None = None) -> str:
    """The geometric mean, or the least, of a ratio over the distinct sizes of these files (stems, with *) of `device`,
    of one `M` where it is given; `of: count` is how many sizes have it. `ratio` is of times:
    the library's best or PyTorch's call over genkern's kernel, or over what is called, which is the library's best
    where no kernel is faster.
    """
    rows = (row for row in rows_of(results, device, files) if M in (None, row.problem.M))
    ratios = [found for row in rows if (found := _ratio(row, ratio)) is not None]
    if not ratios:
        raise ValueError(f"{results / device}: no row of {', '.join(files)} has {ratio}")
    if of == "count":
        return str(len(ratios))
    return f"{min(ratios) if of == 'least' else math.exp(math.fsum(map(math.log, ratios)) / len(ratios)):.3f}"


def rows_of(results: Path, device: str, files: list[str]) -> list[Result]:
    """The rows of these files, one for each distinct size."""
    by_size: dict[GemmProblem, Result] = {
        row.problem: row for path in _paths(results / device, files) for row in _read(path)
    }
    return list(by_size.values())


@lru_cache(maxsize=64)
def _read(path: Path) -> tuple[Result, ...]:
    return tuple(read_results(str(path)))


def _paths(folder: Path, files: list[str]) -> Iterator[Path]:
    for name in files:
        yield from sorted(folder.glob(f"{name}.yaml"))


def _ratio(row: Result, ratio: str) -> float | None:
    called = row.duration_us if row.choice == "config" else row.vendor_us
    # Without a library call that computes the same there is nothing to compare with.
    times = {"library": row.vendor_us, "torch": row.torch_us if row.vendor_us else None}
    times |= {"genkern": row.duration_us, "called": called}
    over, under = (times[name] for name in ratio.split(" / "))
    return over / under if over and under else None


if __name__ == "__main__":
    for path, text in changes().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
