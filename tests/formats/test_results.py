"""Tests of genkern/formats/results.py: a results file grows, and keeps to the letter what it held."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml
from made_winners import LONG, winner

from genkern.errors import InputError, OutputError, ResultsError
from genkern.formats import tune_gemm_yaml
from genkern.formats.gemm_entry import GemmDefaults
from genkern.formats.results import ResultsFile, RunFacts
from genkern.gemm.problem import GemmProblem

FACTS = RunFacts("gfx942", 304, {"triton": "3.7.0", "torch": "2.13"}, predicted=False)
TUNE_GEMM = (
    "# made by hand\n"
    "- {'M': 16, 'N': 4096, 'K': 4096, 'rowMajorA': 'T', 'rowMajorB': 'N', 'BLOCK_SIZE_M': 16, 'BLOCK_SIZE_N': 64, "
    "'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 1, 'SPLIT_K': 1, 'num_warps': 4, 'num_stages': 2, 'kpack': 1} # TFLOPS: 5\n"
    "# and a second one\n"
    "- M: 32\n  N: 4096\n  K: 4096\n  BLOCK_SIZE_M: 16\n  BLOCK_SIZE_N: 64\n  BLOCK_SIZE_K: 64"
)


def opened(path: Path, facts: RunFacts = FACTS, **options: object) -> ResultsFile:
    return ResultsFile(str(path), facts, GemmDefaults(), **options)  # type: ignore[arg-type]


def sizes(path: Path) -> list[int]:
    """The M of each entry, in file order."""
    if path.suffix == ".csv":
        return [int(row["M"]) for row in csv.DictReader(path.read_text().splitlines())]
    return [entry["M"] for entry in yaml.safe_load(path.read_text())]


@pytest.mark.parametrize("name", ["new/r.yaml", "new/r.csv", "new/R.CSV"])
def test_a_new_file_grows(name: str, hostile_path: Path) -> None:
    """Each write holds all winners so far; reading it back gives their problems."""
    path = hostile_path / name
    results = opened(path)
    assert results.problems == set()
    results.write([winner(16)])
    results.write([winner(16), winner(4, 3.0)])
    assert opened(path).problems == {GemmProblem(16, 4096, 4096), GemmProblem(4, 4096, 4096)}
    assert opened(path).configs == {one.problem: one.config for one in (winner(16), winner(4, 3.0))}
    assert [path.name for path in path.parent.iterdir()] == [path.name]


def test_what_others_wrote_stays_to_the_letter(tmp_path: Path) -> None:
    """Comments, keys and layout of a file of tune_gemm's are kept; ours come after them."""
    path = tmp_path / "r.yaml"
    path.write_text(TUNE_GEMM)
    results = opened(path)
    assert results.problems == {GemmProblem(16, 4096, 4096), GemmProblem(32, 4096, 4096)}
    results.write([winner(64)])
    assert path.read_text().startswith(TUNE_GEMM + "\n- {'M': 64,")
    assert sizes(path) == [16, 32, 64]
    again = opened(path)
    again.write([winner(16, 5.0)])
    assert sizes(path) == [32, 64, 16]
    assert "# made by hand\n- M: 32\n" in path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(
            [{"M": m, "N": 8, "K": 8, "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 16} for m in (1, 2)]
        ),
        "---\n  - {M: 1, N: 8, K: 8, BLOCK_SIZE_M: 16, BLOCK_SIZE_N: 16, BLOCK_SIZE_K: 16}\n"
        "  - {M: 2, N: 8, K: 8, BLOCK_SIZE_M: 16, BLOCK_SIZE_N: 16, BLOCK_SIZE_K: 16, versions: {'a': '3.7'}}\n...\n",
    ],
)
def test_lists_written_otherwise_can_grow(text: str, tmp_path: Path) -> None:
    """JSON on one line, indentation, document marks: rewritten without loss, so that the file stays a list."""
    path = tmp_path / "r.yaml"
    path.write_text(text)
    before = yaml.safe_load(text)
    opened(path).write([winner(64)])
    assert yaml.safe_load(path.read_text())[:2] == before
    assert sizes(path) == [1, 2, 64]


def test_sorting_is_by_size(tmp_path: Path) -> None:
    """Within the old entries and within the new ones."""
    path = tmp_path / "r.csv"
    opened(path, sort=True).write([winner(64), winner(4)])
    assert sizes(path) == [4, 64]
    opened(path, sort=True).write([winner(32), winner(8)])
    assert sizes(path) == [4, 64, 8, 32]


def test_a_csv_is_never_without_its_old_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old file; there is no moment at which only the new rows are there."""
    path = tmp_path / "r.csv"
    opened(path).write([winner(16)])
    before = path.read_text()
    written: list[str] = []
    monkeypatch.setattr("genkern.formats.results.write_whole", lambda path, text: written.append(text))
    opened(path).write([winner(4)])
    assert len(written) == 1
    assert written[0].startswith(before)
    assert path.read_text() == before


def test_a_csv_with_other_columns_is_left_alone(tmp_path: Path) -> None:
    """An older AITER's table without gfx cannot take our rows."""
    path = tmp_path / "r.csv"
    opened(path).write([winner(16)])
    lines = [line.partition(",")[2] for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    before = path.read_text()
    with pytest.raises(ResultsError, match="has the columns cu_num"):
        opened(path).require_room([GemmProblem(4, 4096, 4096)])
    assert path.read_text() == before


@pytest.mark.parametrize("suffix", ["yaml", "csv"])
@pytest.mark.parametrize(
    ("facts", "changes", "said"),
    [
        (RunFacts("gfx950", 256, FACTS.versions, False), {}, "results for gfx942, this run is for gfx950"),
        (FACTS, {"time_source": "predicted"}, "predicted times, this run measures"),
        (RunFacts("gfx942", 304, FACTS.versions, True), {}, "measured times, this run predicts"),
        (RunFacts("gfx942", 304, {"triton": "3.9.0"}, False), {}, "results of triton 3.7.0, this is triton 3.9.0"),
    ],
)
def test_rows_of_another_run_are_refused(
    suffix: str, facts: RunFacts, changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    """Unless just they are tuned again; those of another architecture even then. AITER's columns know no version."""
    path = tmp_path / f"r.{suffix}"
    opened(path).write([winner(16, **changes)])
    if suffix == "csv" and "triton" in said:
        assert opened(path, facts).problems
        return
    with pytest.raises(ResultsError, match=said):
        opened(path, facts)
    if "gfx950" in said:
        with pytest.raises(ResultsError, match=said):
            opened(path, facts, again=[GemmProblem(16, 4096, 4096)])
    else:
        assert opened(path, facts, again=[GemmProblem(16, 4096, 4096)]).problems
    with pytest.raises(ResultsError, match=said):
        opened(path, facts, again=[GemmProblem(17, 4096, 4096)])


def test_a_csv_from_before_it_had_our_columns_grows(tmp_path: Path) -> None:
    """Its rows keep all that they say, and have nothing in the columns that are new; the new row fills them."""
    path = tmp_path / "r.csv"
    opened(path).write([winner(16)])
    lines = [line.rsplit(",", 9)[0] for line in path.read_text().splitlines()]
    assert lines[0].endswith(",bw")
    path.write_text("\n".join(lines) + "\n")
    results = opened(path)
    results.require_room([GemmProblem(4, 4096, 4096)])
    results.write([winner(4, interval_us=(9.9, 10.1), runner_up=LONG.name, runner_up_us=11.0)])
    after = path.read_text().splitlines()
    assert after[1] == lines[1] + "," * 9
    old, new = csv.DictReader(after)
    assert (old["samples"], old["margin"]) == ("", "")
    assert [new[key] for key in ("interval_low_us", "interval_high_us", "samples")] == ["9.9", "10.1", "60"]
    assert [new[key] for key in ("runner_up", "runner_up_us", "margin")] == [LONG.name, "11.0", "1.1"]
    assert opened(path).problems == {winner(16).problem, winner(4).problem}


def test_room_in_a_csv(tmp_path: Path) -> None:
    """One op, layouts that AITER knows, and no activation; a YAML file has room for all."""
    plain, scaled = GemmProblem(1, 8, 8), GemmProblem(1, 8, 8, "a8w8", "int8", "int8", "bf16")
    opened(tmp_path / "r.yaml").require_room([plain, scaled, GemmProblem(1, 8, 8, row_major_b=True, activation="gelu")])
    results = opened(tmp_path / "r.csv")
    results.require_room([plain])
    for problems in (
        [plain, scaled],
        [GemmProblem(1, 8, 8, row_major_a=False)],
        [GemmProblem(1, 8, 8, activation="relu")],
    ):
        with pytest.raises(InputError, match=r"\.yaml"):
            results.require_room(problems)
    results.write([winner(16)])
    with pytest.raises(InputError, match="a16w16, a8w8"):
        opened(tmp_path / "r.csv").require_room([scaled])


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """A folder in the way: one error, nothing changed."""
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ResultsError, match="is a folder"):
        opened(tmp_path / "folder.yaml")
    path = tmp_path / "r.yaml"
    results = opened(path)
    path.mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        results.write([winner(16)])


def test_no_winner_yet_is_an_empty_list(tmp_path: Path) -> None:
    """Which a later run goes on with."""
    path = tmp_path / "r.yaml"
    opened(path).write([])
    assert yaml.safe_load(path.read_text()) == []
    opened(path).write([winner(16, config=LONG)])
    (row,) = tune_gemm_yaml.read_winners(str(path))
    assert row.config == LONG
