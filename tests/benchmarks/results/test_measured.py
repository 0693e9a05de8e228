"""Numbers that scripts printed become figures of the run that measured them; nothing else of figures.yaml changes."""

from __future__ import annotations

import pytest
import yaml

from benchmarks.common.figures import figure
from benchmarks.results.measured import FIGURES, Measured, numbers_of, written
from benchmarks.serving.dispatching import key_lines
from genkern.errors import ResultsError

RUNS = """\
runs:
  old: &old
    device: an H200
    commit: aaaaaaa
    date: 2026-11-22
    of: [genkern]
  new: &new
    device: an H100
    commit: bbbbbbb
    date: 2026-11-26
    of: [templates]
figures:
  moved:
    <<: *old
    commit: ccccccc
    value: "1,234"
    unit: rows
    of: [genkern/search]
  kept:
    <<: *new
    value: "0.50"
    unit: seconds
  again:
    <<: *new
    value: "2"
    unit: files
  computed:
    value: "1.000"
    rows: {device: nvidia_h100}
"""


def measured(**numbers: float) -> Measured:
    return Measured(numbers, "new", "ddddddd", "2026-11-27")


def test_what_scripts_print_is_read() -> None:
    """Lines of both printers; the later of two; neither other keys nor what was not measured."""
    first = "\n".join(figure("mean", [2.0, 8.0], least="least"))
    second = key_lines({"mean": 5.0, "lost": None, "other": 1.0})
    found = numbers_of([first, second, "rows: 10,000 of them"], ["mean", "least", "lost", "rows"])
    assert found == {"mean": 5.0, "least": 2.0, "rows": 10000.0}


def test_figures_become_those_of_the_run() -> None:
    """With decimals as before and their own `of`; what the run had keeps its commit, and an empty run goes."""
    read = yaml.safe_load(written(RUNS, measured(moved=5678.4, again=3.0)))
    assert list(read["runs"]) == ["new"]
    said = {"device": "an H100", "commit": "ddddddd", "date": yaml.safe_load("2026-11-27")}
    figures = read["figures"]
    assert figures["moved"] == {**said, "value": "5,678", "unit": "rows", "of": ["genkern/search"]}
    assert figures["again"] == {**said, "value": "3", "unit": "files", "of": ["templates"]}
    assert (figures["kept"]["commit"], figures["kept"]["value"]) == ("bbbbbbb", "0.50")
    assert figures["computed"] == {"value": "1.000", "rows": {"device": "nvidia_h100"}}


def test_a_commit_stays_text() -> None:
    """One of digits alone is no number, neither when it is written nor when it goes on to a figure that is kept."""
    first = written(RUNS, Measured({"again": 3.0}, "new", "6810851", "2026-11-27"))
    second = written(first, Measured({"kept": 3.0}, "new", "1e12222", "2026-11-27"))
    commits = {key: figure.get("commit") for key, figure in yaml.safe_load(second)["figures"].items()}
    assert (commits["again"], commits["kept"]) == ("6810851", "1e12222")


def test_what_cannot_be_written_is_refused() -> None:
    """A figure of rows, and a run that nobody has described."""
    with pytest.raises(ResultsError, match="make docs"):
        written(RUNS, measured(computed=2.0))
    with pytest.raises(ResultsError, match="no run somewhere"):
        written(RUNS, Measured({}, "somewhere", "ddddddd", "2026-11-27"))


def test_the_figures_of_the_project_can_be_written() -> None:
    """Every typed figure that has a run takes a number, and the file says the same as before but for it."""
    text = FIGURES.read_text(encoding="utf-8")
    before = yaml.safe_load(text)["figures"]
    key = next(key for key, each in before.items() if "rows" not in each)
    after = yaml.safe_load(written(text, Measured({key: 9.0}, "h100_calls", "ddddddd", "2026-11-27")))["figures"]
    assert {name for name, each in after.items() if each["value"] != before[name]["value"]} <= {key}
    assert [name for name in before if before[name]["unit"] != after[name]["unit"]] == []
