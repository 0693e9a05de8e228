"""`genkern train`: a model of recorded spaces by the command, judged on sizes that it does not know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command import run_here
from recorded_runs import BEST, FIT, OTHER, PROBLEM, US, WRONG, journal

from genkern.cli.recorded import learning
from genkern.gemm.problem import GemmProblem
from genkern.recorded import training_network
from genkern.recorded.folds import read_folds
from genkern.recorded.from_journal import run_of
from genkern.recorded.load import recorded_problems
from genkern.recorded.parquet import add
from genkern.search.guided.judged import Judged
from genkern.search.guided.learned import Learned
from genkern.search.guided.model import path_of
from genkern.search.guided.times import Times


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is little to learn here."""
    monkeypatch.setattr(training_network, "_HIDDEN", (16, 16))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with the record of one run over two sizes."""
    add(run_of(journal(tmp_path / "r.journal", PROBLEM, OTHER)), str(tmp_path / "tables" / "r.parquet"))
    return tmp_path / "tables"


def test_a_model_is_judged_and_written(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightgbm")
    done = run_here(capsys, "train", tables, "--folds", "2", "-o", tmp_path / "model.npz")
    assert done.status == 0, done
    assert PROBLEM.size in done.out
    assert "the model's first choice reaches, without any measurement" in done.out
    assert "model.npz: 2 sizes" in done.out
    assert Learned.read(tmp_path / "model.npz").arch.startswith(("sm_", "gfx"))
    judged = Judged.read(str(tmp_path / "model.npz"))
    assert judged is not None
    assert sorted(judged.kinds) == ["a16w16 TN", "a8w8 TN"]


def test_models_of_folds_are_kept(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of every size one, each of another fold; alone they are models of no folds."""
    pytest.importorskip("lightgbm")
    folder = tmp_path / "folds"
    assert run_here(capsys, "train", tables, "--folds", "2", "--models", folder).status == 0
    models = read_folds(str(folder))
    assert {*models} == {(problem.M, problem.N, problem.K) for problem in (PROBLEM, OTHER)}
    assert len({id(model) for model in models.values()}) == 2
    assert "--folds N" in run_here(capsys, "train", tables, "-o", tmp_path / "m.npz", "--models", folder).refusal


def test_searched_sizes_are_learned_from_and_judge_nothing(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightgbm")
    third = GemmProblem(48, 192, 512)
    add(run_of(journal(tmp_path / "s.journal", third)), str(tmp_path / "searched" / "s.parquet"))
    done = run_here(
        capsys, "train", tables, "--also", tmp_path / "searched", "--folds", "2", "-o", tmp_path / "model.npz"
    )
    assert done.status == 0, done
    assert "model.npz: 3 sizes" in done.out
    assert third.size not in done.out
    judged = Judged.read(str(tmp_path / "model.npz"))
    assert judged is not None
    assert len(judged.shares) == 2


def test_a_wrong_result_is_no_best(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a choice, however fast it is."""
    recorded = next(each for each in recorded_problems(str(tables)) if each.problem == PROBLEM)
    for choice in (BEST, FIT[0]):
        monkeypatch.setattr(learning, "ranked", lambda *args, choice=choice: [WRONG, choice])
        share = learning._share_of_best(recorded, None)  # type: ignore[arg-type]
        assert share == pytest.approx(US[BEST.name] / US[choice.name])


def test_a_size_of_which_nothing_is_right_judges_nothing(tables: Path) -> None:
    recorded = next(each for each in recorded_problems(str(tables)) if each.problem == PROBLEM)
    assert learning._judges(recorded)
    assert not learning._judges(replace(recorded, whole=False))
    assert not learning._judges(replace(recorded, wrong=frozenset(recorded.us)))


def test_the_best_is_that_of_the_finals(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By finals where the choice was in them, else by first measurements of both; no choice is better than the best."""
    recorded = next(each for each in recorded_problems(str(tables)) if each.problem == PROBLEM)
    lucky, steady, slow = FIT[:3]
    recorded.__dict__["us"] = {lucky: 9.0, steady: 10.0, slow: 20.0}

    def share_of(choice: object, finals: dict[object, float]) -> float:
        recorded.__dict__["final_us"] = finals
        monkeypatch.setattr(learning, "ranked", lambda *args: [choice])
        return learning._share_of_best(recorded, None)  # type: ignore[arg-type]

    finals = {lucky: 12.0, steady: 11.0}
    assert [share_of(each, finals) for each in (lucky, steady, slow)] == [pytest.approx(11 / 12), 1.0, 0.5]
    assert share_of(lucky, {steady: 11.0}) == 1.0
    assert share_of(slow, {}) == pytest.approx(9 / 20)


def test_nothing_to_do_is_said(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "train", tables)
    assert done.status == 2
    assert "-o FILE.npz" in done.err


def test_another_file_is_not_replaced(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a model is."""
    (tmp_path / "notes").write_text("notes")
    assert "is not a model of times" in run_here(capsys, "train", tables, "-o", tmp_path / "notes").refusal
    assert (tmp_path / "notes").read_text() == "notes"


def test_nothing_recorded_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "train", tmp_path, "-o", tmp_path / "model.npz")
    assert done.status == 2
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "model.npz").exists()


def test_only_absolute_times_of_a_model_that_is_there_are_fitted_anew(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a results file's winners too; the ranking stays, and folds have no part in it."""
    model = tmp_path / "m.npz"
    model.write_bytes(Path(path_of("sm_90") or "").read_bytes())
    before = Learned.read(model)
    winners = Path(__file__).parents[3] / "results" / "nvidia_h200" / "llama-3.1-8b_tp1_bf16.yaml"
    ran = run_here(capsys, "train", tables, "--winners", winners, "--times_only", "-o", model)
    assert ran.status == 0, ran
    times = Times.read(str(model))
    assert times is not None
    assert times.devices == ("NVIDIA H200",)
    assert (Learned.read(model).trees.value == before.trees.value).all()
    assert "--times_only" in run_here(capsys, "train", tables, "--times_only", "--folds", "2").refusal
