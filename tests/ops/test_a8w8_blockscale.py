"""a8w8_blockscale: a scale for each block of A and of B, any K, whatever the tile and the split."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import SHARING, compile_all
from forms import CUTE_FORMS, FORMS, PLACES, REALIGNED, RINGS
from interpreted import INTERPRETED, Interpreter
from long_tests import in_turns
from small_gemms import SPLIT, SWAPPED, TILED, TILED_TMA_SPLIT, TMA, needs_interpreter, taking

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.legality import legal, legal_problem
from genkern.ops.op import get_op
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.tuning.checkers import reduced_problem

OP = get_op("a8w8_blockscale")
INT8, FP8 = ("int8", "int8"), ("fp8e4m3fn", "fp8e4m3fn")
# Other blocks than DeepSeek's: several rows of A, and tiles of several blocks of B.
OTHER = (("block_k", 64), ("block_m", 16), ("block_n", 32))


def problem_of(
    m: int, n: int, k: int, types: tuple[str, str], own: tuple[tuple[str, int], ...] = (), **more: object
) -> GemmProblem:
    """A problem with float32 output, which shows what bf16 would round away."""
    return GemmProblem(m, n, k, "a8w8_blockscale", *types, "fp32", own=own, **more)  # type: ignore[arg-type]


def test_scales_have_the_shape_of_the_blocks() -> None:
    """The last block of M, N and K may be a part of one; those of weights rotate with them; all are for steps."""
    problem = problem_of(5, 300, 200, FP8)
    operands = {operand.name: operand for operand in OP.operands(problem)}
    assert (operands["scale_a"].shape, operands["scale_b"].shape) == ((5, 2), (3, 2))
    assert [name for name, operand in operands.items() if operand.rotates] == ["b", "scale_b"]
    assert [operand.name for operand in OP.step_operands(problem)] == ["scale_a", "scale_b"]
    other = {operand.name: operand.shape for operand in OP.operands(replace(problem, own=OTHER))}
    assert (other["scale_a"], other["scale_b"]) == ((1, 4), (10, 4))


SCALED = [*itertools.product([(64, 160, 320), (37, 150, 300), (1, 50, 270)], [(), OTHER], [INT8, FP8])]


@needs_interpreter
@pytest.mark.parametrize(("number", "case"), [*enumerate(SCALED)], ids=str)
def test_every_dot_family_scales_blocks(
    interpreter: Interpreter,
    number: int,
    case: tuple[tuple[int, int, int], tuple[tuple[str, int], ...], tuple[str, str]],
) -> None:
    """A K that ends within a block and a tile that ends beyond N, splits, swapped tiles, bias and activation."""
    size, own, types = case
    whole = size[0] == 64
    problem = problem_of(*size, types, own, bias=whole, activation="silu" if whole else "none")
    families = [stem for stem in INTERPRETED if FORMS[stem].uses_dot]
    configs = [config for config in taking(problem) if traits_of(config).stem in families]
    # Each way to multiply for one type, size and blocks, and for some of the others.
    for config in in_turns(configs, 8, number) if number else configs:
        answer = interpreter.run(problem, config)
        assert answer.worst_row_error < 1e-5, config.name
        assert not answer.again, config.name


@needs_interpreter
def test_a_tile_of_several_blocks_of_columns(interpreter: Interpreter) -> None:
    """BLOCK_SIZE_N of 256 has two scales a step with 128 columns a block."""
    config = Config("tiled", 16, 256, 128, 1, 2)
    assert interpreter.run(problem_of(16, 300, 400, INT8), config).worst_row_error < 1e-5


@pytest.mark.parametrize("arch", SHARING)
def test_kernels_compile(tmp_path: Path, arch: str) -> None:
    """For AMD and NVIDIA, by pointers and through the copy engine."""
    fp8 = "fp8e4m3fnuz" if arch == "gfx942" else "fp8e4m3fn"
    for types in (INT8, (fp8, fp8)):
        folder = tmp_path / types[0]
        folder.mkdir()
        configs = [TILED, SPLIT, TMA, TILED_TMA_SPLIT, SWAPPED]
        problem = problem_of(100, 208, 320, types, bias=True)
        assert compile_all(folder, problem, in_turns(configs, 2, types != INT8), arch)


def test_a_step_lies_in_one_block_of_k() -> None:
    """BLOCK_SIZE_K divides block_k: each product has one scale a row, wherever K is split."""
    problem, gpu = problem_of(64, 128, 1024, FP8), gpu_for_arch("gfx942")
    for block_k, divides in ((32, True), (128, True), (256, False)):
        assert (legal(problem, Config("tiled", 16, 16, block_k), gpu) == "") is divides
    assert "64 elements" in legal(replace(problem, own=(("block_k", 64),)), Config("tiled", 16, 16, 128), gpu)


def test_families_that_leave_the_scales_out_are_refused() -> None:
    """One that multiplies element by element does not know the format's step; those that promote do."""
    problem = problem_of(1, 128, 1024, FP8)
    assert {stem for stem, traits in FORMS.items() if traits.reads != "steps"} == {
        "gemv",
        "skinny",
        "skinny_dot",
        *RINGS,
        *CUTE_FORMS,
        *REALIGNED,
    }
    side_by_side = {stem for stem in RINGS if FORMS[stem].cluster != (1, 1)}
    together = {stem for stem in CUTE_FORMS if stem.startswith("cute_cooperative") and "swapped" not in stem}
    promote = {stem for stem, traits in FORMS.items() if traits.reads == "promoted"}
    assert promote == (set(RINGS) - side_by_side) | together
    for stem, traits in FORMS.items():
        knows = traits.reads in ("steps", "promoted")
        where = gpu_for_arch("sm_100" if "tcgen05" in traits.needs else "sm_90")
        assert ("the loop over K of this family" in legal_problem(problem, *PLACES[stem], where)) is not knows
        plain = GemmProblem(1, 128, 1024, "a8w8", *FP8, "bf16")
        assert "the loop over K of this family" not in legal_problem(plain, *PLACES[stem], where)


def test_parts_of_k_are_not_promoted() -> None:
    """In CuTe DSL a kernel that makes parts of K knows no scales of blocks; without a split it does."""
    problem, where = problem_of(4096, 4096, 4096, FP8), gpu_for_arch("sm_90")
    config = Config("cute_wgmma", 128, 128, 128, 1, 1, 8, 4, store="direct")
    assert not legal(problem, config, where)
    assert legal(problem, replace(config, SPLIT_K=2), where)


def test_what_the_interpreter_checks_has_several_blocks() -> None:
    """A reduced size overhangs tiles and blocks where the problem does, and keeps more than one block each way."""
    small = reduced_problem(problem_of(4096, 7168 + 64, 2048 + 32, FP8), Config("tiled", 64, 32, 64, 4, 4))
    assert (small.N % 128, small.K % 128) == (64, 32)
    assert small.N > 128
    assert small.K > 256


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (problem_of(64, 512, 7168, FP8), ""),
        (problem_of(1, 512, 7168, FP8), "multiples of 4"),
        (problem_of(64, 512, 1664, FP8), "multiples of 4"),
        (problem_of(64, 512, 7168, FP8, OTHER), "128x128 blocks only"),
        (problem_of(64, 512, 7168, INT8), "no int8 product"),
    ],
)
def test_when_the_library_has_this(problem: GemmProblem, said: str) -> None:
    """cuBLASLt's layouts of scales are genkern's for some sizes; for the others there is no vendor time."""
    reason = OP.no_vendor(problem)
    assert said in reason
    assert bool(said) == bool(reason)


# Each has some of the sizes, but for `make test-long`.
@pytest.mark.parametrize(
    ("turn", "arch"), [*enumerate(["sm_80", "sm_89", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950"])]
)
def test_its_spaces_keep_configs_for_every_size(turn: int, arch: str) -> None:
    """Without --space, the space in the format's folder; int8, since not all of these have fp8."""
    space = load_space(None, arch, OP.name)
    for size in in_turns(((1, 4096, 7168), (64, 2112, 7168), (4096, 7168, 2048)), 2, turn):
        problem = GemmProblem(*size, OP.name, *INT8, "bf16")
        kept = prune(space, problem, gpu_for_arch(arch)).kept
        assert kept
        # A scale covers 128 elements of K, which a step must not leave.
        assert all(128 % config.BLOCK_SIZE_K == 0 for config in kept if not traits_of(config).in_ring)
        assert all(traits_of(config).reads in ("steps", "promoted") for config in kept)
        assert not any(legal(problem, config, gpu_for_arch(arch)) for config in kept)
        assert any(traits_of(config).in_ring for config in kept) is (arch == "sm_90")


@pytest.mark.parametrize(
    ("config", "own", "said"),
    [
        (Config("warp_specialized", 128, 128, 128, 1, 1, 8, 4), (), ""),
        # Two buffers are filled together, and promoted one after the other.
        (Config("warp_specialized", 16, 64, 256, 1, 1, 4, 4, swapped=1), (), ""),
        (Config("warp_specialized", 128, 128, 128, 1, 1, 8, 4), (("block_k", 256),), ""),
        (Config("warp_specialized", 128, 128, 128, 1, 1, 8, 4), (("block_k", 64),), "divide the 64 elements"),
        (Config("warp_specialized", 128, 128, 128, 1, 1, 8, 4), (("block_n", 100),), "eight columns at a time"),
        (Config("warp_specialized", 16, 64, 128, 1, 1, 4, 4, swapped=1), (("block_n", 100),), ""),
    ],
)
def test_a_buffer_of_the_ring_has_one_scale(config: Config, own: tuple[tuple[str, int], ...], said: str) -> None:
    """Kernels in Gluon promote the products of each buffer, 128 bytes along K, and of eight columns at a time."""
    reason = legal(problem_of(64, 256, 1024, FP8, own), config, gpu_for_arch("sm_90"))
    assert said in reason
    assert bool(said) == bool(reason)
