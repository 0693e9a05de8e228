"""Paths that a person or the environment names, and that are pipes or devices: no command waits for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command import run
from long_tests import pairs

SIZE = ("-m", 16, "-n", 128, "-k", 256, "--arch", "gfx942", "--profiler", "predict")
# What is named, or lies beside what is named: the command with PATH for it.
COMMANDS: dict[str, tuple[object, ...]] = {
    "sizes": ("-i", "PATH", "--arch", "gfx942", "-o", "r.yaml"),
    "kernels": (*SIZE, "-o", "r.yaml", "--kernels", "PATH"),
    "space": (*SIZE, "-o", "r.yaml", "--space", "PATH"),
    "search": (*SIZE, "-o", "r.yaml", "--search", "PATH"),
    "family": (*SIZE, "-o", "r.yaml", "--family", "PATH"),
    "journal": (*SIZE, "-o", "r.yaml"),
    "lock": (*SIZE, "-o", "r.yaml"),
    "results": ("status", "PATH"),
    "status": ("status", "r.yaml"),
    "collect": ("collect", "PATH", "-o", "joined.yaml"),
    "record": ("record", "r.yaml", "-o", "t.parquet"),
    "replay": ("replay", "PATH"),
    "verify": ("verify", "PATH"),
    "gpus": (*SIZE, "-o", "r.yaml"),
    "model": (*SIZE, "-o", "r.yaml", "--search", "zero"),
}
PLACES = {"journal": "r.yaml.journal", "status": "r.yaml.journal", "record": "r.yaml.journal", "lock": "r.yaml.lock"}
NAMES = {
    "search": "user_families.py",
    "family": "user_families.py",
    "results": "r.yaml",
    "collect": "r.yaml",
    "replay": "t.parquet",
}
VARIABLES = {"gpus": "GENKERN_GPU_FILES", "model": "GENKERN_MODEL"}


@pytest.mark.parametrize(("what", "kind"), pairs([*COMMANDS], ["pipe", "endless"]))
def test_no_command_waits(what: str, kind: str, tmp_path: Path, cache_dir: Path) -> None:
    """Neither for a pipe that nobody writes to, nor for a device without an end: it ends, and refuses in one line what
    it cannot do without.
    """
    path = tmp_path / PLACES.get(what, NAMES.get(what, "thing"))
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    argv = [str(path) if each == "PATH" else each for each in COMMANDS[what]]
    tunes = isinstance(argv[0], str) and argv[0].startswith("-")
    env = {VARIABLES[what]: str(path)} if what in VARIABLES else {}
    ran = run(*argv, *(["--cache_dir", cache_dir] if tunes else []), cwd=tmp_path, env=env)
    if what == "status":
        assert ran.status in (0, 1, 2), ran
        assert "Traceback" not in ran.err
    else:
        assert ran.refusal
