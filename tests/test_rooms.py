"""The rooms of genkern: each imports what lies below it only, and profiling knows little of the rest."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# From the ground up. A room may import those before it.
ROOMS = (
    "",
    "gemm",
    "timing",
    "ops",
    "kernels",
    "result",
    "space",
    "compile",
    "search",
    "journal",
    "files",
    "recorded",
    "runtime",
    "engines",
    "profiling",
    "tuning",
    "cli",
    "results_report",
    "packing",
    "cluster",
    "api",
)
# The command, and what a user's program imports by the package's own name: these hand on what is in the rooms.
FACES = ("__main__", "__init__", "tuned_gemm")
# All that a process which launches kernels needs of the rest; the profiler that launches none knows more.
PROFILING_KNOWS = (
    *("", "gemm", "timing", "ops", "kernels", "compile.cache"),
    *("runtime.backends", "runtime.launch", "profiling"),
)
LAUNCHES_NOTHING = ("predict_profiler",)


def imports(path: Path) -> Iterator[str]:
    """Every module of genkern that a file imports, at its top or in a function, without `genkern.`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("genkern.") and module_exists(name):
                yield name.removeprefix("genkern.")


def module_exists(name: str) -> bool:
    """Whether it is a module or a package, rather than something in one."""
    place = ROOT / name.replace(".", "/")
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def room_of(module: str) -> str:
    """The room in which a module lies: "" for those directly in genkern."""
    first = module.partition(".")[0]
    return first if first in ROOMS else ""


def modules() -> list[Path]:
    """Every module of genkern; the link to profiling is followed once, by its own name."""
    found = [path for path in (ROOT / "genkern").rglob("*.py") if "profiling" not in path.parts[len(ROOT.parts) :][1:2]]
    return sorted({*found, *(ROOT / "genkern" / "profiling").resolve().rglob("*.py")})


def test_imports_go_downward() -> None:
    """A module imports its own room and those below; the package's faces may import all."""
    wrong, seen = [], 0
    for path in modules():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[:-1] == ("genkern",) and parts[-1] in FACES:
            continue
        seen += 1
        room, names = room_of(".".join(parts if parts[0] == "profiling" else parts[1:])), imports(path)
        below = ROOMS[: ROOMS.index(room) + 1]
        wrong += [(str(path), name) for name in names if room_of(name) not in below]
        if room == "profiling" and path.stem not in LAUNCHES_NOTHING:
            known = {name for name in names if name.startswith(PROFILING_KNOWS[1:]) or room_of(name) == ""}
            wrong += [(str(path), name) for name in names if name not in known]
    assert wrong == []
    assert seen > 200


def folder_of(module: str) -> str:
    """The folder in which a module or package lies, dotted."""
    place = ROOT / "genkern" / module.replace(".", "/")
    return module if (place / "__init__.py").exists() else module.rpartition(".")[0]


def test_folders_import_in_one_direction() -> None:
    """No folder imports a folder that imports it, directly or through others; genkern's own top level is exempt."""
    below: dict[str, set[str]] = {}
    for path in modules():
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts if parts[0] == "profiling" else parts[1:]).removesuffix(".__init__")
        folder = folder_of(name)
        found = {folder_of(each) for each in imports(path)}
        below.setdefault(folder, set()).update(found - {folder, ""})
    done: set[str] = set()
    under_way: list[str] = []

    def visit(folder: str) -> None:
        assert folder not in under_way, " imports ".join([*under_way[under_way.index(folder) :], folder])
        if folder not in done:
            under_way.append(folder)
            for each in sorted(below.get(folder, ())):
                visit(each)
            done.add(under_way.pop())

    for folder in sorted(below.keys() - {""}):
        visit(folder)
    assert len(done) > 20
