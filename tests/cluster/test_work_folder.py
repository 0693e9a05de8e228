"""Tests of genkern.cluster.work_folder: a folder is as it was written, or refused."""

from __future__ import annotations

import json

import pytest
from command import run_here

from genkern.cluster.work_folder import WorkFolder, _seal
from genkern.errors import InputError


@pytest.mark.parametrize("name", ["sizes.yaml", "compiled.kernels", "space.yaml", "manifest.json"])
@pytest.mark.parametrize("how", ["a bit", "cut", "gone"])
def test_a_tampered_folder_is_refused(name: str, how: str, work: WorkFolder) -> None:
    """Whatever was changed in it, in one line that names the file or the folder."""
    path, data = work.path / name, bytearray((work.path / name).read_bytes())
    if how == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data[:-5] if how == "cut" else data)
    with pytest.raises(InputError, match=r"manifest\.json|has changed since it was compiled|incomplete") as caught:
        work.manifest()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schema": 2}, "of another version of genkern"),
        ({"arch": "sm_1"}, "damaged"),
        ({"files": {"../../etc/passwd": "0"}}, "damaged"),
        ({"files": 3}, "damaged"),
        ({"made_for": {"target": "x"}}, "damaged"),
        ({"more": 1}, "damaged"),
    ],
)
def test_a_manifest_that_says_what_it_cannot_is_refused(
    changed: dict[str, object], said: str, work: WorkFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where its seal is whole; no file outside the folder is ever opened for it."""
    manifest = json.loads(work.manifest_path.read_text())
    del manifest["seal"]
    manifest |= changed
    work.manifest_path.write_text(json.dumps({**manifest, "seal": _seal(manifest)}))
    assert said in run_here(capsys, "measure", work.path).refusal


def test_texts_that_are_no_manifest_are_refused(work: WorkFolder) -> None:
    for text in ("", "[]", "3", "{", '{"seal": 1}', "[" * 100_000):
        work.manifest_path.write_text(text)
        with pytest.raises(InputError, match="damaged"):
            work.manifest()


def test_each_shard_has_its_results(work: WorkFolder) -> None:
    names = [work.results_of(shard).name for shard in (None, "1/4", "12/12")]
    assert names == ["results.yaml", "results_1_of_4.yaml", "results_12_of_12.yaml"]
