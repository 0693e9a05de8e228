"""Write results/<device>/README.md from the result files and provenance.yaml: `make docs`."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from genkern.files.file_kind import read_results

FOLDER = Path(__file__).parent
# A result row as its file stores it.
Row = Mapping[str, Any]
# The keys that identify a row's problem.
_PROBLEM = ("M", "N", "K", "op", "rowMajorA", "rowMajorB", "dtype_a", "dtype_b", "dtype_c", "bias", "activation")


def pages() -> dict[Path, str]:
    """Return the Markdown page of each device that has results, by path."""
    said = _loaded(FOLDER / "provenance.yaml")
    made = (device for device in said if (FOLDER / device / "made.csv").exists())
    return {FOLDER / device / "README.md": _page(FOLDER / device, said[device]) for device in made}


def _page(folder: Path, said: Mapping[str, Any]) -> str:
    made = {row["file"]: row for row in csv.DictReader((folder / "made.csv").read_text().splitlines())}
    # Files that are planned but were never made have no rows.
    rows = {name: _loaded(folder / name) for name in said["files"] if name in made}
    models = [row for name, of_file in rows.items() if "_tp" in name for row in of_file]
    return "\n".join(
        [
            *_head(said, [row for of_file in rows.values() for row in of_file]),
            *_files(said, rows, made),
            *(_by_rows(folder, models) if models else []),
            *_families(folder, rows),
            *_older(folder, said),
            "",
        ]
    )


def ratios(rows: Iterable[Row]) -> dict[str, list[float]]:
    """Return the ratios of each kind of the rows that have the times of both sides."""
    found: dict[str, list[float]] = {"library / genkern": [], "library / called": [], "torch / called": []}
    for row in rows:
        genkern, library = row["time_us"], row.get("vendor_us")
        if not library:
            continue
        called = genkern if row["choice"] == "config" else library
        found["library / genkern"].append(library / genkern)
        found["library / called"].append(library / called)
        if row.get("torch_us"):
            found["torch / called"].append(row["torch_us"] / called)
    return found


def _loaded(path: Path) -> Any:
    # Three times as fast as yaml.SafeLoader, if libyaml is installed.
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _head(said: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    devices = sorted({row["device"] for row in rows})
    versions: dict[str, set[str]] = {}
    for row in rows:
        for name, version in row["versions"].items():
            versions.setdefault(name, set()).add(version)
    listed = ", ".join(f"{name} {' and '.join(sorted(versions[name]))}" for name in sorted(versions))
    return [
        f"# {said['title']}",
        "",
        "`make docs` writes this page from the files in this folder, [made.csv](made.csv) (commits and dates) and",
        "[provenance.yaml](../provenance.yaml). [docs/results.md](../../docs/results.md) explains the keys of a row.",
        "",
        f"{len(rows):,} rows, measured on {' and '.join(devices)} with {listed}.",
        f"Tuned by {_commands(said)}. Conditions:",
        "",
        *(f"- {line}" for line in said["conditions"]),
        "",
        "Ratios are ratios of times, as geometric means over a file's sizes. If a ratio is over 1, the name after the",
        "slash is faster. *Least*: the smallest ratio of the column to its left. *Library*: the fastest of cuBLASLt's",
        "algorithms and PyTorch's call. *Called*: what a program calls: genkern's kernel, or the library if no kernel",
        "was faster. *Tied*: number of sizes at which neither was reliably faster. In brackets: number of rows with a",
        "library call to compare with, if not all rows have one.",
    ]


def _commands(said: Mapping[str, Any]) -> str:
    return ", ".join(f"`{command}`" for command in said["commands"].values()).replace("OPTIONS", said["options"])


def _files(
    said: Mapping[str, Any], rows: Mapping[str, Sequence[Row]], made: Mapping[str, Mapping[str, str]]
) -> list[str]:
    cells = [
        [
            f"[{Path(name).stem}]({name})",
            said["files"][name]["what"],
            _count(of_file),
            *_means(of_file),
            made[name]["commits"].split()[0],
        ]
        for name, of_file in rows.items()
    ]
    return ["", "## Files", "", *_table(["file", "sizes of", "rows", *_COLUMNS, "first commit"], cells)]


def _by_rows(folder: Path, rows: Iterable[Row]) -> list[str]:
    distinct = {tuple(row.get(name) for name in _PROBLEM): row for row in rows}
    groups: dict[object, list[Row]] = {}
    for row in distinct.values():
        groups.setdefault(row["M"], []).append(row)
    groups["all"] = list(distinct.values())
    order = sorted(groups, key=lambda m: m if isinstance(m, int) else math.inf)
    cells = [[m, len(groups[m]), *_means(groups[m])] for m in order]
    command = f"python -m benchmarks.kernels.vs_vendor --brief results/{folder.name}/*_tp*.yaml"
    title = f"The models' sizes by M, each once (`{command}`):"
    return ["", title, "", *_table(["M", "sizes", *_COLUMNS], cells)]


def _families(folder: Path, rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the table of winning families, under the families' current names."""
    lists = {
        "models": [name for name in rows if "_tp" in name],
        "anchors and held out": [name for name in rows if name.startswith(("anchors", "held_out"))],
        "unfriendly": [name for name in rows if name.startswith("unfriendly")],
    }
    won = {title: Counter(_families_of(folder, names)) for title, names in lists.items()}
    order = sorted({family for counts in won.values() for family in counts}, key=lambda f: (-won["models"][f], f))
    cells = [[family, *(won[title][family] for title in lists)] for family in order]
    return [
        "",
        "Number of sizes at which genkern's fastest kernel is of each family:",
        "",
        *_table(["family", *lists], cells),
    ]


def _families_of(folder: Path, names: Iterable[str]) -> list[str]:
    of_problem = {
        row.problem: row.config.family
        for name in names
        for row in read_results(str(folder / name))
        if row.config is not None
    }
    return list(of_problem.values())


_COLUMNS = ("library / genkern", "least", "library / called", "torch / called", "tied")


def _count(rows: Sequence[Row]) -> str:
    compared = len(ratios(rows)["library / genkern"])
    return f"{len(rows)}" if compared in (0, len(rows)) else f"{len(rows)} ({compared})"


def _means(rows: Sequence[Row]) -> list[str]:
    found, tied = ratios(rows), sum(row["choice"] == "tie" for row in rows)
    means = {
        name: f"{math.exp(math.fsum(map(math.log, of)) / len(of)):.3f}" if of else "" for name, of in found.items()
    }
    least = min(found["library / genkern"], default=None)
    return [
        means["library / genkern"],
        "" if least is None else f"{least:.3f}",
        means["library / called"],
        means["torch / called"],
        # Files of older releases do not record ties.
        str(tied or ""),
    ]


def _older(folder: Path, said: Mapping[str, Any]) -> list[str]:
    """Return the section on rows whose kernels have changed since. They are served, but documents do not quote them."""
    rows = sum(len(_loaded(path)) for path in (folder / "older").glob("*.yaml"))
    if not rows:
        return []
    return [
        "",
        "## Winners of older kernels",
        "",
        f"The {rows} rows in `older/` ({said['older']}) belong to kernels that genkern no longer generates, or",
        "do not name their kernels. `make bundle` packs their configs as today's kernels, which `genkern verify` can",
        "prove and time. No document quotes their times.",
    ]


def _table(columns: Sequence[str], cells: Iterable[Sequence[object]]) -> list[str]:
    rows = [columns, ["---"] * len(columns), *cells]
    return [f"|{'|'.join(str(cell) for cell in row)}|" for row in rows]


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
