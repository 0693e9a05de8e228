"""skinny_dot: weights of fewer bits than A's that become numbers in registers (templates/gemm/skinny_dot.py.j2)."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from forms import FORMS
from long_tests import LONG, drawn, in_turns
from small_gemms import make_module, specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
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
# One for each kind of weights.
OF_WEIGHTS = [KINDS[0], KINDS[2], KINDS[3], KINDS[5], KINDS[6]]


def problem_of(m: int, n: int, k: int, kind: tuple[str, str, str, Own], **more: Any) -> GemmProblem:
    op, dtype_a, dtype_b, own = kind
    return GemmProblem(
        m, n, k, **{"op": op, "dtype_a": dtype_a, "dtype_b": dtype_b, "dtype_c": dtype_a, "own": own, **more}
    )


def config_of(
    m: int, rows: int = 32, warps: int = 4, stages: int = 1, splits: int = 1, side_by_side: int = 1
) -> Config:
    """A config whose tile has M as far as one can."""
    block_m = min(64, max(8, 1 << (m - 1).bit_length()))
    return Config("skinny_dot", block_m, rows, 128 * warps // side_by_side, 1, splits, warps, stages)


# Rows, stages and splits; those of each kind of weights in turn, but for `make test-long`.
IN_REGISTERS = [(64, 1, 1), (16, 3, 1), (32, 2, 1), (64, 1, 2)]
OF_KINDS = [(16, 1, 1), (64, 1, 2), (32, 2, 1), (64, 1, 1), (16, 3, 1)]


@pytest.mark.parametrize(
    ("kind", "rows", "stages", "splits"),
    [(kind, *each) for kind in KINDS for each in IN_REGISTERS]
    if LONG
    else drawn([(kind, *each) for kind, each in zip(OF_WEIGHTS, OF_KINDS, strict=True)], 2),
    ids=str,
)
def test_weights_stay_in_registers(
    tmp_path: Path, kind: tuple[str, str, str, Own], rows: int, stages: int, splits: int
) -> None:
    """The loop over K loads 16 bytes at a time: no store to shared memory, no barrier of a program, nothing spilled."""
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
    # 16 rows by 8 columns by 16 of K each, in each step of a turn of the loop.
    assert len(products) == (stages + 1) * rows // 16 * 8
    for name in ("STL", "LDL"):
        assert not [match for match in re.finditer(rf"\b{name}\b", sass) if match.start() < products[-1]], name
    # A and scales are in shared memory before the first product; sums of the warps are added up behind the last one.
    for name in ("STS", "BAR", "SHFL"):
        assert not re.search(rf"\b{name}\b", sass[products[0] : products[-1]]), name
    # Before the loop for each stage, and in it for each step of a turn.
    loads = rows * 128 * (2 if kind[0] == "a16w8" else 1) // 2 // 16 // 32
    assert len(re.findall(r"LDG\.E\.EF\.128", sass)) == (2 * stages + 1) * loads


def test_which_formats_take_it() -> None:
    """Those whose weights have fewer bits than A; on Hopper, along K, in rows of whole pieces of 16 bytes."""
    where = gpu_for_arch("sm_90")
    assert {name for name in op_names() if get_op(name).in_registers} == {"a16w4", "a16w8"}
    assert [name for name, traits in FORMS.items() if traits.reads == "registers"] == ["skinny_dot"]
    for kind in KINDS:
        assert legal(problem_of(1, 64, 256, kind), config_of(1), where) == ""
        assert "16 bytes" in legal_problem(problem_of(1, 64, 264, kind), "skinny_dot", (), where)
        on_b200 = legal_problem(problem_of(1, 64, 256, kind), "skinny_dot", (), gpu_for_arch("sm_100"))
        assert "wgmma, which sm_100 does not" in on_b200
    assert "of fewer bits" in legal_problem(GemmProblem(1, 64, 256), "skinny_dot", (), where)


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


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_held_is_a_power_of_two_and_fits(kind: tuple[str, str, str, Own]) -> None:
    """Triton's tensors and shapes want powers of two, and A and scales have 128 KiB each at most."""
    found = set()
    for m, k, rows, warps, stages, splits in itertools.product(
        (1, 3, 8, 16), (256, 2048, 32768), (16, 128), (4, 16), (1, 2, 3, 4), (1, 2)
    ):
        problem, config = problem_of(m, 512, k, kind), config_of(m, rows, warps, stages, splits)
        variant = FORMS["skinny_dot"].variant(problem, config)
        if not variant.held:
            continue
        group = get_op(problem.op).shared_scale(problem)[2]
        scales = 2 * variant.held * config.BLOCK_SIZE_K // group * rows if group > 1 else 0
        assert variant.held.bit_count() == 1
        assert variant.held % (stages + 1) == 0
        assert max(2 * variant.held * config.BLOCK_SIZE_K * variant.rows, scales) <= 128 * 1024
        found.add(stages)
    assert found == {1, 3}


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1, 513, 4128), (13, 1000, 1056), (70, 264, 2080)], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_passes_the_check(tmp_path: Path, kind: tuple[str, str, str, Own], size: tuple[int, int, int]) -> None:
    """Every format's numbers, in tiles that overhang along M, N and K; exact inputs to the bit, and random ones."""
    torch = pytest.importorskip("torch")
    from genkern.profiling.checking.interpret import module_subject
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


def run_on_cpu(problem: GemmProblem, config: Config, seed: int) -> tuple[Any, Any]:
    """C as the kernel's text makes it, and C in float64, both [M, N]; the bias is none."""
    torch = pytest.importorskip("torch")
    from skinny_stand_in import Pointer, Program, mma_v2

    from genkern.kernels.specs import main_variant

    # Kernels that hold other parts of A are in the module too.
    others = [config_of(problem.M, 16, warps, 1, splits) for warps in (2, 8) for splits in (1, 2)]
    text = generate(problem, [config, *others], "sm_90").kernels_text
    ours = dict(problem.own)
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.int8}
    kinds["fp8e4m3fn"] = torch.float8_e4m3fn
    random = torch.Generator().manual_seed(seed)
    m, n, k, dtype = problem.M, problem.N, problem.K, kinds[problem.dtype_a]
    a = torch.randn(m, k, generator=random).to(dtype)
    mx, wide = ours.get("weights") == "mxfp4", problem.op == "a16w8"
    scale_type = kinds[str(ours.get("scale_type", "fp32"))]
    if wide:
        b = torch.randint(-127, 127, (n, k), generator=random).to(torch.int8)
        if problem.dtype_b != "int8":
            b = (b / 32).to(torch.float8_e4m3fn)
        scales = torch.rand(n, generator=random).to(scale_type)
        weights, exact = b.float().to(dtype).double(), scales.double()
    else:
        b = torch.randint(-128, 128, (n, k // 2), generator=random).to(torch.int8)
        codes = torch.stack((b & 15, b >> 4 & 15), -1).reshape(n, k).long()
        group = 32 if mx else int(ours.get("group", 32))
        if mx:
            values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).repeat(2) * torch.tensor([1, -1]).repeat_interleave(8)
            numbers, scales = values[codes], torch.randint(120, 132, (n, -(-k // group)), generator=random)
            factors, scales = 2.0 ** (scales.double() - 127), scales.to(torch.int16).to(torch.int8)
        else:
            numbers = torch.where(codes > 7, codes - 16, codes).double()
            scales = torch.rand(n, -(-k // group), generator=random).to(scale_type)
            factors = scales.double()
        factors = factors.repeat_interleave(group, 1)[:, :k]
        weights, exact = (numbers * factors).float().to(dtype).double(), torch.ones(n).double()
    c = torch.full((m, n), torch.nan, dtype=dtype)
    tiles = -(-m // config.BLOCK_SIZE_M), -(-n // config.BLOCK_SIZE_N)
    partial = torch.full((tiles[0] * tiles[1] * config.SPLIT_K * config.BLOCK_SIZE_M * config.BLOCK_SIZE_N,), torch.nan)
    arrived = torch.zeros(tiles[0] * tiles[1], dtype=torch.int32)
    given = {
        "a_ptr": Pointer(a.reshape(-1)), "b_ptr": Pointer(b.reshape(-1)), "c_ptr": Pointer(c.view(-1)),
        "scale_b_ptr": Pointer(scales.reshape(-1)), "partial_ptr": Pointer(partial), "arrived_ptr": Pointer(arrived),
        "M": m, "N": n, "K": k, "lda": k, "ldb": k if wide else k // 2, "ldc": n, "BINARY": "",
        "SPLIT_K": config.SPLIT_K,
        "BLOCK_SIZE_M": config.BLOCK_SIZE_M, "BLOCK_SIZE_N": config.BLOCK_SIZE_N, "STAGES": config.num_stages,
        "BLOCK_SIZE_K": config.BLOCK_SIZE_K, "num_warps": config.num_warps,
    }  # fmt: skip
    name = main_variant(problem, config).name
    body = "".join(re.findall(r"# fmt: off\n(.*?)# fmt: on", text, re.DOTALL))
    body = re.sub(r"@(gluon\.jit|triton\.constexpr_function).*", "", body)
    # A whole number, not a tensor.
    body = body.replace("(tile * SPLIT_K).to(gl.int64)", "(tile * SPLIT_K)")
    grid = (tiles[1], tiles[0], config.SPLIT_K)
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                within: dict[str, Any] = {"gl": Program((x, y, z), grid).language(), "mma_v2": mma_v2}
                within |= {"thread_barrier": lambda: None, "reinterpreted": lambda held, *_: held}
                exec(compile(body, name, "exec", dont_inherit=True, flags=0x1000000), within)
                function = within[name]
                function(**{key: given[key] for key in function.__code__.co_varnames[: function.__code__.co_argcount]})
    assert not arrived.any()
    return c.double(), (a.double() @ weights.T) * exact


SHAPES = [
    (1, 40, 1024, 16, 4, 1, 1),
    (3, 40, 2080, 16, 4, 1, 1),
    (7, 24, 1120, 32, 2, 3, 1),
    (1, 24, 1120, 16, 4, 2, 1),
    (13, 40, 1056, 32, 2, 1, 2),
    (5, 24, 4128, 16, 2, 1, 3),
    (5, 24, 8416, 16, 4, 1, 1),
    (40, 24, 800, 16, 2, 1, 1),
    (13, 72, 4128, 64, 8, 1, 2),
]


# Kinds take turns: each has every third shape.
@pytest.mark.parametrize(
    ("kind", "shape"), [(kind, shape) for n, kind in enumerate(KINDS) for shape in in_turns(SHAPES, 3, n)], ids=str
)
def test_multiplies(kind: tuple[str, str, str, Own], shape: tuple[int, ...]) -> None:
    """Every weight meets its number of A, in tiles that overhang along M, N and K, in parts of K and in splits."""
    m, n, k, rows, warps, stages, splits = shape
    problem = problem_of(m, n, k, kind)
    found, right = run_on_cpu(problem, config_of(m, rows, warps, stages, splits, rows // 32 or 1), seed=m)
    error = (found - right).abs().max() / right.abs().max()
    assert error < 2**-8, error
