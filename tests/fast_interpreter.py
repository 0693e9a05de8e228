"""Triton's interpreter in a third of its time, for processes of tests that run many kernels in it."""

from __future__ import annotations

from typing import Any

from long_tests import LONG
from triton.runtime import interpreter


def make_interpreter_fast() -> None:
    """Leave out two thirds of its time: a search for what to patch at each call, and checks of integers for overflow.

    A launch has patched triton.language for all that it calls, but for Triton's own functions, which see another
    module. Sizes here are far from 2**31; `make test-long` checks that as well.
    """
    patched = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.fn.__module__
        if module.startswith("triton.") and module not in patched:
            patched.add(module)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
    if not LONG:
        interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
