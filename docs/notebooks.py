"""Execute the notebooks of examples/ and keep their outputs: `make notebooks`.

Their times are predicted: no GPU is visible to them, so that any machine makes the same outputs.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "examples"


def executed(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of all its cells. Raises CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False)
    client.execute(env=environment, cwd=str(FOLDER))
    # The version of Python, which is another one on another machine.
    notebook.metadata.pop("language_info", None)
    return notebook


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(executed(path), path)


if __name__ == "__main__":
    main()
