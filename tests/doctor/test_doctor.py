"""Each planted problem is found, nothing is reported on a clean script, and every check is planted once."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from realistic import REALISTIC
from typer.testing import CliRunner

from braze.cli.main import app
from braze.doctor import Observation, check_machine, check_run, diagnose, this_machine
from braze.doctor.environment import Machine
from braze.doctor.watch import Observer
from scripts import CLEAN, CLEAN_GPU, PLANTED, train

GOOD = Machine((3, 12), (2, 12), True, True, True, True, Path.cwd(), 2, 2)
MACHINES = {
    "versions": replace(GOOD, torch=(2, 9)),
    "triton": replace(GOOD, triton=False),
    "llvmlite": replace(GOOD, llvmlite=False),
    "cache": replace(GOOD, cache=Path("/proc/none")),
    "threads": replace(GOOD, threads=64),
    "driver": replace(GOOD, cuda=False, nvidia=True),
    "checking": replace(GOOD, checking=("BRAZE_VERIFY",)),
}


@pytest.fixture(autouse=True)
def _settings_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own test library, which other tests import, forbids scripts to set ``torch.backends`` flags."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)


def written(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", list(PLANTED))
def test_planted(name: str, tmp_path: Path) -> None:
    text, assume = PLANTED[name]
    found = diagnose(written(tmp_path, text), assume=assume, steps=6)
    hit = [f for f in found if f.check == name]
    assert hit, [f.check for f in found]
    for f in hit:
        assert f.fix and "\n" not in f.fix and f.cost
    if assume is None:
        assert {f.check for f in found} == {name}, found


@pytest.mark.parametrize("text, assume", [(CLEAN, None), (CLEAN_GPU, "cuda")], ids=["cpu", "gpu"])
def test_a_clean_script_is_clean(text: str, assume: str | None, tmp_path: Path) -> None:
    before = torch.Tensor.item, torch.nn.Module.__call__, torch.compile
    assert diagnose(written(tmp_path, text), assume=assume) == []
    assert (torch.Tensor.item, torch.nn.Module.__call__, torch.compile) == before


@pytest.mark.parametrize("name", list(REALISTIC))
def test_realistic_training_scripts_are_clean(name: str, tmp_path: Path) -> None:
    """Training and evaluation, schedules, accumulation, two models, a whole compiled step: each as it should be."""
    assert diagnose(written(tmp_path, REALISTIC[name])) == []


def test_what_a_script_switches_is_put_back(tmp_path: Path) -> None:
    """So that one script's settings are not taken for the next one's."""
    read = lambda: (  # noqa: E731
        torch.backends.cudnn.benchmark,
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.initial_seed(),
        Path.cwd(),
    )
    before = read()
    setup = 'torch.backends.cudnn.benchmark = True; torch.set_float32_matmul_precision("high"); '
    setup += "torch.set_default_dtype(torch.float64); import os; os.chdir('/')"
    diagnose(written(tmp_path, train(setup=setup, extra="torch.set_grad_enabled(i < 4)", steps="5")))
    assert read() == before


def test_the_run_ends_after_so_many_steps(tmp_path: Path) -> None:
    step = """
@braze.compile
def step(x):
    model(x).square().mean().backward()
    opt.step()
    opt.zero_grad()
for i in range(100):
    step(torch.randn(16, 16))
    print("ran", i)
"""
    infer = "with torch.no_grad():\n    for i in range(1000):\n        fast(torch.randn(16, 16)); print('ran', i)"
    for text in (
        train(extra='print("ran", i)', steps="100"),
        train(steps="0", optimizer="torch.optim.AdamW(model.parameters())") + step,
        train(steps="0") + infer,
    ):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            found = diagnose(written(tmp_path, text), steps=3)
        assert found == [] and 5 <= out.getvalue().count("ran") <= 310, (found, out.getvalue().count("ran"))


def test_a_tensor_left_on_another_device_is_one_that_is_moved_again(tmp_path: Path) -> None:
    """Each batch is moved once; a constant of the loop is moved in every step."""
    moved = "mask = torch.ones(16)\nfor i in range(6):\n    fast(torch.randn(4, 16)); {}.to('meta')\n"
    for what, hits in (("torch.ones(16)", 0), ("mask", 1)):
        found = diagnose(written(tmp_path, train(steps="0") + moved.format(what)), assume="cuda", steps=6)
        assert [f.line for f in found if f.check == "copies"] == [19] * hits, found


def test_reads_of_tensors_on_the_host_are_no_syncs(tmp_path: Path) -> None:
    """A shuffling loader and an optimizer read tensors of their own; those never were on the device."""
    text = CLEAN_GPU.replace("batch_size=16", "batch_size=16, shuffle=True").replace("fused=True", "foreach=False")
    found = diagnose(written(tmp_path, text), assume="cuda")
    assert {f.check for f in found} == {"optimizer"}, found


def test_a_frame_that_is_compiled_too_often(tmp_path: Path) -> None:
    text = PLANTED["recompile"][0].replace("compile(model)", "compile(model, recompile_limit=2)")
    assert {f.check for f in diagnose(written(tmp_path, text))} == {"recompile-limit"}


def test_an_interrupt_judges_what_was_seen(tmp_path: Path) -> None:
    text = train(zero="opt.zero_grad(set_to_none=False)", extra="if i == 4: raise KeyboardInterrupt")
    assert [f.check for f in diagnose(written(tmp_path, text))] == ["zero-grad"]
    result = CliRunner().invoke(app, ["doctor", str(written(tmp_path, text)), "no.py"])
    assert result.exit_code == 2  # the missing file is said before anything runs
    result = CliRunner().invoke(app, ["doctor", *[str(written(tmp_path, text))] * 2])
    assert result.output.count("zero-grad") == 1 and "interrupted" in result.output


def test_reads_of_a_tensor_on_a_device_are_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: a stand-in with a device."""
    observer = Observer(None, 9)
    read = observer.read("item")(lambda tensor: 1.0)
    for device in ("cuda", "cpu"):
        read(SimpleNamespace(device=torch.device(device)))
    assert [(kind, e.count) for (kind, _), e in observer.seen.syncs.items()] == [("item", 1)]
    model = torch.nn.Linear(2, 2)
    monkeypatch.setattr(
        torch.nn.Module, "parameters", lambda self: [SimpleNamespace(device="cuda:0", requires_grad=True)]
    )
    observer._root(model, [])
    assert observer.seen.device == "cuda"


def test_a_gpu_left_alone() -> None:
    seen = Observation(gpu=True, root_devices={"Net": {"cpu"}})
    assert [f.check for f in check_run(seen)] == ["devices"]
    assert not check_run(Observation(gpu=True, assumed=True, root_devices={"Net": {"cpu"}}))


def test_findings_name_the_line(tmp_path: Path) -> None:
    path = written(tmp_path, PLANTED["host-sync"][0])
    (f,) = (f for f in diagnose(path, assume="cuda", steps=6) if f.check == "host-sync")
    assert path.read_text().splitlines()[f.line - 1].strip() == "last = loss.item()"
    assert "5 times in 6 steps" in f.what and f.cost.startswith("estimated")


@pytest.mark.parametrize("name", list(MACHINES))
def test_machines(name: str) -> None:
    assert {f.check for f in check_machine(MACHINES[name])} == {name}


def test_a_good_machine() -> None:
    assert check_machine(GOOD) == []
    assert check_machine(replace(GOOD, disk_cache=False))[0].check == "cache"
    assert this_machine().torch >= (2, 11)


def test_the_command(tmp_path: Path) -> None:
    text = PLANTED["zero-grad"][0] + "\nprint('the script speaks')\n"
    path, data = written(tmp_path, text), tmp_path / "found.json"
    result = CliRunner().invoke(app, ["doctor", str(path), "--json", str(data)])
    assert result.exit_code == 1 and "zero-grad" in result.output and "fix:" in result.output
    assert "the script speaks" not in result.stdout  # it does so on standard error
    assert [f["check"] for f in json.loads(data.read_text())[str(path)]] == ["zero-grad"]
    assert CliRunner().invoke(app, ["doctor", "no/such.py"]).exit_code == 2
