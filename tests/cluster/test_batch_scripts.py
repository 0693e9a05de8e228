"""`genkern sbatch` as a user meets it; tests/cluster/test_on_slurm.py hands what it writes to Slurm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cluster_page import SIZES_LIST
from command import ROOT, run_here

from genkern.cluster.batch_scripts import SCRIPTS
from genkern.cluster.work_folder import MANIFEST


@pytest.fixture
def written(hostile_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder that a command with hostile names has written."""
    (hostile_path / "sizes.yaml").write_text(SIZES_LIST)
    given = ["sbatch", "--arch", "gfx942", "-i", hostile_path / "sizes.yaml", "-o", hostile_path / "work"]
    given += [
        "--jobs",
        3,
        "--gpu_jobs",
        2,
        "--cpus",
        4,
        "--gpus",
        "mi300x:1",
        "--partition",
        "cpu",
        "--time",
        "2:00:00",
    ]
    ran = run_here(capsys, *given, "--gpu_partition", "gpu", "--account", "lab", "--retries", 5, "--compare")
    assert (ran.status, ran.err) == (0, "")
    assert "3 sizes in 3 tasks" in ran.out
    return hostile_path / "work"


def test_every_script_is_one(written: Path) -> None:
    """A shell can read it, and sbatch finds what is asked for above the first command."""
    assert sorted(path.name for path in written.glob("*.sh")) == sorted(SCRIPTS)
    assert (written / "logs").is_dir()
    for path in written.glob("*.sh"):
        assert subprocess.run(["bash", "-n", path], capture_output=True).stderr == b""
        asked, _, rest = path.read_text().partition("\n\n")
        assert "#SBATCH" not in rest
        if path.name != "submit.sh":
            assert "#SBATCH --requeue" in asked
            assert "#SBATCH --account=lab" in asked
            assert "#SBATCH --time=2:00:00" in asked
            assert rest.count("\nexec ") == (path.name != "collect.sh")
            assert '"${SLURM_RESTART_COUNT:-0}" -gt 5' in rest
            gpu = path.name in ("measure.sh", "gpu_workers.sh")
            assert ("--gpus=mi300x:1" in asked) is gpu
            assert f"--partition={'gpu' if gpu else 'cpu'}" in asked


def test_commands_are_what_was_asked_for(written: Path) -> None:
    """Their words come out of a shell as they went in, whatever names have in them."""
    asks = {
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_CPUS_PER_TASK": "4",
        "DASK_SCHEDULER_ADDRESS": "tcp://node:1",
        "PATH": "/bin:/usr/bin",
    }
    said = {}
    for name in set(SCRIPTS[:-1]) - {"collect.sh"}:
        text = (written / name).read_text().replace("\nexec ", "\nprintf '%s\\n' ")
        said[name] = subprocess.run(["bash", "-c", text], env=asks, capture_output=True, text=True).stdout.splitlines()
    sizes = str(written.parent / "sizes.yaml")
    cache = ["--cache_dir", str(written / "cache")]
    search = ["--search", "predicted:64", *cache]
    share = ["--shard", "2/3", "-o", "part_2", "--overwrite", "--jobs", "4"]
    assert said["compile.sh"][3:] == ["compile", "--arch", "gfx942", "-i", sizes, *search, *share]
    assert said["measure.sh"][3:] == ["measure", "part_2", *cache, "--compare"]
    assert said["workers.sh"][3:7] == ["worker", "tcp://node:1", "--nthreads", "4"]
    assert said["gpu_workers.sh"][3:9] == ["worker", "tcp://node:1", "--nthreads", "1", "--resources", "GPU=1"]


@pytest.mark.parametrize(
    ("options", "measures"),
    [
        (("--gpus", "h100:4"), "--ngpus 4"),
        (("--gpus", "4", "--gpu-ids", "2,3"), "--gpu-ids 2,3"),
        (("--gpus", "4", "--mp=2"), "--mp=2"),
    ],
)
def test_all_gpus_of_a_task_measure(
    options: tuple[str, ...], measures: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless it is said which do; a worker has as many as Slurm gives it."""
    (tmp_path / "sizes.yaml").write_text(SIZES_LIST)
    given = "sbatch", "--arch", "sm_90", "-i", tmp_path / "sizes.yaml", "-o", tmp_path / "work", "--jobs", 3, *options
    assert run_here(capsys, *given).status == 0
    text = (tmp_path / "work" / "measure.sh").read_text()
    assert text.rstrip().endswith(f"/cache {measures}")
    assert "--resources GPU=4" in (tmp_path / "work" / "gpu_workers.sh").read_text()


def test_parts_that_are_there_are_joined(written: Path) -> None:
    """Also where one was not compiled: that is told, and the job fails; with all of them it does as collect does."""
    text = (written / "collect.sh").read_text().replace("-m genkern collect", "-c 'import sys; print(sys.argv[1:])'")

    def joined() -> tuple[int, str, str]:
        done = subprocess.run(["bash", "-c", text], cwd=written, capture_output=True, text=True)
        return done.returncode, done.stdout.strip(), done.stderr

    assert joined()[:2] == (1, "")
    for part in (1, 3):
        (written / f"part_{part}").mkdir()
        (written / f"part_{part}" / MANIFEST).touch()
    status, said, told = joined()
    assert (status, said) == (1, "['part_1', 'part_3', '-o', 'tuned.yaml', '--overwrite']")
    assert [line.partition(":")[0] for line in told.splitlines()] == ["part_2 was not compiled"]
    (written / "part_2").mkdir()
    (written / "part_2" / MANIFEST).touch()
    assert joined() == (0, "['part_1', 'part_2', 'part_3', '-o', 'tuned.yaml', '--overwrite']", "")


def test_a_job_that_begins_too_often_ends(written: Path) -> None:
    text = (written / "measure.sh").read_text()
    done = subprocess.run(["bash", "-c", text], env={"SLURM_RESTART_COUNT": "6"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "more than --retries" in done.stderr


def test_templates_of_ones_own(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Are rendered in the place of genkern's, and reach nothing but what they are given."""
    own = tmp_path / "own"
    shutil.copytree(ROOT / "templates" / "batch", own)
    collect = own / "collect.sh.j2"
    command = ["sbatch", "--arch", "gfx942", "-i", written.parent / "sizes.yaml", "-o", written, "--jobs", 3]
    command += ["--templates", own]
    assert "exists; --overwrite replaces it" in run_here(capsys, *command).refusal
    collect.write_text(collect.read_text() + "# ours: {{ jobs }}\n")
    assert run_here(capsys, *command, "--overwrite").status == 0
    assert (written / "collect.sh").read_text().endswith("# ours: 3\n")
    for wrong, said in (
        ("{% if %}", "line 1: "),
        ("{{ nothing }}", "undefined"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ):
        collect.write_text(wrong)
        assert said in run_here(capsys, *command, "--overwrite").refusal
    collect.unlink()
    assert "collect.sh.j2" in run_here(capsys, *command, "--overwrite").refusal
    assert (written / "collect.sh").read_text().endswith("# ours: 3\n")


def test_fewer_sizes_have_fewer_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless somebody says how many there are."""
    (tmp_path / "sizes.yaml").write_text(SIZES_LIST)
    ran = run_here(capsys, "sbatch", "--arch", "gfx942", "-i", tmp_path / "sizes.yaml", "-o", tmp_path / "work")
    assert ran.status == 0, ran
    assert ran.out.startswith("3 sizes in 3 tasks; ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--jobs", "4"), "--jobs 4: the lists have 3 sizes"),
        (("--partition", "a b"), "'a b' is not a partition"),
        (("--search", "guided"), "--search guided: it needs measurements"),
        (("--no-such-option",), "--no-such-option"),
        (("--space", "nvidia_sm90"), "nvidia_sm90"),
        (("--gpus", "0"), "'0' is not a number of GPUs"),
        (("--kernels", "a.kernels"), "--kernels cannot be passed on to the tasks"),
        (("-m", "1"), "-m cannot be passed on to the tasks"),
        (("--benchmark",), "--benchmark does not tune"),
        (("--compare-wo-tuning",), "--compare_wo_tuning does not tune"),
        (("--explain",), "--explain does not tune"),
        (("--libtype", "nonsense"), "--libtype: 'nonsense'"),
        (("--dtype_a", "fp8e4m3fnuz", "--dtype_b", "fp16"), "command line: "),
        (("--icache_flush",), "--icache_flush works on NVIDIA GPUs only"),
    ],
)
def test_what_cannot_be_done_is_refused(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, before anything is written."""
    (tmp_path / "sizes.yaml").write_text(SIZES_LIST)
    command = (
        "sbatch",
        "--arch",
        "gfx942",
        "-i",
        tmp_path / "sizes.yaml",
        "-o",
        tmp_path / "work",
        "--jobs",
        3,
        *options,
    )
    assert said in run_here(capsys, *command).refusal
    assert not (tmp_path / "work").exists()
