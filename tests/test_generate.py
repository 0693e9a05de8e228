"""Tests of genkern.generate: the text of generated modules, and the modules as files on their own."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from golden.update import CASES, FOLDER, rendered
from small_gemms import (
    AMD,
    AMD_SPLIT,
    ATOMIC,
    GEMV,
    SEMAPHORE,
    SPLIT,
    TILED,
    TILED_TMA,
    TILED_TMA_SPLIT,
    TMA,
    WARP_SPECIALIZED,
    WARP_SPECIALIZED_SPLIT,
    WARP_SPECIALIZED_TILED,
    needs_interpreter,
    write_module,
)

from genkern.config import Config
from genkern.generate import GeneratedModule, generate
from genkern.problem import GemmProblem

ROOT = Path(__file__).parents[1]
TYPES = {"a16w16": [("bf16", "bf16"), ("fp32", "fp32")], "a8w8": [("int8", "bf16"), ("fp8e4m3fnuz", "fp16")]}
# Generates and imports 15,000 configs three times each; prints the least processor time of both, and the count.
_SPEED = """
import itertools, sys, time
from genkern.compiler import load_module
from genkern.config import Config
from genkern.generate import generate
from genkern.problem import GemmProblem
import triton.language

blocks = [16, 32, 64, 128, 256]
choices = itertools.product(blocks, blocks, blocks[:4], [1, 4, 8, 16], [1, 4, 8], [2, 4, 8], [1, 2, 3], [0, 2])
configs = [Config("tiled", *values, 16, 2) for values in itertools.islice(choices, 15_000)]

def best(function):
    times = []
    for number in range(3):
        start = time.process_time()
        result = function(number)
        times.append(time.process_time() - start)
    return min(times), result

generation_s, module = best(lambda number: generate(GemmProblem(4096, 6144, 4096 + number), configs, "gfx942"))

def load(number):
    path = f"{sys.argv[1]}/module_{number}.py"
    with open(path, "w") as file:
        file.write(module.text)
    return load_module(path)

import_s, loaded = best(load)
print(generation_s, import_s, len(loaded.CONFIGS))
"""


def every_kind() -> list[GeneratedModule]:
    """Modules of every op, layout, with and without bias, masks, splits, TMA, 64-bit offsets, for both vendors."""
    modules = []
    sizes = [(64, 64, 64), (65, 63, 4097), (100_000, 100_001, 65_536)]
    targets = [
        ("sm_90", [TILED, SPLIT, TMA, TILED_TMA_SPLIT, GEMV]),
        ("gfx942", [SEMAPHORE, ATOMIC]),
        ("sm_80", [TILED]),
        ("sm_90", [WARP_SPECIALIZED]),
        ("sm_90", [WARP_SPECIALIZED_TILED, WARP_SPECIALIZED_SPLIT]),
        ("sm_90", [TMA]),
        ("gfx942", [AMD_SPLIT, AMD]),
        ("gfx90a", [SPLIT]),
    ]
    for op, types in TYPES.items():
        for (dtype, dtype_c), ra, rb, bias in itertools.product(types, (False, True), (False, True), (False, True)):
            for size, (arch, configs) in itertools.product(sizes, targets):
                problem = GemmProblem(*size, op, dtype, dtype, dtype_c, ra, rb, bias)
                modules.append(generate(problem, configs, arch))
    return modules


def kernels_of(module: GeneratedModule) -> dict[str, str]:
    """Source text of each Triton kernel of a module, decorator included."""
    lines = module.text.splitlines()
    found = {}
    for node in ast.parse(module.text).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            found[node.name] = "\n".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno])
    return found


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    """What a reader gets is what is in tests/golden; `make golden` rewrites it after a wanted change."""
    assert rendered(name) == (FOLDER / name).read_text(encoding="utf-8"), "after a wanted change: make golden"


def test_golden_folder_holds_the_cases_only() -> None:
    """No golden file is left over from a case that is gone."""
    assert sorted(path.name for path in FOLDER.glob("*.expected")) == sorted(CASES)


def test_modules_are_clean_python(hostile_path: Path) -> None:
    """Every kind of module passes ruff, with the project's settings, as checked and as formatted, and compiles."""
    ruff = pytest.importorskip("ruff")
    for number, module in enumerate(every_kind()):
        path = hostile_path / f"{number}_{module.file_name}"
        path.write_text(module.text, encoding="utf-8")
        py_compile.compile(str(path), doraise=True)
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        argv = [
            sys.executable,
            "-m",
            ruff.__name__,
            *command,
            "--config",
            str(ROOT / "pyproject.toml"),
            str(hostile_path),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_equal_overhang_means_equal_text() -> None:
    """Two sizes that overhang in the same way have the same kernels, to the character, so they compile once."""
    for configs in ([TILED, SPLIT], [AMD, AMD_SPLIT], [TMA], [TILED_TMA], [WARP_SPECIALIZED], [WARP_SPECIALIZED_SPLIT]):
        one = generate(GemmProblem(100, 320, 4097), configs, "any")
        other = generate(GemmProblem(4000, 64, 129), configs, "any")
        assert kernels_of(one) == kernels_of(other)
        assert one.source_sha256 == other.source_sha256
        assert one.text != other.text


def test_other_overhang_means_other_text() -> None:
    """Where masks differ the kernels differ, in name and text; the sha256 tells kernels apart."""
    seen: dict[str, str] = {}
    for m, n, k in itertools.product((64, 65), (32, 33), (32, 33)):
        module = generate(GemmProblem(m, n, k), [TILED], "any")
        assert set(kernels_of(module)) == {"tile_of", *module.source_sha256}
        (name, digest), *_ = module.source_sha256.items()
        assert name not in seen
        assert digest not in seen.values()
        seen[name] = digest
    assert len(seen) == 8


def test_text_depends_on_configs_only_through_kernels() -> None:
    """The same kernel has the same text whatever other configs are in the module, and for every vendor."""
    problem = GemmProblem(100, 64, 256)
    alone = generate(problem, [TILED], "sm_90").source_sha256
    among = generate(problem, [SPLIT, TMA, AMD, TILED], "gfx942").source_sha256
    assert alone.items() < among.items()


@pytest.mark.parametrize("op", TYPES)
def test_no_masks_where_sizes_divide(op: str) -> None:
    """A size that every block divides has no mask but the reduction's own; one that none divides masks each load."""
    (dtype, dtype_c), *_ = TYPES[op]
    divided = kernels_of(
        generate(GemmProblem(128, 64, 256, op, dtype, dtype, dtype_c, bias=True), [TILED, SPLIT, TMA], "any")
    )
    for name, text in divided.items():
        assert ("mask" in text) == (name in ("reduce_splits", "matmul_persistent_tma")), name
    # The copy engine clips tiles itself; only the bias vector is loaded by pointers there.
    assert divided["matmul_persistent_tma"].count("mask") == 1
    masked = kernels_of(generate(GemmProblem(100, 33, 97, op, dtype, dtype, dtype_c), [TILED], "any"))
    assert masked["matmul_tiled_mask_mnk"].count("mask=(") == 3


def test_m_overhang_masks_only_what_it_must() -> None:
    """A skinny M masks the rows of A and C, and neither B nor K."""
    text = kernels_of(generate(GemmProblem(1, 64, 256), [TILED], "any"))["matmul_tiled_mask_m"]
    assert "a = tl.load(a_ptrs, mask=(offs_m[:, None] < M), other=0.0)" in text
    assert "b = tl.load(b_ptrs)\n" in text
    assert "tl.store(c_ptrs, c, mask=(offs_m[:, None] < M))" in text


def test_one_row_per_config() -> None:
    """The table has a row for each config; a kernel that many configs use is there once."""
    configs = [dataclasses.replace(TILED, GROUP_SIZE_M=group) for group in range(1, 500)]
    module = generate(GemmProblem(64, 64, 64), configs, "sm_90")
    assert module.text.count('    ("matmul_tiled", "tiled", 64, 32, 32, ') == 499
    assert set(kernels_of(module)) == {"tile_of", "matmul_tiled"}


def test_fifteen_thousand_configs(tmp_path: Path) -> None:
    """15,000 configs are generated in under 2 s and imported in under 1 s of processor time (best of three)."""
    done = subprocess.run(
        [sys.executable, "-c", _SPEED, str(tmp_path)], capture_output=True, text=True, check=True, env=environment()
    )
    generation_s, import_s, count = map(float, done.stdout.split())
    assert count == 15_000
    assert generation_s < 2.0
    assert import_s < 1.0


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with genkern importable, and changes."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def test_module_imports_alone(hostile_path: Path) -> None:
    """Importing a module needs neither PyTorch nor genkern."""
    module = generate(GemmProblem(64, 64, 100), [TILED, SPLIT, TMA, AMD], "sm_90")
    path = write_module(hostile_path, module)
    (hostile_path / "blocked").mkdir()
    for name in ("torch", "genkern"):
        (hostile_path / "blocked" / f"{name}.py").write_text(f"raise ImportError('{name} was imported')\n")
    program = "import runpy, sys; print(len(runpy.run_path(sys.argv[1])['CONFIGS']))"
    clean = {**os.environ, "PYTHONPATH": str(hostile_path / "blocked")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=clean,
        cwd=hostile_path,
    )
    assert (done.stdout, done.returncode) == ("4\n", 0), done.stderr


@needs_interpreter
def test_module_runs_alone_as_a_program(hostile_path: Path) -> None:
    """`python gemm_....py --check-only` checks what it holds, says so, and fails when a kernel is wrong."""
    configs = [Config("tiled", 16, 16, 32, 2, 1), Config("tiled", 16, 16, 32, 2, 3)]
    module = generate(GemmProblem(17, 33, 100), configs, "gfx942")
    path = write_module(hostile_path, module)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"TRITON_INTERPRET": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(path), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=clean, cwd=hostile_path)

    good = run("--check-only")
    assert good.returncode == 0, good.stderr
    assert good.stdout.splitlines() == [f"{config.name}: correct" for config in configs]
    assert "invalid choice" in run("--config", "no_such_config").stderr
    path.write_text(module.text.replace("range(first_k, last_k,", "range(first_k + BLOCK_SIZE_K, last_k,"))
    bad = run("--config", configs[1].name)
    assert bad.returncode == 1
    assert f"AssertionError: {configs[1].name}: relative error" in bad.stderr
