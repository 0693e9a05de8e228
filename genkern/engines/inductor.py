"""Inductor: torch.compile(mode="max-autotune") times winners among its choices for a product.

    from genkern.engines import inductor

    inductor.register()
    model = torch.compile(model, mode="max-autotune")

This uses torch._inductor.config.external_matmul, which is private. It covers only aten.mm, hence nn.Linear without a
bias. In a program that is compiled with dynamic sizes, each call chooses by its M when it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from genkern.engines.hooks import (
    EngineAttribute,
    IncompatibleEngine,
    is_on,
    reason_text,
    resolved,
    restore,
    version_of,
    wrap_attribute,
)

_LOG = logging.getLogger("genkern")
# Inductor makes a choice of each function of external_matmul with this function. It expects functions that write into
# `out`, which would cost winners a copy, so genkern replaces it for its own function.
_MM, _CHOICE = "torch._inductor.kernel.mm", "lazy_register_extern_choice"
_TOUCHES = (
    EngineAttribute(f"{_MM}.{_CHOICE}", ("fn",)),
    EngineAttribute("torch._inductor.select_algorithm.ExternKernelChoice.__init__", ("self", "kernel", "cpp_kernel")),
)


def genkern_matmul(a: Any, b: Any) -> Any:
    """Return a [M, K] @ b [K, N], by a winner or else by PyTorch. Inductor's programs call it by this name."""
    from genkern.engines.products import WIDE
    from genkern.errors import InputError
    from genkern.runtime.process.torch_ops import gemm_of

    try:
        return gemm_of(WIDE).direct(a, b.mT, None, None, None, None, None, {})
    except InputError:
        import torch

        # genkern does not have this type.
        return torch.mm(a, b)


def register() -> bool:
    """Let Inductor time winners from now on; return whether it will. Does nothing without a bundle."""
    if not is_on():
        _LOG.warning("no bundle is named (GENKERN_CONFIG): Inductor is left as it is")
        return False
    try:
        for touch in _TOUCHES:
            touch.verify()
        config = _config()
        wrap_attribute(resolved(_MM), _CHOICE, _with_ours)
    except Exception as reason:
        _LOG.warning("torch %s compiles without genkern: %s", version_of("torch"), reason_text(reason))
        return False
    if genkern_matmul not in config.external_matmul:
        config.external_matmul = [*config.external_matmul, genkern_matmul]
    # Create the choice now: programs that Inductor cached in an earlier process call the function by its name, perhaps
    # before this process compiles anything.
    _choice()
    return True


def unregister() -> None:
    """Undo `register`. Programs that are already compiled do not change."""
    config = _config()
    config.external_matmul = [each for each in config.external_matmul if each is not genkern_matmul]
    restore(resolved(_MM), _CHOICE)


def _config() -> Any:
    import torch._inductor.config as config

    if not isinstance(getattr(config, "external_matmul", None), list):
        raise IncompatibleEngine("torch._inductor.config.external_matmul is no list")
    return config


def _with_ours(before: Callable[..., Any]) -> Callable[..., Any]:
    def lazy_register_extern_choice(fn: Any) -> Any:
        return _choice() if fn is genkern_matmul else before(fn)

    return lazy_register_extern_choice


_made: list[Any] = []


def _choice() -> Any:
    """Return Inductor's choice for genkern_matmul. It is created once, since Inductor identifies choices by name."""
    if not _made:
        from torch._inductor.select_algorithm import ExternKernelChoice

        _made.append(ExternKernelChoice(genkern_matmul, has_out_variant=False))
    return _made[0]
