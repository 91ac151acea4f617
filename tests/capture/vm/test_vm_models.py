"""Whole models: one graph, eager's results, gradients and buffers; the time of capture."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
from torch import nn
from vm_harness import Log, compiled, same

from braze.capture import Captured, capture_frame


def call(model: Any, *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


def check_model(model: nn.Module, *args: Any, **kwargs: Any) -> Log:
    """One graph, no break; the same outputs, gradients and buffers as eager, from the same random numbers."""
    log = Log()
    runs = []
    for f in (call, compiled(call, log, fullgraph=True)):
        m = copy.deepcopy(model)
        torch.manual_seed(0)
        out = f(m, *args, **kwargs)
        loss = sum(v.float().square().mean() for v in tensors(out) if v.requires_grad)
        loss.backward()
        runs.append((out, {n: p.grad for n, p in m.named_parameters()}, dict(m.named_buffers())))
    for eager, ours in zip(*runs):
        assert same(ours, eager)
    assert len(log.graphs) == 1 and not log.breaks and not log.skips
    return log


def tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [t for x in tree for t in tensors(x)] if isinstance(tree, (list, tuple)) else []


def test_mlp():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 4)), nn.Flatten(0))
    log = check_model(model, torch.randn(3, 8))
    assert [n.target.__name__ for n in log.graphs[0].calls] == ["linear", "gelu", "dropout", "linear", "flatten"]


class Block(nn.Module):
    """A bit of everything that modules do."""

    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.table = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(2)])
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4))
        self.register_parameter("absent", None)
        self.calls = 0
        self.history: list[Any] = []

    def forward(self, x: torch.Tensor, mode: str = "a") -> dict[str, Any]:
        self.steps.add_(1)
        self.calls += 1
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        self.history.append(x.shape)
        for i, layer in enumerate(self.layers):
            x = layer(x) * self.scale + self.weights[i % len(self.weights)]
            if i == len(self.layers) - 1 and self.absent is None:
                x = self.table[mode](x)
        return {"x": x, "n": len(list(self.parameters())), "training": self.training, "names": list(self.table)}


def test_module_features():
    log = check_model(Block(), torch.randn(2, 4))
    assert len(log.graphs[0].inputs) == 1 + 6 + 2 + 2


def test_module_state_after_the_call():
    model, log = Block(), Log()
    f = compiled(call, log, fullgraph=True)
    x = torch.randn(2, 4)
    f(model, x)
    f(model, x, mode="b")
    assert model.calls == 2 and model.steps.item() == 2 and model.history == [x.shape] * 2
    assert "mean" in dict(model.named_buffers()) and model.mean.abs().sum() > 0


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.seen: list[Any] = []
        self.inner.register_forward_hook(lambda m, args, out: out * 2)
        self.inner.register_forward_pre_hook(lambda m, args: (args[0] + 1,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_hooks_run_inside_the_graph():
    check_model(Hooked(), torch.randn(2, 4))


def test_a_hook_added_later_fails_the_guards():
    from braze.capture.source import FrameValues

    model = nn.Sequential(nn.Linear(2, 2))
    x = torch.randn(1, 2)

    def f(m, x):
        return m(x)

    out = capture_frame(f.__code__, f, (model, x), compile_graph=lambda *a: None, fullgraph=True)
    assert isinstance(out, Captured)
    frame = FrameValues(f, (model, x))
    assert out.guards.explain_failure(frame) is None
    handle = model[0].register_forward_hook(lambda *a: None)
    assert "_forward_hooks" in (out.guards.explain_failure(frame) or "")
    handle.remove()
    assert out.guards.explain_failure(frame) is None
    model[0].forward = lambda x: x
    assert "forward" in (out.guards.explain_failure(frame) or "")


class Hybrid(nn.Module):
    """CNN stem, transformer body, gated head."""

    def __init__(self, d: int = 32, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, d, 3, 2, 1)
        )
        self.pos = nn.Parameter(torch.randn(1, 16, d) * 0.02)
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(
                d, heads, 4 * d, dropout=0.1, activation=nn.functional.gelu, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.gate, self.up, self.head = nn.Linear(d, 4 * d), nn.Linear(d, 4 * d), nn.Linear(4 * d, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2) + self.pos
        for layer in self.body:
            x = layer(x)
        x = x.mean(1)
        return self.head(nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("train", [True, False])
def test_hybrid(train):
    check_model(Hybrid().train(train), torch.randn(2, 3, 16, 16))


def test_hybrid_in_inference():
    model, x = Hybrid().eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.allclose(compiled(call, Log(), fullgraph=True)(model, x), model(x), atol=1e-5)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_torchvision(name):
    models = pytest.importorskip("torchvision.models")
    check_model(getattr(models, name)(num_classes=5).train(), torch.randn(2, 3, 32, 32))


def test_resnet50():
    models = pytest.importorskip("torchvision.models")
    check_model(models.resnet50(num_classes=5).train(), torch.randn(2, 3, 32, 32))


SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def bert(**changes: Any) -> nn.Module:
    t = pytest.importorskip("transformers")
    return t.BertForSequenceClassification(t.BertConfig(**SIZES, num_labels=3, **changes)).train()


IDS = torch.randint(0, 99, (2, 12), generator=torch.Generator().manual_seed(0))


def test_bert():
    log = check_model(bert(), IDS)
    assert log.captured[0].graph.calls


def test_bert_with_mask_labels_and_tuple_output():
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, 8:] = 0
    check_model(bert(), IDS, attention_mask=mask, labels=torch.tensor([0, 2]))
    check_model(bert(), IDS, return_dict=False)


def test_bert_with_recorded_outputs():
    """The hooks that record hidden states and attentions are there after a first call; they run inside the graph."""
    model = bert(attn_implementation="eager")
    model(IDS, output_attentions=True, output_hidden_states=True)
    check_model(model, IDS, output_attentions=True, output_hidden_states=True)


@pytest.mark.parametrize("name", ["GPT2", "Llama", "T5"])
def test_transformers(name):
    t = pytest.importorskip("transformers")
    gpt = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False}
    t5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "use_cache": False}
    config, cls = {
        "GPT2": (lambda: t.GPT2Config(**gpt, bos_token_id=0, eos_token_id=0), t.GPT2LMHeadModel),
        "Llama": (lambda: t.LlamaConfig(**SIZES, num_key_value_heads=2), t.LlamaForCausalLM),
        "T5": (lambda: t.T5Config(**t5, decoder_start_token_id=0), t.T5ForConditionalGeneration),
    }[name]
    check_model(cls(config()).train(), input_ids=IDS, labels=IDS)


def seconds_of_capture(layers: int) -> float:
    model, best = bert().__class__, 1e9
    config = pytest.importorskip("transformers").BertConfig(**{**SIZES, "num_hidden_layers": layers})
    model = model(config)
    for _ in range(3):
        start = time.process_time()
        slots = (model, (IDS,), {})
        out = capture_frame(call.__code__, call, slots, compile_graph=lambda *a: None, fullgraph=True)
        best = min(best, time.process_time() - start)
        assert isinstance(out, Captured)
    return best


def test_capture_time_is_linear_in_layers():
    a, b = seconds_of_capture(4), seconds_of_capture(16)
    assert b < 8 * a, (a, b)
