"""A compiled program as one Python module that runs alone: its imports, kernels, constants and the host function."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from braze.ir.printer import Names
from braze.runtime import host
from braze.runtime.cpu import Source
from braze.runtime.cuda_choice import Choice, Parts
from braze.runtime.cuda_group import TritonGroup
from braze.runtime.cuda_kernel import TritonKernel
from braze.runtime.spelling import spell

_LOADERS = {
    Source: "{name}, = load_kernels([{made}])",
    TritonKernel: "{name}, = load_kernels_cuda([{made}], torch.cuda.current_device())",
    TritonGroup: "{name} = load_group_cuda({made}, torch.cuda.current_device())",
}
_IMPORTS = {
    Source: "from braze.runtime.cpu import Source, load_kernels",
    TritonKernel: "from braze.runtime.cuda import load_kernels_cuda\n"
    "from braze.runtime.cuda_kernel import GridDim, Launch, TritonKernel",
    TritonGroup: "from braze.runtime.cuda_group import TritonGroup, load_group_cuda\n"
    "from braze.runtime.cuda_kernel import GridDim, Launch, TritonKernel",
}
Code = Source | TritonKernel | TritonGroup


def script(source: str, made: Mapping[str, Code], objects: Mapping[str, Any]) -> str:
    """``source`` with everything that it names. An object without a spelling is a name that the reader has to set: the
    module says so and raises NameError where it is used."""
    choices = {name: value for name, value in objects.items() if isinstance(value, Choice)}
    constants = [_constant(name, value) for name, value in objects.items() if name not in choices]
    kernels = [_kernel(name, kernel) for name, kernel in made.items()]
    kernels += [_choice(name, value) for name, value in choices.items()]
    made = {**made, **{f"{n} of a choice": k for c in choices.values() for n, k in _chosen(c).kernels.items()}}
    text = "\n".join([source, *(_chosen(c).text for c in choices.values())])
    lines = ["import torch", ""]
    if any("prims." in c for c in constants):
        lines.append("from braze import prims")
    lines += [_IMPORTS[kind] for kind in _IMPORTS if any(isinstance(k, kind) for k in made.values())]
    lines.append(f"from braze.runtime.host import {', '.join(sorted(n for n in host.NAMES if n in text))}")
    if any("spelled(" in c for c in constants):
        lines.append("from braze.runtime.spelling import spelled")
    return "\n".join(lines) + "\n\n" + "\n".join(constants + kernels + ["", source])


def _chosen(choice: Choice) -> Parts:
    """The way that a choice has settled on; the first as long as it has not."""
    return choice.parts.get(choice.chosen) or choice.parts[""]


def _choice(name: str, choice: Choice) -> str:
    """A function that makes the chosen way, with its kernels, and its call."""
    parts = _chosen(choice)
    kernels = ["    " + _kernel(kernel, code) for kernel, code in parts.kernels.items()]  # names of this way alone
    body = "\n".join("    " + line for line in parts.text.splitlines())
    about = f"{choice.chosen or 'the vendor and a kernel'}: chosen among {len(choice.others) + 1} ways"
    lines = [f"def make_{name}():  # {about}", *kernels, body, "    return lambda *args: call(list(args))"]
    return "\n".join([*lines, f"{name} = make_{name}()"])


def _constant(name: str, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        text = spell(value)
        return f"{name} = {text}" if text else f"# {name}: a tensor {tuple(value.shape)} {value.dtype}, to be set"
    names = Names()
    text = names.target(value) if callable(value) else names.value(value)
    return f"# {name}: {value!r}, to be set" if names.table else f"{name} = {text}"


def _kernel(name: str, kernel: Code) -> str:
    rows = []
    for field in dataclasses.fields(kernel):
        value = getattr(kernel, field.name)
        if field.name == "candidates":
            continue
        block = isinstance(value, str) and "\n" in value and '"""' not in value and "\\" not in value
        rows.append(f'    {field.name}="""\\\n{value}""",' if block else f"    {field.name}={value!r},")
    body = "\n".join([f"{type(kernel).__name__}(", *rows, ")"])
    return _LOADERS[type(kernel)].format(name=name, made=body)
