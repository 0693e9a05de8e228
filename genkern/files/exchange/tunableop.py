"""PyTorch's TunableOp: reads the sizes of its results and untuned lists; writes a list for its offline tuning.

A line is `GemmTunableOp_BFloat16_TN,tn_4096_16_7168_ld_7168_7168_4096,Gemm_Hipblaslt_1219,0.012`. BLAS's column-major C
[m, n] is PyTorch's row-major C [n, m], so that its first operand is the weight. A solution is an index of rocBLAS or
hipBLASLt; it does not apply to genkern's kernels and is neither read nor written. Source: pytorch,
aten/src/ATen/cuda/tunable/GemmCommon.h (Signature) and torch/cuda/tunable.py (_process_single_offline_gemm).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from genkern.errors import InputError
from genkern.files.peer_config import Candidate, Imported
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import is_full
from genkern.ops.fields import own_values
from genkern.ops.op import get_op

NAME = "tunableop"
IS_FOLDER = False
_TYPES = {name: row.aten for name, row in DTYPES.items() if row.aten and not row.is_float8}
_SCALED = {name: row.aten for name, row in DTYPES.items() if row.aten and row.is_float8}
# PyTorch's name for float if it may multiply as tf32 (torch.backends.cuda.matmul.allow_tf32).
_TF32 = "tf32"
_AS_TF32 = (("precision", "tf32"),)
_NAMES = {theirs: ours for ours, theirs in (_TYPES | _SCALED).items()} | {_TF32: "fp32"}
_OPERATOR = re.compile(r"(?P<op>\w*?)TunableOp_(?P<types>[\w:<>]+)_(?P<trans>[NT]{2})")
_SIGNATURE = re.compile(
    r"(?P<trans>[nt]{2})_(?P<m>[0-9]{1,10})_(?P<n>[0-9]{1,10})_(?P<k>[0-9]{1,10})(?:_B_[0-9]{1,10})?"
    r"(?:_ld_(?P<ld_a>[0-9]{1,12})_(?P<ld_b>[0-9]{1,12})_(?P<ld_c>[0-9]{1,12}))?(?:_rw_(?P<rows>[01])_bias_(?P<bias>\w+))?"
)
_TYPE = "|".join(sorted(map(re.escape, _NAMES), key=len, reverse=True))
_KNOWN_TYPES = re.compile(f"(?:{_TYPE})(?:_(?:{_TYPE}))*")
_PADDED = "GEMMs with padded leading dimensions: genkern tunes their sizes with contiguous operands"


def is_named(name: str) -> bool:
    """Return True if TunableOp gives a file this name."""
    return bool(re.fullmatch(r"tunableop_.*\.csv", name))


def read(text: str, where: str, name: str, arch: str | None) -> Imported:
    """Return the sizes of results or of an untuned list. Raises InputError for other contents."""
    imported = Imported(arch or "")
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.split(",")]
        if not line.strip() or cells[0] == "Validator":
            continue
        operator, signature = _OPERATOR.fullmatch(cells[0]), _SIGNATURE.fullmatch((*cells, "")[1])
        if operator is None or signature is None or operator["trans"].lower() != signature["trans"]:
            raise InputError(f"{where}, line {number}: {line[:60]!r} is not a line of TunableOp")
        try:
            problem = _problem(operator, signature)
            if not isinstance(problem, str) and arch is not None:
                problem = get_op(problem.op).refuse(problem, arch) or problem
        except InputError as error:
            raise InputError(f"{where}, line {number}: {error}") from None
        if isinstance(problem, str):
            imported.left_out[problem] += 1
            continue
        imported.candidates.append(Candidate(problem))
        if _is_padded(signature):
            imported.notes[_PADDED] += 1
    return imported


def obstacle(problem: GemmProblem) -> str:
    """Return why TunableOp cannot tune the problem offline; "" if it can."""
    if problem.activation != "none":
        return "an activation"
    if 1 in (problem.M, problem.N, problem.K):
        return "a vector, which PyTorch does not tune offline"
    if is_full(problem):
        return "full sums of fp8, which its rows cannot express"
    if problem.op == "a8w8":
        types = {problem.dtype_a, problem.dtype_b}
        plain = problem.row_major_a and not problem.row_major_b and types <= set(_SCALED) and problem.dtype_c in _TYPES
        return "" if plain else "int8, or another layout than row-major A and [N, K] weights"
    if problem.op != "a16w16":
        return f"{problem.op}: TunableOp has no such GEMM"
    if not problem.dtype_a == problem.dtype_b == problem.dtype_c:
        return "A and C of two types"
    if problem.bias and problem.row_major_a == problem.row_major_b:
        return "a bias with another layout than torch.nn.Linear's"
    return ""


def config_obstacle(config: Config) -> str:
    """Return "": the file holds no configs."""
    return ""


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Return the one file, for torch.cuda.tunable.tune_gemm_in_file."""
    return {"": "".join(f"{line}\n" for line in dict.fromkeys(_line(size.problem) for size in sizes))}


def _problem(operator: re.Match[str], signature: re.Match[str]) -> GemmProblem | str:
    """Return the problem of a line, or why genkern has no such problem. Raises InputError."""
    kind = operator["op"]
    if kind == "GemmStridedBatched":
        return "a batched GEMM"
    if not _KNOWN_TYPES.fullmatch(operator["types"]):
        return f"{kind[:40]} of {operator['types'][:40]}"
    types = [_NAMES[name] for name in re.findall(_TYPE, operator["types"])]
    if kind not in ("Gemm", "GemmAndBias", "ScaledGemm") or len(types) != (3 if kind == "ScaledGemm" else 1):
        return f"{kind[:40]} of {operator['types'][:40]}"
    # BLAS's first operand is the weight; if transposed, it is stored [N, K].
    weight_t, a_t = (letter == "t" for letter in signature["trans"])
    size = int(signature["n"]), int(signature["m"]), int(signature["k"])
    layout = not a_t, not weight_t
    if kind == "ScaledGemm":
        own = (("scales", "per_token"),) if signature["rows"] == "1" else ()
        bias = signature["bias"] not in (None, "None")
        if types[2] not in _TYPES or types[0] not in _SCALED:
            return f"{kind} of {operator['types'][:40]}"
        return GemmProblem(*size, "a8w8", types[1], types[0], types[2], *layout, bias, own=own)
    own = _AS_TF32 if operator["types"] == _TF32 else ()
    return GemmProblem(*size, "a16w16", types[0], types[0], types[0], *layout, kind == "GemmAndBias", own=own)


def _is_padded(signature: re.Match[str]) -> bool:
    """Return True if a leading dimension is not the number of rows of its matrix, which in BLAS is column-major."""
    if signature["ld_a"] is None:
        return False
    m, n, k = (int(signature[name]) for name in "mnk")
    dense = k if signature["trans"][0] == "t" else m, n if signature["trans"][1] == "t" else k, m
    return tuple(int(signature[f"ld_{name}"]) for name in "abc") != dense


def _line(problem: GemmProblem) -> str:
    weight_t, a_t = not problem.row_major_b, not problem.row_major_a
    trans = "NT"[weight_t] + "NT"[a_t]
    M, N, K = problem.M, problem.N, problem.K
    ld = f"{K if weight_t else N}_{M if a_t else K}_{N}"
    signature = f"{trans.lower()}_{N}_{M}_{K}_ld_{ld}"
    if problem.op == "a8w8":
        types = "_".join((_SCALED[problem.dtype_b], _SCALED[problem.dtype_a], _TYPES[problem.dtype_c]))
        rows = int(own_values(get_op(problem.op).fields, problem).scales == "per_token")
        bias = _TYPES[problem.dtype_c] if problem.bias else "None"
        return f"ScaledGemmTunableOp_{types}_{trans},{signature}_rw_{rows}_bias_{bias}"
    operator = "GemmAndBias" if problem.bias else "Gemm"
    type_ = _TF32 if problem.own == _AS_TF32 else _TYPES[problem.dtype_a]
    return f"{operator}TunableOp_{type_}_{trans},{signature}"
