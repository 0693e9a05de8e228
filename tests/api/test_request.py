"""What `problems` may be: sizes, files and models become the sizes that the command would read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from genkern.api.request import request_of
from genkern.errors import InputError
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem

ONE = GemmProblem(16, 128, 256)
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 1024,
    "torch_dtype": "bfloat16",
}


def problems(tmp_path: Path, given: Any = None, **options: Any) -> tuple[GemmProblem, ...]:
    size = {name: options.pop(name, None) for name in "MNK"}
    request = request_of(given, size["M"], size["N"], size["K"], {"arch": "sm_90", **options}, tmp_path)
    return request.problems


def test_one_size_in_every_form(tmp_path: Path) -> None:
    for given in ((16, 128, 256), {"M": 16, "N": 128, "K": 256}, ONE, [(16, 128, 256)], iter([ONE, ONE])):
        assert problems(tmp_path, given) == (ONE,)
    assert problems(tmp_path, M=16, N=128, K=256) == (ONE,)


def test_several_m_and_options_of_the_problem(tmp_path: Path) -> None:
    found = problems(tmp_path, M=(1, 16), N=128, K=256, dtype=torch.float16, bias_vector=True, row_b=True)
    assert [problem.M for problem in found] == [1, 16]
    assert {(p.dtype_a, p.dtype_c, p.bias, p.layout) for p in found} == {("fp16", "fp16", True, "TT")}
    keys = {"M": 1, "N": 2, "K": 64, "dtype_a": "fp16", "rowMajorA": "N", "activation": "silu"}
    (one,) = problems(tmp_path, keys, dtype="bf16")
    assert (one.dtype_a, one.layout, one.activation) == ("fp16", "NN", "silu")
    (own,) = problems(tmp_path, {"M": 16, "N": 128, "K": 256, "op": "a8w8_blockscale", "block_n": 128})
    assert own.op == "a8w8_blockscale"


def test_files_and_models(tmp_path: Path) -> None:
    sizes = tmp_path / "my sizes.yaml"
    sizes.write_text(size_line(ONE))
    assert problems(tmp_path, sizes) == problems(tmp_path, str(sizes)) == (ONE,)
    (tmp_path / "model").mkdir()
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(LLAMA))
    of_model = problems(tmp_path, tmp_path / "model", nsets=[4])
    assert of_model == problems(tmp_path, config, nsets=[4])
    assert {(p.N, p.K) for p in of_model} >= {(512, 256), (1024, 256)}
    assert {p.M for p in of_model} == {4}


def test_modules_of_pytorch(tmp_path: Path) -> None:
    """nn.Linear layers with the M given; of a model of transformers, what its config says."""
    layers = (
        torch.nn.Linear(256, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 256, bias=False),
        torch.nn.Linear(256, 128),
    )
    module = torch.nn.Sequential(*layers).half()
    found = problems(tmp_path, module, M=(1, 8))
    assert {(p.M, p.N, p.K, p.bias) for p in found} == {
        *((m, 128, 256, True) for m in (1, 8)),
        *((m, 256, 128, False) for m in (1, 8)),
    }
    assert {p.dtype_a for p in found} == {"fp16"}

    class Config:
        def to_dict(self) -> dict[str, object]:
            return LLAMA

    module.config = Config()  # type: ignore[assignment]
    assert {(p.N, p.K) for p in problems(tmp_path, module, nsets=[4])} >= {(512, 256), (1024, 256)}


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        (None, {}, "problems"),
        (None, {"M": 1, "N": 2}, "give K"),
        (None, {"M": 0, "N": 2, "K": 3}, "M = 0"),
        (None, {"M": [1, "x"], "N": 2, "K": 3}, "size 2"),
        ((1, 2, 3), {"M": 1}, "M goes with"),
        ((1, 2, 3), {"N": 1}, "either"),
        ([], {}, "no sizes"),
        (5, {}, "problems is '5'"),
        ([(1, 2)], {}, "size 1"),
        ([(1, 2, 3), {"M": 1, "N": 2}], {}, "size 2: K is missing"),
        ([{"M": 1, "N": 2, "k": 3}], {}, "did you mean K"),
        ([{"M": {}, "N": 2, "K": 3}], {}, "size 1: M"),
        ("/nowhere/sizes.yaml", {}, "no such file"),
        ((1, 2, 3), {"iters": "x"}, "^iters: "),
        (None, {"M": "x", "N": 1, "K": 1}, "^M: "),
        ((1, 2, 3), {"activation": "tanh"}, "^activation: "),
        ((1, 2, 3), {"arch": "sm_1"}, "sm_1"),
        (torch.nn.Linear(2, 2), {}, "give M"),
        (torch.nn.ReLU(), {"M": 1}, "Linear"),
    ],
)
def test_a_mistake_is_one_line_about_what_was_given(
    given: Any, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    """It names neither the command's flags nor files that the user has not seen."""
    with pytest.raises(InputError, match=says) as caught:
        problems(tmp_path, given, **options)
    said = str(caught.value)
    assert "\n" not in said
    assert str(tmp_path) not in said
    assert "--help" not in said
