"""Tests of genkern.kernels.cute.source_file: where kernels lie, and what their digests are of."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkern.errors import InputError
from genkern.kernels.cute.dense import TEMPLATE
from genkern.kernels.cute.source_file import path_of, sha256_of


def test_shipped_kernels_are_there() -> None:
    """Below genkern's templates."""
    assert "def build(" in path_of(TEMPLATE).read_text()
    assert len(sha256_of(TEMPLATE)) == 64


def test_a_file_anywhere(tmp_path: Path) -> None:
    """Its digest changes with its text and with what lies beside it, which it may import."""
    kernel = tmp_path / "kernel.py"
    digests = set()
    for text, beside in (("a = 1\n", ""), ("a = 2\n", ""), ("a = 2\n", "b = 1\n")):
        kernel.write_text(text)
        if beside:
            (tmp_path / "beside.py").write_text(beside)
        sha256_of.cache_clear()
        digests.add(sha256_of(str(kernel)))
    assert len(digests) == 3
    sha256_of.cache_clear()


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    """Of a user's error."""
    with pytest.raises(InputError, match=r"gone\.py: .*No such file"):
        sha256_of(str(tmp_path / "gone.py"))


def test_what_the_kernels_share_is_in_their_digest(tmp_path: Path) -> None:
    """A change in any file of templates/cute makes all of their binaries others."""
    folder = path_of(TEMPLATE).parent
    for file in folder.glob("*.py"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    kernel = str(tmp_path / path_of(TEMPLATE).name)
    digests = {sha256_of(TEMPLATE), sha256_of(kernel)}
    assert len(digests) == 1
    shared = ("arguments.py", "finish.py", "epilogue_sm90.py")
    for name in shared:
        with open(tmp_path / name, "a") as file:
            file.write("# another\n")
        sha256_of.cache_clear()
        digests.add(sha256_of(kernel))
    sha256_of.cache_clear()
    assert len(digests) == 1 + len(shared)
