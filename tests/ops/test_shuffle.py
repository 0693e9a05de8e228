"""Shuffled weights: a bijection that is AITER's, and the formats whose kernels read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compiled import SHARING, compile_all
from forms import FORMS, PLACES
from interpreted import Interpreter
from small_gemms import (
    FEW_ROWS,
    GEMV,
    SEMAPHORE,
    SPLIT,
    SWAPPED,
    TILED,
    TILED_TMA,
    make_module,
    needs_interpreter,
)

import genkern
from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem, Own
from genkern.kernels.legality import legal, legal_problem
from genkern.ops.op import bytes_moved, get_op
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.tuning.checkers import reduced_problem

torch = pytest.importorskip("torch")
PLAIN, BLOCKS = "a8w8_bpreshuffle", "a8w8_blockscale_bpreshuffle"
OF_8: Own = (("layout", "n8k16"),)
SMALL_BLOCKS: Own = (("block_k", 32), ("block_n", 32))


def problem_of(m: int, n: int, k: int, op: str = PLAIN, own: Own = (), dtype: str = "int8") -> GemmProblem:
    """A problem with float32 output, which shows what bf16 would round away."""
    return GemmProblem(m, n, k, op, dtype, dtype, "fp32", bias=True, own=own)


def by_the_book(weight: torch.Tensor, layout: tuple[int, int]) -> torch.Tensor:
    """What AITER's shuffle_weight makes, element by element: block of rows, pair of pieces, piece, row, element."""
    n, k = weight.shape
    rows, along = layout
    piece = 16 // weight.element_size()
    made = torch.empty(n * k, dtype=weight.dtype)
    for row in range(n):
        for column in range(k):
            block, within = divmod(row, rows)
            pair, left = divmod(column, 2 * along)
            which, element = divmod(left, piece)
            place = (block * (k // (2 * along)) + pair) * (2 * along // piece) + which
            made[(place * rows + within) * piece + element] = weight[row, column]
    return made.view(n, k)


@pytest.mark.parametrize("layout", [(16, 16), (32, 16), (8, 16), (16, 32)])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
def test_the_layout_is_aiters_and_has_an_inverse(layout: tuple[int, int], dtype: torch.dtype) -> None:
    """Every element has one place; of the same shape, type and bits, whatever stands before the last two dimensions."""
    weight = torch.arange(64 * 128).view(64, 128).to(dtype)
    made = genkern.shuffle_weight(weight, layout)
    as_integers = {1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    assert (made.shape, made.dtype, made.is_contiguous()) == (weight.shape, dtype, True)
    assert made.view(as_integers).equal(by_the_book(weight.view(as_integers), layout))
    assert genkern.unshuffle_weight(made, layout).view(as_integers).equal(weight.view(as_integers))
    experts = torch.stack((weight, weight.flip(0)))
    both = genkern.shuffle_weight(experts, layout).view(as_integers)
    assert both[1].equal(genkern.shuffle_weight(experts[1], layout).view(as_integers))
    assert genkern.unshuffle_weight(both.view(dtype), layout).view(as_integers).equal(experts.view(as_integers))


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((24, 64), (16, 16)), ((32, 48), (16, 16)), ((32, 64), (0, 16)), ((64,), (16, 16)), ((32, 64), (16, 4))],
)
def test_what_has_no_such_layout_is_refused(shape: tuple[int, ...], layout: tuple[int, int]) -> None:
    """In one line with what N and K must be."""
    for change in (genkern.shuffle_weight, genkern.unshuffle_weight):
        with pytest.raises(InputError, match=r"cannot be laid out|give \[..., N, K\]"):
            change(torch.zeros(shape, dtype=torch.int8), layout)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"N": 24}, "N that is a multiple of 16 and a K that is a multiple of 32"),
        ({"K": 48}, "K that is a multiple of 32"),
        ({"rowMajorB": "T"}, "contiguous along K"),
        ({"layout": "n32k16", "N": 48}, "N that is a multiple of 32"),
        ({"layout": "16x16"}, "is not one of n16k16, n32k16, n8k16"),
        ({"dtype_a": "bf16", "dtype_b": "bf16"}, "must both be int8 or both fp8"),
    ],
)
@pytest.mark.parametrize("op", [PLAIN, BLOCKS])
def test_what_it_is_not(op: str, said: dict[str, object], reason: str) -> None:
    """In one line."""
    with pytest.raises(InputError, match=reason):
        resolve({"M": 1, "N": 32, "K": 64, "op": op, **said}, GemmDefaults(), "sm_90")


def test_the_operand_is_the_weight() -> None:
    """As many bytes, of which 16 rows are one of the tensor."""
    problem = problem_of(4, 64, 96)
    b = get_op(PLAIN).operands(problem)[1]
    assert (b.shape, b.storage_shape, b.size_bytes) == ((96, 64), (4, 16 * 96), 64 * 96)
    assert bytes_moved(problem) == bytes_moved(replace(problem, op="a8w8"))


@needs_interpreter
@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (problem_of(37, 48, 96), SPLIT),
        (problem_of(20, 64, 96, own=(("layout", "n32k16"),)), SWAPPED),
        (problem_of(20, 48, 96, own=OF_8, dtype="fp8e4m3fn"), SEMAPHORE),
        (problem_of(40, 48, 96), SEMAPHORE),
        (problem_of(3, 16, 160), FEW_ROWS),
        (problem_of(1, 48, 160, own=OF_8), GEMV),
        (problem_of(20, 48, 96, BLOCKS, SMALL_BLOCKS, "fp8e4m3fnuz"), SPLIT),
        (problem_of(20, 48, 96, BLOCKS, (*SMALL_BLOCKS, *OF_8)), SWAPPED),
    ],
    ids=lambda value: value.name,
)
def test_every_family_passes_the_check(interpreter: Interpreter, problem: GemmProblem, config: Config) -> None:
    """Exact inputs, to the bit what the unshuffled weights give; slices of larger tensors; random ones."""
    verdict = interpreter.check(problem, config)
    assert verdict["passed"], verdict
    assert verdict["rounds"] == ["exact", "layout", "random"]


FAULTS = {
    "plain weights": ("// 16 * 256 + tl.arange(0, BLOCK_SIZE_K) % 16", "+ tl.arange(0, BLOCK_SIZE_K) * 0"),
    "rows of another piece": ("% 16 * 16 +", "% 16 * 32 +"),
    "the next block of rows": ("(offs_n[:, None] // 16) * ldb", "(offs_n[:, None] // 16 + 1) % 3 * ldb"),
    "steps of one row": ("b_ptrs += BLOCK_SIZE_K * 16", "b_ptrs += BLOCK_SIZE_K"),
    "a split at its place in one row": ("first_k * 16", "first_k"),
}


@needs_interpreter
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(interpreter: Interpreter, fault: str) -> None:
    """By exact inputs."""
    verdict = interpreter.check(problem_of(20, 48, 192), SWAPPED, FAULTS[fault])
    assert verdict["message"].startswith("exact inputs"), verdict


@needs_interpreter
def test_the_product_is_that_of_plain_weights(tmp_path: Path) -> None:
    """The reference of the format's module is the plain format's, of the weights before they were shuffled."""
    for op, own in (("a8w8", ()), ("a8w8_blockscale", SMALL_BLOCKS)):
        plain = problem_of(5, 64, 96, op, own)
        _, module = make_module(tmp_path, plain, [TILED], "sm_90")
        _, other = make_module(tmp_path, replace(plain, op=f"{op}_bpreshuffle"), [TILED], "sm_90")
        operands = module.make_operands("cpu")
        shuffled = genkern.shuffle_weight(operands["b"].T).view(4, 16 * 96).T
        given = {**operands, "b": shuffled}
        other.check_operands(other.CONFIGS[TILED.name], given)
        assert other.reference(given).equal(module.reference(operands))


@pytest.mark.parametrize("arch", SHARING)
def test_kernels_compile(tmp_path: Path, arch: str) -> None:
    """For AMD and NVIDIA; on sm_90 a thread loads 16 bytes of a shuffled weight at a time."""
    own: Own = OF_8 if arch == "sm_90" else ()
    assert compile_all(tmp_path, problem_of(1, 208, 320, own=own), [GEMV, FEW_ROWS], arch)
    large = [replace(TILED, BLOCK_SIZE_K=64), replace(SWAPPED, BLOCK_SIZE_K=64)]
    assert compile_all(tmp_path, problem_of(100, 208, 320, BLOCKS), large, arch)


def test_which_families_take_it() -> None:
    """Those that load through pointers; with block scales only those whose steps are the format's."""
    where = gpu_for_arch("sm_90")
    # skinny_dot multiplies weights of fewer bits than A's.
    pointers = {stem for stem, traits in FORMS.items() if not traits.uses_tma} - {"skinny_dot"}
    assert {stem for stem in FORMS if not legal_problem(problem_of(1, 128, 1024), *PLACES[stem], where)} == pointers
    blocks = {stem for stem in FORMS if not legal_problem(problem_of(1, 128, 1024, BLOCKS), *PLACES[stem], where)}
    assert blocks == pointers - {"gemv", "skinny"}
    assert "loaded without TMA" in legal(problem_of(64, 128, 1024), TILED_TMA, where)
    assert "multiple of the 16 elements" in legal(problem_of(4, 128, 1024), replace(FEW_ROWS, BLOCK_SIZE_K=8), where)
    assert "must divide the 128" in legal(problem_of(64, 128, 1024, BLOCKS), replace(TILED, BLOCK_SIZE_K=256), where)


def test_what_the_interpreter_checks_can_be_laid_out() -> None:
    """A reduced size has whole blocks of rows."""
    small = reduced_problem(problem_of(4096, 7168 - 16, 2048 + 32), Config("tiled", 64, 64, 64))
    assert (small.N % 64, small.K % 64) == (48, 32)


@pytest.mark.parametrize(
    ("arch", "op"), [("sm_80", BLOCKS), ("sm_90", PLAIN), ("sm_90", BLOCKS), ("gfx942", PLAIN), ("gfx950", BLOCKS)]
)
def test_spaces_have_something_for_every_size(arch: str, op: str) -> None:
    """Without --space: those of plain a8w8, and of block scales that in the format's folder."""
    space = load_space(None, arch, op)
    for size in ((1, 8192, 8192), (4096, 7168, 2048), (3, 32, 128)):
        assert prune(space, problem_of(*size, op), gpu_for_arch(arch)).kept, size
