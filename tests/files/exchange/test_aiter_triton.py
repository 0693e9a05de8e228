"""Tests of genkern/files/exchange: the JSON of AITER's Triton GEMMs, with newer and older keys."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from aiter_loader import config_for, taken_by_aiter
from peer_files import AITER, AITER_NAME, AITER_NAMED, AITER_NAMED_NAME

from genkern.errors import InputError
from genkern.files.exchange import aiter_triton, aiter_triton_flat, aiter_triton_named
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

NESTED = "gfx942/triton/gemm/gemm_a16w16"
SMALL, LARGE = (
    Config("tiled", 16, 64, 128, 1, 4, 4, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=1),
    Config("tiled", 128, 128, 64, 8, 1, 8, 2, waves_per_eu=2, matrix_instr_nonkdim=16, kpack=2),
)
BF16 = GemmProblem(16, 256, 7168)


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
    configs = json.loads(files[f"{NESTED}/GEMM-A16W16-N=256-K=7168.json"])
    assert list(configs) == ["M_LEQ_16", "M_LEQ_512", "any"]
    for M, config in ((1, SMALL), (16, SMALL), (17, LARGE), (512, LARGE), (9000, LARGE)):
        found = config_for(configs, M)
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
    assert json.loads(files[f"{NESTED}/DEFAULT.json"])["any"]["BLOCK_SIZE_M"] == 128
    rows = list(csv.DictReader(files["losses.csv"].splitlines()))
    (default,) = (row for row in rows if row["file"] == f"{NESTED}/DEFAULT.json")
    assert (default["key"], default["config"]) == ("any", LARGE.name)
    assert float(default["loss"]) == pytest.approx(1.1 ** (2 / 3), abs=1e-4)


def test_a_key_costs_its_sizes_least() -> None:
    """One bucket, three sizes: the config that is a little slower on two is chosen."""
    sizes = [timed(M, {SMALL: 1.0, LARGE: 1.1}) for M in (260, 300)] + [timed(512, {SMALL: 4.0, LARGE: 1.0})]
    configs = json.loads(aiter_triton.render(sizes)[f"{NESTED}/GEMM-A16W16-N=256-K=7168.json"])
    assert configs["M_LEQ_512"]["BLOCK_SIZE_M"] == 128


FAMILIES = ["A16W16", "A8W8", "A8W8_PER_TOKEN_SCALE", "A8W8_BLOCKSCALE", "AFP4WFP4"]


@pytest.mark.parametrize("tag", FAMILIES)
def test_round_trip(tag: str) -> None:
    """What is read from a file is what a file with the same keys is written from, config by config, in both layouts."""
    name = f"gfx942-GEMM-{tag}-N=256-K=7168.json"
    file = {key: value for key, value in json.loads(AITER).items() if key != "M_GEQ_4096"}
    file["M_LEQ_64"]["BLOCK_SIZE_K"] = 128
    read = aiter_triton.read(json.dumps(file), "f", name, None)
    sizes = [timed(each.problem.M, {each.config: 1.0}, each.problem) for each in read.candidates if each.config]
    assert not [size for size in sizes if aiter_triton.obstacle(size.problem)]
    nested = f"gfx942/triton/gemm/gemm_{tag.lower()}/GEMM-{tag}-N=256-K=7168.json"
    for written, path in ((aiter_triton.render(sizes), nested), (aiter_triton_flat.render(sizes), name)):
        again = aiter_triton.read(written[path], "f", path, None)
        assert again.arch == "gfx942"
        assert {each.config for each in again.candidates} == {each.config for each in read.candidates}


@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1201"])
@pytest.mark.parametrize("tag", FAMILIES)
def test_every_release_finds_its_files(tag: str, arch: str, tmp_path: Path) -> None:
    """Each in the folders where its loader looks: in those of families since 2026-08, in one folder before."""
    read = aiter_triton.read(AITER.replace("512", "128"), "f", f"{arch}-GEMM-{tag}-N=256-K=7168.json", None)
    problem = read.candidates[0].problem
    sizes = [timed(16, {SMALL: 1.0}, problem, arch), timed(300, {LARGE: 1.0}, problem, arch)]
    for folder, files in ((".", aiter_triton.render(sizes)), ("gemm", aiter_triton_flat.render(sizes))):
        for name, text in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for release in ("2026-07", "2026-08", "2026-09"):
        for m, config in ((3, SMALL), (200, LARGE)):
            found, is_tuned = taken_by_aiter(tmp_path, arch, f"GEMM-{tag}", (m, 256, 7168), release)
            assert (found["BLOCK_SIZE_M"], is_tuned) == (config.BLOCK_SIZE_M, True)
        # Another N and K has the family's default.
        assert not taken_by_aiter(tmp_path, arch, f"GEMM-{tag}", (3, 512, 512), release)[1]


def test_the_path_says_the_arch() -> None:
    """In the newer layout no name does; kernels in Gluon take other options, and a default is of no one N and K."""
    folder = "/x/configs/gfx1201/triton/gemm/gemm_a8w8"
    read = aiter_triton.read(AITER, "f", f"{folder}/GEMM-A8W8-N=256-K=7168.json", None)
    assert (read.arch, {each.problem.dtype_a for each in read.candidates}) == ("gfx1201", {"fp8e4m3fn"})
    for path in (f"{folder}/DEFAULT.json", f"{folder.replace('triton', 'gluon')}/GEMM-A8W8-N=256-K=7168.json"):
        assert aiter_triton.is_named(Path(path).name)
        left = aiter_triton.read(AITER, "f", path, None)
        assert (left.candidates, left.left_out.total()) == ([], 1)
    with pytest.raises(InputError, match="give --arch"):
        aiter_triton.read(AITER, "f", "GEMM-A8W8-N=256-K=7168.json", None)


def test_keys_that_are_no_configs() -> None:
    """The bounds that a loader looks for, and remarks, as some of AITER's files have."""
    text = json.dumps({"M_BOUNDS": [64, 320], "_note": "a stopgap", **json.loads(AITER)})
    assert len(aiter_triton.read(text, "f", AITER_NAME, None).candidates) == 3


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
