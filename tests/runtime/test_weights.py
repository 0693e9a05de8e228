"""Calls of formats whose weights are not of the activations' type: what is launched, and what the library computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recording_gpu import FakeGpu
from small_bundle import pack_here, row
from small_gemms import SWAPPED, TMA_SWAPPED

import genkern
from genkern import tuned_gemm
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem, Own
from genkern.ops import mx
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm

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


def test_a_batch_is_launched_and_served(tmp_path: Path) -> None:
    """With the stride from product to product that each operand has, in a grid of all products."""
    problem = GemmProblem(5, N, K, "batched_a16w16", own=(("batch_size", 3),))
    gpu = FakeGpu()
    gemm = of_bundle(tmp_path, gpu, problem, SWAPPED)
    # Tokens come first, as in attention: one product's rows lie between those of the others.
    x, weight = torch.randn(5, 3, K).bfloat16().transpose(0, 1), torch.randn(3, N, K).bfloat16()
    out = gemm(x, weight)
    (launched,) = gpu.driver.launched
    assert launched.grid[1:] == (SWAPPED.SPLIT_K, 3)
    assert (out.shape, out.dtype) == ((3, 5, N), torch.bfloat16)
    numbers = [int.from_bytes(value, "little") for value in launched.parameters if len(value) == 4]
    # M, N, K, then leading dimensions, GROUP_SIZE_M and SPLIT_K, and steps.
    assert numbers[:6] == [5, N, K, 3 * K, K, N]
    assert numbers[8:11] == [K, N * K, 5 * N]
    gemm(x.contiguous(), weight)
    closer = [int.from_bytes(value, "little") for value in gpu.driver.launched.pop().parameters if len(value) == 4]
    assert (closer[3], closer[8]) == (K, 5 * K)
    served = of_library("batched_a16w16")(x, weight)
    assert (served.float() - x.float() @ weight.float().mT).norm() < 2**-7 * served.float().norm()
    assert len(gpu.driver.launched) == 1
    gemm(x[:2], weight[:2])
    assert len(gpu.driver.launched) == 1
    for wrong in (x[:2], x[0], x[:, :, 1:]):
        with pytest.raises(InputError, match=r"\[batch, M, K\] and \[batch, N, K\]"):
            gemm(wrong, weight)


def test_a_batch_without_gaps_goes_through_the_copy_engine(tmp_path: Path) -> None:
    """As one matrix of all rows; one with gaps is the library's."""
    problem = GemmProblem(16, N, K, "batched_a16w16", own=(("batch_size", 3),))
    gpu = FakeGpu()
    gemm = of_bundle(tmp_path, gpu, problem, TMA_SWAPPED)
    weight = torch.randn(3, N, K).bfloat16()
    gemm(torch.randn(3, 16, K).bfloat16(), weight)
    (launched,) = gpu.driver.launched
    maps = [gpu.driver.map_in(value) for value in launched.parameters if len(value) == 128]
    assert {each.sizes[1] for each in maps} == {3 * 16, 3 * N}
    apart = torch.randn(6, 16, K).bfloat16()[::2]
    assert gemm(apart, weight).equal(torch.bmm(apart, weight.mT))
    assert len(gpu.driver.launched) == 1


def test_two_kinds_of_16_bits(tmp_path: Path) -> None:
    """x in fp16 and a weight in bf16 are launched as they are; the library's product and gradients round neither."""
    gpu = FakeGpu()
    gemm = of_bundle(tmp_path, gpu, GemmProblem(5, N, K, dtype_a="fp16", dtype_b="bf16", dtype_c="fp16"), SWAPPED)
    x, weight = torch.randn(5, K).half(), torch.randn(N, K).bfloat16()
    assert gemm(x, weight).dtype == torch.float16
    assert len(gpu.driver.launched) == 1
    served = of_library("a16w16")(x, weight)
    assert served.equal((x.float() @ weight.float().T).half())
    given = x.clone().requires_grad_(), weight.clone().requires_grad_()
    tuned_gemm.gemm_a16w16(*given, activation="silu").sum().backward()
    wide = x.float().requires_grad_(), weight.float().requires_grad_()
    torch.nn.functional.silu(wide[0] @ wide[1].T).sum().backward()
    for each, other in zip(given, wide, strict=True):
        assert each.grad is not None
        assert each.grad.dtype == each.dtype
        assert (each.grad.float() - other.grad).norm() < 2**-7 * other.grad.norm()


@pytest.mark.parametrize("own", [(), (("layout", "n8k16"),)], ids=str)
def test_shuffled_weights_are_launched_and_served(tmp_path: Path, own: Own) -> None:
    """The weight is of its own shape, laid out by shuffle_weight; what the library computes is the plain product."""
    problem = GemmProblem(5, N, K, "a8w8_bpreshuffle", "int8", "int8", "fp32", own=(*own, ("scales", "per_token")))
    gpu = FakeGpu()
    gemm = of_bundle(tmp_path, gpu, problem, SWAPPED)
    x, weight = (torch.randint(-127, 127, (rows, K)).to(torch.int8) for rows in (5, N))
    scales = torch.rand(5, 1), torch.rand(1, N)
    rows = 8 if own else 16
    shuffled = genkern.shuffle_weight(weight, (rows, 16))
    said = {"out_dtype": torch.float32, "scale_a": scales[0], "scale_b": scales[1], **dict(own)}
    out = gemm(x, shuffled, **said)
    (launched,) = gpu.driver.launched
    numbers = [int.from_bytes(value, "little") for value in launched.parameters if len(value) == 4]
    # Behind M, N and K the leading dimensions.
    assert numbers[:6] == [5, N, K, K, rows * K, N]
    served = of_library("a8w8_bpreshuffle")(x, shuffled, **said)
    plain = {name: value for name, value in said.items() if name != "layout"}
    assert served.equal(of_library("a8w8")(x, weight, **plain))
    assert (served.shape, served.dtype) == (out.shape, out.dtype)
    with pytest.raises(InputError, match="cannot be laid out as"):
        of_library("a8w8_bpreshuffle")(x[:, :40], weight[:, :40], **said)


def packed(own: Own) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bytes [N, K / 2], their scales, and the weights that they are."""
    codes = torch.randint(0, 16, (N, K))
    if ("weights", "mxfp4") in own:
        exponents = torch.randint(120, 124, (N, K // 32))
        magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        numbers, scales = torch.cat((magnitudes, -magnitudes))[codes], torch.exp2(exponents.float() - 127)
        stored = exponents.to(torch.uint8)
    else:
        numbers, scales = torch.where(codes > 7, codes - 16, codes).float(), torch.rand(N, K // 128) / 32
        stored = scales
    both = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
    return both, stored, numbers * scales.repeat_interleave(K // scales.shape[1], 1)


@pytest.mark.parametrize("own", [(("group", 128),), (("weights", "mxfp4"),)], ids=str)
def test_a16w4_is_launched_and_served(tmp_path: Path, own: Own) -> None:
    """K is x's; bytes may be signed or not, and whether there are exponents for scales, they say themselves."""
    problem = GemmProblem(5, N, K, "a16w4", "bf16", "int8", "bf16", own=own)
    gpu = FakeGpu()
    gemm = of_bundle(tmp_path, gpu, problem, SWAPPED)
    x = torch.randn(5, K).bfloat16()
    weight, scale, numbers = packed(own)
    said = {name: value for name, value in own if name == "group"}
    forms = [weight, weight.view(torch.int8)]
    for form in forms:
        out = gemm(x, form, scale_b=scale, **said)
    first, second = gpu.driver.launched
    assert first.symbol.startswith("matmul_tiled_swapped")
    for launched, form in ((first, weight), (second, forms[1])):
        addresses = [int.from_bytes(value, "little") for value in launched.parameters if len(value) == 8]
        assert {x.data_ptr(), form.data_ptr(), scale.data_ptr()} < set(addresses)
    # Rows of the weights are K / 2 bytes apart.
    assert K // 2 in [int.from_bytes(value, "little") for value in first.parameters if len(value) == 4]
    wanted = x.float() @ numbers.T
    for form in forms:
        served = of_library("a16w4")(x, form, scale_b=scale, **said)
        assert (served.shape, served.dtype) == (out.shape, out.dtype)
        assert (served.float() - wanted).norm() < 2**-7 * wanted.norm()


@pytest.mark.parametrize("packed_x", [True, False])
def test_a4w4_blockscale_is_launched_and_served(tmp_path: Path, packed_x: bool) -> None:
    """K is that of bytes of two elements, or of fp8; x may have more dimensions, and bytes any type of PyTorch's."""
    types = ("int8", "int8") if packed_x else ("fp8e4m3fn", "int8")
    problem = GemmProblem(6, N, K, "a4w4_blockscale", *types, "fp16", bias=True)
    gpu = FakeGpu()
    gemm = of_bundle(tmp_path, gpu, problem, replace(SWAPPED, BLOCK_SIZE_K=64))
    x, weight = (mx.packed(torch.randint(0, 16, (rows, K))) for rows in (6, N))
    numbers = mx.e2m1_numbers(mx.unpacked(x))
    if not packed_x:
        x = numbers.to(torch.float8_e4m3fn)
    scale_a, scale_b = (torch.randint(120, 130, (rows, K // 32)).to(torch.uint8) for rows in (6, N))
    bias = torch.randn(N).half()
    given = {"bias": bias, "scale_a": scale_a, "scale_b": scale_b, "out_dtype": torch.float16}
    forms = [(x, weight), (x, weight.view(torch.uint8))]
    if packed_x:
        forms += [(x.view(torch.uint8).view(2, 3, -1), weight), (x.view(torch.float4_e2m1fn_x2), weight)]
    wanted = (numbers * mx.powers(scale_a).repeat_interleave(32, 1)) @ (
        mx.e2m1_numbers(mx.unpacked(weight)) * mx.powers(scale_b).repeat_interleave(32, 1)
    ).T + bias.float()
    for a, b in forms:
        out = gemm(a, b, **given)
        launched = gpu.driver.launched.pop()
        assert launched.symbol.startswith("matmul_tiled_swapped")
        addresses = [int.from_bytes(value, "little") for value in launched.parameters if len(value) == 8]
        assert {each.data_ptr() for each in (a, b, out, scale_a, scale_b, bias)} <= {*addresses}
        numbers_of_32_bits = [int.from_bytes(value, "little") for value in launched.parameters if len(value) == 4]
        # M, N and K, then leading dimensions in bytes.
        assert numbers_of_32_bits[:5] == [6, N, K, K // 2 if packed_x else K, K // 2]
        served = of_library("a4w4_blockscale")(a, b, **given)
        assert (served.shape, served.dtype) == (out.shape, out.dtype)
        assert (served.float().view(6, N) - wanted).norm() < 2**-10 * wanted.norm()
    with pytest.raises(InputError, match=r"\[..., K / 2\] and \[N, K / 2\]" if packed_x else r"\[..., K\]"):
        gemm(x, weight[:, 1:], **given)
    with pytest.raises(InputError, match=r"takes bias .*, scale_a \[6, 8\]|takes scale_a \[6, 8\]"):
        gemm(x, weight, **{**given, "scale_a": scale_a[:, 1:]})


def test_packed_weights_of_another_size_are_refused() -> None:
    """In one line that says what they must be; so are bytes where the format means none by them."""
    x = torch.randn(5, K).bfloat16()
    with pytest.raises(InputError, match=r"weight \[192, 256\]: .*\[..., K\] and \[N, K / 2\]"):
        of_library("a16w4")(x, torch.zeros(N, K, dtype=torch.uint8), scale_b=torch.ones(N, K // 32))
    with pytest.raises(InputError, match=r"takes scale_b \[192, 8\]"):
        of_library("a16w4")(x, torch.zeros(N, K // 2, dtype=torch.uint8), scale_b=torch.ones(N, K // 128))
    with pytest.raises(InputError, match=r"x is torch.uint8: use one of"):
        of_library("a16w4")(x.view(torch.uint8), torch.zeros(N, K, dtype=torch.uint8), scale_b=torch.ones(N, K // 32))
    with pytest.raises(InputError, match=r"weight .*torch\.uint8"):
        of_library("a16w8")(x, torch.zeros(N, K, dtype=torch.uint8), scale_b=torch.ones(N))
    with pytest.raises(InputError, match="they must be"):
        of_library("a16w8")(x[:0], torch.zeros(N, 3, dtype=torch.int8), scale_b=torch.ones(N))
