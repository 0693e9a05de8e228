"""Triton's interpreter in a quarter of its time, for processes of tests that run many kernels in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from gluon_wgmma import few_bit_sums
from long_tests import LONG
from triton.language import core, float16
from triton.runtime import interpreter


def make_interpreter_fast() -> None:
    """Leave out three quarters of its time: what is made anew at each operation, and checks of integers for overflow.

    Sizes here are far from 2**31; `make test-long` checks that as well.
    """
    _patch_called_functions_once()
    _make_types_once()
    _find_numpy_types_once()
    if not LONG:
        interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)


def _patch_called_functions_once() -> None:
    """A launch has patched triton.language for all that it calls, but for Triton's own functions of another module."""
    patched = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.fn.__module__
        if module.startswith("triton.") and module not in patched:
            patched.add(module)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


def _make_types_once() -> None:
    """The type of a block, which is checked and gets its name, and what a tensor has of it: each once for all alike."""
    make_block_type, make_tensor = core.block_type.__init__, core.tensor.__init__
    types: dict[object, dict[str, Any]] = {}
    of_scalars: dict[str, Any] = {}

    def init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if type(size) is core.constexpr else size for size in shape])
        key = type(element_ty), element_ty.name, getattr(element_ty, "address_space", None), sizes
        if (known := types.get(key)) is None:
            make_block_type(self, element_ty, shape)
            made = core.tensor.__new__(core.tensor)
            make_tensor(made, None, self)
            known = types[key] = {**vars(self), "_of_tensors": {"numel": made.numel, "shape": made.shape}}
        self.__dict__.update(known)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        if (known := type.__dict__.get("_of_tensors")) is None:
            if type.is_block() or not of_scalars:
                make_tensor(self, handle, type)
                if not type.is_block():
                    of_scalars.update(numel=self.numel, shape=self.shape)
                return
            known = of_scalars
        self.__dict__.update(known)
        self.handle, self.type, self.dtype = handle, type, type.scalar

    core.block_type.__init__, core.tensor.__init__ = init_block_type, init_tensor


def _find_numpy_types_once() -> None:
    """NumPy's type for one of Triton's, for which a table of all is made at each call."""
    find, known = interpreter._get_np_dtype, {}

    def found(tt_dtype: Any) -> Any:
        key = type(tt_dtype), tt_dtype.name
        if key not in known:
            known[key] = find(tt_dtype)
        return known[key]

    interpreter._get_np_dtype = found


@contextmanager
def few_bits_of_float8() -> Iterator[None]:
    """Products of fp8 are added up as by the matrix units of sm_90, of which the interpreter knows nothing."""
    builder = interpreter.InterpreterBuilder
    exact = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *more: Any) -> Any:
        if not all(x.dtype.primitive_bitwidth == 8 and x.dtype.is_floating() for x in (a, b)):
            return exact(self, a, b, d, *more)
        rows, columns = (
            interpreter._convert_float(x.data, x.dtype, float16, None).view(np.float16).astype(np.float64)
            for x in (a, b)
        )
        sums = d.data.astype(np.float64)
        for k in range(0, rows.shape[1], 32):
            sums = few_bit_sums(sums, rows[:, k : k + 32], columns[k : k + 32].T)
        return interpreter.TensorHandle(sums.astype(d.data.dtype), d.dtype.scalar)

    with mock.patch.object(builder, "create_dot", create_dot):
        yield
