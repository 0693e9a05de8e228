"""Tests of genkern.tuning.autotune: the guide's interface, with a stand-in for the command's measuring."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml
from cute_stand_in import StandInFarm
from recording_gpu import FakeGpu

import genkern
from genkern.cli.options import parse
from genkern.compile.cache import BinaryCache
from genkern.errors import InputError, ResultsError
from genkern.files.file_kind import kind_of, read_results
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.packing.packer import Packer
from genkern.packing.rows import rows_of, with_calls
from genkern.result.result import Proof, Result
from genkern.runtime.bundles.bundle import write_bundle
from genkern.runtime.bundles.records import Contents
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.tuning.autotune import Autotuned, problem_of

H200 = gpu_for_arch("sm_90")


class Command:
    """Stands for genkern's command: takes its options at their word, and measures as `us` says of a size and config."""

    def __init__(self, folder: Path, slower: str = "") -> None:
        self.folder = folder
        self.slower = slower
        self.asked: list[argparse.Namespace] = []
        self.packed_from: list[str] = []

    def __call__(self, arguments: Sequence[str], log: Path) -> None:
        if arguments[0] == "pack":
            self.packed_from.append(arguments[arguments.index("--cache_dir") + 1])
            self._pack(arguments[1], arguments[3])
            return
        options = parse(list(arguments))
        self.asked.append(options)
        problem = GemmProblem(options.m, options.n, options.k, row_major_b=options.row_b, row_major_a=not options.col_a)
        kept = prune(load_space(options.space, "sm_90", "a16w16"), problem, H200).kept
        # Of each size another config wins.
        config = kept[problem.M % len(kept)]
        winner = Result(
            problem=problem,
            config=config,
            duration_us=12.0 if len(kept) == 1 else 10.0,
            spread_us=0.1,
            samples=100,
            time_source="cudagraph",
            arch="sm_90",
            device="NVIDIA H200",
            versions=(("triton", "3.7.1"), ("torch", "2.11.0")),
            check=Proof("gpu", "", 0.0, 0.0, "gpu"),
            torch_us=11.0,
        )
        text, rows = kind_of(options.tuning_results_file).render([winner], 132, "")
        Path(options.tuning_results_file).write_text(text + "".join(rows))

    def _pack(self, results: str, output: str) -> None:
        packer = Packer(StandInFarm(BinaryCache(self.folder / "cache")), "sm_90", self.folder)
        (row,) = rows_of(read_results(results), None, False).packed
        winner = with_calls(row, packer.pack(row.wanted))  # type: ignore[arg-type]
        write_bundle(output, Contents((winner,), packer.binaries), packer.images)


def tensors(m: int = 300, n: int = 512, k: int = 256, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    return torch.ones(m, k, dtype=dtype), torch.ones(n, k, dtype=dtype), torch.empty(m, n, dtype=dtype)


def tuned(command: Command, folder: Path, **more: object) -> Autotuned:
    return genkern.autotune_gemm(*tensors(), folder=folder, run=command, **more)


def test_an_exact_key(tmp_path: Path) -> None:
    """The lists become a space, the counts options; the winner is called by its plan on the caller's tensors."""
    command = Command(tmp_path)
    found = tuned(
        command,
        tmp_path / "kept",
        mma_tiler_mn_list=[(128, 128), (256, 96)],
        cluster_shape_mn_list=[(2, 1)],
        use_tma_store_list=[True, False],
        warmup_iterations=7,
        iterations=150,
    )
    (options,) = command.asked
    assert (options.warmup, options.iters, options.libtype) == (7, 150, "cute")
    space = yaml.safe_load(Path(options.space).read_text())
    assert [entry["family"] for entry in space["families"]] == ["cute_wgmma"] * 2
    assert [entry["schedule"] for entry in space["families"]] == [["ping_pong"], ["cooperative"]]
    assert space["families"][0]["mma_tiler_mn"] == [[128, 128]]
    assert space["families"][1]["mma_tiler_mn"] == [[128, 128], [256, 96]]
    assert (found.key, found.time_us, found.torch_us, found.power_of_two_loss) == ("exact", 10.0, 11.0, None)
    gpu = FakeGpu()
    a, b, c = tensors()
    assert found(a, b, c, gpu) is c
    found(a, b, c, gpu)
    first, second = gpu.driver.launched
    assert first == second
    assert first.symbol.startswith(f"matmul_{traits_of(found.config).stem}")
    assert {each.address for each in gpu.driver.encoded} <= {a.data_ptr(), b.data_ptr(), c.data_ptr()}


def test_what_was_tuned_is_kept(tmp_path: Path) -> None:
    """Until the lists are others."""
    command = Command(tmp_path)
    first = tuned(command, tmp_path / "kept")
    assert tuned(command, tmp_path / "kept").config == first.config
    assert len(command.asked) == 1
    tuned(command, tmp_path / "kept", cluster_shape_mn_list=[(1, 1)])
    assert len(command.asked) == 2


def test_one_cache_for_all_runs(tmp_path: Path) -> None:
    """What the tuning run compiled is what is packed: where the DSL is not installed, nothing else could be."""
    command = Command(tmp_path)
    tuned(command, tmp_path, cache_dir=tmp_path / "kernels", key="power_of_two")
    assert {asked.cache_dir for asked in command.asked} == {*command.packed_from} == {str(tmp_path / "kernels")}


def test_a_bundle_without_kernels_is_packed_again(tmp_path: Path) -> None:
    """The first run found no compiler; the next one has it, and tunes nothing."""

    class WithoutCompiler(Command):
        def _pack(self, results: str, output: str) -> None:
            write_bundle(output, Contents((), {}), {})

    tuned(WithoutCompiler(tmp_path), tmp_path / "kept")
    command = Command(tmp_path)
    found = tuned(command, tmp_path / "kept")
    assert (command.asked, len(command.packed_from)) == ([], 1)
    found(*tensors(), FakeGpu())
    tuned(command, tmp_path / "kept")
    assert len(command.packed_from) == 1


def test_a_power_of_two_key(tmp_path: Path) -> None:
    """The rounded size is tuned, its config measured on the exact one, and the loss written beside it."""
    command = Command(tmp_path)
    found = tuned(command, tmp_path / "kept", key="power_of_two")
    assert [(each.m, each.n, each.k) for each in command.asked] == [(512, 512, 256), (300, 512, 256), (300, 512, 256)]
    rounded = read_results(command.asked[0].tuning_results_file)[0]
    assert found.config == rounded.config
    assert found.problem == GemmProblem(300, 512, 256)
    # 12 us where the exact size's winner takes 10, beside PyTorch's 11 both times.
    assert found.power_of_two_loss == 0.2
    assert json.loads((found.folder / "loss.json").read_text())["power_of_two_loss"] == 0.2
    assert tuned(Command(tmp_path), tmp_path / "kept", key="power_of_two", measure_loss=False).power_of_two_loss is None


def test_the_layout_is_that_of_the_tensors(tmp_path: Path) -> None:
    """Contiguous along either side."""
    a, b, c = tensors()
    assert problem_of(a, b, c) == GemmProblem(300, 512, 256)
    turned_a, turned_b = (
        torch.ones(256, 304, dtype=torch.bfloat16).T[:300],
        torch.ones(256, 512, dtype=torch.bfloat16).T,
    )
    of = problem_of(turned_a, turned_b, c)
    assert (of.row_major_a, of.row_major_b) == (False, True)
    assert problem_of(*tensors(dtype=torch.float16)).dtype_a == "fp16"


A, B, C = tensors()


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        ((A[0], B, C), {}, "each must have two dimensions"),
        ((A, B[:, :-8], C), {}, r"must be \[M, K\], \[N, K\] and \[M, N\]"),
        ((A, B, C[:-1]), {}, r"must be \[M, K\]"),
        ((A.float(), B, C), {}, "of one type, bfloat16 or float16"),
        ((A[:, ::2], B[:, ::2], C), {}, r"a has strides \(256, 2\)"),
        ((A, B, torch.empty(512, 300, dtype=torch.bfloat16).T), {}, "c must be contiguous along N"),
        ((A, B, C), {"key": "nearest"}, "key is 'nearest', none of exact, power_of_two"),
        ((A, B, C), {"iterations": 0}, "iterations is 0"),
        ((A, B, C), {"options": ["--cache-dir", "x"]}, "an argument of its own here, cache_dir"),
        ((A, B, C), {"warmup_iterations": 2.5}, "warmup_iterations is 2.5"),
    ],
)
def test_what_does_not_fit_is_said(
    tmp_path: Path, given: tuple[torch.Tensor, ...], more: dict[str, object], message: str
) -> None:
    """In one line, before anything is started."""
    command = Command(tmp_path)
    with pytest.raises(InputError, match=message):
        genkern.autotune_gemm(*given, folder=tmp_path, run=command, **more)
    assert not command.asked


def test_other_sizes_are_refused(tmp_path: Path) -> None:
    """A kernel is called for what it was proved right for."""
    found = tuned(Command(tmp_path), tmp_path / "kept")
    with pytest.raises(InputError, match="these are 200x512x256"):
        found(*tensors(200), FakeGpu())


def test_a_run_without_a_winner(tmp_path: Path) -> None:
    """Is said, with where its log is."""

    def nothing(arguments: Sequence[str], log: Path) -> None:
        Path(parse(list(arguments)).tuning_results_file).write_text("[]\n")

    with pytest.raises(ResultsError, match=re.escape("no config of these lists won for 300x512x256")):
        genkern.autotune_gemm(*tensors(), folder=tmp_path, run=nothing)
