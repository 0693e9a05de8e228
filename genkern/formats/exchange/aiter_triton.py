"""The JSON of AITER's Triton GEMMs: a config for M up to a bound (M_LEQ_64) or from one on (M_GEQ_4096), and for any.

Source: ROCm/aiter, aiter/ops/triton/utils/gemm_config_utils.py (the order in which keys are looked for), the files in
aiter/ops/triton/configs/gemm, and their names ({device}-GEMM-{tag}-N={N}-K={K}.json). Older files have small,
medium_M32 and so on; these are read here too, and written by aiter_triton_named.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from genkern.errors import InputError
from genkern.formats.aiter_columns import rowwise
from genkern.formats.exchange.flat_json import read_object
from genkern.formats.exchange.peer_config import Imported, arch_of, plain_obstacle, plain_values
from genkern.formats.exchange.timed_size import Choice, TimedSize, least_loss
from genkern.gemm.config import Config
from genkern.gemm.dtypes import parse_dtype
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import parse_own
from genkern.ops.op import get_op

NAME = "aiter_triton"
IS_FOLDER = True
# What each config of the files costs, beside them.
LOSSES = "losses.csv"
# STANDARD_M_BOUNDS of its loader.
_BOUNDS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# Keys of older files with the largest M of each, in the order of their loaders; None where there is none.
NAMED: dict[str, int | None] = {
    "small": 31,
    "medium_M32": 32,
    "medium_M64": 64,
    "medium_M128": 128,
    "large": 256,
    "xlarge": None,
}
# A size that stands for those without a largest M.
_BEYOND = 2
_ANY = "any"
_FILE = re.compile(
    r"(?:(?P<device>[A-Za-z0-9_ ]{1,60})-)?GEMM-(?P<tag>[A-Z0-9_]{1,60})"
    r"-N=(?P<N>[0-9]{1,10})-K=(?P<K>[0-9]{1,10})\.json"
)
_OTHERS = re.compile(r"(.*-)?(\w*_)?GEMM-.*\.json")
_TAGS = {
    "A16W16": "a16w16",
    "A8W8": "a8w8",
    "A8W8_PER_TOKEN_SCALE": "a8w8",
    "A8W8_BLOCKSCALE": "a8w8_blockscale",
    # Of weights and exponents that are not shuffled; blocks and K count elements.
    "AFP4WFP4": "a4w4_blockscale",
}
_TAG_OF = {
    "a16w16": "A16W16",
    "a8w8": "A8W8",
    "a8w8_blockscale": "A8W8_BLOCKSCALE",
    "a4w4_blockscale": "AFP4WFP4",
}
_NAMES = {"NUM_KSPLIT": "SPLIT_K", "cache_modifier": "cache_modifier"}
# What follows from the others, or from the problem.
_IGNORED = ("SPLITK_BLOCK_SIZE", "GROUP_K", "GROUP_N")


def is_named(name: str) -> bool:
    """Whether it is a name of such a file."""
    return bool(_OTHERS.fullmatch(name))


def read(text: str, where: str, name: str, arch: str | None) -> Imported:
    """A candidate for the largest M of each key, with C in bf16. Raises InputError for what is no such file."""
    match = _FILE.fullmatch(name)
    op = _TAGS.get(match["tag"]) if match else None
    if match is None or op is None:
        imported = Imported(arch or "")
        reason = "of another format" if match else "of no one N and K, or another format"
        imported.left_out[f"{reason}: {name[:80]}"] += 1
        return imported
    imported = Imported(arch_of(match["device"] or "", arch, where))
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
    """Why such a file cannot speak of the problem."""
    if problem.op not in _TAG_OF:
        return f"{problem.op}: AITER's kernels of that format have other options"
    if problem.activation != "none" or not problem.row_major_a or problem.row_major_b:
        return "an activation or another layout than row-major A and [N, K] weights"
    if problem.op == "a4w4_blockscale" and problem.dtype_a != "int8":
        return "operands of other types than e2m1 (int8)"
    own = dict(rowwise()) if problem.op == "a8w8" else {}
    return "" if dict(problem.own) == own else "scales of other blocks than AITER's"


def config_obstacle(config: Config) -> str:
    """Why their kernel cannot run the config."""
    # Their kernels remap programs to XCDs whatever a config says.
    return plain_obstacle(config, splits=True)


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Files for aiter/ops/triton/configs/gemm, by name, and losses.csv about them. Raises InputError."""
    return files_of(sizes, _bound_of)


def files_of(sizes: Collection[TimedSize], key_of: Callable[[int], str]) -> dict[str, str]:
    """A file for each (N, K), in which `key_of` says which key an M belongs to, one for all of them, and losses.csv.

    A key has the config that costs its sizes the least. `any` has that of the largest M; in the file for all of them,
    of which AITER takes what no other file says, the config that costs all sizes the least. Raises InputError.
    """
    by_tag: dict[str, list[TimedSize]] = {}
    for size in sizes:
        if gpu_for_arch(size.arch).vendor != "amd":
            raise InputError(f"{size.problem.size} was tuned on {size.arch}: AITER's kernels run on AMD's GPUs")
        by_tag.setdefault(f"{size.arch}-GEMM-{_TAG_OF[size.problem.op]}", []).append(size)
    files: dict[str, dict[str, Choice]] = {}
    for name, of_tag in by_tag.items():
        by_weight: dict[tuple[int, int], list[TimedSize]] = {}
        for size in sorted(of_tag, key=lambda size: (size.problem.N, size.problem.K, size.problem.M)):
            by_weight.setdefault((size.problem.N, size.problem.K), []).append(size)
        for (N, K), of_weight in by_weight.items():
            files[f"{name}-N={N}-K={K}.json"] = _buckets(of_weight, key_of)
        files[f"{name}.json"] = {_ANY: least_loss(of_tag)}
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


def _bound_of(M: int) -> str:
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
    """The keys in their order, each with the M that stands for it."""
    largest = 0
    for key in configs:
        bound = re.fullmatch(r"M_[LG]EQ_([1-9][0-9]{0,6})", key)
        if bound:
            M = int(bound[1])
        elif key in NAMED:
            M = NAMED[key] or _BEYOND * max(filter(None, NAMED.values()))
        elif key == _ANY:
            M = max(_BOUNDS[-1], _BEYOND * largest if largest >= _BOUNDS[-1] else 0)
        else:
            raise InputError(
                f"{where}: {key[:40]!r} is no key of such a file: M_LEQ_64, M_GEQ_4096, small, any and so on"
            )
        largest = max(largest, M)
        yield key, M


def _without_empty(values: object) -> object:
    """A cache_modifier that is null or "" is none."""
    if not isinstance(values, Mapping):
        return values
    return {key: value for key, value in values.items() if key != "cache_modifier" or value not in (None, "")}
