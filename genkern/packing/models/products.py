"""The products of a model on one GPU as problems, for each layer and every number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from genkern.files.checkpoint_format import CheckpointFormats, Stored
from genkern.files.format_in_names import BATCHED
from genkern.files.model_config import ModelConfig
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_called, as_full, multiplies_float8
from genkern.ops.op import get_op
from genkern.packing.models.engines import Engine
from genkern.packing.models.layers import Experts, Gemm, Part, span

# Most labels that a line about formats names.
_MOST_LABELS = 4


@dataclass(frozen=True)
class Product:
    """A layer's product, or both products of routed experts, for every number of rows.

    layer, said: as in Gemm.
    problems: the problems.
    count: number of layers that have it.
    is_routed: True for routed experts.
    others: plain problems of the same sizes for an estimate of time, if genkern has no kernels for the layer's experts.
    share: the share of the GPUs that compute it; less than 1 if only some ranks add the bias.
    """

    layer: str
    said: str
    problems: tuple[GemmProblem, ...]
    count: int
    is_routed: bool = False
    others: tuple[GemmProblem, ...] = ()
    share: float = 1.0


class _Notes:
    """Lines for the user, each with the labels of the layers that it is about."""

    def __init__(self) -> None:
        self._labels: dict[str, list[str]] = {}

    def add(self, line: str, label: str) -> None:
        self._labels.setdefault(line, []).append(label)

    def lines(self) -> list[str]:
        found = []
        for line, labels in self._labels.items():
            named = list(dict.fromkeys(labels))
            more = f" and {len(named) - _MOST_LABELS} more" if len(named) > _MOST_LABELS else ""
            found.append(f"{', '.join(named[:_MOST_LABELS])}{more}: {line}")
        return found


def products_of(config: ModelConfig, engine: Engine, tp: int, rows: Sequence[int]) -> tuple[list[Product], list[str]]:
    """Return the products of one of `tp` GPUs in the model's order, in the formats of their weights, and notes.

    Layers whose formats differ are listed separately. If K is split over the GPUs, only rank 0 adds the bias
    (RowParallelLinear of vLLM and SGLang), so the product is listed with the bias and without. The notes are lines for
    the user. Raises InputError.
    """
    formats, notes, listed = config.formats, _Notes(), engine.layers(config, tp)
    parts = [own for part in listed.parts for own in _by_format(part, formats, notes)]
    unread = [
        f"{config.where}: {key} is no quantization_config: all weights are taken as {formats.plain.dtype_b}"
        for key in config.hints
    ]
    if formats.unread:
        # If one rule is not understood, any other may be misread, too.
        name = f"{config.where}: quantization_config" + (f" ({formats.method})" if formats.method else "")
        unread = [f"{name}: {formats.unread}: all weights are taken as {formats.plain.dtype_b}"]
        notes, parts = _Notes(), [(part, formats.plain) for part in listed.parts]
    found = [own for part, stored in parts for own in _products(part, stored, engine, tp, rows, formats.plain, notes)]
    return found, [*listed.notes, *unread, *notes.lines()]


def _products(
    part: Part, stored: Stored, engine: Engine, tp: int, rows: Sequence[int], plain: Stored, notes: _Notes
) -> Iterator[Product]:
    """Yield the part's product in a format: once, or twice if ranks differ in the bias."""
    if not isinstance(part, Gemm):
        stages, why = _stages(part, rows, stored)
        if why:
            notes.add(f"not in the list: {why}", part.layer)
        stages = [_as_added_up(each, engine) for each in stages]
        others = () if stages else _time_of(part, rows, plain)
        yield Product(part.layer, part.said, tuple(stages), part.layer_count, True, others)
        return
    problems = [_problem(part, m, stored) for m in _of_rows(part, rows, engine.most_decoding)]
    reason = next((reason for each in problems if (reason := get_op(each.op).refuse(each, ""))), "")
    if reason:
        notes.add(f"{part.n}x{part.k} is taken as {plain.dtype_b}: {reason}", part.layer)
        problems = [_problem(part, each.M, plain) for each in problems]
    forms = [(part.said, problems, 1.0)]
    if part.row_parallel and part.bias and tp > 1:
        bare = [replace(each, bias=False) for each in problems]
        forms = [
            (f"{part.said}; with the bias on rank 0", problems, 1 / tp),
            (f"{part.said}; without the bias on the other ranks", bare, 1 - 1 / tp),
        ]
    for said, of_ranks, share in forms:
        added_up = tuple(_as_added_up(each, engine) for each in of_ranks)
        yield Product(part.layer, said, added_up, part.count, share=share)


def _by_format(part: Part, formats: CheckpointFormats, notes: _Notes) -> Iterator[tuple[Part, Stored]]:
    """Yield the part once for each format of its weights, with the layers and weights of that format."""
    # Servers keep routers, and the absorbed weights of latent attention, in 16 bits.
    if (isinstance(part, Gemm) and (part.batch or "router" in part.modules)) or not part.names:
        yield part, formats.plain
        return
    # Groups the layers by the formats of their weights.
    groups: dict[tuple[Stored, ...], list[int]] = {}
    for layer in part.layers or (-1,):
        groups.setdefault(tuple(_stored(part, name, layer, formats, notes) for name in part.names), []).append(layer)
    if len(groups) == 1 and len({*next(iter(groups))}) == 1:
        yield part, next(iter(groups))[0]
        return
    own = [piece for stored, layers in groups.items() for piece in _pieces(part, stored, layers, notes, formats.plain)]
    if len(groups) > 1:
        by = "; ".join(f"{' and '.join(map(str, dict.fromkeys(each)))} in {span(at)}" for each, at in groups.items())
        notes.add(f"layers are stored in more than one format ({by}), and listed apart", _label(part))
    yield from own


def _stored(part: Part, name: str, layer: int, formats: CheckpointFormats, notes: _Notes) -> Stored:
    """Return the format of the weights of this name in the layer; for experts, the plain format if theirs differ."""
    names = [name.replace("{}", str(layer), 1)]
    if isinstance(part, Experts) and formats.names_experts and ".experts.0." in name:
        names = [names[0].replace(".experts.0.", f".experts.{each}.") for each in range(part.count)]
    found = {each: formats.of(each) for each in names}
    for each in dict.fromkeys(found.values()):
        if each.lacking:
            notes.add(f"genkern has no format for {each.lacking}; taken as {formats.plain.dtype_b}", part.layer)
    stored = list(dict.fromkeys(each.stored for each in found.values()))
    if len(stored) > 1:
        notes.add(
            f"experts of a layer are stored in more than one format; taken as {formats.plain.dtype_b}", part.layer
        )
    return stored[0] if len(stored) == 1 else formats.plain


def _pieces(
    part: Part, stored: tuple[Stored, ...], layers: list[int], notes: _Notes, plain: Stored
) -> Iterator[tuple[Part, Stored]]:
    """Yield the part in these layers, once for each format of its weights."""
    label = part.layer.replace(span(part.layers), span(layers), 1) if part.layers else part.layer
    layers_of_part = tuple(layers) if part.layers else ()
    kinds = list(dict.fromkeys(stored))
    if isinstance(part, Experts):
        if len(kinds) > 1:
            formats = ", ".join(map(str, kinds))
            notes.add(f"one expert's weights are stored as {formats}; taken as {plain.dtype_b}", label)
        whole = replace(part, layer=label, layer_count=len(layers), layers=layers_of_part)
        yield whole, kinds[0] if len(kinds) == 1 else plain
        return
    if len(kinds) > 1 and part.parts:
        each = ", ".join(f"{name.rpartition('.')[2]} {kind}" for name, kind in zip(part.names, stored, strict=True))
        notes.add(f"weights of one merged product are stored in different formats ({each}), and listed apart", label)
    # Weights that are not merged are separate products.
    products = 1 if part.parts else len(part.names)
    times = part.count // (products * max(1, len(part.layers)))
    for kind in kinds:
        names = tuple(name for name, of in zip(part.names, stored, strict=True) if of == kind)
        count = times * len(layers) * (1 if part.parts else len(names))
        own = replace(part, layer=label, names=names, layers=layers_of_part, count=count)
        if not part.parts:
            yield own, kind
            continue
        parts = tuple(n for n, of in zip(part.parts, stored, strict=True) if of == kind)
        if len(kinds) > 1:
            last = ", ".join(name.rpartition(".")[2] for name in names)
            own = replace(own, n=sum(parts), said=f"{part.said}; apart: {last}, N = {sum(parts)}")
        yield replace(own, parts=parts if len(parts) > 1 else ()), kind


def _label(part: Part) -> str:
    last = "" if isinstance(part, Experts) else "." + "+".join(name.rpartition(".")[2] for name in part.names)
    return part.layer + last


def _as_added_up(problem: GemmProblem, engine: Engine) -> GemmProblem:
    """Return the problem with the accumulation of fp8 products that the engine uses."""
    if not (engine.full_sums and multiplies_float8(problem)):
        return problem
    return as_called(as_full(problem), get_op(problem.op).operands(problem))


def _stages(experts: Experts, rows: Sequence[int], stored: Stored) -> tuple[list[GemmProblem], str]:
    """Return both stages of gated experts for each number of tokens, and ""; or [], and why genkern has no kernels."""
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
    """Return both stages with weights that are not quantised, for an estimate of time."""
    found = (plain.experts(tokens, experts.count, experts.top, experts.width, experts.hidden) for tokens in rows)
    return tuple(problem for both in found if both is not None for problem in both)


def _of_rows(gemm: Gemm, rows: Sequence[int], most_decoding: int) -> list[int]:
    if gemm.rows == "all":
        return list(rows)
    chosen = [m for m in rows if (m <= most_decoding) == (gemm.rows == "decode")]
    # The head is computed in prefill, too, so it is listed for the smallest M if no M decodes.
    return chosen or list(rows[:1] if gemm.rows == "decode" and not gemm.batch else ())


def _problem(gemm: Gemm, m: int, stored: Stored) -> GemmProblem:
    types = stored.dtype_a, stored.dtype_b, stored.dtype_c
    if gemm.batch:
        return GemmProblem(m, gemm.n, gemm.k, BATCHED + stored.op, *types, own=(("batch_size", gemm.batch),))
    return GemmProblem(m, gemm.n, gemm.k, stored.op, *types, bias=gemm.bias, own=stored.own)
