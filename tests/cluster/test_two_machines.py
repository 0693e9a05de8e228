"""A laptop that compiles and a node that measures, by the commands of docs/cluster.md, with a stand-in for its GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cluster_page import Lab, commands, page, said_by_the_way

from genkern.files.file_kind import read_results

COMPILE, SEND, MEASURE, FETCH, COLLECT = commands("A laptop and one GPU node")


@pytest.mark.skipif(not os.environ.get("GENKERN_CLUSTER_TESTS"), reason="make test-cluster")
def test_the_page(tmp_path: Path) -> None:
    """What the laptop has compiled the node measures without a compile. The winners are those of a run that compiles;
    each row says where it comes from. A folder that is damaged on its way is refused.
    """
    lab = Lab(tmp_path / "lab", 3)
    node = lab.at / "gpu-node"
    assert "for 3 sizes" in lab.run(COMPILE)
    lab.run(SEND)
    assert not (node / "cache").exists()
    said = lab.run(MEASURE)
    assert "binaries: 0 compiled, " in said
    assert "0 refused" in said
    lab.run(FETCH)
    assert "3 rows of 1 files are in tuned.yaml" in lab.run(COLLECT)
    there = lab.at / "tuned.yaml"
    assert there.read_text().count("# from 'results.yaml' on ") == 3
    lab.run("genkern -i sizes.yaml -o own.yaml --arch sm_90", GENKERN_CACHE_DIR=str(lab.at / "cold"))
    rows, own = (read_results(str(path)) for path in (there, lab.at / "own.yaml"))
    assert [row.problem.M for row in rows] == [16, 17, 18]
    assert [(row.problem, row.config) for row in rows] == [(row.problem, row.config) for row in own]
    kernels = node / "work" / "compiled.kernels"
    data = bytearray(kernels.read_bytes())
    data[len(data) // 2] ^= 1
    kernels.write_bytes(data)
    with lab.start(MEASURE) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said.splitlines()[-1].startswith("genkern: work/compiled.kernels has changed since it was compiled")
    trim = said_by_the_way("genkern cache [^`]*")
    assert trim == "genkern cache --trim 20G"
    lab.run(trim)


def test_every_command_of_the_page_is_run() -> None:
    """By this file, test_on_dask.py, test_on_slurm.py and test_group_cache.py, which take all commands of a part."""
    others = ("test_on_dask.py", "test_on_slurm.py", "test_group_cache.py")
    tests = "".join(path.read_text() for path in (Path(__file__), *map(Path(__file__).with_name, others)))
    with_commands = [heading for heading, found in page().items() if found]
    assert len(with_commands) >= 3
    for heading in with_commands:
        assert f'= commands("{heading}")' in tests
