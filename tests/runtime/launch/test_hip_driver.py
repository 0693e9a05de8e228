"""Tests of genkern.runtime.launch.hip_driver, by a stand-in for libamdhip64: it has never run on AMD hardware."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from launch_ways import HAS_EXTENSION
from recording_gpu import FakeGpu
from small_bundle import winners_for

from genkern.errors import LaunchError
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.records import Encoding
from genkern.runtime.launch import hip_driver
from genkern.runtime.launch.hip_driver import HipDriver
from genkern.runtime.launch.launch_shape import LaunchShape, PreparedLaunch
from genkern.runtime.launch.launcher import PythonLaunches, native_launches
from genkern.runtime.launch.parameters import Address, Layout, Number, TensorMap

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")
MAKERS = {"ctypes": PythonLaunches} | ({"native": native_launches} if HAS_EXTENSION else {})
# Signatures as in hip_runtime_api.h.
STAND_IN = r"""
#include <stdio.h>
#include <stdint.h>
#include <string.h>
static char log_[4096];
static int fails;
const char *fake_log(void) { return log_; }
void fake_reset(int failing) { log_[0] = 0; fails = failing; }
int hipModuleLoadData(void **module, const void *image) { *module = (void *)0x10; return fails ? 200 : 0; }
int hipModuleGetFunction(void **function, void *module, const char *name) { *function = (void *)0x20; return 0; }
int hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **params, void **extra) {
    sprintf(log_, "%p %ux%ux%u of %ux%ux%u, %u bytes, stream %p: %llu %d, %p", f, gx, gy, gz, bx, by, bz, shared,
            stream, *(unsigned long long *)params[0], *(int *)params[1], (void *)extra);
    return fails ? 1 : 0;
}
int hipStreamGetCaptureInfo(void *stream, int *status, unsigned long long *number) {
    *status = stream ? 1 : 0; *number = 7; return 0;
}
int hipSetDevice(int device) { sprintf(log_, "device %d", device); return 0; }
int hipGetDevice(int *device) { *device = 3; return 0; }
int hipThreadExchangeStreamCaptureMode(int *mode) {
    sprintf(log_ + strlen(log_), "mode %d, ", *mode); *mode = 0; return 0;
}
int hipMalloc(void **address, size_t size) { *address = (void *)0x500; return fails ? 2 : 0; }
int hipStreamCreateWithFlags(void **stream, unsigned flags) { *stream = (void *)0x70; return flags != 1; }
int hipMemsetAsync(void *address, int value, size_t size, void *stream) {
    sprintf(log_ + strlen(log_), "%d in %zu at %p by %p, ", value, size, address, stream); return 0;
}
int hipStreamSynchronize(void *stream) { sprintf(log_ + strlen(log_), "waits, "); return 0; }
int hipStreamDestroy(void *stream) { return 0; }
const char *hipGetErrorString(int status) { return "what HIP says"; }
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> HipDriver:
    folder = tmp_path_factory.mktemp("libhip")
    (folder / "hip.c").write_text(STAND_IN)
    path = folder / "libstandinhip.so"
    subprocess.run([str(CC), "-w", "-shared", "-fPIC", str(folder / "hip.c"), "-o", str(path)], check=True)
    made = HipDriver(str(path))
    made.library.fake_log.restype = ctypes.c_char_p
    return made


def test_the_library_is_the_one_that_pytorch_has_loaded(driver: HipDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under whatever name and in whatever folder; the system's where none is loaded."""
    loaded = driver.library._name
    assert loaded in hip_driver.mapped_files()
    mapped = ["[heap]", "/opt/a b/torch/lib/libamdhip64.so.7.1", "/usr/lib/libc.so.6"]
    assert hip_driver.library_path(mapped) == "/opt/a b/torch/lib/libamdhip64.so.7.1"
    assert hip_driver.library_path(["/usr/lib/libc.so.6"]) == "libamdhip64.so"
    with pytest.raises(LaunchError, match="no HIP runtime"):
        HipDriver()
    monkeypatch.setattr(hip_driver, "_LIBRARY", Path(loaded).name)
    assert HipDriver().library._name == loaded


@pytest.mark.parametrize("how", MAKERS)
def test_a_launch_is_hips(driver: HipDriver, how: str) -> None:
    """Sizes, LDS, stream and parameters in the order of hipModuleLaunchKernel."""
    driver.library.fake_reset(0)
    function = driver.function(0, "aa", b"\x7fELF", "kernel", 1000)
    launch = PreparedLaunch(LaunchShape(function, (4, 3, 2), 256, 1000), (Address("a"), Number(5, 4)))
    assert MAKERS[how](driver, [launch], {"a": 0}, 1).launch(0x77, (160,))
    assert driver.library.fake_log() == b"0x20 4x3x2 of 256x1x1, 1000 bytes, stream 0x77: 160 5, (nil)"
    driver.library.fake_reset(1)
    with pytest.raises(LaunchError, match=r"what HIP says \(HIP error 1\)"):
        MAKERS[how](driver, [launch], {"a": 0}, 1).launch(0, (160,))
    with pytest.raises(LaunchError, match=r"loading other: what HIP says \(HIP error 200\)"):
        driver.function(0, "bb", b"\x7fELF", "other", 0)


def test_there_are_no_tensor_maps(driver: HipDriver) -> None:
    """A plan that asks for one is refused."""
    with pytest.raises(LaunchError, match="TMA"):
        driver.tensor_map(TensorMap("a", Encoding(9, 2, (64, 64), 3), Layout(8, 8, 8, 2)), 4096)
    driver.enter(3)
    assert driver.library.fake_log() == b"device 3"
    assert [driver.capture(stream) for stream in (0, 5)] == [0, 7]


def test_workspace_is_zeroed_beside_any_capture(driver: HipDriver) -> None:
    """By a stream of its own, in a mode in which a graph may be captured; what HIP says is said."""
    driver.library.fake_reset(0)
    assert driver.memory(4096) == 0x500
    assert driver.library.fake_log() == b"mode 2, 0 in 4096 at 0x500 by 0x70, waits, mode 0, "
    assert driver.current() == 3
    driver.library.fake_reset(1)
    with pytest.raises(LaunchError, match="4096 bytes of workspace: what HIP says"):
        driver.memory(4096)


def test_plans_for_amd_are_launched(bundle: Bundle) -> None:
    """Those of gfx942 have as many threads as their warps of 64 have, and the sizes that their code object declares."""
    for winner in winners_for(bundle, "gfx942"):
        for sha256 in winner.calls[0].binaries:
            binary = bundle.contents.binaries[sha256]
            assert binary.threads % 64 == 0
            assert not binary.encodings
            assert FakeGpu().driver.function(0, sha256, bundle.image(sha256), binary.symbol, 0)
