"""The ``braze`` command."""

from __future__ import annotations

import typer

from .bench import bench
from .bisect import bisect
from .cache import app as cache
from .doctor import doctor
from .env import env
from .explain import explain

app = typer.Typer(help="A compiler for PyTorch programs.", no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(bench)
app.command()(explain)
app.command()(doctor)
app.command()(bisect)
app.add_typer(cache, name="cache")
app.command()(env)


if __name__ == "__main__":
    app()
