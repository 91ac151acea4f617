"""Libraries that people train with, themselves: their trainers run a compiled module and give what eager gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of

STRICT = {"strict": True}


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))


def batches(n: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    make = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 8, generator=make), torch.randint(0, 2, (4,), generator=make)) for _ in range(n)]


def same(a: nn.Module, b: nn.Module) -> None:
    for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def compiled_once(fast: Any) -> None:
    log = log_of(fast)
    assert log is not None and log.graphs and not any(g.fallback for g in log.graphs), log


class Classifier(nn.Module):
    """A module of the form that transformers' Trainer takes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def train_hf(model: nn.Module, folder: Path) -> nn.Module:
    from transformers import Trainer, TrainingArguments

    rows = [{"x": x[0], "labels": y[0]} for x, y in batches(16)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    return model


def test_transformers_trainer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    eager = train_hf(Classifier(), tmp_path)
    fast = braze.compile(Classifier(), options=STRICT)
    train_hf(fast, tmp_path)
    compiled_once(fast)
    same(fast, eager)


def test_bert_in_the_trainer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=100,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    rows = [{"input_ids": torch.arange(12) + k, "labels": torch.tensor(k % 2)} for k in range(16)]

    def run(compiled: bool) -> nn.Module:
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
        model = braze.compile(model, options=STRICT) if compiled else model
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=3, report_to=[], use_cpu=True, save_strategy="no"
        )
        transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
        return model

    fast = run(True)
    compiled_once(fast)
    same(fast, run(False))
    fast.save_pretrained(tmp_path / "saved")
    same(transformers.BertForSequenceClassification.from_pretrained(tmp_path / "saved"), fast)


@pytest.mark.parametrize("wrap_first", [False, True])
def test_accelerate(wrap_first: bool) -> None:
    accelerate = pytest.importorskip("accelerate")

    def run(compiled: bool) -> tuple[nn.Module, Any]:
        accelerator = accelerate.Accelerator(cpu=True)
        model = small()
        fast = braze.compile(model, options=STRICT) if compiled and not wrap_first else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        fast, optimizer = accelerator.prepare(fast, optimizer)
        if compiled and wrap_first:
            fast = braze.compile(fast, options=STRICT)
        for x, y in batches():
            accelerator.backward(nn.functional.cross_entropy(fast(x), y))
            optimizer.step()
            optimizer.zero_grad()
        return accelerator.unwrap_model(fast), fast

    model, fast = run(True)
    compiled_once(fast)
    same(model, run(False)[0])


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def run(net: nn.Module) -> None:
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(Module(net), torch.utils.data.DataLoader(batches(), batch_size=None))

    eager, model = small(), small()
    fast = braze.compile(model, options=STRICT)
    run(eager)
    run(fast)
    compiled_once(fast)
    same(fast, eager)


@pytest.mark.parametrize("name", ["resnet18", pytest.param("vit_tiny_patch16_224", marks=pytest.mark.slow)])
def test_timm(name: str) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=5).eval()
    fast = braze.compile(model, options=STRICT)
    x = torch.randn(1, *model.default_cfg["input_size"])
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
    compiled_once(fast)
