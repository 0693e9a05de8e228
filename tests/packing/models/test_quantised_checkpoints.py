"""A quantised checkpoint's products are listed in the format of each weight, as its library's rules decide by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_configs import DEEPSEEK, LLAMA, MIXTRAL

from genkern.errors import InputError
from genkern.files.model_config import read_model
from genkern.packing.models.engines import ENGINES, SERVERS, Engine
from genkern.packing.models.products import Product, products_of

# Thirty-two layers, of which a product is 4096 wide.
SMALL = {
    **LLAMA,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "tie_word_embeddings": False,
}
KIMI: dict[str, Any] = {
    **DEEPSEEK,
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "vocab_size": 163840,
}
FP8 = {
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
}
INT8 = {
    "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
    "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True},
}
INT4 = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}


def compressed(ignore: list[str], **groups: tuple[list[str], dict[str, Any]]) -> dict[str, Any]:
    """compressed-tensors: each group's targets and scheme."""
    found = {name: {**scheme, "targets": targets} for name, (targets, scheme) in groups.items()}
    return {"quant_method": "compressed-tensors", "config_groups": found, "ignore": ignore}


def gptq(**more: object) -> dict[str, Any]:
    """GPTQ in groups of 128."""
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False, **more}


def listed(
    folder: Path, config: dict[str, Any], quantization: dict[str, Any] | None, engine: Engine = SERVERS
) -> tuple[list[Product], str]:
    """The products for 16 rows, and what is said of them."""
    if quantization is not None:
        config = {**config, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    products, notes = products_of(read_model(str(folder)), engine, 1, (16,))
    return products, "\n".join(notes)


def ops(products: list[Product], within: str) -> list[tuple[str, str, int]]:
    """The label, the format and the number of layers of the products that have problems, by a part of their label."""
    return [
        (each.layer, each.problems[0].op, each.count) for each in products if within in each.layer and each.problems
    ]


PREFIXED = "language_model.model."
KIMI_LISTS = {
    "Kimi-K2-Thinking": [
        *("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"),
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ],
    "Kimi-K2.6": [
        *("re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"),
        *("re:.*lm_head.*", "re:vision_tower.*", "re:mm_projector.*"),
    ],
    "anchored": [
        *("lm_head", r"re:^(model|language_model\.model)\.layers\.\d+\.self_attn\.[a-z_]+$"),
        *(r"re:.*\.shared_experts\.(gate|up|down)_proj$", r"re:.*layers\.0\.mlp\..*"),
    ],
}


@pytest.mark.parametrize("name", KIMI_LISTS)
@pytest.mark.parametrize("is_multimodal", [False, True])
def test_patterns_are_matched_on_full_names(tmp_path: Path, name: str, is_multimodal: bool) -> None:
    """Kimi-K2-Thinking quantises routed experts alone; attention, shared experts and the dense layer are bf16."""
    quantization = compressed(KIMI_LISTS[name], group_0=(["Linear"], INT4))
    config = {"model_type": "kimi_k25", "text_config": KIMI} if is_multimodal else KIMI
    products, notes = listed(tmp_path, config, quantization)
    # The head of a multimodal checkpoint is language_model.lm_head: as for exact entries of a text model's list.
    assert {each.problems[0].op for each in products if each.problems} == {"a16w16", "batched_a16w16"}
    (experts,) = (each for each in products if each.is_routed)
    assert (experts.problems, experts.count) == ((), 60)
    assert "a16w4" in notes
    assert {layer for layer, _, _ in ops(products, "mlp")} == {
        f"{PREFIXED if is_multimodal else 'model.'}layers.{each}"
        for each in ("0.mlp", "1-60.mlp.shared_experts", "1-60.mlp")
    }


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        # What is not of the language model, in the checkpoint's names and in those of transformers 5.
        (r"re:^(?!language_model\.).*", False),
        (r"re:^(?!model\.language_model\.).*", False),
        (r"re:^(?!.*self_attn).*", True),
        # Layers by names of the text model alone.
        (r"re:model\.layers\.\d+\.mlp.*", True),
        (r"re:language_model\.model\.layers\.\d+\.mlp.*", True),
        (r"re:model\.language_model\.layers\.\d+\.mlp.*", True),
        (r"re:vision_tower.*", False),
    ],
)
def test_prefixes_of_multimodal_checkpoints(tmp_path: Path, pattern: str, kept: bool) -> None:
    """A list may have the names of another release; a pattern of what must not be there holds for each of them."""
    config = {"model_type": "llama4", "text_config": SMALL}
    products, _ = listed(tmp_path, config, compressed([pattern], a=(["Linear"], INT4)))
    assert {each.layer[: len(PREFIXED)] for each in products[:-1]} == {PREFIXED}
    assert {op for _, op, _ in ops(products, ".mlp")} == {"a16w16" if kept else "a16w4"}
    assert {op for _, op, _ in ops(products, "self_attn")} == {"a16w4"}


def test_experts_alone(tmp_path: Path) -> None:
    """A pattern of all that is no expert leaves experts quantised."""
    quantization = compressed([r"re:^(?!.*\.experts\.).*"], a=(["Linear"], FP8))
    products, _ = listed(tmp_path, MIXTRAL, quantization)
    assert {each.problems[0].dtype_b for each in products if each.is_routed} == {"fp8e4m3fn"}
    assert {op for _, op, _ in ops(products, "self_attn")} == {"a16w16"}


def test_patterns_that_leave_some_of_a_layer(tmp_path: Path) -> None:
    """The down projection stays quantised if the pattern is of the other two."""
    quantization = compressed(["lm_head", r"re:.*mlp\.(gate|up)_proj$"], group_0=(["Linear"], INT4))
    products, notes = listed(tmp_path, SMALL, quantization)
    assert [op for _, op, _ in ops(products, ".mlp")] == ["a16w16", "a16w4"]
    assert [op for _, op, _ in ops(products, "self_attn")] == ["a16w4", "a16w4"]
    assert notes == ""


TWO_GROUPS = {
    "patterns": (
        compressed(["lm_head"], a=(["re:.*self_attn.*"], FP8), b=(["re:.*mlp.*"], INT4)),
        {"self_attn": "a8w8", "mlp": "a16w4"},
    ),
    "a pattern before the class": (
        compressed(["lm_head"], a=(["Linear"], INT8), b=([r"re:.*\.mlp\..*_proj"], FP8)),
        {"self_attn": "a8w8 int8", "mlp": "a8w8 fp8e4m3fn"},
    ),
    "no group for the rest": (compressed([], a=(["re:.*mlp.*"], INT4)), {"self_attn": "a16w16", "mlp": "a16w4"}),
    "full names": (
        compressed(
            ["lm_head"],
            a=([f"model.layers.{each}.self_attn.{name}_proj" for each in range(32) for name in "qkvo"], FP8),
            b=(["Linear"], INT4),
        ),
        {"self_attn": "a8w8", "mlp": "a16w4"},
    ),
}


@pytest.mark.parametrize("name", TWO_GROUPS)
def test_each_group_has_its_targets(tmp_path: Path, name: str) -> None:
    """With the order of compressed-tensors: full names, then patterns, then classes."""
    quantization, wanted = TWO_GROUPS[name]
    products, notes = listed(tmp_path, SMALL, quantization)
    for within, said in wanted.items():
        of_layer = [each.problems[0] for each in products if within in each.layer]
        assert len(of_layer) == 2
        assert all(f"{each.op} {each.dtype_b}".startswith(said) for each in of_layer)
    assert products[-1].problems[0].op == "a16w16"
    assert notes == ""


DYNAMIC: dict[str, tuple[dict[str, Any], list[tuple[str, str, int]]]] = {
    "no attention": (
        {"-:.*attn.*": {}},
        [("0-31.self_attn", "a16w16", 32), ("0-31.self_attn", "a16w16", 32), *[("0-31.mlp", "a16w4", 32)] * 2],
    ),
    "other bits": (
        {r"+:.*\.down_proj": {"bits": 8, "group_size": -1}},
        [*[("0-31.self_attn", "a16w4", 32)] * 2, ("0-31.mlp", "a16w4", 32), ("0-31.mlp", "a16w8", 32)],
    ),
    "the first rule holds": (
        {r"model\.layers\.[0-3]\..*": {"group_size": 32}, "-:.*mlp.*": {}},
        [
            *[("0-3.self_attn", "a16w4", 4), ("4-31.self_attn", "a16w4", 28)] * 2,
            *[("0-3.mlp", "a16w4", 4), ("4-31.mlp", "a16w16", 28)] * 2,
        ],
    ),
    "all but some": (
        {r"-:^(?!model\.layers\.5\.).*": {}},
        [
            *[("0-4,6-31.self_attn", "a16w16", 31), ("5.self_attn", "a16w4", 1)] * 2,
            *[("0-4,6-31.mlp", "a16w16", 31), ("5.mlp", "a16w4", 1)] * 2,
        ],
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_rules_of_gptq(tmp_path: Path, name: str) -> None:
    """Modules that a rule leaves out are bf16; those of another rule have its bits and groups."""
    rules, wanted = DYNAMIC[name]
    products, notes = listed(tmp_path, SMALL, gptq(dynamic=rules))
    found = ops(products, "layers.")
    assert [(layer.removeprefix("model.layers."), op, count) for layer, op, count in found] == wanted
    assert ("more than one format" in notes) == (len(wanted) > 4)
    if name == "the first rule holds":
        groups = {(each.layer, dict(each.problems[0].own).get("group")) for each in products if "attn" in each.layer}
        assert groups == {("model.layers.0-3.self_attn", None), ("model.layers.4-31.self_attn", 128)}


def numbered(layers: range | tuple[int, ...], names: str = "qkvo") -> list[str]:
    return [f"model.layers.{layer}.self_attn.{name}_proj" for layer in layers for name in names]


@pytest.mark.parametrize("of", [INT8, FP8, INT4])
def test_layers_that_are_named_by_number(tmp_path: Path, of: dict[str, Any]) -> None:
    """If all of them are, attention is bf16; if some are, both are listed, with a line."""
    group = {"group_0": (["Linear"], of)}
    products, notes = listed(tmp_path, SMALL, compressed(["lm_head", *numbered(range(32))], **group))
    assert {op for _, op, _ in ops(products, "self_attn")} == {"a16w16"}
    assert notes == ""
    products, notes = listed(tmp_path, SMALL, compressed(["lm_head", *numbered((0, 1, 2, 31))], **group))
    quantised = products[-2].problems[0].op
    assert ops(products, "self_attn") == [
        *[("model.layers.0-2,31.self_attn", "a16w16", 4), ("model.layers.3-30.self_attn", quantised, 28)] * 2
    ]
    assert len(notes.splitlines()) == 1
    assert all(each in notes for each in ("0-2,31", "3-30", quantised, "q_proj+k_proj+v_proj", "o_proj"))


def test_weights_of_one_merged_product_that_differ(tmp_path: Path) -> None:
    """They are listed apart, each in its format, with a line that names them."""
    quantization = compressed(["lm_head", *numbered((7,), "v")], group_0=(["Linear"], INT4))
    products, notes = listed(tmp_path, SMALL, quantization)
    apart = [each for each in products if each.layer == "model.layers.7.self_attn"]
    # q and k together, and v: 32 and 8 heads of 128.
    assert [(each.problems[0].op, each.problems[0].N, each.count) for each in apart] == [
        *[("a16w4", (32 + 8) * 128, 1), ("a16w16", 8 * 128, 1)]
    ]
    assert sum(each.count for each in products if "q_proj" in each.said or "qkv" in each.said) == 33
    assert "v_proj a16w16" in notes
    # An engine that does not merge has nothing to say of it: k and v are products of their own.
    config = {**SMALL, "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    made, _ = products_of(read_model(str(tmp_path)), ENGINES["transformers"], 2, (16,))
    of_7 = [(each.problems[0].op, each.problems[0].N, each.count) for each in made if "layers.7." in each.layer]
    assert ("a16w4", 4 * 128, 1) in of_7
    assert ("a16w16", 4 * 128, 1) in of_7


ZERO_POINTS = {
    "activations of each token": {**INT8, "input_activations": {**INT8["input_activations"], "symmetric": False}},
    "activations of the tensor": {
        **INT8,
        "input_activations": {"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": False},
    },
    "weights": {**INT8, "weights": {**INT8["weights"], "symmetric": False}},
    "weights in groups": {"weights": {**INT4["weights"], "symmetric": False}},
}


@pytest.mark.parametrize("name", ZERO_POINTS)
def test_zero_points_are_another_format(tmp_path: Path, name: str) -> None:
    """A word, and bf16; without them it is a8w8."""
    products, notes = listed(tmp_path, SMALL, compressed(["lm_head"], group_0=(["Linear"], ZERO_POINTS[name])))
    assert {op for _, op, _ in ops(products, "")} == {"a16w16"}
    assert "zero points" in notes
    assert "bf16" in notes
    assert len(notes.splitlines()) == 1
    products, notes = listed(tmp_path, SMALL, compressed(["lm_head"], group_0=(["Linear"], INT8)))
    assert [(op, products[0].problems[0].dtype_b) for _, op, _ in ops(products, "layers.")] == [("a8w8", "int8")] * 4
    assert notes == ""


UNREAD = {
    "a list that is none": {**compressed([], a=(["Linear"], INT4)), "ignore": "lm_head"},
    "a group without targets": compressed([], a=([], INT4)),
    "groups that are none": {"quant_method": "compressed-tensors", "config_groups": [1]},
    "a pattern that is none": compressed(["re:(("], a=(["Linear"], INT4)),
    "a pattern that looks behind": compressed([r"re:.*(?<=x)y"], a=(["Linear"], INT4)),
    "bits that are no number": gptq(bits="4"),
    "a rule that is none": gptq(dynamic={"-:.*": 3}),
    "blocks that are none": {"quant_method": "fp8", "weight_block_size": [128]},
    "no layers": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
    "a layer without an algorithm": {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"model.layers.0": {}},
    },
    "a configuration of Quark's that is none": {"quant_method": "quark", "global_quant_config": [1]},
    "extra_config that is none": {"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {"a": 1}},
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_understood_is_said(tmp_path: Path, name: str) -> None:
    """In one line with the library's name, and all weights are taken as bf16."""
    products, notes = listed(tmp_path, SMALL, UNREAD[name])
    assert {op for _, op, _ in ops(products, "")} == {"a16w16"}
    assert len(notes.splitlines()) == 1
    assert UNREAD[name]["quant_method"] in notes
    assert "taken as bf16" in notes


def test_an_expert_that_differs_from_the_others(tmp_path: Path) -> None:
    """Experts are one product, so that one of another format makes all of them plain, with a line."""
    quantization = {"quant_method": "fp8", "activation_scheme": "static"}
    products, notes = listed(tmp_path, MIXTRAL, quantization)
    assert {each.problems[0].dtype_b for each in products if each.is_routed} == {"fp8e4m3fn"}
    assert notes == ""
    kept = [f"model.layers.{layer}.block_sparse_moe.experts.5.w1" for layer in range(80)]
    products, notes = listed(tmp_path, MIXTRAL, {**quantization, "modules_to_not_convert": kept})
    assert {each.problems[0].dtype_b for each in products if each.is_routed} == {"bf16"}
    assert "more than one format" in notes


BESIDE = {
    "hf_quant_config.json": (
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
        "a8w8",
    ),
    "quantize_config.json": ({"bits": 4, "group_size": 128, "sym": True, "desc_act": False}, "a16w4"),
    "quant_config.json": ({"w_bit": 4, "q_group_size": 64, "zero_point": False}, "a16w4"),
    "quantization_config.json": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int"},
        "a16w4",
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_files_beside_config_json(tmp_path: Path, name: str) -> None:
    """They are read if config.json has no quantization_config, and not if it has one."""
    said, op = BESIDE[name]
    (tmp_path / name).write_text(json.dumps(said))
    products, _ = listed(tmp_path, SMALL, None)
    assert [each for _, each, _ in ops(products, "")] == [*[op] * 4, "a16w16"]
    products, _ = listed(tmp_path, SMALL, compressed(["lm_head"], a=(["Linear"], INT8)))
    assert {op for _, op, _ in ops(products, "layers.")} == {"a8w8"}


def test_layers_of_modelopt_with_an_algorithm_each(tmp_path: Path) -> None:
    """Listed modules have their own; those of another kind, and modules that no list has, are bf16."""
    layers = {
        f"model.language_model.layers.{each}.self_attn.{name}_proj": "FP8" for each in range(32) for name in "qkvo"
    }
    layers |= {f"model.language_model.layers.{each}.mlp.down_proj": "W4A16_NVFP4" for each in range(4)}
    quantization = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "ignore": ["mtp*"],
        "quantized_layers": {name: {"quant_algo": algorithm} for name, algorithm in layers.items()},
    }
    # The names of a checkpoint of another release.
    config = {"model_type": "llama4", "text_config": SMALL}
    products, notes = listed(tmp_path, config, quantization)
    assert [op for _, op, _ in ops(products, "self_attn")] == ["a8w8", "a8w8"]
    assert {op for _, op, _ in ops(products, "mlp")} == {"a16w16"}
    assert "w4a16_nvfp4" in notes


@pytest.mark.parametrize("head", [True, False])
def test_the_head_is_quantised_if_the_library_says_so(tmp_path: Path, head: bool) -> None:
    """A class of targets has it; a tied head is the embedding, which stays as it is."""
    config = {**SMALL, "tie_word_embeddings": not head}
    products, _ = listed(tmp_path, config, compressed([], a=(["Linear"], INT8)))
    assert products[-1].problems[0].op == ("a8w8" if head else "a16w16")


def test_the_order_of_quantising_is_not_that_of_the_rows(tmp_path: Path) -> None:
    """Weights that were quantised by their activations are as others if they lie in their places (static)."""
    for order, op in (("static", "a16w4"), ("weight", "a16w4"), ("group", "a16w16"), (True, "a16w16"), (None, "a16w4")):
        scheme = {"weights": {**INT4["weights"], "actorder": order}}
        products, notes = listed(tmp_path, SMALL, compressed(["lm_head"], a=(["Linear"], scheme)))
        assert products[0].problems[0].op == op
        assert ("order" in notes) == (op == "a16w16")


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value within a configuration."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 2)):
            yield from places(value[index], (*path, index))


def with_value(value: Any, path: tuple[Any, ...], new: object) -> Any:
    """A copy with another value in that place."""
    if not path:
        return new
    copy = json.loads(json.dumps(value))
    within = copy
    for key in path[:-1]:
        within = within[key]
    within[path[-1]] = new
    return copy


STRANGE: list[Any] = [
    None,
    True,
    -1,
    1e9,
    2**70,
    "",
    "re:((",
    "re:.*",
    "\x1b[31m\n",
    [],
    [1],
    ["re:(a+)+$"],
    {},
    {"a": {}},
]
WHOLE = {
    "compressed-tensors": compressed(["lm_head", "re:.*self_attn.*"], a=(["Linear"], INT8), b=(["re:.*mlp.*"], INT4)),
    "fp8": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.*.self_attn"],
    },
    "gptq": gptq(dynamic={"-:.*attn.*": {}, "+:.*down.*": {"bits": 8}}, lm_head=False),
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False, "modules_to_not_convert": ["a"]},
    "modelopt": {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "ignore": ["*.mlp*"],
        "producer": {},
        "quantized_layers": {"model.layers.0.self_attn": {"quant_algo": "FP8"}},
    },
    "auto-round": {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 128,
        "sym": True,
        "data_type": "int",
        "extra_config": {".*down.*": {"bits": 16}},
        "block_name_to_quantize": "model.layers",
    },
    "quark": {
        "quant_method": "quark",
        "exclude": ["*head"],
        "layer_type_quant_config": {},
        "global_quant_config": {
            "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "symmetric": True},
            "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
        },
        "layer_quant_config": {"*down_proj": {"weight": None}},
    },
}


def said_of(folder: Path, config: dict[str, Any], quantization: Any) -> list[str]:
    """The notes on a model, or the line that refuses it."""
    try:
        products, notes = listed(folder, config, quantization)
    except InputError as error:
        return [str(error)]
    assert len(products) >= 5
    return notes.split("\n")


@pytest.mark.parametrize("name", WHOLE)
def test_any_value_in_any_place(tmp_path: Path, name: str) -> None:
    """Whatever a file says, it is read, or refused in one line; each note is one line, too."""
    config = {**SMALL, "num_hidden_layers": 2}
    for path in places(WHOLE[name]):
        for value in STRANGE:
            said = said_of(tmp_path, config, with_value(WHOLE[name], path, value))
            assert all(line.isprintable() for line in said)
