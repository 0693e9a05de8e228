"""Hooks: every process of a run notes what it does, with times of one clock.

Put first on a process's path by `sitecustomize` of the same folder's `installed` (benchmarks.timeline.traced): modules
of genkern are wrapped as they are imported, so that nothing of it knows of being watched. A span is a JSON line in a
file of its process: [what, begin, end, CPU seconds, more], times by CLOCK_MONOTONIC, which all processes of a host
share.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import json
import os
import resource
import sys
import threading
import time
from pathlib import Path

_FOLDER = os.environ.get("GENKERN_TIMELINE", "")
_file = None
_pid = 0
_lock = threading.Lock()


def note(what, begin_s, end_s, cpu_s=0.0, **more):
    """Add a span to this process's file."""
    global _file, _pid
    line = json.dumps([what, round(begin_s, 5), round(end_s, 5), round(cpu_s, 5), more], default=str) + "\n"
    with _lock:
        if _pid != os.getpid():
            _pid = os.getpid()
            _file = os.open(os.path.join(_FOLDER, f"{_pid}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(_file, line.encode())


os.register_at_fork(after_in_child=_lock._at_fork_reinit)


def _cpu_s():
    own = resource.getrusage(resource.RUSAGE_SELF)
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + theirs.ru_utime + theirs.ru_stime


def spanned(what, function, of=lambda *args, **kwargs: {}, after=lambda result: {}, least_s=0.0):
    """The function, whose calls are noted."""

    @functools.wraps(function)
    def called(*args, **kwargs):
        begin_s, cpu_s = time.monotonic(), _cpu_s()
        more = {}
        try:
            result = function(*args, **kwargs)
            more = after(result)
            return result
        finally:
            end_s = time.monotonic()
            if end_s - begin_s >= least_s:
                try:
                    more = {**of(*args, **kwargs), **more}
                except Exception as error:
                    more = {"untold": repr(error)}
                thread = threading.current_thread().name
                note(what, begin_s, end_s, _cpu_s() - cpu_s, thread=thread, **more)

    return called


def wrap(owner, name, what, **how):
    if (function := getattr(owner, name, None)) is not None:
        setattr(owner, name, spanned(what, function, **how))
    else:
        note("missing", time.monotonic(), time.monotonic(), what=what)


def _size(problem, *_, **__):
    return {"size": f"{problem.M}x{problem.N}x{problem.K}"}


def _of_run(module):
    wrap(module, "run", "run")
    wrap(module, "make_setting", "setting")
    wrap(module, "read_problems", "read sizes")
    wrap(module, "space_for_libraries", "space")


def _of_setting(module):
    wrap(module, "choose_target", "which GPU")


def _of_prune(module):
    wrap(module, "prune", "prune", of=lambda space, problem, *_: _size(problem))


def _of_guided(module):
    wrap(module, "foresee", "foresee", of=lambda problem, *_: _size(problem))
    wrap(module.Guided, "__init__", "strategy")
    wrap(module.Guided, "_next", "strategy next", after=lambda units: {"units": len(units)}, least_s=0.0002)


def _of_prepared(module):
    wrap(
        module.Preparation,
        "of",
        "prepare",
        of=lambda self, problem, *_, behind, **__: {**_size(problem), "behind": behind},
    )


def _of_workshop(module):
    wrap(module, "generate", "generate")


def _of_tune(module):
    wrap(module.Tuner, "tune", "tune", of=lambda self, problem, *_, **__: _size(problem))
    wrap(module, "confirmed", "confirmed")
    stage = module.Report.stage

    def staged(self, name):
        import contextlib

        @contextlib.contextmanager
        def inner():
            begin_s = time.monotonic()
            try:
                with stage(self, name):
                    yield
            finally:
                note(f"stage {name}", begin_s, time.monotonic(), **_size(self.problem))

        return inner()

    module.Report.stage = staged


def _of_search(module):
    search = module.Search

    def size(self, *_):
        return _size(self._bench.job.session.problem)

    wrap(search, "_order_more", "order", of=size, after=lambda count: {"units": count}, least_s=0.0002)
    wrap(search, "_ask", "ask", of=lambda self, n: {**size(self), "n": n}, after=lambda units: {"units": len(units)})
    wrap(
        search,
        "_take",
        "made",
        of=lambda self, made: {**size(self), "rank": made.rank, "cached": made.cached, "configs": len(made.configs)},
    )
    wrap(
        search,
        "_tell_measured",
        "told",
        of=lambda self, measurement: {
            **size(self),
            "config": measurement.config,
            "us": measurement.duration_us,
            "took_ms": measurement.took_ms,
        },
    )
    wrap(search, "searched", "searched", of=size)


def _of_farm(module):
    wrap(module.Farm, "_work", "farm hands out")
    wrap(module.Farm, "close", "farm closes")
    order = module.Farm.order

    def ordered(self, owner, jobs, tell):
        now_s = time.monotonic()
        note("ordered", now_s, now_s, owner=str(id(owner)), keys=[job.key[:12] for _, job in jobs])
        return order(self, owner, jobs, tell)

    module.Farm.order = ordered
    ended = module.Farm._ended

    def told(self, job, result):
        now_s = time.monotonic()
        note("made", now_s, now_s, key=job.key[:12], failed=type(result).__name__)
        return ended(self, job, result)

    module.Farm._ended = told


def _of_pool(module):
    wrap(module, "begin", "to pool", of=lambda job, workers: {"key": job.key[:12]})


def _of_compiler(module):
    wrap(
        module,
        "compile_kernel",
        "compile",
        of=lambda job, *_: {"key": job.key[:12], "function": job.spec.function, "language": job.spec.language},
        after=lambda result: {"result": type(result).__name__},
    )
    wrap(module, "run_job", "job", of=lambda job, *_: {"key": job.key[:12]})
    wrap(module, "forked", "fork compile process")


def _of_measured(module):
    process = module.MeasuredProcess
    wrap(process, "open", "open asked", of=lambda self, session: _size(session.problem), least_s=0.0005)
    wrap(process, "receive", "wait for answer", least_s=0.0005)
    wrap(process, "_start", "start measured process")
    wrap(process, "close", "end measured processes")


def _of_supervised(module):
    profiler = module.SupervisedProfiler
    for name in ("semifinal", "retime", "confirm", "check_request"):
        wrap(profiler, name, f"asked {name}", of=lambda self, session, *_: _size(session.problem))


def _of_feed(module):
    wrap(module.Feed, "next", "wait for binaries", least_s=0.0005)


def _of_server(module):
    wrap(module.Server, "_start", "gpu start")
    wrap(module.Server, "_open", "gpu open", of=lambda self, session: _size(session.problem))
    answer = module.Server._answer

    def answered(self, request, tell):
        begin_s, cpu_s = time.monotonic(), _cpu_s()
        try:
            return answer(self, request, tell)
        finally:
            names = request.get("configs") or [request.get("config")]
            size = _size(self._gemm.session.problem) if self._gemm is not None else {}
            note(
                f"gpu {request.get('command')}",
                begin_s,
                time.monotonic(),
                _cpu_s() - cpu_s,
                count=len(names or request.get("candidates", ())),
                name=str(names[0]),
                **size,
            )

    module.Server._answer = answered
    wrap(module.Server, "_algorithms_to_race", "gpu library algorithms", after=lambda calls: {"race": len(calls)})
    wrap(
        module,
        "run_finals",
        "gpu rounds",
        after=lambda finals: {
            "rounds": finals.rounds,
            "stopped": finals.stopped,
            "discarded": sum(finals.discarded.values()),
        },
    )
    wrap(module, "semifinal", "gpu semifinal rounds")


def _of_finals(module):
    wrap(module, "_warm_up", "gpu warm up")
    wrap(module, "_warm_again", "gpu warm again")


def _of_algorithms(module):
    wrap(module.Algorithms, "__init__", "gpu algorithms handle")
    wrap(module.Algorithms, "names", "gpu algorithms listed", after=lambda names: {"count": len(names)})
    wrap(module.Screening, "best", "gpu algorithms screened", of=lambda self, binds, _: {"count": len(binds)})


def _of_loaded(module):
    wrap(module.LoadedGemm, "__init__", "gpu operands")
    wrap(module.LoadedGemm, "bind", "gpu bind", least_s=0.0005)
    wrap(module.LoadedGemm, "faults_of_timed", "gpu faults of timed")


def _of_verdict(module):
    wrap(module.Checking, "check", "gpu check whole")
    for name in ("_inputs", "_difference", "_errors", "_reference", "_magnitudes", "_fault_together", "_buffers"):
        wrap(module.Checking, name, f"gpu check {name}", least_s=0.0001)
    wrap(module, "_fault_beside", "gpu check beside", least_s=0.0001)


def _of_journal(module):
    wrap(module.Journal, "_put", "journal put", least_s=0.0002)


def _of_results(module):
    for name in ("write", "save", "add", "flush"):
        if hasattr(module.ResultsFile, name):
            wrap(module.ResultsFile, name, f"results {name}", least_s=0.0005)


_HOOKS = {
    "genkern.command.run": _of_run,
    "genkern.command.setting": _of_setting,
    "genkern.space.prune": _of_prune,
    "genkern.search.guided.guided": _of_guided,
    "genkern.tuning.prepared": _of_prepared,
    "genkern.farm.workshop": _of_workshop,
    "genkern.tuning.tune": _of_tune,
    "genkern.tuning.search": _of_search,
    "genkern.farm.farm": _of_farm,
    "genkern.farm.pool": _of_pool,
    "genkern.farm.compiler": _of_compiler,
    "genkern.profiling.measured_process": _of_measured,
    "genkern.profiling.supervised": _of_supervised,
    "genkern.profiling.feed": _of_feed,
    "genkern.profiling.server": _of_server,
    "genkern.profiling.finals": _of_finals,
    "genkern.profiling.algorithms": _of_algorithms,
    "genkern.profiling.loaded_gemm": _of_loaded,
    "genkern.profiling.checking.verdict": _of_verdict,
    "genkern.journal.journal": _of_journal,
    "genkern.formats.results": _of_results,
}
# Imports that take long, by the module that is imported first of each.
_LONG = {"torch", "triton", "triton.compiler", "numpy", "joblib", "rich", "yaml"}


class _Loader(importlib.abc.Loader):
    def __init__(self, loader, hook):
        self._loader, self._hook = loader, hook

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        begin_s, cpu_s = time.monotonic(), _cpu_s()
        self._loader.exec_module(module)
        if module.__name__ in _LONG:
            note("import", begin_s, time.monotonic(), _cpu_s() - cpu_s, module=module.__name__)
        if self._hook is not None:
            self._hook(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self):
        self._inside = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name not in _HOOKS and name not in _LONG:
            return None
        if getattr(self._inside, "it", False):
            return None
        self._inside.it = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._inside.it = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _HOOKS.get(name))
        return spec


def install():
    """Have this process noted. Its own start, by the kernel's clock, is the first span."""
    ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    begun_s = ticks / os.sysconf("SC_CLK_TCK") + (time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME))
    note("process", begun_s, time.monotonic(), ppid=os.getppid(), argv=sys.orig_argv[:6])
    sys.meta_path.insert(0, _Finder())
