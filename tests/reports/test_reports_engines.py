"""Public reports of 2026 about files of vLLM and SGLang, and about what serves a call: README.md beside this file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import run_here
from peer_files import VLLM, VLLM_NAME
from small_gemms import specs_of
from winner_factory import winner as made
from winner_factory import write_results

from genkern.files.exchange import vllm
from genkern.files.file_kind import read_results
from genkern.files.model_config import read_model
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.kernel import Target
from genkern.packing.models.engines import SERVERS
from genkern.packing.models.products import products_of
from genkern.packing.rows import rows_of
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.records import Contents
from genkern.runtime.bundles.table import Device, Table
from genkern.runtime.calls.context import Context
from genkern.runtime.routed.grouped import Grouped

TILED = Config("tiled", 64, 64, 128, 8, 1, 4, 3)
Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("device", "is_known"),
    [
        ("0x75b0", False),
        ("Tesla_T4", False),
        ("NVIDIA_GB10", False),
        ("Radeon_8060S_Graphics", False),
        ("AMD_Radeon_Graphics", False),
        ("NVIDIA_RTX_PRO_6000_Blackwell_Max-Q_Workstation_Edition", True),
        ("NVIDIA_GeForce_RTX_5090", True),
    ],
)
def test_names_of_devices(device: str, is_known: bool, tmp_path: Path, capsys: Capsys) -> None:
    """vllm#57492, #32347, #52192, #44331, #50951, #48732, sglang#28189: a file of a GPU that genkern does not know is
    refused with the way out if it is alone, and counted beside others."""
    own = tmp_path / VLLM_NAME.replace("NVIDIA_H200", device)
    own.write_text(VLLM)
    ran = run_here(capsys, "import", own, "-o", tmp_path / "alone.yaml")
    if is_known:
        assert ran.status == 0, ran
        assert {row.arch for row in read_results(str(tmp_path / "alone.yaml"))} == {"sm_120"}
        return
    assert "--arch" in ran.refusal
    assert device in ran.refusal
    (tmp_path / VLLM_NAME).write_text(VLLM)
    ran = run_here(capsys, "import", own, tmp_path / VLLM_NAME, "-o", tmp_path / "both.yaml")
    assert ran.status == 0, ran
    assert "left out: 1 files of GPUs that genkern does not know" in ran.out
    assert {row.arch for row in read_results(str(tmp_path / "both.yaml"))} == {"sm_90"}
    assert run_here(capsys, "import", own, "--arch", "sm_90", "-o", tmp_path / "said.yaml").status == 0


@pytest.mark.parametrize(
    ("tokens", "is_whole"), [((1, 2, 4, 8), False), ((1, 2, 4, 8, 16, 64), False), ((1, 8, 64, 1024), True)]
)
@pytest.mark.parametrize("to", ["vllm", "sglang"])
def test_experts_tuned_for_decoding_alone(
    tokens: tuple[int, ...], is_whole: bool, to: str, tmp_path: Path, capsys: Capsys
) -> None:
    """vllm#52192, #32930: the reader takes the nearest number of tokens, so that prefill would get the config of 8 or
    64 tokens. Such a file is refused by name; --partial writes it."""
    problems = [
        GemmProblem(m, n, k, "fused_moe", activation=act, own=(("experts", 512), ("top_k", 8), *stage))
        for m in tokens
        for n, k, act, stage in ((2688, 1024, "silu", (("stage", "gate_up"),)), (1024, 2688, "none", ()))
    ]
    h200 = {"arch": "sm_90", "device": "NVIDIA H200", "time_source": "cudagraph"}
    write_results(tmp_path / "r.yaml", [made(16, 5.0, TILED, problem=each, **h200) for each in problems], 132)
    argv = ["export", tmp_path / "r.yaml", "--to", to, "-o", tmp_path / "v"]
    name = "E=512,N=2688,device_name=NVIDIA_H200.json"
    ran = run_here(capsys, *argv)
    assert (ran.status == 0) == is_whole
    assert (f"{name}: nothing was tuned beyond M = {max(tokens)}" in ran.out) == (not is_whole)
    if not is_whole:
        assert run_here(capsys, *argv, "--partial").status == 0
    assert list(json.loads((tmp_path / "v" / name).read_text())) == [str(each) for each in tokens]


def test_rows_of_another_count_of_units_serve_nothing(tmp_path: Path) -> None:
    """aiter#4634, #4735, #5668: gfx950 is an MI355X with 256 units and an MI350P with 128. What the log says of a size
    that was tuned for the other one names it; a size that nobody tuned has no such word."""
    path = tmp_path / "r.csv"
    write_results(path, [made(16, 5.0, TILED, arch="gfx950", device="", choice="vendor", vendor_us=4.0)], 256)
    packed = rows_of(read_results(str(path)), None, False).packed
    (found,) = (each.winner for each in packed)
    assert (found.arch, found.compute_units) == ("gfx950", 256)
    bundle = Bundle("here", Contents((found,), {}), None)  # type: ignore[arg-type]
    here = Device("gfx950", found.device, 256)
    tuned, other = (Table([bundle], each) for each in (here, replace(here, compute_units=128)))
    assert tuned.find(found.problem).exact
    missed = other.find(found.problem)
    assert not missed.exact
    assert missed.call is None
    assert "256 units" in missed.why
    assert "256 units" in other.find(replace(found.problem, M=33)).why
    assert "units" not in other.find(replace(found.problem, N=2624)).why


def test_experts_of_one_gpu(tmp_path: Path) -> None:
    """sglang#22791, vllm#39263, aiter#5469: files say how many experts a GPU has, and how wide its part of each is.
    Numbers come from the model's own keys, whatever they are called."""
    pytest.importorskip("transformers", minversion="5.0")
    config = {
        "model_type": "lfm2_moe",
        "hidden_size": 2048,
        "intermediate_size": 11776,
        "moe_intermediate_size": 1536,
        "num_experts": 64,
        "num_experts_per_tok": 4,
        "num_dense_layers": 1,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 65536,
        "layer_types": ["conv", "full_attention"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    products, _ = products_of(read_model(str(tmp_path)), SERVERS, 8, (16,))
    (gate_up,) = (problem for each in products for problem in each.problems if ("stage", "gate_up") in problem.own)
    assert (gate_up.N, gate_up.K, dict(gate_up.own)["experts"], dict(gate_up.own)["top_k"]) == (192, 2048, 64, 4)
    assert vllm.file_of(gate_up, "NVIDIA H200") == "E=64,N=192,device_name=NVIDIA_H200.json"


def test_scales_of_rows_that_do_not_count() -> None:
    """sglang#32386: behind the rows of a group that count, scales and rows hold garbage. It reaches no other row."""
    x, weight = torch.ones(2, 8, 256), torch.ones(2, 128, 256)
    scale_a, scale_b = torch.ones(2, 8, 2), torch.ones(2, 1, 2)
    rows = torch.tensor([3, 5], dtype=torch.int32)
    for group, count in enumerate(rows.tolist()):
        x[group, count:] = scale_a[group, count:] = float("nan")
    fp8 = torch.float8_e4m3fn
    gemm = Grouped("grouped_gemm", Context(lambda op: [], {}.get))
    out = gemm(x.to(fp8), weight.to(fp8), rows, scale_a.view(16, 2), scale_b)
    for group, count in enumerate(rows.tolist()):
        assert torch.equal(out[group, :count], torch.full((count, 128), 256.0, dtype=out.dtype))


def test_what_a_compiled_kernel_is_known_by() -> None:
    """FlyDSL#783: a cache whose key lacks strides, architecture or compiler returns another kernel's binary."""
    base = GemmProblem(128, 128, 1024)
    problems = [base, replace(base, row_major_a=False), replace(base, row_major_b=True)]
    keys = {
        spec.key(Target(*triton_target(gpu_for_arch(arch))), version)
        for problem in problems
        for arch in ("gfx942", "gfx950")
        for version in ("3.6.0", "3.7.0")
        for spec in specs_of(generate(problem, [TILED], arch), TILED)
    }
    assert len(keys) == 3 * 2 * 2
