"""Tests of `genkern engine-check` as whole processes, with a stand-in for vLLM that computes on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import engine_bundle
import pytest

from genkern.__main__ import main
from genkern.runtime.bundles.bundle import read_bundle

HERE = Path(__file__).parent
# Each starts an engine four to eight times. `make test` runs one that starts it twice.
starts_many_engines = pytest.mark.skipif(
    not os.environ.keys() & {"GENKERN_ENGINE_TESTS", "GENKERN_LONG_TESTS"},
    reason="starts many engines: make test-engines, or make test-long",
)
OPTIONS = ("--batches", "1,4", "--tokens", "4", "--prompt", "8", "--prefill", "2x8", "--repeats", "3")


class Checks:
    """Runs the command on one model and bundle."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bundle = folder, folder / "winners.genkern"
        engine_bundle.write(str(self.bundle))

    def __call__(self, *more: str, stub: dict[str, Any] | None = None) -> Any:
        model = self.folder / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps({"vocab_size": 64, "stub": stub or {}}))
        tests = HERE.parent
        paths = [HERE / "engine_stub", tests, tests / "runtime", HERE.parents[1]]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GENKERN_")}
        environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        command = [sys.executable, "-m", "genkern", "engine-check", str(model), "--bundle", str(self.bundle), *OPTIONS]
        figures = self.folder / "figures.json"
        figures.unlink(missing_ok=True)
        done = subprocess.run(
            [*command, "--figures", str(figures), *more], env=environ, capture_output=True, text=True, check=False
        )
        return done, json.loads(figures.read_text()) if figures.exists() else {}


@pytest.fixture
def check(tmp_path: Path) -> Checks:
    return Checks(tmp_path)


def test_an_engine_that_gains_passes(check: Checks) -> None:
    """Status 0; tokens, the start, and what is served, in a table and in JSON."""
    done, figures = check("--no_search")
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures["engine_crashes"] == 0
    assert [each["what"] for each in figures["times"]] == ["1", "4", "prefill 2x8"]
    assert [each["ratio"] for each in figures["times"]] == pytest.approx([1, 1, 1])
    assert [len(each["all_stock_ms"]) for each in figures["times"]] == [3, 3, 3]
    assert figures["times"][0]["stock_ms"] == pytest.approx(2)
    assert [(each["batch"], each["same"], each["of"]) for each in figures["tokens"]] == [("1", 12, 12), ("4", 48, 48)]
    layers = {each["name"]: each for each in figures["layers"]}
    assert (layers["layers.up"]["size"], layers["layers.up"]["served"]) == ("256x128", [1, 4])
    assert layers["layers.head"]["served"] == []
    assert "winner" in layers["layers.head"]["why"]
    assert figures["start_s"]["genkern"] > 0
    assert "2 of 3 layers" in done.stdout
    assert "64x128: not served" in done.stdout


@starts_many_engines
def test_a_layer_that_makes_a_batch_slower_is_found_and_left_to_the_engine(check: Checks, tmp_path: Path) -> None:
    """Status 1, the layer's size and M; with the bundle that was written, the engine's own product serves it."""
    written = tmp_path / "changed.genkern"
    done, figures = check("-o", str(written), stub={"slow": ["128x256", 4]})
    assert done.returncode == 1, done.stdout + done.stderr
    assert [each["what"] for each in figures["times"] if each["is_slower"]] == ["4"]
    assert figures["slower_by"] == {"4": ["128x256"]}
    assert "128x256 for M = 4" in done.stdout
    rows = {(row.problem.N, row.problem.M): (row.choice, len(row.calls)) for row in read_bundle(str(written)).winners}
    assert {key for key, (choice, _) in rows.items() if choice == "vendor"} == {(128, 4)}
    assert rows[128, 4] == ("vendor", 0)
    check.bundle = written
    done, figures = check(stub={"slow": ["128x256", 4]})
    assert (done.returncode, figures["slower_by"]) == (0, {})


@starts_many_engines
def test_an_engine_with_other_tokens_fails(check: Checks) -> None:
    """Status 1 if they differ by more than the engine's own products do from one batch size to another."""
    done, figures = check("--no_search", stub={"wrong": True})
    assert done.returncode == 1
    assert all(each["is_different"] and each["same"] < each["of"] for each in figures["tokens"])
    assert all(each["apart"] > 1 > each["own"] for each in figures["tokens"])
    assert "different" in done.stdout


@starts_many_engines
def test_an_engine_that_ends_with_genkern_fails(check: Checks) -> None:
    """Status 1, the last lines of its output, and one crash in the figures."""
    done, figures = check(stub={"ends": True})
    assert (done.returncode, figures["engine_crashes"]) == (1, 1)
    assert "the stub's engine ends here" in done.stdout


@starts_many_engines
def test_an_engine_that_does_not_run_the_model_is_the_users(check: Checks) -> None:
    """Status 2, and the last lines of its output."""
    done, _ = check(stub={"never_starts": True})
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "the stub's engine ends here" in line


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--bundle", "none.genkern"), "none.genkern"),
        (("--engine_args", "[]"), "--engine_args"),
        (("--engine_args", "{"), "--engine_args"),
        (("-o", "a.genkern", "--write"), "--write"),
        (("--prefill", "16"), "--prefill"),
        (("--batches", "0"), "--batches"),
        (("--engine", "unknown"), "--engine"),
        ((), "has no vLLM"),
    ],
)
def test_bad_input_is_one_line(
    more: Any, said: str, check: Checks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2: options that make no sense, no bundle, no vLLM."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (check.folder / "config.json").write_text('{"vocab_size": 64}')
    usual = ["--bundle", str(check.bundle)] * ("--bundle" not in more)
    assert main(["engine-check", str(check.folder), *usual, *more]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
