"""Tests of genkern.engines.vllm against the real vLLM 0.33 (make test-engines), on a machine without a GPU."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_winners import K, N

from genkern.engines import hooks, layers
from genkern.engines import vllm as plugin

pytest.importorskip("vllm")
from vllm import envs
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.layers import linear
from vllm.platforms import PlatformEnum, current_platform

H100_RESULTS = Path(__file__).parents[2] / "results" / "nvidia_h100"
PARTS = ("compiled programs' keys", "16-bit linear layers", "fp8 linear layers", "experts", "batch-invariant products")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The groups of ranks that vLLM's layers ask for: of this process alone."""
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        place = f"file://{tmp_path_factory.mktemp('ranks')}/store"
        parallel_state.init_distributed_environment(1, 0, place, 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)


@pytest.fixture(autouse=True)
def plugged(alone: None, gpu: Any, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """vLLM with the plugin, and a config."""
    with caplog.at_level(logging.INFO, "genkern"):
        plugin.register()
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        yield


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes this machine for one with CUDA, where it chooses kernels and modes."""
    monkeypatch.setattr(type(current_platform), "_enum", PlatformEnum.CUDA)


def layer(n: int = N, bias: bool = False, kind: Any = None) -> Any:
    """A linear layer of vLLM's, with random weights."""
    made = linear.ReplicatedLinear(
        K, n, bias=bias, params_dtype=torch.bfloat16, disable_tp=True, return_bias=False, prefix="layer"
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter.data, std=0.5)
    return made


def test_every_part_fits_this_vllm(caplog: pytest.LogCaptureFixture) -> None:
    """All hooks exist with the arguments that they are given; again changes nothing; vLLM finds the plugin itself."""
    before = linear.UnquantizedLinearMethod.apply
    caplog.clear()
    with caplog.at_level(logging.INFO, "genkern"):
        plugin.register()
    assert linear.UnquantizedLinearMethod.apply is before
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert all(part in caplog.text for part in PARTS)
    from vllm.plugins import DEFAULT_PLUGINS_GROUP, load_plugins_by_group

    assert load_plugins_by_group(DEFAULT_PLUGINS_GROUP)["genkern"] is plugin.register


def test_layers_of_a_loaded_model_call_winners(launched: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Those with winners, by M; the others are vLLM's; a line says what share that is."""
    model = torch.nn.ModuleDict({"tuned": layer(), "biased": layer(bias=True), "other": layer(n=2 * N)})
    with caplog.at_level(logging.INFO, "genkern"):
        share = plugin.mark(model)
    assert (share.layers, share.of_layers, share.tuned) == (2, 3, (1, 16, 64))
    assert share.bytes / share.of_bytes == pytest.approx(0.5)
    assert "2 of 3 layers, 50.0 %" in caplog.text
    for name, rows, launches in (("tuned", 16, 1), ("biased", 1, 1), ("tuned", 5000, 0), ("other", 16, 0)):
        x = torch.randn(rows, K).bfloat16()
        out = model[name](x)
        assert launched() == launches, name
        if name != "biased":
            torch.testing.assert_close(out, x @ model[name].weight.T, rtol=0.02, atol=0.1)


def test_a_compiled_layer_looks_at_m_when_it_runs(launched: Any) -> None:
    """One graph for all M, in whole, with one operator; its choice is made at each call."""
    module = layer()
    plugin.mark(module)
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    program = torch.compile(lambda x: module(x) + 1, dynamic=True, fullgraph=True, backend=backend)
    for rows, launches in ((16, 1), (64, 1), (5000, 0)):
        x = torch.randn(rows, K).bfloat16()
        torch.testing.assert_close(program(x), x @ module.weight.T + 1, rtol=0.02, atol=0.1)
        assert launched() == launches
    assert len(graphs) == 1
    torch._dynamo.reset()


def test_loading_a_model_marks_it() -> None:
    """As each of vLLM's loaders that keeps BaseModelLoader.load_model does."""
    from vllm.model_executor.model_loader import base_loader

    model = layer()
    loader = SimpleNamespace()
    before = hooks.unhooked(base_loader.BaseModelLoader.load_model)
    loaded = plugin._load(lambda self, **named: model)(loader, vllm_config=None, model_config=None)
    assert loaded is model
    assert layers.is_served(model)
    assert before.__name__ == "load_model"


def test_programs_of_another_bundle_are_other_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """vLLM's keys of what it compiled have the bundle in them."""
    factors = envs.compile_factors()
    assert len(factors[plugin._VARIABLE]) == 64
    other = tmp_path / "other.genkern"
    other.write_bytes(b"another bundle")
    monkeypatch.setenv("GENKERN_CONFIG", str(other))
    plugin.digest.cache_clear()
    assert envs.compile_factors()[plugin._VARIABLE] != factors[plugin._VARIABLE]
    plugin.digest.cache_clear()


def test_programs_hang_on_bundles_by_any_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also on those that are installed with genkern, and on those at home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("genkern.runtime.bundles.shipped_bundles.FOLDER", tmp_path)
    for named in ("shipped", "~/own.genkern"):
        monkeypatch.setenv("GENKERN_CONFIG", named)
        found = set()
        for text in (b"a bundle", b"another"):
            (tmp_path / "own.genkern").write_bytes(text)
            plugin.digest.cache_clear()
            found.add(plugin.digest())
        assert len(found) == 2
    plugin.digest.cache_clear()


KINDS = {
    "per_tensor": ("kFp8StaticTensorSym", "kFp8StaticTensorSym"),
    "per_token": ("kFp8DynamicTokenSym", "kFp8StaticChannelSym"),
    "per_token_of_one": ("kFp8DynamicTokenSym", "kFp8StaticTensorSym"),
    "blocks": ("kFp8Dynamic128Sym", "kFp8Static128BlockSym"),
}
# vLLM's kernels, and a kind of scales that each may have.
FP8 = [
    ("CutlassFP8ScaledMMLinearKernel", "per_tensor"),
    ("CutlassFP8ScaledMMLinearKernel", "per_token"),
    ("CutlassFP8ScaledMMLinearKernel", "per_token_of_one"),
    ("PerTensorTorchFP8ScaledMMLinearKernel", "per_tensor"),
    ("ChannelWiseTorchFP8ScaledMMLinearKernel", "per_token"),
    ("DeepGemmFp8BlockScaledMMKernel", "blocks"),
    ("CutlassFp8BlockScaledMMKernel", "blocks"),
    ("TritonFp8BlockScaledMMKernel", "blocks"),
    ("FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "blocks"),
]


class Fp8:
    """One of vLLM's fp8 kernels with a layer, as its loaders leave both; `calls` has the rows it multiplied itself."""

    def __init__(self, name: str, kind: str, monkeypatch: pytest.MonkeyPatch, n: int = N) -> None:
        from vllm.model_executor.layers.quantization.utils import fp8_utils, quant_utils

        self.calls: list[int] = []
        of_x, of_weight = (getattr(quant_utils, each) for each in KINDS[kind])
        kinds, blocks = getattr(kernels, name), kind == "blocks"
        method = "apply_block_scaled_mm" if blocks else "apply_scaled_mm"

        def own(kernel: Any, *given: Any, **named: Any) -> Any:
            self.calls.append(named["A"].shape[0])
            return torch.full((named["A"].shape[0], n), 7.0).bfloat16()

        # What vLLM computes itself needs a GPU. Its signature stays.
        monkeypatch.setattr(kinds, method, functools.wraps(hooks.unhooked(getattr(kinds, method)))(own))
        plugin.register()
        for each in {kinds, getattr(kinds, "base_type", kinds), getattr(kinds, "fallback_type", kinds)}:
            monkeypatch.setattr(each, "can_implement", classmethod(lambda cls, config: (True, None)))
            monkeypatch.setattr(each, "is_supported", classmethod(lambda cls, capability=None: (True, None)))
        config = kernels.FP8ScaledMMLinearLayerConfig(
            weight_quant_key=of_weight,
            activation_quant_key=of_x,
            weight_shape=(n, K),
            input_dtype=torch.bfloat16,
            out_dtype=torch.bfloat16,
        )
        names = ["weight", "weight_scale", "input_scale", "input_scale_ub"]
        self.kernel = kinds(config) if blocks else kinds(config, layer_param_names=names)
        self.module, self.weight = torch.nn.Module(), torch.randn(n, K).to(torch.float8_e4m3fn)
        module = self.module
        module.weight = torch.nn.Parameter(self.weight if blocks else self.weight.t(), requires_grad=False)
        count = (n // 128, K // 128) if blocks else (n, 1) if kind == "per_token" else ()
        scale = torch.nn.Parameter(torch.ones(count), requires_grad=False)
        setattr(module, "weight_scale_inv" if blocks else "weight_scale", scale)
        module.input_scale = torch.ones(()) if kind == "per_tensor" else None
        module.weight_block_size = [128, 128] if blocks else None
        module.quant_method = SimpleNamespace(fp8_linear=self.kernel)
        self.kernel.process_weights_after_loading(module)
        # Kernels of vLLM that quantise need a GPU.
        quantise = lambda x, *given, **named: (x.to(torch.float8_e4m3fn), torch.ones(x.shape[0], 1))  # noqa: E731
        monkeypatch.setattr(fp8_utils, "per_token_group_quant_fp8", quantise)

    def __call__(self, rows: int) -> Any:
        """Returns the layer's result, and what winners make of it: their stand-in takes all scales for 1."""
        x = torch.randn(rows, K).bfloat16()
        quantised = x.to(torch.float8_e4m3fn)
        if getattr(self.kernel, "apply_input_quant", True):
            quantised, *_ = self.kernel.quant_fp8(x, self.module.input_scale, None)
        wanted = (quantised.float() @ self.weight.float().T).bfloat16()
        return self.kernel.apply_weights(self.module, x), wanted


@pytest.fixture(params=FP8, ids=lambda each: f"{each[0]}-{each[1]}")
def fp8(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fp8:
    return Fp8(*request.param, monkeypatch)


def test_fp8_layers_call_winners_and_vllms_own_kernel(fp8: Fp8, launched: Any) -> None:
    """By M, for each kernel that vLLM may have chosen: its own computes an M without a winner."""
    share = plugin.mark(fp8.module)
    assert (share.layers, share.tuned) == (1, (1, 16, 64))
    for rows, is_served in ((16, True), (1, True), (5000, False)):
        fp8.calls.clear()
        out, wanted = fp8(rows)
        assert (out.shape, out.dtype, launched(), fp8.calls) == (
            (rows, N),
            torch.bfloat16,
            int(is_served),
            [] if is_served else [rows],
        )
        if is_served:
            torch.testing.assert_close(out, wanted, rtol=0.02, atol=1.0)
    # A compiled layer chooses by M when it runs, too.
    program = torch.compile(lambda x: fp8.kernel.apply_weights(fp8.module, x), dynamic=True, backend="eager")
    for rows, is_served in ((16, True), (5000, False)):
        program(torch.randn(rows, K).bfloat16())
        assert launched() == int(is_served)
    torch._dynamo.reset()


def test_fp8_layers_without_winners_are_vllms(monkeypatch: pytest.MonkeyPatch, launched: Any) -> None:
    """Other sizes, weights that vLLM multiplies elsewhere or lays out anew, and a library that the user named."""
    for why in ("no winner", "elsewhere", "anew", "--linear-backend"):
        case = Fp8("DeepGemmFp8BlockScaledMMKernel", "blocks", monkeypatch, n=2 * N if why == "no winner" else N)
        case.module.is_bmm = why == "elsewhere"
        if why == "anew":
            case.module.weight_scale_inv.data = torch.ones(2, 4)[:, ::4]
        if why == "--linear-backend":
            config = SimpleNamespace(kernel_config=SimpleNamespace(linear_backend="triton"))
            monkeypatch.setattr("vllm.config.get_current_vllm_config_or_none", lambda config=config: config)
        assert why in plugin.layer_of(case.module).why
        assert plugin.mark(case.module).layers == 0
        case(16)
        assert (launched(), case.calls) == (0, [16])


def experts(rows: int) -> tuple[Any, tuple[Any, ...], Any]:
    """vLLM's kernel of experts, what its layer calls it with, and where the result goes."""
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

    kernel = object.__new__(TritonExperts)
    kernel.quant_config, kernel.activation_config = FUSED_MOE_UNQUANTIZED_CONFIG, SimpleNamespace(clamp_limit=None)
    kernel._lora_context = None
    x, output = torch.randn(rows, K).bfloat16(), torch.zeros(rows, K).bfloat16()
    w1, w2 = torch.randn(8, 256, K).bfloat16(), torch.randn(8, K, 128).bfloat16()
    ids = torch.randint(0, 8, (rows, 2), dtype=torch.int32)
    named = {
        "output": output,
        "hidden_states": x,
        "w1": w1,
        "w2": w2,
        "topk_weights": torch.rand(rows, 2),
        "topk_ids": ids,
        "activation": MoEActivation.SILU,
        "global_num_experts": 8,
        "expert_map": None,
        "a1q_scale": None,
        "a2_scale": None,
        "workspace13": None,
        "workspace2": None,
        "expert_tokens_meta": None,
        "apply_router_weight_on_input": False,
    }
    return kernel, named, output  # type: ignore[return-value]


def test_experts_call_winners(launched: Any, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both products have one for that number of tokens; in the mode of equal bits within genkern's."""
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

    for rows, invariant in ((16, False), (16, True)):
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", str(int(invariant)))
        kernel, named, output = experts(rows)
        output.fill_(7)
        kernel.apply(**named)
        assert launched() >= 2
        assert mode.entered == int(invariant)
    # In fp8 x is quantised before, and comes with its scales.
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    kernel, named, output = experts(16)
    scales = torch.ones(8, 2, 1), torch.ones(8, 1, 1)
    kernel.quant_config = fp8_w8a8_moe_quant_config(*scales, block_shape=[128, 128])
    for name in ("hidden_states", "w1", "w2"):
        named[name] = named[name].to(torch.float8_e4m3fn)
    kernel.apply(**{**named, "a1q_scale": torch.ones(16, 1)})
    assert launched() >= 2
    # Another kind of layer, and an untuned number, are vLLM's own: Triton's, which needs a GPU.
    for change in ({"expert_map": torch.arange(8)}, {"apply_router_weight_on_input": True}):
        kernel, named, _ = experts(16)
        with pytest.raises(Exception):  # noqa: B017, PT011
            kernel.apply(**{**named, **change})
        assert launched() == 0


def test_batch_invariant_products_go_to_winners(
    launched: Any, mode: Any, cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What VLLM_BATCH_INVARIANT=1 sends to vLLM's own kernel: linear layers, mm and bmm."""
    batch_invariant = invariant_module()
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    module = layer()
    share = plugin.mark(module)
    # Its layers call what was replaced, whatever they are marked.
    assert share.layers == 0
    x = torch.randn(16, K).bfloat16()
    torch.testing.assert_close(module(x), x @ module.weight.T, rtol=0.02, atol=0.1)
    assert (launched(), mode.entered) == (1, 1)
    batch_invariant.mm_batch_invariant(x, module.weight.t())
    batch_invariant.addmm_batch_invariant(torch.zeros(N).bfloat16(), x, module.weight.t())
    batch_invariant.bmm_batch_invariant(torch.randn(3, 16, K).bfloat16(), torch.randn(3, N, K).bfloat16().mT)
    assert (launched(), mode.entered) == (3, 4)


def test_another_vllm_runs_as_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A method with other arguments: that part is left out in one line, and vLLM's own is called."""
    monkeypatch.setattr(linear.UnquantizedLinearMethod, "apply", lambda self, module, given: given)
    caplog.clear()
    with caplog.at_level(logging.INFO, "genkern"):
        plugin.register()
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "16-bit linear layers without genkern" in warning.getMessage()
    assert "apply takes (self, module, given)" in warning.getMessage()
    assert linear.UnquantizedLinearMethod().apply(None, 3) == 3


TOUCHES = {
    (touch.path, what): touch
    for part in plugin.parts()
    for touch in part.touches
    for what in ("path", *(("parameters",) if touch.parameters else ()), *touch.fields)
}


@pytest.mark.parametrize(("path", "what"), TOUCHES, ids=lambda each: each.rpartition(".")[2])
def test_what_vllm_lacks_costs_a_part_and_a_line(
    path: str, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attribute that the plugin touches, removed or changed: no exception, and a line for each part with it."""
    owner_path, _, name = path.rpartition(".")
    owner = hooks.resolved(owner_path)
    if what == "parameters":
        monkeypatch.setattr(owner, name, lambda *, other: None)
    elif what == "path" and not isinstance(owner, type):
        # vllm.envs computes its variables.
        monkeypatch.setattr(owner, "__getattr__", missing_from(owner, name), raising=False)
        monkeypatch.delattr(owner, name, raising=False)
    else:
        # A class without the attribute, whether it is its own or inherited.
        kind_path = path if what in TOUCHES[path, what].fields else owner_path
        kind, missing = hooks.resolved(kind_path), what if kind_path == path else name
        module, _, kind_name = kind_path.rpartition(".")
        names = {each for each in hooks._field_names(kind) if not each.startswith("__")} - {missing}
        members = {each: inspect.getattr_static(kind, each, None) for each in names}
        monkeypatch.setattr(hooks.resolved(module), kind_name, type(kind_name, (), members))
    caplog.clear()
    with caplog.at_level(logging.INFO, "genkern"):
        plugin.register()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    parts = [part.serves for part in plugin.parts() if any(touch.path == path for touch in part.touches)]
    assert parts
    for part in parts:
        (line,) = [each for each in warnings if f" {part} without genkern" in each]
        assert line.count("\n") == 0
        assert (name if what in ("path", "parameters") else what) in line
    # vLLM reads all its variables by this one.
    if name != "environment_variables":
        assert len(warnings) == len(parts)


def missing_from(module: Any, lacks: str) -> Any:
    """Returns a module's __getattr__ without one name."""
    before = getattr(module, "__getattr__", None)

    def getattribute(name: str) -> Any:
        if name == lacks or before is None:
            raise AttributeError(name)
        return before(name)

    return getattribute


def failing(*given: Any, **named: Any) -> Any:
    raise KeyError("a fault of genkern's")


def one_warning(caplog: pytest.LogCaptureFixture) -> str:
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "a fault of genkern's" in warning
    return warning


def test_a_linear_layer_whose_winner_fails_is_vllms(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, launched: Any
) -> None:
    """Its result is PyTorch's, a warning says so once, and winners are not asked again."""
    from genkern.engines.products import WIDE
    from genkern.runtime.process.torch_ops import gemm_of

    monkeypatch.setattr(gemm_of(WIDE), "direct", failing, raising=False)
    model = torch.nn.ModuleDict({"one": layer(), "other": layer()})
    assert plugin.mark(model).layers == 2
    x = torch.randn(16, K).bfloat16()
    for _ in range(2):
        for each in model.values():
            assert torch.equal(each(x), torch.nn.functional.linear(x, each.weight))
    assert launched() == 0
    one_warning(caplog)


def test_an_fp8_layer_whose_winner_fails_is_vllms(
    fp8: Fp8, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, launched: Any
) -> None:
    """As one in 16 bits."""
    plugin.mark(fp8.module)
    monkeypatch.setattr("genkern.engines.winner_or_own.has_winner", failing)
    for _ in range(2):
        out, _ = fp8(16)
        assert torch.equal(out, torch.full((16, N), 7.0).bfloat16())
    assert (launched(), fp8.calls) == (0, [16, 16])
    one_warning(caplog)


def test_experts_whose_winners_fail_are_vllms(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, launched: Any
) -> None:
    """What vLLM's kernel returns is returned, and nothing was written before it ran."""
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

    def own(self: Any, output: Any, *given: Any, **named: Any) -> None:
        assert (output == 0).all()
        output.fill_(3)

    monkeypatch.setattr(TritonExperts, "apply", functools.wraps(hooks.unhooked(TritonExperts.apply))(own))
    plugin.register()
    monkeypatch.setattr("genkern.engines.experts.by_winners", failing)
    kernel, named, output = experts(16)
    assert kernel.apply(**named) is None
    assert (output == 3).all()
    output.zero_()
    kernel.apply(**named)
    one_warning(caplog)
    # Another layer's kernels are asked: it is switched off by itself.
    caplog.clear()
    kernel, named, output = experts(16)
    kernel.apply(**named)
    one_warning(caplog)
    assert launched() == 0


def test_batch_invariant_products_that_fail_are_vllms(
    monkeypatch: pytest.MonkeyPatch, launched: Any, mode: Any
) -> None:
    """Of any exception, whether a product by that weight was served before or not."""
    from genkern.engines import invariant

    module, calls = invariant_module(), []
    for name, weight in (("matmul_persistent", torch.randn(K, N)), ("bmm_batch_invariant", torch.randn(3, K, N))):
        own = lambda a, b, *more, **named: calls.append(a.shape) or a @ b  # noqa: E731
        monkeypatch.setitem(invariant._engines, name, own)
        x = torch.randn(*weight.shape[:-2], 16, K).bfloat16()
        function = getattr(module, name)
        function(x, weight.bfloat16())
        with monkeypatch.context() as patch:
            patch.setattr("genkern.engines.invariant.gemm_of", failing)
            torch.testing.assert_close(function(x, weight.bfloat16()), x @ weight.bfloat16())
    assert len(calls) == 2


def invariant_module() -> Any:
    for path in plugin._INVARIANT:
        try:
            return hooks.resolved(path)
        except (hooks.IncompatibleEngine, ImportError):
            continue
    raise AssertionError("vLLM has no module of batch-invariant products")


def test_a_model_that_cannot_be_read_is_vllms(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A layer at which the plugin fails, and a whole model: loading goes on."""
    model = torch.nn.ModuleDict({"strange": layer(), "plain": layer()})
    monkeypatch.setattr(type(model["strange"]), "quant_method", property(failing), raising=False)
    caplog.clear()
    assert plugin.mark(model).layers in (0, 1)
    one_warning(caplog)
    caplog.clear()
    monkeypatch.setattr("genkern.engines.layers.mark", failing)
    loaded = plugin._load(lambda self, **named: model)(SimpleNamespace(), vllm_config=None, model_config=None)
    assert loaded is model
    one_warning(caplog)


def test_a_key_that_cannot_be_made_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle that cannot be read, for example: vLLM's key says that it is unknown."""
    monkeypatch.setattr(envs, "environment_variables", dict(envs.environment_variables))
    envs.environment_variables.pop(plugin._VARIABLE)
    monkeypatch.setattr(plugin, "digest", failing)
    plugin.register()
    assert envs.environment_variables[plugin._VARIABLE]() == "unknown"


def on_device(monkeypatch: pytest.MonkeyPatch, name: str, *modules: Any) -> None:
    """Lets vLLM look for the configs of a device; releases before 0.29 ask the platform for its name."""
    for module in modules:
        if hasattr(module, "get_device_name_as_file_name"):
            monkeypatch.setattr(module, "get_device_name_as_file_name", lambda: name)
    monkeypatch.setattr(
        type(current_platform), "get_device_name", classmethod(lambda cls, index=0: name), raising=False
    )


def test_exported_files_are_read_by_vllms_own_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Block-scaled products and experts: each M's config comes back as it was tuned."""
    from exported_files import exported
    from vllm.model_executor.layers.fused_moe import fused_moe
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    files = exported("vllm", tmp_path / "configs")
    assert {name[:1] for name in files} == {"N", "E"}
    on_device(monkeypatch, "NVIDIA_H200", fp8_utils, fused_moe)
    monkeypatch.setattr(fp8_utils, "__file__", str(tmp_path / "fp8_utils.py"))
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path / "configs"))
    fp8_utils.get_w8a8_block_fp8_configs.cache_clear()
    fused_moe.get_moe_configs.cache_clear()
    dense = fp8_utils.get_w8a8_block_fp8_configs(4096, 7168, 128, 128)
    of_experts = fused_moe.get_moe_configs(256, 256, "fp8_w8a8", 128, 128)
    written = [{int(m): values for m, values in json.loads(text).items()} for text in files.values()]
    assert dense in written
    assert of_experts in written
    assert set(dense) == set(of_experts) == {1, 64, 4096}


def test_shipped_winners_are_read_by_vllms_own_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every size with scales of blocks and of experts, but those that `export` refuses by name."""
    from exported_files import NOT_WRITTEN, exported_of, speaks_of
    from vllm.model_executor.layers.fused_moe import fused_moe
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    files, sizes = exported_of("vllm", tmp_path / "configs", H100_RESULTS)
    assert sizes == speaks_of(H100_RESULTS) - NOT_WRITTEN >= 50
    on_device(monkeypatch, "NVIDIA_H100_80GB_HBM3", fp8_utils, fused_moe)
    monkeypatch.setattr(fp8_utils, "__file__", str(tmp_path / "fp8_utils.py"))
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path / "configs"))
    fp8_utils.get_w8a8_block_fp8_configs.cache_clear()
    fused_moe.get_moe_configs.cache_clear()
    for name, written in files.items():
        one, other = (int(each) for each in re.findall(r"[NKE]=(\d+)", name))
        in_blocks = (128, 128) if "block_shape" in name else ()
        if name.startswith("N"):
            assert fp8_utils.get_w8a8_block_fp8_configs(one, other, *in_blocks) == written
        else:
            dtype = "fp8_w8a8" if in_blocks else None
            assert fused_moe.get_moe_configs(one, other, dtype, *in_blocks) == written
