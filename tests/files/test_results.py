"""Tests of genkern/files/results.py: a results file grows, and keeps to the letter what it held."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from command import ROOT
from winner_factory import CONFIG, LONG, results_text, winner, write_results

from genkern.errors import InputError, OutputError, ResultsError
from genkern.file_io import MAX_READ_BYTES
from genkern.files.aiter_columns import EXTRA_COLUMNS, rowwise
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.results import ResultsFile, RunFacts, require_same_run, source_today
from genkern.gemm.config import Config
from genkern.gemm.gpus import NOT_PRESENT, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.result.device import DeviceKey
from genkern.result.result import Result

MI300X = DeviceKey("gfx942", "AMD Instinct MI300X", 304)
FACTS = RunFacts(MI300X, {"triton": "3.7.0", "torch": "2.13"}, predicted=False)
PREDICTING = replace(FACTS, key=replace(MI300X, device=MI300X.device + NOT_PRESENT), predicted=True)
SIXTEEN = GemmProblem(16, 4096, 4096)
HEADER_16 = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw\n"
)
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
    assert sizes(path) == [16, 32, 64]
    assert "# made by hand\n- {'M': 16," in path.read_text()
    assert "# and a second one\n- M: 32\n" in path.read_text()


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
    monkeypatch.setattr("genkern.files.results.write_whole", lambda path, text: written.append(text))
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
        (FACTS, {"time_source": "predicted"}, "predicted times, this run measures: give another -o or --all"),
        (PREDICTING, {}, "measured times, this run predicts: give another -o"),
        (replace(FACTS, versions={"triton": "3.9.0"}), {}, "results of triton 3.7.0, this is triton 3.9.0"),
    ],
)
def test_rows_of_another_run_are_refused(
    suffix: str, facts: RunFacts, changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    """Unless just they are tuned again. AITER's columns know no version."""
    path = tmp_path / f"r.{suffix}"
    write_results(path, [winner(16, **changes)])
    if suffix == "csv" and "triton" in said:
        assert opened(path, facts).problems
        return
    with pytest.raises(ResultsError, match=said):
        opened(path, facts)
    assert opened(path, facts, again=[SIXTEEN]).problems
    with pytest.raises(ResultsError, match=said):
        opened(path, facts, again=[GemmProblem(17, 4096, 4096)])


@pytest.mark.parametrize("suffix", ["yaml", "csv"])
def test_a_measured_row_is_never_replaced_by_a_predicted_one(suffix: str, tmp_path: Path) -> None:
    """Not with --all either, in one line before any work; the other way round is what --all is for."""
    path = tmp_path / f"r.{suffix}"
    write_results(path, [winner(16)])
    with pytest.raises(ResultsError, match=r"measured.* 16x4096x4096"):
        opened(path, PREDICTING, again=[SIXTEEN]).require_room([SIXTEEN])
    write_results(path, [winner(16, time_source="predicted", device=PREDICTING.key.device)])
    results = opened(path, again=[SIXTEEN])
    results.require_room([SIXTEEN])
    results.write([winner(16, 5.0)])
    (row,) = read_results(str(path))
    assert (row.duration_us, row.predicted) == (5.0, False)


def test_a_time_of_tune_gemms_counts_as_measured(tmp_path: Path) -> None:
    """It has no others; an entry without a time may be replaced by anything."""
    path = tmp_path / "r.yaml"
    path.write_text(TUNE_GEMM.replace("# TFLOPS: 5\n", "# TFLOPS: 5 time(us): 7.5\n"))
    results = opened(path, PREDICTING, again=[SIXTEEN])
    results.require_room([GemmProblem(32, 4096, 4096)])
    with pytest.raises(ResultsError, match="measured time of 16x4096x4096"):
        results.require_room([SIXTEEN])


@pytest.mark.parametrize("suffix", ["yaml", "csv"])
@pytest.mark.parametrize("facts", [FACTS, PREDICTING])
@pytest.mark.parametrize(
    "changes",
    [
        {"compute_units": 80},
        {"arch": "gfx950", "device": "AMD Instinct MI355X"},
        {"device": "AMD Instinct MI300A", "compute_units": 228},
    ],
)
def test_rows_of_another_device_stay_and_are_not_done(
    suffix: str, facts: RunFacts, changes: dict[str, object], tmp_path: Path
) -> None:
    """Not even with --all, nor where they are of the very same size: the device is in the key."""
    path = tmp_path / f"r.{suffix}"
    units = int(str(changes.get("compute_units", 304)))
    theirs = [winner(m, 3.9, **{k: v for k, v in changes.items() if k != "compute_units"}) for m in (16, 64)]
    write_results(path, theirs, units)
    before = path.read_text()
    results = opened(path, facts, again=[SIXTEEN])
    assert (results.problems, results.configs) == (set(), {})
    assert results.others == f"{path} keeps 2 rows of other devices or libraries unchanged"
    results.require_room([SIXTEEN])
    ours = winner(16, 11.2, device=facts.key.device, time_source="predicted" if facts.predicted else "rocprofv3")
    results.write([ours])
    assert path.read_text().startswith(before)
    assert sizes(path) == [16, 64, 16]
    again = opened(path, facts)
    assert again.configs == {SIXTEEN: ours.config}
    again.write([replace(ours, duration_us=9.0)])
    assert path.read_text().startswith(before)
    assert [row.duration_us for row in read_results(str(path))] == [3.9, 3.9, 9.0]


def test_another_model_of_one_architecture_is_another_device(tmp_path: Path) -> None:
    """By its name, where older results do not say their compute units."""
    path = tmp_path / "r.yaml"
    write_results(path, [winner(16, device="AMD Instinct MI325X")])
    path.write_text(path.read_text().replace("'compute_units': 304, ", ""))
    assert opened(path).problems == set()
    path.write_text(path.read_text().replace("MI325X", "MI300X"))
    assert opened(path).problems == {SIXTEEN}
    # Times that were predicted for it are of it: its driver's name for it is another one than genkern's.
    path.write_text(path.read_text().replace("MI300X", "MI300X (not present)").replace("rocprofv3", "predicted"))
    assert opened(path, PREDICTING).problems == {SIXTEEN}


def test_rows_of_other_libraries_and_layouts_stay_to_the_letter(tmp_path: Path) -> None:
    """Spaces, quotes, line ends, blank lines and a missing end of the last line included; so do AITER's columns."""
    path = tmp_path / "r.csv"
    theirs = [
        'gfx942, 304,64,4096,4096,False,torch.bfloat16,torch.bfloat16,False,False,asm,5,13,3.9,"_ZN5,k",0.0,1,1\r\n',
        "\r\n",
        "gfx942,304,16,4096,4096,False,torch.bfloat16,torch.bfloat16,False,True,triton,0,0,3.90,auto,0.0,1,1\r\n",
        "gfx942,80,16,4096,4096,False,torch.bfloat16,torch.bfloat16,False,False,torch,0,0,0,native,0.0,1,1",
    ]
    before = HEADER_16.replace("\n", "\r\n") + "".join(theirs)
    path.write_bytes(before.encode())
    results = opened(path, again=[SIXTEEN])
    assert results.problems == set()
    results.require_room([SIXTEEN])
    results.write([winner(16)])
    after = path.read_bytes().decode()
    assert after.startswith(before + "\r\ngfx942,304,16,4096,4096,False,")
    assert after.endswith("\r\n")
    assert opened(path).configs == {SIXTEEN: CONFIG}
    opened(path).write([winner(16, 5.0)])
    assert path.read_bytes().decode().startswith(before + "\r\n")
    assert len(read_results(str(path))) == 4


@pytest.mark.parametrize("facts", [FACTS, PREDICTING])
@pytest.mark.parametrize("us", ["3.9", "0.0"])
def test_a_row_of_another_library_is_not_doubled(us: str, facts: RunFacts, tmp_path: Path) -> None:
    """AITER refuses a table with two rows of one key, and theirs stays: one line before any work, nothing written."""
    path = tmp_path / "r.csv"
    row = f"gfx942,304,16,4096,4096,False,torch.bfloat16,torch.bfloat16,False,False,asm,5,13,{us},k,0.0,1,1\n"
    path.write_text(HEADER_16 + row)
    results = opened(path, facts, again=[SIXTEEN])
    assert results.problems == set()
    with pytest.raises(ResultsError, match=r"asm.* 16x4096x4096.* -o"):
        results.require_room([GemmProblem(4, 4096, 4096), SIXTEEN])
    for other in (GemmProblem(4, 4096, 4096), replace(SIXTEEN, bias=True), replace(SIXTEEN, dtype_c="fp32")):
        results.require_room([other])
    assert path.read_text() == HEADER_16 + row


def test_rows_keep_their_order(tmp_path: Path) -> None:
    """A row that is tuned again stays where it is; new ones come last, in the order of the run."""
    for name in ("r.yaml", "r.csv"):
        path = tmp_path / name
        write_results(path, [winner(m) for m in (64, 1, 16)])
        opened(path).write([winner(8), winner(16, 5.0), winner(4)])
        assert sizes(path) == [64, 1, 16, 8, 4]
        assert [row.duration_us for row in read_results(str(path))] == [10.0, 10.0, 5.0, 10.0, 10.0]


def test_a_table_of_aiters_columns_keeps_them(tmp_path: Path) -> None:
    """Its rows would not be to the letter with more columns; the new ones have AITER's too."""
    path = tmp_path / "r.csv"
    ours = results_text([winner(16)], "r.csv").splitlines()
    before = "\n".join(line.rsplit(",", len(EXTRA_COLUMNS))[0] for line in ours) + "\n"
    path.write_text(before)
    results = opened(path)
    results.require_room([GemmProblem(4, 4096, 4096)])
    results.write([winner(4, interval_us=(9.9, 10.1), runner_up=LONG.name, runner_up_us=11.0)])
    assert path.read_text().startswith(before)
    assert path.read_text().startswith(HEADER_16)
    assert opened(path).problems == {winner(16).problem, winner(4).problem}


def test_room_in_a_csv(tmp_path: Path) -> None:
    """One op, layouts that AITER knows, and no activation; a YAML file has room for all."""
    plain, scaled = GemmProblem(1, 8, 8), GemmProblem(1, 8, 8, "a8w8", "int8", "int8", own=tuple(rowwise().items()))
    opened(tmp_path / "r.yaml").require_room([plain, scaled, GemmProblem(1, 8, 8, row_major_b=True, activation="gelu")])
    results = opened(tmp_path / "r.csv")
    results.require_room([plain])
    for problems in (
        [plain, scaled],
        [GemmProblem(1, 8, 8, row_major_a=False)],
        [GemmProblem(1, 8, 8, activation="relu")],
    ):
        with pytest.raises((InputError, ResultsError), match=r"\.yaml"):
            results.require_room(problems)
    results.write([winner(16)])
    with pytest.raises(ResultsError, match="a16w16, a8w8"):
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
    (row,) = read_results(str(path))
    assert row.config == LONG


def test_a_row_says_whether_it_is_of_today(tmp_path: Path) -> None:
    """Without a GPU; rows of other libraries and of configs that are not legal any more are of nothing today."""
    tile = Config("tiled", 16, 64, 64)
    source = generate(SIXTEEN, [tile], "sm_90").source_digest(tile, gpu_for_arch("sm_90"))
    timed = {"duration_us": 9.0, "spread_us": 0.1, "samples": 40, "time_source": "cudagraph"}
    winner = Result(SIXTEEN, tile, arch="sm_90", device="NVIDIA H200", source=source, **timed)  # type: ignore[arg-type]
    path = tmp_path / "results.yaml"
    path.write_text(results_text([winner], compute_units=132))
    (row,) = read_results(str(path))
    assert source_today(row) == row.source == winner.source
    assert source_today(replace(row, config=replace(tile, num_stages=3))) not in ("", row.source)
    assert source_today(replace(row, config=replace(tile, BLOCK_SIZE_K=4096))) == ""
    assert source_today(replace(row, config=None)) == source_today(replace(row, arch="")) == ""


def test_results_of_100000_sizes_can_be_read_back() -> None:
    """A run that writes a file can go on with it: what is read at most has room for so many rows, long ones."""
    files = sorted((ROOT / "results").glob("nvidia_*/*.yaml"))
    longest = max(len(line) for file in files for line in file.read_bytes().splitlines())
    assert longest > 1000
    assert longest * 100_000 < MAX_READ_BYTES


def test_another_run_is_refused_at_its_first_row(tmp_path: Path) -> None:
    """However long and whatever the rest of the file is: a list of 100,000 rows is not read for it."""
    path = tmp_path / "r.yaml"
    path.write_text(results_text([winner(16)]) + "- [\n")
    for refused in (lambda: require_same_run(str(path), PREDICTING, GemmDefaults()), lambda: opened(path, PREDICTING)):
        with pytest.raises(ResultsError, match="measured"):
            refused()
    with pytest.raises(ResultsError, match="line 3"):
        opened(path)
    path.write_text(results_text([winner(16)]))
    require_same_run(str(path), FACTS, GemmDefaults())
    require_same_run(str(tmp_path / "none.yaml"), PREDICTING, GemmDefaults())


@pytest.mark.parametrize(
    ("good", "bad"), [("'SPLIT_K': 1,", f"'SPLIT_K': {value},") for value in ("true", "1.0", "null")]
)
def test_a_row_is_judged_by_its_own_values(good: str, bad: str, tmp_path: Path) -> None:
    """Rows share what is equal, and 1, 1.0 and true are equal in Python: only the first is a number of a config."""
    path = tmp_path / "r.yaml"
    rows = results_text([winner(16), winner(32)])
    head, _, last = rows.rpartition("- {")
    assert good in last
    path.write_text(f"{head}- {{{last.replace(good, bad)}")
    with pytest.raises(ResultsError, match="line 3: SPLIT_K"):
        read_results(str(path))
    path.write_text(rows)
    one, other = read_results(str(path))
    assert one.config is other.config
    assert (one.line, other.line) == (2, 3)
