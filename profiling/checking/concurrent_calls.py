"""Check concurrent calls: back to back in one stream, on two streams, and in two graphs that run at the same time.

On a CPU, only calls in a row are checked; launches that cannot be captured are not checked in graphs.

A kernel that uses a workspace or counters may be right alone and wrong next to another call: it leaves a counter
nonzero, reads another call's workspace, or relies on a synchronisation that only the test provided. So two calls with
different inputs share a stream or the device, and each must compute its own result.

`fault_of_timed` compares the C of launches as they are timed (a graph of calls) with the C of a single call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from genkern.profiling.checking.guard import first_true

Tensors = dict[str, Any]
# Number of repetitions of each call. Reads of partial sums that come some 100 ns too early are seldom seen: with two
# repetitions each of three such kernels passed once (H100, 104x232x1043). Small products are cheap to repeat.
_TURNS, _TURNS_OF_SMALL, _SMALL_ELEMENTS = 2, 16, 2**20
# GPU clock cycles (about 1 ms) during which the host enqueues all calls without a gap.
_BUSY_CYCLES = 2_000_000


def fault_together(
    launch: Callable[[Tensors], object], lanes: Sequence[Tensors], buffers: Sequence[str], fault: Callable[[int], str]
) -> str:
    """Return a message about the first fault of two calls that are made together, or "".

    launch: makes a call with a lane's tensors
    lanes: operands and buffers of each of the two calls
    buffers: names of the buffers in a lane
    fault: returns what is wrong with the result in lane number `i`, or ""

    Raises what a launch raises.
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
    """Yield the description of each way to make the calls, and a function that makes them.

    The results may be read in the current stream afterwards.
    """
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
        # Some launches cannot be captured in a graph; these are tested without one. If the device has faulted,
        # synchronize raises again.
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
    """Return a graph of `turns` calls, captured on `stream`."""
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
    """Return a message if `timed` launches leave another C than one call `alone` does, or "".

    Both compute C from the same operands. C is compared to the bit, so the kernel must add in a fixed order.
    `counters` must be zero after either. Needs as much additional memory as C has.
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
    return f"timed launches: C[{where}] is {found:.7g}, alone {alone:.7g}; {count:,} of {c.numel():,} elements differ"


def _wait(tensor: Any) -> None:
    if tensor.device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def counters_left(counters: Iterable[Any]) -> str:
    """Return a message about the first counter that calls left nonzero, or ""; zeroes the tensor that holds it."""
    for each in counters:
        if bool(each.any()):
            first = first_true(each != 0)
            value = each[first].item()
            each.zero_()
            return f"leaves {value} in counters[{first}], not zero"
    return ""
