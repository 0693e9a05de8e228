"""The resources that a compiled kernel needs, read from the binary itself: AMD code objects and NVIDIA cubins."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from genkern.compile.binary.in_flight import overwrites
from genkern.compile.binary.main_loop import MainLoop, main_loop
from genkern.errors import ResultsError
from genkern.gemm.records import Resources

_EM_CUDA, _EM_AMDGPU = 190, 224
_PT_NOTE, _NT_AMDGPU_METADATA = 4, 32
# Attributes of .nv.info, as cuobjdump prints them; the value of each is (symbol index, number).
_EIFMT_SVAL = 4
_EIATTR_FRAME_SIZE, _EIATTR_MIN_STACK_SIZE, _EIATTR_REGCOUNT = 0x11, 0x12, 0x2F
# Offset of e_phoff (with e_shoff behind it) in the ELF header; and the type of a section that has a size but no content
# in the file.
_TABLES_AT, _SHT_NOBITS = 32, 8
_ABI_VERSION_AT, _FLAGS_AT, _ABI_WITH_OTHER_FLAGS = 8, 48, 8
# An entry of .nv.info.SYMBOL for each parameter: index, ordinal and offset, and bits whose highest 14 are the size in
# bytes.
_EIATTR_KPARAM_INFO, _KPARAM_SIZE_BIT = 0x17, 18
# Sections with names, and sections that only tools read: none reaches the hardware. They are not part of the digest,
# since symbols are as long as configs' names and their tables move what follows.
_NOT_CODE = (
    *(".note", ".dynsym", ".gnu.hash", ".hash", ".dynstr", ".dynamic", ".relro_padding", ".comment", ".symtab"),
    *(".shstrtab", ".strtab", ".AMDGPU.", ".debug", ".nv_debug", ".nv.callgraph"),
    *(".rela.debug", ".rel.debug", ".rela.nv_debug", ".rel.nv_debug"),
)
# Sections that have a size, but no content in the file.
_NO_CONTENT = (".nv.shared", ".bss")
# Size of AMD's kernel descriptor, and the bytes in it with the distance to the code, which depends on the length of the
# symbol (LLVM AMDGPUUsage, "Kernel Descriptor").
_DESCRIPTOR_BYTES, _ENTRY_OFFSET = 64, slice(16, 24)
# Deeper than any real metadata (5); bounds the recursion on hostile input.
_DEPTH_MAX = 32


def read_resources(binary: bytes, backend: str, shared_bytes: int) -> Resources:
    """Return the resources of a kernel compiled by Triton.

    binary: `asm["hsaco"]` with backend "hip", or `asm["cubin"]` with backend "cuda"
    shared_bytes: `metadata.shared`; Triton allocates LDS and shared memory dynamically, so that the binary says 0

    If a file has several kernels, the largest need counts. Raises ResultsError for a binary that cannot be read.
    """
    try:
        if backend == "hip":
            return _amd(binary, shared_bytes)
        if backend == "cuda":
            return _nvidia(binary, shared_bytes)
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise _damaged(binary, backend, error) from None
    raise ResultsError(f"unknown backend {backend!r}: use hip or cuda")


def is_cut_short(binary: bytes) -> bool:
    """Return True if the file ends before its sections and segments do: ptxas ignores write errors on a full disk."""
    try:
        fields = struct.unpack_from("<QQIHHHHH", binary, _TABLES_AT)
        segments_at, sections_at, _, _, segment_size, segment_count, section_size, section_count = fields
        headers = [struct.unpack_from("<IIQQQQ", binary, sections_at + section_size * i) for i in range(section_count)]
    except struct.error:
        return True
    ends = [offset + length for _, kind, _, _, offset, length in headers if kind != _SHT_NOBITS]
    ends += segments_at + segment_size * segment_count, sections_at + section_size * section_count
    return binary[:4] != b"\x7fELF" or len(binary) < max(ends)


def code_sha256(binary: bytes) -> str | None:
    """Return the digest of everything in a cubin or code object that the hardware executes, whatever the kernel's name.

    None for a file that is neither, or has no code. Takes 0.04 ms for 12 KB.
    """
    for machine in (_EM_CUDA, _EM_AMDGPU):
        with contextlib.suppress(ResultsError, struct.error, IndexError, OverflowError, UnicodeDecodeError):
            return _code_sha256(_Elf.read(binary, machine))
    return None


def fault_of(binary: bytes, backend: str) -> str:
    """Return in one line why a kernel must not run, whatever its results were; "" if no fault was found.

    The only known fault is one of ptxas, so AMD's kernels are not examined.

    Raises ResultsError for a binary that cannot be read.
    """
    if backend != "cuda":
        return ""
    try:
        elf = _Elf.read(binary, _EM_CUDA)
        for name, _, _ in elf.sections:
            at = overwrites(elf.section(name), _compute_capability(binary)) if name.startswith(".text.") else None
            if at is not None:
                return f"its code overwrites, at {at:#x}, a register that a wgmma in flight reads: a fault of ptxas"
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise _damaged(binary, backend, error) from None
    return ""


def read_parameter_bytes(binary: bytes, backend: str, symbol: str) -> tuple[int, ...]:
    """Return the size of each parameter of kernel `symbol`, in order, in bytes, as the binary declares it.

    Parameters that a launch does not pass (AMD's hidden arguments) are left out. Raises ResultsError for a binary that
    cannot be read, or does not have the kernel.
    """
    sizes: dict[int, int] = {}
    try:
        if backend == "hip":
            for kernel in _amd_kernels(_Elf.read(binary, _EM_AMDGPU)):
                if kernel.get(".name") == symbol:
                    passed = [a for a in kernel.get(".args", []) if not str(a.get(".value_kind")).startswith("hidden")]
                    return tuple(int(argument[".size"]) for argument in passed)
        else:
            for attribute, at, data in _attributes(_Elf.read(binary, _EM_CUDA).section(f".nv.info.{symbol}")):
                if attribute == _EIATTR_KPARAM_INFO:
                    _, ordinal, _, bits = struct.unpack_from("<IHHI", data, at)
                    sizes[ordinal] = bits >> _KPARAM_SIZE_BIT
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError, KeyError) as error:
        raise ResultsError(f"truncated or damaged {backend} binary ({error}): recompile") from None
    if not sizes or sorted(sizes) != list(range(len(sizes))):
        raise ResultsError(f"the binary does not say what parameters {symbol} takes: recompile")
    return tuple(sizes[ordinal] for ordinal in range(len(sizes)))


def _damaged(binary: bytes, backend: str, error: Exception) -> ResultsError:
    return ResultsError(f"truncated or damaged {backend} binary of {len(binary)} bytes ({error}): recompile")


def _amd_kernels(elf: _Elf) -> list[dict[str, Any]]:
    """Return the metadata note's entry for each kernel. Keys: LLVM AMDGPUUsage, "Code Object V3 Metadata"."""
    for owner, kind, description in elf.notes():
        if owner == b"AMDGPU" and kind == _NT_AMDGPU_METADATA:
            metadata = _Msgpack(description).value()
            break
    else:
        raise ResultsError("no AMDGPU metadata note (type 32) in the code object: is it older than version 3?")
    kernels = metadata.get("amdhsa.kernels") if isinstance(metadata, dict) else None
    if not isinstance(kernels, list) or not kernels or not all(isinstance(kernel, dict) for kernel in kernels):
        raise ResultsError("the AMDGPU metadata note lists no kernels: recompile")
    return kernels


def _amd(binary: bytes, shared_bytes: int) -> Resources:
    """Return the resources of an AMD kernel.

    `spills` counts vector registers only: a scalar register is spilled to a lane of a vector register first.
    """
    elf = _Elf.read(binary, _EM_AMDGPU)
    kernels = _amd_kernels(elf)

    def largest(key: str) -> int | None:
        # Hand-written assembly may leave keys out; then the need is unknown, not 0.
        found = [kernel[key] for kernel in kernels if isinstance(kernel.get(key), int)]
        return max(found, default=None)

    return Resources(
        code_sha256=_code_sha256(elf),
        registers=largest(".vgpr_count"),
        accumulator_registers=largest(".agpr_count"),
        scalar_registers=largest(".sgpr_count"),
        spills=largest(".vgpr_spill_count"),
        shared_bytes=max(shared_bytes, largest(".group_segment_fixed_size") or 0),
        scratch_bytes=largest(".private_segment_fixed_size"),
    )


def _nvidia(binary: bytes, shared_bytes: int) -> Resources:
    """Return the resources of an NVIDIA kernel, read from section .nv.info.

    ELF ABI version 8 no longer has the register count in .text's sh_info. `scratch_bytes` is the stack including
    callees (cuobjdump's STACK); `spills` is the same size in 4-byte words, as Triton's n_spills.
    """
    elf = _Elf.read(binary, _EM_CUDA)
    numbers: dict[int, list[int]] = defaultdict(list)
    for attribute, at, data in _attributes(elf.section(".nv.info")):
        if attribute in (_EIATTR_FRAME_SIZE, _EIATTR_MIN_STACK_SIZE, _EIATTR_REGCOUNT):
            numbers[attribute].append(struct.unpack_from("<II", data, at)[1])
    if not numbers[_EIATTR_REGCOUNT]:
        raise ResultsError("no register count (EIATTR_REGCOUNT) in .nv.info of the cubin: recompile")
    stack = max(numbers[_EIATTR_MIN_STACK_SIZE] or numbers[_EIATTR_FRAME_SIZE], default=None)
    code = max((elf.section(name) for name, _, _ in elf.sections if name.startswith(".text.")), key=len, default=b"")
    loop = main_loop(code, _compute_capability(binary))
    resources = Resources(
        code_sha256=_code_sha256(elf),
        registers=max(numbers[_EIATTR_REGCOUNT]),
        spills=None if stack is None else stack // 4,
        shared_bytes=shared_bytes,
        scratch_bytes=stack,
    )
    return resources if loop is None else with_loop(resources, loop)


def with_loop(resources: Resources, loop: MainLoop) -> Resources:
    """Return the resources with the instruction counts of the main loop."""
    return replace(
        resources,
        loop_instructions=loop.instructions,
        loop_matrix=loop.matrix,
        loop_fma=loop.fma,
        loop_shared=loop.shared,
        loop_loads=loop.global_loads,
        loop_syncs=loop.syncs,
    )


def _compute_capability(cubin: bytes) -> int:
    """Return 90 for sm_90: the lowest byte of the ELF header's flags, or the second one from ELF ABI version 8 on."""
    (flags,) = struct.unpack_from("<I", cubin, _FLAGS_AT)
    return int(flags >> 8 & 0xFF if cubin[_ABI_VERSION_AT] >= _ABI_WITH_OTHER_FLAGS else flags & 0xFF)


def _attributes(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (attribute, offset of its value, section) for each attribute of a section .nv.info that has a value."""
    at = 0
    while at < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _EIFMT_SVAL:
            yield attribute, at, data
            at += size


def _code_sha256(elf: _Elf) -> str | None:
    """Return the digest of the machine code, its constants and its launch descriptor, without the kernel's name.

    None for a file without code.
    """
    if not any(name.startswith(".text") for name, _, _ in elf.sections):
        return None
    symbols = [name.removeprefix(".text.") for name, _, _ in elf.sections if name.startswith(".text.")]
    digest = hashlib.sha256()
    for name, _, size in elf.sections:
        if not name or name.startswith(_NOT_CODE):
            continue
        content = b"" if name.startswith(_NO_CONTENT) else elf.section(name)
        if name == ".rodata" and size == _DESCRIPTOR_BYTES:
            content = content[: _ENTRY_OFFSET.start] + content[_ENTRY_OFFSET.stop :]
        for number, symbol in enumerate(symbols):
            name = name.replace(symbol, str(number))
        digest.update(f"{name} {size} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


@dataclass(frozen=True)
class _Elf:
    """Sections as (name, offset, size) and segments as (type, offset, size) of a 64-bit little-endian ELF file."""

    data: bytes
    sections: tuple[tuple[str, int, int], ...]
    segments: tuple[tuple[int, int, int], ...]

    @classmethod
    def read(cls, data: bytes, machine: int) -> _Elf:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ResultsError(f"not a 64-bit ELF file (starts with {data[:6]!r}): recompile")
        fields = struct.unpack_from("<HHIQQQIHHHHHH", data, 16)
        found, segments_at, sections_at = fields[1], fields[4], fields[5]
        segment_size, segment_count, section_size, section_count, names = fields[8:13]
        if found != machine:
            raise ResultsError(f"ELF machine {found}, expected {machine} (190 is NVIDIA, 224 AMD): wrong backend?")
        segments = []
        for index in range(segment_count):
            header = struct.unpack_from("<IIQQQQ", data, segments_at + index * segment_size)
            segments.append((header[0], header[2], header[5]))
        headers = [struct.unpack_from("<IIQQQQ", data, sections_at + i * section_size) for i in range(section_count)]
        sections = []
        for name, _, _, _, offset, size in headers:
            start = headers[names][4] + name
            end = data.find(b"\0", start)
            sections.append((data[start:end].decode(), offset, size))
        return cls(data, tuple(sections), tuple(segments))

    def section(self, name: str) -> bytes:
        """Return the content of the named section; empty if there is none."""
        for found, offset, size in self.sections:
            if found == name:
                return self.data[offset : offset + size]
        return b""

    def notes(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield (owner, type, description) of each note; owner and description are padded to 4 bytes."""
        for kind, offset, size in self.segments:
            at, end = offset, min(offset + size, len(self.data))
            while kind == _PT_NOTE and at < end:
                owner_size, description_size, note_type = struct.unpack_from("<III", self.data, at)
                owner = self.data[at + 12 : at + 12 + owner_size].rstrip(b"\0")
                at += 12 + (owner_size + 3) // 4 * 4
                yield owner, note_type, self.data[at : at + description_size]
                at += (description_size + 3) // 4 * 4


class _Msgpack:
    """Reader of the MessagePack subset that LLVM writes: nil, bool, integers, str, bin, array, map, float."""

    # Type byte -> format of the value, or of the length that comes before the content.
    _SCALARS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
    _SCALARS |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    _BYTES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
    _ARRAYS = {0xDC: ">H", 0xDD: ">I"}
    _MAPS = {0xDE: ">H", 0xDF: ">I"}

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def value(self, depth: int = 0) -> Any:
        if depth > _DEPTH_MAX:
            raise ResultsError(f"metadata nested deeper than {_DEPTH_MAX}: the binary is damaged")
        tag = self._data[self._at]
        self._at += 1
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self._map(tag & 0x0F, depth)
        if tag < 0xA0:
            return [self.value(depth + 1) for _ in range(tag & 0x0F)]
        if tag < 0xC0:
            return self._bytes(tag & 0x1F).decode()
        if tag >= 0xE0:
            return tag - 0x100
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        if tag in self._SCALARS:
            return self._unpack(self._SCALARS[tag])
        if tag in self._BYTES:
            content = self._bytes(self._unpack(self._BYTES[tag]))
            return content if tag <= 0xC6 else content.decode()
        if tag in self._ARRAYS:
            return [self.value(depth + 1) for _ in range(self._unpack(self._ARRAYS[tag]))]
        if tag in self._MAPS:
            return self._map(self._unpack(self._MAPS[tag]), depth)
        raise ResultsError(f"metadata holds the unknown MessagePack type {tag:#x}: the binary is damaged")

    def _map(self, count: int, depth: int) -> dict[Any, Any]:
        found = {}
        for _ in range(count):
            key = self.value(depth + 1)
            if not isinstance(key, (str, int)):
                raise ResultsError(f"metadata has a key of type {type(key).__name__}: the binary is damaged")
            found[key] = self.value(depth + 1)
        return found

    def _bytes(self, size: int) -> bytes:
        content = self._data[self._at : self._at + size]
        if len(content) < size:
            raise IndexError("metadata ends early")
        self._at += size
        return content

    def _unpack(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value
