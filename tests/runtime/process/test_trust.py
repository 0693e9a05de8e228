"""Which bundles are used: of a folder that is looked into unasked those that nobody else can have written."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from library_rows import library_bundle, library_rows, sizes_in

from genkern.errors import ResultsError
from genkern.runtime.process.bundle_sources import Sources
from genkern.runtime.process.online import Online
from genkern.runtime.process.trust import read_trusted_bundle


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One with a bundle of an earlier process, as that left it."""
    made = tmp_path / "recorded"
    made.mkdir(mode=0o755)
    bundle = made / "online_other_1.genkern"
    library_bundle(library_rows(tmp_path / "r.yaml", [16]), bundle)
    bundle.chmod(0o644)
    return made


@pytest.fixture
def bundle(folder: Path) -> Path:
    return next(folder.iterdir())


def of_another_user(path: Path, patch: pytest.MonkeyPatch) -> None:
    """As far as this process can tell."""
    if os.geteuid():
        patch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    else:
        os.chown(path, 12345, 12345)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write(folder: Path, bundle: Path, mode: int) -> None:
    """It is left alone with a word, unless it is named; the process's own files are not such."""
    said: list[str] = []
    online = Online(folder, said.append, environ={})
    assert sizes_in(online.bundles()) == [16]
    bundle.chmod(mode)
    os.utime(bundle, (1, 1))
    assert online.bundles() == []
    assert "can be written by others (chmod go-w): it is not used unless GENKERN_CONFIG names the bundle" in said[0]
    assert len(sizes_in(Sources(pytest.fail).bundles([str(bundle)]))) == 1


def test_a_folder_that_others_can_write(folder: Path, bundle: Path) -> None:
    """They could put another file in its place; not so in one like /tmp."""
    folder.chmod(0o777)
    with pytest.raises(ResultsError, match=r"recorded .*others"):
        read_trusted_bundle(str(bundle))
    folder.chmod(0o1777)
    read_trusted_bundle(str(bundle))


def test_what_belongs_to_another_user(folder: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its permissions say."""
    of_another_user(bundle, monkeypatch)
    with pytest.raises(ResultsError, match="belongs to another user"):
        read_trusted_bundle(str(bundle))
    said: list[str] = []
    assert Online(folder, said.append, environ={}).bundles() == []
    assert len(said) == 1


def test_what_is_no_bundle_is_not_packed_on_its_own(folder: Path) -> None:
    """A list of results under a bundle's name would have a compiler started for it."""
    said: list[str] = []
    library_rows(folder / "online_x.yaml", [16]).rename(folder / "online_x.genkern")
    assert sizes_in(Online(folder, said.append, environ={}).bundles()) == [16]
    assert "is no bundle" in said[0]


def test_pinned_bundles(folder: Path, bundle: Path, tmp_path: Path) -> None:
    """Where one is pinned no other is used, named or not, nor results, which any file may be made of."""
    pin = hashlib.sha256(bundle.read_bytes()).hexdigest()
    said: list[str] = []
    paths = [str(bundle), str(tmp_path / "r.yaml")]
    assert sizes_in(Sources(said.append, pins=(pin,)).bundles(paths)) == [16]
    assert [line.partition("r.yaml is no bundle")[1] != "" for line in said] == [True]
    said.clear()
    assert Sources(said.append, pins=("0" * 64,)).bundles(paths[:1]) == []
    assert f"has sha256 {pin}, which GENKERN_BUNDLE_SHA256 does not list" in said[0]
    assert Online(folder, said.append, environ={}, pins=("0" * 64,)).bundles() == []
    assert sizes_in(Online(folder, said.append, environ={}, pins=(pin,)).bundles()) == [16]


def test_what_is_judged_is_what_is_read(folder: Path, bundle: Path, tmp_path: Path) -> None:
    """A link does not hide whose file it is, and a pipe is not waited for."""
    linked = folder / "online_linked.genkern"
    linked.symlink_to(other := tmp_path / "other.genkern")
    other.write_bytes(bundle.read_bytes())
    other.chmod(0o644)
    assert read_trusted_bundle(str(linked)) == bundle.read_bytes()
    other.chmod(0o666)
    with pytest.raises(ResultsError, match="can be written by others"):
        read_trusted_bundle(str(linked))
    os.mkfifo(pipe := folder / "online_pipe.genkern", 0o600)
    with pytest.raises(ResultsError, match="is not a file"):
        read_trusted_bundle(str(pipe))
    with pytest.raises(ResultsError, match="cannot be read"):
        read_trusted_bundle(str(folder / "online_none.genkern"))
