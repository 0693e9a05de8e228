"""What serves a call, as a function of its tensors: the launches of a winner, or the library."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from genkern.errors import GenkernError, InputError, InvarianceError, LaunchError, ResultsError, one_line
from genkern.gemm.dtypes import BY_TORCH, DTYPES
from genkern.gemm.operand import Operand, contiguous_strides
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import Op, library_of, linear_of
from genkern.runtime.bundles.table import Choice
from genkern.runtime.calls.call_arguments import CallArguments, as_matrix
from genkern.runtime.calls.context import Context, Leave, problem_text
from genkern.runtime.launch.algorithm_call import AlgorithmCall
from genkern.runtime.launch.native_call import Form, native_call
from genkern.runtime.launch.parameters import ALIGNMENT, Layout
from genkern.runtime.launch.prepared_call import LiveGpu, PreparedCall

# A function of x, weight, and those of bias, scale_a and scale_b that are given, in this order. It returns the result.
Function = Callable[..., Any]
_ORDER = ("bias", "scale_a", "scale_b")


@dataclass(frozen=True)
class Launched:
    """A winner's launches as functions of a call's tensors.

    call: returns the result in a new tensor.
    into: takes the result's tensor first, and writes the result there; None if only `call` exists.
    """

    call: Function
    into: Function | None = None


@dataclass(frozen=True)
class CallImplementation:
    """The function that serves calls, and whether PyTorch can differentiate it.

    into: the same function, which writes into its first argument, a contiguous tensor of the result's shape and type;
        None if there is none.
    """

    call: Function
    differentiable: bool = False
    into: Function | None = None


def implementation_of(
    context: Context, arguments: CallArguments, tensors: Sequence[Any], leave: Leave | None = None
) -> CallImplementation:
    """Return what serves calls with these arguments and with tensors of the same layout as `tensors`.

    If the library serves them, `leave` is called with the reason (default: Context.leave, which logs it). Raises
    InvarianceError if calls must be batch-invariant and no kernel is.
    """
    problem, library = as_tuned(context, arguments), by_library(arguments)
    call = None
    if problem is not None:
        call = by_winner(
            context,
            arguments.device,
            problem,
            library,
            lambda gpu, choice: _launched(context, gpu, arguments, problem, choice, tensors, library),
            leave,
        )
    if call is not None:
        return CallImplementation(call.call)
    if problem is None:
        return CallImplementation(library, differentiable=_linear_of_nothing(arguments, *tensors) is not None)
    # Products with scales have no gradient, whichever kernel computes them (see torch_ops).
    return CallImplementation(library, differentiable=set(arguments.extra) <= {"bias"})


def invariant_implementation(
    context: Context, given_of: Callable[[Any, Any], CallArguments], tensors: Sequence[Any]
) -> CallImplementation | None:
    """Return what serves calls that must be batch-invariant; None if nothing does.

    `given_of` maps x and weight to arguments. If no kernel with the problem's order of sums takes the strides of x or
    weight, contiguous copies are multiplied.
    """
    x, weight, *extra = tensors
    arguments = given_of(x, weight)
    with contextlib.suppress(InvarianceError):
        return implementation_of(context, arguments, tensors, context.refuse)
    rows, columns = x.contiguous(), _without_gaps(weight)
    copied = given_of(rows, columns)
    gpu = context.gpu(arguments.device)
    if gpu is None or arguments.problem is None or copied.problem is None or (rows is x and columns is weight):
        return None
    orders = {context.sums(gpu, each) for each in (arguments.problem, copied.problem)} - {""}
    with contextlib.suppress(InvarianceError):
        call = implementation_of(context, copied, (rows, columns, *extra), context.refuse).call
        if len(orders) == 1:
            return CallImplementation(lambda x, weight, *extra: call(x.contiguous(), _without_gaps(weight), *extra))
    return None


def _without_gaps(weight: Any) -> Any:
    """Return the weight; if it has gaps, a copy without gaps in the same layout."""
    of_columns = weight.stride(-1) != 1 and weight.stride(-2) == 1
    return weight.mT.contiguous().mT if of_columns else weight.contiguous()


def as_tuned(context: Context, arguments: CallArguments) -> GemmProblem | None:
    """Return the call's problem; if operands have several layouts at once, the problem of the first tuned layout."""
    gpu = context.gpu(arguments.device) if arguments.others else None
    if arguments.problem is None or gpu is None:
        return arguments.problem
    several = arguments.problem, *arguments.others
    if context.mode.is_on:
        # Not by M: a single row, which has several layouts, must get the same order of sums as several rows.
        return next((each for each in several if context.sums(gpu, each)), arguments.problem)
    return next((each for each in several if context.find(gpu, each).exact), arguments.problem)


def is_tuned(context: Context, device: int, problem: GemmProblem) -> bool:
    """Return True if a winner, or a library algorithm that won, serves the problem; report the problem to watches."""
    gpu = context.gpu(device)
    choice = None if gpu is None else context.find(gpu, problem)
    context.watched(gpu, problem, choice)
    return choice is not None and (choice.call is not None or choice.algorithm != "")


def gradients_of(problem: GemmProblem) -> tuple[GemmProblem, ...]:
    """Return the products that compute the gradients of x [M, K] and of the weight [N, K].

    The output's gradient [M, N] is row-major. Empty if the operands have different types, since then no product of one
    type is their gradient.
    """
    if problem.dtype_a != problem.dtype_b:
        return ()
    m, n, k = problem.M, problem.N, problem.K
    plain = replace(problem, dtype_c=problem.dtype_a, bias=False, activation="none")
    return (
        replace(plain, N=k, K=n, row_major_a=True, row_major_b=not problem.row_major_b),
        replace(plain, M=n, N=k, K=m, row_major_a=False, row_major_b=problem.row_major_a),
    )


def by_winner(
    context: Context,
    device: int,
    problem: GemmProblem,
    library: Function,
    launched: Callable[[LiveGpu, Choice], Launched],
    leave: Leave | None = None,
) -> Launched | None:
    """Return what `launched` creates from the problem's winner; None if the library serves the problem.

    If the library does, also because `launched` raised, `leave` is called with the problem and the reason; it raises
    InvarianceError if the library may not serve the problem.
    """
    gpu, leave = context.gpu(device), leave or context.leave
    if gpu is None:
        context.watched(None, problem, None)
        if context.mode.is_on:
            leave(problem, "there is no GPU")
        return None
    choice = context.find(gpu, problem)
    context.watched(gpu, problem, choice)
    why = choice.why
    try:
        if choice.call is not None or choice.algorithm:
            try:
                call = launched(gpu, choice)
            except GenkernError:
                # The library's algorithm cannot run here. Kernels with the same order of sums give equal bits, so they
                # may replace it.
                if not (choice.sums and choice.algorithm):
                    raise
                choice = context.find(gpu, problem, kernels_alone=True)
                if choice.call is None:
                    raise
                call = launched(gpu, choice)
            may_vary = choice.winner is not None and not choice.winner.deterministic
            return Launched(_unless_deterministic(call.call, library)) if may_vary else call
    except GenkernError as error:
        why = str(error)
    except Exception as error:
        # A malicious bundle, a driver, or a bug in genkern: the program that makes the call must go on.
        why = f"its kernel cannot be launched ({one_line(error)})"
        context.say(("failed", problem.op, type(error)), f"{problem_text(problem)}: {why}", logging.WARNING)
    leave(problem, why)
    return None


def _unless_deterministic(call: Function, library: Function) -> Function:
    """Return a function that calls the library while torch.use_deterministic_algorithms is on, else `call`."""
    import torch

    wanted = torch.are_deterministic_algorithms_enabled

    def chosen(*tensors: Any) -> Any:
        return library(*tensors) if wanted() else call(*tensors)

    return chosen


def by_library(arguments: CallArguments) -> Function:
    """Return the library's product with scales, bias and activation, differentiable if the library's product is."""
    problem = arguments.problem
    if problem is None:
        return _of_nothing(arguments)
    product = library_of(problem.op)
    if product is None:
        raise InputError(
            f"{problem.op} has no library.py, so nothing serves problems that are not tuned (docs/your_own_format.md)"
        )
    if problem.activation == "none" and arguments.is_linear and (linear := linear_of(problem)) is not None:
        return linear
    shape, shape_a = (*arguments.lead, arguments.n), arguments.op.operands(problem)[0].tensor_shape
    places = _places(arguments)

    def call(x: Any, weight: Any, *extra: Any) -> Any:
        import torch

        # Operands are reshaped as the format declares them. Vectors keep their shape.
        named = {operand.name: extra[place].reshape(operand.shape) for place, operand in places}
        operands = {"a": x.reshape(shape_a), "b": weight.mT, **named}
        c = product(problem, operands).reshape(shape)
        return c if problem.activation == "none" else getattr(torch.nn.functional, problem.activation)(c)

    return call


def linear_like(op: Op, x: Any, weight: Any, out_dtype: Any) -> Function | None:
    """Return the single PyTorch function (such as F.linear) that computes the format's whole product of x, weight and
    bias for these types; None if there is none.
    """
    a, b, c = (BY_TORCH.get(str(dtype), "") for dtype in (x.dtype, weight.dtype, out_dtype or x.dtype))
    return linear_of(GemmProblem(1, 1, 1, op.name, a, b, c)) if a and b and c else None


def _places(arguments: CallArguments) -> list[tuple[int, Operand]]:
    """Return each operand besides the matrices in the format's order, with its index among a call's extra tensors."""
    order = [name for name in _ORDER if name in arguments.extra]
    return [
        (order.index(name), operand) for operand, name in zip(arguments.extra_operands, arguments.extra, strict=True)
    ]


def _of_nothing(arguments: CallArguments) -> Function:
    """Return the function of a product with M, N or K of 0, which has no elements or sums over nothing.

    PyTorch's own function computes it if the format has one for these types: gradients, autocast and torch.func are
    then the same as for any other size.
    """

    def call(x: Any, weight: Any, *extra: Any) -> Any:
        import torch

        if (linear := _linear_of_nothing(arguments, x, weight, *extra)) is not None:
            c = linear(x, weight, *extra)
        else:
            c = x.new_zeros((*arguments.lead, arguments.n), dtype=arguments.out)
            c = c + extra[0].to(arguments.out) if "bias" in arguments.extra else c
        return c if arguments.activation == "none" else getattr(torch.nn.functional, arguments.activation)(c)

    return call


def _linear_of_nothing(arguments: CallArguments, x: Any, weight: Any, *extra: Any) -> Function | None:
    return linear_like(arguments.op, x, weight, arguments.out) if arguments.is_linear else None


def _launched(
    context: Context,
    gpu: LiveGpu,
    arguments: CallArguments,
    problem: GemmProblem,
    choice: Choice,
    tensors: Sequence[Any],
    library: Function,
) -> Launched:
    """Return what launches the winner, or the library's best algorithm.

    Raises ResultsError or LaunchError if it cannot be prepared for tensors with these strides.
    """
    x, weight, *extra = tensors
    of_a, of_b, *_ = arguments.op.operands(problem)
    size = of_a.tensor_shape
    flat = as_matrix(x, arguments.op, problem.M)
    rows = x.new_empty(size) if flat is None else flat
    # A format that stores several rows together (shuffled weights) counts them as one row.
    b = _seen_as(weight, of_b.storage_shape) if of_b.together > 1 else weight
    if b is None:
        raise ResultsError("shuffled weights have gaps")
    b, batch = b.mT, problem.batch
    layouts = {
        "a": Layout.of(rows.shape, rows.stride(), problem.row_major_a, x.element_size()),
        "b": Layout.of(b.shape, b.stride(), problem.row_major_b, weight.element_size()),
        "c": Layout(problem.M, problem.N, problem.N, arguments.out.itemsize, batch, problem.M * problem.N),
    }
    for operand in arguments.extra_operands:
        *_, columns = operand.stored_shape
        element_bytes = DTYPES[operand.dtype].size_bytes
        count = batch if len(operand.shape) == 3 else 1
        rows_of_it = operand.elements // columns // count
        layouts[operand.name] = Layout(rows_of_it, columns, columns, element_bytes, count, rows_of_it * columns)
    prepared: PreparedCall | AlgorithmCall
    if choice.algorithm:
        prepared = AlgorithmCall(gpu, problem, choice.algorithm, layouts, exactly=choice.sums != "")
    else:
        prepared = PreparedCall(gpu, choice, layouts, problem.M)
    shape, places = (*arguments.lead, arguments.n), _places(arguments)
    gathers = flat is None

    def stored(x: Any, weight: Any, *extra: Any) -> tuple[Any, ...]:
        a = x.reshape(size) if gathers else x
        return (a, weight, *(as_stored(extra[place], operand) for place, operand in places))

    # True if the tensors of a call are exactly what kernels read, in the kernels' order.
    is_stored = not gathers and all(
        number == place and as_stored(extra[place], operand).data_ptr() == extra[place].data_ptr()
        for number, (place, operand) in enumerate(places)
    )
    traits = Form(len(tensors), shape, contiguous_strides(shape), arguments.out)
    if choice.sums:
        stored = aligned(stored, prepared.alignment)
    return launching(context, gpu, problem, choice, prepared, traits, library, stored, is_stored)


def launching(
    context: Context,
    gpu: LiveGpu,
    problem: GemmProblem,
    choice: Choice,
    prepared: PreparedCall | AlgorithmCall,
    traits: Form,
    library: Function,
    stored: Callable[..., tuple[Any, ...]],
    is_stored: bool,
) -> Launched:
    """Return functions that launch `prepared` on a call's tensors.

    After a failed launch, the library serves all calls. If the choice has one order of sums, a failure raises
    InvarianceError instead, unless the mode is "warn".

    `stored` converts the tensors of a call to the operands that kernels read, in their order without C. `is_stored`
    says that it returns the tensors themselves, unless one is misaligned.
    """
    shape, strides, out_dtype = traits.shape, traits.strides, traits.dtype
    stop_native, empty, reason = _nothing, gpu.empty, ""
    is_one_order = choice.sums != ""

    def failed(error: GenkernError) -> None:
        # From here on the library serves all calls, eager ones and captured ones alike.
        nonlocal reason
        reason = str(error) or "a launch failed"
        stop_native()
        if not is_one_order:
            context.leave(problem, reason)

    def is_launched(out: Any, tensors: tuple[Any, ...]) -> bool:
        if not reason:
            a, b, *kept = stored(*tensors)
            addresses = (each.data_ptr() for each in (a, b, out, *kept))
            try:
                if prepared(tuple(addresses)):
                    return True
            except LaunchError as error:
                failed(error)
        if is_one_order:
            context.leave(problem, reason or "its output is misaligned")
        return False

    def call(*tensors: Any) -> Any:
        out = empty(shape, strides, out_dtype)
        return out if is_launched(out, tensors) else library(*tensors)

    def into(out: Any, *tensors: Any) -> None:
        if not is_launched(out, tensors):
            out.copy_(library(*tensors))

    if not is_stored:
        return Launched(call, into)
    native = native_call(gpu, prepared, traits, call, failed)
    stop_native = native.stop
    return Launched(native.call, into)


def _nothing() -> None:
    pass


def _seen_as(x: Any, shape: tuple[int, ...]) -> Any:
    """Return x as a view with this shape; None if no view is possible."""
    try:
        return x.view(shape)
    except RuntimeError:
        return None


def aligned(stored: Callable[..., tuple[Any, ...]], alignment: int) -> Callable[..., tuple[Any, ...]]:
    """Return `stored` with a step that copies each misaligned tensor to aligned memory with the same strides."""
    import torch

    def copied(*tensors: Any) -> tuple[Any, ...]:
        return tuple(
            torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device).copy_(each)
            if each.data_ptr() % alignment
            else each
            for each in stored(*tensors)
        )

    return copied


def as_stored(tensor: Any, operand: Operand) -> Any:
    """Return the tensor as kernels read the operand: contiguous, 16-byte aligned, copied if necessary.

    Scales and biases are small, and often parts of larger tensors.
    """
    if tensor.dim() > 1 and not operand.row_major:
        tensor = tensor.reshape(operand.shape).mT
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
