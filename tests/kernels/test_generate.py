"""Tests of genkern.kernels.generate: the text of generated modules, and the modules as files on their own."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import py_compile
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import forked_programs
import pytest
from forms import CUTE_FORMS, FORMS, made
from golden.update import CASES, FOLDER, path_of, rendered
from long_tests import spread
from small_gemms import (
    AMD,
    AMD_SPLIT,
    FEW_ROWS,
    GEMV,
    SEMAPHORE,
    SPLIT,
    SWAPPED,
    TILED,
    TILED_TMA,
    TILED_TMA_SPLIT,
    TMA,
    TMA_SWAPPED,
    WARP_SPECIALIZED,
    WARP_SPECIALIZED_SPLIT,
    WARP_SPECIALIZED_SWAPPED,
    WARP_SPECIALIZED_SWAPPED_SPLIT,
    XCD,
    XCD_SPLIT,
    kernels_of,
    make_module,
    needs_interpreter,
    write_module,
)

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal
from genkern.kernels.source import load_module

ROOT = Path(__file__).parents[2]
TYPES = {"a16w16": [("bf16", "bf16"), ("fp32", "fp32")], "a8w8": [("int8", "bf16"), ("fp8e4m3fnuz", "fp16")]}
# Generates and imports 15,000 configs, three times at most; prints the least processor time of both, and the count.
_SPEED = """
import itertools, sys, time
from genkern.kernels.source import load_module
from genkern.gemm.config import Config
from genkern.kernels.generate import generate
from genkern.gemm.problem import GemmProblem
import triton.language

blocks = [16, 32, 64, 128, 256]
choices = itertools.product(blocks, blocks, blocks[:4], [1, 4, 8, 16], [1, 4, 8], [2, 4, 8], [1, 2, 3], [0, 2])
amd = {"matrix_instr_nonkdim": 16, "kpack": 2}
configs = [
    Config("tiled", *values, waves_per_eu=waves, **amd) for *values, waves in itertools.islice(choices, 15_000)
]

def best(limit_s, function):
    times = []
    for number in range(3):
        start = time.process_time()
        result = function(number)
        times.append(time.process_time() - start)
        if times[-1] < limit_s:
            break
    return min(times), result

generation_s, module = best(2.0, lambda number: generate(GemmProblem(4096, 6144, 4096 + number), configs, "gfx942"))

def load(number):
    path = f"{sys.argv[1]}/module_{number}.py"
    with open(path, "w") as file:
        file.write(module.text)
    return load_module(path)

import_s, loaded = best(1.0, load)
print(generation_s, import_s, len(loaded.CONFIGS))
"""


def every_kind() -> list[tuple[GemmProblem, list[Config], str]]:
    """What to generate modules of: every op, layout, with and without bias, masks, splits, TMA, 64-bit offsets, for
    both vendors."""
    modules: list[tuple[GemmProblem, list[Config], str]] = []
    activations = ("none", "relu", "none", "gelu", "silu")
    sizes = [(64, 64, 64), (65, 63, 4097), (100_000, 100_001, 65_536)]
    targets = [
        ("sm_90", [TILED, SPLIT, TMA, TILED_TMA_SPLIT]),
        ("sm_90", [TMA_SWAPPED]),
        ("gfx942", [SEMAPHORE, SWAPPED, FEW_ROWS, dataclasses.replace(FEW_ROWS, BLOCK_SIZE_M=16)]),
        ("sm_80", [TILED]),
        ("sm_90", [WARP_SPECIALIZED]),
        ("sm_90", [WARP_SPECIALIZED_SWAPPED]),
        ("sm_90", [WARP_SPECIALIZED_SPLIT, WARP_SPECIALIZED_SWAPPED_SPLIT]),
        ("sm_90", [TMA]),
        ("gfx942", [AMD_SPLIT, AMD]),
        ("gfx942", [XCD, XCD_SPLIT]),
        ("gfx942", [dataclasses.replace(XCD, xcd_remap=0), dataclasses.replace(XCD, cache_modifier="none")]),
        ("gfx90a", [SPLIT]),
    ]
    for op, types in TYPES.items():
        for (dtype, dtype_c), ra, rb, bias in itertools.product(types, (False, True), (False, True), (False, True)):
            for size, (arch, configs) in [*itertools.product(sizes, targets), ((1, 63, 4097), ("sm_90", [GEMV]))]:
                activation = activations[len(modules) % len(activations)]
                problem = GemmProblem(*size, op, dtype, dtype, dtype_c, ra, rb, bias, activation)
                gpu = gpu_for_arch(arch)
                if takers := [config for config in configs if not legal(problem, config, gpu)]:
                    modules.append((problem, takers, arch))
    return modules


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    """What a reader gets is what is in tests/golden; `make golden` rewrites it after a wanted change."""
    assert rendered(name) == path_of(name).read_text(encoding="utf-8"), "after a wanted change: make golden"


def test_golden_folder_holds_the_cases_only() -> None:
    """No golden file is left over from a case that is gone."""
    assert sorted(FOLDER.glob("*.expected")) == sorted(map(path_of, CASES))


def test_modules_are_clean_python(hostile_path: Path) -> None:
    """Every kind of module passes ruff, with the project's settings, as checked and as formatted, and compiles."""
    ruff = pytest.importorskip("ruff")
    for number, kind in enumerate(spread(every_kind(), 9)):
        module = generate(*kind)
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
    gluon = [WARP_SPECIALIZED, WARP_SPECIALIZED_SPLIT, WARP_SPECIALIZED_SWAPPED, WARP_SPECIALIZED_SWAPPED_SPLIT]
    for configs in ([TILED, SPLIT], [AMD, AMD_SPLIT], [TMA], [TILED_TMA], *([config] for config in gluon), gluon):
        one = generate(GemmProblem(100, 320, 4104), configs, "sm_90")
        other = generate(GemmProblem(4000, 64, 136), configs, "sm_90")
        assert kernels_of(one) == kernels_of(other)
        assert one.source_sha256 == other.source_sha256
        assert one.text != other.text


def test_other_overhang_means_other_text() -> None:
    """Where masks differ the kernels differ, in name and text; the sha256 tells kernels apart."""
    seen: dict[str, str] = {}
    for m, n, k in itertools.product((64, 65), (32, 33), (32, 33)):
        module = generate(GemmProblem(m, n, k), [TILED], "sm_90")
        assert set(kernels_of(module)) == {"tile_of", *module.source_sha256}
        (name, digest), *_ = module.source_sha256.items()
        assert name not in seen
        assert digest not in seen.values()
        seen[name] = digest
    assert len(seen) == 8


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_an_activation_is_one_line_of_the_kernel_that_ends_a_call(activation: str) -> None:
    """Take it out, and the kernels are those without it; what a split writes does not know of it, and is shared."""
    problem = GemmProblem(1, 64, 256, bias=True)
    configs = [TILED, SPLIT, TMA, TILED_TMA_SPLIT, GEMV, WARP_SPECIALIZED, WARP_SPECIALIZED_SWAPPED]
    plain = generate(problem, configs, "sm_90")
    module = generate(dataclasses.replace(problem, activation=activation), configs, "sm_90")
    kernels, before = kernels_of(module), kernels_of(plain)
    assert kernels.pop("activate").count("return") == 1
    for name, text in kernels.items():
        lines = [line for line in text.splitlines() if "activate(" not in line]
        assert "\n".join(lines) == before[name]
        # The kernels in Gluon end in one function.
        alone = name.startswith("matmul_") and "warp_specialized" not in name and "_split" not in name
        ends = alone or name in ("finish", "reduce_splits") or name.startswith("matmul_tiled_tma")
        assert len(text.splitlines()) - len(lines) == ends
    same = {name for name in plain.source_sha256 if plain.source_sha256[name] == module.source_sha256[name]}
    assert same == {"matmul_tiled_split_mask_m"}


@pytest.mark.parametrize("family", [name for name in FORMS if name not in (*CUTE_FORMS, "skinny_dot")])
def test_every_family_has_the_epilogue(family: str) -> None:
    """Those that the interpreter does not run too: the kernel that writes C applies an activation, bias or not."""
    for bias in (False, True):
        problem = GemmProblem(1, 64, 257 if FORMS[family].realigned else 256, bias=bias, activation="silu")
        for split in (1, 3) if FORMS[family].splits_k else (1,):
            module = generate(problem, [made(family, 16 if family == "skinny" else 64, 64, 64, 1, split)], "sm_90")
            assert "= activate(" in module.text
            assert ("bias" in "".join(kernels_of(module).values())) == bias


def test_text_depends_on_configs_only_through_kernels() -> None:
    """The same kernel has the same text whatever other configs are in the module, and for every vendor."""
    problem = GemmProblem(100, 64, 256)
    alone = generate(problem, [TILED], "sm_90").source_sha256
    assert alone.items() < generate(problem, [SPLIT, TMA, TILED], "sm_90").source_sha256.items()
    among = generate(problem, [AMD, TILED, XCD], "gfx942").source_sha256
    assert alone.items() < among.items()
    assert generate(problem, [XCD], "gfx942").source_sha256.items() < among.items()


@pytest.mark.parametrize("op", TYPES)
def test_no_masks_where_sizes_divide(op: str) -> None:
    """A size that every block divides has no mask but the reduction's own; one that none divides masks each load."""
    (dtype, dtype_c), *_ = TYPES[op]
    divided = kernels_of(
        generate(GemmProblem(128, 64, 256, op, dtype, dtype, dtype_c, bias=True), [TILED, SPLIT, TMA], "sm_90")
    )
    for name, text in divided.items():
        assert ("mask" in text) == (name in ("reduce_splits", "matmul_persistent_tma")), name
    # The copy engine clips tiles itself; only the bias vector is loaded by pointers there.
    assert divided["matmul_persistent_tma"].count("mask") == 1
    masked = kernels_of(generate(GemmProblem(100, 33, 97, op, dtype, dtype, dtype_c), [TILED], "sm_90"))
    assert masked["matmul_tiled_mask_mnk"].count("mask=(") == 3


def test_m_overhang_masks_only_what_it_must() -> None:
    """A skinny M masks the rows of A and C, and neither B nor K."""
    text = kernels_of(generate(GemmProblem(1, 64, 256), [TILED], "sm_90"))["matmul_tiled_mask_m"]
    assert "a = tl.load(a_ptrs, mask=(offs_m[:, None] < M), other=0.0)" in text
    assert "b = tl.load(b_ptrs)\n" in text
    assert "tl.store(c_ptrs, c, mask=(offs_m[:, None] < M))" in text


@pytest.mark.parametrize(
    ("name", "shape", "strides", "said"),
    [
        ("a", (64, 32), (32, 1), "a is (64, 32), this module is for (32, 64)"),
        ("a", (32, 64), (1, 32), "a has strides (1, 32): it must be row-major, without overlap"),
        ("a", (32, 64), (48, 1), "row-major, without overlap"),
        ("a", (32, 64), (0, 1), "row-major, without overlap"),
        ("b", (64, 48), (48, 1), "b has strides (48, 1): it must be column-major, without overlap"),
        ("b", (64, 48), (2, 128), "column-major, without overlap"),
        ("c", (32, 48), (2**27, 1), "c has strides (134217728, 1): too large for this module's 32-bit offsets"),
        ("bias", (47,), (1,), "bias is (47,), this module is for (48,)"),
        ("bias", (48,), (2,), "bias must be 48 contiguous elements of bfloat16"),
    ],
)
def test_operands_that_would_be_misread_are_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], strides: tuple[int, ...], said: str
) -> None:
    """By a ValueError of one line, before a kernel is compiled; what is merely spread out is taken."""
    torch = pytest.importorskip("torch")
    _, module = make_module(tmp_path, GemmProblem(32, 48, 64, bias=True), [TILED, TILED_TMA], "sm_90")
    config = module.CONFIGS[TILED.name]

    def meta(shape: tuple[int, ...], strides: tuple[int, ...]) -> object:
        return torch.empty_strided(shape, strides, dtype=torch.bfloat16, device="meta")

    spread = {
        "a": meta((32, 64), (65, 1)),
        "b": meta((64, 48), (1, 101)),
        "c": meta((32, 48), (2**26, 1)),
        "bias": meta((48,), (1,)),
    }
    module.check_operands(config, spread)
    with pytest.raises(ValueError, match=re.escape(said)):
        module.check_operands(config, {**spread, name: meta(shape, strides)})
    with pytest.raises(ValueError, match=r"^a .*\(65, 1\).* tiled_tma .* 16"):
        module.check_operands(module.CONFIGS[TILED_TMA.name], spread)


def test_steps_along_a_wide_operand_have_64_bits() -> None:
    """BLOCK_SIZE_K rows of a column-major A or a row-major B, or SPLIT_K times M rows of partial sums, may be past 32
    bits, whatever the family."""
    pointers = [TILED, SPLIT, SEMAPHORE, SWAPPED]
    for name, wide in (
        ("a", GemmProblem(2**27, 64, 256, row_major_a=False)),
        ("b", GemmProblem(64, 2**27, 256, row_major_b=True)),
    ):
        kernels = kernels_of(generate(wide, pointers, "sm_90"))
        multiplying = [text for kernel, text in kernels.items() if kernel.startswith("matmul")]
        assert len(multiplying) == len(pointers)
        assert all(f"{name}_ptrs += BLOCK_SIZE_K * ld{name}.to(tl.int64)\n" in text for text in multiplying)
        assert "rows = tl.program_id(1).to(tl.int64) * M + offs_m\n" in kernels["matmul_tiled_split"]
    near = kernels_of(generate(GemmProblem(4096, 64, 256, row_major_a=False), [TILED, SPLIT], "sm_90"))
    assert "int64" not in "".join(near.values())


def test_one_row_per_config() -> None:
    """The table has a row for each config; a kernel that many configs use is there once."""
    configs = [dataclasses.replace(TILED, GROUP_SIZE_M=group) for group in range(1, 500)]
    module = generate(GemmProblem(64, 64, 64), configs, "sm_90")
    assert module.text.count(' "matmul_tiled", "tiled", "BM64_BN32_BK32_nW4_nS2", 64, 32, 32, ') == 499
    assert set(kernels_of(module)) == {"tile_of", "matmul_tiled"}


def test_fifteen_thousand_configs(tmp_path: Path) -> None:
    """15,000 configs are generated in under 2 s and imported in under 1 s of processor time (best of three at most)."""
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
    module = generate(GemmProblem(64, 64, 104), [TILED, SPLIT, TMA, AMD], "sm_90")
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


def test_a_call_asks_the_device_for_its_units(hostile_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `units`, persistent kernels are launched for the GPU that the operands lie on, whichever it is."""
    module = load_module(str(write_module(hostile_path, generate(GemmProblem(4096, 4096, 4096), [TMA], "sm_90"))))
    asked = []

    def properties(device: object) -> SimpleNamespace:
        asked.append(device)
        return SimpleNamespace(multi_processor_count=114)

    monkeypatch.setattr("torch.cuda.get_device_properties", properties)
    device = SimpleNamespace(type="cuda", index=1)
    given: dict[str, object] = {"c": SimpleNamespace(device=device)}
    assert (module.units_of(given), asked) == (114, [device])
    seen = []
    monkeypatch.setattr(module, "check_operands", lambda config, operands: None)
    monkeypatch.setattr(module, "with_workspace", lambda config, operands, units: operands)
    monkeypatch.setattr(module, "launches", lambda config, operands, units: seen.append(units) or [])
    module.matmul(module.CONFIGS[TMA.name], given)
    module.matmul(module.CONFIGS[TMA.name], given, units=7)
    assert seen == [114, 7]


@needs_interpreter
def test_module_runs_alone_as_a_program(hostile_path: Path) -> None:
    """`python gemm_....py --check-only` checks what it holds, says so, and fails when a kernel is wrong."""
    configs = [Config("tiled", 16, 16, 32, 2, 1), Config("tiled", 16, 16, 32, 2, 3)]
    module = generate(GemmProblem(17, 33, 100), configs, "gfx942")
    path = write_module(hostile_path, module)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    wrong = path.with_name("wrong.py")
    wrong.write_text(module.text.replace("range(first_k, last_k,", "range(first_k + BLOCK_SIZE_K, last_k,"))
    argvs = [[str(path), "--check-only"], [str(path), "--config", "no_such_config"]]
    argvs += [[str(wrong), "--config", configs[1].name], ["TRITON_INTERPRET=0", str(path)]]
    # Four programs for one import of PyTorch.
    done = subprocess.run(
        [sys.executable, forked_programs.__file__, json.dumps(argvs)],
        capture_output=True,
        text=True,
        check=True,
        env=clean,
    )
    good, unknown, bad, nothing = json.loads(done.stdout)
    assert (nothing[0], "set TRITON_INTERPRET=1" in nothing[2]) == (2, True)
    assert good == [0, "".join(f"{config.name}: correct\n" for config in configs), ""]
    assert (unknown[0], unknown[2].count("tiled_")) == (2, 0)
    assert "there is no config 'no_such_config'" in unknown[2]
    assert bad[0] == 1
    assert f"AssertionError: {configs[1].name}: relative error" in bad[2]
