"""autotune_gemm: the loop of NVIDIA's guide to autotuning CuTe DSL GEMMs, as a function of three tensors.

The guide (docs.nvidia.com/cutlass, "Guidance for Auto-Tuning") loops over mma_tiler_mn, cluster_shape_mn,
use_2cta_instrs and use_tma_store, and keeps winners by (m, n, k), or by sizes rounded up to powers of two. Here its
lists are arguments, and genkern's own command runs the loop in separate processes: a config that does not compile,
hangs or computes wrongly costs only itself, the finals alternate with the library's calls, and the winner's output is
checked before it is called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from genkern.errors import InputError, ResultsError
from genkern.file_io import cache_folder, write_whole
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import archs_with, capabilities_of
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.bundles.table import Table
from genkern.runtime.launch.parameters import Layout
from genkern.runtime.launch.prepared_call import LiveGpu, PreparedCall
from genkern.runtime.process.genkern_command import finished, pack_arguments
from genkern.space.guide_names import TCGEN05, WGMMA, in_guide_names

KEYS = ("exact", "power_of_two")
# The family and its schedules, by matrix instruction. The guide itself is about tcgen05.
_PING_PONG = "ping_pong"
_SCHEDULES = {"wgmma": (WGMMA, (_PING_PONG, "cooperative")), "tcgen05": (TCGEN05, ("",))}
# Type names by the names of PyTorch's dtypes.
_TYPES = {f"torch.{dtype.torch}": name for name, dtype in DTYPES.items() if name in ("bf16", "fp16")}
# Runs genkern's command with arguments and writes its output to a file; raises ResultsError if it fails.
Run = Callable[[Sequence[str], Path], None]


@dataclass
class Autotuned:
    """The kernel that won for `problem`. Call it with tensors of this size: `tuned(a, b, c)` writes c.

    result: what won, with its times
    key: the key of `autotune_gemm`
    power_of_two_loss: with the key "power_of_two", how much longer this config takes than the winner of the exact size
        (0.05: 5 %); None if it was not measured
    folder: contains results, bundle and logs
    """

    result: Result
    key: str
    power_of_two_loss: float | None
    folder: Path
    _calls: dict[object, PreparedCall] = field(default_factory=dict, repr=False)

    @property
    def problem(self) -> GemmProblem:
        """The problem that was tuned."""
        return self.result.problem

    @property
    def config(self) -> Config:
        """The config that won."""
        return self.result.known_config

    @property
    def time_us(self) -> float:
        """Microseconds of one call."""
        return self.result.known_us

    @property
    def torch_us(self) -> float | None:
        """Microseconds of PyTorch's own call, in the same rounds; None if it was not timed."""
        return self.result.torch_us

    def __call__(self, a: Any, b: Any, c: Any, gpu: LiveGpu | None = None) -> Any:
        """Compute c = a @ b.T on the current stream and return c. Raises InputError for tensors of another size."""
        if (problem := problem_of(a, b, c)) != self.problem:
            raise InputError(f"these are {problem.name}, the kernel was tuned for {self.problem.name}: tune it too")
        tensors = {"a": a, "b": b.T, "c": c}
        lie = tuple(tensor.stride() for tensor in tensors.values())
        if (a.device, lie) not in self._calls:
            self._calls[a.device, lie] = self._prepared(tensors, gpu or _gpu_of(a))
        if not self._calls[a.device, lie](tuple(tensor.data_ptr() for tensor in tensors.values())):
            raise InputError("a, b and c must begin at multiples of 16 bytes")
        return c

    def _prepared(self, tensors: dict[str, Any], gpu: LiveGpu) -> PreparedCall:
        bundle = read_bundle(str(self.folder / "winner.genkern"))
        choice = Table([bundle], gpu.identity).find(self.problem)
        if choice.call is None:
            raise ResultsError(f"{choice.why}: nothing of the bundle in {self.folder} serves it (pack.log says why)")
        row_major = {"a": self.problem.row_major_a, "b": self.problem.row_major_b, "c": True}
        layouts = {
            name: Layout.of(tensor.shape, tensor.stride(), row_major[name], tensor.element_size())
            for name, tensor in tensors.items()
        }
        return PreparedCall(gpu, choice, layouts, self.problem.M)


def autotune_gemm(
    a: Any,
    b: Any,
    c: Any,
    *,
    mma_tiler_mn_list: Sequence[tuple[int, int]] = ((128, 128), (128, 192), (128, 256), (256, 128)),
    cluster_shape_mn_list: Sequence[tuple[int, int]] = ((1, 1), (2, 1), (1, 2)),
    use_2cta_instrs_list: Sequence[bool] = (False,),
    use_tma_store_list: Sequence[bool] = (True,),
    warmup_iterations: int = 5,
    iterations: int = 100,
    key: str = "exact",
    measure_loss: bool = True,
    options: Sequence[str] = (),
    cache_dir: str | Path | None = None,
    folder: str | Path | None = None,
    run: Run | None = None,
) -> Autotuned:
    """Tune c [M, N] = a [M, K] @ b [N, K].T over lists of CuTe DSL's parameters; return the winner, ready to be called.

    `genkern.tune` searches all families of kernels; this function has the arguments of NVIDIA's guide.

    Args:
        a, b, c (Tensor): shapes [M, K], [N, K] and [M, N], of one 16-bit type; a and b contiguous along either
            dimension, c along N.
        mma_tiler_mn_list, cluster_shape_mn_list, use_2cta_instrs_list, use_tma_store_list (sequence): values to try.
        warmup_iterations (int): launches of each config before its sample (5 to 10 in the guide). Default: 5.
        iterations (int): largest number of rounds of the finals (100 to 1,000 in the guide). Default: 100.
        key (str): "exact" tunes this size; "power_of_two" tunes the size rounded up to powers of two, whose winner then
            serves all sizes that round to it. Default: "exact".
        measure_loss (bool): with "power_of_two", also tune the exact size; the loss is in the result and in loss.json.
        options (sequence of str): further options of genkern's command.
        cache_dir (str or Path, optional): folder of compiled kernels. Default: genkern's cache.
        folder (str or Path, optional): folder of results. Default: in the cache. Results that an earlier call with
            the same lists left there are used again.
        run (callable, optional): runs genkern's command.

    Returns:
        Autotuned: call it with tensors of this size: ``tuned(a, b, c)`` writes c.

    Raises:
        InputError: a ValueError, for unsuitable tensors or lists.
        ResultsError: a ValueError, with the command's message, if no config won.
    """
    if key not in KEYS:
        raise InputError(f"key is {key!r}, none of {', '.join(KEYS)}")
    problem = problem_of(a, b, c)
    arch = _arch_of(a)
    space = _space(arch, mma_tiler_mn_list, cluster_shape_mn_list, use_2cta_instrs_list, use_tma_store_list)
    asked = ["--warmup", str(_count("warmup_iterations", warmup_iterations))]
    asked += ["--iters", str(_count("iterations", iterations)), *options]
    if any(option.replace("-", "_").startswith("__cache_dir") for option in options):
        raise InputError("options: --cache_dir is an argument of its own here, cache_dir")
    cache = cache_folder(str(cache_dir) if cache_dir else None).absolute()
    bench = _CommandRunner(Path(folder).absolute() if folder else cache / "autotune", cache, asked, run or _run)
    if key == "exact":
        at, row = bench.tuned(problem, space, "exact")
        return _autotuned(bench, at, row, key, None)
    _, rounded = bench.tuned(rounded_up(problem), space, "exact")
    at, row = bench.tuned(problem, _only(arch, rounded.known_config), "power_of_two")
    loss = None
    if measure_loss:
        _, best = bench.tuned(problem, space, "exact")
        loss = _loss(row, best)
        write_whole(str(at / "loss.json"), json.dumps({"power_of_two_loss": loss, **asdict(rounded_up(problem))}))
    return _autotuned(bench, at, row, key, loss)


def problem_of(a: Any, b: Any, c: Any) -> GemmProblem:
    """Return the problem of a [M, K], b [N, K] and c [M, N]. Raises InputError if they do not fit together."""
    shapes = f"a {tuple(a.shape)}, b {tuple(b.shape)}, c {tuple(c.shape)}"
    if not all(x.dim() == 2 for x in (a, b, c)):
        raise InputError(f"{shapes}: each must have two dimensions")
    (m, k), (n, k_of_b) = a.shape, b.shape
    if k_of_b != k or tuple(c.shape) != (m, n):
        raise InputError(f"{shapes}: they must be [M, K], [N, K] and [M, N]")
    types = {str(x.dtype) for x in (a, b, c)}
    if len(types) > 1 or not types <= set(_TYPES):
        raise InputError(f"a, b and c are {', '.join(sorted(types))}: they must be of one type, bfloat16 or float16")
    name = _TYPES[types.pop()]
    if c.stride(1) != 1 and n > 1:
        raise InputError("c must be contiguous along N")
    along_k = _along_second("a", a), _along_second("b", b)
    return GemmProblem(
        m, n, k, dtype_a=name, dtype_b=name, dtype_c=name, row_major_a=along_k[0], row_major_b=not along_k[1]
    )


def _along_second(name: str, x: Any) -> bool:
    """Return whether a tensor is contiguous along its second dimension. Raises InputError if along neither."""
    if x.stride(1) == 1:
        return True
    if x.stride(0) == 1:
        return False
    raise InputError(f"{name} has strides {x.stride()}: it must be contiguous along one side")


def _count(name: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise InputError(f"{name} is {value!r}, no whole number from 1 on")
    return value


def _arch_of(tensor: Any) -> str:
    """Return the architecture of the tensor's device; for a CPU tensor, the first architecture that has wgmma.

    Raises InputError for an architecture without warpgroup instructions.
    """
    if not tensor.is_cuda:
        return archs_with("wgmma")[0]
    import torch

    major, minor = torch.cuda.get_device_capability(tensor.device)
    arch = f"sm_{major}{minor}"
    if not capabilities_of(arch).of_warpgroups:
        raise InputError(f"a lies on {arch}: these families are for GPUs with {' or '.join(_SCHEDULES)}")
    return arch


def _space(arch: str, tilers: object, clusters: object, pairs: object, stores: object) -> dict[str, Any]:
    """Return a space file of these lists, with 3 to 12 stages and each schedule that supports any of the tiles.

    Its rules keep the largest number of stages that fits.
    """

    def listed(value: Any) -> list[Any]:
        return [list(item) if isinstance(item, tuple) else item for item in value]

    entry = {
        "mma_tiler_mn": listed(tilers),
        "cluster_shape_mn": listed(clusters),
        "use_2cta_instrs": listed(pairs),
        "use_tma_store": listed(stores),
        "num_stages": [3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        "GROUP_SIZE_M": [1, 4, 8],
    }
    families: list[dict[str, Any]] = []
    family, schedules = _SCHEDULES["wgmma" if capabilities_of(arch).wgmma else "tcgen05"]
    for schedule in schedules:
        # ping_pong does not support tiles of 256 rows.
        fit = [pair for pair in entry["mma_tiler_mn"] if schedule != _PING_PONG or pair[:1] < [256]]
        if fit:
            said = {"schedule": [schedule]} if schedule else {}
            families.append({"family": family, **said, **entry, "mma_tiler_mn": fit})
    return _file(arch, families, ["cute_stages", "cute_cluster_empty", "group_m_redundant"])


def _only(arch: str, config: Config) -> dict[str, Any]:
    """Return a space file with one config."""
    return _file(arch, [in_guide_names(config)], [])


def _file(arch: str, families: list[dict[str, Any]], rules: list[str]) -> dict[str, Any]:
    return {"archs": [arch], "ops": [DEFAULT_OP], "families": families, "rules": rules}


def rounded_up(problem: GemmProblem) -> GemmProblem:
    """Return `problem` with M, N and K each rounded up to a power of two."""
    m, n, k = (1 << (size - 1).bit_length() for size in (problem.M, problem.N, problem.K))
    return replace(problem, M=m, N=n, K=k)


@dataclass(frozen=True)
class _CommandRunner:
    """Runs genkern's command, each run with its own folder below `root`."""

    root: Path
    cache: Path
    asked: Sequence[str]
    run: Run

    def tuned(self, problem: GemmProblem, space: dict[str, Any], key: str) -> tuple[Path, Result]:
        """Return the folder and the winner's row. Tunes unless an earlier run with the same space left results there.

        Other options than the space are not compared.
        """
        at = self.root / f"{problem.name}_{key}"
        at.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump({**space, "default": False}, sort_keys=False)
        results, place = at / "results.yaml", at / "space.yaml"
        same = place.exists() and place.read_text() == text
        if not (same and results.exists()):
            results.unlink(missing_ok=True)
            write_whole(str(place), text)
            flags = [*(["--col_a"] * (not problem.row_major_a)), *(["--row_b"] * problem.row_major_b)]
            size = ["-m", str(problem.M), "-n", str(problem.N), "-k", str(problem.K), "--dtype_a", problem.dtype_a]
            given = [
                *size,
                *flags,
                "--space",
                str(place),
                "--libtype",
                "cute",
                "-o",
                str(results),
                "--cache_dir",
                str(self.cache),
            ]
            self.run([*given, *self.asked], at / "tune.log")
        rows = [row for row in read_results(str(results)) if row.problem == problem and row.config is not None]
        if not rows or rows[0].duration_us is None:
            raise ResultsError(f"no config of these lists won for {problem.name} ({at / 'tune.log'})")
        return at, rows[0]

    def packed(self, at: Path) -> None:
        """Pack the bundle beside the results, unless it is newer than they are and has kernels."""
        bundle = at / "winner.genkern"
        older = not bundle.exists() or bundle.stat().st_mtime < (at / "results.yaml").stat().st_mtime
        # A bundle without kernels was packed without a working compiler, which may be there now.
        if older or not any(winner.calls for winner in read_bundle(str(bundle)).winners):
            self.run(pack_arguments(at / "results.yaml", bundle, self.cache), at / "pack.log")


def _autotuned(bench: _CommandRunner, at: Path, row: Result, key: str, loss: float | None) -> Autotuned:
    bench.packed(at)
    return Autotuned(row, key, loss, at)


def _loss(row: Result, best: Result) -> float:
    """Return how much slower `row` is than `best` (0.05: 5 %), at least 0.

    Each time is taken relative to PyTorch's call in the same run, if that was timed, since clocks differ between runs.
    """
    ratio = row.known_us / best.known_us
    if row.torch_us and best.torch_us:
        ratio *= best.torch_us / row.torch_us
    return round(max(0.0, ratio - 1.0), 4)


def _run(arguments: Sequence[str], log: Path) -> None:
    try:
        finished(arguments, log)
    except ResultsError as error:
        raise ResultsError(f"{error} ({log})") from None


def _gpu_of(tensor: Any) -> LiveGpu:
    from genkern.runtime.launch.torch_gpu import TorchGpu

    return TorchGpu(tensor.get_device())
