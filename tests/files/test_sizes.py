from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import pytest

from genkern.errors import InputError
from genkern.files.aiter_columns import rowwise
from genkern.files.sizes import GemmDefaults, SizeList, read_sizes
from genkern.gemm.problem import GemmProblem

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data (files of AITER and tune_gemm)")
ROW = "- {'M': 16, 'N': 4096, 'K': 8192}\n"


def read(tmp_path: Path, text: str | bytes, name: str = "sizes.yaml", arch: str = "gfx942", **said: object) -> SizeList:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_sizes(str(path), GemmDefaults(**said), arch)  # type: ignore[arg-type]


def refusal(tmp_path: Path, text: str | bytes, name: str = "sizes.yaml", **said: object) -> str:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, name, **said)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400 + len(str(tmp_path))
    return message


def test_tune_gemm_entry(tmp_path: Path) -> None:
    """'T' is row-major, 'N' column-major; without them the layout is the command line's."""
    text = "- {'M': 1, 'N': 2, 'K': 3, 'rowMajorA': 'N', 'rowMajorB': 'T'}\n" + ROW
    first, second = read(tmp_path, text).problems
    assert first == GemmProblem(1, 2, 3, row_major_a=False, row_major_b=True)
    assert second == GemmProblem(16, 4096, 8192)
    assert read(tmp_path, ROW, row_major_b=True).problems[0].row_major_b


def test_duplicates_are_tuned_once_and_told(tmp_path: Path) -> None:
    """Equal problems keep the first place and are named in a note; another layout is another problem."""
    other = "- {'M': 16, 'N': 4096, 'K': 8192, 'rowMajorB': 'T'}\n"
    sizes = read(tmp_path, ROW + other + ROW + ROW)
    assert [problem.row_major_b for problem in sizes.problems] == [False, True]
    assert sizes.notes[1:] == ("2 duplicate sizes are tuned once: 16x4096x8192",)


@pytest.mark.parametrize(
    ("entry", "said", "types"),
    [
        ("", {}, ("a16w16", "bf16", "bf16", "bf16")),
        ("", {"dtype_a": "fp16"}, ("a16w16", "fp16", "fp16", "fp16")),
        ("", {"op": "a8w8"}, ("a8w8", "fp8e4m3fnuz", "fp8e4m3fnuz", "bf16")),
        ("", {"dtype_a": "int8"}, ("a8w8", "int8", "int8", "bf16")),
        (", op: a8w8", {}, ("a8w8", "fp8e4m3fnuz", "fp8e4m3fnuz", "bf16")),
        (", dtype_a: int8", {"op": "a16w16"}, ("a8w8", "int8", "int8", "bf16")),
        (", dtype_b: fp16", {}, ("a16w16", "fp16", "fp16", "fp16")),
        (", dtype_a: fp16, dtype_b: fp16", {"dtype_a": "bf16", "dtype_b": "bf16"}, ("a16w16", "fp16", "fp16", "fp16")),
        (", dtype_c: fp32", {"dtype_c": "fp16"}, ("a16w16", "bf16", "bf16", "fp32")),
        (", dtype_a: fp8, dtype_b: bf8, dtype_c: fp16", {}, ("a8w8", "fp8e4m3fnuz", "fp8e5m2fnuz", "fp16")),
    ],
)
def test_types_come_from_the_file_then_the_command_line(
    tmp_path: Path, entry: str, said: dict[str, object], types: tuple[str, ...]
) -> None:
    """Explicit in the file beats the command line, which beats genkern's default; C follows A for 16-bit inputs."""
    problem = read(tmp_path, f"- {{M: 1, N: 2, K: 3{entry}}}", **said).problems[0]  # type: ignore[arg-type]
    assert (problem.op, problem.dtype_a, problem.dtype_b, problem.dtype_c) == types


def test_activation_comes_from_the_file_then_the_command_line(tmp_path: Path) -> None:
    """As any key; but a result of genkern's that names no activation is one without, and so it is tuned again."""
    size = "- {M: 1, N: 2, K: 3}\n- {M: 4, N: 2, K: 3, activation: gelu}\n- {M: 5, N: 2, K: 3, activation: none}\n"
    text = size + "- {M: 6, N: 2, K: 3, family: tiled}\n"
    assert [p.activation for p in read(tmp_path, text).problems] == ["none", "gelu", "none", "none"]
    assert [p.activation for p in read(tmp_path, text, activation="silu").problems] == ["silu", "gelu", "none", "none"]
    csv = read(tmp_path, "M,N,K,dtype\n1,2,3,torch.bfloat16\n", "a.csv", activation="relu")
    assert [p.activation for p in csv.problems] == ["relu"]


def test_types_meant_for_other_sizes_are_told(tmp_path: Path) -> None:
    """A 16-bit type of the command line is not used for a size that says a8w8, and a note says so."""
    sizes = read(tmp_path, "- {M: 1, N: 2, K: 3, op: a8w8}\n" + ROW, dtype_a="fp16", dtype_b="fp16")
    assert [p.dtype_a for p in sizes.problems] == ["fp8e4m3fnuz", "fp16"]
    assert "dtype_a fp16 does not suit a8w8" in sizes.notes[0]


def test_foreign_float8_becomes_the_targets_own_with_a_note(tmp_path: Path) -> None:
    """AITER's fnuz names are tuned as e4m3fn on a target that has no fnuz, and the reverse, never silently."""
    text = "M,N,K,dtype\n1,2,3,torch.float8_e4m3fnuz\n"
    sizes = read(tmp_path, text, "a.csv", "sm_90")
    assert sizes.problems[0].dtype_a == "fp8e4m3fn"
    assert sizes.notes == ("sm_90 does not compute in fp8e4m3fnuz: its own fp8e4m3fn is tuned instead (1 of 1 sizes)",)
    assert read(tmp_path, text, "a.csv", "gfx942").notes == ()
    reverse = read(tmp_path, text.replace("fnuz", "fn"), "a.csv", "gfx942")
    assert reverse.problems[0].dtype_a == "fp8e4m3fnuz"
    assert len(reverse.notes) == 1


def test_aiter_columns(tmp_path: Path) -> None:
    """Spaces after commas, True and False, torch's names; A row-major and B stored [N, K], whatever the default."""
    text = (
        "M, N, K, bias, dtype, outdtype, scaleAB, bpreshuffle\n"
        "1, 2, 3, True, torch.bfloat16, torch.float32, False, False\n\n"
        "4, 5, 6, False, torch.int8, torch.bfloat16, True, False\n"
    )
    sizes = read(tmp_path, text, "a.csv", row_major_a=False, row_major_b=True)
    assert sizes.problems == (
        GemmProblem(1, 2, 3, dtype_c="fp32", bias=True),
        GemmProblem(4, 5, 6, op="a8w8", dtype_a="int8", dtype_b="int8"),
    )
    assert sizes.notes == ()


def test_untyped_csv_is_told(tmp_path: Path) -> None:
    """AITER's fp8 lists may have M,N,K only: bf16 is then an assumption, so a note says it; or fp8, where a8w8 is said,
    by the file's name or the command line."""
    sizes = read(tmp_path, "M,N,K\n1,2,3\n", "untuned_gemm.csv")
    assert sizes.problems[0].dtype_a == "bf16"
    assert sizes.notes[0].startswith("no column has the types: a16w16 with A in bf16, B in bf16 and C in bf16 are")
    asked = read_sizes(str(tmp_path / "untuned_gemm.csv"), GemmDefaults(op="a8w8"), "gfx942")
    named = read(tmp_path, "M,N,K\n1,2,3\n", "a8w8_untuned_gemm.csv")
    for told in (asked, named):
        assert "a8w8 with A in fp8e4m3fnuz, B in fp8e4m3fnuz and C in bf16 are taken (1 of 1 sizes)" in told.notes[0]
    assert read(tmp_path, "M,N,K\n1,2,3\n", "a8w8_untuned_gemm.csv", dtype_a="fp16").problems[0].dtype_a == "fp16"


def test_untyped_yaml_is_told(tmp_path: Path) -> None:
    """tune_gemm's entries name no types, and it means fp16: that bf16 was taken is said, unless types are named."""
    (note,) = read(tmp_path, ROW + ROW.replace("16", "32") + "- {M: 1, N: 2, K: 3, dtype_a: fp16}\n").notes
    assert "a16w16 with A in bf16, B in bf16 and C in bf16 are taken; tune_gemm's own default is fp16" in note
    assert note.endswith("(2 of 3 sizes)")
    assert read(tmp_path, ROW, dtype_a="bf16").notes == ()
    assert read(tmp_path, "- {M: 1, N: 2, K: 3, op: a8w8}\n").notes == ()


@pytest.mark.parametrize("value", ["0100", "1:30", "0x10", "0b11", "1_000", "010", "-0100", "0o17"])
@pytest.mark.parametrize("key", ["M", "K"])
def test_numbers_that_yaml_reads_otherwise_are_refused(tmp_path: Path, key: str, value: str) -> None:
    """0100 is 64 in YAML 1.1 and 100 in 1.2, 1:30 is 90 or text: no size is other than it is written."""
    entry = {"M": "1", "N": "2", "K": "3", key: value}
    text = ROW + "- {" + ", ".join(f"{name}: {number}" for name, number in entry.items()) + "}\n"
    message = refusal(tmp_path, text)
    assert f"sizes.yaml, line 2: {key} = " in message
    assert value in message


def test_a_plus_is_the_same_everywhere(tmp_path: Path) -> None:
    """All versions of YAML read +64 as 64."""
    assert read(tmp_path, "- {M: +64, N: 2, K: 3}\n").problems[0].M == 64


def test_csv_numbers_are_decimal(tmp_path: Path) -> None:
    """Nothing else was ever meant there."""
    assert read(tmp_path, "M,N,K\n016,2,3\n", "a.csv").problems[0].M == 16
    assert read(tmp_path, "M,N,K\n0100,2,3\n", "a.csv").problems[0].M == 100


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("token,model_dim,inter_dim,expert,topk,act_type", "fused MoE"),
        ("gfx,b,m,n,k,libtype", "a batched GEMM with a scale for each 32"),
        ("dtype,K,V,BT,H,Hg", "delta net"),
        ("M,N", "lack"),
        ("M;N;K", "did you mean|use M"),
    ],
)
def test_other_operators_are_refused_with_the_expected_columns(tmp_path: Path, header: str, named: str) -> None:
    """Files of other operators are refused in one line that says which columns are expected."""
    message = refusal(tmp_path, header + "\n" + ",".join("1" for _ in header.split(",")) + "\n", "a.csv")
    assert re.search(named, message)
    assert "M" in message


@pytest.mark.parametrize(
    "value",
    [
        *(
            "0",
            "-1",
            str(2**40),
            "1.5",
            "true",
            "True",
            "null",
            "''",
            "'16'",
            "1; import os",
            "{{ 7*7 }}",
            "'{% raw %}'",
        ),
        *("__import__('os')", "NaN", ".nan", ".inf", "-.inf", "9" * 10_000, "0x" + "f" * 4000, "2020-01-01"),
        *("2020-13-45", "2020-01-01 00:00:00", "[1]", "{a: 1}", "1e3", "~", "=", "<<", "1_6x", "!!int 4", "&a 4", "*a"),
        *("!!python/object/apply:os.system ['true']", "!!binary AAAA", "1" + ":59" * 3000, '"\\n"', "\uff14"),
    ],
)
def test_bad_value_is_one_line_with_the_place(tmp_path: Path, value: str) -> None:
    """Whatever stands for M, the message has the file and line 2, and nothing is run or expanded."""
    message = refusal(tmp_path, ROW + f"- {{'N': 1, 'K': 1, 'M': {value}}}\n")
    assert "sizes.yaml, line 2" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "empty"),
        (b"# only a comment\n", "empty"),
        (b"---\n", "nothing"),
        (b"[]", "no sizes"),
        (b"M: 1\nN: 2\nK: 3\n", "one mapping"),
        (b"M,N,K\n1,2,3\n", "instead of a list"),
        (b"42", "42"),
        (b"- 1\n- 2\n", "mapping"),
        (b"- [1, 2, 3]\n", "mapping"),
        (b"- {M: 1, N: 2\n", "not YAML"),
        (b"- {M: 1, N: 2}\n", "K is missing"),
        (b"- {M: 1, N: 2, K: 3, k: 4}\n", "did you mean K"),
        (b"- {M: 1, N: 2, K: 3, rowMajorC: 'T'}\n", "did you mean rowMajor"),
        (b"- {M: 1, N: 2, K: 3, M: 4}\n", "repeated"),
        (b"- {M: 1, N: 2, K: 3, 4: 5}\n", "not text"),
        (b"- {M: 1, N: 2, K: 3, rowMajorA: X}\n", "row-major"),
        (b"- {M: 1, N: 2, K: 3, op: a4w4}\n", "a4w4"),
        (b"- {M: 1, N: 2, K: 3, op: '../evil'}\n", "evil"),
        (b"- {M: 1, N: 2, K: 3, dtype_a: fp4}\n", "fp4"),
        (b"- {M: 1, N: 2, K: 3, dtype_a: 16}\n", "dtype"),
        (b"- {M: 1, N: 2, K: 3, dtype_a: bf16, dtype_b: fp32}\n", "same"),
        (b"- {M: 1, N: 2, K: 3, dtype_a: fp8, dtype_b: int8}\n", "int8"),
        (b"- {M: 1, N: 2, K: 3, op: a8w8, dtype_a: bf16}\n", "bf16"),
        (b"- {M: 1, N: 2, K: 3, bias: 1}\n", "bias"),
        (b"- {M: 1, N: 2, K: 3, activation: tanh}\n", "write none, relu, gelu or silu"),
        (b"- {M: 1, N: 2, K: 3, activation: true}\n", "activation = true"),
        (b"- {M: 1, N: 2, K: 3, activation: [relu]}\n", "activation"),
        (b"- {M: 1, N: 2, K: 3, activation: null}\n", "activation"),
        (b"- {M: 1, N: 2, K: 3, activations: relu}\n", "did you mean activation"),
        (b"- {M: 1, N: 2, K: 3}\n---\n- {M: 1, N: 2, K: 3}\n", "second"),
        (b"- &a {M: 1, N: 2, K: 3}\n- *a\n", "anchors"),
        (b"- {<<: {M: 1}, N: 2, K: 3}\n", "<<"),
        (b"- {? {M: 1} : 2}\n", "line 1"),
        (b"[" * 100_000, "line 1"),
        (b"- " * 100_000, "line 1"),
        (b"{a: " * 100_000, "line 1"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "binary"),
        (ROW.encode("utf-16"), "UTF-8"),
        ("- {M: 1, é: 2}".encode("latin-1"), "UTF-8"),
        (b"- {M: 1\x07}", "not YAML"),
        (b"\x00\x01\x02", "binary"),
    ],
)
def test_bad_yaml_is_one_line(tmp_path: Path, text: bytes, expected: str) -> None:
    """Every broken file gives one InputError line that names the file and what is wrong."""
    message = refusal(tmp_path, text)
    assert "sizes.yaml" in message
    assert expected in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty"),
        ("M,N,K\n", "no sizes"),
        ("M,N,K\n1,2\n", "line 2: 2 values for 3"),
        ("M,N,K\n1,2,3,4\n", "line 2"),
        ("M,N,K\n1,2,\n", "K = ''"),
        ("M,N,K\n1,2,3\n4,5,x\n", "line 3: K = 'x'"),
        ("M,N,K\n1,2,1.0\n", "1.0"),
        ("M,N,K\n1,2,-3\n", "-3"),
        ("M,N,K\n1,2,٣\n", "٣"),
        ("M,N,K\n1,2," + "9" * 10_000, "999"),
        ("M,N,K\n1,2,=cmd|'/c calc'!A1\n", "=cmd"),
        ("M,N,M\n1,2,3\n", "repeated"),
        ("M,N,K,\n1,2,3,4\n", "empty or repeated"),
        ("M,N,K," + ",".join(f"c{i}" for i in range(16_000)), "a header of 16003 columns, more than 200"),
        ("M,N,K,Bias\n1,2,3,True\n", "did you mean bias"),
        ("M,N,K,bias\n1,2,3,maybe\n", "bias"),
        ("M,N,K,activation\n1,2,3,relu\n", "unknown column 'activation'"),
        ("M,N,K,dtype\n1,2,3,torch.float4_e2m1fn_x2\n", "float4"),
        ("M,N,K,dtype,scaleAB\n1,2,3,torch.bfloat16,True\n", "scaleAB"),
        ("M,N,K,q_dtype_w\n1,2,3,torch.uint4\n", "uint4"),
        ('M,N,K\n1,2,"3\n', "line"),
        ("M,N,K\n1,2," + "1" * 200_000 + "\n", "line 2"),
    ],
)
def test_bad_csv_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    """Every broken table gives one InputError line with the line number and what is wrong."""
    assert expected in refusal(tmp_path, text, "a.csv")


@pytest.mark.parametrize("name", ["missing.yaml", "missing.csv", "."])
def test_missing_file_and_folder(tmp_path: Path, name: str) -> None:
    """A path that is no file is refused in one line that names it."""
    with pytest.raises(InputError) as caught:
        read_sizes(str(tmp_path / name), GemmDefaults(), "gfx942")
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_command_line_that_does_not_fit_itself(tmp_path: Path) -> None:
    """A contradiction between the command line's own op and types is not blamed on the file."""
    assert refusal(tmp_path, ROW, op="a8w8", dtype_a="bf16").startswith("command line: ")
    assert refusal(tmp_path, ROW, dtype_a="fp3").startswith("command line: ")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_byte_order_mark_and_crlf(tmp_path: Path, newline: str, mark: bytes) -> None:
    """Files saved on Windows read the same."""
    yaml_text = mark + (ROW + ROW.replace("16", "32")).replace("\n", newline).encode()
    csv_text = mark + "M,N,K\n16,4096,8192\n32,4096,8192\n".replace("\n", newline).encode()
    wanted = (GemmProblem(16, 4096, 8192), GemmProblem(32, 4096, 8192))
    assert read(tmp_path, yaml_text).problems == wanted
    assert read(tmp_path, csv_text, "a.CSV").problems == wanted


def test_aliases_and_merge_keys_cannot_explode(tmp_path: Path) -> None:
    """The classic alias bombs are refused at once."""
    bomb = "- &a {M: 1}\n" + "".join(
        f"- &{chr(98 + i)} {{<<: [{', '.join('*' + chr(97 + i) for _ in range(9))}]}}\n" for i in range(12)
    )
    start = time.monotonic()
    assert "line 1" in refusal(tmp_path, bomb)
    assert time.monotonic() - start < 2


def test_a_long_list_is_fast(tmp_path: Path) -> None:
    """5,000 sizes are read in a few seconds at most, though every entry is checked."""
    text = "".join(ROW.replace("16", str(m)) for m in range(1, 5001))
    start = time.monotonic()
    assert len(read(tmp_path, text).problems) == 5000
    assert time.monotonic() - start < 10


@needs_shared
def test_aiters_own_files() -> None:
    """Every GEMM list of AITER is read whole, tuned ones too; a row of the fused MoE list is two stages."""
    found = {}
    foreign = {path.name: path for path in (SHARED / "aiter").glob("*_gemm*.csv") if "scale" in path.name}
    assert len(foreign) >= 3
    for name, path in foreign.items():
        with contextlib.suppress(InputError):
            sizes = read_sizes(str(path), GemmDefaults(), "gfx942")
            assert {problem.op for problem in sizes.problems} == {name[name.index("a") :].partition("_untuned")[0]}
    for path in sorted((SHARED / "aiter").glob("*gemm*.csv")):
        if path.name in foreign:
            continue
        found[path.name] = read_sizes(str(path), GemmDefaults(), "gfx942")
        rows = [line for line in path.read_text().splitlines()[1:] if line.strip(", ")]
        duplicates = len(rows) - len(found[path.name].problems)
        assert duplicates == 0 or any(f"{duplicates} duplicate" in note for note in found[path.name].notes)
    assert len(found) >= 7
    assert found["a8w8_untuned_gemm.csv"].problems[0] == GemmProblem(
        1, 1280, 8192, "a8w8", "int8", "int8", own=tuple(rowwise().items())
    )
    assert found["bf16_untuned_gemm.csv"].problems[0] == GemmProblem(64, 256, 5120, dtype_c="fp32")
    mixtures = read_sizes(str(SHARED / "aiter" / "untuned_fmoe.csv"), GemmDefaults(), "gfx942")
    assert {problem.op for problem in mixtures.problems} == {"fused_moe"}
    assert [problem.size for problem in mixtures.problems[:2]] == ["512x4096x6144", "512x6144x4096"]
    assert len(mixtures.problems) == 24
    assert mixtures.notes[0].startswith("left out: 1 fused MoE ")


@needs_shared
@pytest.mark.parametrize("name", ["tuning_gemm_sizes.yaml", "fallback_tuned_configs.yaml"])
def test_tune_gemms_own_files(name: str) -> None:
    """tune_gemm's size list and its results file name the same 63 sizes."""
    sizes = read_sizes(str(SHARED / "tune_gemm" / name), GemmDefaults(), "gfx942")
    assert len(sizes.problems) == 63
    assert sizes.problems[0] == GemmProblem(4864, 4096, 4096)
