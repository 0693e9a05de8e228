"""Tests of profiling/server.py on a simulated GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from fake_gpu import FakeGemm, FakeGpu, name_of
from server_requests import LT, SESSION, FakeChecking, Parent, simulated

from genkern.profiling import server
from genkern.profiling.loaded_gemm import Launchable
from genkern.search.screening import screening_for


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return simulated(monkeypatch)


def test_screening_times_a_call(gpu: FakeGpu) -> None:
    """The sample is the mean over a graph of about 100 us, without the host's time."""
    parent = Parent()
    assert parent.opened == {"device": "Fake GPU", "copies": 6, "torch": "fake"}
    assert parent.screen("us25") == {"config": name_of("us25"), "samples_us": [pytest.approx(25.0)]}
    assert gpu.launched.count("us25") == 1 + 4
    parent.screen("us5")
    # The first launch, 5 us and the host's 4, is what the number of calls is reckoned with.
    assert gpu.launched.count("us5") == 1 + 100 // 9


def test_screening_walks_through_the_copies(gpu: FakeGpu) -> None:
    """No launch uses the copy of the weights that the one before used, over all candidates."""
    parent = Parent()
    for name in ("us25", "us30", "us200"):
        parent.screen(name)
    copies = [copy for _, copy in parent.gemm.calls]
    assert all((a + 1) % 6 == b for a, b in pairwise(copies))


def test_a_hopeless_candidate_is_launched_twice_only(gpu: FakeGpu) -> None:
    """Beyond three times the best and 40 us there is no graph; the time without the host's is what counts."""
    parent = Parent()
    parent.screen("us10")
    assert parent.screen("us80") == {"config": name_of("us80"), "samples_us": [pytest.approx(80)], "hopeless": True}
    assert gpu.launched.count("us80") == 2


@pytest.mark.parametrize(("warmup", "launches"), [(1, 1), (2, 3)])
def test_a_long_call_is_launched_once(warmup: int, launches: int, gpu: FakeGpu) -> None:
    """Where the best takes over half a millisecond; without the host's time, and not where a warm-up was asked for."""
    parent = Parent(replace(SESSION, budget=replace(SESSION.budget, warmup=warmup)))
    parent.screen("us600")
    assert parent.screen("us650") == {"config": name_of("us650"), "samples_us": [pytest.approx(650)]}
    assert parent.screen("us550") == {"config": name_of("us550"), "samples_us": [pytest.approx(550)]}
    hopeless = parent.screen("us1100")
    assert hopeless == {"config": name_of("us1100"), "samples_us": [pytest.approx(1100)], "hopeless": True}
    for name in ("us650", "us550", "us1100"):
        assert gpu.launched.count(name) == launches


def test_a_call_that_is_not_long_is_warmed_up(gpu: FakeGpu) -> None:
    """Up to half a millisecond the best takes a launch before its sample."""
    parent = Parent()
    parent.screen("us400")
    parent.screen("us410")
    assert gpu.launched.count("us410") == 1 + 2


def test_a_slow_host_makes_no_candidate_hopeless(gpu: FakeGpu) -> None:
    """A first launch that was held up on the host for a millisecond is not held against the config."""
    parent = Parent()
    parent.screen("us10")
    delays = iter([0.0] * 1 + [1000.0] * 2)
    gpu.host_delay = lambda: next(delays, 0.0)
    assert parent.screen("us12") == {"config": name_of("us12"), "samples_us": [pytest.approx(12)]}


@pytest.mark.parametrize("name", ["refused", "nograph"])
def test_a_refusal_is_an_answer(name: str, gpu: FakeGpu) -> None:
    """What the launch or the capture raises is the answer, on one line, and the next candidate is timed."""
    parent = Parent()
    answer = parent.screen(name)
    assert answer["config"] == name_of(name)
    assert answer["error"].startswith("RuntimeError: o")
    assert "\n" not in answer["error"]
    assert parent.screen("us30")["samples_us"] == [pytest.approx(30)]


@pytest.mark.parametrize("command", ["screen", "check"])
def test_a_fault_ends_the_process(command: str, gpu: FakeGpu) -> None:
    """After an illegal access nothing more is answered, whichever call notices it."""
    parent = Parent()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        parent.ask(command, config=name_of("fault"), configs=[name_of("fault")], binaries=["fault"])


def test_tune_gemms_protocol_keeps_the_last_of_ten(gpu: FakeGpu) -> None:
    """One call a sample, ten samples, the last one counts."""
    parent = Parent(replace(SESSION, budget=replace(SESSION.budget, protocol="tune_gemm")))
    assert parent.screen("us25") == {"config": name_of("us25"), "samples_us": [pytest.approx(25.0)]}
    assert gpu.launched.count("us25") == 1 + 10


def test_finals_tell_who_is_running(gpu: FakeGpu) -> None:
    """Ahead of everything that may hang or fault; samples of all, the vendor library among them."""
    parent = Parent()
    answer = parent.retime("us10", "us12", "refused")
    assert answer["samples_us"][name_of("us10")] == pytest.approx([10.0] * 10)
    assert set(answer["samples_us"]) == {name_of("us10"), name_of("us12"), "vendor"}
    assert answer["errors"] == {name_of("refused"): "RuntimeError: out of resource: shared memory"}
    assert (answer["rounds"], answer["stopped"]) == (10, "separated")
    assert parent.told[:4] == [name_of("us10"), name_of("us12"), name_of("refused"), "vendor"]
    # Prepared once, warmed up, and once a round.
    assert parent.told.count(name_of("us10")) >= 1 + 3 + 10


def test_semifinals_have_samples_of_all_by_turns(gpu: FakeGpu) -> None:
    """The fastest of them are the answer; who cannot be launched is left out, and the process goes on."""
    parent = Parent()
    names = ["us12", "refused", "us10", "us11"]
    candidates = [{"config": name_of(name), "binaries": [name]} for name in names]
    answer = parent.ask("semifinal", candidates=candidates, most=2)
    assert answer == {"fastest": [name_of("us10"), name_of("us11")]}
    assert parent.told[:4] == [name_of(name) for name in names]
    turns = [parent.told.count(name_of(name)) for name in ("us10", "us11", "us12")]
    assert turns == [turns[0]] * 3
    assert turns[0] >= 1 + 5
    # The finals behind them find a warm device: their warm-up is shorter.
    told = []
    for _ in range(2):
        parent.told.clear()
        assert len(parent.retime("us10", "us30", vendor=False)["samples_us"]) == 2
        told.append(parent.told.count(name_of("us10")))
    assert told[0] <= 50 + 12 < told[1]


@pytest.mark.parametrize("copies", [1, 5, 6, 40])
@pytest.mark.parametrize("us", ["us3", "us14", "us200"])
def test_finals_walk_through_the_copies(copies: int, us: str, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two uses of a copy lie all others, from the last call of a sample to the first of the next one too."""
    monkeypatch.setattr(FakeGemm, "copies", copies)
    parent = Parent()
    parent.screen(us)
    parent.gemm.calls.clear()
    parent.retime(us, vendor=False)
    captured = [copy for _, copy in parent.gemm.calls[1:]]
    assert captured == [*range(copies)] * (len(captured) // copies)
    assert copies == 1 or len(captured) < copies + 32


def test_samples_of_the_finals_are_as_long_in_another_process(gpu: FakeGpu) -> None:
    """One that has screened nothing (of a run that goes on, of --benchmark) makes samples of about 100 us as well."""
    parent = Parent()
    parent.retime("us12", "us10")
    captured = [name for name, _ in parent.gemm.calls].count("us10") - 2
    parent.screen("us10")
    parent.gemm.calls.clear()
    parent.retime("us12", "us10")
    assert captured == [name for name, _ in parent.gemm.calls].count("us10") - 1 == 12


def test_finals_go_on_without_a_sampler_that_fails(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer's error costs its candidate, not the process; a fault at that moment does end it."""
    parent = Parent()
    prepare = parent.server._timer.prepare  # type: ignore[union-attr]

    def sometimes(call: Any, copies: Any) -> Any:
        sample = prepare(call, copies)
        if len(prepared) == 1:
            sample = iter([lambda: 5.0] * 6 + [refused]).__next__
            prepared.append("b")
            return lambda: sample()()
        prepared.append("a")
        return sample

    def refused() -> float:
        raise RuntimeError("out of streams")

    prepared: list[str] = []
    monkeypatch.setattr(parent.server._timer, "prepare", sometimes)
    answer = parent.retime("us10", "us11")
    assert set(answer["samples_us"]) == {name_of("us10"), "vendor"}
    assert answer["errors"] == {name_of("us11"): "RuntimeError: out of streams"}


def test_flushing_times_calls_one_by_one(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --icache_flush the evicting kernel comes before each timed call of the finals; screening has none."""

    class Flush:
        def __init__(self, units: int) -> None:
            assert units == 132

        def launch(self, stream: int) -> None:
            assert stream == 7
            gpu.run("evict", 100.0)

    monkeypatch.setattr(server, "InstructionCacheFlush", Flush)
    parent = Parent(replace(SESSION, budget=replace(SESSION.budget, icache_flush=True)))
    parent.screen("us10")
    assert "evict" not in gpu.launched
    gpu.launched.clear()
    answer = parent.retime("us10", vendor=False)
    assert answer["samples_us"][name_of("us10")] == pytest.approx([10.0] * 10)
    assert gpu.launched[:4] == ["us10", "evict", "sleep", "us10"]
    assert gpu.launched.count("evict") == gpu.launched.count("us10") - 1


def test_a_check_answers_with_its_verdict(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is the answer; references serve all configs of a session, and the vendor library can be checked."""
    parent = Parent()
    answer = parent.ask("check", config=name_of("us10"), binaries=[])
    verdict = {"passed": True, "message": "", "error_ratio": 0.25, "worst_row_error": 0.5, "rounds": ("exact",)}
    assert answer == {"config": name_of("us10"), **verdict, "seconds": 1.0}
    assert gpu.launched == ["us10"]
    assert "error" in parent.ask("check", config=name_of("refused"), binaries=[])
    assert parent.ask("check", config="vendor", binaries=[])["error_ratio"] == 0.25
    assert gpu.launched == ["us10", "us20"]
    assert parent.ask("check", config=LT[14], binaries=[])["error_ratio"] == 0.25
    assert gpu.launched[2:] == [LT[14]]
    assert FakeChecking.made == 1
    parent.ask("open", session=SESSION.to_json())
    parent.ask("check", config=name_of("us10"), binaries=[])
    assert FakeChecking.made == 2


def test_a_check_without_memory_says_nothing_of_c(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither the verdict nor a refusal of the config's; the next check has its own."""
    parent = Parent()

    def unfit(*_: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 16.00 GiB")

    with monkeypatch.context() as patched:
        patched.setattr(FakeChecking, "check", unfit)
        answer = parent.ask("check", config=name_of("us10"), binaries=[])
    assert answer.keys() == {"config", "no_memory"}
    assert answer["no_memory"].startswith("RuntimeError: CUDA out of memory")
    assert parent.ask("check", config=name_of("us10"), binaries=[])["passed"]


def test_a_new_workspace_is_ready_before_the_first_launch(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binding fills counters in the default stream, timing launches in another: the device is waited for between."""
    order: list[str] = []
    bind = FakeGemm.bind
    monkeypatch.setattr(FakeGemm, "bind", lambda *given: (order.append("bind"), bind(*given))[1])
    monkeypatch.setattr(gpu.torch.cuda, "synchronize", lambda: order.append("synchronize"))
    run = gpu.run
    monkeypatch.setattr(gpu, "run", lambda *given: (order.append("launch"), run(*given))[1])
    Parent().screen("us10")
    assert order[order.index("bind") :][:3] == ["bind", "synchronize", "launch"]


def test_a_problem_that_does_not_fit_is_refused(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening answers with the error, asking on without a session is a bug, and the next session opens."""
    monkeypatch.setattr(FakeGemm, "refuse", "CUDA out of memory")
    parent = Parent()
    assert parent.opened["error"] == "MemoryError: CUDA out of memory"
    assert parent.screen("us10")["bug"] == "ValueError: no session is open"
    monkeypatch.setattr(FakeGemm, "refuse", "")
    assert "error" not in parent.ask("open", session=SESSION.to_json())
    assert parent.ask("dance")["bug"] == "ValueError: unknown command 'dance'"


@pytest.mark.parametrize("command", ["open", "screen", "retime", "check"])
def test_a_bug_is_no_refusal(command: str, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a generated module or the server itself gets wrong is told as such, with its traceback, at each stage."""
    parent = Parent()

    def wrong(*_: object) -> Any:
        raise KeyError("BLOCK_SIZE_M")

    monkeypatch.setattr(FakeGemm, "__init__" if command == "open" else "bind", wrong)
    asked = {
        "open": {"session": SESSION.to_json()},
        "retime": {"candidates": [{"config": name_of("us10"), "binaries": []}], "vendor": False},
        "screen": {"configs": [name_of("us10")], "binaries": []},
    }.get(command, {"config": name_of("us10"), "binaries": []})
    answer = parent.ask(command, **asked)
    assert answer["bug"] == "KeyError: 'BLOCK_SIZE_M'"
    assert "test_server.py" in answer["details"]
    assert answer.keys() == {"bug", "details"}


def test_a_sampler_with_a_bug_is_told(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle of the finals."""
    parent = Parent()

    def prepare(call: Any, copies: Any) -> Any:
        return {}.__getitem__

    monkeypatch.setattr(parent.server._timer, "prepare", prepare)
    assert parent.retime("us10", vendor=False)["bug"].startswith("TypeError")


def test_the_vendor_library_may_refuse_in_more_ways(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch says with a ValueError too what it does not support: then there is no time of it, and no bug."""
    parent = Parent()

    def unsupported(_: Any) -> Any:
        raise ValueError("expected a contiguous scale")

    monkeypatch.setattr(FakeGemm, "vendor", unsupported)
    answer = parent.retime("us10")
    assert set(answer["samples_us"]) == {name_of("us10")}
    assert answer["errors"] == {"vendor": "ValueError: expected a contiguous scale"}


@pytest.mark.parametrize("exhaustive", [False, True])
def test_group_sizes_of_a_slow_binary_are_left_out(exhaustive: bool, gpu: FakeGpu) -> None:
    """Once one of them took far more than the best; with an exhaustive budget each is timed.

    What differs in more that is set at run time, a parameter of someone's own too, is no group size of it.
    """
    budget = replace(SESSION.budget, exhaustive=exhaustive)
    parent = Parent(replace(SESSION, budget=budget, screening=screening_for(budget)))
    parent.screen("us10")
    parent.screen("us100")
    gpu.launched.clear()
    sibling = name_of("us100").replace("GM1", "GM8")
    answer = parent.ask("screen", configs=[sibling], binaries=["us100"])
    assert answer["config"] == sibling
    assert ("left_out" in answer) != exhaustive
    assert ("us100" in gpu.launched) == exhaustive
    for others in ({"SPLIT_K": 4}, {"SPLIT_K": 1, "chunk": 2}):
        run_times = [{"GROUP_SIZE_M": 1, **others}]
        assert "samples_us" in parent.ask("screen", configs=[name_of("us100")], binaries=["us100"], run_times=run_times)
    for us, left_out in ((14, False), (17, not exhaustive)):
        parent.screen(f"us{us}")
        near = name_of(f"us{us}").replace("GM1", "GM8")
        assert ("left_out" in parent.ask("screen", configs=[near], binaries=[f"us{us}"])) == left_out


def test_configs_of_one_binary_are_one_request(gpu: FakeGpu) -> None:
    """Each has its answer, all but the last of them told beforehand; what the first took leaves out the others."""
    parent = Parent()
    parent.screen("us10")
    names = [name_of("us40").replace("GM1", f"GM{size}") for size in (8, 1, 4)]
    last = parent.ask("screen", configs=names, binaries=["us40"])
    assert [answer["config"] for answer in [*parent.answers, last]] == names
    assert ["left_out" in answer for answer in [*parent.answers, last]] == [False, True, True]


def test_a_fault_of_one_config_is_told_to_be_its_own(gpu: FakeGpu) -> None:
    """Of the configs of a binary those before it have their answers, and it has none: it is the first without."""
    parent = Parent()
    names = [name_of("us10"), name_of("fault"), name_of("us12")]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        parent.ask("screen", configs=names, binaries=["binary"])
    assert [answer["config"] for answer in parent.answers] == names[:1]


def test_what_a_plan_leaves_open_is_told_for_each_config(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a binary have one plan; each is bound with its own values."""
    bound: list[tuple[str, dict[str, int]]] = []
    bind = FakeGemm.bind

    def noted(gemm: FakeGemm, each: Launchable) -> Any:
        bound.append((each.plan, dict(each.run_time)))
        return bind(gemm, each)

    monkeypatch.setattr(FakeGemm, "bind", noted)
    values = [{"SPLIT_K": 1}, {"SPLIT_K": 4}]
    names = [name_of("us10"), name_of("us11")]
    Parent().ask("screen", configs=names, binaries=["a"], plan="the plan", run_times=values)
    assert bound == [("the plan", each) for each in values]


def test_the_first_group_size_decides(gpu: FakeGpu) -> None:
    """A later one of the same binary that is faster brings back none that the first has ruled out."""
    parent = Parent()
    parent.ask("screen", configs=[name_of("us40")], binaries=["binary"])
    assert "samples_us" in parent.ask("screen", configs=[name_of("us12").replace("GM1", "GM2")], binaries=["binary"])
    parent.screen("us10")
    assert "left_out" in parent.ask("screen", configs=[name_of("us12").replace("GM1", "GM4")], binaries=["binary"])


def test_the_best_of_before_is_known_to_a_new_process(gpu: FakeGpu) -> None:
    """What another process has measured counts at once: for what is hopeless, for siblings, and for one launch."""
    parent = Parent()
    request = {"configs": [name_of("us100")], "binaries": ["us100"], "best_us": 20.0}
    assert parent.ask("screen", **request)["hopeless"]
    sibling = {**request, "configs": [name_of("us100").replace("GM1", "GM8")]}
    assert "left_out" in parent.ask("screen", **sibling)
    parent = Parent()
    gpu.launched.clear()
    parent.ask("screen", configs=[name_of("us650")], binaries=["us650"], best_us=600.0)
    assert gpu.launched.count("us650") == 1
