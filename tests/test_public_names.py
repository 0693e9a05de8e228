"""The package's public names, as dir() shows them and as a type checker sees them in a user's program."""

from __future__ import annotations

import inspect
import os
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
# A program whose author runs mypy in strict mode. Each of its last lines has a mistake.
TUNES = """
from pathlib import Path

import genkern
from genkern.errors import InputError


def names(result: genkern.TuningResult) -> list[str]:
    return [f"{winner.name} {winner.problem.M} {winner.time_us}" for winner in result.winners]


def fastest(explanation: genkern.Explanation) -> genkern.Forecast:
    return explanation.candidates[0]


try:
    result = genkern.tune(M=16, N=4096, K=4096, dtype="bf16", search="guided", budget="30s", gpu_ids=(0,), compare=True)
except genkern.TuningInterrupted as stopped:
    result = stopped.result
except InputError as error:
    raise SystemExit(str(error)) from None
y: object = result.winners[0](1, 2)
times: list[float] = [winner.time_us for winner in result if winner.time_us is not None]
speeds: list[float | None] = [winner.speedup for winner in result]
packed: Path = result.pack("winners.genkern", predicted=result.predicted)
print(names(genkern.load(packed)), fastest(genkern.explain(M=16, N=4096, K=4096)).config.BLOCK_SIZE_M, y, times, speeds)
genkern.tune([(1, 2, 3), {"M": 1, "N": 2, "K": 3}, genkern.GemmProblem(1, 2, 3)], output=Path("tuned.yaml"))
genkern.tune("sizes.yaml", arch="sm_90", activation="relu", progress=False, verbose=True)
genkern.tune(M=16, N=4096, K="many")
genkern.tune(M=16, N=4096, K=4096, serach="guided")
genkern.tune(M=16, N=4096, K=4096, iters="ten")
genkern.tune(M=16, N=4096, K=4096, activation="tanh")
genkern.explain(M=16, N=4096, K=4096).candidates[0].time
result.winners = []
result.pack()
"""
WRONG_FROM = TUNES.index('genkern.tune(M=16, N=4096, K="many")')
# What the author's own environment has; other libraries' types are not the subject, and take mypy half a minute.
SETTINGS = """
[mypy]
strict = True
follow_imports = silent
[mypy-torch.*,numpy.*,pandas.*,matplotlib.*,triton.*,joblib.*,transformers.*,scipy.*]
follow_imports = skip
ignore_missing_imports = True
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
    called += ["explain", "load", "tune"]
    records = [
        "Explanation",
        "Forecast",
        "GemmProblem",
        "TuneOptions",
        "TunedKernel",
        "TuningInterrupted",
        "TuningResult",
    ]
    assert dir(genkern) == [*sorted(records), "__version__", *sorted(["autotune", *called, "tuned_gemm"])]
    assert sorted(genkern.__all__) == dir(genkern)
    assert all(callable(getattr(genkern, name)) for name in called + records)
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


@pytest.mark.parametrize("name", ["autotune_gemm", "batch_invariant", "explain", "load", "patch", "report", "tune"])
def test_docstrings_are_those_of_pytorch(name: str) -> None:
    """Each argument is named with its type, and what is returned."""
    function = getattr(genkern, name)
    arguments, _, after = str(function.__doc__).partition("Args:")[2].partition("Returns:")
    for argument in inspect.signature(function).parameters:
        assert re.search(rf"^ +\**(\w+, )*{argument}(, \w+)*( \(|:)", arguments, re.MULTILINE), argument
    assert after.strip()


def test_help_shows_the_functions() -> None:
    """Also where PyTorch is not installed."""
    for missing in ("", "sys.modules['torch'] = None; "):
        program = f"import sys; {missing}import genkern; help(genkern)"
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        functions = said.partition("FUNCTIONS")[2]
        for name in ("tune", "load", "explain", "patch", "report"):
            assert f"\n    {name}(" in functions


def test_importing_genkern_imports_nothing_else() -> None:
    """Servers import it in every process: its functions import what they need when they are first used."""
    program = "import sys; before = set(sys.modules); import genkern; print(*sorted(set(sys.modules) - before))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in said if name.startswith("genkern")] == ["genkern"]
    assert not {"numpy", "torch", "pandas", "rich", "yaml", "argparse"} & set(said)


def test_a_project_elsewhere_is_typed(tmp_path: Path) -> None:
    """mypy in strict mode, with the project's own settings, passes what is right and finds each mistake."""
    (tmp_path / "program.py").write_text(TUNES)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    # A cache that stays: the first run takes ten seconds of CPU, others one.
    cache = ROOT / ".mypy_cache" / "project"
    examples = sorted(str(path) for path in (ROOT / "examples").glob("*.py"))
    argv = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "program.py", *examples]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    first = TUNES[:WRONG_FROM].count("\n") + 1
    assert [int(line.split(":")[1]) for line in errors] == list(range(first, first + 7)), done.stdout


def test_a_users_program_is_typed(tmp_path: Path) -> None:
    """mypy passes calls as they are documented, and finds those that cannot work."""
    for name, text in (("right.py", PROGRAM), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    # In the checkout's folder: its settings, and what `make lint` knows of genkern already.
    argv = [sys.executable, "-m", "mypy", *(str(tmp_path / name) for name in ("right.py", "wrong.py"))]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.partition("wrong.py:")[2].partition(":")[0] for line in errors] == ["4", "5", "6", "7"], done.stdout
