"""a4w4_blockscale: MXFP4 and MXFP8 products, whose A may be packed too, with exponents for each 32 elements along K."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from forms import CUTE_FORMS, FORMS, PLACES, made
from interpreted import INTERPRETED, Interpreter
from long_tests import drawn, in_turns, spread
from small_gemms import make_module, needs_interpreter, specs_of, taking

from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.config import Config
from genkern.gemm.gpus import detect_arch, gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.legality import legal, legal_problem
from genkern.kernels.source import ast_source
from genkern.ops.op import bytes_moved, element_bytes, get_op
from genkern.profiling.checking.interpret import module_subject
from genkern.profiling.checking.verdict import Checking
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.tuning.checkers import reduced_problem

OP = get_op("a4w4_blockscale")
MXFP4, MXFP8_MXFP4, MXFP8 = ("int8", "int8"), ("fp8e4m3fn", "int8"), ("fp8e5m2", "fp8e4m3fn")
TILED = Config("tiled", 32, 32, 64, 4, 1, 4, 2)
SWAPPED = Config("tiled", 16, 64, 64, 4, 2, 4, 2, reduce="semaphore", swapped=1)
# tcgen05 takes exponents for 128 rows or more.
NATIVE = Config("tiled", 128, 64, 128, 4, 1, 4, 3)


def problem_of(m: int, n: int, k: int, types: tuple[str, str] = MXFP4, **more: object) -> GemmProblem:
    """A problem with float32 output, which shows what bf16 would round away."""
    return GemmProblem(m, n, k, OP.name, *types, **{"dtype_c": "fp32", **more})  # type: ignore[arg-type]


def test_operands_are_a_quarter_of_the_bytes() -> None:
    """Two a byte along K, in A as in B, and an exponent for each 32 of a row of A, and of a column of B."""
    problem = problem_of(4, 256, 96)
    a, b, _, scale_a, scale_b = OP.operands(problem)
    assert (a.tensor_shape, b.tensor_shape, element_bytes(problem)) == ((4, 48), (48, 256), (0.5, 0.5))
    assert [(scale.shape, scale.size_bytes) for scale in (scale_a, scale_b)] == [((4, 3), 12), ((256, 3), 256 * 3)]
    assert bytes_moved(problem) == (4 + 256) * (48 + 3) + 4 * 256 * 4
    assert element_bytes(problem_of(4, 256, 96, MXFP8_MXFP4)) == (1, 0.5)
    assert [OP.largest_exact(problem_of(4, 256, 96, types)) for types in (MXFP4, MXFP8_MXFP4, MXFP8)] == [4, 4, 8]


@pytest.mark.parametrize(
    ("said", "arch", "reason"),
    [
        ({"rowMajorB": "T"}, "sm_90", "contiguous along K"),
        ({"rowMajorA": "N"}, "sm_90", "contiguous along K"),
        ({"K": 80}, "sm_90", "K = 80 is no multiple of the 32 elements .* pad it with zeros"),
        ({"dtype_a": "bf16", "dtype_b": "bf16"}, "sm_90", "dtype_a = bf16"),
        ({"dtype_a": "int8", "dtype_b": "fp8"}, "sm_90", "swap the types"),
        ({"dtype_a": "fp8", "dtype_b": "int8"}, "gfx942", "dtype_a = fp8e4m3fnuz is not one of"),
        ({"dtype_a": "fp8e4m3fn", "dtype_b": "int8"}, "sm_80", "sm_80 has none of OCP's fp8"),
    ],
)
def test_what_it_is_not(said: dict[str, object], arch: str, reason: str) -> None:
    """Other layouts, sizes and types, in one line; fp8 where the target's own is another, or none."""
    with pytest.raises(InputError, match=reason):
        resolve({"M": 1, "N": 16, "K": 64, "op": OP.name, **said}, GemmDefaults(), arch)


@needs_interpreter
@pytest.mark.parametrize(
    ("types", "size"), [(MXFP4, (20, 40, 160)), (MXFP8_MXFP4, (37, 24, 96)), (MXFP8, (20, 24, 96))], ids=str
)
def test_every_family_multiplies(interpreter: Interpreter, types: tuple[str, str], size: tuple[int, int, int]) -> None:
    """Packed A or not, K that ends within a block, splits and swapped tiles, bias and activation."""
    problem = problem_of(*size, types, bias=True, activation="silu")
    fitting = (replace(config, BLOCK_SIZE_K=64) for config in taking(replace(problem, op="a16w16", dtype_b=types[0])))
    one_each = {
        traits_of(config).stem: config for config in fitting if not legal(problem, config, gpu_for_arch("sm_90"))
    }
    where = gpu_for_arch("sm_90")
    assert {*one_each} == {stem for stem in INTERPRETED if not legal_problem(problem, *PLACES[stem], where)}
    for config in spread([*one_each.values()], 3 if types == MXFP4 else 8):
        answer = interpreter.run(problem, config)
        assert answer.worst_row_error < 1e-5, config.name
        assert not answer.again, config.name


@needs_interpreter
@pytest.mark.parametrize(("types", "config"), [(MXFP4, replace(TILED, SPLIT_K=3)), (MXFP8_MXFP4, SWAPPED)])
def test_kernels_pass_the_check(interpreter: Interpreter, types: tuple[str, str], config: Config) -> None:
    """Exact inputs, slices of larger matrices and random ones."""
    verdict = interpreter.check(problem_of(20, 24, 160, types, dtype_c="bf16", bias=True), config)
    assert verdict["passed"], verdict
    assert verdict["rounds"] == ["exact", "layout", "random"]


# What a kernel has, and what it has in its place; A in MXFP8 where both operands would be wrong alike.
FAULTS = {
    "halves of a byte swapped": (
        MXFP8_MXFP4,
        "tl.join(codes & 15, (codes >> 4) & 15)",
        "tl.join((codes >> 4) & 15, codes & 15)",
    ),
    "no sign": (MXFP8_MXFP4, "(codes & 8) << 28 | ", ""),
    "no halves": (MXFP4, "(codes & 7) << 22", "(codes & 6) << 22"),
    "the next exponent": (MXFP4, "& 255) << 23", "& 255) + 1 << 23"),
    "the next 32's exponents": (MXFP4, "BLOCK_SIZE_K // 32) + tl.arange(0,", "BLOCK_SIZE_K // 32) + 1 - tl.arange(0,"),
    "the next row's exponents": (MXFP4, "scale_rows = pid_m * BLOCK", "scale_rows = 1 + pid_m * BLOCK"),
    "A from the next byte": (MXFP4, "+ first_k // 2 + offs_a[", "+ first_k // 2 + 1 + offs_a["),
    "A's pointers over whole K": (MXFP4, "a_ptrs += BLOCK_SIZE_K // 2", "a_ptrs += BLOCK_SIZE_K"),
}


@needs_interpreter
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(interpreter: Interpreter, fault: str) -> None:
    """In one size, by exact inputs; where the step makes the numbers, which it does for gfx942."""
    types, *texts = FAULTS[fault]
    problem, config = problem_of(20, 40, 160, types), replace(SWAPPED, SPLIT_K=1)
    verdict = interpreter.check(problem, config, (texts[0], texts[1]), "gfx942")
    assert not verdict["passed"]
    assert verdict["message"].startswith("exact inputs")


def instructions(folder: Path, arch: str, types: tuple[str, str], config: Config) -> str:
    """The assembly of the kernel that multiplies."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget
    module, loaded = make_module(folder, problem_of(256, 256, 512, types, bias=True), [config], arch)
    spec = specs_of(module, config)[0]
    made = compiler.compile(ast_source(loaded, spec), target(*triton_target(gpu_for_arch(arch))), dict(spec.options))
    return str(made.asm["ptx" if arch.startswith("sm_") else "amdgcn"])


@pytest.mark.parametrize(
    ("arch", "types", "config", "instruction"),
    drawn(
        [
            ("sm_100", MXFP4, NATIVE, r"tcgen05\.mma\S*kind::mxf4\.block_scale"),
            ("sm_100", MXFP8_MXFP4, replace(NATIVE, family="tiled_tma"), r"tcgen05\.mma\S*kind::mxf8f6f4\.block_scale"),
            ("gfx950", MXFP4, TILED, r"v_mfma_scale_f32_32x32x64_f8f6f4"),
            ("gfx950", MXFP8, replace(SWAPPED, BLOCK_SIZE_K=128), r"v_mfma_scale_f32_16x16x128_f8f6f4"),
            (
                "sm_90",
                MXFP8_MXFP4,
                replace(SWAPPED, family="tiled_tma", reduce="usual"),
                r"wgmma\S*m64n16k16\.f32\.bf16\.bf16",
            ),
            ("gfx942", MXFP4, TILED, r"v_mfma_f32_32x32x8_bf16"),
        ],
        3,
    ),
)
def test_native_where_the_target_has_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arch: str,
    types: tuple[str, str],
    config: Config,
    instruction: str,
) -> None:
    """Products by instructions that take exponents, and by nothing else; bf16 on other targets."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    text = instructions(tmp_path, arch, types, config)
    products = set(re.findall(r"(?:wgmma\.mma_async|tcgen05\.mma\.cta|mma\.sync|v_mfma)\S*", text))
    assert products
    assert all(re.match(instruction, product) for product in products), products


def test_which_families_take_it() -> None:
    """All that multiply by the format's step; with blocks that instructions for e2m1 take."""
    where = gpu_for_arch("sm_90")
    taken = {stem for stem in FORMS if not legal_problem(problem_of(1, 128, 1024), *PLACES[stem], where)}
    assert taken == {stem for stem, traits in FORMS.items() if traits.reads == "steps" and stem not in CUTE_FORMS}
    assert "skinny" not in taken
    # 96 elements are 48 bytes.
    assert not legal(problem_of(64, 128, 96), Config("tiled_tma", 64, 64, 64), where)
    assert "below the 64 elements" in legal(problem_of(64, 128, 64), replace(TILED, BLOCK_SIZE_K=32), where)
    assert not legal(problem_of(64, 128, 64, MXFP8_MXFP4), replace(TILED, BLOCK_SIZE_K=32), where)
    assert "no multiple of the 32" in legal(problem_of(64, 128, 64, MXFP8), replace(TILED, BLOCK_SIZE_K=16), None)


def test_what_the_interpreter_checks_has_whole_groups() -> None:
    """A reduced size ends within a block where the problem does, and never within a group."""
    small = reduced_problem(problem_of(4096, 7168, 2048 + 96), Config("tiled", 64, 32, 128))
    assert small.K % 32 == 0
    assert small.K % 128 == 96


@pytest.mark.parametrize("types", [MXFP4, MXFP8_MXFP4, MXFP8], ids=str)
def test_inputs_for_timing_are_of_usual_size(tmp_path: Path, types: tuple[str, str]) -> None:
    """Any byte is two numbers, and exponents leave results that are neither lost nor infinite."""
    pytest.importorskip("torch")
    _, module = make_module(tmp_path, problem_of(8, 48, 160, types), [TILED], "sm_90")
    operands = module.make_operands("cpu")
    module.check_operands(module.CONFIGS[TILED.name], operands)
    assert 1e-3 < module.reference(operands).abs().mean() < 1e3
    assert module.numbers(operands["a"], operands["scale_a"]).unique().numel() > 8


# Each has some of the sizes, but for `make test-long`.
@pytest.mark.parametrize(
    ("turn", "arch"), [*enumerate(["sm_80", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx950"])]
)
def test_its_spaces_keep_configs_for_every_size(turn: int, arch: str) -> None:
    """Without --space, the space in the format's folder; and where tcgen05 takes them, tiles that it multiplies."""
    space = load_space(None, arch, OP.name)
    for size in in_turns(((1, 8192, 8192), (4096, 7168, 2048), (3, 32, 64)), 2, turn):
        kept = prune(space, problem_of(*size), gpu_for_arch(arch)).kept
        assert kept, size
        if arch == "sm_100" and size[1] > 64:
            sides = (config.BLOCK_SIZE_N if config.swapped else config.BLOCK_SIZE_M for config in kept)
            assert any(side >= 128 for side in sides)


@pytest.mark.gpu
@pytest.mark.parametrize("types", [MXFP4, MXFP8_MXFP4, MXFP8], ids=str)
@pytest.mark.parametrize("size", [(1, 1024, 1056), (100, 1008, 1184), (256, 512, 1024)], ids=str)
def test_on_a_gpu(tmp_path: Path, types: tuple[str, str], size: tuple[int, int, int]) -> None:
    """To the bit, in every family; NaN among the exponents leaves its row without a number, and no other."""
    arch = detect_arch()
    problem = problem_of(*size, types, dtype_c="bf16", bias=True, activation="silu")
    if OP.refuse(problem, arch):
        pytest.skip(OP.refuse(problem, arch))
    stems = ("tiled", "tiled_semaphore", "tiled_tma", "split_tma", "persistent_tma", "tiled_swapped")
    tried = [made(stem, 128 if size[0] > 100 else 32, 64, 128, 4, 1, 4, 3) for stem in (*stems, "tiled_tma_swapped")]
    tried += [replace(config, SPLIT_K=3) for config in tried if traits_of(config).splits_k]
    configs = [config for config in tried if not legal(problem, config, gpu_for_arch(arch))]
    _, loaded = make_module(tmp_path, problem, configs, arch)
    operands = loaded.make_operands("cuda")
    checking = Checking(problem, OP, arch, loaded.reference, operands)
    for name in loaded.CONFIGS:
        verdict = checking.check(module_subject(loaded, name, loaded.units_of(operands)))
        assert verdict.message == "", name
    operands["scale_a"][0, 1] = -1
    out = loaded.matmul(next(iter(loaded.CONFIGS.values())), operands)
    assert not out[0].isfinite().any()
    assert out[1:].isfinite().all()
