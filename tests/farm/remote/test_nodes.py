"""Tests of genkern.farm.remote.nodes with schedulers that want certificates, or are not there: `make test-cluster`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cluster_page import Lab, free_port
from command import run_here

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


def test_a_scheduler_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line; nothing is left behind."""
    monkeypatch.setattr("genkern.farm.remote.nodes._WAIT_S", 1.0)
    sizes = tmp_path / "sizes.yaml"
    sizes.write_text("- {'M': 16, 'N': 128, 'K': 256, 'dtype_a': 'bf16'}\n")
    command = "kernels", "--arch", "gfx942", "-i", sizes, "-o", tmp_path / "k", "--count", 1, "--jobs", 1
    refusal = run_here(capsys, *command, "--cluster", f"dask://127.0.0.1:{free_port()}").refusal
    assert "no nodes answer" in refusal
    assert not (tmp_path / "k").exists()
