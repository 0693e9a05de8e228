"""Tests of genkern/files/exchange/moe_json: vLLM's and SGLang's files for mixtures of experts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from peer_files import VLLM_MOE_NAME

from genkern.errors import InputError
from genkern.files.exchange import moe_json, sglang, vllm
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_full

OWN = ("experts", 256), ("scales", "blocks"), ("top_k", 8)
FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
GATE = GemmProblem(64, 256, 7168, "fused_moe", *FP8, activation="silu", own=tuple(sorted((*OWN, ("stage", "gate_up")))))
DOWN = GemmProblem(64, 7168, 256, "fused_moe", *FP8, own=OWN)
NARROW, WIDE = Config("tiled", 16, 64, 128, 1, 1, 4, 4), Config("tiled", 16, 128, 128, 1, 1, 4, 4)


def sized(problem: GemmProblem, times: dict[Config, float]) -> TimedSize:
    return TimedSize(problem, times, "sm_90", "NVIDIA H200")


def test_a_shipped_file_has_such_a_name() -> None:
    """What vLLM ships is recognised, and what it has for one product alone is not."""
    assert moe_json.is_named(VLLM_MOE_NAME)
    assert not moe_json.is_named(VLLM_MOE_NAME.replace("E=256,", ""))


def test_one_config_serves_both_stages() -> None:
    """That with the least sum: 64 columns of gate and of up are 128 of vLLM's."""
    both = [sized(GATE, {NARROW: 10.0, replace(NARROW, BLOCK_SIZE_N=32): 9.0}), sized(DOWN, {WIDE: 5.0, NARROW: 7.0})]
    files = vllm.render(both)
    assert list(files) == [VLLM_MOE_NAME]
    # 10 + 5 rather than 9 + 7.
    assert json.loads(files[VLLM_MOE_NAME]) == {
        "64": {
            "BLOCK_SIZE_M": 16,
            "BLOCK_SIZE_N": 128,
            "BLOCK_SIZE_K": 128,
            "GROUP_SIZE_M": 1,
            "num_warps": 4,
            "num_stages": 4,
        }
    }


def test_without_common_times_the_first_stage_decides() -> None:
    """It has two thirds of the work; alone, the second does."""
    (text,) = vllm.render([sized(GATE, {NARROW: 10.0}), sized(DOWN, {NARROW: 7.0})]).values()
    assert json.loads(text)["64"]["BLOCK_SIZE_N"] == 128
    (text,) = vllm.render([sized(DOWN, {NARROW: 7.0})]).values()
    assert json.loads(text)["64"]["BLOCK_SIZE_N"] == 64


def test_names() -> None:
    """As vLLM looks for them: no dtype for 16 bits, blocks where scales are of blocks."""
    wide = [
        replace(each, dtype_a="bf16", dtype_b="bf16", own=tuple(p for p in each.own if p[0] != "scales"))
        for each in (GATE, DOWN)
    ]
    (name,) = vllm.render([sized(each, {NARROW: 1.0}) for each in wide])
    assert name == "E=256,N=256,device_name=NVIDIA_H200.json"
    per_token = replace(GATE, own=tuple((k, "per_token" if k == "scales" else v) for k, v in GATE.own))
    (name,) = vllm.render([sized(per_token, {NARROW: 1.0})])
    assert name == "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"
    (name,) = sglang.render([sized(per_token, {NARROW: 1.0})])
    assert name == "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,per_channel_quant=True.json"
    assert moe_json.is_named(name)
    (name,) = sglang.render([sized(GATE, {NARROW: 1.0})])
    assert name == VLLM_MOE_NAME.replace("128,128", "128, 128") == sglang.file_of(GATE, "NVIDIA H200")
    with pytest.raises(InputError, match="on which device"):
        vllm.render([TimedSize(GATE, {NARROW: 1.0}, "sm_90")])


def test_what_these_files_cannot_say() -> None:
    """Skewed routing, full sums of fp8, another activation, another layout."""
    assert not vllm.obstacle(GATE)
    assert "full sums" in vllm.obstacle(as_full(DOWN))
    assert "skewed" in vllm.obstacle(replace(DOWN, own=(*OWN[:1], ("routing", "skewed"), *OWN[1:])))
    assert "silu" in vllm.obstacle(replace(GATE, activation="gelu"))
    assert "layout" in vllm.obstacle(replace(DOWN, row_major_b=True))


@pytest.mark.parametrize(
    ("device", "experts", "dense"),
    [
        ("NVIDIA H200", "NVIDIA_H200", "NVIDIA_H200"),
        ("NVIDIA H200 NVL", "NVIDIA_H200", "NVIDIA_H200_NVL"),
        ("NVIDIA GH200 480GB", "NVIDIA_GH200_480GB", "NVIDIA_GH200_480GB"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA_H100_80GB_HBM3", "NVIDIA_H100_80GB_HBM3"),
        ("AMD Instinct MI250X / MI250", "AMD_Instinct_MI250X_MI250", "AMD_Instinct_MI250X_MI250"),
        ("NVIDIA H200 NVL (not present)", "NVIDIA_H200", "NVIDIA_H200_NVL"),
    ],
)
def test_the_device_is_as_vllm_names_it(device: str, experts: str, dense: str) -> None:
    """get_config_file_name has one file of experts for the whole family of H200, get_w8a8_block_fp8_configs has not."""
    assert f"device_name={experts}," in vllm.file_of(GATE, device)
    assert f"device_name={dense}," in vllm.file_of(GemmProblem(16, 256, 7168, "a8w8_blockscale", *FP8), device)
