"""Faults for python_mutants.py: edits of genkern's Python, each of which makes a room behave wrongly.

A fault names no file, so that it outlives a move of its code: it applies to the one file that defines `symbol` and has
the text `old`. If the code is rewritten, rewrite the fault so that it is the same mistake.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """An edit that tests must find.

    name: the mistake
    symbol: function, class or constant in whose file `old` occurs exactly once
    old, new: the text that is replaced, and its replacement
    tests: folders or files of tests/ that should find it
    """

    name: str
    symbol: str
    old: str
    new: str
    tests: tuple[str, ...]


FAULTS = (
    # Files that several rooms write.
    Fault(
        "a file is replaced without fsync: a crash leaves it empty",
        "_replace",
        "os.fsync(file.fileno())",
        "file.fileno()",
        ("test_file_io.py",),
    ),
    Fault(
        "a replaced file loses its permission bits",
        "write_whole",
        "pieces, None if mode is None else stat.S_IMODE(mode))",
        "pieces, None)",
        ("test_file_io.py",),
    ),
    # gemm
    Fault(
        "dtypes are confused: bf16 holds as many integers as fp16",
        "DTYPES",
        'name="bf16", bits=16, kind="float", exact=2**8',
        'name="bf16", bits=16, kind="float", exact=2**11',
        ("gemm/test_dtypes.py", "profiling/checking"),
    ),
    Fault(
        "the wrong encoding of fp8 is taken for an architecture",
        "parse_dtype",
        "row.encoding == capabilities_of(arch).fp8",
        "row.encoding != capabilities_of(arch).fp8",
        ("gemm",),
    ),
    # timing
    Fault(
        "intervals hold 90 % instead of 95 %",
        "estimate",
        "tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)",
        "tail = round(RESAMPLES * (1 - CONFIDENCE))",
        ("timing",),
    ),
    Fault(
        "a finalist drops out by its median, whatever its interval",
        "is_beaten",
        "candidate.low_us > leader.high_us * BEATEN_RATIO",
        "candidate.median_us > leader.median_us * BEATEN_RATIO",
        ("timing", "profiling/test_finals.py"),
    ),
    # ops
    Fault(
        "a shuffled weight is restored with the strides of a plain one",
        "unshuffle_weight",
        "weight.reshape(*lead, n // rows, k // piece, rows, piece)",
        "weight.reshape(*lead, n // rows, rows, k // piece, piece)",
        ("ops/test_shuffle.py",),
    ),
    Fault(
        "a group may have more rows than its capacity",
        "Groups",
        "counts.clamp(max=self.capacity) if self.capacity",
        "counts if self.capacity",
        ("ops/test_groups.py", "ops/test_grouped_gemm.py"),
    ),
    # kernels
    Fault(
        "a kernel that relies on even numbers is called with odd ones",
        "keeps_promises",
        "isinstance(argument, Integer) and argument.multiple_of > 1",
        "isinstance(argument, Integer) and argument.multiple_of > 2",
        ("kernels/test_plan.py", "packing/test_m_ranges.py"),
    ),
    Fault(
        "shares of K are rounded up: sums get another order",
        "near_shares",
        "[number * blocks // count for",
        "[-(-number * blocks // count) for",
        ("kernels/test_sums.py",),
    ),
    Fault(
        "the key of a binary lacks the compiler's environment",
        "KernelSpec",
        "decides = self, layouts, target, triton_version, environment, LOWERING",
        "decides = self, layouts, target, triton_version, LOWERING",
        ("kernels/test_kernel.py",),
    ),
    # space
    Fault(
        "a rule keeps a split of K whose last part is empty",
        "split_k_empty",
        "return run * (config.SPLIT_K - 1) >= blocks",
        "return run * (config.SPLIT_K - 1) > blocks",
        ("space/test_rules.py", "space/test_prune_oracle.py"),
    ),
    Fault(
        "dropped configs are miscounted",
        "_ask_open",
        "self._result.dropped[name] += (len(left[parameter]) - len(stay)) * others",
        "self._result.dropped[name] += len(left[parameter]) - len(stay)",
        ("space/test_prune.py", "space/test_prune_oracle.py"),
    ),
    # farm
    Fault(
        "a damaged binary is taken from the cache",
        "BinaryCache",
        'if any(hashlib.sha256(files[name]).hexdigest() != digest for name, digest in record["sha256"].items()):',
        "if not files:",
        ("compile/test_cache.py", "compile/test_shared_cache.py"),
    ),
    Fault(
        "a damaged entry is not replaced: the second try is dropped",
        "_stored_here",
        "for _ in range(2):",
        "for _ in range(1):",
        ("compile/test_cache.py", "compile/test_shared_cache.py"),
    ),
    Fault(
        "a unit is given up one loss of a node too early",
        "Ledger",
        "wanted.losses > _LOSSES",
        "wanted.losses >= _LOSSES",
        ("compile/remote",),
    ),
    Fault(
        "binaries that were compiled count as cached, too",
        "claim",
        "self.counts.cached += sum(key not in self._unclaimed for key in keys)",
        "self.counts.cached += len(keys)",
        ("compile/test_farm.py", "compile/test_candidate_builder.py", "compile/test_binary_groups.py"),
    ),
    # search
    Fault(
        "the last, partial wave costs nothing",
        "predict_us",
        "        if rest:\n            tiles_us +=",
        "        if not rounds:\n            tiles_us +=",
        ("search/test_predict.py",),
    ),
    Fault(
        "a refused binary still counts against --budget",
        "Allowance",
        "        if unit.compiled not in self._measured:\n            self._spent.discard",
        "        if unit.add_compiled in self._measured:\n            self._spent.discard",
        ("search/test_limit.py", "tuning/test_search_limits.py"),
    ),
    # journal
    Fault(
        "a winner is reported before it is on the disk",
        "Journal",
        "os.fsync(self._file.fileno())",
        "self._file.fileno()",
        ("journal",),
    ),
    Fault(
        "times of a broken device stay in the journal's facts",
        "add_retraction",
        "self.of(problem).screened.pop(config, None)",
        "self.of(problem).add_screened.get(config)",
        ("journal", "tuning/test_tuner_outcomes.py"),
    ),
    Fault(
        "the lock of a run is shared, not exclusive",
        "held",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        ("journal/test_file_lock.py",),
    ),
    Fault(
        "a lock file that its last holder removed counts as held",
        "held",
        "if not _is_still(path, file.fileno()):",
        "if _is_still(path, file.fileno()) is None:",
        ("journal/test_file_lock.py", "cli/test_two_runs.py"),
    ),
    Fault(
        "the digest of code is lost where it repeats",
        "codes_of",
        "code = said or code",
        "code = said",
        ("journal",),
    ),
    # formats
    Fault(
        "a batched product is written as a single one",
        "_size_cells",
        '"B": problem.batch,',
        '"B": 1,',
        ("files/test_aiter_csv.py", "files/test_format_in_names.py", "cli/exchange/test_exporting.py"),
    ),
    Fault(
        "the leading dimension of a transposed A is wrong in TunableOp's file",
        "_line",
        "_{M if a_t else K}_{N}",
        "_{K}_{N}",
        ("files/exchange/test_tunableop.py",),
    ),
    # recorded
    Fault(
        "a later, partial run replaces one that measured the whole space",
        "_of_best",
        "(bool(rank[0]), str(rank[1]), str(rank[2]))",
        "(True, str(rank[1]), str(rank[2]))",
        ("recorded",),
    ),
    # runtime
    Fault(
        "the row of the next larger M is never chosen",
        "_neighbours",
        "return tuned[max(place - 1, 0) : place + 1]",
        "return tuned[max(place - 1, 0) : place]",
        ("runtime/test_table.py",),
    ),
    Fault(
        "two graphs share their counters",
        "_cut",
        "self._rest = address + needed, left - needed",
        "self._rest = address, left - needed",
        ("runtime/launch/test_workspaces.py", "runtime/launch/test_workspace_bound.py"),
    ),
    Fault(
        "the key of a call lacks the strides",
        "_form",
        "return tensor.shape, tensor.stride(), tensor.dtype",
        "return tensor.shape, tensor.dtype",
        ("runtime/test_dispatch.py", "runtime/test_layouts.py"),
    ),
    Fault(
        "rows of a slice are taken as contiguous: a wrong stride",
        "Layout",
        "pitch = columns if rows <= 1 else pitch",
        "pitch = columns",
        ("runtime/launch/test_parameters.py", "runtime/test_layouts.py"),
    ),
    # engines
    Fault(
        "the key of an engine's call lacks the bias",
        "has_winner",
        "key = id(default_context()), op, *sizes, *types, bias is None,",
        "key = id(default_context()), op, *sizes, *types,",
        ("engines/test_engine_layers.py", "engines/test_vllm.py", "engines/test_sglang.py"),
    ),
    # profiling
    Fault(
        "a clock that fell during a round does not mark the round",
        "throttled_rounds",
        "if number in low or number + 1 in low",
        "if number in low",
        ("profiling/test_clocks.py", "profiling/test_finals.py"),
    ),
    Fault(
        "a profiler gets no time to write what it measured",
        "run_supervised",
        "group.ends_within(grace_s)",
        "group.ends_within(0.0)",
        ("profiling/test_supervisor.py",),
    ),
    # tuning
    Fault(
        "the config that broke the device is tried again by the next start",
        "_screen",
        "self.journal.add_retraction(problem, in_a_row[1:])",
        "self.journal.add_retraction(problem, in_a_row)",
        ("tuning/test_tuner_outcomes.py", "tuning/test_tune.py"),
    ),
    Fault(
        "a checked size lacks the rows beyond whole tiles",
        "_shrink",
        "+ (rest or unit))",
        "+ unit)",
        ("tuning/test_checkers.py",),
    ),
    # command
    Fault(
        "the exit status does not tell a bug from a size without a winner",
        "tune_each",
        "return 3 if recorder.bugs else 1 if recorder.failed else 0",
        "return 1 if recorder.failed else 0",
        ("cli/test_bugs.py", "cli/test_run.py"),
    ),
    # packing
    Fault(
        "the key of a proof lacks the launch plan",
        "proof_key",
        "        call.plan.to_json(),\n",
        "",
        ("packing/test_proof_store.py", "packing/test_proof.py", "packing/test_prover.py"),
    ),
    Fault(
        "the M after a served range counts as served",
        "gaps",
        "start = max(start, end + 1)",
        "start = max(start, end + 2)",
        ("packing/test_m_ranges.py", "packing/test_every_m.py"),
    ),
    # cluster
    Fault(
        "rows of two devices replace each other",
        "CollectedRow",
        "key = row.problem, row.arch, row.device, row.compute_units,",
        "key = row.problem, row.arch, row.compute_units,",
        ("cluster/test_collecting.py",),
    ),
)
