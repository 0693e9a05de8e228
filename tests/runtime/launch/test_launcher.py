"""Tests of genkern.runtime.launch.launcher: launches by the C extension and through ctypes do the same."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_ways import needs_extension
from long_tests import repeats
from recording_gpu import FakeDriver, Launched

from genkern.errors import LaunchError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_device
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.product import product_of
from genkern.kernels.legality import legal
from genkern.kernels.specs import plan_text
from genkern.ops.op import get_op
from genkern.runtime.bundles.records import Encoding
from genkern.runtime.launch import launcher
from genkern.runtime.launch.launch_shape import LaunchShape, PreparedLaunch
from genkern.runtime.launch.launcher import Launches, PythonLaunches, native_launches
from genkern.runtime.launch.parameters import Address, Layout, Number, Parameter, TensorMap

NAMES = ("a", "b", "c", "workspace")
SLOTS = {name: place for place, name in enumerate(NAMES)}
MAKERS: dict[str, Callable[..., Launches]] = {"ctypes": PythonLaunches, "native": native_launches}
BOTH = [pytest.param("native", marks=needs_extension), "ctypes"]


def driver_of(launches: list[PreparedLaunch]) -> FakeDriver:
    """A driver that knows the parameters of these launches."""
    driver = FakeDriver()
    for launch in launches:
        sizes = tuple(parameter.size_bytes for parameter in launch.parameters)
        driver._kernels[launch.shape.function] = f"kernel_{launch.shape.function}", sizes
    return driver


parameters: st.SearchStrategy[Parameter] = st.one_of(
    st.builds(Address, st.sampled_from(NAMES)),
    st.builds(Number, st.integers(0, 2**31 - 1), st.just(4)),
    st.builds(Number, st.integers(0, 2**63 - 1), st.just(8)),
    st.builds(
        TensorMap,
        st.sampled_from(NAMES),
        st.builds(Encoding, st.integers(0, 10), st.sampled_from([1, 2]), st.just((64, 32)), st.integers(0, 3)),
        st.builds(Layout, st.integers(1, 99), st.integers(1, 99), st.integers(100, 200), st.just(2)),
        offset_bytes=st.sampled_from([0, 0, 128, 2**33]),
    ),
)
shapes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(1))
launch_lists = st.lists(
    st.tuples(shapes, st.sampled_from([1, 2, 4]), st.booleans(), st.lists(parameters)), min_size=1, max_size=3
)
addresses = st.tuples(*[st.integers(1, 2**40).map(lambda number: 16 * number)] * 4)


@needs_extension
@given(made=launch_lists, calls=st.lists(addresses, min_size=1, max_size=12), stream=st.integers(0, 2**48))
@settings(max_examples=repeats(40, 100))
def test_both_launch_the_same(
    made: list[tuple[tuple[int, int, int], int, bool, list[Parameter]]], calls: list[tuple[int, ...]], stream: int
) -> None:
    """Whatever is launched, at whatever addresses, in whatever order: the driver sees the same."""
    launches = [
        PreparedLaunch(LaunchShape(number + 1, grid, 128, 1000, cluster, early), tuple(given))
        for number, (grid, cluster, early, given) in enumerate(made)
    ]
    seen: list[list[Launched]] = []
    maps = []
    for maker in MAKERS.values():
        driver = driver_of(launches)
        found = maker(driver, launches, SLOTS, 3)
        assert all(found.launch(stream, call) for call in calls)
        seen.append(driver.launched)
        maps.append(driver.encoded)
    assert seen[0] == seen[1]
    assert maps[0] == maps[1]
    assert len(seen[0]) == len(calls) * len(launches)


def test_the_extension_has_room_for_every_kernel() -> None:
    """Of tiles whose odd heights several programs store there are most TMA descriptors, each with shape and pitches."""
    source = Path(launcher.__file__).with_name("_native.c").read_text(encoding="ascii")
    most_parameters, most_maps = (
        int(number) for number in re.findall(r"#define MOST_(?:PARAMETERS|MAPS) (\d+)", source)
    )
    problem, gpu = GemmProblem(1024, 4096, 4096), gpu_for_device("NVIDIA H200", "sm_90")
    product = product_of(problem, get_op(problem.op), "sm_90")
    numbers = []
    for rows in range(8, 257, 8):
        config = Config.parse(f"warp_specialized_BM{rows}_BN64_BK64_GM1_SK1_nW4_nS3_ck8_swapped")
        if not legal(problem, config, gpu):
            (launch,) = json.loads(plan_text(product, config, gpu))["launches"]
            maps = sum(argument["kind"] == "descriptor" for argument in launch["arguments"])
            numbers.append((maps, 4 * maps + len(launch["arguments"])))
    assert max(numbers) == (20, 104)
    assert max(numbers) <= (most_maps, most_parameters)


def one_launch(*given: Parameter) -> list[PreparedLaunch]:
    return [PreparedLaunch(LaunchShape(1, (2, 1, 1), 128, 0), given)]


@pytest.mark.parametrize("how", BOTH)
def test_operands_off_16_bytes_launch_nothing(how: str) -> None:
    """Only operands count: a workspace is the runtime's own."""
    launches = one_launch(Address("a"), Address("workspace"))
    driver = driver_of(launches)
    found = MAKERS[how](driver, launches, SLOTS, 3)
    assert not found.launch(0, (16, 24, 32, 16))
    assert not driver.launched
    assert found.launch(0, (16, 32, 48, 8))


@pytest.mark.parametrize("how", BOTH)
def test_a_failing_launch_says_so(how: str) -> None:
    """With the driver's words."""
    launches = one_launch(Address("a"))
    driver = driver_of(launches)
    driver.fails = True
    with pytest.raises(LaunchError, match="a launch failed: CUDA error 719"):
        MAKERS[how](driver, launches, SLOTS, 3).launch(0, (16, 32, 48, 64))


@pytest.mark.parametrize("how", BOTH)
def test_maps_are_encoded_once(how: str) -> None:
    """An address that was there before costs no encoding, and many addresses no growing memory."""
    form = TensorMap("a", Encoding(9, 2, (64, 64), 3), Layout(8, 64, 64, 2))
    launches = one_launch(form)
    driver = driver_of(launches)
    encoded = []
    one, entry = driver.tensor_map, driver._map
    driver.tensor_map = lambda form, address: encoded.append(address) or one(form, address)  # type: ignore[func-returns-value,method-assign]
    driver._map = lambda each: encoded.append(each.address) or entry(each)  # type: ignore[func-returns-value,method-assign]
    found = MAKERS[how](driver, launches, SLOTS, 3)
    for address in (16, 32, 16, 32, 16):
        found.launch(0, (address, 16, 16, 16))
    assert set(encoded) == {16, 32}
    assert len(encoded) <= 4
    for number in range(1, 300):
        found.launch(0, (16 * number, 16, 16, 16))
    assert [driver.map_in(launched.parameters[0]).address for launched in driver.launched[5:]] == [
        16 * number for number in range(1, 300)
    ]


@pytest.mark.parametrize("how", BOTH)
def test_threads_do_not_mix_their_arguments(how: str) -> None:
    """Each launch has the addresses of one call, whoever else launches."""
    launches = one_launch(Address("a"), Address("b"))
    driver = driver_of(launches)
    found = MAKERS[how](driver, launches, SLOTS, 3)

    def work(thread: int) -> None:
        for number in range(1, 200):
            address = 16 * (1000 * thread + number)
            found.launch(thread, (address, address, 16, 16))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launched) == 4 * 199
    for launched in driver.launched:
        assert launched.parameters[0] == launched.parameters[1]
        assert int.from_bytes(launched.parameters[0], "little") // 16000 == launched.stream


@pytest.mark.parametrize(("built", "taken"), [({"FORMS": 2}, True), ({"FORMS": 1}, False), ({}, False)])
def test_an_extension_of_an_earlier_build_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, built: dict[str, int], taken: bool
) -> None:
    """It would misread what it is handed; launches go through ctypes then, as where there is none."""
    extension = SimpleNamespace(**built)
    monkeypatch.setitem(sys.modules, "genkern.runtime.launch._native", extension)
    assert launcher._extension() is (extension if taken else None)
