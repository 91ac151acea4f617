"""A double of ``nvfuser_direct`` for machines without it: the same calls, executed with torch.

It holds the translation to nvFuser's rules: no type promotion (operands of one type), no 16-bit arithmetic, declared
sizes and strides are those of the tensors, outputs are row-major, an operator or argument that does not exist fails.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch


class DataType(Enum):
    Float = torch.float32
    Double = torch.float64
    Half = torch.float16
    BFloat16 = torch.bfloat16
    Int = torch.int64
    Int32 = torch.int32
    Bool = torch.bool


class Value:
    """A value of the definition: how to compute it from the inputs."""

    def __init__(self, name: str, run: Any, dtype: torch.dtype | None) -> None:
        self.name, self.run, self.dtype = name, run, dtype


TORCH = {
    name: getattr(torch, name)
    for name in "reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh"
    " asinh acosh atanh erf erfc erfinv lgamma sigmoid floor ceil round trunc neg abs add sub mul div pow atan2 fmod"
    " remainder maximum minimum bitwise_and bitwise_or bitwise_xor bitwise_not eq ne lt le gt ge isnan isinf".split()
}


class Ops:
    def __init__(self, fd: FusionDefinition) -> None:
        self.fd = fd

    def _op(self, name: str, fn: Any, *args: Value) -> Value:
        self.fd.recorded.append(name)
        return Value(name, lambda env: fn(*[a.run(env) for a in args]), None)

    def __getattr__(self, name: str) -> Any:
        if name not in TORCH:
            raise AttributeError(f"nvFuser has no operator {name!r} here")

        def call(*args: Value) -> Value:
            def run(*xs: torch.Tensor) -> torch.Tensor:
                kinds = {x.dtype for x in xs}
                assert len(kinds) == 1, f"{name} of {kinds}"
                assert not kinds & {torch.float16, torch.bfloat16}, f"{name} in 16 bits"
                shapes = {x.shape for x in xs if x.dim()}
                assert len(shapes) <= 1, f"{name} of {shapes}"
                return TORCH[name](*xs)

            return self._op(name, run, *args)

        return call

    def where(self, c: Value, a: Value, b: Value) -> Value:
        def run(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            assert c.dtype is torch.bool and a.dtype is b.dtype
            return torch.where(c, a, b)

        return self._op("where", run, c, a, b)

    def set(self, x: Value) -> Value:
        return self._op("set", torch.clone, x)

    def cast(self, x: Value, dtype: DataType) -> Value:
        return self._op("cast", lambda t: t.to(dtype.value), x)

    def full(self, shape: list[int], fill_value: Value, dtype: DataType) -> Value:
        return self._op("full", lambda v: v.to(dtype.value).expand(shape).clone(), fill_value)

    def broadcast_in_dim(self, x: Value, shape: list[int], broadcast_dims: list[int]) -> Value:
        def run(t: torch.Tensor) -> torch.Tensor:
            sizes = [1] * len(shape)
            for d, n in zip(broadcast_dims, t.shape):
                sizes[d] = n
            return t.reshape(sizes).expand(shape)

        return self._op("broadcast_in_dim", run, x)

    def broadcast(self, x: Value, is_broadcast_dim: list[bool]) -> Value:
        def run(t: torch.Tensor) -> torch.Tensor:
            rest = iter(t.shape)
            return t.reshape([1 if b else next(rest) for b in is_broadcast_dim])

        return self._op("broadcast", run, x)

    def squeeze(self, x: Value, dims: list[int]) -> Value:
        def run(t: torch.Tensor) -> torch.Tensor:
            assert all(t.shape[d] == 1 for d in dims)
            return t.reshape([n for d, n in enumerate(t.shape) if d not in dims])

        return self._op("squeeze", run, x)

    def reshape(self, x: Value, new_shape: list[int]) -> Value:
        return self._op("reshape", lambda t: t.reshape(new_shape), x)

    def permute(self, x: Value, dims: list[int]) -> Value:
        return self._op("permute", lambda t: t.permute(dims), x)

    def _reduce(self, name: str, fn: Any, x: Value, dims: list[int]) -> Value:
        def run(t: torch.Tensor) -> torch.Tensor:
            assert t.dtype in (torch.float32, torch.float64), f"{name} of {t.dtype}"
            return fn(t, dims)

        return self._op(name, run, x)

    def sum(self, x: Value, dims: list[int]) -> Value:
        return self._reduce("sum", torch.sum, x, dims)

    def max(self, x: Value, dims: list[int]) -> Value:
        return self._reduce("max", torch.amax, x, dims)

    def min(self, x: Value, dims: list[int]) -> Value:
        return self._reduce("min", torch.amin, x, dims)

    def prod(self, x: Value, dims: list[int]) -> Value:
        def fn(t: torch.Tensor, dims: list[int]) -> torch.Tensor:
            for d in sorted(dims, reverse=True):
                t = t.prod(d)
            return t

        return self._reduce("prod", fn, x, dims)


class FusionDefinition:
    made: list[FusionDefinition] = []

    def __init__(self) -> None:
        self.inputs: list[tuple[list[int], list[int], DataType]] = []
        self.outputs: list[Value] = []
        self.recorded: list[str] = []
        self.executed = 0
        self.ops = Ops(self)

    def __enter__(self) -> FusionDefinition:
        FusionDefinition.made.append(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        pass

    def __repr__(self) -> str:
        return f"fusion of {', '.join(self.recorded)}"

    def define_tensor(self, *, sizes: list[int], strides: list[int], dtype: DataType, is_cpu: bool) -> Value:
        assert len(sizes) == len(strides) and not is_cpu
        k = len(self.inputs)
        self.inputs.append((sizes, strides, dtype))
        return Value(f"input {k}", lambda env: env[k], dtype.value)

    def define_scalar(self, value: Any, dtype: DataType) -> Value:
        assert isinstance(value, bool) == (dtype is DataType.Bool)
        assert isinstance(value, float) == dtype.value.is_floating_point and dtype.value.itemsize != 2
        return Value("scalar", lambda env: torch.tensor(value, dtype=dtype.value), dtype.value)

    def add_output(self, value: Value) -> None:
        self.outputs.append(value)

    def execute(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        self.executed += 1
        assert len(inputs) == len(self.inputs)
        for x, (sizes, strides, dtype) in zip(inputs, self.inputs):
            assert list(x.shape) == sizes and x.dtype is dtype.value, (x.shape, sizes, x.dtype, dtype)
            assert all(n == 1 or a == b for n, a, b in zip(sizes, x.stride(), strides)), (x.stride(), strides)
        return [v.run(inputs).contiguous() for v in self.outputs]
