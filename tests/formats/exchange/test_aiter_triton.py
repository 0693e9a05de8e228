"""Tests of genkern/formats/exchange: the JSON of AITER's Triton GEMMs, with newer and older keys."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from typing import Any

import pytest
from peer_files import AITER, AITER_NAME, AITER_NAMED, AITER_NAMED_NAME

from genkern.errors import InputError
from genkern.formats.exchange import aiter_triton, aiter_triton_named
from genkern.formats.exchange.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

BOUNDS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SMALL, LARGE = (
    Config("tiled", 16, 64, 128, 1, 4, 4, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=1),
    Config("tiled", 128, 128, 64, 8, 1, 8, 2, waves_per_eu=2, matrix_instr_nonkdim=16, kpack=2),
)
BF16 = GemmProblem(16, 256, 7168)


def config_that_aiter_takes(configs: dict[str, Any], M: int) -> Any:
    """The order of gemm_config_utils: the least M_LEQ_x that holds M, the greatest M_GEQ_x, any."""
    for bound in BOUNDS:
        if bound >= M and f"M_LEQ_{bound}" in configs:
            return configs[f"M_LEQ_{bound}"]
    for bound in reversed(BOUNDS):
        if bound <= M and f"M_GEQ_{bound}" in configs:
            return configs[f"M_GEQ_{bound}"]
    return configs["any"]


def timed(M: int, times: dict[Config, float], problem: GemmProblem = BF16, arch: str = "gfx942") -> TimedSize:
    return TimedSize(replace(problem, M=M), times, arch)


def test_a_shipped_file_is_read() -> None:
    """The largest M of each key stands for it; splits of K and the modifier of loads are genkern's."""
    read = aiter_triton.read(AITER, "f", AITER_NAME, None)
    assert (read.arch, not read.left_out) == ("gfx950", True)
    assert [each.problem for each in read.candidates] == [replace(BF16, M=M) for M in (64, 4096, 8192)]
    assert read.candidates[0].config == Config(
        "tiled", 16, 16, 512, 1, 1, 4, 3, waves_per_eu=1, matrix_instr_nonkdim=16, kpack=1, cache_modifier=".cg"
    )


def test_older_keys_are_read() -> None:
    """small holds M below 32, xlarge what is over 256; what follows from the problem is passed over."""
    read = aiter_triton.read(AITER_NAMED, "f", AITER_NAMED_NAME, None)
    assert [(each.problem.M, each.problem.op, each.problem.dtype_a) for each in read.candidates] == [
        (31, "a8w8_blockscale", "fp8e4m3fn"),
        (512, "a8w8_blockscale", "fp8e4m3fn"),
    ]
    assert not read.left_out


def test_the_loader_finds_each_tuned_size() -> None:
    """Whatever M is asked for gets the config of the next tuned size above, and the largest one's beyond it."""
    files = aiter_triton.render([timed(16, {SMALL: 1.0}), timed(500, {LARGE: 1.0})])
    configs = json.loads(files["gfx942-GEMM-A16W16-N=256-K=7168.json"])
    assert list(configs) == ["M_LEQ_16", "M_LEQ_512", "any"]
    for M, config in ((1, SMALL), (16, SMALL), (17, LARGE), (512, LARGE), (9000, LARGE)):
        found = config_that_aiter_takes(configs, M)
        assert (found["BLOCK_SIZE_M"], found["NUM_KSPLIT"]) == (config.BLOCK_SIZE_M, config.SPLIT_K)
    assert configs["any"] == {
        "BLOCK_SIZE_M": 128,
        "BLOCK_SIZE_N": 128,
        "BLOCK_SIZE_K": 64,
        "GROUP_SIZE_M": 8,
        "num_warps": 8,
        "num_stages": 2,
        "waves_per_eu": 2,
        "matrix_instr_nonkdim": 16,
        "kpack": 2,
        "cache_modifier": None,
        "NUM_KSPLIT": 1,
    }


def test_older_keys_are_written() -> None:
    """Every M has its key, and any is what the largest has."""
    sizes = [timed(M, {SMALL if M < 100 else LARGE: 1.0}) for M in (16, 32, 33, 64, 100, 200, 4096)]
    configs = json.loads(aiter_triton_named.render(sizes)["gfx942-GEMM-A16W16-N=256-K=7168.json"])
    assert list(configs) == ["small", "medium_M32", "medium_M64", "medium_M128", "large", "xlarge", "any"]
    assert configs["medium_M64"]["BLOCK_SIZE_M"] == 16
    assert configs["any"] == configs["xlarge"]


def test_the_default_costs_all_sizes_least() -> None:
    """The file without N and K has not the most common best but the one with the least loss, which stands beside it."""
    sizes = [timed(M, {SMALL: 1.0, LARGE: 1.1}) for M in (16, 32)]
    sizes.append(timed(64, {SMALL: 4.0, LARGE: 1.0}, replace(BF16, N=512)))
    files = aiter_triton.render(sizes)
    assert json.loads(files["gfx942-GEMM-A16W16.json"])["any"]["BLOCK_SIZE_M"] == 128
    rows = list(csv.DictReader(files["losses.csv"].splitlines()))
    (default,) = (row for row in rows if row["file"] == "gfx942-GEMM-A16W16.json")
    assert (default["key"], default["config"]) == ("any", LARGE.name)
    assert float(default["loss"]) == pytest.approx(1.1 ** (2 / 3), abs=1e-4)


def test_a_key_costs_its_sizes_least() -> None:
    """One bucket, three sizes: the config that is a little slower on two is chosen."""
    sizes = [timed(M, {SMALL: 1.0, LARGE: 1.1}) for M in (260, 300)] + [timed(512, {SMALL: 4.0, LARGE: 1.0})]
    configs = json.loads(aiter_triton.render(sizes)["gfx942-GEMM-A16W16-N=256-K=7168.json"])
    assert configs["M_LEQ_512"]["BLOCK_SIZE_M"] == 128


@pytest.mark.parametrize("tag", ["A16W16", "A8W8", "A8W8_BLOCKSCALE", "AFP4WFP4"])
def test_round_trip(tag: str) -> None:
    """What is read from a file is what a file with the same keys is written from, config by config."""
    name = f"gfx942-GEMM-{tag}-N=256-K=7168.json"
    file = {key: value for key, value in json.loads(AITER).items() if key != "M_GEQ_4096"}
    file["M_LEQ_64"]["BLOCK_SIZE_K"] = 128
    read = aiter_triton.read(json.dumps(file), "f", name, None)
    sizes = [timed(each.problem.M, {each.config: 1.0}, each.problem) for each in read.candidates if each.config]
    assert not [size for size in sizes if aiter_triton.obstacle(size.problem)]
    again = aiter_triton.read(aiter_triton.render(sizes)[name], "f", name, None)
    assert {each.config for each in again.candidates} == {each.config for each in read.candidates}


def test_what_is_left_out() -> None:
    """Other formats, files of no one N and K, and configs that no kernel of genkern's has are counted."""
    for name in (
        "gfx950-GEMM-AFP4WFP4_PRESHUFFLED-N=1-K=2.json",
        "gfx950-GEMM-A16W16.json",
        "gfx950-GEMM-A16W16-ATOMIC-N=1-K=2.json",
        "gfx950-BATCHED_GEMM-A16W16-N=1-K=2.json",
    ):
        assert aiter_triton.is_named(name)
        read = aiter_triton.read(AITER, "f", name, None)
        assert (read.candidates, sum(read.left_out.values())) == ([], 1)
    odd = json.dumps({"any": {**json.loads(AITER)["any"], "kernel_type": "x"}})
    assert sum(aiter_triton.read(odd, "f", AITER_NAME, None).left_out.values()) == 1


def test_only_amd_has_such_files() -> None:
    """A result of an NVIDIA GPU is refused, and so is a format or a layout that AITER's kernels do not have."""
    with pytest.raises(InputError, match="AMD"):
        aiter_triton.render([timed(16, {SMALL: 1.0}, arch="sm_90")])
    for other in ({"op": "a16w8"}, {"op": "a8w8"}, {"activation": "silu"}, {"row_major_b": True}):
        assert aiter_triton.obstacle(replace(BF16, **other))  # type: ignore[arg-type]
    assert aiter_triton.config_obstacle(Config("tiled_tma", 64, 64, 64))
    assert not aiter_triton.config_obstacle(SMALL)


@pytest.mark.parametrize("text", ["[]", '{"M_LEQ_x": {}}', '{"any": 3}', '{"any": {}}', "{"])
def test_what_is_no_such_file(text: str) -> None:
    """One line that says where."""
    with pytest.raises(InputError, match=r"^f"):
        aiter_triton.read(text, "f", AITER_NAME, None)
