"""The package's public names, as dir() shows them and as a type checker sees them in a user's program."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import genkern
from genkern.ops.op import op_names

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import torch

import genkern
from genkern import tuned_gemm

model = torch.nn.Linear(64, 64)
with genkern.patch(model) as patched, genkern.batch_invariant("warn"):
    print(len(patched.layers))
for layer in genkern.report(model):
    print(layer.name.upper())
x, weight = torch.ones(16, 64), torch.ones(64, 64)
y = genkern.tuned_gemm.gemm_a16w16(x, weight, activation="gelu")
tuned_gemm.renew()
rows, scales = genkern.quantized(x, torch.float8_e4m3fn, "per_token")
genkern.unshuffle_weight(genkern.shuffle_weight(weight))
tuned = genkern.autotune_gemm(x, weight, y, iterations=200)
print(tuned.time_us / 2, genkern.autotune.KEYS, genkern.__version__)
"""
WRONG = """
import genkern

genkern.patch()
genkern.report(1, 2)
genkern.autotune_gemm(1, 2, 3, iterations="many")
genkern.pacth(None)
"""


def test_every_public_name_is_shown_and_there() -> None:
    """dir() names what the documents call, and each name leads to something."""
    called = ["autotune_gemm", "batch_invariant", "patch", "quantized", "report", "shuffle_weight", "unshuffle_weight"]
    assert dir(genkern) == ["__version__", *sorted(["autotune", *called, "tuned_gemm"])]
    assert all(callable(getattr(genkern, name)) for name in called)
    assert genkern.autotune.autotune_gemm is genkern.autotune_gemm
    with pytest.raises(AttributeError, match="pacth"):
        genkern.pacth  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("op", op_names())
def test_every_function_is_documented(op: str) -> None:
    """Its docstring has the format, each argument, what is returned, and what is raised."""
    function = getattr(genkern.tuned_gemm, f"gemm_{op}")
    said = str(function.__doc__)
    assert said.startswith(f"gemm_{op}(")
    arguments = said.partition("Args:")[2].partition("Returns:")[0]
    for name in inspect.signature(function).parameters:
        assert re.search(rf"\b{name}\b.*:", arguments), name
    assert {"Returns:", "Raises:", "InputError"} <= set(
        re.findall(r"\w+:?", said.replace("InputError:", "InputError "))
    )
    assert f"The format {op}" in said


def test_the_package_names_what_it_has() -> None:
    """In its docstring, which help() shows first."""
    for name in dir(genkern):
        assert name in str(genkern.__doc__) or name in ("__version__", "autotune")


def test_a_users_program_is_typed(tmp_path: Path) -> None:
    """mypy passes calls as they are documented, and finds those that cannot work."""
    for name, text in (("right.py", PROGRAM), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    # In the checkout's folder: its settings, and what `make lint` knows of genkern already.
    argv = [sys.executable, "-m", "mypy", *(str(tmp_path / name) for name in ("right.py", "wrong.py"))]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.partition("wrong.py:")[2].partition(":")[0] for line in errors] == ["4", "5", "6", "7"], done.stdout
