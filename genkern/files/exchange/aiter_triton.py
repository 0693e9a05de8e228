"""AITER's Triton GEMM configs: JSON with a config per range of M: M_LEQ_64 (M up to 64), M_GEQ_4096 (from 4096), `any`.

Since 2026-08 AITER reads ARCH/triton/gemm/FAMILY/DEFAULT.json, and FAMILY-N=..-K=..json beside it, in
aiter/ops/triton/configs (resolve_config_dir in aiter/ops/triton/utils/config_utils.py; ROCm/aiter pull requests 4930 to
4948). Earlier releases have ARCH-FAMILY.json and ARCH-FAMILY-N=..-K=..json in configs/gemm; AITER ignores these for a
family whose folder has a DEFAULT.json. This module reads both layouts and writes the newer one; aiter_triton_flat and
aiter_triton_named write the older one. Source of the keys' order: get_gemm_config in utils/gemm_config_utils.py.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from genkern.errors import InputError
from genkern.files.aiter_columns import rowwise
from genkern.files.exchange.flat_json import read_object
from genkern.files.peer_config import Imported, arch_of, plain_obstacle, plain_values
from genkern.files.timed_size import Choice, TimedSize, least_loss
from genkern.gemm.config import Config
from genkern.gemm.dtypes import parse_dtype
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import parse_own
from genkern.ops.op import get_op

NAME = "aiter_triton"
IS_FOLDER = True
# A file beside the configs that says how much slower each is than the best config of its sizes.
LOSSES = "losses.csv"
# The file with a family's config for every N and K without a file of their own.
DEFAULT = "DEFAULT.json"
# STANDARD_M_BOUNDS of AITER's loader.
_BOUNDS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# Keys of older files with the largest M of each, in the order in which their loaders try them; None: no largest M.
NAMED: dict[str, int | None] = {
    "small": 31,
    "medium_M32": 32,
    "medium_M64": 64,
    "medium_M128": 128,
    "large": 256,
    "xlarge": None,
}
# Factor from the largest bound to the M that represents all larger ones.
_BEYOND = 2
_ANY = "any"
_FILE = re.compile(
    r"(?:(?P<device>[A-Za-z0-9_ ]{1,60})-)?GEMM-(?P<tag>[A-Z0-9_]{1,60})"
    r"-N=(?P<N>[0-9]{1,10})-K=(?P<K>[0-9]{1,10})\.json"
)
_OTHERS = re.compile(r"(.*-)?(\w*_)?GEMM-.*\.json|DEFAULT\.json")
_NESTED = re.compile(r"(?:.*/)?(?P<arch>[^/]+)/(?P<backend>triton|gluon)/gemm/[^/]+/[^/]+")
# Keys of a file that are not configs: the loader's list of bounds, and remarks.
_NO_CONFIGS = re.compile(r"M_BOUNDS|_.*")
_TAGS = {
    "A16W16": "a16w16",
    "A8W8": "a8w8",
    "A8W8_PER_TOKEN_SCALE": "a8w8",
    "A8W8_BLOCKSCALE": "a8w8_blockscale",
    # For weights and exponents that are not shuffled; blocks and K count elements.
    "AFP4WFP4": "a4w4_blockscale",
}
# AITER has two operators for 8 bits with a scale per row and column; each reads files of its own family.
_TAGS_OF = {op: tuple(tag for tag, of in _TAGS.items() if of == op) for op in _TAGS.values()}
# For an arch and a family: the name of the default file, and the stem of the files that end in -N=..-K=..json.
Layout = Callable[[str, str], tuple[str, str]]
_NAMES = {"NUM_KSPLIT": "SPLIT_K", "cache_modifier": "cache_modifier"}
# Keys that follow from other keys, or from the problem.
_IGNORED = ("SPLITK_BLOCK_SIZE", "GROUP_K", "GROUP_N")


def is_named(name: str) -> bool:
    """Return True if a file of this kind may have this name."""
    return bool(_OTHERS.fullmatch(name))


def read(text: str, where: str, name: str, arch: str | None) -> Imported:
    """Return a candidate for each key, for one M that represents it (`_rows`), with C in bf16.

    `name` is the file's name or path, in which ARCH/triton/gemm gives the architecture. Raises InputError for other
    contents, and UnknownDevice if neither `name` nor `arch` gives the GPU.
    """
    nested, base = _NESTED.fullmatch(name), os.path.basename(name)
    match = _FILE.fullmatch(base)
    op = _TAGS.get(match["tag"]) if match else None
    if match is None or op is None or (nested and nested["backend"] == "gluon"):
        imported = Imported(arch or "")
        is_other = match is not None or nested is None or nested["backend"] == "gluon"
        imported.left_out[
            "files of AITER's kernels of other formats" if is_other else "default files, which are for every N and K"
        ] += 1
        return imported
    imported = Imported(arch_of(match["device"] or (nested["arch"] if nested else ""), arch, where))
    dtype = parse_dtype(get_op(op).default_dtypes(imported.arch)[0], imported.arch).name
    own = parse_own(get_op(op).fields, rowwise() if op == "a8w8" else {})
    configs = read_object(text, where, InputError)
    for key, M in _rows(configs, where):
        try:
            problem = GemmProblem(M, int(match["N"]), int(match["K"]), op, dtype, dtype, own=own)
            imported.take(problem, _without_empty(configs[key]), _NAMES, _IGNORED)
        except InputError as error:
            raise InputError(f"{where}: {key}: {error}") from None
    return imported


def obstacle(problem: GemmProblem) -> str:
    """Return why a file of this kind cannot express the problem; "" if it can."""
    if problem.op not in _TAGS_OF:
        return f"{problem.op}: AITER's kernels of that format have other options"
    if problem.activation != "none" or not problem.row_major_a or problem.row_major_b:
        return "an activation or another layout than row-major A and [N, K] weights"
    if problem.op == "a4w4_blockscale" and problem.dtype_a != "int8":
        return "operands of other types than e2m1 (int8)"
    own = dict(rowwise()) if problem.op == "a8w8" else {}
    return "" if dict(problem.own) == own else "scales of other blocks than AITER's"


def config_obstacle(config: Config) -> str:
    """Return why AITER's kernel cannot run the config; "" if it can."""
    # AITER's kernels remap programs to XCDs whatever the config has.
    return plain_obstacle(config, splits=True)


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Return the files for aiter/ops/triton/configs, by path in it, and losses.csv. Raises InputError."""
    return files_of(sizes, bound_of, _nested)


def flat(arch: str, family: str) -> tuple[str, str]:
    """Return the names of the layout in aiter/ops/triton/configs/gemm, which AITER read until 2026-08."""
    return f"{arch}-{family}.json", f"{arch}-{family}"


def folder_of(arch: str, family: str) -> str:
    """Return the folder of a family in aiter/ops/triton/configs."""
    return f"{arch}/triton/gemm/{family.lower().replace('-', '_')}"


def _nested(arch: str, family: str) -> tuple[str, str]:
    folder = folder_of(arch, family)
    return f"{folder}/{DEFAULT}", f"{folder}/{family}"


def families_of(sizes: Collection[TimedSize]) -> dict[tuple[str, str], list[TimedSize]]:
    """Return the sizes by architecture and AITER's name of their family. Raises InputError for GPUs of other
    vendors."""
    found: dict[tuple[str, str], list[TimedSize]] = {}
    for size in sizes:
        if gpu_for_arch(size.arch).vendor != "amd":
            raise InputError(f"{size.problem.size} was tuned on {size.arch}: AITER's kernels run on AMD's GPUs")
        for tag in _TAGS_OF[size.problem.op]:
            found.setdefault((size.arch, f"GEMM-{tag}"), []).append(size)
    return found


def files_of(sizes: Collection[TimedSize], key_of: Callable[[int], str], layout: Layout) -> dict[str, str]:
    """Return for each family a file per N and K, and one for all N and K; and losses.csv.

    `key_of` returns the key of an M. A key gets the config with the least loss over its sizes; `any`, if it is no key
    of a size, gets the config of the largest M. The file for all N and K, which AITER reads for an N and K without a
    file of their own, gets the config with the least loss over all sizes of the family. Raises InputError.
    """
    files: dict[str, dict[str, Choice]] = {}
    for (arch, family), of_family in families_of(sizes).items():
        default, stem = layout(arch, family)
        by_weight: dict[tuple[int, int], list[TimedSize]] = {}
        for size in sorted(of_family, key=lambda size: (size.problem.N, size.problem.K, size.problem.M)):
            by_weight.setdefault((size.problem.N, size.problem.K), []).append(size)
        for (N, K), of_weight in by_weight.items():
            files[f"{stem}-N={N}-K={K}.json"] = _buckets(of_weight, key_of)
        files[default] = {_ANY: least_loss(of_family)}
    texts = {name: _text(choices) for name, choices in files.items()}
    return texts | {LOSSES: _losses(files)}


def _buckets(sizes: Sequence[TimedSize], key_of: Callable[[int], str]) -> dict[str, Choice]:
    found: dict[str, list[TimedSize]] = {}
    for size in sizes:
        found.setdefault(key_of(size.problem.M), []).append(size)
    choices = {key: least_loss(of_key) for key, of_key in found.items()}
    if _ANY not in choices:
        choices[_ANY] = choices[key_of(sizes[-1].problem.M)]
    return choices


def bound_of(M: int) -> str:
    """Return the key of AITER's loader that covers M rows."""
    return next((f"M_LEQ_{bound}" for bound in _BOUNDS if bound >= M), _ANY)


def _text(choices: Mapping[str, Choice]) -> str:
    return json.dumps({key: _values(choice.config) for key, choice in choices.items()}, indent=2) + "\n"


def _values(config: Config) -> dict[str, object]:
    modifier = None if config.cache_modifier == "none" else config.cache_modifier
    return {**plain_values(config, with_waves=True), "cache_modifier": modifier, "NUM_KSPLIT": config.SPLIT_K}


def _losses(files: Mapping[str, Mapping[str, Choice]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("file", "key", "config", "loss", "sizes"))
    for name, choices in files.items():
        for key, choice in choices.items():
            writer.writerow((name, key, choice.config.name, f"{choice.loss:.4f}", choice.sizes))
    return out.getvalue()


def _rows(configs: Mapping[str, object], where: str) -> Iterator[tuple[str, int]]:
    """Yield the keys in their order, each with the M that represents it.

    It is the largest M of the key; the smallest of M_GEQ_...; and for `any` and xlarge an M beyond the other bounds.
    """
    largest = 0
    for key in configs:
        if _NO_CONFIGS.fullmatch(key):
            continue
        bound = re.fullmatch(r"M_[LG]EQ_([1-9][0-9]{0,6})", key)
        if bound:
            M = int(bound[1])
        elif key in NAMED:
            M = NAMED[key] or _BEYOND * max(filter(None, NAMED.values()))
        elif key == _ANY:
            M = max(_BOUNDS[-1], _BEYOND * largest if largest >= _BOUNDS[-1] else 0)
        else:
            raise InputError(
                f"{where}: {key[:40]!r} is not a key of such a file: M_LEQ_64, M_GEQ_4096, small, any and so on"
            )
        largest = max(largest, M)
        yield key, M


def _without_empty(values: object) -> object:
    """Return the values without a cache_modifier that is null or "", which both mean none."""
    if not isinstance(values, Mapping):
        return values
    return {key: value for key, value in values.items() if key != "cache_modifier" or value not in (None, "")}
