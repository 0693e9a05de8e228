"""Tests of genkern.compile.binary.code_object: real Triton binaries beside the compilers' own tools, and hostile
bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import LONG, drawn, repeats
from small_gemms import SPLIT, TILED, make_module, specs_of
from triton.backends.compiler import GPUTarget
from triton_matmul import compile_matmul

from genkern.compile.binary.code_object import _Elf, read_resources
from genkern.errors import ResultsError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.source import ast_source
from genkern.kernels.specs import binary_name

# The second spills, which is the point: 256 sums a lane, in one warp of 64 lanes or two of 32. On NVIDIA the first does
# that as well where threads have no more registers than sums, and is compiled in an eighth of the time.
BLOCKS = [(64, 64, 64), (128, 128, 32)]
AMD = ["gfx942", "gfx1201", "gfx950"]
NVIDIA = ["sm_80", "sm_90", "sm_100"]


def each_of(archs: list[str]) -> list[tuple[str, tuple[int, int, int]]]:
    """Both blocks for one of these; in `make test-long` for all."""
    return [(arch, block) for arch in archs for block in BLOCKS if LONG or arch == archs[1]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Compile for (arch, block), each once, in a cache of this module's own."""
    done: dict[Any, Any] = {}

    def get(arch: str, block: tuple[int, int, int]) -> Any:
        if (arch, block) not in done:
            target = triton_target(gpu_for_arch(arch))
            if block == BLOCKS[0]:
                done[arch, block] = compile_matmul(target, block)
            elif arch in NVIDIA:
                done[arch, block] = compile_matmul(target, BLOCKS[0], 2, maxnreg=64)
            else:
                done[arch, block] = compile_matmul(target, block, 64 // target[2])
        return done[arch, block]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield get


@pytest.mark.parametrize(("arch", "block"), each_of(AMD))
def test_code_object_agrees_with_assembly(compiled: Any, arch: str, block: tuple[int, int, int]) -> None:
    """The note in the code object says what the metadata block of the assembly text says."""
    kernel = compiled(arch, block)
    text = dict(re.findall(r"^\s+(?:- )?\.(\w+):\s+(\d+)\s*$", kernel.asm["amdgcn"], re.MULTILINE))

    found = read_resources(kernel.asm["hsaco"], "hip", kernel.metadata.shared)

    assert int(text["vgpr_count"]) == found.registers
    assert int(text["sgpr_count"]) == found.scalar_registers
    assert int(text["vgpr_spill_count"]) == found.spills
    assert int(text["private_segment_fixed_size"]) == found.scratch_bytes
    assert (int(text["agpr_count"]) if "agpr_count" in text else None) == found.accumulator_registers
    assert kernel.metadata.shared == found.shared_bytes
    assert found.registers is not None
    assert found.registers > 32


@pytest.mark.parametrize(("arch", "block"), each_of(NVIDIA))
def test_cubin_agrees_with_cuobjdump(compiled: Any, arch: str, block: tuple[int, int, int], tmp_path: Path) -> None:
    """Registers and stack of the cubin are those that cuobjdump prints."""
    kernel = compiled(arch, block)
    path = tmp_path / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    text = subprocess.run([tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True).stdout
    printed = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert printed is not None

    found = read_resources(kernel.asm["cubin"], "cuda", kernel.metadata.shared)

    assert (int(printed[1]), int(printed[2])) == (found.registers, found.scratch_bytes)
    assert int(printed[2]) // 4 == found.spills
    assert kernel.metadata.shared == found.shared_bytes
    assert (found.accumulator_registers, found.scalar_registers) == (None, None)


def test_spilling_kernels_are_seen(compiled: Any) -> None:
    """A tile far too large for its warps spills on both vendors, a moderate one on neither."""
    spills = {}
    for arch, backend, binary in (("gfx1201", "hip", "hsaco"), ("sm_90", "cuda", "cubin")):
        for block in BLOCKS:
            found = read_resources(compiled(arch, block).asm[binary], backend, 0)
            spills[arch, block] = found.spills or 0
    assert spills["sm_90", BLOCKS[0]] == 0
    assert spills["sm_90", BLOCKS[1]] > 100
    assert spills["gfx1201", BLOCKS[1]] > 100


@pytest.mark.parametrize(
    ("arch", "backend", "extension"), drawn([("gfx942", "hip", "hsaco"), ("sm_90", "cuda", "cubin")], 1)
)
def test_the_digest_is_of_the_code_alone(tmp_path: Path, arch: str, backend: str, extension: str) -> None:
    """Kernels that differ in their names only have one digest; other code, or another descriptor, has another."""

    def digest(config: Config) -> str:
        folder = tmp_path / config.name
        folder.mkdir()
        module, loaded = make_module(folder, GemmProblem(64, 64, 256), [config], arch)
        spec = specs_of(module, config)[0]
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        kernel = triton.compile(ast_source(loaded, spec), GPUTarget(*triton_target(gpu_for_arch(arch))), options)
        assert kernel.metadata.name.endswith(binary_name(config))
        found = read_resources(kernel.asm[extension], backend, 0).code_sha256
        assert found is not None
        return found

    # The hint is in the name, and not in the options above.
    named = dataclasses.replace(TILED, schedule_hint="a-name-that-moves-all-that-follows-it")
    assert digest(TILED) == digest(named)
    others = [dataclasses.replace(TILED, BLOCK_SIZE_K=64), dataclasses.replace(TILED, num_warps=8)]
    assert len({digest(config) for config in [*others, SPLIT]} | {digest(dataclasses.replace(TILED, kpack=1))}) == 4


def test_another_descriptor_is_another_digest(compiled: Any) -> None:
    """Registers, LDS and modes stand in AMD's kernel descriptor; only the distance to the code does not count."""
    binary = bytearray(compiled("gfx942", BLOCKS[0]).asm["hsaco"])
    elf = _Elf.read(bytes(binary), 224)
    at = next(offset for name, offset, _ in elf.sections if name == ".rodata")
    before = read_resources(bytes(binary), "hip", 0).code_sha256
    for position, same in ((16, True), (23, True), (15, False), (24, False), (48, False)):
        changed = bytearray(binary)
        changed[at + position] ^= 1
        assert (read_resources(bytes(changed), "hip", 0).code_sha256 == before) is same


def test_no_code_is_no_digest() -> None:
    """A file without code equals nothing."""
    assert read_resources(kernels({".vgpr_count": 40}), "hip", 0).code_sha256 is None


def test_wrong_backend_is_named(compiled: Any) -> None:
    """A cubin read as a code object, or the reverse, is refused with a hint at the backend."""
    with pytest.raises(ResultsError, match="wrong backend"):
        read_resources(compiled("sm_90", BLOCKS[0]).asm["cubin"], "hip", 0)
    with pytest.raises(ResultsError, match="wrong backend"):
        read_resources(compiled("gfx942", BLOCKS[0]).asm["hsaco"], "cuda", 0)


def test_unknown_backend_is_refused() -> None:
    """Only Triton's names hip and cuda are backends."""
    with pytest.raises(ResultsError, match="unknown backend 'metal'"):
        read_resources(b"", "metal", 0)


@settings(max_examples=repeats(60, 300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize(("arch", "backend", "binary"), [("gfx942", "hip", "hsaco"), ("sm_90", "cuda", "cubin")])
def test_damaged_binaries_raise_only_results_error(
    compiled: Any, arch: str, backend: str, binary: str, data: st.DataObject
) -> None:
    """Cut short, or with bytes overwritten, a binary is read or refused with ResultsError; nothing else escapes."""
    damaged = bytearray(compiled(arch, BLOCKS[0]).asm[binary])
    # Headers lie at both ends, the metadata note in the first kilobytes.
    position = st.integers(0, 2000) | st.integers(len(damaged) - 3000, len(damaged) - 1)
    for at, value in data.draw(st.lists(st.tuples(position, st.integers(0, 255)), max_size=8)):
        damaged[at] = value
    size = data.draw(st.none() | st.integers(0, len(damaged)))
    with contextlib.suppress(ResultsError):
        read_resources(bytes(damaged[:size]), backend, 0)


@given(data=st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    """Bytes that are no ELF file raise ResultsError on both backends."""
    for backend in ("hip", "cuda"):
        with pytest.raises(ResultsError):
            read_resources(data, backend, 0)


# A code object built by hand: what compilers other than Triton's may write.


def pack(value: object) -> bytes:
    """MessagePack in the long forms, which Triton's binaries do not use."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return b"\xd3" + struct.pack(">q", value) if value < 0 else b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"\xc5" + struct.pack(">H", len(value)) + value
    if isinstance(value, str):
        return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(pack, value))
    assert isinstance(value, dict)
    return b"\xdf" + struct.pack(">I", len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())


def code_object(description: bytes, note_type: int = 32) -> bytes:
    """An ELF file that holds a foreign note, then the AMDGPU note with `description`."""
    notes = struct.pack("<III", 4, 5, 1) + b"GNU\0" + b"hello\0\0\0"
    notes += struct.pack("<III", 7, len(description), note_type) + b"AMDGPU\0\0"
    notes += description + b"\0" * (-len(description) % 4)
    header = b"\x7fELF\x02\x01" + bytes(10)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 224, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    return header + struct.pack("<IIQQQQQQ", 4, 0, 120, 0, 0, len(notes), len(notes), 4) + notes


def kernels(*entries: dict[str, object]) -> bytes:
    """A code object whose metadata lists `entries`, among keys of every MessagePack type."""
    others = {"amdhsa.version": [1, 2], "none": None, "yes": True, "real": 0.5, "bytes": b"\x00\xff", "minus": -3}
    return code_object(pack({**others, "amdhsa.kernels": list(entries)}))


def test_missing_keys_are_none_not_zero() -> None:
    """Hand-written assembly may leave the spill counts out; then they are unknown."""
    found = read_resources(kernels({".name": "k", ".vgpr_count": 40}), "hip", 1024)
    assert (found.registers, found.spills, found.accumulator_registers, found.scratch_bytes) == (40, None, None, None)
    assert (found.loop_instructions, found.loop_matrix) == (None, None)


def test_largest_kernel_counts() -> None:
    """Of several kernels in one file, the largest need of each kind is returned."""
    found = read_resources(
        kernels({".vgpr_count": 300, ".sgpr_count": 10}, {".vgpr_count": 90, ".sgpr_count": 80}), "hip", 0
    )
    assert (found.registers, found.scalar_registers) == (300, 80)


def test_static_lds_is_not_lost() -> None:
    """LDS is Triton's figure, unless the code object states a larger static one."""
    static = kernels({".vgpr_count": 8, ".group_segment_fixed_size": 2048})
    assert [read_resources(static, "hip", shared).shared_bytes for shared in (0, 1024, 65536)] == [2048, 2048, 65536]


@pytest.mark.parametrize(
    ("binary", "message"),
    [
        (code_object(pack({"amdhsa.kernels": []})), "lists no kernels"),
        (code_object(pack({"amdhsa.kernels": [1]})), "lists no kernels"),
        (code_object(pack([1, 2])), "lists no kernels"),
        (code_object(pack({}), note_type=10), "no AMDGPU metadata note"),
        (code_object(b"\xc1"), "unknown MessagePack type 0xc1"),
        (code_object(b"\x91" * 5000), "nested deeper"),
        (code_object(b"\x81\x90\x00"), "key of type list"),
        (code_object(b"\xdf\xff\xff\xff\xff"), "truncated or damaged"),
    ],
)
def test_bad_metadata_is_named(binary: bytes, message: str) -> None:
    """Each way in which the metadata can be wrong has its own one-line message."""
    with pytest.raises(ResultsError, match=message):
        read_resources(binary, "hip", 0)
