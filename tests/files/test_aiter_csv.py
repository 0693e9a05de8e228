from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest
from winner_factory import results_text, write_results

from genkern.errors import ResultsError
from genkern.files import aiter_csv
from genkern.files.aiter_columns import TUNED_COLUMNS, rowwise
from genkern.files.aiter_csv import obstacle
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check
from genkern.kernels.contract.sum_order import like
from genkern.ops.op import gb_per_s, op_names
from genkern.result.result import Proof, Result
from genkern.timing.libraries import AsmKernel, StoredAlgorithm

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "aiter"
CONFIG = Config("tiled", 64, 64, 128, 4, 5, 4, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=2)
# As AITER means its a8w8 tables.
ROWWISE = tuple(rowwise().items())
CHECK = Check(CONFIG.name, True, 0.0, 1e-3, "64x256x5120", "float32 reference")
BF16 = Result(
    GemmProblem(64, 256, 5120, dtype_c="fp32", bias=True),
    CONFIG,
    duration_us=7.91911,
    spread_us=0.1,
    samples=15,
    discarded=0,
    time_source="rocprofv3",
    arch="gfx950",
    device="AMD Instinct MI355X",
    check=Proof.of(CHECK),
)
ALGORITHM = StoredAlgorithm(131000, bytes(range(64))).name
FP8 = dataclasses.replace(
    BF16, problem=GemmProblem(1, 1280, 8192, "a8w8", "fp8e4m3fn", "fp8e4m3fn", own=ROWWISE), check=None, duration_us=4.0
)
TRUSTED = dataclasses.replace(
    BF16,
    interval_us=(7.91, 7.93454),
    discarded=2,
    runner_up="tiled_BM32",
    runner_up_us=8.123456,
    vendor_us=8.5,
    choice="vendor",
    vendor=ALGORITHM,
    torch_us=8.75,
    code="0123456789abcdef",
    searched_share=0.03125,
    expected_loss=0.001,
    source="fedcba9876543210",
    vendor_sums="wgmma k16",
    batch_invariant=True,
    invariant_loss=0.01234,
)
HEADER_16 = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw"
)
EXTRA = (
    "interval_low_us,interval_high_us,samples,discarded,runner_up,runner_up_us,margin,vendor_us,choice,vendor,"
    "torch_us,code,searched_share,expected_loss,source,sums,vendor_sums,batch_invariant,invariant_loss,config,"
    "predicted_low_us,predicted_high_us"
)
SUMS = f"dot; 5 parts of 1024; as {like(CONFIG)}"
SUMS_8 = SUMS.replace(" of 1024", ": 4 x 1664 + 1536")
KEY = "gfx950,256,64,256,5120,torch.int8"
HEADER_8 = "gfx,cu_num,M,N,K,q_dtype_w,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio"


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "tuned.csv"
    path.write_text(text)
    with pytest.raises(ResultsError) as caught:
        read_results(str(path))
    assert "\n" not in str(caught.value)
    assert "tuned.csv" in str(caught.value)
    return str(caught.value)


def test_a16w16_line(tmp_path: Path) -> None:
    """Header and row begin as AITER's, character for character; bw counts each operand once, C in its own type."""
    path = tmp_path / "tuned.csv"
    write_results(path, [BF16], 256)
    assert path.read_text() == (
        f"{HEADER_16},{EXTRA}\ngfx950,256,64,256,5120,True,torch.bfloat16,torch.float32,False,False,genkern,0,5,7.9191,"
        f"{CONFIG.name},0.0,21.19,422.19,,,15,0,,,,,config,,,,,,,{SUMS},,,,,,\n"
    )


def test_a8w8_line(tmp_path: Path) -> None:
    """a8w8 has AITER's other header; a winner that was not checked has no error ratio."""
    path = tmp_path / "tuned.csv"
    write_results(str(path), [FP8], 256)
    bw = round(gb_per_s(FP8.problem, 4.0), 2)
    assert path.read_text().splitlines() == [
        f"{HEADER_8},{EXTRA}",
        f"gfx950,256,1,1280,8192,torch.float8_e4m3fn,genkern,0,5,4.0,{CONFIG.name},5.24,{bw},,,,15,0,,,,,config,,,,,,,{SUMS_8},,,,,,",
    ]


def test_how_far_a_time_can_be_trusted(tmp_path: Path) -> None:
    """Interval, samples, runner-up and margin come back, with the library's time and what to call."""
    path = str(tmp_path / "tuned.csv")
    write_results(path, [TRUSTED, BF16], 256)
    row, bare = read_results(path)
    assert (row.interval_us, row.samples, row.discarded) == ((7.91, 7.9345), 15, 2)
    assert (row.runner_up, row.runner_up_us) == ("tiled_BM32", 8.1235)
    assert row.margin == pytest.approx(1.0258, abs=1e-4)
    assert (row.vendor_us, row.choice, row.vendor, row.torch_us) == (8.5, "vendor", ALGORITHM, 8.75)
    assert (row.code, row.source, row.sums) == (TRUSTED.code, TRUSTED.source, SUMS)
    assert (row.vendor_sums, row.batch_invariant, row.invariant_loss) == ("wgmma k16", True, 0.0123)
    assert (bare.vendor_sums, bare.batch_invariant, bare.invariant_loss) == ("", False, None)
    assert (row.searched_share, row.expected_loss) == (0.03125, 0.001)
    assert (bare.interval_us, bare.samples, bare.discarded, bare.choice) == (None, 15, 0, "config")
    assert (bare.runner_up, bare.runner_up_us, bare.margin, bare.vendor_us) == ("", None, None, None)
    assert (bare.vendor, bare.torch_us) == ("", None)


@pytest.mark.parametrize("op", sorted({*op_names()} - {*TUNED_COLUMNS}))
def test_formats_that_it_has_no_table_for_are_refused(op: str) -> None:
    """In one line, before anything is tuned."""
    assert aiter_csv.no_room([op], "") == f"AITER has no table for {op}"


BLOCKS = "gfx,cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
FOUR_BITS = "gfx,cu_num,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
BATCHES = "gfx,cu_num,B,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
FP8_TYPES = "fp8e4m3fn", "fp8e4m3fn", "bf16"
# Of each format that has a table of its own: AITER's columns, and those that say what theirs do not.
TABLES = [
    (GemmProblem(1, 1280, 8192, "a8w8_bpreshuffle", *FP8_TYPES, own=ROWWISE), HEADER_8, "op,dtype_a"),
    (GemmProblem(1, 1280, 8192, "a8w8_blockscale", *FP8_TYPES), BLOCKS, "op,dtype_a"),
    (GemmProblem(1, 1280, 8192, "a8w8_blockscale_bpreshuffle", "int8", "int8"), BLOCKS, "op,dtype_a"),
    (GemmProblem(1, 1280, 8192, "a4w4_blockscale", "int8", "int8"), FOUR_BITS, "libtype,op,dtype_a"),
    (GemmProblem(1, 1280, 8192, "batched_a16w16", own=(("batch_size", 16),)), BATCHES, "libtype,op,dtype_a"),
    (GemmProblem(1, 1280, 8192, "batched_a8w8", *FP8_TYPES), BATCHES, "libtype,op,dtype_a"),
]


@pytest.mark.parametrize(("problem", "header", "saying"), TABLES, ids=lambda value: getattr(value, "op", ""))
def test_tables_of_a_format_each(tmp_path: Path, problem: GemmProblem, header: str, saying: str) -> None:
    """AITER's columns to the letter, then genkern's; as results and as a list of sizes it is the same problem again."""
    assert obstacle(problem) == ""
    path = tmp_path / "tuned.csv"
    write_results(str(path), [dataclasses.replace(BF16, problem=problem)], 256)
    assert path.read_text().splitlines()[0] == f"{header},{EXTRA},{saying}"
    (row,) = read_results(str(path))
    assert (row.problem, row.config, row.is_genkerns, row.typed) == (problem, CONFIG, True, True)
    assert read_sizes(str(path), GemmDefaults(), "gfx950").problems == (problem,)
    # AITER's own rows, and those that were added to its table, are told by the name of the file.
    name = problem.op.replace("a16w16", "bf16")
    plain = tmp_path / f"{name}_tuned_gemm.csv"
    table = pd.read_csv(path, dtype=str).drop(columns=[*EXTRA.split(","), *saying.split(",")])
    assert ",".join(table.columns) == header
    table.to_csv(plain, index=False)
    read, listed = read_results(str(plain))[0], read_sizes(str(plain), GemmDefaults(), "gfx950").problems[0]
    assert (read.problem.op, dict(read.problem.own)) == (problem.op, dict(problem.own))
    assert (listed.op, listed.own) == (problem.op, problem.own)


def test_what_tables_of_a_format_cannot_say() -> None:
    """Blocks and layouts other than AITER's, and types that their rows do not name."""
    shuffled, blocks, _, four_bits, batch, _ = (problem for problem, *_ in TABLES)
    own = tuple(sorted((*ROWWISE, ("layout", "n8k16"))))
    assert "rows mean scales=per_token, not layout=n8k16" in obstacle(dataclasses.replace(shuffled, own=own))
    assert "mean none of a format's own" in obstacle(dataclasses.replace(blocks, own=(("block_k", 64),)))
    assert "rows are of bf16" in obstacle(dataclasses.replace(batch, dtype_a="fp16", dtype_b="fp16"))
    assert "have no bias" in obstacle(dataclasses.replace(blocks, bias=True))
    assert "rows are of e2m1" in obstacle(dataclasses.replace(four_bits, dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn"))


def test_a_table_with_fewer_of_our_columns_grows(tmp_path: Path) -> None:
    """One that genkern wrote before it had the last two keeps its columns; one with another's has no room."""
    path = tmp_path / "tuned.csv"
    before = [line.rsplit(",", 2)[0] for line in results_text([BF16], "tuned.csv", 256).splitlines()]
    text = "\n".join(before) + "\n"
    assert aiter_csv.no_room(["a16w16"], before[0] + "\n") == ""
    assert aiter_csv.no_room(["a8w8"], before[0] + "\n")
    assert aiter_csv.no_room(["a16w16"], "sort," + before[0] + "\n")
    head, (line,) = aiter_csv.render([TRUSTED], 256, before[0] + "\n")
    path.write_text(text + line)
    assert head + before[1] + "\n" == text
    assert [row.vendor_us for row in read_results(str(path))] == [None, 8.5]


@pytest.mark.parametrize("op", [BF16, FP8])
def test_a_table_without_our_columns_is_read(tmp_path: Path, op: Result) -> None:
    """AITER's own, and what genkern wrote before it had them."""
    path = tmp_path / "tuned.csv"
    ours = results_text([op], "tuned.csv", 256).splitlines()
    before = [",".join(line.split(",")[: -len(EXTRA.split(","))]) for line in ours]
    assert before[0] in (HEADER_16, HEADER_8)
    path.write_text("\n".join(before) + "\n")
    (row,) = read_results(str(path))
    assert (row.samples, row.interval_us, row.margin) == (None, None, None)
    assert (row.problem, row.config) == (op.problem, op.config)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("9.0,8.0,15,0,,,,,config,,,,,,,,,,,", "interval_low_us"),
        ("9.0,,15,0,,,,,config,,,,,,,,,,,", "interval_low_us"),
        (",,many,0,,,,,config,,,,,,,,,,,", "samples = 'many'"),
        (",,15,-1,,,,,config,,,,,,,,,,,", "discarded = '-1'"),
        (",,15,0,,soon,,,config,,,,,,,,,,,", "runner_up_us = 'soon'"),
        (",,15,0,,,-1,,config,,,,,,,,,,,", "margin"),
        (",,15,0,,,,nan,config,,,,,,,,,,,", "vendor_us"),
        (",,15,0,,,,,both,,,,,,,,,,,", "choice"),
        (",,15,0,,,,,config,cublaslt 131000 00,,,,,,,,,,", "vendor"),
        (",,15,0,,,,,config,,-1,,,,,,,,,", "torch_us"),
        (",,15,0,,,,,config,,,0123,,,,,,,,", "code = '0123'"),
        (",,15,0,,,,,config,,,,1.5,,,,,,,", "searched_share = '1.5'"),
        (",,15,0,,,,,config,,,,,inf,,,,,,", "expected_loss = 'inf'"),
        (",,15,0,,,,,config,,,,,,0123,,,,,", "source = '0123'"),
        (",,15,0,,,,,config,,,,,,,\xe9,,,,", "sums = "),
        (",,15,0,,,,,config,,,,,,,x,\xe9,,,", "vendor_sums = "),
        (",,15,0,,,,,config,,,,,,,x,,maybe,,", "batch_invariant = 'maybe'"),
        (",,15,0,,,,,config,,,,,,,,,True,,", "batch_invariant is true without sums"),
        (",,15,0,,,,,config,,,,,,,x,,True,-1,", "invariant_loss"),
    ],
)
def test_a_bad_cell_of_ours_is_one_line(tmp_path: Path, cells: str, expected: str) -> None:
    """Our columns are checked like the rest."""
    message = refusal(tmp_path, f"{HEADER_8},{EXTRA}\n{KEY},asm,0,5,4.0,k,1,1,0,{cells},,\n")
    assert "line 2" in message
    assert expected in message


def test_rows_round_trip(tmp_path: Path) -> None:
    """Problem, config, device and time come back; an AITER from before 2026-04 has no gfx column, and all but it."""
    path = tmp_path / "tuned.csv"
    write_results(path, [BF16], 256)
    lines = path.read_text().splitlines()
    for gfx in ("gfx950", ""):
        (row,) = read_results(str(path))
        assert (row.problem, row.config, row.config_name) == (BF16.problem, CONFIG, CONFIG.name)
        assert (row.arch, row.compute_units, row.library, row.time_source) == (gfx, 256, "genkern", "measured")
        assert (row.duration_us, row.check, row.bpreshuffle) == (7.9191, Proof(error_ratio=0.0), False)
        path.write_text("\n".join(line.partition(",")[2] for line in lines) + "\n")


def test_times_of_a_shared_gpu_say_so(tmp_path: Path) -> None:
    """As a libtype of its own, which is no other library's."""
    path = tmp_path / "tuned.csv"
    write_results(path, [dataclasses.replace(BF16, time_source="cudagraph_shared")], 256)
    assert ",genkern_shared," in path.read_text()
    (row,) = read_results(str(path))
    assert (row.time_source, row.is_genkerns, row.measured) == ("measured_shared", True, True)


@pytest.mark.parametrize(("choice", "libtype", "solidx"), [("vendor", "hipblaslt", 1234), ("config", "genkern", 0)])
def test_a_solution_that_won_is_aiters_to_call(choice: str, libtype: str, solidx: int, tmp_path: Path) -> None:
    """By AITER's own libtype and solidx; to genkern the row stays its own, with config, choice and algorithm."""
    path = tmp_path / "tuned.csv"
    kept = StoredAlgorithm(100202, (1234).to_bytes(4, "little") + bytes(20), "hipblaslt")
    won = dataclasses.replace(BF16, choice=choice, vendor=kept.name, vendor_us=5.0, torch_us=6.0)
    write_results(path, [won], 256)
    (said,) = pd.read_csv(path).to_dict("records")
    assert (said["libtype"], said["solidx"]) == (libtype, solidx)
    (row,) = read_results(str(path))
    assert (row.is_genkerns, row.config, row.choice, row.vendor) == (True, CONFIG, choice, kept.name)
    # AITER's own such rows are another library's.
    path.write_text(path.read_text().replace(kept.name, ""))
    assert read_results(str(path))[0].is_genkerns == (libtype == "genkern")


@pytest.mark.parametrize("choice", ["vendor", "config"])
def test_an_assembly_kernel_that_won_is_aiters_to_call(choice: str, tmp_path: Path) -> None:
    """By libtype, solidx, splitK and kernelName, as AITER's own row has them; genkern's config has a column."""
    path = tmp_path / "tuned.csv"
    kernel = AsmKernel(5, 13, "_ZN5aiter39bf16gemm_fp32bf16_tn_64x64_splitk_cleanE")
    won = dataclasses.replace(BF16, choice=choice, vendor=kernel.name, vendor_us=5.0, torch_us=6.0)
    write_results(path, [won], 256)
    (said,) = pd.read_csv(path).to_dict("records")
    found = tuple(said[name] for name in ("libtype", "solidx", "splitK", "kernelName"))
    assert found == (("asm", 5, 13, kernel.kernel) if choice == "vendor" else ("genkern", 0, 5, CONFIG.name))
    (row,) = read_results(str(path))
    assert (row.is_genkerns, row.config, row.choice, row.vendor) == (True, CONFIG, choice, kernel.name)


def test_rows_have_no_activation(tmp_path: Path) -> None:
    """No column could say one: not that of the command line either."""
    path = str(tmp_path / "tuned.csv")
    write_results(path, [BF16], 256)
    assert read_results(path, GemmDefaults(activation="relu"))[0].problem == BF16.problem


def test_as_aiter_reads_it(tmp_path: Path) -> None:
    """pandas, with which AITER reads its tables, sees bools as bools and dtypes as torch's names."""
    write_results(str(tmp_path / "tuned.csv"), [BF16, TRUSTED], 256)
    table = pd.read_csv(tmp_path / "tuned.csv")
    assert table["bias"].dtype == bool
    assert list(table["outdtype"]) == ["torch.float32"] * 2
    assert table["us"].dtype == float
    # As aiter/tuned_gemm.py does, for one of the two: its index, then a dictionary for each row.
    (found,) = table[:1].drop_duplicates().set_index(HEADER_16.split(",")[:10]).to_dict("index").items()
    assert found[0] == ("gfx950", 256, 64, 256, 5120, True, "torch.bfloat16", "torch.float32", False, False)
    assert {name: found[1][name] for name in ("libtype", "solidx", "splitK", "kernelName")} == {
        "libtype": "genkern",
        "solidx": 0,
        "splitK": 5,
        "kernelName": CONFIG.name,
    }


def test_no_winners_is_a_header(tmp_path: Path) -> None:
    """A run without winners writes the header, which reads as no rows."""
    write_results(tmp_path / "tuned.csv", [], 256)
    assert (tmp_path / "tuned.csv").read_text() == f"{HEADER_16},{EXTRA}\n"
    assert read_results(str(tmp_path / "tuned.csv")) == []


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(1, 2, 3, row_major_b=True),
        GemmProblem(1, 2, 3, row_major_a=False),
        GemmProblem(1, 2, 3, "a8w8", "int8", "int8", bias=True),
        GemmProblem(1, 2, 3, "a8w8", "int8", "int8", "fp16"),
        GemmProblem(1, 2, 3, "a8w8", "fp8e4m3fn", "fp8e5m2"),
        GemmProblem(1, 2, 3, activation="relu"),
        GemmProblem(1, 2, 3, "a8w8", "int8", "int8", activation="gelu"),
    ],
)
def test_what_no_column_can_hold(problem: GemmProblem) -> None:
    """A winner that AITER's key would mistake for another problem."""
    assert obstacle(problem)
    assert not obstacle(BF16.problem)


def test_results_serve_as_a_size_list(tmp_path: Path) -> None:
    """A tuned file can be tuned again."""
    path = str(tmp_path / "tuned.csv")
    write_results(path, [BF16], 256)
    assert read_sizes(path, GemmDefaults(), "sm_90").problems == (BF16.problem,)


@pytest.mark.parametrize(("us", "expected"), [("0.0", None), ("-1", None), ("inf", None), ("nan", None), ("2.5", 2.5)])
def test_rows_of_other_libraries(tmp_path: Path, us: str, expected: float | None) -> None:
    """Other libraries' rows have no config; a time that AITER did not measure (0, -1, inf) is None."""
    path = tmp_path / "tuned.csv"
    path.write_text(f"{HEADER_16}\ngfx950,256,64,256,5120,False,dtypes.bf16,,False,True,asm,5,13,{us},_ZN5,0.0,2,4\n")
    row = read_results(str(path))[0]
    assert row.problem == GemmProblem(64, 256, 5120)
    assert (row.config, row.duration_us, row.bpreshuffle, row.library) == (None, expected, True, "asm")
    assert (row.time_source, row.predicted, row.measured) == ("", None, expected is not None)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data (files of AITER)")
def test_aiters_own_file() -> None:
    """AITER's tuned bf16 table is read whole: 232 rows of four libraries."""
    rows = read_results(str(SHARED / "bf16_tuned_gemm.csv"))
    assert len(rows) == 232
    assert {row.library for row in rows} == {"asm", "flydsl", "opus", "triton"}
    assert all(row.config is None for row in rows)
    assert {(row.arch, row.compute_units) for row in rows} == {("gfx950", 256), ("gfx1250", 96)}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("genkern,0,5,4.0,tiled_BM64,1,1,0", "config name"),
        (
            "genkern,0,5,4.0,tiled_BM63_BN64_BK64_GM1_SK1_nW4_nS2,1,1,0",
            "BLOCK_SIZE_M",
        ),
        ("genkern,0,5,4.0," + "x" * 5000 + ",1,1,0", "too long"),
        ("asm,0,5,fast,k,1,1,0", "us = 'fast'"),
        ("asm,0,5,4.0,k,1,1,low", "err_ratio"),
        ("asm,0,5", "9 values"),
    ],
)
def test_bad_row_is_one_line(tmp_path: Path, cells: str, expected: str) -> None:
    """A cell that cannot be read gives one line with file, line and column."""
    message = refusal(tmp_path, f"{HEADER_8}\n{KEY},{cells}\n")
    assert "line 2" in message
    assert expected in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty"),
        ("M,N,K\n1,2,3\n", "list of sizes"),
        ("token,expert\n1,2\n", "fused MoE"),
        ("M,N,K,u\n1,2,3,4\n", "us"),
    ],
)
def test_other_files_are_one_line(tmp_path: Path, text: str, expected: str) -> None:
    """An untuned list, another operator's table or an empty file: ResultsError in one line."""
    assert expected in refusal(tmp_path, text)


def test_bad_key_is_one_line(tmp_path: Path) -> None:
    """The cells that name the device and the size are checked like the rest."""
    tail = "asm,0,5,4.0,k,1,1,0\n"
    assert "cu_num = 'many'" in refusal(tmp_path, f"{HEADER_8}\n{KEY.replace('256,64', 'many,64')},{tail}")
    assert "N = 0" in refusal(tmp_path, f"{HEADER_8}\n{KEY.replace('64,256', '64,0')},{tail}")
