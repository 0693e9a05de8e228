"""Tests of genkern.compile.remote.node: what a node makes of a unit, without a scheduler."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from small_gemms import TRITON_VERSION, target_of
from trouble_kernels import trouble_spec, write_trouble

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.kernels_file import MadeFor
from genkern.compile.remote import node
from genkern.compile.remote.unit import (
    AlreadyInSharedCache,
    CompileUnit,
    IncompatibleNode,
    NotBegun,
    Result,
    SharedCache,
    read_answer,
    task_of,
)
from genkern.gemm.gpus import DetectedDevice
from genkern.gemm.records import Binary, Outcome

TARGET = target_of("gfx942")
HERE = MadeFor.here(TARGET, TRITON_VERSION)


@pytest.fixture
def own_cache(hostile_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BinaryCache]:
    """The cache of the node."""
    monkeypatch.setenv("GENKERN_CACHE_DIR", str(hostile_path / "node"))
    yield BinaryCache(hostile_path / "node" / "binaries")
    if node._own.process is not None:
        node._own.process.kill()
        node._own.process = None


def made(*units: CompileUnit) -> list[Result]:
    """What a node answers to a task of these."""
    return read_answer(node.compile_units(task_of(units)))


def unit_of(name: str, folder: Path, timeout_s: float = 60.0) -> CompileUnit:
    """A kernel that makes trouble, or none."""
    spec = trouble_spec(name)
    module = write_trouble(folder).read_text()
    return CompileUnit(spec.key(TARGET, TRITON_VERSION), module, spec, TARGET, timeout_s, HERE)


def test_an_entry_comes_back_and_stays_in_the_nodes_cache(own_cache: BinaryCache, tmp_path: Path) -> None:
    """So that a unit which a scheduler repeats is not compiled again; another cache takes it over whole."""
    unit = unit_of("plain", tmp_path)
    (files,) = made(unit)
    assert isinstance(files, dict)
    assert files == own_cache.files(unit.key)
    taken = BinaryCache(tmp_path / "driver").take_over(unit.key, files)
    assert isinstance(taken, Binary)
    assert Path(taken.path).parents[1] == tmp_path / "driver"
    assert made(replace(unit, module="no module")) == [files]
    files["kernel.hsaco"] = files["kernel.hsaco"][:-1]
    assert BinaryCache(tmp_path / "other").take_over(unit.key, files) is None


def test_a_task_that_takes_long_gives_back_the_rest(
    own_cache: BinaryCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is begun is made, also where it took too long by itself."""
    units = [unit_of(name, tmp_path) for name in ("plain", "plain_1", "plain_2")]
    monkeypatch.setattr(node, "_TASK_S", 0.0)
    assert [type(result) for result in made(*units)] == [dict, NotBegun, NotBegun]
    monkeypatch.undo()
    monkeypatch.setenv("GENKERN_CACHE_DIR", str(own_cache.folder.parent))
    assert [type(result) for result in made(*units)] == [dict, dict, dict]


def test_an_entry_lands_in_a_folder_that_both_see(own_cache: BinaryCache, tmp_path: Path) -> None:
    """Only its name comes back, unless the bytes are asked for; a folder of the same name is not the same folder."""
    seen = BinaryCache(tmp_path / "shared")
    shared = SharedCache(str(seen.folder), str(seen.unborn("probe").relative_to(seen.folder)))
    unit = replace(unit_of("plain", tmp_path), shared=shared)
    assert made(unit) == [AlreadyInSharedCache(unit.key)]
    assert isinstance(seen.get(unit.key), Binary)
    assert own_cache.get(unit.key) is None
    files = seen.files(unit.key)
    assert made(replace(unit, shared=replace(shared, whole=True))) == [files]
    other = replace(unit_of("plain_1", tmp_path), shared=replace(shared, probe="no probe"))
    assert isinstance(made(other)[0], dict)
    assert isinstance(own_cache.get(other.key), Binary)


def test_a_node_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The architectures of its GPUs, each as often as there are such."""
    gpu = DetectedDevice(0, "NVIDIA H200", "sm_90", 132)
    monkeypatch.setattr(node, "detect_devices", lambda: [gpu, replace(gpu, index=1)])
    assert json.loads(node.greet(json.dumps(asdict(HERE))))["archs"] == ["sm_90", "sm_90"]


def test_each_thread_of_a_daemon_has_a_compile_process(
    own_cache: BinaryCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hangs or dies there costs itself alone. Dask's workers are daemons, which may have no children otherwise."""
    monkeypatch.setitem(node.multiprocessing.process.current_process()._config, "daemon", True)
    answers = {}

    def ask(name: str) -> None:
        unit = unit_of(name, tmp_path / name, timeout_s=1.0 if name == "hang" else 60.0)
        (answers[name],) = made(unit)
        if node._own.process is not None:
            node._own.process.kill()

    for name in ("hang", "die", "plain_1"):
        (tmp_path / name).mkdir()
    threads = [threading.Thread(target=ask, args=(name,)) for name in ("hang", "die", "plain_1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    hang, die = answers["hang"], answers["die"]
    assert isinstance(hang, Failure)
    assert isinstance(die, Failure)
    assert (hang.outcome, die.outcome) == (Outcome.COMPILE_TIMED_OUT, Outcome.COMPILE_FAILED)
    assert isinstance(answers["plain_1"], dict)
    assert node.multiprocessing.process.current_process()._config["daemon"] is True


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"triton": "3.6.1"}, f"it has Triton {TRITON_VERSION}, this run 3.6.1"),
        ({"lowering": "0"}, "it has another version of genkern"),
        ({"environment": "TRITON_X=1"}, "it has other settings of Triton"),
        ({"target": "cuda 90", "cute": "0"}, ""),
    ],
)
def test_a_foreign_node_says_why(change: dict[str, str], said: str, own_cache: BinaryCache, tmp_path: Path) -> None:
    """Before anything is compiled."""
    wanted = replace(HERE, **change)
    assert json.loads(node.greet(json.dumps(asdict(wanted))))["why"] == said
    if said:
        (answer,) = made(replace(unit_of("plain", tmp_path), made_for=wanted))
        assert isinstance(answer, IncompatibleNode)
        assert answer.why == said
        assert not list(own_cache.folder.glob("??"))
