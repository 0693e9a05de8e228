"""Write what scripts have measured into results/figures.yaml, from what they printed.

    python -m benchmarks.results.measured LOG [LOG ...] --run h100_calls --commit 1234abcd --date 2026-11-26

Of each line "key: number" of a log whose key results/figures.yaml has, the figure becomes one of --run with that
number, with as many decimals as it had; of two lines with one key the later counts. `runs` there say on what and of
which commit figures are: --run gets this commit and date, what it had before and these logs have not keeps its own, and
runs that are left without figures go. Old and new are printed; what stands in `unit`, and in documents beside a quote,
a person reads and corrects. Then `make docs` writes the quotes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common.workbench import errors_end
from genkern.errors import ResultsError
from genkern.file_io import read_text, write_whole

FIGURES = Path(__file__).resolve().parents[2] / "results" / "figures.yaml"
# As benchmarks.common.figures.figure prints a figure, and benchmarks.serving.dispatching.key_lines.
_LINE = re.compile(r"^([a-z][a-z0-9_]*): ([0-9][0-9,]*(?:\.[0-9]+)?)(?: |$)", re.MULTILINE)
_RUN = re.compile(r"^    <<: \*(\w+)\n", re.MULTILINE)
# What a run says, and a figure need not: all but `of`, which is what its number hangs on.
_SHARED = re.compile(r"^    (?:device|versions|commit|date): .*\n", re.MULTILINE)


@dataclass(frozen=True)
class Measured:
    """One run of scripts: the numbers by key, in which run of figures.yaml they go, and what was measured when."""

    numbers: Mapping[str, float]
    run: str
    commit: str
    date: str


def numbers_of(logs: Iterable[str], keys: Iterable[str]) -> dict[str, float]:
    """The numbers by key that the logs print, of these keys."""
    wanted = set(keys)
    found = (match for log in logs for match in _LINE.finditer(log))
    return {match[1]: float(match[2].replace(",", "")) for match in found if match[1] in wanted}


def written(text: str, measured: Measured) -> str:
    """figures.yaml with these numbers. Raises ResultsError for a run that it lacks, and for figures of rows."""
    known = yaml.safe_load(text)
    if measured.run not in known["runs"]:
        raise ResultsError(f"there is no run {measured.run}; there are {', '.join(known['runs'])}")
    before = known["runs"][measured.run]
    for key, figure in known["figures"].items():
        block = _block(text, key)
        if key in measured.numbers:
            text = text.replace(block, _moved(block, key, figure, measured), 1)
        elif _run_of(block) == measured.run and "    commit: " not in block:
            own = f"    commit: {_text(str(before['commit']))}\n    date: {before['date']}\n    value: "
            text = text.replace(block, block.replace("    value: ", own, 1), 1)
    run = _block(text, measured.run)
    new = re.sub(r"(?m)^    commit: .*", f"    commit: {_text(measured.commit)}", run, count=1)
    text = text.replace(run, re.sub(r"(?m)^    date: .*", f"    date: {measured.date}", new, count=1), 1)
    used = set(_RUN.findall(text))
    for name in known["runs"]:
        if name not in used:
            text = text.replace(_block(text, name), "", 1)
    return text


def _moved(block: str, key: str, figure: Mapping[str, Any], measured: Measured) -> str:
    """A figure's lines as one of the run, which says all but what the figure alone knows."""
    if "rows" in figure:
        raise ResultsError(f"{key} follows from rows: make docs computes it")
    if _run_of(block) is None:
        raise ResultsError(f"{key} is of no run: write it by hand")
    block = _SHARED.sub("", _RUN.sub(f"    <<: *{measured.run}\n", block))
    value = f'    value: "{_as(str(figure["value"]), measured.numbers[key])}"'
    return re.sub(r"(?m)^    value: .*", lambda _: value, block, count=1)


def _text(commit: str) -> str:
    """A commit as YAML's text: one of digits alone would be a number."""
    return commit if isinstance(yaml.safe_load(commit), str) else f'"{commit}"'


def _as(old: str, value: float) -> str:
    decimals = len(old.partition(".")[2])
    return f"{value:,.{decimals}f}" if "," in old else f"{value:.{decimals}f}"


def _block(text: str, name: str) -> str:
    """The lines of a figure or run."""
    match = re.search(rf"^  {name}:.*\n(?:    .*\n?)*", text, re.MULTILINE)
    if match is None:
        raise ResultsError(f"results/figures.yaml has no lines of {name}")
    return match[0]


def _run_of(block: str) -> str | None:
    found = _RUN.search(block)
    return found[1] if found else None


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", help="what scripts printed")
    parser.add_argument("--run", required=True, help="of `runs`, which the figures are of now")
    parser.add_argument("--commit", required=True, help="what was measured")
    parser.add_argument("--date", required=True, help="YYYY-MM-DD")
    parser.add_argument("--dry_run", action="store_true", help="only print")
    options = parser.parse_args(argv)
    with errors_end():
        text = read_text(str(FIGURES), ResultsError)
        known = {key: figure for key, figure in yaml.safe_load(text)["figures"].items() if "rows" not in figure}
        numbers = numbers_of((read_text(log, ResultsError) for log in options.logs), known)
        new = written(text, Measured(numbers, options.run, options.commit, options.date))
    for key, number in numbers.items():
        old = known[key]["value"]
        print(f"{key:36} {old:>10} -> {_as(old, number):>10}  {known[key]['unit'][:100]}")
    if not numbers:
        print("no line of these logs has a key of results/figures.yaml")
    elif not options.dry_run:
        write_whole(str(FIGURES), new)
    return 0 if numbers else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
