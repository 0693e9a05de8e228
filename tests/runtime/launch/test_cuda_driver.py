"""Tests of genkern.runtime.launch.cuda_driver: structures and numbers are those of cuda.h (a stand-in includes it)."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from launch_ways import HAS_EXTENSION

from genkern.errors import LaunchError
from genkern.runtime.bundles.records import Encoding
from genkern.runtime.launch import cuda_driver
from genkern.runtime.launch.cuda_driver import CudaDriver
from genkern.runtime.launch.launch_shape import LaunchShape, PreparedLaunch
from genkern.runtime.launch.launcher import PythonLaunches, native_launches
from genkern.runtime.launch.parameters import ALIGNMENT, Address, Layout, TensorMap

triton_cuda = pytest.importorskip("triton.backends.nvidia")
CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")
MAKERS = {"ctypes": PythonLaunches} | ({"native": native_launches} if HAS_EXTENSION else {})
MAP = TensorMap("a", Encoding(9, 2, (128, 64), 3), Layout(300, 512, 520, 2))


class FakeLibrary:
    """The driver on the stand-in, and what that wrote down."""

    def __init__(self, path: str) -> None:
        self.driver = CudaDriver(path)
        self.driver.library.fake_log.restype = ctypes.c_char_p
        self.reset()

    def reset(self, failing: bool = False) -> None:
        self.driver.library.fake_reset(ctypes.c_int(failing))

    @property
    def lines(self) -> list[str]:
        return str(self.driver.library.fake_log().decode()).splitlines()


@pytest.fixture(scope="module")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("libcuda") / "libfake.so"
    include = Path(str(next(iter(triton_cuda.__path__)))) / "include"
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run([str(CC), "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(path)], check=True)
    return str(path)


@pytest.fixture
def fake(library_path: str) -> FakeLibrary:
    return FakeLibrary(library_path)


def test_a_kernel_is_loaded_once(fake: FakeLibrary) -> None:
    """With its shared memory asked for beyond 48 KiB, and in a mode in which a graph may be captured."""
    for _ in range(2):
        assert fake.driver.function(0, "aa", b"\x7fELFxx", "kernel", 50000) == 0x20
    loaded = ["relaxed", "load \x7fELF", "function kernel of 0x10"]
    assert fake.lines == [*loaded, "prefers shared 0x20 1", "shared 0x20 1 50000", "global"]
    fake.reset()
    fake.driver.function(1, "aa", b"\x7fELFxx", "kernel", 48 * 1024)
    assert fake.lines == [*loaded, "global"]


def test_workspace_is_zeroed_beside_any_capture(fake: FakeLibrary) -> None:
    """By a stream of its own that waits for no other, in a mode in which a graph may be captured."""
    assert fake.driver.memory(4096) == 0x500
    made = ["memory 4096", "stream, waits for none 1", "0 in 4096 at 0x500 by 0x70", "wait for 0x70", "end of 0x70"]
    assert fake.lines == ["relaxed", *made, "global"]
    fake.reset(failing=True)
    with pytest.raises(LaunchError, match="4096 bytes of workspace: what the driver says"):
        fake.driver.memory(4096)
    assert fake.lines[-1] == "global"


def test_workspace_is_given_back(fake: FakeLibrary) -> None:
    """Beside any capture too; a stream that may end has a number of its own, above that of those that do not."""
    fake.driver.release(0x500)
    assert fake.lines == ["relaxed", "free 0x500", "global"]
    assert fake.driver.stream_number(0x70) == 0x74
    fake.reset(failing=True)
    with pytest.raises(LaunchError, match="freeing workspace"):
        fake.driver.release(0x500)
    with pytest.raises(LaunchError, match="the number of a stream"):
        fake.driver.stream_number(0x70)


def test_a_thread_without_a_context_gets_the_devices(fake: FakeLibrary) -> None:
    """Once: PyTorch makes it current no sooner than it needs it itself."""
    fake.reset(failing=True)
    with pytest.raises(LaunchError, match="device 2"):
        fake.driver.enter(2)
    fake.reset()
    fake.driver.enter(2)
    fake.driver.enter(2)
    assert fake.lines == ["primary context of 42", "current 0x50"]


@pytest.mark.parametrize("how", MAKERS)
def test_a_launch_is_the_drivers(fake: FakeLibrary, how: str) -> None:
    """Grid, block, shared memory, stream, attributes and parameters come as cuda.h has them."""
    plain = PreparedLaunch(LaunchShape(0x30, (4, 3, 2), 256, 1000), (Address("a"),))
    cluster = PreparedLaunch(LaunchShape(0x40, (5, 1, 1), 128, 0, cluster=2, starts_early=True), (Address("b"),))
    launches = MAKERS[how](fake.driver, [plain, cluster], {"a": 0, "b": 1}, 2)
    assert launches.launch(0x77, (160, 320))
    assert fake.lines == [
        "launch 0x30 4x3x2 of 256x1x1, 1000 bytes, stream 0x77, extra (nil): first 160",
        "launch 0x40 10x1x1 of 128x1x1, 0 bytes, stream 0x77, extra (nil): early 1 cluster 2x1x1 spread 1 first 320",
    ]


@pytest.mark.parametrize("how", MAKERS)
def test_a_map_is_the_drivers(fake: FakeLibrary, how: str) -> None:
    """The contiguous dimension first, pitch in bytes, and room at a multiple of 64."""
    launch = PreparedLaunch(LaunchShape(0x30, (1, 1, 1), 128, 0), (MAP,))
    MAKERS[how](fake.driver, [launch], {"a": 0}, 1).launch(0, (4096,))
    assert fake.lines[0] == (
        "map bf16 1 rank 2 at 0x1000, 512x300 by 1040, box 64x128, steps 1x1, plain 1, swizzle128 1, l2_128 1, "
        "zeros 1, aligned 1"
    )
    # The second word of the map has lost its bit only where the tensor is small.
    assert fake.lines[1].endswith(f"first {2**64 - 1}")


def test_small_tensors_lose_a_bit(fake: FakeLibrary) -> None:
    """Below 128 KiB, as CUTLASS and Triton have it for this driver."""
    small = TensorMap("a", MAP.encoding, Layout(100, 512, 512, 2))
    assert fake.driver.clears_bit(small)
    assert not fake.driver.clears_bit(MAP)
    words = [int.from_bytes(fake.driver.tensor_map(form, 4096)[8:16], "little") for form in (small, MAP)]
    assert words == [2**64 - 1 - 2**21, 2**64 - 1]


@pytest.mark.parametrize("how", MAKERS)
def test_refusals_have_the_drivers_words(fake: FakeLibrary, how: str) -> None:
    """For binaries, maps and launches."""
    fake.reset(failing=True)
    said = r"what the driver says \(CUDA error "
    with pytest.raises(LaunchError, match=said + "200"):
        fake.driver.function(0, "bb", b"\x7fELF", "kernel", 0)
    with pytest.raises(LaunchError, match=said + "1"):
        fake.driver.tensor_map(MAP, 4096)
    for parameter, number in ((Address("a"), 719), (MAP, 1)):
        launches = MAKERS[how](
            fake.driver, [PreparedLaunch(LaunchShape(1, (1, 1, 1), 128, 0), (parameter,))], {"a": 0}, 1
        )
        with pytest.raises(LaunchError, match=f"{said}{number}"):
            launches.launch(0, (4096,))


def test_captures_have_numbers(fake: FakeLibrary) -> None:
    """0 where none is."""
    assert [fake.driver.capture(stream) for stream in (0, 5)] == [0, 99]


def test_no_driver_is_said() -> None:
    with pytest.raises(LaunchError, match="no CUDA driver"):
        CudaDriver("libcuda_that_is_not_there.so.1")


def test_the_extension_has_the_same_numbers() -> None:
    """What both ways of launching must know of cuda.h is said in C and in Python, and is the same."""
    folder = Path(cuda_driver.__file__).parent
    text = "".join((folder / name).read_text(encoding="utf-8") for name in ("_native.c", "_native_call.h"))
    said = dict(re.findall(r"#define (\w+) \(?(\d+(?:ull << \d+)?)\)?$", text, flags=re.MULTILINE))
    names = ("CLUSTER_DIMENSION", "CLUSTER_SCHEDULING", "STARTS_EARLY", "SPREAD", "L2_128B", "RELAXED")
    assert {name: int(said[name]) for name in names} == {name: getattr(cuda_driver, f"_{name}") for name in names}
    bit, shift = map(int, said["BIT"].split("ull <<"))
    assert (bit << shift, int(said["ALIGNMENT"])) == (cuda_driver._BIT, ALIGNMENT)
