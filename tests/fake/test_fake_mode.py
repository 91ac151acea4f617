"""The mode's own promises: real tensors, data dependence, user operators, metadata changes, errors as in eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from braze.errors import Unsupported
from braze.fake import DataDependent, FakeMode, FakeTensor, fake_from, fake_like, rule_for, type_of
from braze.ir import tensor_type


def fake(*sizes: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> FakeTensor:
    return fake_from(tensor_type(sizes, dtype, requires_grad=grad))


def test_real_tensors_are_never_baked_silently() -> None:
    real = torch.ones(2)
    with FakeMode(), pytest.raises(Unsupported, match="real tensor"):
        fake(2) + real


def test_real_tensors_are_lifted() -> None:
    lifted: list[torch.Tensor] = []

    def lift(real: torch.Tensor) -> FakeTensor:
        lifted.append(real)
        return fake_like(real)

    with FakeMode(lift=lift):
        out = fake(2, 3) + torch.tensor(3.0)
    assert [t.item() for t in lifted] == [3.0]
    assert type(out) is FakeTensor and out.shape == (2, 3)


def test_outside_a_mode() -> None:
    with pytest.raises(Unsupported, match="outside of its trace"):
        fake(2) + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.masked_select(x, x > 0),
        lambda x: torch.unique(x),
        lambda x: torch.equal(x, x),
        lambda x: torch.repeat_interleave(x.long()),
        lambda x: torch.bincount(x.long()),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
    ],
)
def test_data_dependent(call: Any) -> None:
    with FakeMode(), pytest.raises(DataDependent):
        call(fake(4))


def test_parameters() -> None:
    x = fake_like(nn.Parameter(torch.ones(2, 3)))
    assert isinstance(x, nn.Parameter) and x.requires_grad and x.is_leaf
    assert not isinstance(fake_like(torch.ones(2)), nn.Parameter)
    assert type_of(x) == tensor_type((2, 3), requires_grad=True)


def test_hook_sees_every_call_in_order() -> None:
    seen: list[str] = []
    with FakeMode(lambda op, args, kwargs, out: seen.append(op._opname)):
        x = fake(3, grad=True)
        (x * 2).sum().backward()
    assert seen[:4] == ["mul", "sum", "ones_like", "expand"]
    assert x.grad is not None and x.grad.shape == (3,)


def test_in_place_returns_its_argument_and_counts_versions() -> None:
    outs: list[Any] = []
    with FakeMode(lambda op, args, kwargs, out: outs.append((op._opname, out))):
        a = fake(4, 4)
        assert a.add_(1) is a and a._version == 1
        row = a[0]
        row.mul_(2)
    assert a._version == 2 and row._base is a
    assert outs[0][1] is a


def test_metadata_changes_in_place() -> None:
    with FakeMode():
        a = fake(2, 3)
        a.t_()
        assert a.shape == (3, 2) and a.stride() == (1, 3) and type_of(a).strides == (1, 3)
        a.unsqueeze_(0)
        assert a.shape == (1, 3, 2) == type_of(a).sizes
        a.squeeze_(0).transpose_(0, 1)
        assert a.is_contiguous()


def test_data_assignment() -> None:
    real = torch.ones(3)
    with FakeMode():
        a, b = fake(2, 3), fake(5)
        a.data = b
        assert a.shape == (5,) and type_of(a).sizes == (5,)
        with pytest.raises(Unsupported):
            a.data = real


def test_out_arguments() -> None:
    with FakeMode():
        out = fake(0)
        torch.add(fake(2, 3), 1, out=out)
        assert out.shape == (2, 3) == type_of(out).sizes


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + fake(5),
        lambda x: x.add_(fake(7, 2, 3)),
        lambda x: x @ fake(4, 4),
        lambda x: x.view(4),
        lambda x: x.long().add_(0.5),
        lambda x: x[5],
        lambda x: torch.cat([x, fake(2, 9)]),
        lambda x: x.expand(4, 3),
        lambda x: x.transpose(0, 5),
        lambda x: F.conv2d(fake(1, 3, 8, 8), fake(4, 2, 3, 3)),
        lambda x: F.layer_norm(x, (4,)),
    ],
)
def test_errors_as_in_eager(call: Any) -> None:
    with FakeMode(), pytest.raises((RuntimeError, IndexError)):
        call(fake(2, 3))


@pytest.fixture
def library() -> Iterator[Any]:
    with torch.library._scoped_library("braze_test", "FRAGMENT") as lib:
        yield lib


def test_user_operator_with_a_fake_implementation(library: Any) -> None:
    library.define("halve(Tensor x) -> (Tensor, Tensor)")
    library.impl("halve", lambda x: (x[::2].clone(), x[1::2].clone()), "CPU")
    op = torch.ops.braze_test.halve.default
    with FakeMode(), pytest.raises(Unsupported, match="register_fake"):
        op(fake(6, 2))
    torch.library.register_fake(
        "braze_test::halve", lambda x: (x.new_empty(x.shape[0] // 2, 2), torch.empty_like(x[1::2])), lib=library
    )
    seen = []
    with FakeMode(lambda op, *rest: seen.append(op)):
        a, b = op(fake(6, 2))
    assert a.shape == b.shape == (3, 2) and seen == [op]
    assert [t.sizes for t in rule_for(op)(tensor_type((8, 2)))] == [(4, 2), (4, 2)]


def test_user_operator_with_a_data_dependent_size(library: Any) -> None:
    library.define("pick(Tensor x) -> Tensor")
    torch.library.register_fake(
        "braze_test::pick", lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()), lib=library
    )
    with FakeMode(), pytest.raises(DataDependent):
        torch.ops.braze_test.pick.default(fake(6))


def test_execution_is_reported_and_keeps_the_random_state() -> None:
    state = torch.get_rng_state()
    with FakeMode() as mode:
        out = torch.linalg.qr(fake(4, 3)).Q
    assert out.shape == (4, 3) and [op._opname for op in mode.executed_rules] == ["linalg_qr"]
    assert torch.equal(state, torch.get_rng_state())


def test_execution_has_a_size_limit() -> None:
    with FakeMode(), pytest.raises(Unsupported, match="too large"):
        torch.linalg.qr(fake(5000, 5000))


def test_default_dtype_is_not_remembered() -> None:
    with FakeMode():
        assert (fake(2, dtype=torch.int64) / 2).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        with FakeMode():
            assert (fake(2, dtype=torch.int64) / 2).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_optimizer_step() -> None:
    p = [fake_like(nn.Parameter(torch.ones(3, 4))), fake_like(nn.Parameter(torch.ones(5)))]
    seen: list[str] = []
    with FakeMode(lambda op, *rest: seen.append(op._opname), lift=fake_like):
        for x in p:
            x.grad = torch.ones_like(x).detach()
        opt = torch.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=0.1, foreach=True)
        opt.step()
        opt.step()
    assert seen.count("_foreach_add_") >= 2 and "_foreach_mul_" in seen
    assert opt.state[p[0]]["momentum_buffer"].shape == (3, 4)


def _index_errors() -> dict[str, Any]:
    floats, shorts = torch.tensor([0.0, 1.0]), torch.tensor([0, 1], dtype=torch.int16)
    return {
        "item": lambda x: x[floats],
        "item of shorts": lambda x: x[shorts],
        "set": lambda x: x.clone().index_put_((floats,), torch.tensor(1.0)),
        "index_select": lambda x: x.index_select(0, shorts),
        "gather": lambda x: x.gather(0, floats[None]),
        "scatter_add": lambda x: x.scatter_add(0, floats[None], x[:1, :2]),
        "embedding": lambda x: torch.nn.functional.embedding(shorts, x),
        "index_add": lambda x: x.index_add(0, floats, x[:2]),
        "index_fill": lambda x: x.index_fill(0, floats, 1.0),
        "index_copy": lambda x: x.index_copy(0, floats, x[:2]),
        "take": lambda x: x.take(floats),
        "nll_loss": lambda x: torch.nn.functional.nll_loss(x[:2], shorts),
        "masked_fill": lambda x: x.masked_fill(x, 1.0),
        "where": lambda x: torch.where(x, x, x),
        "topk": lambda x: x.topk(9),
        "kthvalue": lambda x: x.kthvalue(9),
    }


@pytest.mark.parametrize("name", _index_errors())
def test_wrong_indices_are_refused_where_eager_refuses_them(name: str) -> None:
    f = _index_errors()[name]
    x = torch.arange(12.0).reshape(3, 4)
    with pytest.raises(Exception) as eager:
        f(x)
    with FakeMode(lift=fake_like) as mode, pytest.raises(type(eager.value)) as traced:
        f(mode.lift(x) if mode.lift is not None else x)
    assert str(traced.value) == str(eager.value)
