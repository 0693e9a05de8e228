"""How many mistakes in genkern's Python the tests find: one mistake at a time, planted in a copy of the checkout.

    python -m benchmarks.checking.python_mutants [--faults TEXT] [--timeout_s 120] [-o DATA.jsonl]

Each mutant is an edit of one file (faults_of_python.py). The tests that the fault names run in the copy until one
fails. That test has found the mutant if it fails again, and passes without the fault; else the others run on. A hang is
a failure. Every verdict is added to the file of `-o` at once. A mutant that the file has for the same code and tests
is not judged again. The last line says how many mutants were found; the status is 1 unless that is all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.checking.faults_of_python import FAULTS, Fault
from benchmarks.common.kept import Kept, digest_of

ROOT = Path(__file__).resolve().parents[2]
# Folders of what is tested. `genkern` has links to the other one.
_CODE = ("genkern", "profiling")
# Files that the tests need and git ignores.
_BUILT = "genkern/runtime/launch/*.so"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
# Status of pytest if it selects no test.
_NO_TESTS = 5


class DoesNotApply(Exception):
    """The code that a fault changes is gone, or is in several places."""


def place_of(fault: Fault, root: Path) -> Path:
    """Return the only file below `root` that defines the fault's symbol and has its text exactly once.

    Raises DoesNotApply.
    """
    defines = re.compile(rf"^\s*(?:(?:def|class) {fault.symbol}\b|{fault.symbol}\b[^=\n]*=)", re.MULTILINE)
    found = []
    for folder in _CODE:
        for path in sorted((root / folder).rglob("*.py")):
            if path.resolve().is_relative_to((root / folder).resolve()) and not path.is_symlink():
                text = path.read_text(encoding="utf-8")
                if fault.old in text and defines.search(text):
                    found += [path] * text.count(fault.old)
    if len(found) != 1:
        where = ", ".join(sorted({str(path.relative_to(root)) for path in found})) or "no file"
        raise DoesNotApply(
            f"{fault.name}: {fault.symbol} with {fault.old!r} is in {where}, {len(found)} times: mend it"
        )
    return found[0]


@contextlib.contextmanager
def planted(fault: Fault, root: Path) -> Iterator[None]:
    """Have the fault in the checkout `root` during the block. Raises DoesNotApply."""
    path = place_of(fault, root)
    text = path.read_text(encoding="utf-8")
    try:
        _write(path, text.replace(fault.old, fault.new))
        yield
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    # Python tells stale bytecode by size and whole seconds, which two quick edits may share.
    for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        stale.unlink()


def copied(root: Path, to: Path) -> None:
    """Copy the files of a checkout that git knows or does not ignore, and built extensions."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    names = [name for name in listed.stdout.decode().split("\0") if name]
    names += [str(path.relative_to(root)) for path in root.glob(_BUILT)]
    for name in names:
        source, target = root / name, to / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def run_tests(root: Path, tests: Iterable[str], timeout_s: float, *options: str) -> tuple[int, str]:
    """Run these tests of the checkout `root`; return pytest's status and output. A test may take `timeout_s`."""
    paths = [f"tests/{test}" for test in dict.fromkeys(tests)]
    argv = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", "-p", "no:cacheprovider", "--tb", "line"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [*argv, "--timeout", str(timeout_s), *options, *paths],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def failed_test(status: int, output: str) -> str:
    """Return what failed in a run of tests, "" if nothing did: a test, or a file that cannot be imported.

    Raises RuntimeError if the run ended without saying what failed.
    """
    if status in (0, _NO_TESTS):
        return ""
    if (failed := _FAILED.search(output)) is None:
        raise RuntimeError(f"pytest ended with status {status}:\n{output[-2000:]}")
    return failed[1]


def finder(fault: Fault, root: Path, timeout_s: float) -> str:
    """Return the test that finds the fault, "" if none does.

    A test finds it if it fails twice with the fault in the checkout `root`, and passes without it.
    """
    unsteady: list[str] = []
    while True:
        with planted(fault, root):
            failed = failed_test(*run_tests(root, fault.tests, timeout_s, "-x", *unsteady))
            again = failed and failed_test(*run_tests(root, [failed.removeprefix("tests/")], timeout_s))
        if not failed:
            return ""
        if again and not failed_test(*run_tests(root, [failed.removeprefix("tests/")], timeout_s)):
            return failed
        print(f"{failed} says nothing of the mutant: it passes with it, or fails without it", file=sys.stderr)
        unsteady.append(f"--deselect={failed}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", default="", help="of these faults only: those with this in their names")
    parser.add_argument("--timeout_s", type=float, default=120.0, help="time limit of one test (default: 120)")
    parser.add_argument("-o", "--output", help="verdicts as JSON lines; those it has already are not judged again")
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if arguments.faults in fault.name]
    if not chosen:
        parser.error(f"no fault has {arguments.faults!r} in its name")
    kept, started_s = Kept(arguments.output), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        copied(ROOT, copy)
        try:
            keys = {fault: _key(fault, copy) for fault in chosen}
        except DoesNotApply as error:
            print(error, file=sys.stderr)
            return 2
        for fault in chosen:
            if kept.of(keys[fault]) is None:
                by = finder(fault, copy, arguments.timeout_s)
                kept.add(keys[fault], {"fault": fault.name, "found": bool(by), "by": by})
                print(f"{time.monotonic() - started_s:.0f} s: {fault.name}: {by or 'NOT FOUND'}", flush=True)
    return report(chosen, [bool((kept.of(keys[fault]) or {})["found"]) for fault in chosen])


def _key(fault: Fault, root: Path) -> str:
    """Return what a verdict is of: the fault, the file that it changes, and the tests that look for it."""
    files = [place_of(fault, root)]
    for name in fault.tests:
        path = root / "tests" / name
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return digest_of([repr(fault)], files)


def report(faults: Sequence[Fault], found: Sequence[bool]) -> int:
    """Print the mutants that were not found, the figure's key and the summary; return the exit status."""
    for fault, is_found in zip(faults, found, strict=True):
        if not is_found:
            print(f"not found: {fault.name} ({fault.symbol}); tests: {', '.join(fault.tests)}")
    print(f"python_mutants_found: {sum(found)}")
    print(f"found {sum(found)} of {len(faults)}")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
