"""Files of another type than a command reads: one line that names the file, status 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here

PREDICTED = ["--arch", "sm_90", "--profiler", "predict"]
# FILE is what stands where the command expects its own type of file.
COMMANDS = {
    "export": ["export", "FILE", "--to", "vllm", "-o", "out"],
    "export of experts": ["export", "FILE", "--to", "aiter_fmoe", "-o", "out"],
    "status": ["status", "FILE"],
    "pack": ["pack", "FILE", "-o", "out"],
    "pack --list": ["pack", "FILE", "--list"],
    "verify": ["verify", "FILE"],
    "merge": ["merge", "FILE", "-o", "out"],
    "import": ["import", "FILE", "-o", "out"],
    "ops": ["ops", "FILE"],
    "shapes": ["shapes", "--model_dir", "FILE", "-o", "out"],
    "model": ["model", "FILE", "--engine", "vllm", "-o", "out.genkern"],
    "tuning": ["-i", "FILE", *PREDICTED, "-o", "out"],
    "tuning a model": ["--model_dir", "FILE", *PREDICTED, "-o", "out"],
    "tuning into": ["-m", 16, "-n", 64, "-k", 64, *PREDICTED, "-o", "FILE"],
    "tuning in a space": ["-m", 16, "-n", 64, "-k", 64, *PREDICTED, "-o", "out", "--space", "FILE"],
    "checking": ["--compare_wo_tuning", "-i", "FILE", *PREDICTED],
    "timing": ["--benchmark", "-i", "FILE", *PREDICTED, "-o", "out"],
}
FILES = {
    "picture.png": b"\x89PNG\r\n\x1a\n\x00\xff",
    "results.yaml": b"\x00\x01\x02\x03",
    "bundle.genkern": b"PK\x03\x04 and so on",
    "config.json": b'{"a": 1}',
    "program.py": b"import os\nprint(1)\n",
    "other.csv": b"a,b\n1,2\n",
    "folder": None,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_another_type_is_one_line(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever type it is of, a folder among them."""
    monkeypatch.chdir(tmp_path)
    content = FILES[name]
    Path(name).write_bytes(content) if content is not None else Path(name).mkdir()
    ran = run_here(capsys, *(name if each == "FILE" else each for each in COMMANDS[command]))
    assert name in ran.refusal + ran.out
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert content is None or Path(name).read_bytes() == content
