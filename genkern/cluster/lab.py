"""`genkern lab`: tunes on the GPUs of all nodes of a cluster, into a results file per architecture."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from genkern.arguments import Parser
from genkern.cli.options import parse
from genkern.cli.setting import require_arch
from genkern.cli.target import versions
from genkern.cluster.batch_values import WHICH_GPUS, absolute, option_names
from genkern.cluster.collecting import CollectedRow, rows_in, rows_of, write_rows
from genkern.cluster.lab_node import LabResult, LabTask, tune_on_free_gpu
from genkern.cluster.lab_sizes import LabSizes, Place
from genkern.compile.farm import FarmCounts
from genkern.compile.kernels_file import MadeFor
from genkern.compile.remote.address import CLUSTER_HELP, Address, read_cluster
from genkern.compile.remote.node import greet
from genkern.compile.remote.nodes import GPU, Nodes
from genkern.errors import GenkernError, InputError, one_line
from genkern.file_io import require_writable, shown_path
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.gpus import gpu_for_arch, known_archs, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.journal.file_lock import sole_run
from genkern.kernels.kernel import Target
from genkern.ops.op import check_problem
from genkern.tuning.progress import Progress

# Options that this command sets itself for each share.
_TAKEN = WHICH_GPUS | {"-i", "--gemm_size_file", "-o", "--tuning_results_file", "--arch", "--cluster"}
_LOOK_S = 0.5
# Time for GPUs to appear, or to come back; it is extended while nodes are in a queue.
_WITHOUT_GPUS_S = 30.0


def parse_lab(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern lab`; the attribute `tuning` is the list of tuning options for the nodes.

    Raises InputError; SystemExit(0) after printing for --help.
    """
    options, tuning = lab_parser().parse_known_args(argv)
    options.tuning = absolute(tuning)
    if taken := sorted(option_names(options.tuning) & _TAKEN):
        raise InputError(f"{taken[0]}: genkern lab sets this option itself, for each node")
    for arch in options.arch:
        # Options that the nodes would refuse are refused here.
        require_arch(
            parse([*options.tuning, "-i", options.gemm_size_file[0], "-o", "results.yaml", "--arch", arch]), arch
        )
    return options


def lab_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern lab",
        usage="genkern lab --cluster ADDRESS --arch ARCH... -i SIZES... -o FOLDER [options of tuning]",
        description="Tune on all GPUs of a cluster: on its workers with --resources GPU=1; the others compile. Options "
        "of tuning may follow.",
    )
    group = p.add_argument_group("what to tune, and where")
    group.add_argument("--cluster", type=read_cluster, required=True, metavar="ADDRESS", help=CLUSTER_HELP)
    group.add_argument(
        "--arch", nargs="+", choices=known_archs(), required=True, metavar="ARCH", help="all sizes are tuned for each"
    )
    group.add_argument(*("-i", "--gemm_size_file"), nargs="+", required=True, metavar="SIZES", help="size lists")
    group.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        required=True,
        help="the folder for results_ARCH.yaml; sizes in these files are skipped",
    )
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_lab(options: argparse.Namespace, console: Console) -> int:
    """Tune; returns 1 if a size has no winner, 3 if a bug in genkern is the reason. Raises InputError or
    OutputError."""
    asked = {arch: _asked(options.gemm_size_file, arch) for arch in dict.fromkeys(options.arch)}
    files = {arch: str(Path(options.output) / f"results_{arch}.yaml") for arch in asked}
    with contextlib.ExitStack() as stack:
        for path in files.values():
            require_writable(path)
            stack.enter_context(sole_run(path))
        return _tuned(options, asked, files, console)


def _asked(lists: Sequence[str], arch: str) -> list[GemmProblem]:
    """Return the sizes of these lists for an architecture, without duplicates."""
    found = dict.fromkeys(problem for each in lists for problem in read_sizes(each, GemmDefaults(), arch).problems)
    for problem in found:
        check_problem(problem, arch)
    return list(found)


def _tuned(
    options: argparse.Namespace, asked: dict[str, list[GemmProblem]], files: dict[str, str], console: Console
) -> int:
    """Tune the sizes that are not in the files yet, and return the exit status. The caller holds the files' locks."""
    rows: dict[str, list[CollectedRow]] = {}
    wanted: dict[str, list[GemmProblem]] = {}
    for arch, path in files.items():
        rows[arch] = rows_in(path) if os.path.exists(path) else []
        done = {each.problem for each in rows[arch]}
        wanted[arch] = [problem for problem in asked[arch] if problem not in done]
        if skipped := len(asked[arch]) - len(wanted[arch]):
            console.print(f"note: {skipped} of {len(asked[arch])} sizes are in {shown_path(path)} already")
    sizes = LabSizes.of(wanted)
    if sizes.is_done:
        return 0
    target = Target(*triton_target(gpu_for_arch(next(iter(files)))))
    greeting = greet, json.dumps(asdict(MadeFor.here(target, versions()["triton"])))
    nodes = Nodes(Address.read(options.cluster), console.print, greeting, {})
    try:
        lab = _Lab(nodes, sizes, files, rows, tuple(options.tuning), console)
        lab.work()
    finally:
        nodes.end()
    for arch, problem in sizes.given_up:
        console.print(f"{arch} {problem.size}: given up, its node was lost each time")
    for arch, path in files.items():
        devices = sorted({str(each.device) for each in rows[arch]})
        console.print(f"{arch}: {len(rows[arch])} sizes in {shown_path(path)}, of {', '.join(devices) or 'no device'}")
    return 3 if lab.bugs else 1 if lab.failed or sizes.given_up else 0


@dataclass
class _Lab:
    """A run: gives shares of sizes to free GPUs, and writes the results."""

    nodes: Nodes
    sizes: LabSizes
    files: dict[str, str]
    rows: dict[str, list[CollectedRow]]
    tuning: tuple[str, ...]
    console: Console
    failed: int = 0
    bugs: int = 0
    # News of shares, and ended shares, from Dask's threads.
    _heard: queue.SimpleQueue[tuple[int, Any]] = field(default_factory=queue.SimpleQueue)
    _pending: dict[int, Any] = field(default_factory=dict)

    def work(self) -> None:
        topic = f"genkern-lab-{secrets.token_hex(8)}"
        client = self.nodes.client
        client.subscribe_topic(topic, self._news)
        total = sum(map(len, self.sizes.left.values()))
        with_gpus_s = time.monotonic()
        try:
            with Progress(self.console) as progress, progress.problem("sizes", total, FarmCounts()) as advance:
                while not self.sizes.is_done:
                    self.nodes.check()
                    gpus = self._gpus()
                    for number, place, problems in self.sizes.take(gpus):
                        share = LabTask(place.arch, "".join(map(size_line, problems)), self._options(), topic, number)
                        self._ask(place, share)
                    if self._pending or {place.arch for place in gpus}.issuperset(self.sizes.waiting()):
                        with_gpus_s = time.monotonic()
                    elif self._is_hopeless(time.monotonic() - with_gpus_s):
                        raise InputError(self._nobody())
                    before = self._count()
                    self._hear()
                    self._forget_lost()
                    advance(self._count() - before)
        finally:
            self._cancel(list(self._pending.values()))

    def _ask(self, place: Place, share: LabTask) -> None:
        """Have a node tune a share; one GPU measures all candidates of a size."""
        number = share.number
        try:
            pending = self.nodes.client.submit(
                *(tune_on_free_gpu, share.text()), workers=[place.node], resources={GPU: 1}, pure=False
            )
        except Exception as error:
            self.nodes.tell_once("sizes are not taken", error)
            self.sizes.lost(number, at_fault=False)
            return
        self._pending[number] = pending
        pending.add_done_callback(lambda done: self._heard.put((number, done)))

    def _options(self) -> tuple[str, ...]:
        """Return the tuning options of a share, with --cluster if nodes without GPUs can compile for the GPU nodes."""
        compiles = any(not node.gpus and not node.why for node in self.nodes.there)
        return (*self.tuning, *(("--cluster", self.nodes.scheduler) if compiles else ()))

    def _gpus(self) -> dict[Place, int]:
        """Return the number of GPUs of the requested architectures on each node."""
        return {
            Place(node.address, arch): min(node.gpus, node.said["archs"].count(arch))
            for node in self.nodes.there
            for arch in self.sizes.left
            if node.gpus and not node.why and arch in node.said.get("archs", ())
        }

    def _is_hopeless(self, waited_s: float) -> bool:
        """Return True if no GPU can be expected, after `waited_s` seconds without a suitable one."""
        measuring = [node for node in self.nodes.there if node.gpus]
        of_no_use = bool(measuring) and all(node.why for node in measuring)
        return (of_no_use or waited_s > _WITHOUT_GPUS_S) and not self.nodes.expects_more

    def _nobody(self) -> str:
        seen = sorted({arch for node in self.nodes.there if node.gpus for arch in node.said.get("archs", ())})
        why = next((f"; {node.address}: {node.why}" for node in self.nodes.there if node.gpus and node.why), "")
        wanted, have = ", ".join(self.sizes.waiting()), ", ".join(seen) or "none"
        return f"--cluster: no worker with --resources GPU=1 has a {wanted} GPU; they have {have}{why}"

    def _news(self, event: Any) -> None:
        with contextlib.suppress(LookupError, TypeError, ValueError):
            said = event[1]
            self._heard.put((int(said["number"]), str(said["news"])))

    def _hear(self) -> None:
        """Wait for news for up to `_LOOK_S` seconds, then process everything that has arrived."""
        heard = []
        with contextlib.suppress(queue.Empty):
            heard.append(self._heard.get(timeout=_LOOK_S))
            while True:
                heard.append(self._heard.get_nowait())
        for number, what in heard:
            if isinstance(what, str):
                self._take_rows(number, LabResult.read(what))
            elif self._pending.pop(number, None) is not None:
                self._ended(number, what)

    def _ended(self, number: int, pending: Any) -> None:
        place, _ = self.sizes.in_flight[number]
        try:
            done = LabResult.read(pending.result())
        except GenkernError:
            raise
        except Exception as error:
            # CancelledError: the scheduler was lost or restarted, which says nothing about the node.
            forgotten = type(error).__name__.endswith("CancelledError")
            what = "was forgotten by the scheduler" if forgotten else f"is lost ({one_line(error)})"
            self.console.print(f"note: {place.node} {what}: other nodes take its sizes")
            self.sizes.lost(number, at_fault=not forgotten)
            return
        self._take_rows(number, done)
        if done.status in (0, 1, 3):
            self.bugs += done.status == 3
            for problem in self.sizes.ended(number):
                self.failed += 1
                self.console.print(f"{problem.size}: no winner on {done.origin}: {done.said}")
            return
        if done.status == 2:
            self.nodes.leave_out(place.node, done.said)
        self.sizes.lost(number)

    def _take_rows(self, number: int, done: LabResult) -> None:
        """Write the rows of a share that are not written yet."""
        if number not in self.sizes.in_flight or not done.results:
            return
        place, problems = self.sizes.in_flight[number]
        rows = self.rows[place.arch]
        new = [row for row in rows_of(done.results, place.node, done.origin) if row.problem in problems]
        for row in new:
            self.sizes.finished(number, row.problem)
            self.console.print(f"{place.arch} {row.problem.size}: {row.duration_us:.2f} us, {done.origin}")
        rows += new
        if new:
            write_rows(self.files[place.arch], rows)

    def _forget_lost(self) -> None:
        """Give the sizes of lost nodes to other nodes. Dask would wait for the lost nodes to return."""
        there = {node.address for node in self.nodes.there}
        for number, pending in list(self._pending.items()):
            place, _ = self.sizes.in_flight[number]
            if place.node not in there:
                del self._pending[number]
                self._cancel([pending])
                self.console.print(f"note: {place.node} is lost: other nodes take its sizes")
                self.sizes.lost(number)

    def _cancel(self, pending: list[Any]) -> None:
        """Withdraw tasks; their results no longer matter."""
        try:
            if pending:
                self.nodes.client.cancel(pending)
        except Exception as error:
            self.nodes.tell_once("sizes are not withdrawn", error)

    def _count(self) -> int:
        return sum(map(len, self.rows.values())) + self.failed
