"""Tables of tuned sizes against the vendor library."""

from __future__ import annotations

from pathlib import Path

import pytest
from winner_factory import winner, write_results

from benchmarks.kernels import vs_vendor


def test_files_together_have_each_size_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A size in two files counts once over all, as the last file has it; without the library's time never."""
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    write_results(
        first, [winner(16, 10.0, vendor_us=40.0), winner(16, 10.0, bias=True, vendor_us=10.0), winner(1, 5.0)]
    )
    write_results(second, [winner(16, 10.0, vendor_us=20.0), winner(1, 10.0, vendor_us=9.0)])
    vs_vendor.main([str(first), str(second)])
    one, other, together = capsys.readouterr().out.split("| M | sizes |")[1:]
    assert one.split("| --- |\n")[1].startswith(
        "| 16 | 2 | 2.000 | 1.000 | 2.000 | 1.000 | - | - | 2, 0, 0 |\n| all | 2 | 2.000 |"
    )
    assert "| all | 2 | 1.342 | 0.900 |" in other
    assert "| 1 | 1 | 0.900 |" in together
    assert "| 16 | 2 | 1.414 | 1.000 |" in together
    assert "| all | 3 | 1.216 | 0.900 |" in together


def test_what_is_called_is_the_faster_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the library's best won, calls are as fast as it is, and are set against torch.mm."""
    path = tmp_path / "a.yaml"
    won = winner(16, 10.0, vendor_us=20.0, torch_us=30.0)
    lost = winner(32, 10.0, vendor_us=8.0, torch_us=16.0, choice="vendor")
    tied = winner(64, 10.0, vendor_us=10.02, torch_us=20.04, choice="tie")
    write_results(path, [won, lost, tied])
    vs_vendor.main([str(path), "--brief"])
    said = capsys.readouterr().out
    assert "| 16 | 1 | 2.000 | 2.000 | 2.000 | 2.000 | 3.000 | 3.000 |" in said
    assert "| 32 | 1 | 0.800 | 0.800 | 1.000 | 1.000 | 2.000 | 2.000 | 0, 0, 1 |" in said
    assert "| 64 | 1 | 1.002 | 1.002 | 1.000 | 1.000 | 2.000 | 2.000 | 0, 1, 0 |" in said
    assert said.splitlines()[-2].startswith("| all | 3 |")
    assert said.splitlines()[-2].endswith("| 1, 1, 1 |")
    assert "config" not in said


def test_results_without_the_library_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no mean over no size; one line says so."""
    path = tmp_path / "a.yaml"
    write_results(path, [winner(16, 10.0)])
    with pytest.raises(SystemExit) as ended:
        vs_vendor.main([str(path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{path}: no size has the vendor library's time; tune again with a GPU\n"


def test_keys_are_of_genkerns_own_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mean and the least by their names, over the library's best or PyTorch's call, and whose calls these are."""
    path = tmp_path / "a.yaml"
    algorithm = f"cublaslt 130100 {'0a' * 64}"
    rows = [
        winner(16, 10.0, vendor_us=8.0, torch_us=16.0, vendor=algorithm, choice="vendor"),
        winner(32, 10.0, vendor_us=18.0, torch_us=18.0, vendor="torch"),
    ]
    write_results(path, rows)
    vs_vendor.main([str(path), "--brief", "--key", "over", "--least", "least"])
    said = capsys.readouterr().out
    assert "over: 1.200 (least 0.800, 2 of them)\nleast: 0.800\n" in said
    assert "an algorithm of cuBLASLt for 1 sizes, PyTorch's own for 1\n" in said
    vs_vendor.main([str(path), "--brief", "--key", "over", "--over", "torch"])
    assert capsys.readouterr().out.endswith("over: 1.697 (least 1.600, 2 of them)\n")
