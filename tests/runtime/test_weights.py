"""Calls of formats whose weights are not of the activations' type: what is launched, and what the library computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recording_gpu import FakeGpu
from small_bundle import pack_here, row
from small_gemms import SWAPPED

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundle import read_bundle
from genkern.runtime.context import Context
from genkern.runtime.dispatch import Gemm

N, K = 192, 256


def of_bundle(folder: Path, gpu: FakeGpu, problem: GemmProblem, config: Config) -> Gemm:
    """The format's function, with this winner."""
    bundle = read_bundle(pack_here(folder, [row(problem, config)], folder / "cache"))
    return Gemm(problem.op, Context(lambda op: [bundle], lambda index: gpu))


def of_library(op: str) -> Gemm:
    """The format's function where there is no GPU."""
    return Gemm(op, Context(lambda op: [], lambda index: None))


@pytest.mark.parametrize("scale_type", [torch.float32, torch.bfloat16])
def test_a16w8_is_launched_and_served(tmp_path: Path, scale_type: torch.dtype) -> None:
    """By the winner with the addresses of all operands, in order; which type the scales have, they say themselves."""
    own = (("scale_type", "bf16"),) if scale_type == torch.bfloat16 else ()
    problem = GemmProblem(5, N, K, "a16w8", "bf16", "int8", "bf16", own=own)
    gpu = FakeGpu()
    gemm = of_bundle(tmp_path, gpu, problem, SWAPPED)
    x, weight = torch.randn(5, K).bfloat16(), torch.randint(-127, 127, (N, K)).to(torch.int8)
    scale = (torch.rand(N) / 32).to(scale_type)
    out = gemm(x, weight, scale_b=scale)
    (launched,) = gpu.driver.launched
    assert launched.symbol.startswith("matmul_tiled_swapped")
    addresses = [int.from_bytes(value, "little") for value in launched.parameters if len(value) == 8]
    assert addresses[:3] == [x.data_ptr(), weight.data_ptr(), out.data_ptr()]
    assert scale.data_ptr() in addresses
    served = of_library("a16w8")(x, weight, scale_b=scale)
    wanted = x.float() @ (weight.float() * scale.float()[:, None]).T
    assert (served.float() - wanted).norm() < 2**-7 * wanted.norm()
    with pytest.raises(InputError, match=r"takes scale_b \[1, 192\]"):
        gemm(x, weight, scale_b=scale[1:])
