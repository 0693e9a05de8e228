"""Tests of genkern.compile.cute_compiler: kernels in CuTe DSL through the farm, with it, without it, and by a
stand-in.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cached_specs import read_spec
from cute_binary import compiled as compiled_text
from cute_stand_in import cubin, needs_dsl, parameter_bytes

from genkern.compile import cute_compiler
from genkern.compile.binary.code_object import read_parameter_bytes, read_resources
from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compiler import CompileJob, CompileProcess, compile_kernel
from genkern.compile.farm import Farm
from genkern.errors import BugError
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Outcome
from genkern.kernels.contract.product import product_of
from genkern.kernels.cute import tile_sm100
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec, Target
from genkern.kernels.specs import kernel_specs, launch_plan
from genkern.ops.op import get_op

SM_90 = Target("cuda", 90, 32)
SPEC = KernelSpec(
    "kernel",
    "0" * 64,
    (("M", "i32"),),
    (("BINARY", "BM64"), ("shared_bytes", 2048), ("warps", 8)),
    (),
    (),
    "cute",
    "kernel.py",
)
KERNEL = """
def build(symbol, constants):
    return (symbol, constants), (1, 2)
"""


def spec_in(folder: Path, text: str = KERNEL) -> KernelSpec:
    """The spec of a kernel in a file of the folder."""
    path = folder / "own_kernel.py"
    path.write_text(text)
    return replace(SPEC, file=str(path))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[object, ...]]]:
    """A `cutlass` whose compile gives a cubin of what it is asked for, and the calls of it."""
    calls: list[tuple[object, ...]] = []

    def compile_(function: tuple[str, dict[str, int]], *arguments: object, options: str) -> object:
        calls.append((function, arguments, options))
        symbol, constants = function
        image = cubin(f"{symbol}_0", [4])
        text = f"%12 = llvm.mlir.constant({constants['shared_bytes']} : i64) : i64"
        return types.SimpleNamespace(artifacts=types.SimpleNamespace(CUBIN=image), ir_module=text)

    package = types.ModuleType("cutlass")
    package.cute = types.SimpleNamespace(compile=compile_)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cutlass", package)
    monkeypatch.setattr(cute_compiler, "cute_installed", lambda: True)
    before, folder = dict(os.environ), tempfile.tempdir
    yield calls
    os.environ.clear()
    os.environ.update(before)
    tempfile.tempdir = folder


def compiled(spec: KernelSpec, folder: Path) -> Binary | Failure:
    cache = BinaryCache(folder / "cache")
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    job = CompileJob("ab" * 32, "no module", spec, SM_90, str(cache.folder), 60.0)
    return compile_kernel(job, str(temporary))


def test_without_the_dsl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install; nothing is kept, since it says nothing of the kernel."""
    monkeypatch.setattr(cute_compiler, "cute_installed", lambda: False)
    result = compiled(spec_in(tmp_path), tmp_path)
    assert isinstance(result, Failure)
    assert result.from_outside
    assert result.outcome is Outcome.COMPILE_FAILED
    assert "pip install '.[cute]'" in result.message
    assert BinaryCache(tmp_path / "cache").get("ab" * 32) is None


def test_what_is_kept_of_a_kernel(tmp_path: Path, stand_in: list[tuple[object, ...]]) -> None:
    """The cubin, its symbol, and what a launch must know; it is found again without compiling."""
    os.environ["CUTE_DSL_OPT"] = "of the user"
    result = compiled(spec_in(tmp_path), tmp_path)
    assert isinstance(result, Binary)
    assert result.symbol == "kernel_BM64_0"
    assert result.resources.shared_bytes == 2048
    said = json.loads((Path(result.path) / "kernel.json").read_bytes())
    assert said == {"name": "kernel_BM64_0", "language": "cute", "num_warps": 8, "shared": 2048}
    assert read_spec(result.path) == spec_in(tmp_path)
    assert compiled(spec_in(tmp_path), tmp_path) == result
    ((function, arguments, options),) = stand_in
    assert function == ("kernel_BM64", {"shared_bytes": 2048, "warps": 8})
    assert arguments == (1, 2)
    assert str(options).startswith("--gpu-arch sm_90a --keep-cubin --dump-dir ")
    # A setting that is in no key decides nothing.
    assert "CUTE_DSL_OPT" not in os.environ


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ((("BINARY", "BM64"), ("warps", 8)), "no number shared_bytes"),
        ((("BINARY", "BM64"), ("shared_bytes", 2048)), "no number warps"),
    ],
)
def test_constants_that_a_launch_needs(
    tmp_path: Path, stand_in: list[tuple[object, ...]], constants: tuple[tuple[str, int | str], ...], message: str
) -> None:
    """Whoever leaves one out is told which."""
    path = tmp_path / "own_kernel.py"
    path.write_text(KERNEL.replace("return (symbol, constants)", "return (symbol, {'shared_bytes': 2048})"))
    with pytest.raises(BugError, match=message):
        compiled(replace(SPEC, file=str(path), constants=constants), tmp_path)


def test_other_shared_memory_than_said(tmp_path: Path, stand_in: list[tuple[object, ...]]) -> None:
    """A launch with less than the kernel takes would write into nowhere: it is refused before."""
    text = KERNEL.replace("return (symbol, constants)", "return (symbol, {'shared_bytes': 4096})")
    with pytest.raises(BugError, match="2048 bytes"):
        compiled(spec_in(tmp_path, text), tmp_path)


def test_another_symbol_than_said(tmp_path: Path, stand_in: list[tuple[object, ...]]) -> None:
    """A plan would not find the kernel."""
    text = KERNEL.replace("return (symbol, constants)", "return ('other', constants)")
    with pytest.raises(BugError, match="no kernel kernel_BM64_0"):
        compiled(spec_in(tmp_path, text), tmp_path)


@pytest.mark.parametrize(
    ("error", "refusal", "kept"),
    [
        (ValueError("invalid tile"), True, True),
        (RuntimeError("ptxas fatal   : Output file 'x.o' could not be opened"), True, False),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), True, False),
        (MemoryError(), True, False),
        (NameError("tyle"), False, False),
        (AttributeError("no such layout"), False, False),
    ],
)
def test_a_refusal_is_told_from_a_bug(
    tmp_path: Path,
    stand_in: list[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    refusal: bool,
    kept: bool,
) -> None:
    """What the compiler says of a kernel costs its config, and is kept; a fault that may be the machine's is not kept,
    and what Python says of a text is a bug."""

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("while tracing") from error

    monkeypatch.setattr(sys.modules["cutlass"].cute, "compile", refuse)
    if not refusal:
        with pytest.raises(BugError, match="compiling kernel"):
            compiled(spec_in(tmp_path), tmp_path)
        return
    result = compiled(spec_in(tmp_path), tmp_path)
    assert isinstance(result, Failure)
    assert result.from_outside != kept
    assert BinaryCache(tmp_path / "cache").get("ab" * 32) == (result if kept else None)


def test_a_file_that_raises(tmp_path: Path, stand_in: list[tuple[object, ...]]) -> None:
    """Is a bug of whoever wrote it."""
    with pytest.raises(BugError, match="ZeroDivisionError"):
        compiled(spec_in(tmp_path, "1 / 0"), tmp_path)


def test_a_compile_that_hangs_or_dies(tmp_path: Path, stand_in: list[tuple[object, ...]]) -> None:
    """Costs its config only: the process that compiles is ended, and the next kernel gets another."""
    hangs = spec_in(tmp_path, "import time\ndef build(symbol, constants):\n    time.sleep(60)\n")
    job = CompileJob("ab" * 32, "", hangs, SM_90, str(tmp_path / "cache"), 0.2)
    process = CompileProcess()
    result = process.run(job)
    assert isinstance(result, Failure)
    assert result.outcome is Outcome.COMPILE_TIMED_OUT
    dies = tmp_path / "dies.py"
    dies.write_text("import os\ndef build(symbol, constants):\n    os.abort()\n")
    process = CompileProcess()
    result = process.run(replace(job, spec=replace(hangs, file=str(dies)), timeout_s=20.0))
    assert isinstance(result, Failure)
    assert "died by SIGABRT" in result.message


# By the real compiler: every way that the kernel's text can go.
FP8 = {"op": "a8w8", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e5m2"}
BLOCKS = {"op": "a8w8_blockscale", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e4m3fn"}
BATCH = {"op": "batched_a16w16", "own": (("batch_size", 32),)}
REAL = [
    (GemmProblem(4096, 6144, 4096), "cute_wgmma_BM128_BN168_BK64_GM8_SK1_nW8_nS5_ping_pong_cl2x1"),
    (GemmProblem(512, 512, 512, bias=True, activation="relu"), "cute_wgmma_BM256_BN128_BK64_GM8_SK1_nW8_nS4_cl1x2"),
    (
        GemmProblem(512, 512, 512, row_major_a=False, row_major_b=True, activation="gelu"),
        "cute_wgmma_BM64_BN64_BK64_GM8_SK1_nW4_nS3",
    ),
    (
        GemmProblem(512, 512, 512, **FP8, own=(("scales", "per_token"),), bias=True, activation="silu"),
        "cute_wgmma_BM64_BN64_BK128_GM8_SK1_nW8_nS3_ping_pong_cl2x2",
    ),
    (GemmProblem(512, 512, 512, **FP8, dtype_c="fp32"), "cute_wgmma_BM128_BN64_BK128_GM8_SK1_nW8_nS3_ping_pong_direct"),
    (
        GemmProblem(512, 513, 512, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16"),
        "cute_wgmma_BM128_BN40_BK64_GM8_SK1_nW8_nS3_cl2x1_direct",
    ),
    (GemmProblem(4316, 128, 4096), "cute_wgmma_BM72_BN64_BK64_GM8_SK1_nW8_nS8_ping_pong_swapped"),
    (
        GemmProblem(512, 512, 512, bias=True, activation="relu"),
        "cute_wgmma_BM224_BN128_BK64_GM8_SK1_nW8_nS4_cl2x1_swapped",
    ),
    (
        GemmProblem(512, 512, 512, **FP8, own=(("scales", "per_token"),), bias=True, activation="silu"),
        "cute_wgmma_BM40_BN128_BK128_GM8_SK1_nW8_nS3_ping_pong_cl1x4_swapped",
    ),
    (
        GemmProblem(512, 513, 512, dtype_c="fp32", activation="gelu"),
        "cute_wgmma_BM192_BN256_BK64_GM8_SK1_nW8_nS3_direct_swapped",
    ),
    (GemmProblem(512, 512, 512, **BLOCKS), "cute_wgmma_BM256_BN128_BK128_GM8_SK1_nW8_nS4_cl2x1"),
    (GemmProblem(512, 512, 512, **BLOCKS, bias=True), "cute_wgmma_BM128_BN112_BK128_GM8_SK1_nW8_nS7_cl1x2"),
    (GemmProblem(1024, 1024, 128, **BATCH), "cute_wgmma_BM128_BN192_BK64_GM8_SK1_nW8_nS4_ping_pong"),
    (
        GemmProblem(100, 1000, 528, **{**BATCH, **FP8, "op": "batched_a8w8"}),
        "cute_wgmma_BM104_BN128_BK128_GM8_SK1_nW8_nS4_direct_swapped",
    ),
]
TOKENS = {**FP8, "own": (("scales", "per_token"),)}
TURNED = {"row_major_a": False, "row_major_b": True}
# For sm_100: both numbers of programs for a tile, all heights, ways to store, types and layouts, with neighbours and
# without. And what each is made of: copies of A and B, and how many of them are for others too.
REAL_SM_100 = [
    (GemmProblem(4096, 6144, 4096), "cute_tcgen05_BM128_BN256_BK64_GM8_SK1_nW4_nS4", (2, 0)),
    (
        GemmProblem(512, 512, 512, bias=True, activation="relu"),
        "cute_tcgen05_BM64_BN96_BK64_GM8_SK1_nW4_nS8_cl1x2",
        (2, 1),
    ),
    (GemmProblem(512, 512, 512, **TURNED), "cute_tcgen05_BM128_BN128_BK64_GM8_SK1_nW4_nS6_cl2x2_direct", (4, 4)),
    (GemmProblem(4096, 6144, 4096), "cute_tcgen05_BM256_BN256_BK64_GM8_SK1_nW4_nS6_cl2x1_cta2", (2, 0)),
    (
        GemmProblem(512, 512, 512, **TOKENS, bias=True, activation="silu"),
        "cute_tcgen05_BM128_BN192_BK128_GM8_SK1_nW4_nS8_cl4x2_cta2",
        (2, 2),
    ),
    (
        GemmProblem(512, 512, 512, **FP8, **TURNED, dtype_c="fp32"),
        "cute_tcgen05_BM256_BN256_BK128_GM8_SK1_nW4_nS5_cl2x2_cta2",
        (2, 1),
    ),
    (
        GemmProblem(512, 513, 512, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16", activation="gelu"),
        "cute_tcgen05_BM256_BN96_BK64_GM8_SK1_nW4_nS8_cl4x1_cta2_direct",
        (2, 1),
    ),
]


@needs_dsl
@pytest.mark.parametrize(
    ("arch", "problem", "name"),
    [*(("sm_90", *case) for case in REAL), *(("sm_100", *case[:2]) for case in REAL_SM_100[3:5])],
    ids=[name for _, name in REAL] + [name for _, name, _ in REAL_SM_100[3:5]],
)
def test_the_kernels_compile(tmp_path: Path, arch: str, problem: GemmProblem, name: str) -> None:
    """By the farm's own workers, into binaries that take what their plans give."""
    config, op, gpu = Config.parse(name), get_op(problem.op), gpu_for_arch(arch)
    module = generate(problem, [config], arch, gpu)
    (spec,) = kernel_specs(problem, config, op, module.source_sha256, arch)
    farm = Farm(BinaryCache(tmp_path), Target("cuda", int(arch[3:]), 32), "3.7.1", jobs=1, timeout_s=120.0)
    (result,) = farm.compile("", [spec])
    farm.close()
    assert isinstance(result, Binary), result
    (launch,) = launch_plan(product_of(problem, op, arch), config, gpu).launches
    image = (Path(result.path) / "kernel.cubin").read_bytes()
    assert result.symbol == launch.symbol
    assert read_parameter_bytes(image, "cuda", launch.symbol) == tuple(parameter_bytes(launch))
    assert result.resources.spills == 0


@needs_dsl
@pytest.mark.parametrize(("problem", "name", "copies"), REAL_SM_100, ids=[name for _, name, _ in REAL_SM_100])
def test_what_sm_100s_kernels_are_made_of(
    tmp_path: Path, problem: GemmProblem, name: str, copies: tuple[int, int]
) -> None:
    """Nothing has run there, so what can be read is held: instructions, shared memory, spills, descriptors."""
    config = Config.parse(name)
    made = compiled_text(problem, config, "sm_100", tmp_path)
    constants = dict(made.spec.constants)
    kind = "f16" if config.BLOCK_SIZE_K == 64 else "f8f6f4"
    products = re.findall(r"tcgen05\.mma\.cta_group::(\d)\.kind::(\w+)", made.ptx)
    assert products == [(str(config.ctas), kind)] * 4
    assert f"cta_group::{3 - config.ctas}" not in made.ptx
    assert ("cp.async.bulk.tensor.2d.global" in made.ptx) is (config.store == "tma")
    loads = re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared\S*", made.ptx)
    assert (len(loads), sum("multicast" in load for load in loads)) == copies
    assert all(("cta_group::2" in load) is (config.ctas == 2) for load in loads)
    # A phase of the leader's barrier has the bytes of both programs.
    (armed,) = re.findall(r"mov\.b32 \t%r\d+, (\d+);\s+mbarrier\.(?:arrive\.)?expect_tx\S*", made.ptx)
    assert int(armed) == (config.BLOCK_SIZE_M + config.BLOCK_SIZE_N) * 128
    assert made.boxes == made.planned_boxes
    sides, part = (config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.ctas), constants["part"]
    stored = part if config.store == "tma" else 0, DTYPES[problem.dtype_c].size_bytes
    _, used = tile_sm100.buffers_and_bytes(*sides, config.num_stages, *stored)
    assert constants["shared_bytes"] == max(used, tile_sm100.ALONE_BYTES)
    assert f"constant({constants['shared_bytes']} : i64)" in made.ir
    assert read_parameter_bytes(made.image, "cuda", made.symbol) == tuple(parameter_bytes(made.launch))
    assert read_resources(made.image, "cuda", 0).spills == 0


@needs_dsl
def test_descriptors_of_kernels_that_have_run(tmp_path: Path) -> None:
    """What is read of boxes above is so: sm_90's plans, by which an H200 has computed, say so, halves of B too."""
    problem, name = REAL[0]
    made = compiled_text(problem, Config.parse(name), "sm_90", tmp_path)
    assert made.boxes == made.planned_boxes == [(128, 64, 3), (84, 64, 3), (16, 56, 0)]
