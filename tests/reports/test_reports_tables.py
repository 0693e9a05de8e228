"""Public reports of 2026 about tables of tuned kernels (AITER, TunableOp, hipBLASLt): README.md beside this file."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from command import run_here
from winner_factory import winner as made
from winner_factory import write_results

from benchmarks.checking.round_trips import cases
from genkern.files import aiter_fmoe
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import op_names
from genkern.packing.rows import rows_of
from genkern.runtime.process.size_recorder import SizeRecorder

TILED = Config("tiled", 64, 64, 128, 8, 1, 4, 3)
FAST = Config("tiled", 32, 64, 128, 8, 1, 4, 3)
TUNED = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw"
)
MI300X = {"arch": "gfx942", "device": "AMD Instinct MI300X"}
Capsys = pytest.CaptureFixture[str]


def table(path: Path, *rows: str) -> Path:
    path.write_text("\n".join((TUNED, *rows)) + "\n")
    return path


def row(gfx: str, units: int, libtype: str, us: float, kernel: str = TILED.name, m: int = 16) -> str:
    types = "False,torch.bfloat16,torch.bfloat16,False,False"
    return f"{gfx},{units},{m},4096,4096,{types},{libtype},0,1,{us},{kernel},0.0,1.0,1.0"


def test_every_family_is_recorded_in_its_own_schema(tmp_path: Path, capsys: Capsys) -> None:
    """aiter#5267, #5268: what the engine dispatches (N = 2688, two layers merged) is recorded whatever its format, and
    becomes the untuned list of its family; q_dtype_w where that family has it."""
    fp8 = ("fp8e4m3fnuz", "fp8e4m3fnuz")
    sizes = [
        GemmProblem(16, 2688, 7168),
        GemmProblem(16, 2688, 7168, "a8w8", *fp8, own=(("scales", "per_token"),)),
        GemmProblem(16, 2688, 7168, "a8w8_blockscale", *fp8),
        GemmProblem(16, 2688, 7168, "a4w4_blockscale", "int8", "int8"),
    ]
    recorder = SizeRecorder(tmp_path / "recorded", pytest.fail, {})
    for size in sizes:
        recorder(None, size, None)
    merge = ("merge", tmp_path / "recorded", "-o")
    assert "--op" in run_here(capsys, *merge, tmp_path / "untuned.csv").refusal
    header = {"a16w16": "M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle", "a8w8": "M,N,K,q_dtype_w"}
    for size in sizes:
        path = tmp_path / f"{size.op}_untuned_gemm.csv"
        ran = run_here(capsys, *merge, path, "--op", size.op)
        assert ran.status == 0, ran
        assert path.read_text().splitlines()[0] == header.get(size.op, "M,N,K")
        assert read_sizes(str(path), GemmDefaults(), "gfx942").problems == (size,)
    none = run_here(capsys, *merge, tmp_path / "n.yaml", "--op", "a16w8").refusal
    assert "a16w8" in none


def test_a_gfx_that_genkern_does_not_know(tmp_path: Path, capsys: Capsys) -> None:
    """vllm#55001: rows of gfx1250 in a table of gfx950 are nobody else's: neither packed nor exported for gfx950."""
    path = table(
        tmp_path / "bf16_tuned_gemm.csv",
        row("gfx950", 256, "genkern", 9.0),
        row("gfx1250", 256, "hipblaslt", 3.0, "other"),
    )
    rows = rows_of(read_results(str(path)), None, False)
    assert [each.winner.arch for each in rows.packed] == ["gfx950"]
    assert rows.left_out == {"of other libraries": 1}
    ran = run_here(capsys, "export", path, "--to", "aiter_triton", "-o", tmp_path / "out")
    assert ran.status == 0
    assert [each.name for each in (tmp_path / "out").iterdir() if each.is_dir()] == ["gfx950"]
    assert "gfx1250, 256" in run_here(capsys, "status", path).out


def test_sizes_with_one_column_and_an_odd_one(tmp_path: Path, capsys: Capsys) -> None:
    """aiter#5183: a shared expert's gate has N = 1, and N = 513 merged with the router. Both have kernels, and rows in
    AITER's table."""
    sizes = tmp_path / "bf16_untuned_gemm.csv"
    lines = [f"64,{n},512,False,torch.bfloat16,torch.bfloat16,False,False" for n in (1, 513)]
    sizes.write_text("\n".join(("M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle", *lines)) + "\n")
    out = tmp_path / "bf16_tuned_gemm.csv"
    ran = run_here(capsys, "-i", sizes, "--arch", "gfx950", "--profiler", "predict", "-o", out)
    assert ran.status == 0, ran
    with out.open(newline="") as file:
        assert [(each["M"], each["N"], each["gfx"]) for each in csv.DictReader(file)] == [
            ("64", "1", "gfx950"),
            ("64", "513", "gfx950"),
        ]


@pytest.mark.parametrize(
    ("tokens", "unread", "wanted"),
    [([96, 64, 384], "96, 384", "128, 512"), ([1, 2, 64, 16384], "", ""), ([5, 40000], "5", "8")],
)
def test_tokens_that_aiter_never_looks_up(
    tokens: list[int], unread: str, wanted: str, tmp_path: Path, capsys: Capsys
) -> None:
    """aiter#5125: it rounds up to a power of two below 32768. Lists, imports and tables with other tokens say so."""
    said = "ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fnuz,torch.float8_e4m3fnuz,QuantType.per_1x128,1,0"
    lines = [f"{each},4096,512,288,8,{said}" for each in tokens]
    path = tmp_path / "glm_untuned_fmoe.csv"
    path.write_text("\n".join((",".join(aiter_fmoe.UNTUNED_COLUMNS), *lines)) + "\n")
    notes = "\n".join(read_sizes(str(path), GemmDefaults(), "gfx942").notes)
    ran = run_here(capsys, "import", path, "-o", tmp_path / "r.yaml", "--arch", "gfx942")
    problems = [
        GemmProblem(m, n, k, aiter_fmoe.OP, activation=activation, own=(("experts", 8), ("top_k", 2), *stage))
        for m in tokens
        for n, k, activation, stage in ((512, 4096, "silu", (("stage", "gate_up"),)), (4096, 512, "none", ()))
    ]
    write_results(tmp_path / "w.yaml", [made(16, 5.0, TILED, problem=each, **MI300X) for each in problems])
    exported = run_here(capsys, "export", tmp_path / "w.yaml", "--to", "aiter_fmoe", "-o", tmp_path / "t.csv")
    assert (ran.status, exported.status) == (0, 0), exported
    for text in (notes, ran.out, exported.out):
        assert (f"rows of {unread} tokens: tune {wanted}" in text) == bool(unread), text
        assert ("never looks up" in text) == bool(unread), text


def test_default_rows_of_tunableop(tmp_path: Path, capsys: Capsys) -> None:
    """pytorch#192140: a row `Default` is a GEMM that was tuned, and no solution: its size is taken like any other."""
    path = tmp_path / "tunableop_results0.csv"
    sizes = [f"GemmTunableOp_BFloat16_TN,tn_4096_{m}_7168_ld_7168_7168_4096" for m in (16, 32, 64)]
    path.write_text(
        f"Validator,PT_VERSION,2.12.0\n{sizes[0]},Default,0.012\n{sizes[1]},Gemm_Rocblas_7,0.01\n{sizes[2]}\n"
    )
    assert run_here(capsys, "import", path, "-o", tmp_path / "r.yaml").status == 0
    assert [each.M for each in read_sizes(str(tmp_path / "r.yaml"), GemmDefaults(), "gfx942").problems] == [16, 32, 64]
    text = (tmp_path / "r.yaml").read_text()
    assert "Default" not in text
    assert "BLOCK_SIZE_M" not in text


@pytest.mark.parametrize("command", ["-i", "merge", "pack", "export"])
def test_a_table_of_a_header_alone(command: str, tmp_path: Path, capsys: Capsys) -> None:
    """aiter#3109: bf16_tuned_gemm.csv had no rows, so that every lookup missed. Each command says that it is empty."""
    path = table(tmp_path / "bf16_tuned_gemm.csv")
    more = {"-i": ["--arch", "gfx942", "--profiler", "predict"], "export": ["--to", "tunableop"]}.get(command, [])
    ran = run_here(capsys, command, path, *more, "-o", tmp_path / "out.yaml")
    assert "no sizes" in ran.err or "are empty" in ran.err, ran
    assert ran.status == 2
    assert not (tmp_path / "out.yaml").exists()


@pytest.mark.parametrize("to", ["aiter_triton", "tunableop"])
def test_a_size_in_two_tables(to: str, tmp_path: Path, capsys: Capsys) -> None:
    """aiter#2376, #2503, #3422: of one size in two files the faster row is taken, whatever their order, and the other
    one is counted."""
    slow = table(tmp_path / "a_tuned_gemm.csv", row("gfx942", 304, "genkern", 9.0))
    fast = table(tmp_path / "b_tuned_gemm.csv", row("gfx942", 304, "genkern", 5.0, FAST.name))
    for order in ((slow, fast), (fast, slow)):
        rows = rows_of([each for path in order for each in read_results(str(path))], None, False)
        assert [each.winner.duration_us for each in rows.packed] == [5.0]
        assert sum(rows.left_out.values()) == 1
        out = tmp_path / order[0].stem
        ran = run_here(capsys, "export", *order, "--to", to, "-o", out)
        assert "left out: 1 size: " in ran.out
        assert "1 size in " in ran.out
        if to == "aiter_triton":
            assert f",{FAST.name},1.0000,1\n" in (out / "losses.csv").read_text()
        merged = run_here(capsys, "merge", *order, "-o", tmp_path / "m.yaml", "--overwrite")
        assert "0 of them new" in merged.out
        assert len(read_sizes(str(tmp_path / "m.yaml"), GemmDefaults(), "gfx942").problems) == 1


def test_a_compute_type_is_part_of_a_size(tmp_path: Path) -> None:
    """rocm-libraries#6557: xf32_r and f32_r are two sizes. Neither row replaces the other, nor serves it."""
    fp32 = {"dtype_a": "fp32", "dtype_b": "fp32", "dtype_c": "fp32", "arch": "sm_90", "device": "NVIDIA H200"}
    rows = [made(16, us, TILED, **fp32, own=own) for us, own in ((9.0, ()), (5.0, (("precision", "tf32"),)))]
    write_results(tmp_path / "r.yaml", rows, 132)
    packed = rows_of(read_results(str(tmp_path / "r.yaml")), None, False)
    assert {each.winner.duration_us: dict(each.winner.problem.own) for each in packed.packed} == {
        9.0: {},
        5.0: {"precision": "tf32"},
    }
    assert packed.left_out == {}


def test_every_field_is_part_of_a_size() -> None:
    """flashinfer#3363, aiter#5469: a key without the layout of the scales, or with another count of experts, serves the
    wrong kernel. Lines of two sizes that differ in any field, layout, type or activation differ."""
    sizes = cases("gfx942")
    assert len({size_line(each) for each in sizes}) == len({*sizes}) == len(sizes)
    assert len({size_line(each, TILED, "gfx942") for each in sizes}) == len(sizes)
    assert {each.op for each in sizes} == {*op_names()}


def test_a_column_of_remarks(tmp_path: Path, capsys: Capsys) -> None:
    """aiter#2376, #5275: tables have a column _tag, which most rows leave empty. They are read, and take new rows."""
    sizes = tmp_path / "bf16_untuned_gemm.csv"
    types = "False,torch.bfloat16,torch.bfloat16,False,False"
    sizes.write_text(f"M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle\n16,512,512,{types}\n")
    theirs = [f"{row('gfx942', 304, 'hipblaslt', 3.0, 'other', m)},{tag}" for m, tag in ((16, ""), (32, "fallback"))]
    out = tmp_path / "bf16_tuned_gemm.csv"
    out.write_text("\n".join((f"{TUNED},_tag", *theirs)) + "\n")
    assert [each.M for each in read_sizes(str(out), GemmDefaults(), "gfx942").problems] == [16, 32]
    ran = run_here(capsys, "-i", sizes, "--arch", "gfx942", "--profiler", "predict", "-o", out)
    assert ran.status == 0, ran
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [(each["N"], each["_tag"]) for each in found] == [("4096", ""), ("4096", "fallback"), ("512", "")]
    assert [each.problem.N for each in read_results(str(out))] == [4096, 4096, 512]


def test_a_config_of_another_size_is_checked_again(tmp_path: Path) -> None:
    """helion#2705: a config that copies boxes of rows, tuned for K = 4096, cannot read rows of 4095 elements. It is
    counted, and not packed."""
    boxes = Config("tiled_tma", 64, 64, 128, 8, 1, 4, 3)
    h200 = {"arch": "sm_90", "device": "NVIDIA H200", "time_source": "cudagraph"}
    winners = [made(16, 5.0, boxes, problem=GemmProblem(16, 4096, k), **h200) for k in (4096, 4095)]
    write_results(tmp_path / "r.yaml", winners, 132)
    rows = rows_of(read_results(str(tmp_path / "r.yaml")), None, False)
    assert [each.winner.problem.K for each in rows.packed] == [4096]
    assert [reason.startswith("not legal") for reason in rows.left_out] == [True]


def test_tables_of_another_count_of_units_stay(tmp_path: Path, capsys: Capsys) -> None:
    """aiter#4634, #4735, #5668: a row for 80 units is none for 304. A run for 304 does not count it as done, keeps it
    to the letter, and says how many it keeps."""
    sizes = tmp_path / "bf16_untuned_gemm.csv"
    sizes.write_text(
        "M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle\n16,4096,4096,False,torch.bfloat16,torch.bfloat16,False,False\n"
    )
    theirs = row("gfx942", 80, "genkern", 1.0)
    out = table(tmp_path / "bf16_tuned_gemm.csv", theirs)
    ran = run_here(capsys, "-i", sizes, "--arch", "gfx942", "--profiler", "predict", "-o", out)
    assert ran.status == 0, ran
    assert "keeps 1 row of other devices" in ran.out + ran.err
    lines = out.read_text().splitlines()
    assert lines[1].startswith(theirs)
    assert lines[2].startswith("gfx942,304,16,4096,4096,")
