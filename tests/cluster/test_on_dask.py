"""Tuning on a real cluster of Dask's, with stand-ins for GPUs: `make test-cluster`; commands are docs/cluster.md's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_page import Lab, commands, free_port, said_by_the_way
from processes import assert_gone, relatives, until
from tiny_space import traced

from genkern.files.file_kind import read_results

pytestmark = pytest.mark.skipif(not os.environ.get("GENKERN_CLUSTER_TESTS"), reason="make test-cluster")
SCHEDULER, COMPILES, MEASURES, LAB, HERE = commands("A lab with Dask")


@contextlib.contextmanager
def started(lab: Lab, address: str, *workers: tuple[str, dict[str, str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """A scheduler at this address and workers, each a command of the page with changes to its environment."""
    with contextlib.ExitStack() as stack:
        scheduler = at(SCHEDULER, address)
        found = []
        for command, changes in ((f"{scheduler} --no-dashboard", {}), *workers):
            # Output that nobody reads would fill its pipe.
            process = lab.start(f"{at(command, address)} > {lab.at}/dask_{len(found)}.log 2>&1", **changes)
            found.append(process)
            stack.callback(process.wait, 60)
            stack.callback(process.send_signal, signal.SIGTERM)
        yield found[1:]


def at(command: str, address: str) -> str:
    """A command of the page with this address, and one unit at a time."""
    host, _, port = address.partition(":")
    return command.replace("HOST", host).replace("8786", port).replace("--nthreads 16", "--nthreads 1")


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port()}"


def a100(lab: Lab) -> dict[str, str]:
    """The environment of a worker on a machine with another GPU."""
    (folder := lab.at / "a100").mkdir()
    (folder / "nvidia-smi").write_text(
        "#!/bin/sh\necho '0, NVIDIA A100-SXM4-80GB, 8.0, GPU-0a, 570.86.15, 1410, 1593'\n"
    )
    (folder / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{folder}:{lab.environment['PATH']}"}


def test_the_page(address: str, tmp_path: Path) -> None:
    """A node compiles, another measures; then this machine measures. Each size is in the file once, and the same
    command has nothing left to do.
    """
    lab = Lab(tmp_path / "lab", 3, trace=str(tmp_path / "trace"))
    with started(lab, address, (COMPILES, {}), (MEASURES, {})):
        said = lab.run(at(LAB, address))
        assert "3 sizes in results/results_sm_90.yaml, of NVIDIA H200" in said
        rows = read_results(str(lab.at / "results" / "results_sm_90.yaml"))
        assert [row.problem.M for row in rows] == [16, 17, 18]
        assert (lab.at / "results" / "results_sm_90.yaml").read_text().count("# from GPU 0 of") == 3
        assert "3 of 3 sizes are in" in lab.run(at(LAB, address))
        said = lab.run(at(HERE, address), GENKERN_CACHE_DIR=str(lab.at / "cold"))
        assert "0 refused" in said
        assert "cluster: http" in said
    assert "--resources GPU=1" in MEASURES


def test_processes_of_this_machine_compile(tmp_path: Path) -> None:
    """As many as are named; they end with the command."""
    lab = Lab(tmp_path / "lab", 2)
    option = said_by_the_way("--cluster local:[^`]*")
    said = lab.run(f"genkern compile --arch sm_90 -i sizes.yaml -o work {option}")
    assert "cluster: http" in said
    assert "(0 refused) for 2 sizes" in said
    assert_gone(lab.at)


def test_nodes_of_two_architectures_of_which_one_dies(address: str, tmp_path: Path) -> None:
    """Each has a file of its own with all sizes. What the one that dies was doing another does, and the genkern that
    did it there ends. All candidates of a size are timed by one process on one GPU.
    """
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    lab = Lab(tmp_path / "lab", 6, trace=str(trace), gate=[1, str(gate)])
    workers = (COMPILES, {}), (MEASURES, {}), (MEASURES, {}), (MEASURES, a100(lab))
    with started(lab, address, *workers) as (_, one, _, _):
        with lab.start(f"{at(LAB, address)} --arch sm_90 sm_80") as process:
            # All three GPUs have a size in hand.
            until(lambda: sum(e["event"] == "gate" for e in traced(trace)) == 3, process)
            worker = _child(one.pid)
            assert any(f"lab_node {worker} " in line for line in relatives(lab.at))
            os.kill(one.pid, signal.SIGKILL)
            os.kill(worker, signal.SIGKILL)
            until(lambda: not any(f"lab_node {worker} " in line for line in relatives(lab.at)), process)
            gate.touch()
            said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
    assert "is lost: other nodes take its sizes" in said
    for arch in ("sm_90", "sm_80"):
        rows = read_results(str(lab.at / "results" / f"results_{arch}.yaml"))
        assert [row.problem.M for row in rows] == [*range(16, 22)]
        assert {row.arch for row in rows} == {arch}
    events = [event for event in traced(trace) if event["event"].startswith(("screen", "retime"))]
    timed = {(event["size"], event["pid"]) for event in events if event["event"] == "retime"}
    assert Counter(size for size, _ in timed) == Counter({f"{m}x64x64": 2 for m in range(16, 22)})
    for size, pid in timed:
        screened = [event["event"] for event in events if (event["size"], event["pid"]) == (size, pid)]
        assert len(screened) == 3


def _child(pid: int) -> int:
    """The worker of a nanny."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                f"PPid:\t{pid}\n" in (process / "status").read_text()
                and b"spawn_main" in (process / "cmdline").read_bytes()
            ):
                return int(process.name)
    raise AssertionError("the nanny has no worker")


def test_a_stop_by_a_terminal_says_one_line(tmp_path: Path) -> None:
    """It reaches every process of the run, also the nodes that were started for it, which end quietly."""
    lab = Lab(tmp_path / "lab", 1, gate=[1, str(tmp_path / "gate")], trace=str(tmp_path / "trace"))
    with lab.start("genkern -i sizes.yaml -o r.yaml --cluster local:2") as process:
        until(lambda: traced(tmp_path / "trace"), process)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    lines = [line for line in said.splitlines() if not line.startswith(("note: no key has the types", "cluster: http"))]
    assert lines == ["genkern: stopped; run the same command again to continue"]
    assert_gone(lab.at)


def test_what_cannot_be_done_is_refused(address: str, tmp_path: Path) -> None:
    """In one line: without a GPU of the architecture, and where every node refuses the options."""
    lab = Lab(tmp_path / "lab", 1)
    with started(lab, address, (MEASURES, a100(lab))):
        for options, said in (
            ("--arch sm_80 --kernels gone.kernels", "no worker with --resources GPU=1 has a sm_80 GPU"),
            ("--arch sm_80 --arch=sm_90 --ngpus 2", "--ngpus: genkern lab sets this option itself"),
        ):
            with lab.start(f"{at(LAB, address)} {options}") as process:
                out, _ = process.communicate(timeout=120)
            assert process.returncode == 2
            assert said in out.splitlines()[-1]
