"""Write recorded spaces as files of Kernel Tuner: T4 results, the T1 space of each, and a cache to simulate from.

T1 describes a search space and T4 the results of a search, both in JSON (schema 1.0.0 of each). A T1 space is the
product of its parameters' values, less what its conditions exclude. A space of genkern is a union of families with
different parameters, so each family of each problem has files of its own, and its conditions leave exactly the recorded
configs. Kernel Tuner's simulation mode reads a third file, in the format of its cache.

Sources: Kernel Tuner 1.5.0, kernel_tuner/schema, and there tune_kernel_T1, get_t4_results and process_cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.parameter import CORE, PARAMETERS, Value
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.recorded.problem import RecordedProblem

NAME = "t4"
SCHEMA_VERSION = "1.0.0"
# T1 requires the name of a file with the kernel, and Kernel Tuner requires that the file exists.
KERNEL_FILE = "kernels.txt"
KERNEL_TEXT = """The kernels of these spaces are Triton, Gluon and CuTe DSL modules that genkern generates.
T1 has no name for these languages, so the spaces say CUDA and have grids of 1.
Replay them in simulation mode, which runs no kernel.
"""
RESULTS_END = "_T4.json"
_CORRECT, _CONSTRAINTS, _CORRECTNESS = "correct", "constraints", "correctness"
# T4's reasons for a config without a time.
_INVALIDITY = {
    Outcome.COMPILE_FAILED: "compile",
    Outcome.OVER_RESOURCES: "compile",
    Outcome.COMPILE_TIMED_OUT: "timeout",
    Outcome.TIMED_OUT: "timeout",
    Outcome.LAUNCH_FAILED: "runtime",
    Outcome.CRASHED: "runtime",
    Outcome.WRONG: _CORRECTNESS,
}
# Kernel Tuner's errors for them. Its cache has none for timeouts and wrong outputs.
_ERRORS = {"compile": "CompilationFailedConfig", _CONSTRAINTS: "InvalidConfig"}
_OTHER_ERROR = "RuntimeFailedConfig"


@dataclass(frozen=True)
class Result:
    """One config as T4 describes it.

    values: the values of the space's parameters, in their order
    invalidity: "correct", or T4's reason for a missing time
    time_ms: milliseconds of a call in the first measurement; None unless the config is correct
    times_ms: what else is known in milliseconds, by name
    said: what else is known, by name
    """

    values: tuple[Value, ...]
    invalidity: str
    time_ms: float | None
    times_ms: Mapping[str, float]
    said: Mapping[str, str]


@dataclass(frozen=True)
class FamilySpace:
    """The recorded configs of one family for one problem.

    values: the values of each parameter, by name
    results: a result for each config, in the order of the record
    """

    problem: GemmProblem
    gpu: Gpu
    device: str
    family: str
    values: Mapping[str, tuple[Value, ...]]
    results: tuple[Result, ...]

    @cached_property
    def conditions(self) -> list[dict[str, Any]]:
        """Conditions that leave exactly the recorded configs.

        For each leading part of the parameters, a condition lists the recorded combinations, unless the condition of
        the part before it leaves only these. A solver can thus drop a combination before it has assigned every
        parameter.
        """
        names = list(self.values)
        found = []
        before = 1
        for count in range(1, len(names) + 1):
            some = {result.values[:count] for result in self.results}
            if len(some) < before * len(self.values[names[count - 1]]):
                listed = ", ".join(map(repr, sorted(some, key=_in_order)))
                expression = f"({', '.join(names[:count])}) in {{{listed}}}"
                found.append({"Parameters": names[:count], "Expression": expression.replace(", ", ",")})
            before = len(some)
        return found

    def t1(self) -> str:
        """Return the T1 file: the space, and a search of all its configs in simulation mode."""
        problem = self.problem
        space = {
            "General": {"FormatVersion": 1, "TimeUnit": "Milliseconds", "OutputFormat": "JSON"},
            "ConfigurationSpace": {
                "TuningParameters": [
                    {"Name": name, "Type": _type(values), "Values": repr(list(values))}
                    for name, values in self.values.items()
                ],
                "Conditions": self.conditions,
            },
            "Search": {"Name": "brute_force"},
            "KernelSpecification": {
                "Language": "CUDA",
                "KernelName": self.kernel,
                "KernelFile": KERNEL_FILE,
                "GlobalSizeType": "CUDA",
                "ProblemSize": [problem.M, problem.N, problem.K],
                "GlobalSize": {"X": "1"},
                "LocalSize": {"X": f"num_warps * {self.gpu.warp_size}"},
                "Device": {"Name": self.device},
                "SimulationInput": f"{self.family}_cache.json",
                "Arguments": [],
            },
        }
        return json.dumps(space, indent=1) + "\n"

    def t4(self) -> Iterator[str]:
        """Yield the parts of the T4 results file."""
        yield f'{{"schema_version": "{SCHEMA_VERSION}", "metadata": {{"timeunit": "milliseconds"}}, "results": [\n'
        for place, result in enumerate(self.results):
            yield ",\n" * (place > 0) + json.dumps(_t4(result, tuple(self.values)))
        yield "\n]}\n"

    def cache(self) -> Iterator[str]:
        """Yield the parts of the file that Kernel Tuner's simulation mode reads."""
        names = tuple(self.values)
        head = {
            "device_name": self.device,
            "kernel_name": self.kernel,
            "problem_size": [self.problem.M, self.problem.N, self.problem.K],
            "tune_params_keys": names,
            "tune_params": self.values,
            "objective": "time",
        }
        yield json.dumps(head).removesuffix("}") + ', "cache": {\n'
        for place, result in enumerate(self.results):
            key = json.dumps(",".join(map(str, result.values)))
            yield ",\n" * (place > 0) + f"{key}: {json.dumps(_cached(result, names))}"
        # Kernel Tuner takes a file with any other end for a search that was stopped.
        yield "}\n}"

    @property
    def kernel(self) -> str:
        return f"gemm_{self.problem.name}_{self.family}"


def spaces_of(recorded: RecordedProblem, device: str) -> list[FamilySpace]:
    """Return the spaces of a recorded problem, one for each family."""
    rows: dict[str, list[int]] = {}
    for row, config in enumerate(recorded.configs):
        rows.setdefault(config.family, []).append(row)
    us, final_us, compile_s, took_ms = (
        recorded.columns[name].tolist() for name in ("screen_us", "final_us", "compile_s", "took_ms")
    )
    found = []
    for family, some in rows.items():
        configs = [recorded.configs[row] for row in some]
        names = _names(configs)
        results = []
        for row, config in zip(some, configs, strict=True):
            times = {"final_time": _ms(final_us[row]), "compile": _ms(compile_s[row], 1e3), "benchmark": took_ms[row]}
            copied = recorded.copies.get(config)
            ms = _ms(us[row] if copied is None else recorded.us.get(copied, float("nan")))
            results.append(_result(recorded, row, tuple(getattr(config, name) for name in names), ms, times))
        columns = zip(*(result.values for result in results), strict=True)
        values = {name: tuple(sorted(set(column))) for name, column in zip(names, columns, strict=True)}
        found.append(FamilySpace(recorded.problem, recorded.gpu, device, family, values, tuple(results)))
    return found


def _result(
    recorded: RecordedProblem, row: int, values: tuple[Value, ...], ms: float, times: Mapping[str, float]
) -> Result:
    config, outcome = recorded.configs[row], recorded.outcomes[row]
    said = {} if outcome is Outcome.MEASURED else {"outcome": outcome.value}
    if config in recorded.copies:
        said["copy_of"] = recorded.copies[config].name
    invalidity = _INVALIDITY.get(outcome, _CORRECT if ms == ms else _CONSTRAINTS)
    if {config, recorded.copies.get(config)} & recorded.wrong:
        invalidity = _CORRECTNESS
    time_ms = ms if invalidity == _CORRECT else None
    return Result(values, invalidity, time_ms, {name: of for name, of in times.items() if of == of}, said)


def metadata(recorded: RecordedProblem, provenance: Mapping[str, Any]) -> str:
    """Return the T4 metadata file of a problem: the GPU, the software and the run."""
    said_versions = provenance.get("versions")
    versions = {name: str(of) for name, of in said_versions.items()} if isinstance(said_versions, dict) else {}
    said = {
        "schema_version": SCHEMA_VERSION,
        "metadata": {
            "hardware": {
                "hardware_description": [{"device": device_of(recorded, provenance), "arch": recorded.gpu.arch}]
            },
            "environment": {
                "device_query": {"clocks": provenance.get("clocks", {}), "driver": versions.get("driver", "")},
                "requirements": [f"{name}=={of}" for name, of in versions.items() if name != "driver"],
            },
            "genkern": {
                **{name: provenance.get(name, "") for name in ("commit", "command", "date")},
                "run": recorded.run,
                "problem": recorded.problem.name,
                "library_ms": {name: _ms(us) for name, us in recorded.library_us.items()},
            },
        },
    }
    return json.dumps(said, indent=1) + "\n"


def files_of(recorded: RecordedProblem, provenance: Mapping[str, Any]) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the files of a problem: the path in the folder of the export, and the parts of the text.

    `provenance`: that of the problem's run (genkern.recorded.from_journal.RecordedRun).
    """
    device = device_of(recorded, provenance)
    folder = f"{folder_of(device)}/{recorded.problem.name}"
    for space in spaces_of(recorded, device):
        yield f"{folder}/{space.family}_T1.json", [space.t1()]
        yield f"{folder}/{space.family}{RESULTS_END}", space.t4()
        yield f"{folder}/{space.family}_cache.json", space.cache()
    yield f"{folder}/metadata.json", [metadata(recorded, provenance)]
    yield f"{folder_of(device)}/{KERNEL_FILE}", [KERNEL_TEXT]


def device_of(recorded: RecordedProblem, provenance: Mapping[str, Any]) -> str:
    """Return the GPU's name as its driver reported it, or genkern's name if the run has none."""
    return str(provenance.get("device") or recorded.gpu.name)


def folder_of(device: str) -> str:
    """Return the name of a device's folder, such as nvidia_h200."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_") or "device"


def _names(configs: Sequence[Config]) -> tuple[str, ...]:
    """Return the parameters that describe these configs, in the order of config names."""
    others = {name for config in configs for name, _ in config.others}
    core = [parameter.name for parameter in CORE]
    return (*core, *(parameter.name for parameter in PARAMETERS.all if parameter.name in others - {*core}))


def _t4(result: Result, names: Sequence[str]) -> dict[str, Any]:
    known = result.times_ms
    times: dict[str, Any] = {"framework": 0, "search_algorithm": 0, "validation": 0}
    if "compile" in known:
        # The schema's name, and the name that Kernel Tuner writes.
        times |= {"compilation_time": known["compile"], "compilation": known["compile"]}
    if "benchmark" in known:
        times["benchmark"] = known["benchmark"]
    measurements: list[dict[str, Any]] = []
    if result.time_ms is not None:
        measurements.append({"name": "time", "value": result.time_ms, "unit": "ms"})
    if "final_time" in known:
        measurements.append({"name": "final_time", "value": known["final_time"], "unit": "ms"})
    measurements += [{"name": name, "value": text, "unit": ""} for name, text in result.said.items()]
    return {
        "configuration": dict(zip(names, result.values, strict=True)),
        "objectives": ["time"],
        "times": {**times, "runtimes": [] if result.time_ms is None else [result.time_ms]},
        "invalidity": result.invalidity,
        "correctness": int(result.invalidity != _CORRECTNESS),
        "measurements": measurements,
    }


def _cached(result: Result, names: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = dict(zip(names, result.values, strict=True))
    if result.time_ms is not None:
        found |= {"time": result.time_ms, "times": [result.time_ms]}
    else:
        found["__error__"] = _ERRORS.get(result.invalidity, _OTHER_ERROR)
    # Kernel Tuner needs all of its timings; those that the record does not have are 0.
    known = {
        "compile_time": result.times_ms.get("compile", 0.0),
        "benchmark_time": result.times_ms.get("benchmark", 0.0),
    }
    return found | known | {"verification_time": 0, "strategy_time": 0, "framework_time": 0}


def _ms(value: float, factor: float = 1e-3) -> float:
    """Return milliseconds, by default of microseconds; the rounding removes the error of the factor."""
    return round(value * factor, 9) if value == value else value


def _type(values: Sequence[Value]) -> str:
    return "string" if any(isinstance(value, str) for value in values) else "int"


def _in_order(values: tuple[Value, ...]) -> tuple[tuple[bool, Value], ...]:
    return tuple((isinstance(value, str), value) for value in values)
