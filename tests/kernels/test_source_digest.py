"""Tests of the digest of a config's source (genkern/kernels/specs.py): what is another program, and what is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels import lowering
from genkern.kernels.cute.source_file import files_of
from genkern.kernels.generate import GeneratedModule, generate
from genkern.kernels.kernel import program_text

PROBLEM = GemmProblem(64, 1280, 8192)
GLUON = Config.parse("warp_specialized_BM64_BN64_BK64_GM1_SK1_nW4_nS4")
TILED = Config("tiled", 64, 64, 64)
CUTE = Config.parse("cute_wgmma_BM64_BN64_BK64_GM1_SK1_nW4_nS4")
H200 = gpu_for_arch("sm_90")


def of(config: Config, problem: GemmProblem = PROBLEM, arch: str = "sm_90") -> str:
    gpu = gpu_for_arch(arch)
    return generate(problem, [config], arch, gpu).source_digest(config, gpu)


def with_source(module: GeneratedModule, old: str, new: str) -> GeneratedModule:
    """The module as a template would make it that has `new` instead of `old`."""
    texts: Mapping[str, tuple[str, ...]] = {
        name: tuple(text.replace(old, new) for text in source) for name, source in module.source.items()
    }
    assert texts != module.source
    return replace(module, source=dict(texts))


def test_what_no_compiler_reads_is_left_out() -> None:
    """Comments, docstrings and blank lines; a mark within a text is none."""
    text = 'def f(x):  # why\n    """What.\n\n    More.\n    """\n\n    # how\n    return x + "# no comment"\n'
    assert program_text(text) == 'def f(x):\n    return x + "# no comment"'


@pytest.mark.parametrize("config", [TILED, GLUON])
def test_another_text_is_another_program(config: Config) -> None:
    """A comment is not."""
    module = generate(PROBLEM, [config], "sm_90")
    own = module.source_digest(config, H200)
    assert with_source(module, "\n    ", "\n    # said anew\n    ").source_digest(config, H200) == own
    assert with_source(module, "acc", "sums").source_digest(config, H200) != own


def test_the_digest_differs_if_compilation_or_launch_does() -> None:
    """Constants, options, targets, and grids; not what a config sets at run time, nor what else a module holds."""
    deep, split, grouped = (replace(TILED, **{name: 4}) for name in ("num_stages", "SPLIT_K", "GROUP_SIZE_M"))
    digests = [of(TILED), of(deep), of(split), of(TILED, arch="sm_80"), of(TILED, replace(PROBLEM, N=2560)), of(CUTE)]
    assert len({*digests}) == len(digests)
    assert of(grouped) == of(TILED)
    assert of(replace(split, SPLIT_K=8)) == of(split)
    together = generate(PROBLEM, [TILED, split, deep, GLUON, CUTE], "sm_90")
    assert [together.source_digest(config, H200) for config in (TILED, CUTE)] == [digests[0], digests[-1]]


def test_no_compiler_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever Triton and CuTe DSL are installed the digest is the same: layouts, which Triton says, are not in it."""
    own = [of(GLUON), of(CUTE)]
    monkeypatch.setattr(lowering, "gluon_layout", None)
    monkeypatch.setattr("genkern.kernels.kernel.cute_version", lambda: "another")
    assert [of(GLUON), of(CUTE)] == own


def test_a_kernel_in_a_file_is_what_that_imports() -> None:
    """Of genkern's: those files alone; of someone else's: all Python in the folder."""
    dense, promoted = ({path.name for path in files_of(f"cute/{name}_sm90.py")} for name in ("dense", "promoted"))
    assert {"dense_sm90.py", "loads_sm90.py", "walk.py"} <= dense < promoted
    assert "promoted_sm90.py" in promoted - dense


def test_files_of_someone_else(tmp_path: Path) -> None:
    """What theirs import is not known."""
    for name in ("kernel.py", "parts.py", "notes.txt"):
        (tmp_path / name).write_text("pass\n")
    assert [path.name for path in files_of(str(tmp_path / "kernel.py"))] == ["kernel.py", "parts.py"]
