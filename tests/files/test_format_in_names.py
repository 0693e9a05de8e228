"""Tests of genkern/files/format_in_names.py: which format a list is of is found in its name, columns and kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from genkern.errors import InputError
from genkern.files.aiter_columns import rowwise
from genkern.files.format_in_names import StatedFormat, format_in_file_name, format_in_kernel_name
from genkern.files.sizes import GemmDefaults, SizeList, read_sizes
from genkern.ops.fields import NoFields, word
from genkern.ops.op import get_op

ROW = "- {'M': 16, 'N': 4096, 'K': 8192}\n"


@dataclass(frozen=True)
class Scales:
    """As a format declares its own fields."""

    scales: str = word("per_tensor", "per_token", help="what has a scale of its own")


def read(tmp_path: Path, text: str, name: str, **said: object) -> SizeList:
    path = tmp_path / name
    path.write_text(text)
    return read_sizes(str(path), GemmDefaults(**said), "gfx942")  # type: ignore[arg-type]


def refusal(tmp_path: Path, text: str, name: str, **said: object) -> str:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, name, **said)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a8w8_blockscale_untuned_gemm_ds_v3.csv", StatedFormat("a8w8", blockscale=True)),
        ("dsv4_a8w8_blockscale_bpreshuffle_tuned_gemm.csv", StatedFormat("a8w8", blockscale=True, shuffled=True)),
        ("a8w8_bpreshuffle_tuned_gemm_qwen3_5_397b_a17b_mxfp4_attnfp8.csv", StatedFormat("a8w8", shuffled=True)),
        ("bf16_tuned_gemm.csv", StatedFormat()),
        ("qwen3-32b_tp2.yaml", StatedFormat()),
        ("a16w16_and_a8w8.yaml", StatedFormat()),
        ("a8w8.yaml", StatedFormat("a8w8")),
        ("schema8w8.yaml", StatedFormat()),
        ("llama_w4a8.yaml", StatedFormat("a8w4")),
        ("w8a8_fp8_blockwise.yaml", StatedFormat("a8w8", blockscale=True)),
    ],
)
def test_names_of_files(name: str, said: StatedFormat) -> None:
    """AITER's own names; that of a model in them says nothing."""
    assert format_in_file_name(name) == said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_ZN5aiter41f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128E", "a4w4_blockscale_bpreshuffle"),
        ("_ZN5aiter42fp8gemm_bf16_blockscale_BpreShuffle_32x128E", "a8w8_blockscale_bpreshuffle"),
        ("a8w8_blockscale_1x128x128_256x16x64x256_16x16_16x16_1x1_16x16x1_intrawave_v1", "a8w8_blockscale"),
        ("_ZN5aiter41I8gemm_bf16_perTokenI8_BpreShuffle_16x128E", "a8w8_bpreshuffle"),
        ("flydsl_bpreshuflle_16x64x512_F8_F8_B16_1x1x0x2_default", "bf16_bpreshuffle"),
    ],
)
def test_names_of_kernels(name: str, said: str) -> None:
    """AITER's own, as its tuned tables have them; `bf16` stands for the types of the row."""
    assert format_in_kernel_name(name).special
    assert format_in_kernel_name(name).op_name("bf16") == said


@pytest.mark.parametrize(
    "name",
    [
        "_ZN5aiter39bf16gemm_fp32bf16_tn_64x64_splitk_cleanE",
        "flydsl_gemm6_abf16_wbf16_bf16_t16x64x128_split_k8_async_copyTrue_b_to_ldsTrue_b_preshuffleFalse",
        "a8w8_rowwise_256x16x64x512_16x16_1x1_32x8x1_32x8x1_1x16x1x16_4x4x1_1x1_intrawave_v3",
        "opus_gemm_flatmm_splitk_256x64x96x64_2x1_16x16x32_0x0x0_wgpc",
        "tiled_BM64_BN64_BK32_GM4_SK1_nW4_nS2",
        *("auto", "native", "sol2", ""),
    ],
)
def test_kernels_of_plain_formats(name: str) -> None:
    """They say nothing: their rows' types do."""
    assert not format_in_kernel_name(name).special


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a4w4_gemm.csv", "M,N,K\n1,2,3\n", "line 2: the name of the file says a4w4,"),
        (
            "a4w4_blockscale.csv",
            "M,N,K,bpreshuffle\n1,32,64,True\n",
            "bpreshuffle = True says a4w4_blockscale_bpreshuf",
        ),
        ("dsv3_A4W4.yaml", ROW, "the name of the file says a4w4,"),
        ("a8w4.yaml", ROW, "says a8w4,"),
        ("llama-w4a8.yaml", ROW, "says a8w4,"),
        ("a16w8_bpreshuffle.csv", "M,N,K,q_dtype_w\n1,2,3,torch.int8\n", "says a16w8_bpreshuffle,"),
        ("preshuffled.yaml", ROW, "says a16w16_bpreshuffle,"),
        ("a.csv", "M,N,K,dtype,bpreshuffle\n1,2,3,torch.bfloat16,True\n", "bpreshuffle = True says a16w16_bpreshuffle"),
        (
            "a.csv",
            "M,N,K,kernelName\n1,2,3,_Z41f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128E\n",
            "kernelName says a4w4_blocks",
        ),
        ("a.csv", "M,N,K,kernelName\n1,2,3,flydsl_bpreshuflle_16x64x512_F8_F8_B16\n", "says a16w16_bpreshuffle"),
    ],
)
def test_a_list_of_another_format_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    """Whether its name, a column or a kernel says so: tuning it as something else would answer another question."""
    message = refusal(tmp_path, text, name)
    assert said in message
    assert "a format that genkern does not have (it has a16w16, a16w4" in message


@pytest.mark.parametrize(
    "word", ["mxfp4", "mxfp6", "nvfp4", "int4", "gptq", "awq", "marlin", "fmoe", "fp8", "AWQ", "W4", "q4_k_m"]
)
def test_a_word_for_several_formats_or_none(tmp_path: Path, word: str) -> None:
    """It is not tuned as bf16: one line says what there is. What is said of the format is stronger."""
    for name, text in ((f"llama_{word}.yaml", ROW), (f"{word}-tp8.csv", "M,N,K\n16,256,512\n")):
        message = refusal(tmp_path, text, name)
        assert f"the name of the file says {word.lower()[:2]}" in message
        assert "genkern has a16w16, a16w4" in message
    assert read(tmp_path, ROW, f"{word}.yaml", op="a8w8").problems[0].op == "a8w8"
    assert read(tmp_path, ROW.replace("}", ", 'op': 'a16w4'}"), f"{word}.yaml").problems[0].op == "a16w4"
    assert read(tmp_path, ROW.replace("}", ", 'dtype_a': 'bf16'}"), f"{word}.yaml").problems[0].op == "a16w16"


@pytest.mark.parametrize(
    ("name", "op"), [("w8a8.yaml", "a8w8"), ("w4a16.yaml", "a16w4"), ("fp8_blockwise.yaml", "a8w8_blockscale")]
)
def test_engines_names_of_formats_that_are_there(tmp_path: Path, name: str, op: str) -> None:
    """Weights first, as vLLM writes it, and blocks by another word."""
    assert read(tmp_path, ROW, name).problems[0].op == op


def test_a_format_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as there is an op of that name, its lists are read as such; nothing here knows the names of ops."""
    monkeypatch.setattr("genkern.files.format_in_names.op_names", lambda: ("a16w16", "a8w8", "a9w9_blockscale"))
    monkeypatch.setattr("genkern.files.gemm_entry.get_op", lambda name: replace(get_op("a8w8"), name=name))
    for name in ("x_a9w9_blockscale.csv", "A9W9_blockscale.yaml"):
        text = "M,N,K\n1,2,3\n" if name.endswith("csv") else ROW
        sizes = read(tmp_path, text, name)
        assert [problem.op for problem in sizes.problems] == ["a9w9_blockscale"]
    typed = read(tmp_path, "M,N,K,q_dtype_w\n1,2,3,torch.int8\n", "x_a9w9_blockscale.csv").problems[0]
    assert (typed.op, typed.dtype_a) == ("a9w9_blockscale", "int8")
    assert "says a9w9_blockscale_bpreshuffle, a format" in refusal(tmp_path, ROW, "a9w9_blockscale_bpreshuffle.yaml")


LISTS = {
    "a8w8_bpreshuffle_untuned_gemm.csv": ("M,N,K,q_dtype_w\n64,32,64,torch.int8\n", "a8w8_bpreshuffle", "int8"),
    "shuffled.csv": ("M,N,K,q_dtype_w,bpreshuffle\n64,32,64,torch.int8,True\n", "a8w8_bpreshuffle", "int8"),
    "dsv3_a8w8_bpreshuffle.csv": ("M,N,K\n64,32,64\n", "a8w8_bpreshuffle", "fp8e4m3fnuz"),
    "a8w8_blockscale_bpreshuffle_untuned_gemm.csv": ("M,N,K\n64,32,64\n", "a8w8_blockscale_bpreshuffle", "fp8e4m3fnuz"),
    "bf16_untuned_batched_gemm.csv": ("B,M,N,K\n16, 64, 32, 64\n", "batched_a16w16", "bf16"),
    "a4w4_blockscale_untuned_gemm.csv": ("M,N,K\n64, 32, 64\n", "a4w4_blockscale", "int8"),
    "a8w8_untuned_batched_gemm.csv": ("B,M,N,K\n16, 64, 32, 64\n", "batched_a8w8", "fp8e4m3fnuz"),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_formats_that_are_there(tmp_path: Path, name: str) -> None:
    """AITER's own lists, by name or column: with the scales that its tables mean, and the batch."""
    text, op, dtype = LISTS[name]
    (problem,) = read(tmp_path, text, name).problems
    own = {"scales": "per_token"} if op == "a8w8_bpreshuffle" else {"batch_size": 16} if "batched" in op else {}
    assert (problem.op, problem.dtype_a, dict(problem.own)) == (op, dtype, own)


def test_a_batch_of_another_format(tmp_path: Path) -> None:
    """A column that says batches leaves their types to --op; a format without batches is refused for it."""
    sizes = read(tmp_path, "B,M,N,K\n16,64,32,64\n", "a.csv", op="batched_a8w8")
    assert (sizes.problems[0].op, sizes.problems[0].batch) == ("batched_a8w8", 16)
    assert not any("asked for" in note for note in sizes.notes)
    said = refusal(tmp_path, "B,M,N,K\n16,64,32,64\n", "a.csv", op="a8w8")
    assert "batch_size is not a field of a8w8" in said


def test_what_is_asked_for_is_stronger_than_a_name(tmp_path: Path) -> None:
    """--op, or an entry's own op, with a note; but a column that says shuffled is about the very weights."""
    sizes = read(tmp_path, "M,N,K\n1,2,3\n", "a4w4_untuned.csv", op="a8w8")
    assert sizes.problems[0].op == "a8w8"
    assert "the name of the file says a4w4, but a8w8 was asked for (1 of 1 sizes)" in sizes.notes
    assert read(tmp_path, "- {M: 1, N: 2, K: 3, op: a16w16}\n", "a4w4.yaml").problems[0].op == "a16w16"
    agreed = read(tmp_path, "- {M: 1, N: 2, K: 3, op: a8w8_blockscale}\n", "a8w8_blockscale.yaml")
    assert not any("asked for" in note for note in agreed.notes)
    closer = read(tmp_path, "- {M: 1, N: 2, K: 32, op: a4w4_blockscale}\n", "a4w4.yaml")
    assert not any("asked for" in note for note in closer.notes)
    assert "bpreshuffle" in refusal(tmp_path, "M,N,K,bpreshuffle\n1,2,3,True\n", "a.csv", op="a8w8")


def test_aiters_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its a8w8 tables mean a scale for each row and column, its scaleAB one for each tensor, genkern's default. Where
    genkern's a8w8 has a field for that it is set, and else the difference is told."""
    text = "M,N,K,q_dtype_w\n1,2,3,torch.int8\n"
    for fields, own in ((NoFields, {}), (Scales, {"scales": "per_token"})):
        op = replace(get_op("a8w8"), fields=fields)
        monkeypatch.setattr("genkern.files.aiter_columns.get_op", lambda name, op=op: op)
        monkeypatch.setattr("genkern.files.gemm_entry._named", lambda name, op=op: op)
        monkeypatch.setattr("genkern.files.gemm_entry._op_of", lambda dtype, op=op: op)
        rowwise.cache_clear()
        sizes = read(tmp_path, text, "a.csv", op="a8w8")
        untyped = read(tmp_path, "M,N,K\n1,2,3\n", "a.csv", op="a8w8")
        named = read(tmp_path, "M,N,K\n1,2,3\n", "a8w8_untuned_gemm.csv")
        assert dict(untyped.problems[0].own) == dict(named.problems[0].own) == own
        rowwise.cache_clear()
        assert dict(sizes.problems[0].own) == own
        assert bool(sizes.notes) == (not own)
        assert all("a scale for each row of A and column of B" in note for note in sizes.notes)
        per_tensor = read(tmp_path, "M,N,K,dtype,scaleAB\n1,2,3,torch.int8,True\n", "a.csv")
        assert (per_tensor.problems[0].own, per_tensor.notes) == ((), ())
