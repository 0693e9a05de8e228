"""The products of a model on one GPU, as problems: for each layer those of every number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from genkern.formats.model_config import ModelConfig, Stored
from genkern.formats.said_format import BATCHED
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_called, as_full, multiplies_float8
from genkern.ops.op import get_op
from genkern.packing.models.engines import Engine
from genkern.packing.models.layers import Experts, Gemm


@dataclass(frozen=True)
class Product:
    """A layer's product, or both products of routed experts, for every number of rows.

    Attributes:
        count: number of layers that have it.
        others: plain problems of the same sizes, for an estimate of time, if genkern has no kernels for the layer's.
        share: the part of the GPUs that compute it; less than 1 if ranks differ.
    """

    layer: str
    said: str
    problems: tuple[GemmProblem, ...]
    count: int
    is_routed: bool = False
    others: tuple[GemmProblem, ...] = ()
    share: float = 1.0


def products_of(config: ModelConfig, engine: Engine, tp: int, rows: Sequence[int]) -> tuple[list[Product], list[str]]:
    """Returns the products of one of `tp` GPUs in the model's order, and notes for a person. Raises InputError.

    Of a product whose K is split over the GPUs, rank 0 alone adds the bias (RowParallelLinear of vLLM and SGLang): it
    is listed with the bias and without.
    """
    quantised, note = config.stored()
    told = [f"{note}: other weights are taken as {config.plain.dtype_b}"] if note else []
    found = []
    listed = engine.layers(config, tp)
    told += listed.notes
    for part in listed.parts:
        if not isinstance(part, Gemm):
            stages, why = _stages(part, rows, config.plain if config.is_kept(part.modules) else quantised)
            told += [f"{part.layer}: not in the list: {why}"] if why else []
            stages = [_as_added_up(each, engine) for each in stages]
            others = () if stages else _time_of(part, rows, config.plain)
            found.append(Product(part.layer, part.said, tuple(stages), part.layer_count, True, others))
            continue
        # Servers keep these in 16 bits.
        plain = part.batch or "router" in part.modules or config.is_kept(part.modules)
        stored = config.plain if plain else quantised
        problems = [_problem(part, m, stored) for m in _of_rows(part, rows, engine.most_decoding)]
        reason = next((reason for each in problems if (reason := get_op(each.op).refuse(each, ""))), "")
        if reason:
            told.append(f"{part.layer}: {part.n}x{part.k} is taken as {config.plain.dtype_b}: {reason}")
            problems = [_problem(part, each.M, config.plain) for each in problems]
        forms = [(part.said, problems, 1.0)]
        if part.row_parallel and part.bias and tp > 1:
            bare = [replace(each, bias=False) for each in problems]
            forms = [
                (f"{part.said}; with the bias on rank 0", problems, 1 / tp),
                (f"{part.said}; without the bias on the other ranks", bare, 1 - 1 / tp),
            ]
        for said, of_ranks, share in forms:
            added_up = tuple(_as_added_up(each, engine) for each in of_ranks)
            found.append(Product(part.layer, said, added_up, part.count, share=share))
    return found, told


def _as_added_up(problem: GemmProblem, engine: Engine) -> GemmProblem:
    """The problem as the engine adds up products of fp8, where there is more than one way."""
    if not (engine.full_sums and multiplies_float8(problem)):
        return problem
    return as_called(as_full(problem), get_op(problem.op).operands(problem))


def _stages(experts: Experts, rows: Sequence[int], stored: Stored) -> tuple[list[GemmProblem], str]:
    """Both stages of gated experts for each number of tokens, or none and why."""
    if experts.differs:
        return [], experts.differs
    found: list[GemmProblem] = []
    for tokens in rows:
        both = stored.experts(tokens, experts.count, experts.top, experts.width, experts.hidden)
        if both is None:
            return [], f"genkern has no experts with weights as {stored.op} stores them"
        if reason := next((reason for each in both if (reason := get_op(each.op).refuse(each, ""))), ""):
            return [], reason
        found += both
    return found, ""


def _time_of(experts: Experts, rows: Sequence[int], plain: Stored) -> tuple[GemmProblem, ...]:
    """Both stages as if they were plain."""
    found = (plain.experts(tokens, experts.count, experts.top, experts.width, experts.hidden) for tokens in rows)
    return tuple(problem for both in found if both is not None for problem in both)


def _of_rows(gemm: Gemm, rows: Sequence[int], most_decoding: int) -> list[int]:
    if gemm.rows == "all":
        return list(rows)
    chosen = [m for m in rows if (m <= most_decoding) == (gemm.rows == "decode")]
    # A head is computed for whatever there is.
    return chosen or list(rows[:1] if gemm.rows == "decode" and not gemm.batch else ())


def _problem(gemm: Gemm, m: int, stored: Stored) -> GemmProblem:
    types = stored.dtype_a, stored.dtype_b, stored.dtype_c
    if gemm.batch:
        return GemmProblem(m, gemm.n, gemm.k, BATCHED + stored.op, *types, own=(("batch_size", gemm.batch),))
    return GemmProblem(m, gemm.n, gemm.k, stored.op, *types, bias=gemm.bias, own=stored.own)
