"""Tests of what genkern.kernels.legality says, by those who know: compilers, the interpreter, the stand-in for an SM.

GENKERN_LONG_TESTS=1 tries ten times as many configs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from forms import CUTE_FORMS, FORMS, RINGS
from gluon_cases import assert_exact, fp16_problem, product
from interpreted import INTERPRETED, Interpreter
from long_tests import LONG
from random_gemms import random_config, random_problem
from small_gemms import TRITON_VERSION, make_module, needs_interpreter, specs_of, target_of
from test_legality import FP32_OUT, H200, INT8, LARGE, problem, tile

from genkern.compile.cache import Failure
from genkern.compile.compiler import CompileJob, CompileProcess
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.gemm.triton_release import triton_release
from genkern.kernels.families.limits import tiles
from genkern.kernels.legality import legal
from genkern.ops.op import get_op

# What the compiler alone can know, and says with a binary or without one.
SPARED = (Outcome.COMPILE_TIMED_OUT,)


@pytest.fixture(scope="module")
def compiler() -> Iterator[CompileProcess]:
    """A process that compiles, which ends with these tests."""
    pytest.importorskip("triton")
    process = CompileProcess()
    yield process
    if process.alive:
        process.kill()


def compiled(process: CompileProcess, folder: Path, size: GemmProblem, config: Config, arch: str) -> Failure | None:
    """The first failure to compile the config's kernels, if any, legal or not."""
    module, _ = make_module(folder, size, [config], arch)
    path = folder / module.file_name
    target = target_of(arch)
    for spec in specs_of(module, config):
        job = CompileJob(spec.key(target, TRITON_VERSION), str(path), spec, target, str(folder / "cache"), 100.0)
        result = process.run(job)
        if isinstance(result, Failure):
            return result
    return None


def affordable(size: GemmProblem, config: Config) -> bool:
    """Whether it compiles in a second or two: no huge tiles, no thousands of registers that spill."""
    elements = config.BLOCK_SIZE_M * config.BLOCK_SIZE_N
    if config.family in ("gemv", "skinny"):
        elements = config.BLOCK_SIZE_M * config.BLOCK_SIZE_N * config.BLOCK_SIZE_K
    steps = 1 if size.dtype_a != "fp32" else 4
    return elements * steps <= 64 * 32 * config.num_warps and config.BLOCK_SIZE_K <= 128 and config.num_stages <= 4


def samples(seed: int, arch: str, count: int) -> list[tuple[GemmProblem, Config]]:
    """Random problems with configs that are legal and affordable, of every family in turn."""
    random, gpu = Random(seed), gpu_for_arch(arch)
    found: list[tuple[GemmProblem, Config]] = []
    families = [name for name in FORMS if not FORMS[name].lacks(gpu)]
    # What CuTe DSL compiles is tests/compile/test_cute_compiler.py's.
    families = [name for name in families if name not in CUTE_FORMS and (arch == "sm_90" or name not in RINGS)]
    # Problems are of formats whose weights have as many bits as A.
    families = [name for name in families if FORMS[name].reads != "registers"]
    if triton_release() >= (3, 8):
        families = [name for name in families if not FORMS[name].in_clusters]
    while len(found) < count:
        family = families[len(found) % len(families)]
        size = random_problem(random, arch, 2**20)
        config = random_config(random, family, arch, 128)
        if affordable(size, config) and not legal(size, config, gpu):
            found.append((size, config))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "count"), [("sm_90", 3), ("gfx942", 2)])
def test_what_is_legal_compiles(compiler: CompileProcess, tmp_path: Path, arch: str, count: int) -> None:
    """Of every family some, picked by chance; what is longest to compile is left out."""
    for number, (size, config) in enumerate(samples(3, arch, 48 * count if LONG else count)):
        folder = tmp_path / str(number)
        folder.mkdir()
        failure = compiled(compiler, folder, size, config, arch)
        assert failure is None or failure.outcome in SPARED, (size.name, config.name, failure)


# Configs that legality refuses for what Triton, LLVM or ptxas says of them, with those next to them that compile.
REFUSED_BY_COMPILERS = [
    ("sm_90", problem(64, 64, 64, **INT8), tile("tiled", k=16)),
    ("sm_80", problem(64, 64, 64, **INT8), tile("tiled_semaphore", 16, 16, 16)),
    ("sm_90", LARGE, tile("tiled", 256, 256, 32, num_warps=16)),
    ("sm_90", LARGE, tile("tiled_swapped", 128, 512, 16, num_warps=32)),
    ("sm_100", LARGE, tile("persistent_tma_specialized", num_warps=2)),
    ("sm_90", LARGE, tile("warp_specialized", num_stages=1)),
    ("sm_90", LARGE, tile("warp_specialized", 64, 16, 256, num_stages=16)),
    ("sm_90", FP32_OUT, tile("warp_specialized", 256, 128, num_warps=8, num_stages=2)),
    ("sm_90", LARGE, tile("warp_specialized", num_warps=2)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "size", "config"), REFUSED_BY_COMPILERS, ids=[f"{arch}-{c.name}" for arch, _, c in REFUSED_BY_COMPILERS]
)
def test_what_is_said_not_to_compile_does_not(
    compiler: CompileProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arch: str,
    size: GemmProblem,
    config: Config,
) -> None:
    """Nothing that would compile is lost by these reasons."""
    assert legal(size, config, gpu_for_arch(arch))
    monkeypatch.setattr("genkern.kernels.generate.require_legal", lambda *_: None)
    assert compiled(compiler, tmp_path, size, config, arch) is not None


@needs_interpreter
@pytest.mark.slow
def test_what_is_legal_is_right(interpreter: Interpreter) -> None:
    """Small problems of every kind, in every family that the interpreter runs: C is the product with any config."""
    random = Random(5)
    tried = dict.fromkeys(INTERPRETED, 0)
    while min(tried.values()) < (40 if LONG else 1):
        family = min(tried, key=tried.__getitem__)
        arch = random.choice(["sm_90", "gfx942"] if not FORMS[family].needs else ["sm_90"])
        size = random_problem(random, arch, 200)
        config = random_config(random, family, arch, 64)
        steps = tiles(size, config) * (config.SPLIT_K + size.K // config.BLOCK_SIZE_K)
        if steps > 80 or legal(size, config, gpu_for_arch(arch)):
            continue
        tried[family] += 1
        answer = interpreter.run(size, config, seed=tried[family])
        assert answer.again == "", (size.name, config.name)
        assert answer.worst_row_error <= get_op(size.op).worst_row_limit(size), (size.name, config.name, answer)


@needs_interpreter
@pytest.mark.slow
def test_what_gemv_is_refused_is_wrong(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one row, or weights along N: the kernel computes something else."""
    monkeypatch.setattr("genkern.kernels.generate.require_legal", lambda *_: None)
    for size in (problem(2, 64, 64), problem(1, 64, 48, row_major_b=True)):
        assert legal(size, tile("gemv", 1, 16, 64), None)
        found = interpreter.run(size, tile("gemv", 1, 16, 64))
        assert not found.worst_row_error < get_op(size.op).worst_row_limit(size)


@pytest.mark.slow
def test_what_is_legal_in_gluon_is_exact() -> None:
    """Rings of any depth, shares of nothing, clusters with fewer K-blocks than programs: on the stand-in for an SM."""
    random, done = Random(6), dict.fromkeys(RINGS, 0)
    while min(done.values()) < (40 if LONG else 1):
        family = min(done, key=done.__getitem__)
        config = random_config(random, family, "sm_90", 128)
        m, n, k = (random.choice(sizes) for sizes in ((1, 8, 33, 100, 150), (8, 64, 104, 200), (8, 64, 200, 520, 1000)))
        size = fp16_problem(m, n, k, dtype_c=random.choice(["fp16", "fp32"]), bias=random.random() < 0.5)
        if config.SPLIT_K > 60 or tiles(size, config) > 12 or legal(size, config, None) or legal(size, config, H200):
            continue
        done[family] += 1
        assert_exact(product(size, config, random.randint(1, 9), done[family]))
