"""Other releases of vLLM and SGLang for `make test-engines`: sources beside one environment, and a run with each.

    python tests/engines/engine_releases.py FOLDER [PYTEST_ARGUMENT ...]

Downloads each release of releases.txt that FOLDER lacks, without its dependencies, and unpacks its Python sources there
(vLLM's compiled extensions are half a gigabyte a release, and need a GPU). Then runs the engine's tests with them in
front of what is installed, and prints `engine_releases_tested: N`. Status 1 if any test failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
# Sources that an import reads, and what says the version. SGLang looks for folders without Python in them.
_WANTED = {"vllm": (".py", "METADATA"), "sglang": ("",)}


def main(argv: Sequence[str]) -> int:
    """Download and unpack the Python sources of releases that are missing, and run the plugins' tests with each."""
    folder, *more = argv
    failed = []
    for name, version in releases():
        place = Path(folder).resolve() / f"{name}-{version}"
        if not (place / name / "__init__.py").exists():
            unpack(name, version, place)
        print(f"{name} {version}", flush=True)
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(HERE.parents[1])])}
        tests = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", str(HERE / f"test_{name}.py"), *more]
        if subprocess.run(tests, env=environ, check=False).returncode:
            failed.append(f"{name} {version}")
    # And those that are installed, with which all tests ran.
    print(f"engine_releases_tested: {len(list(releases())) + 2}; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def releases() -> Iterator[list[str]]:
    """Yields engine and version."""
    for line in (HERE / "releases.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.split()


def unpack(name: str, version: str, place: Path) -> None:
    """Downloads a release, and unpacks its sources."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run([*pip, "download", "--no-deps", "-d", wheels, f"{name}=={version}"], check=True)
        for wheel in Path(wheels).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                wanted = _WANTED[name]
                archive.extractall(place, [each for each in archive.namelist() if each.endswith(wanted)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
