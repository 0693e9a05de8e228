"""Tests of genkern/files/exchange: vLLM's and SGLang's files for GEMMs with scales of blocks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from peer_files import SGLANG_NAME, VLLM, VLLM_AMD, VLLM_AMD_NAME, VLLM_MOE_NAME, VLLM_NAME

from genkern.errors import InputError
from genkern.files.exchange import block_json, sglang, vllm
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

FP8 = GemmProblem(1, 1536, 7168, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn")


def config_that_vllm_takes(files: dict[str, str], name: str, M: int) -> dict[str, Any]:
    """vLLM's and SGLang's rule: the nearest of the file's M, by its distance."""
    configs = {int(key): value for key, value in json.loads(files[name]).items()}
    found: dict[str, Any] = configs[min(configs, key=lambda key: abs(key - M))]
    return found


def test_a_shipped_file_is_read() -> None:
    """Each M with its config, as one of the family that has the same kernel."""
    read = vllm.read(VLLM, "f", VLLM_NAME, None)
    assert (read.arch, not read.left_out) == ("sm_90", True)
    assert [(each.problem, each.config and each.config.name) for each in read.candidates] == [
        (FP8, "tiled_BM64_BN32_BK128_GM64_SK1_nW4_nS5"),
        (replace(FP8, M=24), "tiled_BM64_BN32_BK128_GM16_SK1_nW4_nS4"),
        (replace(FP8, M=4096), "tiled_BM64_BN128_BK128_GM16_SK1_nW4_nS3"),
    ]


def test_amd_has_its_own_encoding_and_options() -> None:
    """fnuz on MI300X; Triton's two stages where the file says none."""
    (read,) = vllm.read(VLLM_AMD, "f", VLLM_AMD_NAME, None).candidates
    assert read.problem.dtype_a == "fp8e4m3fnuz"
    assert read.config == Config("tiled", 32, 32, 128, 1, 1, 4, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=1)


@pytest.mark.parametrize(("peer", "name"), [(vllm, VLLM_NAME), (sglang, VLLM_NAME.replace("128,128", "128, 128"))])
def test_round_trip(peer: Any, name: str) -> None:
    """What is read is written to the letter, under the name that each of both looks for."""
    read = peer.read(VLLM, "f", name, None)
    sizes = [TimedSize(each.problem, {each.config: 1.0}, "sm_90", "NVIDIA H200") for each in read.candidates]
    assert peer.render(sizes) == {name: VLLM}
    assert peer.is_named(name)


def test_amd_round_trip() -> None:
    """AMD's options come back as they were, and no stages less."""
    (read,) = vllm.read(VLLM_AMD, "f", VLLM_AMD_NAME, None).candidates
    assert read.config is not None
    files = vllm.render([TimedSize(read.problem, {read.config: 1.0}, "gfx942", "AMD Instinct MI300X")])
    assert json.loads(files[VLLM_AMD_NAME]) == {"1": {**json.loads(VLLM_AMD)["1"], "num_stages": 2}}


def test_the_nearest_rows_serve() -> None:
    """M = 20 takes the config of 24, by the loader's rule; each row has the fastest of its configs."""
    fast, slow = Config("tiled", 64, 32, 128), Config("tiled", 64, 64, 128)
    sizes = [
        TimedSize(replace(FP8, M=1), {slow: 2.0, fast: 1.0}, "sm_90", "NVIDIA H200"),
        TimedSize(replace(FP8, M=24), {slow: 1.0, fast: 2.0}, "sm_90", "NVIDIA H200"),
    ]
    files = vllm.render(sizes)
    assert config_that_vllm_takes(files, VLLM_NAME, 20)["BLOCK_SIZE_N"] == 64
    assert config_that_vllm_takes(files, VLLM_NAME, 3)["BLOCK_SIZE_N"] == 32


def test_names() -> None:
    """Each variant of a device has its own name, and so have int8, other blocks, and each N and K."""
    config = {Config("tiled", 64, 32, 64): 1.0}
    int8 = replace(FP8, dtype_a="int8", dtype_b="int8", own=(("block_k", 64), ("block_n", 64)))
    sizes = [TimedSize(FP8, config, "sm_90", "NVIDIA H200 NVL"), TimedSize(int8, config, "sm_90", "NVIDIA H200 NVL")]
    assert list(vllm.render(sizes)) == [
        VLLM_NAME.replace("NVIDIA_H200", "NVIDIA_H200_NVL"),
        "N=1536,K=7168,device_name=NVIDIA_H200_NVL,dtype=int8_w8a8,block_shape=[64,64].json",
    ]
    assert "device_name=NVIDIA_H200_NVL," in next(iter(sglang.render(sizes)))


def test_files_of_other_kernels_are_counted() -> None:
    """Fused MoE is not tuned as a GEMM, and neither is what swaps A and B, or what genkern's kernel cannot be."""
    assert sum(vllm.read(VLLM, "f", VLLM_MOE_NAME, None).left_out.values()) == 1
    plain = json.loads(VLLM)["1"]
    text = json.dumps(
        {
            "1": {**plain, "SPLIT_K": 1},
            "2": {**plain, "SPLIT_K": 1, "SWAP_AB": True},
            "4": {**plain, "BLOCK_SIZE_K": 256},
            "8": {**plain, "BLOCK_SIZE_N": 48},
            "16": {**plain, "num_warps": 3},
        }
    )
    read = sglang.read(text, "f", SGLANG_NAME, None)
    assert [each.problem.M for each in read.candidates] == [1]
    assert sum(read.left_out.values()) == 4


def test_only_what_their_kernel_computes_is_written() -> None:
    """Another format, a bias, or a config of a kernel of genkern's own are refused with a reason."""
    assert vllm.obstacle(FP8) == ""
    for other in ({"op": "a8w8"}, {"bias": True}, {"own": (("block_m", 2),)}, {"row_major_b": True}):
        assert vllm.obstacle(replace(FP8, **other))  # type: ignore[arg-type]
    assert vllm.config_obstacle(Config("tiled", 64, 64, 64)) == ""
    for config in (
        Config("tiled_tma", 64, 64, 64),
        Config("tiled", 64, 64, 64, SPLIT_K=2),
        Config("tiled", 64, 64, 64, cache_modifier=".cg"),
    ):
        assert vllm.config_obstacle(config)


REFUSED = {
    "[]": "instead of an object",
    '{"one": {}}': "not a number of rows",
    '{"0": {}}': "not a number of rows",
    '{"1": []}': "is not an object",
    '{"1": {"BLOCK_SIZE_M": 16}}': "has no BLOCK_SIZE_N",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_such_file(text: str) -> None:
    """One line that says where."""
    with pytest.raises(InputError, match=REFUSED[text]):
        vllm.read(text, "f", VLLM_NAME, None)


def test_unknown_devices_need_an_arch() -> None:
    """Of a file's device that genkern does not know --arch says what it is; a result must say its device."""
    name = VLLM_NAME.replace("H200", "H20")
    with pytest.raises(InputError, match="give --arch"):
        vllm.read(VLLM, "f", name, None)
    assert vllm.read(VLLM, "f", name, "sm_90").arch == "sm_90"
    for device in ("", "\x1b[31m"):
        with pytest.raises(InputError, match="on which device"):
            vllm.render([TimedSize(FP8, {Config("tiled", 64, 64, 64): 1.0}, "sm_90", device)])


def test_names_tell_the_kinds_apart() -> None:
    """Both read either; a space says SGLang."""
    assert block_json.is_named(VLLM_MOE_NAME)
    assert (vllm.is_named(VLLM_NAME), sglang.is_named(VLLM_NAME)) == (True, False)
    assert (vllm.is_named(SGLANG_NAME), sglang.is_named(SGLANG_NAME)) == (False, True)
