"""Bad input of every kind: one line on standard error, exit status 2, no traceback, nothing lost or written over."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from command import SMALL, Ran, run, run_here
from machines import machine
from tiny_space import TINY_AMD

Here = Callable[..., Ran]


@pytest.fixture(scope="module")
def warm(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A cache that has all that these tests compile, and the results and the journal of one finished run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "sizes.yaml").write_text(SMALL)
    ran = run("-i", folder / "sizes.yaml", "-o", folder / "r.yaml", *quick(cache_dir))
    assert ran.status == 0, ran
    return cache_dir, (folder / "r.yaml").read_text(), (folder / "r.yaml.journal.previous").read_text()


@pytest.fixture
def here(
    warm: tuple[Path, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    """Runs the command in a folder with a good list of sizes, and with a warm cache."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizes.yaml").write_text(SMALL)
    return lambda *argv: run_here(capsys, *quick(warm[0]), *argv)


def quick(cache_dir: Path) -> list[object]:
    return [
        "--arch",
        "gfx942",
        "--profiler",
        "predict",
        "--compile",
        "--space",
        TINY_AMD,
        "--jobs",
        1,
        "--cache_dir",
        cache_dir,
    ]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


ONE = "{'M': 16, 'N': 128, 'K': 256}"
BAD_LISTS = {
    "empty.yaml": (b"", "is empty"),
    "blank.csv": (b"\n\n", "is empty"),
    "nothing.yaml": (b"[]\n", "holds no sizes"),
    "header.csv": (b"M,N,K\n", "holds no sizes"),
    "prose.yaml": (b"tune everything please\n", "instead of a list"),
    "broken.yaml": (b"- {'M': 1, 'N': 'x\n", "not YAML"),
    "binary.yaml": (bytes(range(256)), "binary file"),
    "zeros.yaml": (b"\0" * 64, "NUL bytes"),
    "image.csv": (b"\x89PNG\r\n\x1a\n\0", "binary file"),
    "mapping.yaml": (b"{'M': 1, 'N': 1, 'K': 1}\n", "instead of a list"),
    "missing.yaml": (b"- {'M': 16, 'N': 16}\n", "K is missing"),
    "typo.yaml": (b"- {'M': 16, 'N': 16, 'k': 16}\n", "did you mean K?"),
    "columns.csv": (b"rows,columns\n1,2\n", "columns.csv"),
    "short.csv": (b"M,N,K\n1,2\n", "line 2"),
    "zero.yaml": (b"- {'M': 0, 'N': 16, 'K': 16}\n", "M = 0 is not a size"),
    "negative.yaml": (b"- {'M': 16, 'N': -4, 'K': 16}\n", "N = -4 is not a size"),
    "negative.csv": (b"M,N,K\n16,16,-1\n", "K = '-1' is not a size"),
    "huge.yaml": (f"- {{'M': {2**40}, 'N': 16, 'K': 16}}\n".encode(), "M = 1099511627776 is not a size"),
    "longest.yaml": (f"- {{'M': {'9' * 5000}, 'N': 16, 'K': 16}}\n".encode(), "line 1"),
    "float.yaml": (b"- {'M': 16.5, 'N': 16, 'K': 16}\n", "M = 16.5 is not a size"),
    "float.csv": (b"M,N,K\n1e3,16,16\n", "line 2"),
    "true.yaml": (b"- {'M': true, 'N': 16, 'K': 16}\n", "M = true is not a size"),
    "code.yaml": (b"- {'M': \"__import__('os').system('touch owned')\", 'N': 16, 'K': 16}\n", "is not a size"),
    "code.csv": (b"M,N,K\n__import__('os').mkdir('owned'),16,16\n", "line 2"),
    "tag.yaml": (b"- !!python/object/apply:os.mkdir ['owned']\n", "line 1"),
    "second.yaml": (f"- {ONE}\n- {{'M': 16, 'N': 128, 'K': 0}}\n".encode(), "second.yaml, line 2: K = 0"),
    "dtype.yaml": (b"- {'M': 16, 'N': 16, 'K': 16, 'dtype_a': 'fp4'}\n", "dtype_a"),
    "activation.yaml": (b"- {'M': 16, 'N': 16, 'K': 16, 'activation': 'tanh'}\n", "write none, relu, gelu or silu"),
    "activation.csv": (b"M,N,K,activation\n16,16,16,relu\n", "unknown column 'activation'"),
    "op.yaml": (b"- {'M': 16, 'N': 16, 'K': 16, 'op': 'a4w4'}\n", "a16w16"),
}


@pytest.mark.parametrize("name", BAD_LISTS)
def test_bad_lists_of_sizes(name: str, here: Here, tmp_path: Path) -> None:
    """The line names the file, the line in it and the value; nothing is tuned, and no code is run."""
    data, said = BAD_LISTS[name]
    (tmp_path / name).write_bytes(data)
    before = snapshot(tmp_path)
    refusal = here("-i", name, "-o", "r.yaml").refusal
    assert name in refusal
    assert said in refusal
    assert len(refusal) < 400
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-i", "no such\nfile.yaml"], "no such file"),
        (["-i", "."], "is a folder"),
        (["-m", 0, "-n", 1, "-k", 1], "M = 0 is not a size"),
        (["-m", 1, "-n", -5, "-k", 1], "N = -5 is not a size"),
        (["-m", 1, "-n", 1, "-k", 2**40], "K = 1099511627776 is not a size"),
        (["-m", 1], "all of -m, -n and -k"),
        (["-i", "sizes.yaml", "--arch", "gfx9000"], "unknown arch 'gfx9000'"),
        (["-i", "sizes.yaml", "--arch", "gfx942\x1b[2J"], "unknown arch"),
        (["-i", "sizes.yaml", "--dtype_a", "fp4"], "command line: dtype_a"),
        (["-m", 1, "-n", 1, "-k", 1, "--dtype_c", "int8"], "command line: "),
        (["-i", "sizes.yaml", "--op", "a8w8", "--dtype_a", "fp16"], "command line: "),
        (["-i", "sizes.yaml", "--space", "no_such_space"], "no_such_space: no such space file"),
        (["-i", "sizes.yaml", "--space", "nvidia_quick"], "not for gfx942"),
        (["-i", "sizes.yaml", "--space", "sizes.yaml"], "sizes.yaml"),
        (["-i", "sizes.yaml", "--icache_flush"], "--icache_flush"),
        (["-i", "sizes.yaml", "--patience", 9], "--patience is no longer part of genkern: use --budget N"),
        (
            ["-i", "sizes.yaml", "--libtype", "triton,asm"],
            "--libtype: asm is a libtype of AITER, whose kernels race as aiter",
        ),
        (["--compare_wo_tuning", "-i", "sizes.yaml"], "BLOCK_SIZE_M is missing"),
        (["--benchmark", "-i", "gone.yaml"], "no such file"),
    ],
)
def test_bad_options(argv: list[object], said: str, here: Here, tmp_path: Path) -> None:
    """What does not exist or does not fit is refused before anything is done."""
    before = snapshot(tmp_path)
    assert said in here(*argv).refusal
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("option", ["-o", "-o2"])
@pytest.mark.parametrize(
    ("path", "said"), [("taken", "is a folder"), ("sizes.yaml/r.yaml", "r.yaml"), ("/proc/no/r.yaml", "r.yaml")]
)
def test_unwritable_output(option: str, path: str, said: str, here: Here, tmp_path: Path) -> None:
    """A folder, a path below a file, and a place where nothing can be made: said before any work."""
    (tmp_path / "taken").mkdir()
    ran = here("-i", "sizes.yaml", option, path, *(["-o", "fine.yaml"] if option == "-o2" else []))
    assert said in ran.refusal
    assert "TFLOPS" not in ran.out
    assert (tmp_path / "sizes.yaml").read_text() == SMALL
    assert not list((tmp_path / "taken").iterdir())
    assert sorted(made.name for made in tmp_path.iterdir()) == ["sizes.yaml", "taken"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (SMALL, "BLOCK_SIZE_M is missing"),
        ("my notes\n", "instead of a list"),
    ],
)
def test_other_files_are_not_written_over(content: str, said: str, here: Here, tmp_path: Path) -> None:
    """Neither as results, nor as the list of candidates, nor as times."""
    (tmp_path / "mine.yaml").write_text(content)
    refusal = here("-i", "sizes.yaml", "-o", "mine.yaml").refusal
    assert said in refusal
    assert "(results go to mine.yaml: another -o leaves it alone)" in refusal
    assert "give another --profile_file" in here("-i", "sizes.yaml", "-o", "r.yaml", "-o2", "mine.yaml").refusal
    assert not list(tmp_path.glob("r.yaml*"))
    assert (tmp_path / "mine.yaml").read_text() == content


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("'compute_units': 304", "'compute_units': -1", "compute_units = -1 is not a whole number"),
        ("'triton': '", "'triton': '0.", "holds results of triton 0."),
        ("'time_source': 'predicted'", "'time_source': 'rocprofv3'", "holds measured times, this run predicts"),
        ("# genkern results, schema 1", "# genkern results, schema 2", "schema 2"),
        ("'BLOCK_SIZE_M': 16", "'BLOCK_SIZE_M': 17", "BLOCK_SIZE_M = 17"),
        ("'M': 64", "'M': '64'", "M = '64' is not a size"),
    ],
)
def test_foreign_or_damaged_results(
    old: str, new: str, said: str, here: Here, warm: tuple[Path, str, str], tmp_path: Path
) -> None:
    """Results of another version or kind of time, or that make no sense, are left as they are."""
    assert old in warm[1]
    (tmp_path / "r.yaml").write_text(warm[1].replace(old, new))
    (tmp_path / "more.yaml").write_text(f"- {ONE}\n- {{'M': 1, 'N': 64, 'K': 64}}\n")
    before = snapshot(tmp_path)
    assert said in here("-i", "more.yaml", "-o", "r.yaml").refusal
    assert snapshot(tmp_path) == before


def test_the_journal_of_another_run(here: Here, warm: tuple[Path, str, str], tmp_path: Path) -> None:
    """It is refused with the difference, and left as it is; so is a damaged one. --all begins anew and keeps it."""
    journal = tmp_path / "r.yaml.journal"
    journal.write_text(warm[2])
    assert "init_type was 'randn', is 'hpl'" in here("-i", "sizes.yaml", "-o", "r.yaml", "--init_type", "hpl").refusal
    assert journal.read_text() == warm[2]
    damaged = warm[2].replace('"outcome"', '"outc', 1)
    journal.write_text(damaged)
    assert re.search(r"r\.yaml\.journal, line \d+: damaged", here("-i", "sizes.yaml", "-o", "r.yaml").refusal)
    assert journal.read_text() == damaged
    assert not (tmp_path / "r.yaml").exists()
    for old, said, kept in (
        ("what\n", "line 1: damaged", "replaced"),
        (warm[2], "(all was False, is True)", "replaced_2"),
    ):
        journal.write_text(old)
        ran = here("-i", "sizes.yaml", "-o", "r.yaml", "--all")
        assert ran.status == 0
        (note,) = (line for line in ran.out.splitlines() if line.startswith("note: ") and "--all" in line)
        assert said in note
        assert note.endswith(f"--all tunes again, and it is kept as r.yaml.journal.{kept}")
        assert (tmp_path / f"r.yaml.journal.{kept}").read_text() == old
        assert len(yaml.safe_load((tmp_path / "r.yaml").read_text())) == 3
        (tmp_path / "r.yaml").unlink()


def test_a_journal_that_was_cut_short_is_gone_on_with(here: Here, warm: tuple[Path, str, str], tmp_path: Path) -> None:
    """A last line without an end is what a kill leaves; the rest counts, and the winners are the same."""
    (tmp_path / "r.yaml.journal").write_text(warm[2][: len(warm[2]) * 2 // 3])
    assert here("-i", "sizes.yaml", "-o", "r.yaml").status == 0
    assert (tmp_path / "r.yaml").read_text() == warm[1]


def test_an_unwritable_cache(here: Here, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A cache folder below a file is named, and the way out."""
    del here
    cache = tmp_path / "sizes.yaml" / "cache"
    refusal = run_here(capsys, "-i", "sizes.yaml", "--cache_dir", cache, "--profiler", "predict", "--compile").refusal
    assert str(cache) in refusal
    assert "--cache_dir" in refusal


def test_no_home_for_the_cache(here: Here, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home folder the option is asked for."""
    del here
    for name in ("GENKERN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert "--cache_dir" in run_here(capsys, "-i", "sizes.yaml", "--profiler", "predict", "--compile").refusal


def test_a_second_run_on_the_same_results(here: Here, tmp_path: Path) -> None:
    """Is refused while the first goes on, and touches nothing."""
    from genkern.journal.file_lock import sole_run

    before = snapshot(tmp_path)
    with sole_run(str(tmp_path / "r.yaml")):
        assert "another run is writing" in here("-i", "sizes.yaml", "-o", tmp_path / "r.yaml").refusal
    assert snapshot(tmp_path) == before
    assert here("-i", "sizes.yaml", "-o", tmp_path / "r.yaml").status == 0


def test_mixed_ops_and_layouts_do_not_fit_a_csv(here: Here, tmp_path: Path) -> None:
    """AITER's tables have no place for them: said before any work, with the way out."""
    (tmp_path / "mixed.yaml").write_text(f"- {ONE}\n- {{'M': 16, 'N': 128, 'K': 256, 'op': 'a8w8'}}\n")
    assert "ends in .yaml" in here("-i", "mixed.yaml", "-o", "r.csv").refusal
    refusal = here("-m", 16, "-n", 128, "-k", 256, "--row_b", "-o", "r.csv").refusal
    assert "r.csv cannot hold 16x128x256" in refusal
    refusal = here("-m", 16, "-n", 128, "-k", 256, "--activation", "gelu", "-o", "r.csv").refusal
    assert "no column for an activation (gelu); give an -o that ends in .yaml" in refusal
    assert not (tmp_path / "r.csv").exists()


@pytest.mark.parametrize(
    ("options", "what", "said"),
    [
        (["--profiler", "cudagraph"], {}, "--profiler cudagraph needs an NVIDIA GPU, this machine has none"),
        (["--profiler", "rocprofv3"], {}, "--profiler rocprofv3 needs an AMD GPU, this machine has none"),
        (["--profiler", "rocprofv3"], {"rocm": True}, "rocprofv3"),
        ([], {"rocm": True}, "rocprofv3"),
        (["--profiler", "rocprof"], {"gpus": 1}, "--profiler rocprof is for AMD GPUs, sm_90 is not one"),
        (["--gpu_ids", "0"], {}, "--gpu_ids 0 needs a GPU, this machine has none"),
        (["--gpu_ids", "1"], {"gpus": 1}, "--gpu_ids 1: there is no such sm_90 GPU"),
        (["--ngpus", "4"], {"gpus": 2}, "--ngpus 4: this machine has 2 sm_90 GPU(s)"),
        ([], {"gpus": 1, "missing": ["torch"]}, "measuring needs PyTorch"),
    ],
)
def test_no_such_gpu_or_profiler(
    options: list[str],
    what: dict[str, object],
    said: str,
    tmp_path: Path,
    cache_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A measurement that this machine cannot make is refused at once; nothing is predicted in its stead."""
    env = machine(tmp_path, **what)  # type: ignore[arg-type]
    size = ["-m", 16, "-n", 128, "-k", 256, "-o", tmp_path / "r.yaml", "--cache_dir", cache_dir]
    # What is missing is so for the command itself.
    ran = run(*size, *options, env=env) if "missing" in what else run_here(capsys, *size, *options, env=env)
    assert said in ran.refusal
    assert not (tmp_path / "r.yaml").exists()


@pytest.mark.parametrize("mode", ["--compare", "--compare_wo_tuning"])
def test_a_check_that_cannot_be_made(mode: str, warm: tuple[Path, str, str], tmp_path: Path) -> None:
    """Without a GPU a check needs PyTorch: said before hours of tuning, not after."""
    (tmp_path / "r.yaml").write_text(warm[1])
    (tmp_path / "sizes.yaml").write_text(SMALL)
    files = (
        ["-i", tmp_path / "r.yaml"] if mode != "--compare" else ["-i", tmp_path / "sizes.yaml", "-o", tmp_path / "n"]
    )
    ran = run(mode, *files, *quick(warm[0]), env=machine(tmp_path, missing=["torch"]))
    assert "needs torch: pip install '.[torch]'" in ran.refusal
    assert "TFLOPS" not in ran.out
    assert not (tmp_path / "n").exists()
