"""Compiled code where programs really use it: text generation, data loaders, forks, threads, copies, resets."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import braze
from braze.api import log_of

B = "aot_eager"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.b(torch.relu(self.a(x)))


def activation(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


@braze.compile(backend=B)
def compiled_activation(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


class Holder(nn.Module):
    """A module with a compiled part and a compiled function inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = braze.compile(Net(), backend=B)
        self.act = compiled_activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.inner(x))


# ---- generate()


def gpt2() -> Any:
    t = pytest.importorskip("transformers")
    special = {"bos_token_id": 0, "eos_token_id": 63, "pad_token_id": 62}
    return t.GPT2LMHeadModel(t.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=64, **special))


def llama() -> Any:
    t = pytest.importorskip("transformers")
    special = {"bos_token_id": 0, "eos_token_id": 63, "pad_token_id": 62}
    config = t.LlamaConfig(
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=64,
        max_position_embeddings=64,
        **special,
    )
    return t.LlamaForCausalLM(config)


HOW: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 8, "temperature": 0.8},
    "beam": {"num_beams": 3, "do_sample": False},
    "static cache": {"do_sample": False, "cache_implementation": "static"},
}
GENERATE = [(gpt2, "greedy", "inductor"), (gpt2, "sampling", B), (gpt2, "beam", B), (llama, "static cache", "inductor")]
GENERATE += [(llama, "beam", B), (gpt2, "static cache", B)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "how", "backend"), [pytest.param(*g, id=f"{g[0].__name__}-{g[1]}") for g in GENERATE])
def test_generate(make: Callable[[], Any], how: str, backend: str) -> None:
    model = make().eval()
    first, second = torch.randint(0, 60, (2, 5)), torch.randint(0, 60, (3, 9))

    def run(ids: torch.Tensor) -> Any:
        torch.manual_seed(1)
        mask = torch.ones_like(ids)
        return model.generate(ids, attention_mask=mask, max_new_tokens=12, min_new_tokens=12, **HOW[how])

    want = [run(first), run(second)]
    model.forward = braze.compile(model.forward, backend=backend)
    got = [run(first), run(second)]
    assert [torch.equal(w, g) for w, g in zip(want, got)] == [True, True]
    log = log_of(model.forward)
    assert log is not None and len(log.graphs) <= 6 and not log.breaks


# ---- processes


def test_fork() -> None:
    net = Net()
    fast, x = braze.compile(net, backend="inductor"), torch.randn(3, 4)
    want = fast(x)
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:  # both what is compiled already and what is new
        try:
            again = torch.equal(fast(x), want)
            new = braze.compile(activation, backend=B)(x)
            os.write(writable, b"ok" if again and torch.equal(new, activation(x)) else b"differs")
        finally:
            os._exit(0)
    os.close(writable)
    assert os.read(readable, 100) == b"ok"
    os.waitpid(child, 0)
    os.close(readable)
    torch.testing.assert_close(fast(x), want)


def work(fast: Any, x: torch.Tensor, out: Any) -> None:
    out.put(fast(x).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_get_compiled_modules(method: str) -> None:
    context = multiprocessing.get_context(method)
    torch.manual_seed(0)
    fast, x = braze.compile(Net(), backend=B), torch.randn(3, 4)
    want = fast(x)
    out = context.Queue()
    process = context.Process(target=work, args=(fast, x, out))
    process.start()
    torch.testing.assert_close(torch.tensor(out.get(timeout=120)), want)
    process.join()
    assert process.exitcode == 0


def test_data_loader_workers_while_compiled() -> None:
    net = Net()
    fast = braze.compile(net, backend=B)
    rows = torch.randn(10, 4)
    fast(rows[:3])  # the workers are forked from a process that has compiled
    loader = DataLoader(TensorDataset(rows), batch_size=4, num_workers=2)
    got = torch.cat([fast(x) for _ in range(2) for (x,) in loader])
    torch.testing.assert_close(got, net(rows.repeat(2, 1)))
    log = log_of(fast)
    assert log is not None and len(log.graphs) <= 2


class Augmented(TensorDataset):
    def __getitem__(self, i: int) -> Any:
        return compiled_activation(self.tensors[0][i])


def test_compiled_code_inside_of_data_loader_workers() -> None:
    rows = torch.randn(6, 4)
    got = torch.cat(list(DataLoader(Augmented(rows), batch_size=3, num_workers=2)))
    torch.testing.assert_close(got, activation(rows))


# ---- threads


def test_threads_compile_and_call_different_functions_at_once() -> None:
    start = threading.Barrier(6)
    errors: list[Any] = []

    def body(k: int) -> None:
        def f(x: torch.Tensor, n: int) -> torch.Tensor:
            y = x * n
            if n % 2:
                print(end="")  # a graph break
            return torch.sin(y) + k

        g = braze.compile(f, backend=B)
        start.wait()
        for n in (1, 2, 3, 4):
            for rows in (2, 3, 5):
                x = torch.full((rows, 3), float(k))
                if not torch.allclose(g(x, n), torch.sin(x * n) + k):
                    errors.append((k, n, rows))

    threads = [threading.Thread(target=body, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_a_thread_may_reset_while_others_run() -> None:
    net = Net()
    fast, x = braze.compile(net, backend=B), torch.randn(3, 4)
    want = net(x)
    done, errors = threading.Event(), []

    def call() -> None:
        try:
            for _ in range(30):
                torch.testing.assert_close(fast(x), want)
        except Exception as e:
            errors.append(e)
        done.set()

    thread = threading.Thread(target=call)
    thread.start()
    while not done.wait(0.01):
        braze.reset()
    thread.join()
    assert not errors


# ---- copies


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "torch.save"])
@pytest.mark.parametrize("make", [lambda: braze.compile(Net(), backend=B), Holder, lambda: nn.Sequential(Holder())])
def test_copies(make: Callable[[], nn.Module], how: str) -> None:
    m, x = make(), torch.randn(3, 4)
    want = m(x)
    if how == "pickle":
        twin = pickle.loads(pickle.dumps(m))
    elif how == "deepcopy":
        twin = copy.deepcopy(m)
    else:
        buffer = io.BytesIO()
        torch.save(m, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    torch.testing.assert_close(twin(x), want)
    assert list(twin.state_dict()) == list(m.state_dict())
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    torch.testing.assert_close(m(x), want)
    torch.testing.assert_close(twin(x), torch.zeros_like(want))


def test_a_compiled_function_is_pickled_by_name() -> None:
    twin = pickle.loads(pickle.dumps(compiled_activation))
    x = torch.randn(3)
    torch.testing.assert_close(twin(x), activation(x))
    assert copy.deepcopy(compiled_activation)(x).equal(twin(x))


def test_a_compiled_module_is_used_as_a_module() -> None:
    net = Net()
    fast, x = braze.compile(net, backend=B), torch.randn(3, 4)
    fast(x)
    names = ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert [n for n, _ in fast.named_parameters()] == names and list(fast.state_dict()) == ["calls", *names]
    assert [n for n, _ in fast.named_modules()] == ["", "a", "b"]
    assert fast.to(torch.float64) is not None and fast(x.double()).dtype is torch.float64
    torch.testing.assert_close(fast(x.double()), net(x.double()))
    fast.load_state_dict(Net().state_dict())
    torch.testing.assert_close(fast(x.double()), net(x.double()))
    fast.custom = 3
    assert net.custom == 3 and fast.train(False).training is False and not net.a.training
    handle = fast.register_forward_hook(lambda m, i, o: o + 1)
    plain = net.b(torch.relu(net.a(x.double())))
    torch.testing.assert_close(fast(x.double()), plain + 1)
    handle.remove()
    torch.testing.assert_close(fast(x.double()), plain)
    fast.apply(lambda m: m.requires_grad_(False))
    assert not fast(x.double()).requires_grad
    calls = net.calls.item()
    fast(x.double())
    assert net.calls.item() == calls + 1


# ---- reset


def test_reset_in_the_middle() -> None:
    net, x = Net(), torch.randn(3, 4)
    fast = braze.compile(net, backend=B)

    def step(n: int) -> Any:
        out = fast(x).sum()
        out.backward()
        grads = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        net.zero_grad()
        return out.detach(), grads

    before = step(0)
    y = fast(x).sum()  # its backward runs after the reset
    braze.reset()
    y.backward()
    net.zero_grad()
    torch.testing.assert_close(step(1), before)

    def inside(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        braze.reset()
        return y + 1

    g = braze.compile(inside, backend=B)
    for _ in range(3):
        torch.testing.assert_close(g(x), torch.sin(x) + 1)
