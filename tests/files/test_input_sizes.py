"""The shipped size files, recomputed from the models' dimensions, which stand here a second time on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.search.recorded_sizes import drawn
from genkern.files.sizes import GemmDefaults, read_sizes
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem

FOLDER = Path(__file__).resolve().parents[2] / "input_sizes"
DECODE = {1, 16, 64, 256}
PREFILL = {1024, 4096}


@dataclass(frozen=True)
class Dense:
    """A dense decoder: `parameters` is the published count, in units of 10^9."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    parameters: float

    def weights(self, tp: int) -> dict[str, tuple[int, int]]:
        """(N, K) of each GEMM on one of `tp` GPUs."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.head_dim // tp, self.hidden),
            "out": (self.hidden, self.heads * self.head_dim // tp),
            "gate_up": (2 * self.intermediate // tp, self.hidden),
            "down": (self.hidden, self.intermediate // tp),
            "lm_head": (self.vocab // tp, self.hidden),
        }


MODELS = {
    "llama-3.1-8b": Dense(32, 4096, 32, 8, 128, 14336, 128256, 8.03),
    "llama-3.1-70b": Dense(80, 8192, 64, 8, 128, 28672, 128256, 70.55),
    "llama-3.1-405b": Dense(126, 16384, 128, 8, 128, 53248, 128256, 405.85),
    "qwen3-32b": Dense(64, 5120, 64, 8, 128, 25600, 151936, 32.76),
}
DENSE_FILES = [
    ("llama-3.1-8b", 1),
    *(("llama-3.1-70b", tp) for tp in (1, 2, 4, 8)),
    ("llama-3.1-405b", 8),
    *(("qwen3-32b", tp) for tp in (1, 2, 4, 8)),
]


def read(name: str) -> tuple[GemmProblem, ...]:
    """Typed, since the files leave the types to the command line."""
    sizes = read_sizes(str(FOLDER / name), GemmDefaults(dtype_a="bf16"), "gfx942")
    assert sizes.notes == ()
    return sizes.problems


def triples(problems: tuple[GemmProblem, ...]) -> set[tuple[int, int, int]]:
    return {(p.M, p.N, p.K) for p in problems}


def expected(weights: dict[str, tuple[int, int]], only: dict[str, set[int]]) -> set[tuple[int, int, int]]:
    return {(m, n, k) for name, (n, k) in weights.items() for m in only.get(name, DECODE | PREFILL)}


@pytest.mark.parametrize("name", MODELS)
def test_dimensions_give_the_published_parameter_count(name: str) -> None:
    """Layers, embedding and head add up to the published count within 0.1 %: the dimensions are the model's."""
    model = MODELS[name]
    w = model.weights(1)
    per_layer = sum(w[key][0] * w[key][1] for key in ("qkv", "out", "gate_up", "down"))
    total = (model.layers * per_layer + 2 * model.vocab * model.hidden) / 1e9
    assert total == pytest.approx(model.parameters, rel=1e-3)


@pytest.mark.parametrize(("name", "tp"), DENSE_FILES)
def test_dense_models_follow_from_their_dimensions(name: str, tp: int) -> None:
    """Each dense model's file holds exactly the GEMMs of one of tp GPUs, and no bias."""
    problems = read(f"{name}_tp{tp}.yaml")
    assert triples(problems) == expected(MODELS[name].weights(tp), {"lm_head": DECODE})
    assert not any(problem.bias for problem in problems)


@pytest.mark.parametrize("tp", [1, 8])
def test_gpt_oss_follows_from_its_dimensions(tp: int) -> None:
    """Hidden 2880, 64 heads and 8 kv heads of 64, 128 experts, vocab 201088; all but the head have a bias."""
    problems = read(f"gpt-oss-120b_tp{tp}.yaml")
    weights = {
        "qkv": ((64 + 16) * 64 // tp, 2880),
        "out": (2880, 64 * 64 // tp),
        "router": (128, 2880),
        "lm_head": (201088 // tp, 2880),
    }
    assert triples(problems) == expected(weights, {"lm_head": DECODE})
    assert {p.N for p in problems if not p.bias} == {201088 // tp}


def test_deepseek_v3_follows_from_its_dimensions() -> None:
    """MLA ranks 1536 and 512, heads 128 of 128 + 64, v 128, dense 18432, shared expert 2048, on one of 8 GPUs."""
    hidden, heads = 7168, 128 // 8
    weights = {
        "q_a and kv_a": (1536 + 512 + 64, hidden),
        "q_b": (heads * (128 + 64), 1536),
        "kv_b": (heads * (128 + 128), 512),
        "out": (hidden, heads * 128),
        "dense gate_up": (2 * 18432 // 8, hidden),
        "dense down": (hidden, 18432 // 8),
        "shared gate_up": (2 * 2048 // 8, hidden),
        "shared down": (hidden, 2048 // 8),
        "router": (256, hidden),
        "lm_head": (129280 // 8, hidden),
    }
    only = {"lm_head": DECODE, "kv_b": PREFILL}
    assert triples(read("deepseek-v3_tp8.yaml")) == expected(weights, only)


def test_quickstart_has_three_regimes() -> None:
    """Exactly three sizes: one row, a small one, and one of more than 10^11 operations."""
    skinny, small, large = read("quickstart.yaml")
    assert skinny.M == 1
    assert 16 <= small.M <= 64
    assert small.flops < 1e10
    assert large.flops > 1e11


def test_squares_are_square() -> None:
    """M = N = K in powers of two from 256 to 16384."""
    assert triples(read("squares.yaml")) == {(2**i, 2**i, 2**i) for i in range(8, 15)}


def test_anchors_are_gemms_of_the_models() -> None:
    """36 sizes, six batches of six weights, each of which is in the file of its model."""
    models = ("llama-3.1-8b_tp1.yaml", "llama-3.1-70b_tp8.yaml", "deepseek-v3_tp8.yaml")
    weights = {(problem.N, problem.K) for name in models for problem in read(name)}
    anchors = read("anchors.yaml")
    assert len(set(anchors)) == 36
    assert {problem.M for problem in anchors} == {1, 16, 64, 256, 1024, 4096}
    assert {(problem.N, problem.K) for problem in anchors} <= weights


def test_held_out_sizes_are_of_other_models() -> None:
    """30 sizes: weights from the models' files, none of them among those that kernels were written on."""
    models = ("qwen3-32b_tp4.yaml", "llama-3.1-405b_tp8.yaml", "gpt-oss-120b_tp1.yaml", "deepseek-v3_tp8.yaml")
    theirs = {(problem.N, problem.K) for name in models for problem in read(name)}
    used = ("anchors.yaml", "llama-3.1-8b_tp1.yaml", "llama-3.1-70b_tp8.yaml", "squares.yaml", "quickstart.yaml")
    ours = {(problem.N, problem.K) for name in used for problem in read(name)}
    held_out = read("held_out.yaml")
    weights = {(problem.N, problem.K) for problem in held_out}
    assert len(set(held_out)) == 30
    assert len(weights) == 6
    assert weights <= theirs - ours
    assert {problem.M for problem in held_out} == {3, 17, 100, 500, 3000}


# For each file, its models with the GPUs that share one, and the weights that it takes of them.
HELD_OUT = {
    "held_out_2.yaml": {
        Dense(60, 7168, 56, 8, 128, 20480, 64000, 34.4): (4, "gate_up", "down"),
        Dense(46, 4608, 32, 16, 128, 36864, 256000, 27.2): (2, "qkv", "out"),
        Dense(64, 12288, 96, 8, 128, 33792, 256000, 103.8): (8, "gate_up", "down"),
    },
    "held_out_3.yaml": {
        Dense(40, 5120, 40, 40, 128, 13824, 100352, 13.7): (2, "gate_up", "down"),
        Dense(40, 4096, 32, 2, 128, 13696, 151552, 9.4): (2, "gate_up", "down"),
        Dense(48, 6144, 48, 8, 128, 16384, 92544, 19.9): (2, "qkv", "down"),
    },
}


# Their seeds, of which kinds they are (all kinds without one), and how many.
RECORDED: dict[str, tuple[int, tuple[str, ...], int]] = {
    "recorded.yaml": (1, (), 80),
    "recorded_2.yaml": (2, ("unfriendly", "blocks"), 24),
}


@pytest.mark.parametrize("file", HELD_OUT)
def test_later_held_out_sizes_are_new(file: str) -> None:
    """30 sizes, two weights of each of three models, and none of these weights is in any other file."""
    weights = {model.weights(tp)[name] for model, (tp, *names) in HELD_OUT[file].items() for name in names}
    held_out = read(file)
    assert {(p.M, p.N, p.K) for p in held_out} == {(m, n, k) for m in (3, 17, 100, 500, 3000) for n, k in weights}
    assert len(held_out) == 30
    # These are drawn from all of them.
    others = {path.name for path in FOLDER.glob("*.yaml") if "_a" not in path.name} - {file, *RECORDED}
    assert not weights & {(p.N, p.K) for name in others for p in read(name)}


def test_large_m_has_the_weights_of_the_anchors_and_six_unfriendly_ones() -> None:
    """With M of 1024, 2048, 4096 and 8192; rows of the others are off 128 bytes, or those of C off 16."""
    of_anchors = {(problem.N, problem.K) for problem in read("anchors.yaml")}
    large = read("large_m.yaml")
    weights = {(problem.N, problem.K) for problem in large}
    assert {(p.M, p.N, p.K) for p in large} == {(m, n, k) for m in (1024, 2048, 4096, 8192) for n, k in weights}
    assert len(large) == 48
    assert of_anchors <= weights
    assert len(weights - of_anchors) == 6
    assert all(2 * k % 128 or 2 * n % 16 for n, k in weights - of_anchors)


def test_every_file_is_tn_and_covered() -> None:
    """Every shipped file stores A row-major and the weight as [N, K], and is recomputed by a test above."""
    names = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    covered = {f"{name}_tp{tp}.yaml" for name, tp in DENSE_FILES}
    covered |= {"gpt-oss-120b_tp1.yaml", "gpt-oss-120b_tp8.yaml", "deepseek-v3_tp8.yaml"}
    covered |= {"quickstart.yaml", "squares.yaml", "anchors.yaml", "large_m.yaml", "held_out.yaml", *HELD_OUT}
    # Compared with what `genkern shapes` makes in tests/packing/test_shapes.py.
    quantised = {"deepseek-v3_a8w8_blockscale.yaml", "llama-3.1-70b_a8w8.yaml", "llama-3.1-70b_a16w4.yaml"}
    assert names == covered | quantised | {*RECORDED}
    for name in covered:
        assert all(problem.row_major_a and not problem.row_major_b for problem in read(name))


@pytest.mark.parametrize(
    ("name", "of", "op"),
    [
        ("deepseek-v3_a8w8_blockscale.yaml", "deepseek-v3_tp8.yaml", "a8w8_blockscale"),
        ("llama-3.1-70b_a8w8.yaml", "llama-3.1-70b_tp8.yaml", "a8w8"),
        ("llama-3.1-70b_a16w4.yaml", "llama-3.1-70b_tp8.yaml", "a16w4"),
    ],
)
def test_quantised_lists_have_their_models_sizes(name: str, of: str, op: str) -> None:
    """All in one format, and all sizes of the model's other list but for the router and the head."""
    problems = read_sizes(str(FOLDER / name), GemmDefaults(), "sm_90").problems
    assert {problem.op for problem in problems} == {op}
    plain = {(256, 7168), (129280 // 8, 7168), (128256 // 8, 8192)}
    assert triples(problems) == {each for each in triples(read(of)) if each[1:] not in plain}
    assert len(problems) == len(triples(problems))


@pytest.mark.parametrize("file", RECORDED)
def test_recorded_sizes_are_those_of_the_seed(file: str) -> None:
    """So many, each once, as benchmarks/search/recorded_sizes.py draws them."""
    seed, only, count = RECORDED[file]
    path = FOLDER / file
    assert path.read_text() == "".join(map(size_line, drawn(seed, only)))
    problems = read_sizes(str(path), GemmDefaults(), "sm_90").problems
    assert len(problems) == len(set(problems)) == count
