"""A kernel family of one's own in CuTe DSL: the worked example of docs/cute.md, from a folder outside the checkout."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cute_stand_in import StandInFarm, needs_dsl

from genkern.cli.options import parse
from genkern.cli.setting import make_setting
from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.journal.header import differences
from genkern.kernels import catalogue
from genkern.kernels.catalogue import FAMILIES, add_file
from genkern.kernels.cute import user_families
from genkern.kernels.cute.source_file import sha256_of
from genkern.kernels.generate import generate
from genkern.kernels.kernel import Target
from genkern.kernels.specs import kernel_specs
from genkern.ops.op import get_op
from genkern.packing.m_ranges import MRange
from genkern.packing.packer import CallToPack, Packer
from genkern.result.package import PackedCall
from genkern.space.languages import space_for_libraries
from genkern.space.prune import prune
from genkern.timing.libraries import library_of

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "cute.md"
H200 = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(64, 512, 256)
CONFIG = Config("cute_simple", 16, 16, 64, 1, 1, 8, 1)


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Path]:
    """A folder with the document's files; the family is known while the test lasts."""
    for name, text in re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text)
    before = os.environ.get(user_families.ENVIRONMENT)
    yield tmp_path
    FAMILIES.pop("cute_simple", None)
    catalogue._FORMS.pop(("cute_simple", ()), None)
    sha256_of.cache_clear()
    os.environ.pop(user_families.ENVIRONMENT, None)
    if before is not None:
        os.environ[user_families.ENVIRONMENT] = before


def test_the_option_makes_it_known(example: Path) -> None:
    """To this process and those that it starts; its space prunes as any other does."""
    options = parse(["-m", "64", "-n", "512", "-k", "256", "--family", str(example / "cute_simple.py")])
    assert options.family == ["cute_simple"]
    assert os.environ[user_families.ENVIRONMENT] == str(example / "cute_simple.py")
    assert library_of(CONFIG.name) == "cute"
    space = space_for_libraries(str(example / "simple.yaml"), "sm_90", "a16w16", ["cute"])
    assert prune(space, PROBLEM, H200).kept == [CONFIG]
    assert not prune(space, GemmProblem(64, 512, 256, bias=True), H200).kept


def test_another_text_is_another_run(example: Path) -> None:
    """Times and checks of a kernel are not those of what its file says later; journals of before do not say."""
    file = example / "cute_simple.py"
    options = [
        "-m",
        "64",
        "-n",
        "512",
        "-k",
        "256",
        "--arch",
        "sm_90",
        "--profiler",
        "predict",
        "--compile",
        "--family",
        str(file),
    ]
    headers: list[dict[str, object]] = []
    for more in ("", "# Another one.\n"):
        file.write_text(file.read_text() + more)
        sha256_of.cache_clear()
        headers.append(make_setting(parse(options)).journal_header({}, "predicted"))
    (said,) = differences(*headers)
    assert re.fullmatch("cute_simple.py was '[0-9a-f]{16}', is '[0-9a-f]{16}'", said)
    assert differences({key: value for key, value in headers[0].items() if key != "families"}, headers[0]) == []


def test_a_kernel_of_an_own_family_is_packed(example: Path) -> None:
    """As the farm's other kernels are: nothing but its file knows it."""
    add_file(example / "cute_simple.py")
    packer = Packer(StandInFarm(BinaryCache(example / "cache")), "sm_90", example)
    (packed,) = packer.pack([CallToPack(CONFIG, H200, MRange(1, 64, PROBLEM))])
    assert isinstance(packed, PackedCall)
    beside = set(packer.row_kernels.values())
    (binary,) = (each for digest, each in packer.binaries.items() if digest not in beside)
    assert binary.parameter_bytes == (8, 8, 8, 4, 4, 4, 4, 4, 4)
    assert (binary.threads, binary.shared_bytes) == (256, 0)
    assert packed.plan.launches[0].programs({"M": 33}) == (3 * 32, 1, 1)


@needs_dsl
def test_a_kernel_of_an_own_family_is_compiled_by_the_farm(example: Path) -> None:
    """By the farm's own workers."""
    add_file(example / "cute_simple.py")
    module = generate(PROBLEM, [CONFIG], "sm_90", H200)
    (spec,) = kernel_specs(PROBLEM, CONFIG, get_op("a16w16"), module.source_sha256, "sm_90")
    farm = Farm(BinaryCache(example / "cache"), Target("cuda", 90, 32), "3.7.1", jobs=1, timeout_s=120.0)
    (result,) = farm.compile("", [spec])
    farm.close()
    assert isinstance(result, Binary), result
    assert result.symbol == "matmul_cute_simple_BM16_BN16_BK64_nW8_nS1_0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a Python file that defines a family"),
        ("1 / 0\n", "cannot be imported: ZeroDivisionError"),
        ("FAMILY = 1\n", "does not define FAMILY"),
        (
            "from genkern.kernels.families.tiled import TILED as FAMILY\n",
            "a family must have language = 'cute' and a name that begins with 'cute_'",
        ),
        ("from genkern.kernels.cute.dense import CUTE_WGMMA as FAMILY\n", "there is a family cute_wgmma already"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str | None, message: str) -> None:
    """Is one line that names it."""
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=message):
        add_file(file)
    assert user_families.ENVIRONMENT not in os.environ
