"""Tests of genkern.engines.sglang against a real SGLang (make test-engines), on a machine without a GPU."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import no_torchvision
import pytest
import torch
from engine_winners import K, N

from genkern.engines import hooks, winner_or_own
from genkern.engines import sglang as plugin

no_torchvision.stand_in()
pytest.importorskip("sglang")
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe  # noqa: E402
from sglang.srt.layers.quantization import fp8_utils, unquant  # noqa: E402
from sglang.srt.plugins import hook_registry  # noqa: E402

PARTS = "16-bit linear layers", "fp8 linear layers", "experts", "batch-invariant products"


@pytest.fixture(autouse=True)
def plugged(gpu: Any, caplog: pytest.LogCaptureFixture) -> None:
    """SGLang with the plugin, as its load_plugins() leaves it."""
    with caplog.at_level(logging.INFO, "genkern"):
        plugin.register()
    hook_registry.HookRegistry.apply_hooks()
    plugin._known.clear()
    plugin._expert_calls.clear()


class Layer(torch.nn.Module):
    """As SGLang's LinearBase is, for its method: a weight, and whether its bias is added elsewhere."""

    def __init__(self, n: int = N, k: int = K) -> None:
        super().__init__()
        self.quant_method = unquant.UnquantizedLinearMethod()
        self.quant_method.create_weights(self, k, [n], k, n, torch.bfloat16)
        torch.nn.init.normal_(self.weight.data, std=0.5)
        self.bias, self.skip_bias_add = None, False

    def forward(self, x: Any) -> Any:
        return self.quant_method.apply(self, x, self.bias)


def test_every_part_fits_this_sglang(caplog: pytest.LogCaptureFixture) -> None:
    """All hooks exist with the arguments that they are given; again changes nothing; SGLang finds the plugin itself."""
    before, hooks = unquant.UnquantizedLinearMethod.apply, {k: len(v) for k, v in hooks_of().items()}
    caplog.clear()
    with caplog.at_level(logging.INFO, "genkern"):
        plugin.register()
    hook_registry.HookRegistry.apply_hooks()
    assert unquant.UnquantizedLinearMethod.apply is before
    assert {k: len(v) for k, v in hooks_of().items()} == hooks
    assert set(hooks.values()) == {1}
    assert set(hooks) <= hook_registry.HookRegistry._patched
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert all(part in caplog.text for part in PARTS)
    from sglang.srt.plugins import GENERAL_PLUGINS_GROUP, load_plugins_by_group

    function, _ = load_plugins_by_group(GENERAL_PLUGINS_GROUP)["genkern"]
    assert function is plugin.register


def hooks_of() -> dict[str, Any]:
    """Those of genkern."""
    return {
        target: hooks for target, hooks in hook_registry.HookRegistry._hooks.items() if target in plugin._registered
    }


def test_layers_of_a_loaded_model_call_winners(launched: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Those with winners, by M, also traced; the others are SGLang's; a line says what share that is."""
    model = torch.nn.ModuleDict({"tuned": Layer(), "other": Layer(n=2 * N)})
    runner = SimpleNamespace(model=None)

    def load(self: Any) -> None:
        self.model = model

    with caplog.at_level(logging.INFO, "genkern"):
        plugin.load_model(load, runner)
    assert "1 of 2 layers, 33.3 %" in caplog.text
    program = torch.compile(model["tuned"], dynamic=True, fullgraph=True, backend="eager")
    for name, called in (("tuned", model["tuned"]), ("tuned", program), ("other", model["other"])):
        for rows in (16, 64, 5000):
            x = torch.randn(rows, K).bfloat16()
            torch.testing.assert_close(called(x), x @ model[name].weight.T, rtol=0.02, atol=0.1)
            assert launched() == int(name == "tuned" and rows < 5000)
    torch._dynamo.reset()


def test_fp8_layers_call_winners(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales of blocks through what SGLang dispatches to, of rows and of all through apply_fp8_linear; quantised by
    SGLang's own functions, here stand-ins of its CUDA kernels.
    """
    fp8 = torch.float8_e4m3fn

    def quantised(x: Any, *given: Any, **named: Any) -> Any:
        scale = torch.ones(x.shape[0], K // 128) if named.get("column_major_scales") else torch.ones(x.shape[0], 1)
        return x.to(fp8), given[0] if "repeat_scale" in named else scale

    for name in ("per_token_group_quant_fp8", "sglang_per_token_quant_fp8", "static_quant_fp8"):
        assert callable(getattr(fp8_utils, name, quantised))
        monkeypatch.setattr(fp8_utils, name, quantised, raising=False)
    x, weight = torch.randn(16, K).bfloat16(), torch.randn(N, K).to(fp8)
    wanted = (x.to(fp8).float() @ weight.float().T).bfloat16()
    calls = []

    def own(x: Any, *given: Any, **named: Any) -> Any:
        calls.append(x.shape)
        return torch.zeros(x.shape[0], N).bfloat16()

    linear = plugin.block_linear(lambda *given: own, None)
    for call in (
        lambda: linear(x, weight, [128, 128], torch.ones(N // 128, K // 128)),
        lambda: fp8_utils.apply_fp8_linear(x, weight.t(), torch.ones(N, 1)),
        lambda: fp8_utils.apply_fp8_linear(x, weight.t(), torch.ones(1), input_scale=torch.ones(1)),
    ):
        torch.testing.assert_close(call(), wanted, rtol=0.02, atol=1.0)
        assert launched() == 1
    # Other blocks, and x that is quantised already, are SGLang's.
    linear(x, weight, [64, 128], torch.ones(N // 64, K // 128))
    linear(x, weight, [128, 128], torch.ones(N // 128, K // 128), torch.ones(16, 1))
    linear(torch.randn(16, 2 * K).bfloat16(), torch.randn(N, 2 * K).to(fp8), [128, 128], torch.ones(N // 128, 2))
    assert (len(calls), launched()) == (3, 0)
    # At an M without a winner too, which is looked at when the call runs.
    program = torch.compile(lambda x: linear(x, weight, [128, 128], torch.ones(2, 1)), dynamic=True, backend="eager")
    for rows, launches in ((16, 1), (64, 1), (5000, 0)):
        program(torch.randn(rows, K).bfloat16())
        assert launched() == launches
    assert calls[3:] == [(5000, K)]
    torch._dynamo.reset()


def test_at_an_m_without_a_winner_a_layers_flags_are_its_own(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it gives, by name or place, or SGLang's; what genkern does not compute alike is SGLang's for all M."""
    fp8, calls = torch.float8_e4m3fn, []

    def library(
        input: Any,
        weight: Any,
        weight_scale: Any,
        input_scale: Any = None,
        input_scale_ub: Any = None,
        bias: Any = None,
        cutlass_fp8_supported: bool = True,
        use_per_token_if_dynamic: bool = False,
        pad_output: bool | None = None,
        compressed_tensor_quant: bool = False,
        pre_quant_output_dtype: Any = None,
    ) -> Any:
        calls.append((cutlass_fp8_supported, use_per_token_if_dynamic, pad_output, compressed_tensor_quant))
        return torch.zeros(input.shape[0], N).bfloat16()

    utils = SimpleNamespace(
        apply_fp8_linear=library, sglang_per_token_quant_fp8=lambda x: (x.to(fp8), torch.ones(x.shape[0], 1))
    )
    mode = SimpleNamespace(is_batch_invariant_mode_enabled=lambda: False)
    for name, value in {"_utils": lambda: utils, "_find_mode": lambda: None, "_mode": mode}.items():
        monkeypatch.setattr(plugin, name, value)
    for name, value in {"_around": lambda hooks: None, "_scaled": {}, "_usual": {}, "_known": {}}.items():
        monkeypatch.setattr(plugin, name, value)
    winner_or_own._calls.clear()
    plugin._float8()
    weight = torch.randn(N, K).to(fp8).t()

    def call(rows: int, *more: Any, **named: Any) -> None:
        x = torch.randn(rows, K).bfloat16()
        plugin.scaled_linear(library, x, weight, torch.ones(N, 1), None, None, None, *more, **named)

    compressed = {"use_per_token_if_dynamic": True, "compressed_tensor_quant": True}
    cases: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = [
        ((), {}, (True, False, None, False)),
        ((), compressed, (True, True, None, True)),
        ((False, True), {"pad_output": False}, (False, True, False, False)),
    ]
    for more, named, flags in cases:
        call(16, *more, **named)
        assert (launched(), calls) == (1, [])
        call(5000, *more, **named)
        assert (launched(), calls.pop()) == (0, flags)
    for other in ({"compressed_tensor_quant": True}, {"pre_quant_output_dtype": torch.bfloat16}):
        call(16, **other)
        assert (launched(), len(calls)) == (0, 1)
        calls.clear()
    # Traced, too.
    scale = torch.ones(N, 1)
    program = torch.compile(
        lambda x: plugin.scaled_linear(library, x, weight, scale, **compressed),
        dynamic=True,
        fullgraph=True,
        backend="eager",
    )
    for rows, launches, called in ((16, 1, []), (5000, 0, [(True, True, None, True)])):
        program(torch.randn(rows, K).bfloat16())
        assert (launched(), calls) == (launches, called)
    torch._dynamo.reset()


def failing(*given: Any, **named: Any) -> Any:
    raise KeyError("a fault of genkern's")


def one_warning(caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "a fault of genkern's" in warning


def test_layers_whose_winners_fail_are_sglangs(
    launched: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In 16 bits and in fp8: SGLang's own result, and a warning for each kind of layer, once."""
    from genkern.engines.products import WIDE
    from genkern.runtime.process.torch_ops import gemm_of

    module = Layer()
    plugin.mark(module)
    monkeypatch.setattr(gemm_of(WIDE), "direct", failing, raising=False)
    x = torch.randn(16, K).bfloat16()
    for _ in range(2):
        assert torch.equal(module(x), torch.nn.functional.linear(x, module.weight))
    one_warning(caplog)
    caplog.clear()
    own = lambda x, *given, **named: torch.ones(x.shape[0], N)  # noqa: E731
    weight = torch.randn(N, K).to(torch.float8_e4m3fn)
    linear = plugin.block_linear(lambda *given: own)
    monkeypatch.setattr(fp8_utils, "per_token_group_quant_fp8", failing, raising=False)
    for _ in range(2):
        assert torch.equal(linear(x, weight, [128, 128], torch.ones(N // 128, K // 128)), torch.ones(16, N))
    one_warning(caplog)
    assert launched() == 0
    # A search that fails, of a layer or of the whole model.
    caplog.clear()
    monkeypatch.setattr("genkern.engines.layers.mark", failing)
    runner = SimpleNamespace(model=module)
    assert plugin.load_model(lambda runner: 3, runner) == 3
    one_warning(caplog)


def test_experts_call_winners(launched: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In place or not, times the factor of the routing; other kinds of layers are SGLang's."""
    calls = []

    @functools.wraps(hooks.unhooked(fused_moe.fused_experts_impl))
    def before(*given: Any, **named: Any) -> str:
        calls.append(named)
        return "SGLang's"

    def given(rows: int, **named: Any) -> Any:
        x, ids = torch.randn(rows, K).bfloat16(), torch.randint(0, 8, (rows, 2), dtype=torch.int32)
        w1, w2 = torch.randn(8, 256, K).bfloat16(), torch.randn(8, K, 128).bfloat16()
        return plugin.fused_experts(before, x, w1, w2, torch.rand(rows, 2), ids, filter_expert=False, **named)

    assert given(16).shape == (16, K)
    assert launched() >= 2
    assert given(16, inplace=True, routed_scaling_factor=2.5).shape == (16, K)
    assert launched() >= 2
    for other in ({"activation": "gelu"}, {"gemm1_limit": 7.0}, {"no_combine": True}, {"b1": torch.ones(1)}):
        assert given(16, **other) == "SGLang's"
    assert given(5000) == "SGLang's"
    assert (launched(), len(calls)) == (0, 5)
    # Also if genkern fails: a warning says so once.
    monkeypatch.setattr("genkern.engines.experts.by_winners", failing)
    caplog.clear()
    assert [given(16), given(16)] == ["SGLang's"] * 2
    one_warning(caplog)


def test_batch_invariant_products_go_to_winners(launched: Any, mode: Any) -> None:
    """What SGLang's mode sends to batch_invariant_ops: mm, addmm and bmm."""
    from sglang.srt.batch_invariant_ops import batch_invariant_ops

    x, weight = torch.randn(16, K).bfloat16(), torch.randn(N, K).bfloat16()
    out = batch_invariant_ops.mm_batch_invariant(x, weight.t())
    torch.testing.assert_close(out, x @ weight.T, rtol=0.02, atol=0.1)
    batch_invariant_ops.addmm_batch_invariant(torch.zeros(N).bfloat16(), x, weight.t())
    batch_invariant_ops.bmm_batch_invariant(torch.randn(3, 16, K).bfloat16(), torch.randn(3, N, K).bfloat16().mT)
    assert (launched(), mode.entered) == (3, 3)


def test_in_the_mode_of_equal_bits_no_other_winner_is_called(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marked layer, and one in fp8, go SGLang's way, which ends in what was replaced."""
    module = Layer()
    plugin.mark(module)
    monkeypatch.setattr(plugin._mode, "_batch_invariant_MODE", True)
    module(torch.randn(16, K).bfloat16())
    assert not plugin._serves(weight := torch.zeros(N, K).to(torch.float8_e4m3fn), weight, torch.bfloat16, "")
    assert launched() == 0


TOUCHES = {
    (touch.path, what): touch for part in plugin.parts() for touch in part.touches for what in ("path", *touch.fields)
}


@pytest.mark.parametrize(("path", "what"), TOUCHES, ids=lambda each: each.rpartition(".")[2])
def test_what_sglang_lacks_costs_a_part_and_a_line(
    path: str, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attribute that the plugin touches, removed: no exception, no hook, and a line for each part with it."""
    owner_path, _, name = path.rpartition(".")
    owner = hooks.resolved(owner_path)
    if what == "path" and not isinstance(owner, type):
        monkeypatch.delattr(owner, name)
    else:
        kind_path = owner_path if what == "path" else path
        missing = name if what == "path" else what
        kind, (module, _, kind_name) = hooks.resolved(kind_path), kind_path.rpartition(".")
        names = {each for base in kind.__mro__ for each in vars(base) if not each.startswith("__")} - {missing}
        members = {each: inspect.getattr_static(kind, each, None) for each in names}
        monkeypatch.setattr(hooks.resolved(module), kind_name, type(kind_name, (), members))
    monkeypatch.setattr(plugin, "_registered", set())
    registered = []
    monkeypatch.setattr(plugin, "_around", lambda hooks: registered.extend(hooks))
    caplog.clear()
    with caplog.at_level(logging.INFO, "genkern"):
        plugin.register()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    parts = [part.serves for part in plugin.parts() if any(touch.path == path for touch in part.touches)]
    assert len(warnings) == len(parts) >= 1
    for part, line in zip(parts, warnings, strict=True):
        assert f" {part} without genkern" in line
        assert (name if what == "path" else what) in line
    assert path not in registered


def readers(monkeypatch: pytest.MonkeyPatch, folder: Path, device: str) -> tuple[Any, Any]:
    """SGLang's own, of products and of experts, of the files that were written into this folder for that device."""
    import triton
    from sglang.kernels.ops.gemm import fp8_kernel
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config as moe

    for module in (fp8_kernel, moe):
        monkeypatch.setattr(module, "get_device_name", lambda *given: device)
    monkeypatch.setattr(fp8_kernel, "__file__", str(folder.parent / "fp8_kernel.py"))
    getattr(fp8_kernel.get_w8a8_block_fp8_configs, "cache_clear", lambda: None)()
    of_triton = folder / f"triton_{triton.__version__.replace('.', '_')}"
    of_triton.mkdir()
    for path in folder.glob("E=*"):
        path.rename(of_triton / path.name)
    monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(folder.parent))
    exec_of = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
    monkeypatch.setattr(moe, "get_exec", lambda: exec_of)
    moe.get_moe_configs.cache_clear()
    return fp8_kernel.get_w8a8_block_fp8_configs, moe.get_moe_configs


def test_exported_files_are_read_by_sglangs_own_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Block-scaled products and experts, both of whose products take one file: each M's config as it was tuned."""
    from exported_files import exported

    files = exported("sglang", tmp_path / "configs")
    written = {name[0]: {int(m): values for m, values in json.loads(text).items()} for name, text in files.items()}
    assert set(written) == {"N", "E"}
    of_products, of_experts = readers(monkeypatch, tmp_path / "configs", "NVIDIA H200")
    assert of_products(4096, 7168, 128, 128) == written["N"]
    for down in (False, True):
        assert of_experts(256, 256, "fp8_w8a8", 128, 128, down_moe=down) == written["E"]


def test_shipped_winners_are_read_by_sglangs_own_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every size with scales of blocks and of experts, but those that `export` refuses by name."""
    from exported_files import NOT_WRITTEN, exported_of, speaks_of

    results = Path(__file__).parents[2] / "results" / "nvidia_h100"
    files, sizes = exported_of("sglang", tmp_path / "configs", results)
    assert sizes == speaks_of(results) - NOT_WRITTEN >= 50
    of_products, of_experts = readers(monkeypatch, tmp_path / "configs", "NVIDIA H100 80GB HBM3")
    for name, written in files.items():
        one, other = (int(each) for each in re.findall(r"[NKE]=(\d+)", name))
        if name.startswith("N"):
            assert of_products(one, other, 128, 128) == written
        elif "block_shape" in name:
            assert of_experts(one, other, "fp8_w8a8", 128, 128) == written
        else:
            assert of_experts(one, other, None, 0, 0) == written
