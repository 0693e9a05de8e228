"""Tests of genkern.engines.seam: functions that are put around others, or one line that says why not."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from genkern.engines.seam import Misfit, Seam, install, is_on, put, taken_out


def owner() -> Any:
    """An engine's module with two functions."""

    def first(self: Any, x: int, bias: int = 0) -> int:
        return x + bias

    def second(x: int) -> int:
        return -x

    return SimpleNamespace(__name__="engine", first=first, second=second)


def doubled(before: Any) -> Any:
    """A function around another."""
    return lambda *given, **named: 2 * before(*given, **named)


def test_a_function_is_put_around_once_and_taken_out() -> None:
    """Again it does nothing, also where what is there says nothing of its arguments; taken out all is as before."""
    engine = owner()
    before = engine.first
    seam = Seam(engine, "first", ("self", "x"), doubled)
    put([seam])
    put([seam])
    assert engine.first(None, 3, bias=1) == 8
    taken_out(seam)
    taken_out(seam)
    assert engine.first is before


@pytest.mark.parametrize("wrong", [("first", ("x",)), ("first", ("self", "x", "scale")), ("third", ())])
def test_all_or_none(wrong: tuple[str, tuple[str, ...]]) -> None:
    """Where one function is another than expected, none is touched, and the reason names it."""
    engine = owner()
    before = dict(vars(engine))
    with pytest.raises(Misfit, match=wrong[0]):
        put([Seam(engine, "second", ("x",), doubled), Seam(engine, *wrong, doubled)])
    assert vars(engine) == before


def test_a_function_that_says_no_arguments_does_not_fit() -> None:
    """As those of compiled modules are."""
    engine = owner()
    engine.first = dict.fromkeys
    engine.second = type("Compiled", (), {"__call__": 1, "__signature__": 1})()
    for name in ("first", "second"):
        with pytest.raises(Misfit, match=name):
            put([Seam(engine, name, ("self",), doubled)])


def test_parts_that_do_not_fit_are_said_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A line for each, with the engine and what it serves without genkern; the others are installed."""

    def missing() -> None:
        raise ModuleNotFoundError("No module named 'engine.layers'")

    def other() -> None:
        raise Misfit("there is no engine.first")

    with caplog.at_level(logging.INFO, "genkern"):
        assert install("engine", {"experts": missing, "heads": other, "layers": lambda: None}) == ("layers",)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.count("\n") for line in lines] == [0, 0, 0]
    assert "experts" in lines[0]
    assert "engine.first" in lines[1]
    assert "layers" in lines[2]


@pytest.mark.parametrize("later", ["", "logging.basicConfig(level=logging.WARNING)"])
def test_lines_of_engines_are_seen_once(later: str) -> None:
    """Where nobody shows the log of genkern, whose other lines stay unseen, and where the engine shows all later."""
    program = f"""
import logging
from genkern.engines import layers, seam
seam.install("engine", {{"layers": lambda: None}})
seam.install("engine", {{}})
{later}
layers.mark("engine", type("Model", (), {{"modules": lambda self: ()}})(), None)
logging.getLogger("genkern").info("unseen")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "calls winners in its layers" in lines[0]
    assert "genkern serves 0 of 0 layers" in lines[1]


def test_it_is_on_where_a_bundle_is_named() -> None:
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
