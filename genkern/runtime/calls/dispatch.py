"""The dispatcher: each number format as a function of tensors that launches the winner, or calls the library.

`Gemm` is the function of formats that multiply x by one weight.

What depends only on shapes, types and strides is found once and cached. A call like an earlier one is recognised by one
guard, the mechanism with which torch.compile checks whether compiled code still applies:
torch._C._dynamo.guards.TensorGuards compares types, sizes, strides, devices, requires_grad and PyTorch's modes (except
the gradient mode) in one call. The guard is looked up by the id of the weight, the size of x and the gradient mode. An
id may belong to another tensor by now; the guard detects that.
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
from genkern.runtime.calls.call_arguments import CallArguments
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.implementation import (
    CallImplementation,
    Function,
    as_tuned,
    by_library,
    gradients_of,
    implementation_of,
    invariant_implementation,
    is_tuned,
    linear_like,
)
from genkern.runtime.calls.plain_tensor import PLAIN, is_plain, multiplies_itself

# Cached shapes. A server with dynamic batches has thousands of shapes, and each takes about 10 KB.
_MOST_KEPT = 4096
# Cached guards, one per layer's weight and size of x. Each takes about 200 bytes.
_MOST_KNOWN = 2**16
# Returns True if the tensors match those that it was created from.
Guard = Callable[..., bool]


def _guard(*tensors: Any) -> Guard:
    made: Guard = torch._C._dynamo.guards.TensorGuards(
        *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    return made


def _has_guards() -> bool:
    """Return True if this PyTorch's TensorGuards work as expected: the class is not documented, so it may change."""
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
    """What calls have found in one mode (Context.mode).

    When the bundles are read again, a new Found replaces this one, since a running call may still read its tables.

    mode: the name of the Mode.
    before: implementations that were found before the bundles were read again, by call key.
    kept: implementations that were found since, by call key.
    guards: the guard of each call key.
    known: guard and function, by the key (`place`) that `_called` and `Gemm.__call__` compute.
    trained: whether a product, or a gradient of it, is served by a winner.
    """

    mode: str
    before: dict[object, CallImplementation] = field(default_factory=dict)
    kept: dict[object, CallImplementation] = field(default_factory=dict)
    guards: dict[object, Guard] = field(default_factory=dict)
    known: dict[object, tuple[Guard, Function]] = field(default_factory=dict)
    trained: dict[object, bool] = field(default_factory=dict)


class Calls:
    """The function of one number format. What serves a call is found once for calls that are alike, and cached.

    `given` are the arguments of a call in the order of its operator (torch_ops); the last one is the mapping of the
    format's own fields by name.
    """

    def __init__(self, op: str, context: Context) -> None:
        """Raise InputError if there is no number format `op`."""
        self.op = get_op(op)
        self._context = context
        self._by_mode: dict[str, Found] = {}
        self._switch()
        self.__name__ = f"gemm_{op}"
        self.__doc__ = _documentation(self.__name__, self)
        # The PyTorch operator, which serves calls that are traced or differentiated.
        self.operator: Callable[..., Any] | None = None
        context.on_change(self._renew)
        context.on_switch(self._switch)

    @property
    def context(self) -> Context:
        """The Context in which winners are looked up."""
        return self._context

    def _serve(self, given: tuple[Any, ...], tensors: tuple[Any, ...]) -> CallImplementation:
        """Return what serves calls with these arguments. Raises InputError."""
        raise NotImplementedError

    def _library(self, given: tuple[Any, ...]) -> Function:
        """Return the function that uses only the library's calls, which PyTorch's transforms understand."""
        raise NotImplementedError

    def _is_trained(self, key: object, given: tuple[Any, ...]) -> bool:
        """Return True if a winner, not the library's own call, serves a gradient that this call requires."""
        return False

    def _switch(self) -> None:
        """Use the tables of the current mode."""
        name = self._context.mode.name
        self._found = self._by_mode.setdefault(name, Found(name))
        # An attribute of its own, since it is the first thing that every call reads.
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
            # Sizes of fake tensors may be symbols, which cannot be hashed.
            known = place = None
        # Guards check neither tangents of forward differentiation nor the modes of fake and functional tensors.
        if known is not None and known[0](*tensors) and forward_ad._current_level < 0 and not _modes():
            return known[1](*tensors)
        return self._unknown(place, tensors, given)

    def _unknown(self, place: object, tensors: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        """Serve a call that no guard recognises, and create a guard for later calls like it."""
        found = self._found
        known, guards, kept = found.known, found.guards, found.kept
        if not is_plain_call(tensors):
            if not torch.compiler.is_compiling():
                # torch.func refuses grad and jvp of an operator that has a backward pass, and forward differentiation
                # drops the tangents of an operator without a formula for them.
                if _is_transformed():
                    return self._by_pytorch("torch.func transforms PyTorch's functions only", tensors, given)
                if (odd := next(filter(multiplies_itself, tensors), None)) is not None:
                    return self._by_pytorch(f"PyTorch multiplies {_kind_of(odd)}", tensors, given)
            if self.operator is not None:
                # PyTorch's dispatcher resolves lazy tensors (negated, or zeros without memory) before it calls kernels.
                return self.operator(*given[:-1], **given[-1])
            if not all(map(is_plain, tensors)):
                return self._library(given)(*tensors)
        key = _key(given)
        implementation = self._served(key, tensors, given)
        wants = self.operator is not None and torch.is_grad_enabled() and _want(tensors)
        if implementation is None or (
            wants and not (implementation.differentiable and not self._is_trained(key, given))
        ):
            assert self.operator is not None
            return self.operator(*given[:-1], **given[-1])
        # An implementation from `found.before`, which is returned only while a graph is captured, is not in `kept` and
        # gets no guard.
        if _GUARDS and kept.get(key) is implementation:
            guard = guards.get(key)
            if guard is None or not guard(*tensors):
                guard = _guard(*tensors)
            if len(known) >= _MOST_KNOWN:
                known.clear()
                guards.clear()
            guards[key], known[place] = guard, (guard, implementation.call)
        return implementation.call(*tensors)

    def _by_pytorch(self, why: str, tensors: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        """Serve the call with PyTorch's functions.

        Raises InvarianceError if calls must be batch-invariant (in the mode "warn", logs a warning instead), and
        InputError for sparse and nested tensors.
        """
        if self._context.mode.is_on:
            self._context.leave(self.__name__, why)
        odd = next((each for each in tensors if each.is_nested or each.layout is not torch.strided), None)
        if odd is not None:
            raise InputError(f"{self.__name__} takes dense strided tensors, not {_kind_of(odd)}")
        return self._library(given)(*tensors)

    def direct(self, *given: Any) -> Any:
        """Serve a call whose tensors have memory and need no gradient."""
        tensors = tuple(each for each in given if isinstance(each, torch.Tensor))
        implementation = self._served(_key(given), tensors, given)
        if implementation is None:
            assert self.operator is not None
            return self.operator(*given[:-1], **given[-1])
        return implementation.call(*tensors)

    def direct_into(self, out: Any, *given: Any) -> None:
        """Serve a call as `direct` does, and write its result into `out`, a tensor of the result's shape and type."""
        tensors = tuple(each for each in given if isinstance(each, torch.Tensor))
        implementation = self._served(_key(given), tensors, given)
        if implementation is None or implementation.into is None or not out.is_contiguous():
            out.copy_(self.direct(*given))
        else:
            implementation.into(out, *tensors)

    def _served(self, key: object, tensors: tuple[Any, ...], given: tuple[Any, ...]) -> CallImplementation | None:
        """Return what serves a call with this key; None while torch.jit traces it."""
        mode, found, x = self._context.mode, self._found, tensors[0]
        kept = found.kept
        implementation = kept.get(key)
        if implementation is None:
            # Under torch.jit.trace sizes are tensors, and no cached key with such sizes can be found.
            if self.operator is not None and x.dim() and type(x.shape[0]) is not int:
                return None
            # During graph capture, use what served the warm-up: its kernels are loaded, and loading is not possible
            # now.
            before = found.before.get(key)
            if before is not None and self._context.capturing(x.get_device()):
                return before
            implementation = self._serve(given, tensors)
            if len(kept) >= _MOST_KEPT:
                # `known` also refers to cached implementations, so it is cleared too.
                for each in (kept, found.before, found.known, found.guards, found.trained):
                    each.clear()
            # If the mode was switched meanwhile, the result may belong to either mode.
            if self._context.mode is mode and found.mode == mode.name:
                kept[key] = implementation
        return implementation


class Gemm(Calls):
    """The function of one number format that multiplies x by one weight, with the winners that `context` finds."""

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

        A winner of the bundles that GENKERN_CONFIG names serves the call if measurements of this M, or of other M, show
        that it is faster for this N, K, layout, types and GPU. Otherwise the library does: the algorithm that won, if
        any, else PyTorch's own function. Works under autograd, torch.compile, torch.export, CUDA graphs, torch.func and
        autocast as torch.nn.functional.linear does.

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
        # torch.compile traces this function only up to here.
        if is_traced():
            given = x, weight, bias, out_dtype, scale_a, scale_b, activation
            return self.direct(*given, own) if self.operator is None else self.operator(*given, **own)
        place: object
        tensors: tuple[Any, ...]
        # The same as _called, in less time.
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
            # Without a tuple, which would be packed here and unpacked again below.
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
        """Return the function that serves x, weight and bias if an earlier call was like this one; else None.

        The function takes x, weight, and bias unless that is None. PyTorch's modes must agree with those of the earlier
        call, too. Not usable in programs that torch.compile traces.
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

    def _serve(self, given: tuple[Any, ...], tensors: tuple[Any, ...]) -> CallImplementation:
        x, weight, *rest = given
        if self._context.mode.is_on:
            implementation = invariant_implementation(
                self._context, lambda x, weight: CallArguments.of(self.op, x, weight, *rest), tensors
            )
            if implementation is not None:
                return implementation
        return implementation_of(self._context, CallArguments.of(self.op, x, weight, *rest), tensors)

    def _library(self, given: tuple[Any, ...]) -> Function:
        return by_library(CallArguments.of(self.op, *given))

    def _by_pytorch(self, why: str, tensors: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        x, weight, bias, out_dtype, scale_a, scale_b, activation, own = given
        # Call torch.nn.functional.linear itself, which needs neither strides nor sizes.
        linear = (
            None if own or scale_a is not None or scale_b is not None else linear_like(self.op, x, weight, out_dtype)
        )
        if linear is None or self._context.mode.is_on or activation not in (None, *ACTIVATIONS):
            return super()._by_pytorch(why, tensors, given)
        c = linear(x, weight) if bias is None else linear(x, weight, bias)
        return c if activation in (None, "none") else getattr(torch.nn.functional, activation)(c)

    def is_tuned(self, x: Any, weight: Any, own: Mapping[str, int | str], bias: Any = None) -> bool:
        """Return True if a winner, not the library's own call, serves x times weight, traced or not.

        Watches are told of the problem. False if a size is a symbol.
        """
        has_sizes = all(type(size) is int for size in (*x.shape, *weight.shape))
        if not has_sizes or not (_is_compiled() or is_plain_call((x, weight))):
            return False
        given = x, weight, bias, None, None, None, None, own
        return self.remembered(_key(given), lambda: self._has_row(CallArguments.of(self.op, *given)))

    def _is_trained(self, key: object, given: tuple[Any, ...]) -> bool:
        x, weight, *_ = given
        wanted = x.requires_grad, weight.requires_grad
        return self.remembered((key, wanted), lambda: self._have_rows(CallArguments.of(self.op, *given), wanted))

    def remembered(self, key: object, found: Callable[[], bool]) -> bool:
        """Return the cached result of `found()` in the current mode, until the bundles are read again."""
        mode, here = self._context.mode, self._found
        known = here.trained.get(key)
        if known is None:
            known = found()
            if len(here.trained) >= _MOST_KEPT:
                here.trained.clear()
            # If the mode was switched meanwhile, the result may belong to either mode.
            if self._context.mode is mode and here.mode == mode.name:
                here.trained[key] = known
        return known

    def _has_row(self, arguments: CallArguments) -> bool:
        problem = as_tuned(self._context, arguments)
        return problem is not None and is_tuned(self._context, arguments.device, problem)

    def _have_rows(self, arguments: CallArguments, wanted: tuple[bool, bool]) -> bool:
        """Return True if a winner serves a wanted gradient. `wanted` has one flag for x and one for the weight."""
        gradients = () if arguments.problem is None else gradients_of(arguments.problem)
        chosen = [each for each, is_wanted in zip(gradients, wanted, strict=False) if is_wanted]
        # Not any(): watches must be told of both gradients.
        return sum(is_tuned(self._context, arguments.device, each) for each in chosen) > 0


def _documentation(name: str, calls: Calls) -> str:
    """Return the docstring of a format's function: signature, arguments, and a description of the format."""
    function = inspect.getattr_static(type(calls), "__call__", calls.direct)
    _, *parameters = inspect.signature(function).parameters.values()
    arguments = ", ".join(str(each.replace(annotation=inspect.Parameter.empty)) for each in parameters)
    text = inspect.cleandoc(function.__doc__ or "")
    return f"{name}({arguments}) -> Tensor\n\n{text}\n\nThe format {inspect.cleandoc(doc_of(calls.op.name))}\n"


def _is_compiled() -> bool:
    """Return True in a program that is being compiled.

    PyTorch 2.11's is_compiling() is False while the backward pass is traced.
    """
    return torch.compiler.is_compiling() or TracingContext.try_get() is not None


def is_plain_call(tensors: tuple[Any, ...]) -> bool:
    """Return True if a call needs nothing of PyTorch's dispatcher but gradients: no tracing, no mode, plain tensors."""
    if torch.compiler.is_compiling() or _modes() or _is_transformed():
        return False
    return all(map(is_plain, tensors))


def _kind_of(tensor: Any) -> str:
    """Return what the tensor is, for a message: its class, or the layout of a sparse or nested tensor."""
    if type(tensor) not in PLAIN:
        return f"a {type(tensor).__name__}"
    return "a nested tensor" if tensor.is_nested else f"a tensor with layout {tensor.layout}"


def _is_transformed() -> bool:
    """Return True if torch.func transforms this call, or if it is differentiated in forward mode."""
    return torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def _want(tensors: tuple[Any, ...]) -> bool:
    """Return True if any of the tensors requires a gradient."""
    return any(each.requires_grad for each in tensors)


def _key(given: tuple[Any, ...]) -> object:
    """Return the key of a call. It holds shape, strides, type and device of each tensor, and all other arguments."""
    *arguments, own = given
    return *(_form(each) if isinstance(each, torch.Tensor) else each for each in arguments), *sorted(own.items())


def _form(tensor: Any) -> object:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()
