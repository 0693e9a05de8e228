"""Calls as a program makes them: one behind the other without a wait, on two streams, and in graphs that run at once.

A kernel that keeps partial sums or counters between its steps may be right alone and wrong in such company: it leaves a
counter behind, reads the slot of another call, or relies on a wait that was there when it was tried. So two calls of
other inputs share a stream, or the device, and each must compute what is its own.

And launches as they were timed: what a graph of them leaves in C is compared with what one call alone leaves there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from genkern.profiling.checking.guard import first_true

Tensors = dict[str, Any]
# Each of two calls so often in a row. Sums that are read some 100 ns too early are seldom seen: with two calls each one
# of three such kernels passed (H100, 104x232x1043). Small products take no time.
_TURNS, _TURNS_OF_SMALL, _SMALL_ELEMENTS = 2, 16, 2**20
# Of the GPU, about 1 ms, in which the host enqueues all that is to come without a gap.
_BUSY_CYCLES = 2_000_000


def fault_together(
    launch: Callable[[Tensors], object], lanes: Sequence[Tensors], buffers: Sequence[str], fault: Callable[[int], str]
) -> str:
    """What is wrong when two calls are made together, "" when nothing is.

    `lanes` has the operands and buffers of both; `buffers` names the latter. `fault(lane)` says what is wrong with what
    a lane has, "" when nothing is. Raises what a launch raises.
    """
    for how, run in _ways(launch, lanes, buffers):
        for lane in lanes:
            lane["c"].fill_(float("nan"))
        run()
        for number in range(len(lanes)):
            if message := fault(number):
                return f"{how}: {message}"
    return ""


def _ways(
    launch: Callable[[Tensors], object], lanes: Sequence[Tensors], buffers: Sequence[str]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """How calls are made, and what makes them and waits for their end."""
    import torch

    first, on_gpu = {name: lanes[0][name] for name in buffers}, lanes[0]["c"].device.type == "cuda"
    turns = _TURNS_OF_SMALL if lanes[0]["c"].numel() <= _SMALL_ELEMENTS else _TURNS

    def in_a_row() -> None:
        if on_gpu:
            torch.cuda._sleep(_BUSY_CYCLES)
        for _ in range(turns if on_gpu else 1):
            for lane in lanes:
                launch({**lane, **first})

    yield "calls in a row", in_a_row
    if not on_gpu:
        return
    streams = [torch.cuda.Stream() for _ in lanes]

    def begin_at_once() -> None:
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[0]):
            torch.cuda._sleep(_BUSY_CYCLES)
        for stream in streams[1:]:
            stream.wait_stream(streams[0])

    def on_streams() -> None:
        begin_at_once()
        for _ in range(turns):
            for stream, lane in zip(streams, lanes, strict=True):
                with torch.cuda.stream(stream):
                    launch(dict(lane))
        torch.cuda.synchronize()

    yield "calls on two streams", on_streams
    try:
        graphs = [_captured(launch, lane, stream, turns) for lane, stream in zip(lanes, streams, strict=True)]
    except RuntimeError:
        # Some launches go into no graph, and are called without one; after a fault of the device this raises again.
        torch.cuda.synchronize()
        return

    def in_graphs() -> None:
        begin_at_once()
        for _ in range(_TURNS):
            for stream, graph in zip(streams, graphs, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()

    yield "replays of two graphs", in_graphs


def _captured(launch: Callable[[Tensors], object], lane: Tensors, stream: Any, turns: int) -> Any:
    """So many calls in a graph, by this stream."""
    import torch

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            for _ in range(turns):
                launch(dict(lane))
        finally:
            graph.capture_end()
    return graph


def fault_of_timed(c: Any, counters: Collection[Any], alone: Callable[[], object], timed: Callable[[], object]) -> str:
    """What `timed` launches leave otherwise than one call `alone`, "" when nothing: both end with the same operands.

    To the bit, which a sum in a fixed order allows. `counters` must be zero behind either. Takes as much memory as C.
    """
    kept = None
    for launch in (alone, timed):
        c.fill_(float("nan"))
        _wait(c)
        launch()
        _wait(c)
        if message := counters_left(counters):
            return message
        kept = c.clone() if kept is None else kept
    return _other_bits(c, kept)


def _other_bits(c: Any, kept: Any) -> str:
    import torch

    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[c.element_size()]
    other = c.view(bits) != kept.view(bits)
    if not (count := int(torch.count_nonzero(other).item())):
        return ""
    place = tuple(int(x) for x in torch.unravel_index(torch.tensor(first_true(other)), c.shape))
    where, found, alone = ", ".join(map(str, place)), c[place].item(), kept[place].item()
    return f"as timed C[{where}] is {found:.7g}, alone {alone:.7g}; {count:,} of {c.numel():,} differ"


def _wait(tensor: Any) -> None:
    if tensor.device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def counters_left(counters: Iterable[Any]) -> str:
    """What calls have left in counters that each finds zero, "" when nothing; zero they are from then on."""
    for each in counters:
        if bool(each.any()):
            first = first_true(each != 0)
            value = each[first].item()
            each.zero_()
            return f"leaves {value} in counters[{first}], not zero"
    return ""
