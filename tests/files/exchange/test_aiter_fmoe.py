"""Tests of genkern/files/exchange/aiter_fmoe: AITER's tables of fused MoE, read as sizes and written."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from command import DATA

from genkern.errors import InputError
from genkern.files import aiter_fmoe
from genkern.files.exchange.peers import read_peer
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_full

# ROCm/aiter, aiter/configs/untuned_fmoe.csv and tuned_fmoe.csv, with rows of kinds that genkern has not.
HEAD = ",".join(aiter_fmoe.UNTUNED_COLUMNS)
BF16 = "512,6144,4096,8,2,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
_E4M3, _E2M1 = "torch.float8_e4m3fn", "torch.float4_e2m1fn_x2"
FP8 = f"16,7168,256,256,8,ActivationType.Silu,torch.bfloat16,{_E4M3},{_E4M3},QuantType.per_1x128,1,0"
FP4 = f"1,4096,256,512,10,ActivationType.Silu,torch.bfloat16,{_E2M1},{_E2M1},QuantType.per_1x32,1,0"
FIRST = "4,2304,1536,8,2,ActivationType.Gelu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,1"
SWIGLU = "4,2304,1536,8,2,ActivationType.Swiglu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0"
OWN = ("experts", 8), ("top_k", 2)
GATE = GemmProblem(512, 4096, 6144, "fused_moe", activation="silu", own=(OWN[0], ("stage", "gate_up"), OWN[1]))
DOWN = GemmProblem(512, 6144, 4096, "fused_moe", own=OWN)
CONFIG = Config("tiled", 16, 64, 64, 1, 1, 4, 3)


def test_a_row_is_two_stages() -> None:
    """What genkern has no experts for is counted with why."""
    read = aiter_fmoe.read("\n".join((HEAD, BF16, FP8, FP4, FIRST, SWIGLU)), "f", "untuned_fmoe.csv", "sm_90")
    assert [each.problem for each in read.candidates[:2]] == [GATE, DOWN]
    assert all(dict(each.problem.own)["scales"] == "blocks" for each in read.candidates[2:])
    assert len(read.candidates) == 4
    assert sorted(read.left_out) == [
        "fused MoE with ActivationType.Swiglu",
        "fused MoE with QuantType.per_1x32",
        "fused MoE without a gate, or with routing weights in its first stage",
    ]


def test_as_a_list_of_sizes(tmp_path: Path) -> None:
    """`-i` takes such a table too; what is left out is said."""
    path = tmp_path / "untuned_fmoe.csv"
    path.write_text("\n".join((HEAD, BF16, FP4)))
    sizes = read_sizes(str(path), GemmDefaults(), "sm_90")
    assert sizes.problems == (GATE, DOWN)
    assert any("left out: 1 fused MoE with QuantType.per_1x32" in note for note in sizes.notes)


@pytest.mark.skipif(not (DATA / "aiter" / "untuned_fmoe.csv").exists(), reason="AITER's own files are not here")
def test_aiters_own_list() -> None:
    """All but the row whose first stage multiplies by routing weights; fnuz on gfx942."""
    path = str(DATA / "aiter" / "untuned_fmoe.csv")
    imported = read_peer(path, "gfx942")
    rows = len((DATA / "aiter" / "untuned_fmoe.csv").read_text().split()) - 1
    assert sum(imported.left_out.values()) == 1
    assert len(imported.candidates) == 2 * (rows - 1)
    sizes = read_sizes(path, GemmDefaults(), "gfx942").problems
    assert set(sizes) == {each.problem for each in imported.candidates}


def test_written_and_read_again() -> None:
    """A row of both stages with AITER's columns, whose sizes come back."""
    sizes = [TimedSize(problem, {CONFIG: us}, "gfx942") for problem, us in ((GATE, 30.0), (DOWN, 12.5))]
    (text,) = aiter_fmoe.render(sizes).values()
    (row,) = csv.DictReader(io.StringIO(text))
    assert tuple(row) == aiter_fmoe.TUNED_COLUMNS
    said = {
        name: row[name] for name in ("gfx", "cu_num", "token", "us1", "us2", "us", "block_m", "q_type", "run_1stage")
    }
    assert said == {
        "gfx": "gfx942",
        "cu_num": "304",
        "token": "512",
        "us1": "30.0",
        "us2": "12.5",
        "us": "42.5",
        "block_m": "16",
        "q_type": "QuantType.No",
        "run_1stage": "0",
    }
    assert row["kernelName1"] == f"genkern_{CONFIG.name}"
    read = aiter_fmoe.read(text, "f", "tuned_fmoe.csv", None)
    assert [each.problem for each in read.candidates] == [GATE, DOWN]


def test_a_gate_of_several_activations_has_one_down() -> None:
    """silu and gelu of one size are two rows, with the same second stage."""
    gates = [replace(GATE, activation=name) for name in ("silu", "gelu")]
    (text,) = aiter_fmoe.render([TimedSize(each, {CONFIG: 5.0}, "gfx942") for each in (*gates, DOWN)]).values()
    assert [row["act_type"] for row in csv.DictReader(io.StringIO(text))] == [
        "ActivationType.Silu",
        "ActivationType.Gelu",
    ]


def test_rows_of_others_stay() -> None:
    """In a table of AITER's, with its own columns, to the letter; genkern's own row of a key is replaced."""
    columns = [name for name in aiter_fmoe.TUNED_COLUMNS if name not in ("gfx", "xbf16", "flat")] + ["_tag"]
    others = "304,1,4096,256,512,10,x,y,z,z,QuantType.No,1,0,32,0,1.5,ck_a,0.0%,2.5,ck_b,0.0%,4.0,0,1.0,2.0,odd\n"
    head = ",".join(columns) + "\n"
    first = aiter_fmoe.table_with(head + others, "t", pair(30.0), compute_units=304)
    assert first.startswith(head + others)
    second = aiter_fmoe.table_with(first, "t", pair(20.0), compute_units=304)
    assert second.startswith(head + others)
    rows = list(csv.DictReader(io.StringIO(second)))
    assert [(row["kernelName1"].partition("_")[0], row["us1"]) for row in rows] == [("ck", "1.5"), ("genkern", "20.0")]
    # Another part of the GPU is another key.
    assert len(aiter_fmoe.table_with(second, "t", pair(20.0), compute_units=80).splitlines()) == 4
    taken = second.replace("genkern_", "ck_moe_")
    with pytest.raises(InputError, match="t, line 3: another library"):
        aiter_fmoe.table_with(taken, "t", pair(20.0), compute_units=304)
    with pytest.raises(InputError, match="kernelName1 is missing"):
        aiter_fmoe.table_with(HEAD + "\n", "t", pair(20.0))


def pair(us: float) -> list[TimedSize]:
    return [TimedSize(problem, {CONFIG: us}, "gfx942", "AMD Instinct MI300X") for problem in (GATE, DOWN)]


@pytest.mark.parametrize("kind", ["short", "long"])
def test_a_row_of_other_length_costs_itself(kind: str, tmp_path: Path) -> None:
    """In tables that tuners wrote, with its line; in a list of sizes it is refused."""
    text = aiter_fmoe.table_with("", "t", pair(20.0))
    row = text.splitlines()[1]
    odd = row.rpartition(",")[0] if kind == "short" else f"{row},1"
    path = tmp_path / "tuned_fmoe.csv"
    path.write_text(f"{text}{odd}\n{row}\n{odd}\n")
    ((reason, count),) = aiter_fmoe.read(path.read_text(), "f", path.name, "gfx942").left_out.items()
    assert (count, "lines 3, 5" in reason) == (2, True)
    sizes = read_sizes(str(path), GemmDefaults(), "gfx942")
    assert len(sizes.problems) == 2
    assert any("lines 3, 5" in note for note in sizes.notes)
    path = tmp_path / "untuned_fmoe.csv"
    path.write_text("\n".join((HEAD, BF16, BF16.rpartition(",")[0])))
    with pytest.raises(InputError, match="line 3"):
        read_sizes(str(path), GemmDefaults(), "gfx942")


@pytest.mark.parametrize("rows", [[FP4], [FP4, FIRST, SWIGLU], [SWIGLU] * 3])
def test_a_table_without_a_row_for_genkern_says_why(rows: list[str], tmp_path: Path) -> None:
    """Each reason with its count, for -i and merge too."""
    path = tmp_path / "untuned_fmoe.csv"
    path.write_text("\n".join((HEAD, *rows)))
    with pytest.raises(InputError, match=f"{len(rows)} rows") as error:
        read_sizes(str(path), GemmDefaults(), "gfx942")
    for reason, count in aiter_fmoe.read(path.read_text(), "f", path.name, None).left_out.items():
        assert f"{count} {reason}" in str(error.value)


def test_halves_are_refused() -> None:
    """A row needs both stages."""
    for alone, reason in ((GATE, "has no matching row of stage down"), (DOWN, "has no matching row of stage gate_up")):
        with pytest.raises(InputError, match=reason):
            aiter_fmoe.render([TimedSize(alone, {CONFIG: 1.0}, "gfx942")])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ((BF16, BF16.replace("512", "x", 1)), "line 2: token = 'x' is not a whole number"),
        ((HEAD, HEAD.replace(",topk", "")), "column topk is missing"),
    ],
)
def test_what_is_no_such_table(changed: tuple[str, str], reason: str) -> None:
    """In one line with the place."""
    text = "\n".join((HEAD, BF16)).replace(*changed)
    text = text.replace(",8,2,", ",8,") if "topk" in reason else text
    with pytest.raises(InputError, match=reason):
        aiter_fmoe.read(text, "f", "untuned_fmoe.csv", None)


def test_what_these_tables_cannot_say() -> None:
    """Other formats, relu, skewed routing, full sums of fp8."""
    assert "full sums" in aiter_fmoe.obstacle(as_full(DOWN))
    assert not aiter_fmoe.obstacle(GATE)
    assert "this table is of" in aiter_fmoe.obstacle(GemmProblem(1, 2, 3))
    assert "relu" in aiter_fmoe.obstacle(replace(GATE, activation="relu"))
    assert "skewed" in aiter_fmoe.obstacle(replace(DOWN, own=(OWN[0], ("routing", "skewed"), OWN[1])))
