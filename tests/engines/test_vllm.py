"""Tests of genkern.engines.vllm against the real vLLM 0.33 (make test-engines), on a machine without a GPU."""

from __future__ import annotations

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

from genkern.engines import layers, seam, vllm_fp8
from genkern.engines import vllm as plugin
from genkern.engines.seam import Misfit

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
    around = base_loader.BaseModelLoader.load_model
    before = getattr(around, seam._MARK)
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
    monkeypatch.setattr("genkern.runtime.process.shipped.FOLDER", tmp_path)
    for named in ("shipped", "~/own.genkern"):
        monkeypatch.setenv("GENKERN_CONFIG", named)
        found = set()
        for text in (b"a bundle", b"another"):
            (tmp_path / "own.genkern").write_bytes(text)
            plugin.digest.cache_clear()
            found.add(plugin.digest())
        assert len(found) == 2
    plugin.digest.cache_clear()


@pytest.mark.parametrize(
    ("of_x", "of_weight"),
    [
        ("kFp8DynamicTokenSym", "kFp8StaticTensorSym"),
        ("kFp8DynamicTokenSym", "kFp8StaticChannelSym"),
        ("kFp8StaticTensorSym", "kFp8StaticTensorSym"),
        ("kFp8Dynamic128Sym", "kFp8Static128BlockSym"),
    ],
)
def test_fp8_layers_have_genkerns_kernel(of_x: str, of_weight: str, cuda: None, launched: Any) -> None:
    """vLLM chooses it for a layer with winners, and another for one without; its products are launched."""
    from vllm.model_executor.layers.quantization.utils import quant_utils

    keys = {
        "activation_quant_key": getattr(quant_utils, of_x),
        "weight_quant_key": getattr(quant_utils, of_weight),
        "input_dtype": torch.bfloat16,
        "out_dtype": torch.bfloat16,
    }
    kernel = kernels.init_fp8_linear_kernel(weight_shape=(N, K), **keys)
    assert type(kernel).__name__.startswith("Genkern")
    assert kernel.genkern_tuned == (1, 16, 64)
    blocks = "Block" in of_weight
    module, weight = torch.nn.Module(), torch.randn(N, K).to(torch.float8_e4m3fn)
    count = (N // 128, K // 128) if blocks else (N, 1) if "Channel" in of_weight else ()
    module.weight = torch.nn.Parameter(weight if blocks else weight.t(), requires_grad=False)
    scale = torch.nn.Parameter(torch.ones(count), requires_grad=False)
    setattr(module, "weight_scale_inv" if blocks else "weight_scale", scale)
    module.input_scale = torch.ones(()) if "Static" in of_x else None
    if blocks:
        module.weight_block_size = [128, 128]
    kernel.process_weights_after_loading(module)
    x = torch.randn(16, K).bfloat16()
    out = kernel.apply_weights(module, x)
    assert (out.shape, out.dtype, launched()) == ((16, N), torch.bfloat16, 1)
    # What computes here knows no scales: as if all were 1.
    rows, *_ = kernel.quant_fp8(x, module.input_scale, None)
    torch.testing.assert_close(out, (rows.float() @ weight.float().T).bfloat16(), rtol=0.02, atol=1.0)
    if not blocks:
        kind = kernels._POSSIBLE_FP8_KERNELS[PlatformEnum.CUDA][0]
        can, _ = kind.can_implement(kernels.FP8ScaledMMLinearLayerConfig(weight_shape=(N, 2 * K), **keys))
        assert not can


def test_at_other_m_vllms_own_kernel_is_called(cuda: None, launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """That which it would have chosen, with its own quantisation; for all M where it lays a weight out anew."""
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
    from vllm.model_executor.layers.quantization.utils import quant_utils

    calls = []

    class Own:
        use_triton = False
        quant_fp8 = QuantFP8(static=False, group_shape=quant_utils.GroupShape(1, 128), use_ue8m0=False)

        def process_weights_after_loading(self, layer: Any) -> None:
            if getattr(layer, "is_bmm", False):
                layer.weight_scale_inv.data = layer.weight_scale_inv.data.expand(2, 4)

        def apply_block_scaled_mm(self, A: Any, B: Any, As: Any, Bs: Any) -> Any:
            calls.append(tuple(A.shape))
            return torch.zeros(A.shape[0], N).bfloat16()

    monkeypatch.setattr(vllm_fp8, "_vllms_own", lambda *given: Own())
    keys = {
        "activation_quant_key": quant_utils.kFp8Dynamic128Sym,
        "weight_quant_key": quant_utils.kFp8Static128BlockSym,
        "input_dtype": torch.bfloat16,
        "out_dtype": torch.bfloat16,
    }
    for is_bmm in (False, True):
        kernel = kernels.init_fp8_linear_kernel(weight_shape=(N, K), **keys)
        module = torch.nn.Module()
        module.is_bmm, module.weight_block_size = is_bmm, [128, 128]
        module.weight = torch.nn.Parameter(torch.randn(N, K).to(torch.float8_e4m3fn), requires_grad=False)
        module.weight_scale_inv = torch.nn.Parameter(torch.ones(2, 1), requires_grad=False)
        kernel.process_weights_after_loading(module)
        assert kernel.genkern_tuned == (() if is_bmm else (1, 16, 64))
        for rows in (16, 5000):
            kernel.apply_weights(module, torch.randn(rows, K).bfloat16())
            assert launched() == int(rows == 16 and not is_bmm)
    assert calls == [(5000, K), (16, K), (5000, K)]


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
    from vllm.model_executor.determinism import batch_invariant

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
    with pytest.raises(Misfit, match=r"apply takes \(self, module, given\)"):
        plugin._linears()
    caplog.clear()
    with caplog.at_level(logging.INFO, "genkern"):
        plugin.register()
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "16-bit linear layers without genkern" in warning.getMessage()
    assert linear.UnquantizedLinearMethod().apply(None, 3) == 3


def test_exported_files_are_read_by_vllms_own_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Block-scaled products and experts: each M's config comes back as it was tuned."""
    from exported_files import exported
    from vllm.model_executor.layers.fused_moe import fused_moe
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    files = exported("vllm", tmp_path / "configs")
    assert {name[:1] for name in files} == {"N", "E"}
    for module in (fp8_utils, fused_moe):
        monkeypatch.setattr(module, "get_device_name_as_file_name", lambda: "NVIDIA_H200")
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
    for module in (fp8_utils, fused_moe):
        monkeypatch.setattr(module, "get_device_name_as_file_name", lambda: "NVIDIA_H100_80GB_HBM3")
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


def test_fp8_kernels_are_put_in_together_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vLLM keeps one of the lists otherwise the other stays as it is."""
    from vllm.model_executor.kernels import linear as kernels
    from vllm.platforms import PlatformEnum

    from genkern.engines import vllm_fp8

    monkeypatch.setitem(kernels._POSSIBLE_FP8_KERNELS, PlatformEnum.CUDA, scaled := [])
    monkeypatch.setitem(kernels._POSSIBLE_FP8_BLOCK_KERNELS, PlatformEnum.CUDA, ())
    with pytest.raises(seam.Misfit, match="other lists"):
        vllm_fp8.kernels()
    assert scaled == []
