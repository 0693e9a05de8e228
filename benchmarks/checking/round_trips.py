"""Every kind of problem through every reader and writer of files: what is written is read back unchanged.

    python -m benchmarks.checking.round_trips [ARCH...]

The cases follow from what the formats declare, so a new format, type or field is covered by itself: for each
architecture and format every accepted combination of types, alone and with each other layout, a bias, each activation
and each value of the format's own fields (of a number the least, the largest, and a power of two between). A value that
no problem takes alone, such as a stage that needs an activation, is combined with each other variation. Problems that
no tile of the family `tiled` computes are left out: a results file cannot hold them.
"""

from __future__ import annotations

import io
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console

from genkern.cli.ops_table import measured_sizes
from genkern.cli.verify import fitting, read_own_results
from genkern.errors import GenkernError
from genkern.file_io import write_whole
from genkern.files import aiter_csv, aiter_fmoe
from genkern.files.exchange import aiter_triton, aiter_triton_named, flashinfer_trace, tunableop
from genkern.files.exchange.aiter_triton import LOSSES
from genkern.files.exchange.peers import PEERS
from genkern.files.file_kind import kind_of, read_results
from genkern.files.gemm_entry import GemmDefaults, problem_of_cells
from genkern.files.peer_config import FAMILY, PeerFile
from genkern.files.results import ResultsFile, RunFacts
from genkern.files.sizes import read_sizes
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import gpu_for_arch, known_archs
from genkern.gemm.problem import ACTIVATIONS, GemmProblem
from genkern.journal.facts import read_journal
from genkern.journal.journal import Journal
from genkern.kernels.legality import legal
from genkern.ops.accumulate import on_arch
from genkern.ops.fields import Field, fields_of, problem_cells
from genkern.ops.op import Op, check_problem, get_op, op_names
from genkern.packing.merge import parse_merge, run_merge
from genkern.packing.rows import rows_of
from genkern.result.device import DeviceKey
from genkern.result.result import Result
from genkern.runtime.bundles.records import Contents, from_data, to_data

FIGURE = "roundtrip_cases"
# Dimensions that formats with scales of blocks take, small enough for any number of groups.
_M, _N, _K = 64, 512, 1024
_LAYOUTS = [(True, True), (False, True), (False, False)]
_VERSIONS = (("triton", "3.7.0"),)
_TILES = list(itertools.product((16, 32, 64, 128), (16, 32, 64, 128), (128, 64, 32, 16)))
Variation = Mapping[str, Any]


def cases(arch: str) -> list[GemmProblem]:
    """The problems that go through the files of `arch`: each kind that its formats take there, once."""
    found = dict.fromkeys(problem for name in op_names() for problem in _of_op(get_op(name), arch))
    return [problem for problem in found if _config(problem, arch) is not None]


def _of_op(op: Op, arch: str) -> Iterator[GemmProblem]:
    own = [{"own": ((each.name, value),)} for each in fields_of(op.fields) for value in _values(each)]
    plain: list[Variation] = [{"row_major_a": a, "row_major_b": b} for a, b in _LAYOUTS]
    plain += [{"bias": True}, *({"activation": name} for name in ACTIVATIONS if name != "none")]
    types = list(itertools.product(op.input_types, op.input_types, DTYPES))
    alone = {number: _accepted(op, arch, types, [each]) for number, each in enumerate([{}, *plain, *own])}
    for found in alone.values():
        yield from found
    for number, value in enumerate(own, 1 + len(plain)):
        if not alone[number]:
            yield from _accepted(
                op, arch, types, [_both(value, other) for other in (*plain, *own) if other is not value]
            )


def _accepted(
    op: Op, arch: str, types: Sequence[tuple[str, str, str]], variations: Sequence[Variation]
) -> list[GemmProblem]:
    made = (GemmProblem(_M, _N, _K, op.name, *each, **variation) for each in types for variation in variations)
    return [problem for problem in made if not op.refuse(problem, arch) and on_arch(problem, arch) == problem]


def _both(one: Variation, other: Variation) -> Variation:
    return {**one, **other, "own": tuple(dict((*one["own"], *other.get("own", ()))).items())}


def _values(field: Field) -> list[int | str]:
    """The words of a field, or three of its numbers, without its default."""
    between = 1 << max(field.most.bit_length() - 2, 0)
    values = field.words or (field.least, between, field.most)
    return [value for value in dict.fromkeys(values) if value != field.default]


def winner(problem: GemmProblem, arch: str) -> Result:
    """A measured winner of the problem, with a config that is legal for it on the default device of `arch`.

    Its time is one that the memory of every GPU allows.
    """
    config = _config(problem, arch)
    assert config is not None, problem
    device = gpu_for_arch(arch).name
    timed = {"duration_us": 1e6, "spread_us": 0.1, "samples": 60, "discarded": 0, "time_source": "cudagraph"}
    return Result(problem, config, arch=arch, device=device, versions=_VERSIONS, **timed)


@lru_cache(maxsize=4096)
def _config(problem: GemmProblem, arch: str) -> Config | None:
    gpu = gpu_for_arch(arch)
    mfma = {"matrix_instr_nonkdim": 16, "kpack": 1} if gpu.vendor == "amd" else {}
    configs = (Config(FAMILY, *tile, 1, 1, 4, 2, **mfma) for tile in _TILES)
    return next((config for config in configs if not legal(problem, config, gpu)), None)


class Files:
    """The files of one architecture in a folder, and what each reader says that is in them."""

    def __init__(self, arch: str, problems: Sequence[GemmProblem], folder: Path) -> None:
        self.arch, self.problems, self.folder = arch, list(problems), folder
        gpu = gpu_for_arch(arch)
        self._facts = RunFacts(DeviceKey(arch, gpu.name, gpu.compute_units), dict(_VERSIONS), predicted=False)
        self._winners = [winner(problem, arch) for problem in self.problems]
        self.results = self._written("results.yaml", self._winners)

    def _written(self, name: str, winners: Sequence[Result]) -> str:
        path = str(self.folder / name)
        head, lines = kind_of(path).render(winners, self._facts.key.compute_units, "")
        write_whole(path, head + "".join(lines))
        return path

    def read(self) -> Collection[GemmProblem]:
        """`genkern export`, `status` and others that read results."""
        return [row.problem for row in read_results(self.results)]

    def resumed(self) -> Collection[GemmProblem]:
        """A tuning run, to which rows of its device are done."""
        return ResultsFile(self.results, self._facts, GemmDefaults()).problems

    def listed(self) -> Collection[GemmProblem]:
        """`-i` of a results file."""
        return read_sizes(self.results, GemmDefaults(), self.arch).problems

    def merged(self) -> Collection[GemmProblem]:
        """`genkern merge`, which knows no architecture, and `-i` of what it writes."""
        output = self.folder / "merged.yaml"
        run_merge(parse_merge([self.results, "-o", str(output), "--overwrite"]), Console(file=io.StringIO()))
        return read_sizes(str(output), GemmDefaults(), self.arch).problems

    def checked(self) -> Collection[GemmProblem]:
        """`--compare_wo_tuning`, up to where it compiles."""
        results = fitting(read_own_results(self.results, GemmDefaults()).results, self._facts.key, self.results)
        for result in results:
            check_problem(result.problem, self.arch)
        return [result.problem for result in results]

    def packed(self) -> Collection[GemmProblem]:
        """`genkern pack` and the reader of bundles, without the calls that a compiler makes."""
        rows = rows_of(read_results(self.results), None, predicted=False)
        assert not rows.left_out, rows.left_out
        contents = Contents(tuple(row.winner.with_calls(()) for row in rows.packed), {}, {})
        return [each.problem for each in from_data(json.loads(json.dumps(to_data(contents)))).winners]

    def journaled(self) -> Collection[GemmProblem]:
        """The journal of a run, which a killed run goes on from."""
        path = self.folder / "journal"
        path.unlink(missing_ok=True)
        with closing(Journal(path, {})) as journal:
            for problem in self.problems:
                journal.add_sums(problem, {})
        return read_journal(path).numbers

    def in_cells(self) -> Collection[GemmProblem]:
        """`--profile_file` and `--candidates`."""
        return [problem_of_cells(problem_cells(problem)) for problem in self.problems]

    def counted(self) -> Collection[GemmProblem]:
        """`genkern ops`."""
        found, _ = measured_sizes([self.results])
        return [problem for problems in found.values() for problem in problems]

    def in_tables(self) -> Collection[GemmProblem]:
        """AITER's CSV, of problems that its columns can say; the others count as they are."""
        found = [each.problem for each in self._winners if aiter_csv.obstacle(each.problem)]
        for op in op_names():
            rows = [each for each in self._winners if each.problem.op == op and not aiter_csv.obstacle(each.problem)]
            if not rows:
                continue
            path = self._written(f"{op}_tuned_gemm.csv", rows)
            table = [row.problem for row in read_results(path)]
            assert set(table) == ResultsFile(path, self._facts, GemmDefaults()).problems
            assert set(table) == set(read_sizes(path, GemmDefaults(), self.arch).problems)
            found += table
        return found

    def exported(self) -> Collection[GemmProblem]:
        """`genkern export` and `import`, of problems that a file of another program can speak of."""
        # Solutions of FlashInfer Trace hold kernels, which `import` does not take.
        peers = [peer for name, peer in PEERS.items() if name != flashinfer_trace.NAME]
        lost = {problem for peer in peers for problem in self._lost(peer)}
        return [problem for problem in self.problems if problem not in lost]

    def _lost(self, peer: PeerFile) -> set[GemmProblem]:
        """The problems that a file of this kind takes, and `import` does not find in it."""
        gpu, by_said = gpu_for_arch(self.arch), {}
        for each in self._winners:
            whole = _whole(each, peer)
            if any(peer.obstacle(part.problem) or peer.config_obstacle(part.config) for part in whole):
                continue
            for part in whole:
                size = TimedSize(part.problem, {part.config: 10.0}, self.arch, gpu.name)
                by_said[_said(part.problem, peer)] = size
        if not by_said or (peer.NAME.startswith(aiter_triton.NAME) and gpu.vendor != "amd"):
            return set()
        reader = aiter_triton if peer.NAME == aiter_triton_named.NAME else peer
        for name, text in peer.render(list(by_said.values())).items():
            if name == LOSSES:
                continue
            for candidate in reader.read(text, name, name, self.arch).candidates:
                by_said.pop(_said(candidate.problem, peer), None)
        return {size.problem for size in by_said.values()}


def _whole(winner: Result, peer: PeerFile) -> list[Result]:
    """What a file of this kind needs to speak of a winner: AITER's fused MoE has both stages in a row."""
    problem = winner.problem
    if problem.op != aiter_fmoe.OP:
        return [winner]
    # Files of vLLM and SGLang lack the hidden size, so `import` leaves them out.
    if peer.NAME != aiter_fmoe.NAME or ("stage", "gate_up") not in problem.own:
        return []
    own = tuple(pair for pair in problem.own if pair[0] != "stage")
    down = replace(problem, N=problem.K, K=problem.N, activation="none", own=own)
    return [winner, replace(winner, problem=down)]


def _said(problem: GemmProblem, peer: PeerFile) -> object:
    """What a file of this kind says of a problem: files of configs serve every type of C, and most every type of A."""
    if peer.NAME in (tunableop.NAME, aiter_fmoe.NAME):
        return problem
    return problem.op, problem.M, problem.N, problem.K, problem.own


READERS: tuple[Callable[[Files], Collection[GemmProblem]], ...] = (
    *(Files.read, Files.resumed, Files.listed, Files.merged, Files.checked, Files.packed, Files.journaled),
    *(Files.in_cells, Files.counted, Files.in_tables, Files.exported),
)


def changed(files: Files) -> dict[str, str]:
    """By reader what it refuses, or the first problem that it does not read back as it was written."""
    found = {}
    for reader in READERS:
        try:
            different = set(files.problems).symmetric_difference(reader(files))
        except GenkernError as error:
            found[reader.__name__] = f"refused: {error}"
        else:
            if different:
                found[reader.__name__] = f"not read back as it was written: {min(different).name}"
    return found


def main(argv: Sequence[str]) -> int:
    count, status = 0, 0
    for arch in argv or known_archs():
        problems = cases(arch)
        with tempfile.TemporaryDirectory() as folder:
            for reader, what in changed(Files(arch, problems, Path(folder))).items():
                print(f"{arch}: {reader}: {what}")
                status = 1
        print(f"{arch}: {len(problems)} problems, {len(READERS)} readers")
        count += len(problems)
    print(f"{FIGURE}: {count:,}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
