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

from genkern.__main__ import COMMANDS
from genkern.command.options import parser
from genkern.ops.op import op_names

ROOT = Path(__file__).resolve().parent.parent
OPS = ROOT / "genkern" / "ops"
CODE_FOLDERS = ("genkern", "profiling", "templates")
FOLDERS = (*CODE_FOLDERS, "benchmarks", "docs", "input_sizes", "results", "tests")
MOST_LINES = 400
# Modules of the package itself; everything else lies in a room.
MOST_MODULES = 7
# Of all texts in tests/golden.
MOST_GOLDEN_LINES = 4000

# Modules without a test file of their own name, and where they are tested instead.
_FIRST, _LT = "tests/command/first", "genkern/runtime/backends"
_OF_BOTH = "hipblaslt_api", "hipblaslt_library", "lt", "lt_api", "lt_backend"
TESTED_ELSEWHERE = {
    "genkern/formats/model_config.py": "tests/packing/models/test_shapes.py",
    "genkern/packing/models/layers.py": "tests/packing/models/test_shapes.py",
    "genkern/packing/models/products.py": "tests/packing/models/test_shapes.py",
    "genkern/packing/models/capturing.py": "tests/packing/models/test_bundling.py",
    "genkern/gemm/triton_release.py": "tests/space/test_rules_amd.py",
    "genkern/formats/flat_csv.py": "tests/formats/test_sizes.py",
    "genkern/formats/flat_yaml.py": "tests/formats/test_sizes.py",
    "genkern/formats/gemm_entry.py": "tests/formats/test_sizes.py",
    "genkern/formats/aiter_columns.py": "tests/formats/test_aiter_csv.py",
    "genkern/arguments.py": "tests/command/test_options.py",
    "genkern/search/command_line.py": "tests/search/test_asked_strategy.py",
    "genkern/space/shares.py": "tests/tuning/processes/test_crew.py",
    "genkern/search/strategy.py": "tests/search/test_strategies.py",
    "genkern/search/plain/predicted_order.py": "tests/search/test_strategies.py",
    "genkern/search/plain/cached.py": "tests/search/test_strategies.py",
    "genkern/tuned_gemm.py": "tests/runtime/test_torch_ops.py",
    "genkern/command/exchange/bucket_options.py": "tests/command/exchange/test_bucket.py",
    **{
        f"genkern/engines/{name}.py": "tests/engines/test_engine_layers.py"
        for name in ("called", "choice", "layers", "experts")
    },
    "genkern/engines/vllm_fp8.py": "tests/engines/test_vllm.py",
    **{f"genkern/ops/{path.parent.name}/library.py": "tests/ops/test_library.py" for path in OPS.glob("*/library.py")},
    **{f"genkern/ops/{at.parent.name}/aiter.py": "tests/ops/test_aiter_calls.py" for at in OPS.glob("*/aiter.py")},
    **{f"genkern/command/first/{at}.py": f"{_FIRST}/test_first_run.py" for at in ("first_report", "machine", "plan")},
    **{f"{_LT}/{name}.py": f"tests/{_LT[8:]}/test_hipblaslt.py" for name in _OF_BOTH},
    # The packer makes the bundle of the runtime's tests, and its calls are compared with what is measured.
    "genkern/packing/packer.py": "tests/runtime/launch/test_parameters.py",
    "genkern/runtime/packed.py": "tests/runtime/test_bundle.py",
    "genkern/runtime/untuned.py": "tests/runtime/test_table.py",
    "genkern/runtime/model.py": "tests/runtime/test_linear.py",
    **{f"genkern/runtime/{name}.py": "tests/runtime/test_dispatch.py" for name in ("context", "given", "served")},
    "genkern/runtime/launch/torch_gpu.py": "tests/runtime/launch/test_launch_gpu.py",
    "genkern/runtime/launch/algorithm_call.py": "tests/runtime/test_dispatch.py",
    "genkern/runtime/launch/prepared.py": "tests/runtime/launch/test_parameters.py",
    "genkern/runtime/launch/shape.py": "tests/runtime/launch/test_launcher.py",
    **{f"genkern/recorded/{name}.py": "tests/recorded/test_reading.py" for name in ("columns", "problem")},
    "genkern/recorded/charges.py": "tests/tuning/test_simulated.py",
    "genkern/journal/copy.py": "tests/journal/test_journal_copy.py",
    "genkern/journal/line.py": "tests/journal/test_journal_line.py",
    # A family's arguments, grid and workspace are compared with what is compiled and what generated modules launch.
    **{
        f"genkern/kernels/{name}.py": "tests/kernels/test_specs.py"
        for name in (
            *("argument", "launch_text"),
            *(
                f"{room}/{path.stem}"
                for room in ("families", "contract")
                for path in (ROOT / "genkern" / "kernels" / room).glob("[a-z]*.py")
            ),
        )
    },
    "genkern/kernels/families/gluon_tile.py": "tests/kernels/test_gluon_tile.py",
    "genkern/kernels/families/realigned.py": "tests/kernels/test_realigned.py",
    "genkern/kernels/contract/cost.py": "tests/kernels/test_cost.py",
    **{f"genkern/kernels/contract/{name}.py": "tests/kernels/test_catalogue.py" for name in ("family", "form")},
    **{f"genkern/kernels/cute/{name}.py": "tests/command/test_own_family.py" for name in ("own", "command_line")},
    "genkern/kernels/lowering.py": "tests/kernels/test_kernel.py",
    "genkern/kernels/source.py": "tests/farm/test_compiler.py",
    "genkern/ops/outside.py": "tests/command/test_own_format.py",
    "genkern/runtime/process/own_command.py": "tests/runtime/process/test_sources.py",
    "genkern/runtime/process/ranks.py": "tests/runtime/process/test_online.py",
    "genkern/tuning/interpreter.py": "tests/tuning/test_check.py",
    **{
        f"genkern/formats/exchange/{name}.py": f"tests/formats/exchange/test_{tested}.py"
        for name, tested in (("vllm", "block_json"), ("sglang", "block_json"), ("aiter_triton_named", "aiter_triton"))
    },
    "genkern/formats/exchange/peer_config.py": "tests/command/exchange/test_importing.py",
    "genkern/command/exchange/candidate_times.py": "tests/command/exchange/test_exporting.py",
    "genkern/command/setting.py": "tests/command/test_run.py",
    "genkern/timing/profiler.py": "tests/profiling/test_predicted.py",
    "profiling/checking/interpret.py": "tests/tuning/test_check.py",
    "profiling/process_guard.py": "tests/profiling/test_supervisor.py",
    "profiling/rocm/launch_job.py": "tests/profiling/rocm/test_rocprof.py",
}
# Options in the documents that are another program's: pip's, pytest's, ruff's, rocprofv3's and the benchmarks'.
OTHER_PROGRAMS = {
    *("--kernels", "--no-build-isolation", "--kernel-trace", "--linear-backend", "--output-format", "--limit"),
    *("--config", "--limit_s", "--ncu", "--binaries", "--measure", "--clock-control"),
    *("--json", "--each", "--warm", "--bounds", "--inplace", "--brief"),
    *("--array", "--gpus", "--requeue", "--nthreads", "--port", "--resources"),
    *("--key", "--least", "--over", "--vllm", "--skewed", "--processes", "--results", "--keep", "--bundle"),
    *("--sizes", "--more", "--count", "--sample", "--write_sizes", "--journal"),
    *("--tuned", "--seconds", "--seed"),
}

# Of each kind of test one folder or file: helpers beside them, both mapped folders, benchmarks, documents.
COLLECTED = (
    "tests/journal",
    "tests/profiling/test_server.py",
    "tests/profiling/rocm/test_rocprof.py",
    "tests/command/test_report.py",
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


def modules() -> list[str]:
    """All modules of the two packages, but for empty package files."""
    paths = [path for folder in ("genkern", "profiling") for path in files_of(folder)]
    return [str(path) for path in paths if path.suffix == ".py" and path.name not in ("__init__.py", "__main__.py")]


def parsers() -> list[argparse.ArgumentParser]:
    """Of all of genkern's commands that have options."""
    named = {word.replace("-", "_"): name for word, name in COMMANDS.items()}
    of_words = [getattr(importlib.import_module(name), f"{word}_parser")() for word, name in named.items()]
    return [parser(), *of_words]


def slug(heading: str) -> str:
    """The anchor of a heading, as Markdown viewers make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("document", documents(), ids=str)
def test_links(document: Path) -> None:
    """Every relative link of a document leads to a file, and to a heading where it names one."""
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


def test_every_module_has_a_test_file() -> None:
    """tests/ mirrors the rooms: genkern/room/x.py has tests/room/test_x.py, and so has profiling/x.py.

    Rules are tested together.
    """
    missing = []
    for module in modules():
        path = Path(module)
        mirrored = path.relative_to("genkern") if path.parts[0] == "genkern" else path
        expected = Path("tests") / mirrored.parent / f"test_{path.name}"
        if path.parent.name != "rules" and not (ROOT / TESTED_ELSEWHERE.get(module, expected)).exists():
            missing.append(f"{module} has no {expected}")
    assert len(modules()) > 200
    assert missing == []


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports test files by their names alone."""
    names = [path.name for path in files_of("tests") if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_tested_elsewhere_is_needed() -> None:
    """The list of exceptions names modules that exist."""
    assert set(TESTED_ELSEWHERE) <= set(modules())


def test_architecture_maps_every_folder() -> None:
    """The map in ARCHITECTURE.md has a line for every folder of code, and none for a folder that is gone."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("\n## The map\n")[2].partition("\n## ")[0]
    named = {name for line in section.splitlines() for name in re.findall(r"^\| `([^`]+)/`", line)}
    found = {str(path.parent) for folder in CODE_FOLDERS for path in files_of(folder)}
    formats = {name for op in op_names() for name in (f"genkern/ops/{op}", f"templates/{op}")}
    assert named >= found - formats
    assert all((ROOT / name).is_dir() for name in named)


@pytest.mark.parametrize("folder", ["genkern", "profiling"])
def test_rooms_are_small(folder: str) -> None:
    """Each package has at most 12 modules besides its `__init__`, so that a listing tells its story."""
    for at in {path.parent for path in files_of(folder)}:
        files = [path for path in (ROOT / at).glob("*.py") if not path.name.startswith("__")]
        assert len(files) <= 12, f"{at} has {len(files)}"


def test_the_package_itself_is_small() -> None:
    """What a user's program or the command enters by, and what every room needs."""
    assert len(list((ROOT / "genkern").glob("*.py"))) <= MOST_MODULES


def test_golden_texts_are_few() -> None:
    """Someone reads what a change does to them."""
    texts = (ROOT / "tests" / "golden").glob("*.expected")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in texts) <= MOST_GOLDEN_LINES


def test_no_file_is_long() -> None:
    """No source file has more than 400 lines."""
    sources = [path for folder in (*CODE_FOLDERS, "benchmarks", "tests") for path in files_of(folder)]
    lines = {
        str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines())
        for path in sources
        if path.suffix in (".py", ".j2")
    }
    assert not {path: count for path, count in lines.items() if count > MOST_LINES}


def test_documents_name_real_options() -> None:
    """Every long option that a document names is one of genkern's, or of another program listed here."""
    known = OTHER_PROGRAMS.union(*(each._option_string_actions for each in parsers()))
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
    expected = {str(path) for path in files_of("genkern") if path.suffix in (".py", ".yaml", ".typed", ".npz")}
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
    # As an installation would have them: without these links an installed genkern of another state is taken.
    links = [unpacked / "genkern" / name for name in ("profiling", "templates")]
    for link in links:
        link.symlink_to(f"../{link.name}")
    done = subprocess.run(argv, cwd=unpacked, env=environment, capture_output=True, text=True, check=False)
    for link in links:
        link.unlink()
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
