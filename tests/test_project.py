"""The project around the code: its documents, its shape and what is installed."""

from __future__ import annotations

import argparse
import configparser
import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from genkern.cli.options import parser
from genkern.cli.other_tuners import INSTEAD
from genkern.ops.op import op_names
from genkern.subcommands import COMMANDS, MODES

ROOT = Path(__file__).resolve().parent.parent
CODE_FOLDERS = ("genkern", "profiling", "templates")
FOLDERS = (*CODE_FOLDERS, "benchmarks", "docs", "input_sizes", "results", "tests")
# Options in the documents that are another program's: pip's, pytest's, ruff's, rocprofv3's, the benchmarks', and those
# of scripts of `genkern repro`.
OTHER_PROGRAMS = {
    *("--kernels", "--no-build-isolation", "--kernel-trace", "--linear-backend", "--output-format", "--limit"),
    *("--config", "--limit_s", "--ncu", "--binaries", "--measure", "--clock-control"),
    *("--json", "--each", "--warm", "--bounds", "--inplace", "--brief"),
    *("--array", "--gpus", "--requeue", "--nthreads", "--port", "--resources"),
    *("--key", "--least", "--over", "--vllm", "--skewed", "--processes", "--results", "--keep", "--bundle"),
    *("--sizes", "--more", "--count", "--sample", "--write_sizes", "--journal"),
    *("--tuned", "--seconds", "--seed"),
    *("--check-only", "--cublaslt", "--every", "--parts"),
    *("--local", "--no-deps", "--no-index", "--find-links", "--rm", "--ipc", "--showlocals"),
}

# Of each kind of test one folder or file: helpers beside them, both mapped folders, benchmarks, documents.
COLLECTED = (
    "tests/journal",
    "tests/profiling/test_server.py",
    "tests/profiling/rocm/test_rocprof.py",
    "tests/cli/test_report.py",
)

# Touches what a package could lack: both mapped folders, the GPU table, a space, the templates.
INSTALLED = """
import genkern, genkern.profiling.harness
from genkern.gemm.config import Config
from genkern.kernels.generate import generate
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.space.space import load_space

load_space(None, gpu_for_arch("gfx942").arch, "a16w16")
generate(GemmProblem(64, 64, 64), [Config("tiled", 16, 16, 16)], "sm_90")
print(genkern.__file__)
"""


def files_of(folder: str) -> Iterator[Path]:
    """Files of a folder as paths relative to the project, but packed winners; no links (genkern/profiling)."""
    for at, folders, names in os.walk(ROOT / folder):
        own = (name for name in folders if not name.startswith((".", "__")) and name not in ("build", "winners"))
        folders[:] = sorted(own)
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith((".pyc", ".so")):
                yield (Path(at) / name).relative_to(ROOT)


def documents() -> list[Path]:
    """All Markdown files."""
    return [Path(path.name) for path in sorted(ROOT.glob("*.md"))] + [
        path for folder in FOLDERS for path in files_of(folder) if path.suffix == ".md"
    ]


def parsers() -> list[argparse.ArgumentParser]:
    """Of all of genkern's commands that have options."""
    named = {word.replace("-", "_"): each.module for word, each in COMMANDS.items() if word not in MODES}
    of_words = [getattr(importlib.import_module(name), f"{word}_parser")() for word, name in named.items()]
    return [parser(), *map(parser, MODES), *of_words]


def slug(heading: str) -> str:
    """The anchor of a heading, as Markdown viewers make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links() -> None:
    """Every relative link of a document leads to a file, and to a heading where it names one."""
    for document in documents():
        text = re.sub(r"```.*?```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            linked = (ROOT / document).parent / name if name else ROOT / document
            assert linked.exists(), f"{document} links to {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
                assert anchor in {slug(heading) for heading in headings}, f"{document} links to {target}"


def test_architecture_maps_every_folder() -> None:
    """The map in ARCHITECTURE.md has a line for every folder of code, and none for a folder that is gone."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("\n## The map\n")[2].partition("\n## ")[0]
    named = {name for line in section.splitlines() for name in re.findall(r"^\| `([^`]+)/`", line)}
    found = {str(path.parent) for folder in CODE_FOLDERS for path in files_of(folder)}
    formats = {name for op in op_names() for name in (f"genkern/ops/{op}", f"templates/{op}")}
    assert named >= found - formats
    assert all((ROOT / name).is_dir() for name in named)


def test_documents_name_real_options() -> None:
    """Every long option that a document names is genkern's, refused by name, or of another program listed here."""
    refused = {name for flag in INSTEAD for name in (flag, "--" + flag[2:].replace("_", "-"))}
    known = OTHER_PROGRAMS.union(refused, *(each._option_string_actions for each in parsers()))
    for document in documents():
        named = set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", (ROOT / document).read_text(encoding="utf-8")))
        assert named <= known, f"{document} names {sorted(named - known)}"


def test_reliability_names_real_tests() -> None:
    """Every test that the table of faults names is in the file that it names; three dots stand for a part."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("| ") and ".py" in line]
    assert len(table) > 20
    sources = {
        path.name: (ROOT / path).read_text(encoding="utf-8") for path in files_of("tests") if path.suffix == ".py"
    }
    for line in table:
        file = ""
        for word in re.findall(r"test_\w+\.py|`[^`]*`", line.split("|")[4]):
            if word.endswith(".py"):
                file = word
                assert file in sources, line
            elif name := re.match(r"[\w.]*", word.strip("`"))[0]:  # type: ignore[index]
                pattern = r"\w*".join(map(re.escape, name.split("...")))
                assert re.search(
                    rf"^def \w*{pattern}\(" if name[0] == "." else rf"^def {pattern}\(", sources[file], re.M
                )
            elif kind := re.match(r"`\[(\w+)\]`", word):
                assert f'"{kind[1]}"' in sources[file], word


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
@pytest.mark.parametrize("target", ["tune", "test", "test-long", "lint", "format", "bench", "golden", "docs"])
def test_make_targets(target: str) -> None:
    """The Makefile has the targets that the documents name."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_setup_lists_every_package() -> None:
    """setup.cfg names every package there is but the formats, so that none is left out of an install."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    found = {str(path.parent).replace("/", ".") for path in files_of("genkern") if path.name == "__init__.py"}
    packages = {name for name in found if not name.startswith("genkern.ops.")}
    assert set(setup["options"]["packages"].split()) == packages | {"genkern.templates"} | {
        f"genkern.{path.parent}".replace("/", ".") for path in files_of("profiling") if path.name == "__init__.py"
    }


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, and beside it the sdist that was made from it, unpacked."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("built")
    checkout = folder / "checkout"
    checkout.mkdir()
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, checkout)
    for name in (*FOLDERS, ".ci"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=ignored)
    sdist = _build("sdist", checkout, folder / "sdist")
    with tarfile.open(sdist) as archive:
        # Python before 3.11.4 has no filters; from 3.14 on, this one is the default.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder / "unpacked")
    (made,) = (folder / "unpacked").iterdir()
    return made


@pytest.fixture(scope="module")
def built(unpacked: Path) -> tuple[Path, Path]:
    """A wheel made from the checkout, and one made from the sdist of the checkout."""
    folder = unpacked.parents[1]
    return _build("wheel", folder / "checkout", folder / "from_checkout"), _build(
        "wheel", unpacked, folder / "from_sdist"
    )


def _build(kind: str, source: Path, out: Path) -> Path:
    out.mkdir()
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(out)], cwd=source, check=True, capture_output=True)
    (made,) = out.iterdir()
    return made


def test_wheel_holds_every_file_once(built: tuple[Path, Path]) -> None:
    """A wheel has both mapped folders below genkern, with templates and data, and nothing beside genkern."""
    names = zipfile.ZipFile(built[0]).namelist()
    assert len(names) == len(set(names))
    # The C extension is there where it could be compiled.
    installed = {name for name in names if ".dist-info/" not in name and not name.endswith((".so", ".genkern"))}
    expected = {
        str(path)
        for path in files_of("genkern")
        if path.suffix in (".py", ".yaml", ".typed", ".npz", ".js", ".css", ".html", ".txt")
    }
    expected |= {f"genkern/{path}" for path in files_of("profiling") if path.suffix == ".py"}
    expected |= {f"genkern/{path}" for path in files_of("templates")}
    assert installed == expected


def test_sdist_holds_the_tests(unpacked: Path) -> None:
    """What pytest finds in the checkout it finds in an unpacked sdist; nothing that a test or make reads is missing."""
    for folder in FOLDERS:
        assert {path for path in files_of(folder) if not (unpacked / path).exists()} == set()
    for name in ("Makefile", "setup.py", "constraints.txt", ".ci/setup", ".ci/run", "ARCHITECTURE.md", "CHANGELOG.md"):
        assert (unpacked / name).exists()
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *COLLECTED]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # It has the links of the checkout: without them an installed genkern of another state would be taken.
    assert all((unpacked / "genkern" / name).is_symlink() for name in ("profiling", "templates"))
    done = subprocess.run(argv, cwd=unpacked, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_server.py::test_screening_times_a_call" in done.stdout


def test_sdist_makes_the_same_wheel(built: tuple[Path, Path]) -> None:
    """The links genkern/profiling and genkern/templates neither break nor double anything in an sdist."""
    from_checkout, from_sdist = (sorted(zipfile.ZipFile(wheel).namelist()) for wheel in built)
    assert from_sdist == from_checkout


def test_wheel_works_from_any_folder(built: tuple[Path, Path], tmp_path: Path) -> None:
    """An installed genkern finds its GPU table, spaces and templates without the checkout."""
    zipfile.ZipFile(built[0]).extractall(tmp_path / "site")
    (tmp_path / "try.py").write_text(INSTALLED)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    argv = [sys.executable, "try.py"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
