"""The commands of docs/cluster.md, and machines on which they do what they say."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

from command import ROOT, environment
from machines import machine

SIZES_LIST = "".join(f"- {{'M': {m}, 'N': 128, 'K': 256, 'dtype_a': 'bf16'}}\n" for m in (16, 32, 48))
_PAGE = ROOT / "docs" / "cluster.md"
# Kernels of two configs, where the page has what a model would prefer of thousands.
_SPACE = """archs: [sm_90, sm_80]
ops: [a16w16]
rules: []
families:
  - {family: tiled, BLOCK_SIZE_M: [16], BLOCK_SIZE_N: [32, 64], BLOCK_SIZE_K: [64], num_warps: [4], GROUP_SIZE_M: [1],
     SPLIT_K: [1], num_stages: [2]}
"""
# What searches gets that space.
_GENKERN = """#!/bin/bash
case "$1" in
    measure | collect | cache) exec {python} -m genkern "$@" ;;
    *) exec {python} -m genkern "$@" --space {space} ;;
esac
"""
_DASK = '#!/bin/bash\nexec {python} -m dask "$@"\n'
# Two machines are two folders here, gpu-node: and what it has for a home, with a cache of its own.
_SSH = '#!/bin/bash\ncd {node} && shift && GENKERN_CACHE_DIR={node}/cache exec "$@"\n'
_RSYNC = '#!/bin/bash\nshift\ncp -r "${{1/#gpu-node:/{node}/}}" "${{2/#gpu-node:/{node}/}}"\n'


def page() -> dict[str, list[str]]:
    """The commands of the page, in their order, by the headings of its parts."""
    parts = (text.partition("\n") for text in _PAGE.read_text(encoding="utf-8").split("\n## ")[1:])
    return {heading: re.findall(r"^    (\S.*)$", text, re.MULTILINE) for heading, _, text in parts}


def commands(part: str) -> list[str]:
    """Those of the part with this heading."""
    return page()[part]


def said_by_the_way(pattern: str) -> str:
    """The one command or option of this form that stands within a sentence."""
    (found,) = {*re.findall(rf"`({pattern})`", _PAGE.read_text(encoding="utf-8"))}
    return str(found)


class Lab:
    """A folder with a list of sizes, and programs by the names that the page has; jobs and workers have fake H200s."""

    def __init__(self, at: Path, sizes: int, **what: object) -> None:
        self.at = at
        programs, node = at / "bin", at / "gpu-node"
        for folder in (programs, node, at / "tmp"):
            folder.mkdir(parents=True)
        (at / "space.yaml").write_text(_SPACE)
        (at / "sizes.yaml").write_text("".join(f"- {{'M': {16 + i}, 'N': 64, 'K': 64}}\n" for i in range(sizes)))
        names = {"python": shlex.quote(sys.executable), "space": at / "space.yaml", "node": node}
        texts = {"genkern": _GENKERN, "dask": _DASK, "ssh": _SSH, "rsync": _RSYNC}
        for name, text in texts.items():
            (programs / name).write_text(text.format(**names))
            (programs / name).chmod(0o755)
        fake = machine(at, gpus=2, **what)
        path = [str(programs), fake.pop("PATH"), os.environ["PATH"]]
        own = {"PATH": os.pathsep.join(path), "GENKERN_CACHE_DIR": str(at / "cache"), "TMPDIR": str(at / "tmp")}
        self.environment = environment({**fake, **own})

    def start(self, command: str, **changes: str) -> subprocess.Popen[str]:
        """Begin with a command of the page."""
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.at,
            env=self.environment | changes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str, **changes: str) -> str:
        """What a command of the page says; it is to end well."""
        with self.start(command, **changes) as process:
            said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, (command, said)
        return said


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
