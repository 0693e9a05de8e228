"""Humming (the wheel humming-kernels) on the operands of a weight-only product: one of weight_only.py's contenders.

    python -m benchmarks.kernels.humming_peer SIZES.yaml

compiles what weight_only.py calls of it for these sizes, 16 kernels at a time, into Humming's own cache; without that
each is compiled (by NVRTC, or with HUMMING_COMPILER=nvcc by nvcc) when its size is reached. Its config is the one that
its own rule gives for this M (humming.tune.get_heuristics_config). Source: humming-kernels 0.1.10, humming/layer.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.common.workbench import Bench, errors_end, said, say
from genkern.files.sizes import GemmDefaults, read_sizes
from genkern.gemm.problem import GemmProblem
from genkern.ops.a16w4 import A16W4
from genkern.ops.a16w8 import A16W8
from genkern.ops.fields import own_values
from genkern.profiling.loaded_gemm import Call

COMPILED_AT_ONCE = 16
LOCKS = 1024


@dataclass(frozen=True)
class Weights:
    """Weights as Humming names them: their type, the type of their scales ("" for A's), and how many have one in common
    along K (0: all of a column). `flip` is what turns a byte of signed integers into one of integers from zero on.
    """

    b_dtype: str
    bs_dtype: str
    group: int
    flip: int


def weights_of(problem: GemmProblem) -> Weights:
    """Raises ValueError for what Humming has not, or has with other numbers."""
    if problem.dtype_a != "bf16" or problem.dtype_c != "bf16" or problem.bias or problem.activation != "none":
        raise ValueError("only bf16, with neither bias nor activation, is compared")
    if problem.op == "a16w4":
        four = own_values(A16W4, problem)
        if four.weights == "mxfp4":
            return Weights("float4e2m1", "float8e8m0", four.group, 0)
        kind, scale_type = Weights("uint4", "", four.group, 0x88), four.scale_type
    elif problem.op == "a16w8" and problem.dtype_b in ("int8", "fp8e4m3fn") and not problem.row_major_b:
        flip = 0x80 if problem.dtype_b == "int8" else 0
        kind = Weights("uint8" if flip else "float8e4m3", "", 0, flip)
        scale_type = own_values(A16W8, problem).scale_type
    else:
        raise ValueError(f"Humming is not asked for {problem.name}")
    if scale_type != "bf16":
        raise ValueError("Humming's scales are bf16")
    return kind


def packed(kind: Weights, b: Any, scale_b: Any) -> tuple[Any, Any]:
    """Weights as Humming stores them before it lays them out, int32 [N, K bits / 32], and scales [N, groups].

    Of b [K, N], or [K / 2, N] with two in a byte, whose columns are contiguous, and of scale_b [N, groups] or [1, N].
    """
    import torch

    weight = (b.mT.view(torch.uint8) ^ kind.flip).view(torch.int32)
    if not kind.group:
        return weight, scale_b.mT.contiguous()
    return weight, scale_b.view(torch.float8_e8m0fnu) if kind.bs_dtype else scale_b


def meta_of(problem: GemmProblem, module: Any) -> Any:
    """Humming's description of the layer, which `module` keeps too."""
    import torch
    from humming.dtypes import DataType
    from humming.layer import HummingLayerMethod
    from humming.schema import HummingWeightSchema

    kind = weights_of(problem)
    schema = HummingWeightSchema(
        b_dtype=DataType.from_str(kind.b_dtype),
        bs_dtype=DataType.from_str(kind.bs_dtype) if kind.bs_dtype else None,
        weight_scale_group_size=kind.group,
    )
    return HummingLayerMethod.prepare_layer_meta(module, problem.N, problem.K, schema, torch_dtype=torch.bfloat16)


def config_of(problem: GemmProblem, meta: Any) -> dict[str, Any]:
    """What Humming's own rule chooses for this M."""
    from humming.tune import get_heuristics_config

    return dict(get_heuristics_config(meta=meta, shape_m=problem.M))


def humming_call(builder: Bench) -> Call:
    """Humming's product into C, of its own copies of the weights. Raises what the wheel raises, ValueError."""
    import torch
    from humming import ops
    from humming.kernel.humming import HummingKernel
    from humming.layer import HummingLayerMethod

    gemm, problem = builder.gemm, builder.problem
    module = torch.nn.Module()
    meta = meta_of(problem, module)
    weight, scale = packed(weights_of(problem), gemm.operands["b"], gemm.operands["scale_b"])
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    module.weight_scale = torch.nn.Parameter(scale, requires_grad=False)
    HummingLayerMethod.transform_humming_layer(module)
    configs = HummingKernel.prepare_kernels(meta.to_str(), None, json.dumps(config_of(problem, meta)))
    own = [(module.weight.clone(), module.weight_scale.clone()) for _ in range(gemm.copies)]
    locks = torch.zeros(LOCKS, dtype=torch.int32, device="cuda")
    a, c = gemm.operands["a"], gemm.operands["c"]

    def call(copy: int) -> None:
        weight, scale = own[copy % len(own)]
        ops.launch_kernel(configs, a, weight, c, weight_scale=scale, locks=locks)

    return call


def compile_kernels(problems: Sequence[GemmProblem]) -> int:
    """How many of the sizes have their kernel in Humming's cache now; what fails is said."""
    import torch
    from humming.kernel.humming import HummingKernel
    from humming.ops.utils import init_humming_launcher

    def compile_one(problem: GemmProblem) -> bool:
        with said(f"{problem.name} Humming"):
            meta = meta_of(problem, torch.nn.Module())
            layer = {key: value for key, value in json.loads(meta.to_str()).items() if key != "sublayer_name"}
            # Its kernels are loaded by main threads only, so that this compiles and no more.
            HummingKernel(**layer, **config_of(problem, meta))
            return True
        return False

    with ThreadPoolExecutor(COMPILED_AT_ONCE) as pool:
        compiled = sum(pool.map(compile_one, problems))
    init_humming_launcher()
    return compiled


def main(argv: Sequence[str]) -> None:
    if len(argv) != 1:
        raise SystemExit(__doc__)
    with errors_end():
        problems = read_sizes(argv[0], GemmDefaults(), "sm_90").problems
    try:
        compiled = compile_kernels(problems)
    except ImportError as error:
        raise SystemExit(f"Humming is not there: {error}") from None
    say(f"Humming has the kernels of {compiled} of {len(problems)} sizes")


if __name__ == "__main__":
    main(sys.argv[1:])
