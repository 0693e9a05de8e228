"""skinny_dot: weights of fewer bits than A's that become numbers in registers (templates/gemm/skinny_dot.py.j2)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from long_tests import in_turns
from small_gemms import make_module, specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.family import FAMILIES
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal, legal_problem
from genkern.kernels.source import ast_source, load_module
from genkern.ops.op import get_op, op_names

Own = tuple[tuple[str, int | str], ...]
MX: Own = (("weights", "mxfp4"),)
# A, B, and what the format asks for besides.
KINDS: list[tuple[str, str, str, Own]] = [
    ("a16w4", "bf16", "int8", ()),
    ("a16w4", "bf16", "int8", (("group", 128), ("scale_type", "bf16"))),
    ("a16w4", "bf16", "int8", MX),
    ("a16w4", "fp16", "int8", (("group", 64),)),
    ("a16w4", "fp16", "int8", MX),
    ("a16w8", "bf16", "int8", ()),
    ("a16w8", "bf16", "fp8e4m3fn", (("scale_type", "bf16"),)),
    ("a16w8", "fp16", "fp8e4m3fn", ()),
]


def problem_of(m: int, n: int, k: int, kind: tuple[str, str, str, Own], **more: Any) -> GemmProblem:
    op, dtype_a, dtype_b, own = kind
    return GemmProblem(
        m, n, k, **{"op": op, "dtype_a": dtype_a, "dtype_b": dtype_b, "dtype_c": dtype_a, "own": own, **more}
    )


def config_of(m: int, rows: int = 32, warps: int = 4, stages: int = 1, splits: int = 1) -> Config:
    """A config whose tile has M as far as one can."""
    block_m = min(64, max(8, 1 << (m - 1).bit_length()))
    return Config("skinny_dot", block_m, rows, 128 * warps, 1, splits, warps, stages)


# Each kind with one number of rows, of stages and of splits, but for `make test-long`.
@pytest.mark.parametrize(
    ("kind", "rows", "stages", "splits"),
    [
        (kind, *each)
        for n, kind in enumerate(KINDS)
        for each in in_turns(((16, 3, 1), (64, 1, 2), (64, 1, 1), (32, 2, 1)), 4, n)
    ],
    ids=str,
)
def test_weights_stay_in_registers(
    tmp_path: Path, kind: tuple[str, str, str, Own], rows: int, stages: int, splits: int
) -> None:
    """The loop over K loads 16 bytes at a time and multiplies, without shared memory or a barrier."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget(*triton_target(gpu_for_arch("sm_90")))
    problem, config = problem_of(8, 8192, 8192, kind), config_of(8, rows, stages=stages, splits=splits)
    module, _ = make_module(tmp_path, problem, [config], "sm_90")
    (spec,) = specs_of(module, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
        source = ast_source(load_module(str(tmp_path / module.file_name)), spec)
        sass = compiler.compile(source, target, dict(spec.options)).asm["sass"]
    products = [match.start() for match in re.finditer(r"\bHMMA", sass)]
    # 16 rows by 8 columns by 16 of K each.
    assert len(products) == rows // 16 * 8
    # Sums of the warps are added up behind the last product.
    for name in ("STS", "LDS", "BAR", "STL", "LDL"):
        assert not [match for match in re.finditer(rf"\b{name}\b", sass) if match.start() < products[-1]], name
    # Before the loop for each stage, and in it for the last one.
    loads = rows * 128 * (2 if kind[0] == "a16w8" else 1) // 2 // 16 // 32
    assert len(re.findall(r"LDG\.E\.EF\.128", sass)) == (stages + 1) * loads


def test_which_formats_take_it() -> None:
    """Those whose weights have fewer bits than A; on Hopper, along K, in rows of whole pieces of 16 bytes."""
    where = gpu_for_arch("sm_90")
    assert {name for name in op_names() if get_op(name).in_registers} == {"a16w4", "a16w8"}
    assert [name for name, family in FAMILIES.items() if family.in_registers] == ["skinny_dot"]
    for kind in KINDS:
        assert legal(problem_of(1, 64, 256, kind), config_of(1), where) == ""
        assert "16 bytes" in legal_problem(problem_of(1, 64, 264, kind), "skinny_dot", where)
        assert "written for sm_90" in legal_problem(problem_of(1, 64, 256, kind), "skinny_dot", gpu_for_arch("sm_100"))
    assert "of fewer bits" in legal_problem(GemmProblem(1, 64, 256), "skinny_dot", where)


@pytest.mark.parametrize(("num_stages", "refused"), [(0, True), (1, False), (4, False), (5, True)])
def test_steps_on_their_way(num_stages: int, refused: bool) -> None:
    """One at least, whose weights the loop begins with, and four at most."""
    said = legal(problem_of(1, 64, 256, KINDS[0]), config_of(1, stages=num_stages), gpu_for_arch("sm_90"))
    assert ("num_stages is not from 1 to 4" in said) is refused


@pytest.mark.parametrize("bias", [False, True])
def test_has_the_epilogue(bias: bool) -> None:
    """The activation is applied to complete sums, with a bias or not."""
    text = generate(problem_of(7, 64, 256, KINDS[0], bias=bias, activation="silu"), [config_of(7)], "sm_90").text
    assert text.index("c = gl.sum(acc") < text.index("c = activate(c)")
    assert ("gl.load(bias_ptr" in text) == bias


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1, 513, 4128), (13, 1000, 1056), (70, 264, 2080)], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_passes_the_check(tmp_path: Path, kind: tuple[str, str, str, Own], size: tuple[int, int, int]) -> None:
    """Every format's numbers, in tiles that overhang along M, N and K; exact inputs to the bit, and random ones."""
    torch = pytest.importorskip("torch")
    from genkern.profiling.checking.subjects import module_subject
    from genkern.profiling.checking.verdict import Checking

    problem = problem_of(*size, kind, bias=size[0] == 13, activation="relu" if size[0] == 70 else "none")
    each = ((16, 4, 1), (32, 8, 1), (16, 4, 2), (32, 2, 3), (16, 4, 1, 2), (32, 2, 2, 4))
    configs = [config_of(size[0], *of) for of in each]
    _, module = make_module(tmp_path, problem, configs, "sm_90")
    units = torch.cuda.get_device_properties(0).multi_processor_count
    checking = Checking(problem, get_op(problem.op), "sm_90", module.reference, module.make_operands("cuda"))
    for config in configs:
        verdict = checking.check(module_subject(module, config.name, units))
        assert verdict.passed, (config.name, verdict.message)
