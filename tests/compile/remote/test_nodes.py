"""Tests of genkern.compile.remote.nodes with schedulers that want certificates, or are not there: `make
test-cluster`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_page import Lab, free_port
from command import run_here

from genkern.compile.remote.address import Address
from genkern.compile.remote.nodes import Nodes
from genkern.compile.remote.unit import PROTOCOL
from genkern.errors import InputError

pytestmark = pytest.mark.skipif(not os.environ.get("GENKERN_CLUSTER_TESTS"), reason="make test-cluster")


def certificates(at: Path) -> dict[str, str]:
    """Dask's configuration, as variables of the environment, with a certificate that is its own authority."""
    key, cert = str(at / "key.pem"), str(at / "cert.pem")
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=lab"]
    subprocess.run([*request, "-keyout", key, "-out", cert], check=True, capture_output=True)
    said = {"ca-file": cert, **{role: {"key": key, "cert": cert} for role in ("client", "scheduler", "worker")}}
    return {"DASK_DISTRIBUTED__COMM__TLS": json.dumps(said), "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make certificates with")
def test_certificates_of_dasks_configuration_are_used(tmp_path: Path) -> None:
    """Who has none is not let in, and told in one line."""
    lab, port = Lab(tmp_path / "lab", 1), free_port()
    (tmp_path / "tls").mkdir()
    tls = certificates(tmp_path / "tls")
    scheduler = lab.start(
        f"dask scheduler --host 127.0.0.1 --port {port} --protocol tls --no-dashboard 2> {lab.at}/s", **tls
    )
    node = lab.start(f"dask worker tls://127.0.0.1:{port} --nthreads 1 --no-dashboard 2> {lab.at}/w", **tls)
    try:
        command = f"genkern -i sizes.yaml -o r.yaml --cluster tls://127.0.0.1:{port}"
        said = lab.run(command, **tls)
        assert "binaries: 2 compiled" in said
        with lab.start(f"{command} --all") as process:
            out, _ = process.communicate(timeout=180)
        assert process.returncode == 2
        assert "no nodes answer" in out.splitlines()[-1]
    finally:
        for process in (node, scheduler):
            process.terminate()
            process.communicate(timeout=60)


# A node says so when the file is there that its environment names, as one that is busy or frozen does.
_SAID = json.dumps({"why": "", "protocol": PROTOCOL})
_IS_THERE = "__import__('os').path.exists(__import__('os').environ.get('GATE', '/'))"
_GREETING = f"[__import__('time').sleep(0.1) for _ in range(300) if not {_IS_THERE}] and '' or {_SAID!r}"


def test_nodes_that_answer_late_and_schedulers_that_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that does not answer keeps nobody from the others, and is asked again. A scheduler that is gone is told at
    once, and ends a run after a while.
    """
    for name, value in {"_GREETING_S": 0.5, "_LATER_S": 1.0, "_ANSWER_S": 5.0, "_SILENT_S": 5.0}.items():
        monkeypatch.setattr(f"genkern.compile.remote.nodes.{name}", value)
    lab, gate, said = Lab(tmp_path / "lab", 1), tmp_path / "gate", []
    address = f"127.0.0.1:{free_port()}"
    scheduler = lab.start(f"dask scheduler --host {address.replace(':', ' --port ')} --no-dashboard 2> {lab.at}/s")
    node = f"dask worker tcp://{address} --nthreads 1 --no-dashboard --name"
    late = lab.start(f"{node} late 2> {lab.at}/late", GATE=str(gate))
    soon = lab.start(f"{node} soon 2> {lab.at}/soon")
    nodes = Nodes(Address.read(f"dask://{address}"), said.append, (eval, _GREETING), {})
    try:
        wait_until(lambda: len(nodes.able) == 1)
        wait_until(lambda: any("a node does not answer, and is asked again" in line for line in said))
        gate.touch()
        wait_until(lambda: len(nodes.able) == 2)
        nodes.check()
        scheduler.kill()
        wait_until(lambda: any("the scheduler does not answer" in line for line in said))
        wait_until(lambda: has_gone(nodes))
        assert len([line for line in said if line.startswith("note: --cluster")]) == 2
    finally:
        nodes.end()
        for process in (late, soon, scheduler):
            process.kill()
            process.communicate(timeout=60)


def has_gone(nodes: Nodes) -> bool:
    """Whether the scheduler is said to be gone."""
    try:
        nodes.check()
    except InputError as error:
        return "has not answered for" in str(error)
    return False


def wait_until(condition: Callable[[], object]) -> None:
    """For what others bring about."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_scheduler_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line; nothing is left behind."""
    monkeypatch.setattr("genkern.compile.remote.nodes._WAIT_S", 1.0)
    sizes = tmp_path / "sizes.yaml"
    sizes.write_text("- {'M': 16, 'N': 128, 'K': 256, 'dtype_a': 'bf16'}\n")
    command = "kernels", "--arch", "gfx942", "-i", sizes, "-o", tmp_path / "k", "--count", 1, "--jobs", 1
    refusal = run_here(capsys, *command, "--cluster", f"dask://127.0.0.1:{free_port()}").refusal
    assert "no nodes answer" in refusal
    assert not (tmp_path / "k").exists()
