"""Run the commands of the documents, and write what they print below them: `make docs`.

    python docs/commands.py [PAGE...]

A fenced block with the word `console` holds commands, which begin with `$ ` (and go on after `> `), and their output.
All blocks of a page run in one empty folder, in their order, in bash, without a GPU. A block below the comment
`<!-- long -->` takes minutes. Blocks with other words, such as `sh`, are not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(?P<long><!-- long -->\n+)?```console\n(?P<text>.*?)```\n", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One command of a page, with the output that the page shows, and whether it takes minutes."""

    text: str
    shown: str
    long: bool


def pages() -> list[Path]:
    """Return the documents that have commands to run."""
    return [page for page in sorted((ROOT / "docs").rglob("*.md")) if commands(page)]


def commands(page: Path) -> list[Command]:
    """Return the commands of a page in their order."""
    return [each for match in _BLOCK.finditer(page.read_text(encoding="utf-8")) for each in _commands(match)]


def _commands(block: re.Match[str]) -> Iterator[Command]:
    for part in re.split(r"(?m)^\$ ", block["text"])[1:]:
        lines = part.splitlines(keepends=True)
        number = 1
        while number < len(lines) and lines[number].startswith("> "):
            number += 1
        text = lines[0] + "".join(line[2:] for line in lines[1:number])
        yield Command(text, "".join(lines[number:]), bool(block["long"]))


def run(command: Command, folder: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder; `stdout` is all that it prints. Variables are added to the environment."""
    without_gpu = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "COLUMNS": "100", "NO_COLOR": "1"}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail\n{command.text}"],
        cwd=folder,
        env={**os.environ, **without_gpu, "PATH": path, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def prepared(folder: Path) -> Path:
    """Return the folder, in which commands find this checkout's results/ and input_sizes/."""
    for name in ("results", "input_sizes"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def rewritten(page: Path) -> str:
    """Return the page's text with what its commands print today. Raises SystemExit if a command fails."""
    with tempfile.TemporaryDirectory() as work:
        folder = prepared(Path(work))

        def block(match: re.Match[str]) -> str:
            text = ""
            for command in _commands(match):
                done = run(command, folder, {})
                if done.returncode:
                    sys.exit(f"{page}: status {done.returncode} from\n{command.text}{done.stdout}")
                text += "$ " + "> ".join(command.text.splitlines(keepends=True)) + _trimmed(done.stdout)
            return f"{match['long'] or ''}```console\n{text}```\n"

        return _BLOCK.sub(block, page.read_text(encoding="utf-8"))


def _trimmed(output: str) -> str:
    """Return the output without spaces at the ends of lines."""
    return "".join(line.rstrip() + "\n" for line in output.splitlines())


if __name__ == "__main__":
    for named in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        named.write_text(rewritten(named), encoding="utf-8")
