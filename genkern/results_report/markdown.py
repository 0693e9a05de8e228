"""The report as Markdown for a pull request: a summary, what changed as a diff block, and the table of sizes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from genkern.file_io import printable
from genkern.results_report.changes import counted, p_text
from genkern.results_report.record import FASTER, MEASURED, PREDICTED, SLOWER, Record, Size

# A table with more rows is folded.
_OPEN_ROWS = 20
_MARKS = {FASTER: "+", SLOWER: "-"}


def markdown(record: Record) -> str:
    """Return the report as Markdown, as GitHub shows it. Names from files stand in code spans and code blocks."""
    return "\n".join([*_head(record), *_changes(record), *_table(record), *_notes(record)]) + "\n"


def _head(record: Record) -> Iterator[str]:
    yield f"## {_text(record.title)}"
    yield ""
    yield f"genkern {record.genkern}, {record.made}: {_files(record.files)}" + (
        f" against {_files(record.old_files)}" if record.old_files else ""
    )
    yield ""
    if compared := [size for size in record.sizes if size.speedup is not None]:
        called = Counter(size.called for size in compared)
        mean = _mean([size.speedup or 1.0 for size in compared])
        yield (
            f"- **{mean:.3f}x** the library's best call (library's time over kernel's, geometric mean of "
            f"{len(compared)} sizes): {called['kernel']} faster, {called['tie']} ties, {called['library']} slower"
        )
    if roofs := sorted(size.roof_share for size in record.sizes if size.roof_share and size.timed != PREDICTED):
        yield f"- **{100 * roofs[len(roofs) // 2]:.1f} %** of the data sheet's roofline (median of {len(roofs)} sizes)"
    if predicted := sum(size.timed == PREDICTED for size in record.sizes):
        yield f"- **{predicted}** of {len(record.sizes)} times are **predicted**, not measured"
    for group in record.groups:
        versions = ", ".join(f"{name} {version}" for name, version in group.versions.items())
        yield f"- {group.sizes} sizes on {_code(group.device or 'a GPU that is not named')}" + (
            f": {_code(versions)}" if versions else ""
        )


def _changes(record: Record) -> Iterator[str]:
    known = [size for size in record.sizes if size.change is not None]
    if not record.old_files or not known:
        return
    counts = counted(size.change for size in known)
    yield ""
    yield "### Against the older results"
    yield ""
    ratios = [size.change.ratio for size in known if size.change is not None and size.change.ratio is not None]
    mean = f" Time {_percent(_mean(ratios))} (geometric mean)." if ratios else ""
    yield ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "." + mean
    rows = [size for size in known if size.change and (size.change.verdict in _MARKS or size.change.winner_changed)]
    if not rows:
        return
    lines = _diff(rows)
    yield ""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", "\n".join(lines))), default=0))
    yield f"{fence}diff"
    yield from lines
    yield fence
    yield ""
    yield (
        "`+` faster, `-` slower, `!` another winner without a clear change. The p-value tests that both medians are "
        "equal (noise within each run), corrected for the number of sizes (Holm)."
    )


def _diff(sizes: Sequence[Size]) -> list[str]:
    order = {"-": 0, "+": 1, "!": 2}
    cells = []
    for size in sizes:
        change = size.change
        assert change is not None
        mark = _MARKS.get(change.verdict, "!")
        times = f"{_us(change.old_us)} -> {_us(size.us)} us"
        ratio = _percent(change.ratio) if change.ratio is not None else printable(change.why)
        library = f"library {_percent(change.library_ratio)}" if change.library_ratio else ""
        winner = f"{change.old_config} -> {size.config}" if change.winner_changed else ""
        cells.append((mark, size.label, times, ratio, p_text(change.p_adjusted), library, printable(winner)))
    cells.sort(key=lambda row: order[row[0]])
    widths = [max(len(row[place]) for row in cells) for place in range(6)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in cells
    ]


def _table(record: Record) -> Iterator[str]:
    has_library = any(size.library_us for size in record.sizes)
    heads = [
        "Size",
        "Time, us",
        "TFLOPS",
        "Of roofline",
        *(["Library, us", "Over library", "Called"] * has_library),
        "Winner",
    ]
    folded = len(record.sizes) > _OPEN_ROWS
    yield ""
    if folded:
        yield f"<details><summary>All {len(record.sizes)} sizes</summary>"
        yield ""
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join(['---'] + ['---:'] * (len(heads) - 2) + ['---'])} |"
    for size in record.sizes:
        library = [
            f"{_us(size.library_us)} {size.library}".strip(),
            f"{size.speedup:.3f}x" if size.speedup else "-",
            "library (tie)" if size.called == "tie" else size.called,
        ]
        cells = [
            _code(size.label),
            _time(size),
            f"{size.tflops:.1f}" if size.tflops else "-",
            f"{100 * size.roof_share:.1f} %" if size.roof_share else "-",
            *(library * has_library),
            _code(size.config or size.kernel),
        ]
        yield f"| {' | '.join(cells)} |"
    if folded:
        yield ""
        yield "</details>"


def _notes(record: Record) -> Iterator[str]:
    if record.notes:
        yield ""
        yield from (f"- {_text(note)}" for note in record.notes)


def _time(size: Size) -> str:
    if size.us is None:
        return "-"
    around = "" if size.low_us is None or size.high_us is None else f" ({_us(size.low_us)} to {_us(size.high_us)})"
    return f"{_us(size.us)}{around}" + ("" if size.timed == MEASURED else f" *{size.timed}*")


def _us(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.{3 if value < 10 else 2 if value < 100 else 1 if value < 10_000 else 0}f}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _files(files: Sequence[str]) -> str:
    return ", ".join(map(_code, files)) if len(files) <= 3 else f"{len(files)} files"


def _code(text: str) -> str:
    """Return a code span that a table can hold."""
    return f"`{printable(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`" if text else "-"


def _text(text: str) -> str:
    """Return the text with Markdown's and HTML's characters escaped; @ would notify a user of GitHub."""
    return re.sub(r"([\\`*_{}\[\]<>|~#])", r"\\\1", printable(text)).replace("@", "&#64;")
