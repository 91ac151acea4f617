"""CPU models: eager against braze and torch.compile, training and inference.

    python benchmarks/cpu_models.py [--threads 2] [--only "resnet18 train"] [--kind infer] [--peer FILE] [--out FILE]

Models of torchvision, timm and transformers with random weights and small inputs, float32.  "train" is forward, loss
and backward of a module in training mode; "infer" the forward of one in evaluation mode without gradients.  Figures are
medians in microseconds.  How they are measured: ``cpu_measure``.  The column "error" compares losses or outputs, where
nothing is random.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from cpu_measure import Entry, run

Made = tuple[torch.nn.Module, tuple[Any, ...]]
BATCH, SIDE, TOKENS = 4, 64, 32


def vision(name: str, side: int = SIDE, **kwargs: Any) -> Callable[[], Made]:
    def make() -> Made:
        import torchvision

        return torchvision.models.get_model(name, **kwargs), (torch.randn(BATCH, 3, side, side),)

    return make


def timm_model(name: str, side: int = SIDE, **kwargs: Any) -> Callable[[], Made]:
    def make() -> Made:
        import timm

        return timm.create_model(name, **kwargs), (torch.randn(BATCH, 3, side, side),)

    return make


def language(model: str, config: str, **kwargs: Any) -> Callable[[], Made]:
    def make() -> Made:
        import transformers

        settings = getattr(transformers, config)(**kwargs)
        made = getattr(transformers, model)(settings)
        ids = torch.randint(0, min(1000, settings.vocab_size), (BATCH, TOKENS))
        return made, (ids, ids) if "T5" in model else (ids,)

    return make


SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
GPT = {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 8000}
MODELS: dict[str, Callable[[], Made]] = {
    "resnet18": vision("resnet18"),
    "resnet50": vision("resnet50"),
    "mobilenet_v2": vision("mobilenet_v2"),
    "mobilenet_v3_small": vision("mobilenet_v3_small"),
    "efficientnet_b0": vision("efficientnet_b0"),
    "densenet121": vision("densenet121"),
    "vgg11_bn": vision("vgg11_bn"),
    "squeezenet1_1": vision("squeezenet1_1"),
    "shufflenet_v2": vision("shufflenet_v2_x1_0"),
    "regnet_y_400mf": vision("regnet_y_400mf"),
    "convnext_tiny": vision("convnext_tiny"),
    "swin_t": vision("swin_t"),
    "vit_tiny": timm_model("vit_tiny_patch16_224", img_size=SIDE),
    "mixer_s": timm_model("mixer_s16_224", img_size=SIDE),
    "resmlp_12": timm_model("resmlp_12_224", img_size=SIDE),
    "poolformer_s12": timm_model("poolformer_s12"),
    "ghostnet": timm_model("ghostnet_100"),
    "convmixer": timm_model("convmixer_768_32"),
    "mobilevit_xs": timm_model("mobilevit_xs"),
    "bert": language("BertForSequenceClassification", "BertConfig", **SMALL),
    "distilbert": language(
        "DistilBertForSequenceClassification", "DistilBertConfig", dim=256, n_layers=4, n_heads=4, hidden_dim=1024
    ),
    "roberta": language("RobertaForSequenceClassification", "RobertaConfig", **SMALL),
    "albert": language("AlbertForSequenceClassification", "AlbertConfig", embedding_size=128, **SMALL),
    "electra": language("ElectraForSequenceClassification", "ElectraConfig", **SMALL),
    "gpt2": language("GPT2LMHeadModel", "GPT2Config", **GPT),
    "opt": language(
        "OPTForCausalLM",
        "OPTConfig",
        vocab_size=8000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        ffn_dim=1024,
        word_embed_proj_dim=256,
    ),
    "llama": language("LlamaForCausalLM", "LlamaConfig", vocab_size=8000, **SMALL),
    "t5": language(
        "T5ForConditionalGeneration", "T5Config", vocab_size=8000, d_model=256, d_ff=1024, num_layers=4, num_heads=4
    ),
}


def call(model: Any, inputs: tuple[Any, ...]) -> torch.Tensor:
    out = model(inputs[0], decoder_input_ids=inputs[1]) if len(inputs) == 2 else model(*inputs)
    return out if isinstance(out, torch.Tensor) else out.logits  # type: ignore[no-any-return]


def loss_of(out: torch.Tensor) -> torch.Tensor:
    flat = out.reshape(-1, out.shape[-1])
    return F.cross_entropy(flat, torch.arange(flat.shape[0]) % flat.shape[-1])


def train(model: torch.nn.Module, compiled: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """One step without the optimizer: loss and all gradients."""

    def step() -> Any:
        for p in model.parameters():
            p.grad = None
        loss = loss_of(call(compiled, inputs))
        loss.backward()  # type: ignore[no-untyped-call]
        return (loss,)

    return step


def make(name: str) -> Entry:
    model_name, what = name.rsplit(" ", 1)
    model, inputs = MODELS[model_name]()
    if what == "train":
        model.train()
        other = copy.deepcopy(model)
        return Entry(train(model, model, inputs), lambda compiler: train(other, compiler(other), inputs))
    model.eval()

    def infer(m: Any) -> Callable[[], Any]:
        def forward() -> Any:
            with torch.no_grad():
                return call(m, inputs)

        return forward

    return Entry(infer(model), lambda compiler: infer(compiler(model)))


if __name__ == "__main__":
    run(make, {what: [f"{name} {what}" for name in MODELS] for what in ("train", "infer")}, __doc__)
