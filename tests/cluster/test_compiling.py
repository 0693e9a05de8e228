"""`genkern compile` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here

from genkern.cluster.work_folder import WorkFolder
from genkern.compile.cache import BinaryCache, without_compile_time
from genkern.compile.kernels_file import KernelsFile


def test_a_folder_has_what_each_size_would_try_first(compiled: Path) -> None:
    """The kernels, the sizes with all that they mean, the space, and checksums of these."""
    folder = WorkFolder(compiled)
    manifest = folder.manifest()
    assert (manifest.arch, manifest.space, manifest.search) == ("gfx942", "space.yaml", "predicted:1")
    assert manifest.files.keys() == {"sizes.yaml", "compiled.kernels", "space.yaml"}
    assert folder.sizes.read_text().count("'op': 'a16w16'") == 3
    kernels, cache = KernelsFile(str(folder.kernels)), BinaryCache(compiled.parent / "cache" / "binaries")
    keys = [path.name for path in cache.folder.glob("??/*")]
    assert len(kernels) == len(keys) > 0
    assert all(kernels.files(key) == without_compile_time(cache.files(key)) for key in keys)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--search", "guided"), "--search guided: it needs measurements, and nothing is measured here"),
        (("--shard", "4/4"), "--shard 4/4: there are fewer sizes than shards"),
        (("--shard", "0/4"), "'0/4' is not a shard such as 1/4 or 4/4"),
        (("-o", "work"), "manifest.json exists; --overwrite replaces it"),
    ],
)
def test_what_cannot_be_done_is_refused(
    options: tuple[str, str],
    said: str,
    compiled: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one line, before anything is compiled."""
    monkeypatch.chdir(compiled.parent)
    given = "compile", "--arch", "gfx942", "-i", "sizes.yaml", "-o", "other", *options
    assert said in run_here(capsys, *given).refusal
    assert not Path("other").exists()
