"""Tune the linear layers of a model, and pack the winners into a bundle.

    python examples/tune_model.py [MODEL_FOLDER]

Takes the layers of a small module, or of the model in a folder with a config.json. Without a GPU the winners are
predicted for an H100, and packed only because `predicted=True` asks for it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

import genkern


def main() -> None:
    device = None if torch.cuda.is_available() else "NVIDIA H100"
    if sys.argv[1:]:
        result = genkern.tune(sys.argv[1], nsets=(1, 16), device=device)
    else:
        layers = torch.nn.Linear(2048, 5632, bias=False), torch.nn.SiLU(), torch.nn.Linear(5632, 2048, bias=False)
        model = torch.nn.Sequential(*layers).to(torch.bfloat16)
        # M: the numbers of rows that the layers get, here tokens of a decode step.
        result = genkern.tune(model, M=(1, 16), device=device)
    print(result)
    with tempfile.TemporaryDirectory() as folder:
        bundle = result.pack(Path(folder) / "winners.genkern", predicted=result.predicted)
        print(f"{bundle.name}: {bundle.stat().st_size:,} bytes, {len(genkern.load(bundle))} winners")
        # A program calls these winners if GENKERN_CONFIG names the bundle: genkern.patch(model) is all that it needs.


if __name__ == "__main__":
    main()
