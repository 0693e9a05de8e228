"""What tests of work in two steps share: a folder that was compiled here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cluster_page import SIZES_LIST
from rich.console import Console

from genkern.cluster.compiling import parse_compile, run_compile
from genkern.cluster.work_folder import WorkFolder

SPACE = Path(__file__).parents[1] / "tiny_amd.yaml"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder beside which lie the list of its sizes and the cache of the machine that compiled it."""
    at = tmp_path_factory.mktemp("compiled")
    (at / "sizes.yaml").write_text(SIZES_LIST)
    given = ["-i", at / "sizes.yaml", "--space", SPACE, "--search", "predicted:1", "-o", at / "work"]
    given += ["--arch", "gfx942", "--jobs", 1, "--cache_dir", at / "cache"]
    assert run_compile(parse_compile([str(each) for each in given]), Console(quiet=True)) == 0
    return at / "work"


@pytest.fixture
def work(compiled: Path, hostile_path: Path) -> WorkFolder:
    """A copy of it, as on a machine that has nothing else."""
    shutil.copytree(compiled, hostile_path / "work")
    return WorkFolder(hostile_path / "work")
