"""Tests of genkern.compile.compiler: real compiles for every kind of target, and compilers that hang or die."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cached_specs import read_spec
from command import environment
from compiled import compile_all
from long_tests import covering
from small_gemms import (
    AMD,
    AMD_SPLIT,
    GEMV,
    SPLIT,
    TILED,
    TILED_TMA_SPLIT,
    TMA,
    TMA_SPECIALIZED,
    WARP_SPECIALIZED,
    WARP_SPECIALIZED_SPLIT,
    WARP_SPECIALIZED_SWAPPED,
    WARP_SPECIALIZED_SWAPPED_SPLIT,
    job_for,
    make_module,
    specs_of,
    write_module,
)
from trouble_kernels import trouble_spec

import genkern.compile.compiler
from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compiler import CompileProcess
from genkern.errors import GenkernError, MachineError, OutputError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Outcome
from genkern.kernels.catalogue import traits_of
from genkern.kernels.generate import generate
from genkern.kernels.source import load_module
from genkern.kernels.specs import binary_name
from genkern.profiling.supervisor import group_members

BIASED = GemmProblem(100, 64, 4097, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16", bias=True)
INT8 = GemmProblem(128, 64, 4096, "a8w8", "int8", "int8", "bf16", row_major_a=False, row_major_b=True)
# Each kernel text with masks and without, with split-K and TMA, of both ops; one kernel on the other targets.
CASES = [
    ("gfx942", BIASED, AMD_SPLIT),
    ("gfx942", GemmProblem(17, 64, 4096, "a8w8", "fp8e4m3fnuz", "fp8e4m3fnuz", "bf16"), AMD),
    ("gfx90a", GemmProblem(64, 64, 256), AMD),
    ("gfx950", GemmProblem(64, 33, 256, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16"), AMD),
    ("sm_90", BIASED, SPLIT),
    ("sm_90", GemmProblem(64, 64, 256, "a8w8", "fp8e4m3fn", "fp8e5m2", "fp16", bias=True), TMA),
    ("sm_90", GemmProblem(104, 48, 256, bias=True), TILED_TMA_SPLIT),
    ("sm_90", GemmProblem(104, 352, 256, bias=True), WARP_SPECIALIZED),
    ("sm_90", GemmProblem(104, 352, 256, activation="gelu"), WARP_SPECIALIZED),
    ("sm_90", GemmProblem(104, 352, 256, bias=True, activation="silu"), WARP_SPECIALIZED),
    ("sm_90", GemmProblem(104, 48, 256, activation="relu"), TILED_TMA_SPLIT),
    ("sm_90", GemmProblem(1, 33, 97, activation="gelu"), GEMV),
    ("gfx942", GemmProblem(100, 64, 4097, activation="gelu"), AMD_SPLIT),
    ("gfx90a", GemmProblem(100, 64, 4097, activation="silu"), AMD),
    ("sm_100", GemmProblem(64, 64, 256, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16", activation="silu"), TMA),
    ("sm_90", GemmProblem(2**27, 64, 256, row_major_a=False, row_major_b=True), SPLIT),
    ("sm_90", GemmProblem(104, 352, 256, bias=True), WARP_SPECIALIZED_SPLIT),
    ("sm_90", GemmProblem(104, 352, 256, bias=True, activation="gelu"), WARP_SPECIALIZED_SWAPPED),
    ("sm_90", GemmProblem(104, 352, 256, dtype_c="fp32", bias=True), WARP_SPECIALIZED_SWAPPED_SPLIT),
    ("sm_90", GemmProblem(1, 33, 97), GEMV),
    ("gfx942", GemmProblem(1, 32, 4096), GEMV),
    ("gfx90a", GemmProblem(1, 32, 4096), GEMV),
    ("gfx950", GemmProblem(1, 32, 4096), GEMV),
    ("sm_80", GemmProblem(1, 32, 4096), GEMV),
    ("sm_100", GemmProblem(1, 32, 4096), GEMV),
    ("sm_100", GemmProblem(104, 48, 256, bias=True), TILED_TMA_SPLIT),
    ("sm_120", GemmProblem(104, 48, 256), TILED_TMA_SPLIT),
    ("sm_100", GemmProblem(104, 48, 256, bias=True, activation="gelu"), TMA_SPECIALIZED),
    ("sm_80", INT8, SPLIT),
    ("sm_100", GemmProblem(64, 64, 256), TMA),
]


@pytest.fixture
def own_process() -> Iterator[CompileProcess]:
    """A compile process to break."""
    own = CompileProcess()
    yield own
    if own.alive:
        own.kill()


def _traits(case: tuple[str, GemmProblem, Config]) -> list[Hashable]:
    """What a case is there for: its target, its kernels and what is split, and what differs in the kernel's end."""
    arch, problem, config = case
    vendor, family = arch[:2], (traits_of(config).stem, config.SPLIT_K > 1)
    ends = problem.activation, problem.dtype_c, problem.bias
    return [arch, (vendor, family), (vendor, problem.op), *ends, (problem.row_major_a, problem.M >= 2**27)]


@pytest.mark.parametrize(
    ("arch", "problem", "config"),
    covering(CASES, _traits, lambda case: 1.0),
    ids=lambda value: getattr(value, "name", value),
)
def test_compiles_for_every_target(
    process: CompileProcess, cache_dir: Path, tmp_path: Path, arch: str, problem: GemmProblem, config: Config
) -> None:
    """A binary of the target's kind is made; its symbol is the name that repr gave, and stands in the binary."""
    module, loaded = make_module(tmp_path, problem, [config], arch)
    path = tmp_path / module.file_name
    for spec in specs_of(module, config):
        result = process.run(job_for(spec, path, arch, cache_dir))
        assert isinstance(result, Binary), result
        tail = binary_name(config) if (multiplies := spec.function.startswith("matmul")) else "B512"
        assert result.symbol == f"{spec.function}_{tail}"
        extension = "hsaco" if arch.startswith("gfx") else "cubin"
        binary = (Path(result.path) / f"kernel.{extension}").read_bytes()
        assert binary.startswith(b"\x7fELF")
        assert result.symbol.encode() + b"\0" in binary
        assert result.resources.registers in range(1, 513)
        assert result.resources.loop_matrix or config.family != "tiled" or not multiplies
        assert read_spec(result.path) == spec
        assert getattr(loaded, spec.function).arg_names == [name for name, _ in (*spec.signature, *spec.constants)]


def test_triton_is_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process reads 460 MB of Triton's library, for names of folders that are gone with the kernel."""
    monkeypatch.setattr("triton.runtime.cache.triton_key", None)
    assert compile_all(tmp_path, GemmProblem(64, 64, 256), [TILED], "sm_90")


@pytest.mark.parametrize(("arch", "config"), [("gfx942", AMD), ("sm_90", TILED)])
def test_place_of_the_text_does_not_matter(
    process: CompileProcess, tmp_path: Path, hostile_path: Path, arch: str, config: Config
) -> None:
    """The same kernel at another line of another file in another folder is the same work: same key, same binary.

    Triton's own cache key holds the line number and the path of the bitcode libraries.
    """
    module = generate(GemmProblem(64, 64, 256), [config], arch)
    moved = generate(GemmProblem(6400, 640, 2560), [config], arch)
    here, there = write_module(tmp_path, module), hostile_path / "moved.py"
    there.write_text(moved.text.replace("import argparse\n", "import argparse\n" + "# moved\n" * 40), encoding="utf-8")
    (spec,), (moved_spec,) = specs_of(module, config), specs_of(moved, config)
    one, two = tmp_path / "one", tmp_path / "two"
    jobs = [
        job_for(spec, here, arch, one),
        job_for(moved_spec, there, arch, one),
        job_for(moved_spec, there, arch, two),
    ]
    assert len({job.key for job in jobs}) == 1

    first, again, elsewhere = (process.run(job) for job in jobs)

    assert isinstance(first, Binary)
    assert again == first
    assert isinstance(elsewhere, Binary)
    extension = "hsaco" if arch.startswith("gfx") else "cubin"
    binaries = {(Path(made.path) / f"kernel.{extension}").read_bytes() for made in (first, elsewhere)}
    assert len(binaries) == 1
    assert elsewhere.resources == first.resources


def test_a_known_kernel_is_not_compiled(process: CompileProcess, tmp_path: Path) -> None:
    """What the cache has needs no compiler and no module: the file may be gone."""
    module, _ = make_module(tmp_path, GemmProblem(64, 64, 256), [TILED], "sm_80")
    (spec,) = specs_of(module, TILED)
    job = job_for(spec, tmp_path / module.file_name, "sm_80", tmp_path / "cache")
    first = process.run(job)
    assert isinstance(first, Binary)
    gone = job_for(spec, tmp_path / "gone.py", "sm_80", tmp_path / "cache")
    assert process.run(gone) == first


@pytest.mark.parametrize("how", ["cut", "flip"])
def test_a_damaged_entry_is_compiled_again(process: CompileProcess, tmp_path: Path, how: str) -> None:
    """A binary that was cut short or changed in the cache is made anew, with the same bytes, in whatever time."""
    module, _ = make_module(tmp_path, GemmProblem(64, 64, 256), [AMD], "gfx90a")
    (spec,) = specs_of(module, AMD)
    job = job_for(spec, tmp_path / module.file_name, "gfx90a", tmp_path / "cache")
    first = process.run(job)
    assert isinstance(first, Binary)
    path = Path(first.path) / "kernel.hsaco"
    whole = path.read_bytes()
    path.write_bytes(whole[:100] if how == "cut" else whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert BinaryCache(tmp_path / "cache").get(job.key) is None
    assert replace(process.run(job), compile_s=first.compile_s) == first
    assert path.read_bytes() == whole


def test_a_refusal_is_kept(process: CompileProcess, trouble: Path, tmp_path: Path) -> None:
    """What the compiler refuses is one line, goes into the cache, and leaves the process in use."""
    job = job_for(trouble_spec("refuse"), trouble, "sm_90", tmp_path)
    failure = process.run(job)
    assert isinstance(failure, Failure)
    assert failure.outcome is Outcome.COMPILE_FAILED
    assert "no such kernel, said twice" in failure.message
    assert BinaryCache(tmp_path).get(job.key) == failure
    assert isinstance(process.run(job_for(trouble_spec("plain"), trouble, "sm_90", tmp_path)), Binary)


@pytest.mark.parametrize(
    ("name", "outcome", "message"),
    [
        ("hang", Outcome.COMPILE_TIMED_OUT, "no result after 1 s"),
        ("die", Outcome.COMPILE_FAILED, "the compiler died by SIGSEGV"),
        ("killed", Outcome.COMPILE_FAILED, "the compiler died by SIGKILL"),
        ("leave", Outcome.COMPILE_FAILED, "the compiler exited with status 3"),
    ],
)
def test_a_broken_compile_is_a_failure(
    own_process: CompileProcess, trouble: Path, tmp_path: Path, name: str, outcome: Outcome, message: str
) -> None:
    """A compiler that hangs or dies is a Failure that says how; it ends the process, and neither stays: not the
    failure in the cache, not the compiler's temporary files.

    (A time-out may be the machine's fault, so the next run tries again. SIGKILL came from outside, and that is said.)
    """
    job = job_for(trouble_spec(name), trouble, "sm_90", tmp_path, timeout_s=1.0 if name == "hang" else 60.0)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    started = time.monotonic()
    failure = own_process.run(replace(job, temporary_dir=str(temporary)))
    assert failure == Failure(job.key, outcome, message, from_outside=name == "killed")
    assert time.monotonic() - started < 30
    assert list(temporary.iterdir()) == []
    assert not own_process.alive
    assert BinaryCache(tmp_path).get(job.key) is None


def test_run_job_replaces_a_broken_process(monkeypatch: pytest.MonkeyPatch, trouble: Path, tmp_path: Path) -> None:
    """After a hang and a death the worker goes on with a new compile process."""
    monkeypatch.setattr(genkern.compile.compiler, "_process", None)
    try:
        results = []
        for name in ("hang", "plain_0", "die", "plain_1"):
            job = job_for(trouble_spec(name), trouble, "gfx942", tmp_path, timeout_s=1.0 if name == "hang" else 60.0)
            started_s = time.monotonic()
            results.append(genkern.compile.compiler.run_job(job, os.getpid()))
            print(f"{name}: {time.monotonic() - started_s:.2f} s")
        assert [type(result) for result in results] == [Failure, Binary, Failure, Binary]
    finally:
        if genkern.compile.compiler._process is not None:
            genkern.compile.compiler._process.kill()


def test_a_compile_process_outlives_the_thread_that_wanted_it(
    monkeypatch: pytest.MonkeyPatch, trouble: Path, tmp_path: Path
) -> None:
    """With --jobs 1 the threads of the devices share one; the kernel would end it with the thread that forked it."""
    monkeypatch.setattr(genkern.compile.compiler, "_process", None)
    results: list[object] = []
    pids: list[int | None] = []

    def compile_one(name: str) -> None:
        results.append(
            genkern.compile.compiler.run_job(job_for(trouble_spec(name), trouble, "gfx942", tmp_path), os.getpid())
        )
        process = genkern.compile.compiler._process
        pids.append(process and process._process.pid)

    try:
        for name in ("plain_0", "plain_1", "plain_2"):
            thread = threading.Thread(target=compile_one, args=(name,))
            thread.start()
            thread.join()
        assert [type(result) for result in results] == [Binary] * 3
        assert len(set(pids)) == 1
    finally:
        genkern.compile.compiler.end_own_process()
    assert genkern.compile.compiler._process is None
    assert not Path(f"/proc/{pids[0]}").exists()


def test_ctrl_c_does_not_wait_for_a_compiler(trouble: Path, tmp_path: Path) -> None:
    """With --jobs 1 the compile process is the driver's own child: one that hangs in native code ends with it."""
    hanging = tmp_path / "native.py"
    # Locked twice by one thread; unlike a sleep it is not cut short by a signal that Python handles.
    lock = "import ctypes; m = ctypes.create_string_buffer(64); [ctypes.CDLL(None).pthread_mutex_lock(m) for _ in 'ab']"
    hanging.write_text(trouble.read_text().replace("time.sleep(3600)", lock))
    program = (
        "import os, sys; from genkern.compile.compiler import run_job; from genkern.__main__ import _prepare_process\n"
        "sys.path.insert(0, sys.argv[2]); from small_gemms import job_for; from trouble_kernels import trouble_spec\n"
        "from pathlib import Path; path = Path(sys.argv[1]); _prepare_process()\n"
        "run_job(job_for(trouble_spec('hang'), path, 'gfx942', path.parent / 'cache'), os.getpid())\n"
    )
    argv = [sys.executable, "-c", program, str(hanging), str(Path(__file__).parents[1])]
    driver = subprocess.Popen(argv, env=environment(), stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("native.py.hangs.*")):
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(20) != 0
    finally:
        driver.kill()
    (mark,) = tmp_path.glob("native.py.hangs.*")
    assert not Path(f"/proc/{mark.suffix[1:]}").exists()


def test_a_full_disk_is_no_property_of_the_kernel(process: CompileProcess, trouble: Path, tmp_path: Path) -> None:
    """No space for the compiler's temporary files is an OutputError for the user, not a failed config."""
    job = job_for(trouble_spec("full"), trouble, "sm_90", tmp_path)
    with pytest.raises(OutputError, match="No space left on device"):
        process.run(job)
    assert BinaryCache(tmp_path).get(job.key) is None
    assert process.alive


def assembler(folder: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> Path:
    """Have this shell text run in the place of ptxas; $PTXAS is the real one, and the folder returned is its own."""
    from triton import knobs

    program, ptxas = folder / "ptxas", knobs.nvidia.ptxas.path
    program.write_text(
        f'#!/bin/sh\nPTXAS={ptxas}\n[ "$1" = --version ] && exec $PTXAS --version\ncd {folder} || exit 9\n{does}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(program))
    return folder


# The known kernel is the first that is assembled.
_SECOND = 'echo >> count; [ $(wc -l < count) = 2 ] || exec $PTXAS "$@"\n'
_NOT_OF_THE_KERNEL = {
    "killed": "kill -KILL $$",
    "no memory": "echo 'ptxas fatal   : Memory allocation failure' >&2; exit 1",
    "no file": "echo \"ptxas fatal   : Output file 'x.o' could not be opened\" >&2; exit 1",
    "silent": "exit 1",
}


@pytest.mark.parametrize("how", _NOT_OF_THE_KERNEL)
def test_an_assembler_that_fails_once_is_no_property_of_the_kernel(
    how: str, trouble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs the config this once, and nothing is kept; the known kernel shows that the compiler works."""
    counted = assembler(tmp_path, monkeypatch, _SECOND + _NOT_OF_THE_KERNEL[how])
    process = CompileProcess()
    job = job_for(trouble_spec("plain"), trouble, "sm_80", tmp_path / "cache")
    try:
        failure = process.run(job)
        assert isinstance(failure, Failure)
        assert failure.from_outside
        assert BinaryCache(tmp_path / "cache").get(job.key) is None
        assert len((counted / "count").read_text()) == 3
        assert isinstance(process.run(job), Binary)
    finally:
        process.kill()


@pytest.mark.parametrize("how", _NOT_OF_THE_KERNEL)
def test_an_assembler_that_always_fails_is_the_machine(
    how: str, trouble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kernel is blamed where the known one does not compile either."""
    assembler(tmp_path, monkeypatch, _NOT_OF_THE_KERNEL[how])
    process = CompileProcess()
    job = job_for(trouble_spec("plain"), trouble, "sm_80", tmp_path / "cache")
    try:
        with pytest.raises(MachineError, match="known kernel"):
            process.run(job)
    finally:
        process.kill()
    assert BinaryCache(tmp_path / "cache").get(job.key) is None


def test_errors_of_the_assembler_are_of_the_kernel(
    trouble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of ptxas about the text is a refusal, and kept."""
    said = "ptxas x.ptx, line 4; error   : Not a name of any known instruction: 'foo'"
    assembler(tmp_path, monkeypatch, _SECOND + f'echo "{said}" >&2; exit 255')
    process = CompileProcess()
    job = job_for(trouble_spec("plain"), trouble, "sm_80", tmp_path / "cache")
    try:
        failure = process.run(job)
    finally:
        process.kill()
    assert isinstance(failure, Failure)
    assert BinaryCache(tmp_path / "cache").get(job.key) == failure


def test_a_binary_cut_short_is_not_stored(trouble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas ends with 0 on a full disk, and leaves as much of its output as there was room for."""
    cut = 'for out; do :; done; $PTXAS "$@"; truncate -s -64 "$out"'
    assembler(tmp_path, monkeypatch, f'echo >> count; [ $(wc -l < count) = 2 ] || exec $PTXAS "$@"\n{cut}')
    process = CompileProcess()
    job = job_for(trouble_spec("plain"), trouble, "sm_80", tmp_path / "cache")
    try:
        with pytest.raises(MachineError, match="cut short"):
            process.run(job)
    finally:
        process.kill()
    assert BinaryCache(tmp_path / "cache").get(job.key) is None


@pytest.mark.parametrize("room", ["nr_inodes=3", "nr_inodes=5", "nr_inodes=8", "size=8k", "size=24k", "size=60k"])
def test_a_file_system_without_room(room: str, trouble: Path, tmp_path: Path, small_files: Callable[..., Path]) -> None:
    """Where TMPDIR has too few inodes or blocks a compile ends in an error of the machine; if there is just enough, in
    a binary. No kernel is blamed.
    """
    process = CompileProcess()
    job = job_for(trouble_spec("plain"), trouble, "sm_90", tmp_path / "cache")
    try:
        with contextlib.suppress(OutputError, MachineError):
            assert isinstance(process.run(replace(job, temporary_dir=str(small_files(room)))), Binary)
            assert room in ("nr_inodes=8", "size=24k", "size=60k")
        assert isinstance(process.run(job), Binary)
    finally:
        process.kill()


def test_triton_writes_nowhere_else(trouble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither Triton's cache nor the folder for temporary files keeps anything of a compile."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    process = CompileProcess()
    try:
        assert isinstance(process.run(job_for(trouble_spec("plain"), trouble, "sm_90", tmp_path / "cache")), Binary)
    finally:
        process.kill()
    assert not (tmp_path / "triton").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_kill_takes_the_assembler_along(trouble: Path, tmp_path: Path) -> None:
    """Children of a compile, such as ptxas, end with it."""
    path = tmp_path / "child.py"
    path.write_text(trouble.read_text().replace("time.sleep(3600)", "__import__('subprocess').run(['sleep', '3600'])"))
    process = CompileProcess()
    group = process._process.pid
    assert group is not None
    job = job_for(trouble_spec("hang"), path, "sm_90", tmp_path, timeout_s=1.0)
    assert isinstance(process.run(job), Failure)
    deadline = time.monotonic() + 10
    while group_members(group):
        assert time.monotonic() < deadline, "a process of the compile is still there"
        time.sleep(0.02)


def test_a_missing_module_is_not_remembered(process: CompileProcess, tmp_path: Path) -> None:
    """A module that cannot be read is not the kernel's fault: OutputError or GenkernError, and no entry."""
    job = job_for(trouble_spec("plain"), tmp_path / "gone.py", "sm_90", tmp_path / "cache")
    with pytest.raises(OutputError, match=os.strerror(errno.ENOENT)):
        process.run(job)
    assert BinaryCache(tmp_path / "cache").get(job.key) is None


def test_load_module_refuses_other_files(tmp_path: Path) -> None:
    """Only a Python file is a module."""
    (tmp_path / "module.txt").write_text("x = 1")
    with pytest.raises(GenkernError, match="is not a Python module"):
        load_module(str(tmp_path / "module.txt"))
