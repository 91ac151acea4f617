"""All operators, dtypes and variants through ``braze.compile``: worker processes, results kept on disk, one table.

``scripts/coverage`` runs this. A result is a file; a run that was stopped goes on where it was. A worker that crashes
or takes longer than its limit is replaced, and what it was at is recorded as wrong or as out of time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from queue import Empty, Queue
from typing import Any

ROOT = Path(__file__).parents[2]
DTYPES = "float32 float64 bfloat16 float16 int64 bool complex64".split()
VARIANTS = "function noncontiguous inplace mutated out".split()
RUNS = ("train", "eval", "step", "train step")  # of modules and of optimizers
Task = tuple[str, str, str]  # operator, dtype, variant


def work(samples: int | None) -> None:
    """A worker: tasks in as lines of JSON, tallies out."""
    import faulthandler

    import databases
    import samples as s
    import torch

    faulthandler.enable()
    torch.set_num_threads(1)
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print is no answer
    table = s.operators()
    for line in sys.stdin:
        name, dtype, variant = json.loads(line)
        start = time.process_time()
        tally = None
        if variant in RUNS:
            if databases.applies(name, getattr(torch, dtype), variant):
                tally = databases.check(name, getattr(torch, dtype), variant, samples)
        elif s.applies(table[name], getattr(torch, dtype), variant):
            tally = s.check(name, table[name], getattr(torch, dtype), variant, samples)
        answer: dict[str, Any] = {"name": name, "dtype": dtype, "variant": variant, "outcomes": {}}
        if tally is not None:
            answer |= {"outcomes": tally.outcomes, "reasons": tally.reasons, "calls": tally.calls}
        answer["seconds"] = round(time.process_time() - start, 2)
        print(json.dumps(answer), file=channel, flush=True)


class Worker:
    """One process; restarted when it dies or hangs."""

    def __init__(self, samples: int | None, cache: Path) -> None:
        command = [sys.executable, __file__, "--worker", "--samples", str(samples or 0)]
        env = os.environ | {"BRAZE_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, text=True
        )

    def ask(self, task: Task, limit: float) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        answer: dict[str, Any] = dict(zip(("name", "dtype", "variant"), task))
        try:
            print(json.dumps(task), file=self.process.stdin, flush=True)
            if not select.select([self.process.stdout], [], [], limit)[0]:
                self.close()
                reason = f"out of time: over {limit:.0f} s"
                return answer | {"outcomes": {"out of time": 1}, "reasons": {reason: []}, "seconds": limit}
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        code = self.process.wait()
        return answer | {"outcomes": {"wrong": 1}, "reasons": {f"wrong: the process died ({code})": []}, "seconds": 0}

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def run(tasks: list[Task], folder: Path, args: argparse.Namespace) -> None:
    """Work through the tasks that have no result yet."""
    queue: Queue[Task] = Queue()
    for t in tasks:
        if args.fresh or not _file(folder, t).exists():
            queue.put(t)
    total = queue.qsize()

    def serve() -> None:
        worker = Worker(args.samples, folder / "cache")
        while True:
            try:
                task = queue.get_nowait()
            except Empty:
                worker.close()
                return
            if not worker.alive:
                worker = Worker(args.samples, folder / "cache")
            answer = worker.ask(task, args.seconds)
            path = _file(folder, task)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(answer))
            if not args.quiet:
                print(f"{total - queue.qsize()}/{total} {' '.join(task)}: {answer['outcomes']}", flush=True)

    threads = [threading.Thread(target=serve) for _ in range(args.jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def _file(folder: Path, task: Task) -> Path:
    name, dtype, variant = task
    return folder / dtype / variant / f"{name}.json"


def load(tasks: list[Task], folder: Path) -> list[dict[str, Any]]:
    """The results there are."""
    return [json.loads(p.read_text()) for t in tasks if (p := _file(folder, t)).exists()]


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/coverage", description="torch's operator samples through braze.compile; writes docs/coverage.md"
    )
    parser.add_argument("--ops", default="", help="a regular expression: only operators whose name it matches")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--modules", action="store_true", help="torch's modules and optimizers instead of operators")
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--samples", type=int, default=0, help="at most so many of each (0: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=300, help="limit of one operator, dtype and variant")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "coverage", help="where results are kept")
    parser.add_argument("--fresh", action="store_true", help="do again what has a result")
    parser.add_argument("--redo", nargs="+", default=[], help="do again what had one of these outcomes, e.g. wrong")
    parser.add_argument(
        "--report", type=Path, help="file of the table (default docs/coverage[_modules].md, if all was asked for)"
    )
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = parse(argv)
    if args.worker:
        work(args.samples or None)
        return 0
    import coverage_table
    import databases
    import samples as s
    import torch

    names = [n for n in s.operators() if re.search(args.ops, n)]
    tasks = [(n, d, v) for d in args.dtypes for v in args.variants for n in names]
    if args.modules:
        found = [n for n in (*databases.modules(), *databases.optimizers()) if re.search(args.ops, n)]
        every = [(n, d, v) for d in args.dtypes for v in RUNS for n in found]
        tasks = [t for t in every if databases.applies(t[0], getattr(torch, t[1]), t[2])]
    for t in tasks:
        path = _file(args.folder, t)
        if args.redo and path.exists() and set(args.redo) & set(json.loads(path.read_text())["outcomes"]):
            path.unlink()
    run(tasks, args.folder, args)
    results = load(tasks, args.folder)
    whole = not args.ops and set(args.dtypes) == set(DTYPES) and set(args.variants) == set(VARIANTS)
    name = "coverage_modules.md" if args.modules else "coverage.md"
    report = args.report or (ROOT / "docs" / name if whole else None)
    if report is not None:
        make = coverage_table.modules_page if args.modules else coverage_table.page
        report.write_text(make(results, args.samples))
    print(coverage_table.summary(results))
    totals = sum((Counter(r["outcomes"]) for r in results), Counter())
    return 1 if totals["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
