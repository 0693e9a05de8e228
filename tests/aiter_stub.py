"""An `aiter` with AITER's signatures and demands (ROCm/aiter e4048607), computed by PyTorch; real names of kernels."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lt_problems import operands_of

from genkern.gemm.problem import GemmProblem

HEAD = "knl_name,co_name,tn,tileM,tileN,pf,bPreshuffle,splitK,subK,bias\n"
# hsa/gfx942/bf16gemm/bf16gemm_fp32bf16.csv, some of its lines in its order.
SHUFFLED = "_ZN5aiter42bf16gemm_fp32bf16_tn_32x64_bshuffle_splitkE"
ONE_SPLIT = "_ZN5aiter37bf16gemm_fp32bf16_tn_32x64_pf3_splitkE"
LARGER = "_ZN5aiter37bf16gemm_fp32bf16_tn_64x64_pf3_splitkE"
SPLIT = "_ZN5aiter39bf16gemm_fp32bf16_tn_32x64_splitk_cleanE"
LIST = (
    f"{SHUFFLED},a.co,1,32,64,0,1,0,64,1\n{ONE_SPLIT},b.co,1,32,64,3,0,0,64,1\n"
    f"{LARGER},c.co,1,64,64,3,0,0,64,1\n{SPLIT},d.co,1,32,64,0,0,1,64,1\n"
)
MODULES = (
    *("module_gemm_a16w16_asm", "module_gemm_a8w8", "module_gemm_a8w8_blockscale", "module_gemm_a8w8_bpreshuffle"),
    *("module_gemm_a8w8_blockscale_bpreshuffle", "module_custom"),
)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    assert a.shape[1] == b.shape[1], "weights as [N, K]"
    assert a.is_contiguous()
    assert b.is_contiguous()
    return a.float() @ b.float().T


def gemm_a16w16_asm(A: Any, B: Any, out: Any, bias: Any = None, splitK: Any = None, kernelName: Any = None,
                    bpreshuffle: bool = False) -> Any:  # fmt: skip
    """asm_gemm_a16w16.cu: a kernel takes its own layout, whole tiles of N, and splits if it is made for them."""
    lines = {line.split(",")[0]: line.split(",")[2:] for line in LIST.splitlines()}
    _, _, tile_n, _, shuffled, splits, step, _ = map(int, lines[kernelName])
    if B.shape[0] % tile_n or bool(shuffled) != bpreshuffle or A.shape[1] % 64:
        raise RuntimeError("N / layout")
    splitK = min(splitK, 16, A.shape[1] // step)
    if (splitK > 1) != bool(splits):
        raise RuntimeError("The specified splitK")
    wrong = kernelName == LARGER and A.shape[0] == 1
    return out.copy_(product(A, B) + wrong + (0 if bias is None else bias.float()))


def gemm_a8w8_ck(XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, Out: Any, bias: Any = None, splitK: int = 0) -> Any:
    assert (x_scale.shape[1], w_scale.shape[0], splitK) == (1, 1, 0)
    return Out.copy_(product(XQ, WQ) * x_scale * w_scale)


def unshuffled(weight: Any) -> Any:
    """aiter/ops/shuffle.py, backwards: 16 rows, pieces of 16 bytes."""
    n, k = weight.shape
    assert weight.is_contiguous()
    return weight.view(n // 16, k // 16, 16, 16).transpose(1, 2).reshape(n, k)


def gemm_a8w8_bpreshuffle_ck(XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, Out: Any, splitK: int = 0) -> Any:
    return gemm_a8w8_ck(XQ, unshuffled(WQ), x_scale, w_scale, Out, None, splitK)


def gemm_a8w8_blockscale_ck(XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, Out: Any, splitK: int = 0,
                            kernelName: str = "") -> Any:  # fmt: skip
    """CK's pointers know no strides."""
    assert x_scale.shape == (XQ.shape[0], XQ.shape[1] // 128)
    assert x_scale.is_contiguous()
    assert w_scale.is_contiguous()
    a = XQ.float() * x_scale.repeat_interleave(128, 1)
    b = WQ.float() * w_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return Out.copy_(a @ b.T)


def gemm_a8w8_blockscale_bpreshuffle_ck(XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, Out: Any,
                                        kernelName: str = "") -> Any:  # fmt: skip
    """x_scale is x_scale.transpose(0, 1).contiguous().view(*x_scale.shape) (op_tests/test_gemm_a8w8_blockscale.py)."""
    m, along = x_scale.shape
    assert x_scale.is_contiguous()
    rows = x_scale.reshape(along, m).T.contiguous()
    return gemm_a8w8_blockscale_ck(XQ, unshuffled(WQ), rows, w_scale, Out)


def installed(folder: Path, libtype: str = "skinny", units: int = 304) -> Any:
    """As an installation in `folder`, whose modules are built, with cktile for none of the formats; AITER's table
    says `libtype` of every size.
    """
    (folder / "bf16gemm").mkdir(parents=True, exist_ok=True)
    (folder / "bf16gemm" / "bf16gemm_fp32bf16.csv").write_text(HEAD + LIST)
    for module in MODULES:
        (folder / f"{module}.so").touch()

    def look_up(M: int, N: int, K: int, bias: bool, dtype: str, otype: str, scaleAB: bool = False,
                bpreshuffle: bool = False) -> dict[str, object]:  # fmt: skip
        assert {dtype, otype} <= {"torch.bfloat16", "torch.float16", "torch.float32"}
        return {"libtype": libtype, "solidx": 2}

    mm = lambda inp, weights, bias=None, otype=None: product(inp, weights).to(otype)  # noqa: E731
    return SimpleNamespace(
        jit=SimpleNamespace(
            core=SimpleNamespace(get_asm_dir=lambda: str(folder), get_user_jit_dir=lambda: str(folder)),
            utils=SimpleNamespace(chip_info=SimpleNamespace(get_cu_num=lambda: units)),
        ),
        tuned_gemm=SimpleNamespace(tgemm=SimpleNamespace(mm=mm), get_GEMM_A16W16_config=look_up),
        gemm_a16w16_asm=gemm_a16w16_asm,
        gemm_a8w8_ck=gemm_a8w8_ck,
        gemm_a8w8_bpreshuffle_ck=gemm_a8w8_bpreshuffle_ck,
        gemm_a8w8_blockscale_ck=gemm_a8w8_blockscale_ck,
        gemm_a8w8_blockscale_bpreshuffle_ck=gemm_a8w8_blockscale_bpreshuffle_ck,
    )


def opened(problem: GemmProblem) -> Any:
    """An open session of the problem, with two copies of its operands."""
    copies = [operands_of(problem), operands_of(problem)]
    return SimpleNamespace(session=SimpleNamespace(problem=problem), operands_of=copies.__getitem__, copies=2)
