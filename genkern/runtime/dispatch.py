"""Calls: one format as a function of tensors, which launches the winner for what it is given, or calls the library;
Gemm, of formats that multiply x by one weight.

What depends on shapes, types and strides alone is found once, and kept under them. A call that is like one before it is
told by one guard, as torch.compile tells whether its code still holds: torch._C._dynamo.guards.TensorGuards compares
types, sizes, strides, devices, which of them want gradients, and PyTorch's modes but that of gradients, in one call.
Which guard to ask is found by the weight's identity, the size of x and the mode of gradients: the first may be those of
other tensors by now, which the guard finds.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._guards import TracingContext
from torch.autograd import forward_ad

from genkern.errors import InputError
from genkern.gemm.problem import ACTIVATIONS
from genkern.ops.op import doc_of, get_op
from genkern.runtime.context import Context
from genkern.runtime.given import Given
from genkern.runtime.plain import PLAIN, is_plain, is_pytorchs
from genkern.runtime.served import (
    Function,
    Served,
    as_tuned,
    by_library,
    gradients_of,
    is_tuned,
    linear_like,
    serve,
    serve_one_order,
)

# Shapes that are kept: a server with dynamic batches has thousands, and each takes some 10 KB.
_MOST_KEPT = 4096
# Of each layer's weight, sizes of x: some 200 bytes each.
_MOST_KNOWN = 2**16
# Whether tensors are like those that it was made of.
Guard = Callable[..., bool]


def _guard(*tensors: Any) -> Guard:
    made: Guard = torch._C._dynamo.guards.TensorGuards(
        *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    return made


def _has_guards() -> bool:
    """Whether this PyTorch has them as they were when this was written: no document promises them."""
    one, other = torch.empty(0, device="cpu"), torch.empty(1, device="cpu")
    try:
        guard = _guard(one)
        return guard(one) and not guard(other)
    except (AttributeError, TypeError):
        return False


_GUARDS = _has_guards()
is_traced = torch.compiler.is_dynamo_compiling
_modes = torch._C._len_torch_dispatch_stack
_has_gradients = torch.is_grad_enabled


@dataclass(frozen=True)
class Found:
    """What calls have found in one mode (Context.mode): servers by what a call is given, those of before, guards, known
    places, and whether gradients have rows. What is dropped is dropped whole: a call may still look into it.
    """

    mode: str
    before: dict[object, Served] = field(default_factory=dict)
    kept: dict[object, Served] = field(default_factory=dict)
    guards: dict[object, Guard] = field(default_factory=dict)
    known: dict[object, tuple[Guard, Function]] = field(default_factory=dict)
    trained: dict[object, bool] = field(default_factory=dict)


class Calls:
    """The function of one format. What serves a call is found once for calls that are alike, and kept.

    `given` are the arguments of a call in the order of its operator (torch_ops), and as the last of them the format's
    own fields by name.
    """

    def __init__(self, op: str, context: Context) -> None:
        """Raises InputError where there is no such format."""
        self.op = get_op(op)
        self._context = context
        self._by_mode: dict[str, Found] = {}
        self._switch()
        self.__name__ = f"gemm_{op}"
        self.__doc__ = _documentation(self.__name__, self)
        # Its operator, for calls that are traced or differentiated.
        self.operator: Callable[..., Any] | None = None
        context.on_change(self._renew)
        context.on_switch(self._switch)

    @property
    def context(self) -> Context:
        """Where it looks for winners."""
        return self._context

    def _serve(self, given: tuple[Any, ...], tensors: tuple[Any, ...]) -> Served:
        """Who serves such a call, as a function of the tensors in it. Raises InputError."""
        raise NotImplementedError

    def _library(self, given: tuple[Any, ...]) -> Function:
        """The same by the library's calls alone, which PyTorch's transforms know."""
        raise NotImplementedError

    def _is_trained(self, key: object, given: tuple[Any, ...]) -> bool:
        """Whether anything but the library's own call serves a gradient that such a call is asked for."""
        return False

    def _switch(self) -> None:
        """Look into what was found in the mode of now."""
        name = self._context.mode.name
        self._found = self._by_mode.setdefault(name, Found(name))
        # Known calls ask it before all else.
        self._known = self._found.known

    def _renew(self) -> None:
        for name, found in list(self._by_mode.items()):
            self._by_mode[name] = Found(name, {**found.before, **found.kept} if found.kept else found.before)
        self._switch()

    def _called(self, given: tuple[Any, ...]) -> Any:
        *arguments, own = given
        are = [isinstance(each, torch.Tensor) for each in arguments]
        tensors = tuple(itertools.compress(arguments, are))
        place: object
        others = [each for each, is_tensor in zip(arguments, are, strict=True) if not is_tensor]
        try:
            place = (
                *(id(arguments[1]), arguments[0].numel(), arguments[0].is_nested, _has_gradients()),
                *(*are, *others, *sorted(own.items())),
            )
            known = self._known.get(place)
        except TypeError:
            # Sizes of fake tensors may be symbols.
            known = place = None
        # A guard does not see tensors with tangents, nor the modes of fake and functional tensors.
        if known is not None and known[0](*tensors) and forward_ad._current_level < 0 and not _modes():
            return known[1](*tensors)
        return self._unknown(place, tensors, given)

    def _unknown(self, place: object, tensors: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        """Serves a call that no guard knows, and makes a guard for later calls like it."""
        found = self._found
        known, guards, kept = found.known, found.guards, found.kept
        if not is_plain_call(tensors):
            if not torch.compiler.is_compiling():
                # torch.func refuses grad and jvp of an operator that has a backward pass, and forward differentiation
                # drops the tangents of an operator that has no formula for them.
                if _is_transformed():
                    return self._by_pytorch("torch.func transforms PyTorch's functions only", tensors, given)
                if (odd := next(filter(is_pytorchs, tensors), None)) is not None:
                    return self._by_pytorch(f"PyTorch multiplies {_kind_of(odd)}", tensors, given)
            if self.operator is not None:
                # PyTorch's dispatcher computes what is lazy (negation, zeros without memory) before it calls kernels.
                return self.operator(*given[:-1], **given[-1])
            if not all(map(is_plain, tensors)):
                return self._library(given)(*tensors)
        key = _key(given)
        served = self._served(key, tensors, given)
        wants = self.operator is not None and torch.is_grad_enabled() and _want(tensors)
        if served is None or (wants and not (served.differentiable and not self._is_trained(key, given))):
            assert self.operator is not None
            return self.operator(*given[:-1], **given[-1])
        # What serves a capture alone is not kept.
        if _GUARDS and kept.get(key) is served:
            guard = guards.get(key)
            if guard is None or not guard(*tensors):
                guard = _guard(*tensors)
            if len(known) >= _MOST_KNOWN:
                known.clear()
                guards.clear()
            guards[key], known[place] = guard, (guard, served.call)
        return served.call(*tensors)

    def _by_pytorch(self, why: str, tensors: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        """The call by PyTorch's functions. Raises InvarianceError if calls must be batch invariant."""
        if self._context.mode.is_on:
            self._context.leave(self.__name__, why)
        odd = next((each for each in tensors if each.is_nested or each.layout is not torch.strided), None)
        if odd is not None:
            raise InputError(f"{self.__name__} takes dense strided tensors, not {_kind_of(odd)}")
        return self._library(given)(*tensors)

    def direct(self, *given: Any) -> Any:
        """The call of tensors that have memory, and without a gradient."""
        tensors = tuple(each for each in given if isinstance(each, torch.Tensor))
        served = self._served(_key(given), tensors, given)
        if served is None:
            assert self.operator is not None
            return self.operator(*given[:-1], **given[-1])
        return served.call(*tensors)

    def _served(self, key: object, tensors: tuple[Any, ...], given: tuple[Any, ...]) -> Served | None:
        """Who serves a call with this key; None while it is traced by torch.jit."""
        mode, found, x = self._context.mode, self._found, tensors[0]
        kept = found.kept
        served = kept.get(key)
        if served is None:
            # torch.jit.trace, whose sizes are tensors: no key that has them is found.
            if self.operator is not None and x.dim() and type(x.shape[0]) is not int:
                return None
            # A graph is captured with what served its warm-up, which is loaded.
            before = found.before.get(key)
            if before is not None and self._context.capturing(x.get_device()):
                return before
            served = self._serve(given, tensors)
            if len(kept) >= _MOST_KEPT:
                # A known place holds its server too.
                for each in (kept, found.before, found.known, found.guards, found.trained):
                    each.clear()
            # After a switch meanwhile it may be of either mode.
            if self._context.mode is mode and found.mode == mode.name:
                kept[key] = served
        return served


class Gemm(Calls):
    """The function of one format that multiplies x by one weight, with the winners that `context` has."""

    def __call__(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        out_dtype: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
        activation: str | None = None,
        **own: int | str,
    ) -> Any:
        """Compute activation(scale_a * scale_b * (x @ weight.T) + bias) by the fastest known kernel.

        A winner of the bundles that GENKERN_CONFIG names serves the call if it was measured to be faster for this size,
        layout, types and GPU; otherwise PyTorch's own function does. Works under autograd, torch.compile, torch.export,
        CUDA graphs, torch.func and autocast as torch.nn.functional.linear does.

        Args:
            x (Tensor): shape [..., K]; [batch, M, K] for batched formats. Rows or columns are contiguous; tensors
                with other strides are served too, by a copy or by PyTorch. A column-major x (`y.t()`) is another
                problem, with winners of its own, than a row-major one.
            weight (Tensor): shape [N, K] as in torch.nn.Linear; [batch, N, K] for batched formats. If the format packs
                two elements a byte, [N, K / 2].
            bias (Tensor, optional): shape [N], in the type of the result.
            out_dtype (torch.dtype, optional): type of the result. Default: the type of x, bfloat16 if x has 8 bits.
            scale_a, scale_b (Tensor, optional): scales of x and of weight; the format says which it takes, with which
                shapes. A scale of the whole operand is [1].
            activation (str, optional): "relu", "gelu" (the exact form, by erf) or "silu". Default: none.
            **own: fields of the format by name, such as `group=32` or `block_k=128` (see below).

        Returns:
            Tensor: shape [..., N], contiguous, on the device of x. The result of an empty product (M, N or K of 0) is
            empty, or the bias. Products without scales are differentiable, twice too.

        Raises:
            InputError: a ValueError, in one line, if shapes, types or devices do not belong together, or tensors are
                sparse or nested and PyTorch has no function for the format.
            InvarianceError: a RuntimeError, if calls must be batch invariant and no kernel is.
            NotImplementedError: in the backward pass, if the product has scales.

        Also raises what PyTorch's own function raises, if that serves the call; never because nothing is tuned.
        """
        # What torch.compile reads of this function ends here.
        if is_traced():
            given = x, weight, bias, out_dtype, scale_a, scale_b, activation
            return self.direct(*given, own) if self.operator is None else self.operator(*given, **own)
        place: object
        tensors: tuple[Any, ...]
        # As _called does, in less time.
        if (
            bias is None
            and out_dtype is None
            and scale_a is None
            and scale_b is None
            and activation is None
            and not own
        ):
            place = id(weight), x.numel(), x.is_nested, _has_gradients()
            try:
                known = self._known.get(place)
            except TypeError:
                known = place = None
            # Without a tuple, which would have to be unpacked twice.
            if known is not None and known[0](x, weight) and forward_ad._current_level < 0 and not _modes():
                return known[1](x, weight)
            tensors = x, weight
        else:
            others = bias, scale_a, scale_b
            place = (
                *(id(weight), x.numel(), x.is_nested, _has_gradients(), *(each is None for each in others)),
                *(out_dtype, activation, *sorted(own.items())),
            )
            tensors = x, weight, *(each for each in others if each is not None)
            try:
                known = self._known.get(place)
            except TypeError:
                known = place = None
            if known is not None and known[0](*tensors) and forward_ad._current_level < 0 and not _modes():
                return known[1](*tensors)
        return self._unknown(place, tensors, (x, weight, bias, out_dtype, scale_a, scale_b, activation, own))

    def known(self, x: Any, weight: Any, bias: Any) -> Function | None:
        """What serves x by weight, with a bias or None, as a function of those that there are: where it is like a call
        that was made before, in what of PyTorch's modes counts too. Not for programs that torch.compile reads.
        """
        try:
            if bias is None:
                known = self._known.get((id(weight), x.numel(), x.is_nested, _has_gradients()))
                is_known = known is not None and known[0](x, weight)
            else:
                known = self._known.get(
                    (id(weight), x.numel(), x.is_nested, _has_gradients(), False, True, True, None, None)
                )
                is_known = known is not None and known[0](x, weight, bias)
        except TypeError:
            return None
        return known[1] if known is not None and is_known and forward_ad._current_level < 0 and not _modes() else None

    def _serve(self, given: tuple[Any, ...], tensors: tuple[Any, ...]) -> Served:
        x, weight, *rest = given
        if self._context.mode.is_on:
            served = serve_one_order(self._context, lambda x, weight: Given.of(self.op, x, weight, *rest), tensors)
            if served is not None:
                return served
        return serve(self._context, Given.of(self.op, x, weight, *rest), tensors)

    def _library(self, given: tuple[Any, ...]) -> Function:
        return by_library(Given.of(self.op, *given))

    def _by_pytorch(self, why: str, tensors: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        x, weight, bias, out_dtype, scale_a, scale_b, activation, own = given
        # torch.nn.functional.linear itself, which asks neither for strides nor for sizes.
        linear = (
            None if own or scale_a is not None or scale_b is not None else linear_like(self.op, x, weight, out_dtype)
        )
        if linear is None or self._context.mode.is_on or activation not in (None, *ACTIVATIONS):
            return super()._by_pytorch(why, tensors, given)
        c = linear(x, weight) if bias is None else linear(x, weight, bias)
        return c if activation in (None, "none") else getattr(torch.nn.functional, activation)(c)

    def is_tuned(self, x: Any, weight: Any, own: Mapping[str, int | str], bias: Any = None) -> bool:
        """Whether anything but the library's own call serves x by weight and no more but a bias, traced or not; who
        watches is told of it. Sizes that are symbols have no row.
        """
        has_sizes = all(type(size) is int for size in (*x.shape, *weight.shape))
        if not has_sizes or not (_is_compiled() or is_plain_call((x, weight))):
            return False
        given = x, weight, bias, None, None, None, None, own
        return self.remembered(_key(given), lambda: self._has_row(Given.of(self.op, *given)))

    def _is_trained(self, key: object, given: tuple[Any, ...]) -> bool:
        x, weight, *_ = given
        wanted = x.requires_grad, weight.requires_grad
        return self.remembered((key, wanted), lambda: self._have_rows(Given.of(self.op, *given), wanted))

    def remembered(self, key: object, found: Callable[[], bool]) -> bool:
        """What is `found` out in this mode, until what is tuned is looked into anew."""
        mode, here = self._context.mode, self._found
        known = here.trained.get(key)
        if known is None:
            known = found()
            if len(here.trained) >= _MOST_KEPT:
                here.trained.clear()
            # After a switch meanwhile it may be of either mode.
            if self._context.mode is mode and here.mode == mode.name:
                here.trained[key] = known
        return known

    def _has_row(self, given: Given) -> bool:
        problem = as_tuned(self._context, given)
        return problem is not None and is_tuned(self._context, given.device, problem)

    def _have_rows(self, given: Given, wanted: tuple[bool, bool]) -> bool:
        """Whether either of the gradients that are wanted, of x and of the weight, has one."""
        gradients = () if given.problem is None else gradients_of(given.problem)
        chosen = [each for each, is_wanted in zip(gradients, wanted, strict=False) if is_wanted]
        # Whoever watches is told of both.
        return sum(is_tuned(self._context, given.device, each) for each in chosen) > 0


def _documentation(name: str, calls: Calls) -> str:
    """The docstring of a format's function: its signature, its arguments, and what the format is."""
    function = inspect.getattr_static(type(calls), "__call__", calls.direct)
    _, *parameters = inspect.signature(function).parameters.values()
    arguments = ", ".join(str(each.replace(annotation=inspect.Parameter.empty)) for each in parameters)
    text = inspect.cleandoc(function.__doc__ or "")
    return f"{name}({arguments}) -> Tensor\n\n{text}\n\nThe format {inspect.cleandoc(doc_of(calls.op.name))}\n"


def _is_compiled() -> bool:
    """Whether this is of a program that is compiled; PyTorch 2.11 does not say so while it traces the backward pass."""
    return torch.compiler.is_compiling() or TracingContext.try_get() is not None


def is_plain_call(tensors: tuple[Any, ...]) -> bool:
    """Whether a call needs nothing of PyTorch's dispatcher but gradients: no tracing, no mode, and plain tensors."""
    if torch.compiler.is_compiling() or _modes() or _is_transformed():
        return False
    return all(map(is_plain, tensors))


def _kind_of(tensor: Any) -> str:
    """What the tensor is, for a message: its class, or the layout of a sparse or nested tensor."""
    if type(tensor) not in PLAIN:
        return f"a {type(tensor).__name__}"
    return "a nested tensor" if tensor.is_nested else f"a tensor with layout {tensor.layout}"


def _is_transformed() -> bool:
    """Whether torch.func transforms this call, or it is differentiated forward."""
    return torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def _want(tensors: tuple[Any, ...]) -> bool:
    """Whether a gradient of any of them is wanted."""
    return any(each.requires_grad for each in tensors)


def _key(given: tuple[Any, ...]) -> object:
    """What decides who serves a call: of tensors how they lie."""
    *arguments, own = given
    return *(_form(each) if isinstance(each, torch.Tensor) else each for each in arguments), *sorted(own.items())


def _form(tensor: Any) -> object:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()
