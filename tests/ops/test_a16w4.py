"""a16w4: 16-bit activations by int4 or MXFP4 weights, two a byte, with a scale for each group along K of a column."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compiled import SHARING, compile_all
from forms import CUTE_FORMS, FORMS, PLACES, REALIGNED, RINGS
from interpreted import INTERPRETED, Interpreter
from long_tests import in_turns, spread
from small_gemms import (
    FEW_ROWS,
    GEMV,
    SPLIT,
    SWAPPED,
    TILED,
    TILED_TMA_SPLIT,
    make_module,
    needs_interpreter,
    taking,
)

from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem, Own
from genkern.kernels.catalogue import traits_of
from genkern.kernels.legality import legal, legal_problem
from genkern.ops.op import bytes_moved, element_bytes, get_op
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.tuning.checkers import reduced_problem

OP = get_op("a16w4")
MX: Own = (("weights", "mxfp4"),)
OF_128: Own = (("group", 128),)
BF16_SCALES: Own = (("group", 64), ("scale_type", "bf16"))


def problem_of(m: int, n: int, k: int, own: Own = (), **more: object) -> GemmProblem:
    """A problem with float32 output, which shows what bf16 would round away."""
    return GemmProblem(m, n, k, "a16w4", **{"dtype_b": "int8", "dtype_c": "fp32", "own": own, **more})  # type: ignore[arg-type]


def test_weights_are_a_quarter_of_the_bytes() -> None:
    """Two a byte along K, whose odd end is rounded up, and a scale for each group of a column."""
    problem = problem_of(4, 256, 513, OF_128)
    _, b, _, scale = OP.operands(problem)
    assert (b.tensor_shape, b.size_bytes, element_bytes(problem)) == ((257, 256), 257 * 256, (2, 0.5))
    assert (scale.shape, scale.dtype, scale.in_step) == ((256, 5), "fp32", True)
    assert OP.operands(replace(problem, own=MX))[3].shape == (256, 17)
    assert bytes_moved(problem) == 4 * 513 * 2 + 257 * 256 + 256 * 5 * 4 + 4 * 256 * 4


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"rowMajorB": "T"}, "packed along K"),
        ({"group": 48}, "group = 48 is not one of"),
        ({"weights": "mxfp4", "group": 64}, "mxfp4 has one exponent per 32"),
        ({"dtype_b": "fp16"}, "dtype_b = fp16"),
        ({"dtype_a": "fp32"}, "dtype_a = fp32"),
    ],
)
def test_what_it_is_not(said: dict[str, object], reason: str) -> None:
    """Other layouts, groups and types, in one line."""
    with pytest.raises(InputError, match=reason):
        resolve({"M": 1, "N": 16, "K": 64, "op": "a16w4", **said}, GemmDefaults(), "sm_90")


@needs_interpreter
@pytest.mark.parametrize(
    ("own", "size"),
    [((), (20, 40, 160)), (MX, (37, 50, 161)), (OF_128, (1, 24, 300)), (BF16_SCALES, (1, 24, 96)), (MX, (1, 24, 96))],
    ids=str,
)
def test_every_family_unpacks_and_scales(interpreter: Interpreter, own: Own, size: tuple[int, int, int]) -> None:
    """Groups below, of and over BLOCK_SIZE_K, a K that ends within a group and a byte, splits and swapped tiles."""
    problem = problem_of(*size, own, bias=True, activation="silu")
    one_each = {config.family: config for config in taking(problem) if config.family in INTERPRETED}
    configs = list(one_each.values())
    for config in spread(configs, 2) if not own else [*spread(configs, 4), *([GEMV] if size[0] == 1 else [])]:
        few = replace(problem, M=min(size[0], 3), N=9)
        answer = interpreter.run(few if config.family == "skinny" else problem, config)
        assert answer.worst_row_error < 1e-5, config.name
        assert not answer.again, config.name


@needs_interpreter
@pytest.mark.parametrize(("own", "config"), [((), SPLIT), (MX, SWAPPED), (OF_128, replace(FEW_ROWS, SPLIT_K=1))])
def test_kernels_pass_the_check(interpreter: Interpreter, own: Own, config: Config) -> None:
    """Exact inputs, slices of larger matrices and random ones; K ends within a byte."""
    problem = problem_of(3 if config.family == "skinny" else 20, 24, 161, own, dtype_c="bf16", bias=True)
    verdict = interpreter.check(problem, config)
    assert verdict["passed"], verdict
    assert verdict["rounds"] == ["exact", "layout", "random"]


# What a kernel has, and what it has in its place.
FAULTS = {
    "halves of a byte swapped": ((), "tl.join((b << 4) >> 4, b >> 4)", "tl.join(b >> 4, (b << 4) >> 4)"),
    "no sign": ((), "(b << 4) >> 4", "b & 15"),
    "the next group's scale": ((), "groups = tl.minimum(k // 32 +", "groups = tl.minimum(k // 32 + 1 +"),
    "the next column's scale": (
        (),
        "scale_columns = pid_n * BLOCK_SIZE_N +",
        "scale_columns = 1 + pid_n * BLOCK_SIZE_N +",
    ),
    "one group for all of a step": (OF_128, "k // 128", "0"),
    "the next exponent": (MX, "& 255) << 23", "& 255) + 1 << 23"),
    "another half": (MX, "-0x379BCDF0", "-0x379BCDE0"),
    "no sign of e2m1": (MX, "tl.where(codes > 7, -numbers, numbers)", "numbers"),
}


@needs_interpreter
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(interpreter: Interpreter, fault: str) -> None:
    """In one size: by exact inputs, or by random ones where no integer is concerned."""
    own, right, wrong = FAULTS[fault]
    verdict = interpreter.check(
        problem_of(16, 40, 320, own), Config("tiled", 16, 64, 64, reduce="semaphore", swapped=1), (right, wrong)
    )
    assert not verdict["passed"]
    assert verdict["message"].startswith("random inputs" if fault == "another half" else "exact inputs")


@pytest.mark.parametrize("arch", SHARING)
def test_kernels_compile(tmp_path: Path, arch: str) -> None:
    """For AMD and NVIDIA, by pointers and through the copy engine, with weights on either side of the product."""
    for own, configs in (((), [SWAPPED]), (MX, [TILED, TILED_TMA_SPLIT])):
        folder = tmp_path / str(len(own))
        folder.mkdir()
        assert compile_all(folder, problem_of(100, 208, 320, own, bias=True), configs, arch)
    one = problem_of(1, 208, 320, BF16_SCALES, dtype_a="fp16", dtype_c="fp16")
    assert compile_all(tmp_path, one, [GEMV, FEW_ROWS], arch)


def test_which_families_take_it() -> None:
    """All but those whose steps are their own; through TMA where packed rows start at multiples of 16 bytes."""
    where = gpu_for_arch("sm_90")
    refused = {stem for stem in FORMS if legal_problem(problem_of(1, 128, 1024), *PLACES[stem], where)}
    assert refused == {*RINGS, *CUTE_FORMS, *REALIGNED}
    for k, said in ((64, ""), (48, "multiples of 16 bytes")):
        reason = legal(problem_of(64, 128, k), replace(TILED_TMA_SPLIT, SPLIT_K=1), where)
        assert said in reason
        assert bool(said) == bool(reason)
    assert "shorter than 16 bytes" in legal(problem_of(64, 128, 64), Config("tiled_tma", 64, 64, 16), where)


def test_what_the_interpreter_checks_has_whole_groups() -> None:
    """A reduced size ends within a group where the problem does."""
    small = reduced_problem(problem_of(4096, 7168, 2048 + 40, OF_128), Config("tiled", 64, 32, 64))
    assert small.K % 128 == 40
    assert small.K > 128


@pytest.mark.parametrize("own", [(), MX, BF16_SCALES], ids=str)
def test_inputs_for_timing_are_of_usual_size(tmp_path: Path, own: Own) -> None:
    """Any byte is two weights, and scales leave results that are neither lost nor infinite."""
    pytest.importorskip("torch")
    _, module = make_module(tmp_path, problem_of(8, 48, 161, own), [TILED], "sm_90")
    operands = module.make_operands("cpu")
    module.check_operands(module.CONFIGS[TILED.name], operands)
    assert 1e-2 < module.reference(operands).abs().mean() < 1e3
    assert module.weights(operands).unique().numel() > 8


# Each has every second size, but for `make test-long`.
@pytest.mark.parametrize(("turn", "arch"), [*enumerate(["sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950"])])
def test_its_spaces_keep_configs_for_every_size(turn: int, arch: str) -> None:
    """Without --space, the space in the format's folder; with a family without a dot for few rows."""
    space = load_space(None, arch, OP.name)
    for size in in_turns(((1, 8192, 8192), (4, 4096, 14336), (4096, 7168, 2048), (3, 17, 33)), 2, turn):
        kept = prune(space, problem_of(*size), gpu_for_arch(arch)).kept
        assert kept
        if size[0] <= 4 and size[1] > 17:
            assert any(not traits_of(config).uses_dot for config in kept), size
