"""A binary's content address changes with all that changes the binary, and nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from small_gemms import AMD, SPLIT, TILED, specs_of, target_of

import genkern.kernels.kernel
from genkern.gemm.problem import GemmProblem
from genkern.kernels import lowering
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec, Target, compile_environment

SPEC = KernelSpec(
    "matmul_tiled",
    "ab" * 32,
    (("a_ptr", "*bf16"), ("M", "i32")),
    (("BINARY", "BM64"), ("BLOCK_SIZE_M", 64)),
    (("a_ptr", 16),),
    (("num_warps", 4),),
)
TARGET = Target("cuda", 90, 32)


@pytest.mark.parametrize(
    "change",
    [
        {"function": "matmul_tiled_mask_k"},
        {"source_sha256": "ba" * 32},
        {"signature": (("a_ptr", "*fp16"), ("M", "i32"))},
        {"signature": (("M", "i32"), ("a_ptr", "*bf16"))},
        {"constants": (("BINARY", "BM64"), ("BLOCK_SIZE_M", 128))},
        {"divisible": (("a_ptr", 16), ("M", 16))},
        {"divisible": (("a_ptr", 16), ("M", 8))},
        {"divisible": ()},
        {"options": (("num_warps", 8),)},
        {"options": (("num_warps", 4), ("num_stages", 2))},
    ],
)
def test_every_field_of_the_spec_is_in_the_key(change: dict[str, object]) -> None:
    """Changing any field of a spec changes its key."""
    changed = dataclasses.replace(SPEC, **change)  # type: ignore[arg-type]
    assert changed.key(TARGET, "3.6.0") != SPEC.key(TARGET, "3.6.0")


def test_descriptor_layouts_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another layout of the same descriptor is another binary: Triton's own, which nothing else tells."""
    spec = dataclasses.replace(SPEC, signature=(("a_desc", "tensordesc<bf16[64, 64]>"),))
    before = spec.key(TARGET, "3.6.0")
    monkeypatch.setattr(lowering, "with_layout", lambda kind: f"{kind} in another way")
    assert spec.key(TARGET, "3.6.0") != before


def test_the_version_of_the_lowering_is_in_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It changes with any character of the files that lower a spec; with it every key does."""
    files = [tmp_path / "one.py", tmp_path / "two.py"]
    for file in files:
        file.write_text("attributes = 16\n")
    versions = [lowering.digest_of(files)]
    files[1].write_text("attributes = 32\n")
    versions.append(lowering.digest_of(files))
    keys = {SPEC.key(TARGET, "3.6.0")}
    for version in versions:
        monkeypatch.setattr(genkern.kernels.kernel, "LOWERING", version)
        keys.add(SPEC.key(TARGET, "3.6.0"))
    assert len(keys) == 3
    source = Path(lowering.__file__)
    assert lowering.digest_of([source, source.with_name("source.py")]) == lowering.LOWERING


def test_target_and_version_are_in_the_key() -> None:
    """Each field of the target, and Triton's version, changes the key."""
    others = [Target("hip", 90, 32), Target("cuda", 100, 32), Target("cuda", 90, 64), Target("cuda", "90", 32)]
    keys = [SPEC.key(TARGET, "3.6.0"), SPEC.key(TARGET, "3.6.1"), *(SPEC.key(other, "3.6.0") for other in others)]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 64 and int(key, 16) >= 0 for key in keys)


@pytest.mark.parametrize(
    ("name", "matters"),
    [
        ("TRITON_DEFAULT_FP_FUSION", True),
        ("TRITON_PTXAS_PATH", True),
        ("DISABLE_LLVM_OPT", True),
        ("AMDGCN_USE_BUFFER_OPS", True),
        ("LLVM_PASS_PLUGIN_PATH", True),
        ("MLIR_ENABLE_DUMP", True),
        ("TRITON_CACHE_DIR", False),
        ("TRITON_HOME", False),
        ("TRITON_DUMP_DIR", False),
        ("TRITON_PRINT_AUTOTUNING", False),
        ("TRITON_INTERPRET", False),
        ("PYTHONPATH", False),
        ("HOME", False),
    ],
)
def test_environment_that_changes_the_binary_is_in_the_key(
    monkeypatch: pytest.MonkeyPatch, name: str, matters: bool
) -> None:
    """Settings that change what Triton compiles change the key; where its files lie does not."""
    before = SPEC.key(TARGET, "3.6.0")
    monkeypatch.setenv(name, "/some/where else")
    assert (SPEC.key(TARGET, "3.6.0") != before) == matters
    assert ((name, "/some/where else") in compile_environment()) == matters


def test_key_is_the_same_in_every_process() -> None:
    """No hash seed, memory address or order of insertion gets into the key."""
    program = (
        "from test_kernel import SPEC, TARGET; from small_gemms import *;"
        "module = generate(GemmProblem(64, 64, 100), [SPLIT, AMD], 'gfx942');"
        "print(SPEC.key(TARGET, '3.6.0'), *(s.key(target_of('gfx942'), '3.6.0') for s in specs_of(module, SPLIT)))"
    )
    answers = set()
    for seed in ("1", "2"):
        # A clean environment but for the paths, so that only the seed differs.
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(path for path in sys.path if path)}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
        )
        answers.add(done.stdout)
    assert len(answers) == 1
    assert len(answers.pop().split()) == 3


def test_key_does_not_know_sizes_or_run_time_choices() -> None:
    """Sizes with the same alignment and overhang, and any GROUP_SIZE_M and SPLIT_K > 1, have the same keys."""
    keys = set()
    for m, n, k in ((256, 512, 1024), (64, 64, 64), (8192, 8192, 8192)):
        module = generate(GemmProblem(m, n, k), [TILED, SPLIT, AMD], "gfx942")
        for group_size, split in ((1, 4), (8, 2), (32, 16)):
            configs = (
                dataclasses.replace(TILED, GROUP_SIZE_M=group_size),
                dataclasses.replace(SPLIT, GROUP_SIZE_M=group_size, SPLIT_K=split),
            )
            specs = (spec for config in configs for spec in specs_of(module, config))
            keys.add(tuple(spec.key(target_of("gfx942"), "3.6.0") for spec in specs))
    assert len(keys) == 1
