"""Tests of genkern.engines.hooks: what a plugin touches is verified, hooked once, and guarded when it runs."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from genkern.engines.hooks import (
    EngineAttribute,
    IncompatibleEngine,
    PluginPart,
    install,
    is_on,
    restore,
    served_or_own,
    unhooked,
    wrap,
)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An engine's module with a class and a function, which can be imported."""
    module = ModuleType("made_up_engine")

    class Kernel:
        scale: int

        def __init__(self) -> None:
            self.bias = 3

        def apply(self, x: int, bias: int = 0) -> int:
            return x + bias

    def negative(x: int) -> int:
        return -x

    module.Kernel, module.negative = Kernel, negative  # type: ignore[attr-defined]
    module.compiled = type("Compiled", (), {"__call__": 1, "__signature__": 1})()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def doubled(before: Any) -> Any:
    """A function around another."""
    return lambda *given, **named: 2 * before(*given, **named)


def test_a_function_is_put_around_once_and_taken_out(engine: Any) -> None:
    """A second time does nothing, and its parameters are those of the original; taken out, all is as before."""
    before = engine.Kernel.apply
    touch = EngineAttribute("made_up_engine.Kernel.apply", ("self", "x"))
    for _ in range(2):
        touch.verify()
        wrap(touch.path, doubled)
        assert engine.Kernel().apply(3, bias=1) == 8
    assert unhooked(engine.Kernel.apply) is before
    restore(engine.Kernel, "apply")
    restore(engine.Kernel, "apply")
    assert engine.Kernel.apply is before


@pytest.mark.parametrize(
    ("path", "parameters", "fields", "said"),
    [
        ("made_up_engine.Kernel.apply", ("self", "y"), (), "not (self, y)"),
        ("made_up_engine.Kernel.apply", ("self", "x", "scale"), (), "takes (self, x, bias)"),
        ("made_up_engine.Kernel.multiply", (), (), "no made_up_engine.Kernel.multiply"),
        ("made_up_engine.layers.Linear", None, (), "made_up_engine.layers"),
        ("other_engine.Kernel", None, (), "other_engine"),
        ("made_up_engine.compiled", (), (), "made_up_engine.compiled"),
        ("made_up_engine.Kernel", None, ("bias", "scale", "apply", "rows", "columns"), "no rows, columns"),
    ],
)
def test_what_an_engine_lacks_is_said(
    path: str, parameters: Any, fields: Any, said: str, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A part that touches it is left out with one line; parts that fit are put in place."""
    done: list[str] = []
    parts = [
        PluginPart(
            "experts",
            (EngineAttribute("made_up_engine.negative", ("x",)), EngineAttribute(path, parameters, fields)),
            lambda: done.append("experts"),
        ),
        PluginPart(
            "layers",
            (EngineAttribute("made_up_engine.Kernel", fields=("bias", "scale")),),
            lambda: done.append("layers"),
        ),
    ]
    with caplog.at_level(logging.INFO, "genkern"):
        assert install("made-up", parts) == ("layers",)
    assert done == ["layers"]
    first, second = caplog.messages
    assert "experts" in first
    assert said in first
    assert "layers" in second
    assert "\n" not in first + second


@pytest.mark.parametrize("error", [IncompatibleEngine, ImportError, RuntimeError, KeyError, AssertionError, OSError])
def test_a_part_that_fails_ends_nothing(error: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """While it is tried, or put in place; of whatever exception."""

    def fail() -> None:
        raise error("it is\nbroken")

    parts = [
        PluginPart("heads", (), fail),
        PluginPart("experts", (), lambda: None, fail),
        PluginPart("layers", (), lambda: None),
    ]
    with caplog.at_level(logging.INFO, "genkern"):
        assert install("made-up", parts) == ("layers",)
    lines = caplog.messages
    assert [("heads" in line, "experts" in line) for line in lines[:2]] == [(True, False), (False, True)]
    assert all("broken" in line and "\n" not in line for line in lines[:2])


def test_a_hook_that_fails_gives_way_to_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    """For the call in which it failed and all after it; one warning. None: the engine computes this call."""
    asked: list[int] = []

    def hook(x: int) -> int | None:
        asked.append(x)
        if x > 5:
            raise ZeroDivisionError("the winner is broken")
        return 10 * x if x else None

    call = served_or_own("a made-up layer", hook, lambda x: -x)
    assert [call(x) for x in (1, 0, 2, 6, 1, 7)] == [10, 0, 20, -6, -1, -7]
    assert asked == [1, 0, 2, 6]
    (line,) = caplog.messages
    assert "a made-up layer" in line
    assert "the winner is broken" in line


def test_lines_of_engines_are_seen_once() -> None:
    """Where nobody shows the log of genkern, whose other lines stay unseen, and where the engine shows all later."""
    program = """
import logging, os
from genkern.engines import layers, hooks as seam
shows_all = os.fork() == 0
seam.install("engine", [seam.PluginPart("layers", (), lambda: None)])
seam.install("engine", [])
if shows_all:
    logging.basicConfig(level=logging.WARNING)
else:
    os.wait()
layers.mark("engine", type("Model", (), {"named_modules": lambda self: ()})(), None)
logging.getLogger("genkern").info("unseen")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert sum("calls winners in its layers" in line for line in lines) == 2
    assert sum("genkern serves 0 of 0 layers" in line for line in lines) == 2


def test_plugins_are_on_if_a_bundle_is_named() -> None:
    """For all formats or one; an empty name is none."""
    assert is_on({"GENKERN_CONFIG": "a.genkern"})
    assert is_on({"GENKERN_CONFIG_A8W8": "a.genkern"})
    assert not is_on({"GENKERN_CONFIG": " ", "GENKERN_CONFIGURED": "yes", "GENKERN_CACHE_DIR": "x"})


def test_plugins_without_a_bundle_import_nothing() -> None:
    """Every process of an engine calls them, also where nobody uses genkern."""
    program = (
        "import sys\n"
        "from genkern.engines import sglang, vllm\n"
        "vllm.register()\nsglang.register()\n"
        "print([name for name in ('torch', 'triton', 'yaml', 'vllm', 'sglang') if name in sys.modules])\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GENKERN_CONFIG")}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_entry_points_name_what_is_there() -> None:
    """As setup.cfg has them: functions without arguments."""
    import configparser
    import importlib
    from pathlib import Path

    setup = configparser.ConfigParser()
    setup.read(Path(__file__).resolve().parents[2] / "setup.cfg")
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        (line,) = setup["options.entry_points"][group].strip().splitlines()
        module, _, name = line.partition("=")[2].strip().partition(":")
        assert not inspect.signature(getattr(importlib.import_module(module), name)).parameters
