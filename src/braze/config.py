"""The one frozen configuration, and the sole reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Whether DTensors are captured; else what they compute runs in eager. Read once: it says which hooks are followed.
TENSOR_PARALLEL = os.environ.get("BRAZE_TENSOR_PARALLEL", "").lower() in ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True)
class Config:
    """All flags of braze. ``Config.from_env()`` reads ``BRAZE_<NAME>``; ``compile(options=…)`` overrides by name."""

    debug: int = 0  # 1 events, 2 graphs, 3 kernels, 4 guards and timings, 5 all
    verify: bool = False  # check every IR between all passes
    strict: bool = False  # a compile failure is an error, never a fall-back to eager
    cache_dir: str = ""  # on-disk cache; "" = the user's cache folder
    disk_cache: bool = True
    threads: int = 0  # CPU kernels; 0 = torch.get_num_threads()
    recompile_limit: int = 8  # versions of one frame before it runs in eager
    compile_workers: int = 0  # Triton compile processes; 0 = by core count
    activation_memory_budget: float = 1.0  # share of saved activations that may stay (1.0: what min-cut finds best)
    autotune_seconds: float = 20.0  # time budget of max-autotune
    strict_random: bool = (
        False  # the numbers that eager draws from a seed; draws are library calls (dropout: 8x slower)
    )
    cudagraphs: bool = False  # set by mode
    max_autotune: bool = False  # set by mode
    freeze: bool = False  # inference: pack weights, fold batch norms (changes are seen, save those through .data)
    never_slower: bool = False  # time eager and compiled before the first call, and keep the faster

    @property
    def cache_path(self) -> Path:
        """Folder of the on-disk cache."""
        return Path(self.cache_dir or Path.home() / ".cache" / "braze")

    @staticmethod
    def from_env(env: Mapping[str, str] = os.environ) -> Config:
        """The defaults overridden by ``BRAZE_*``. ValueError names a variable whose value does not parse."""
        values: dict[str, object] = {}
        for name, field in Config.__dataclass_fields__.items():
            text = env.get(f"BRAZE_{name.upper()}")
            if text is None:
                continue
            kind = type(field.default)
            try:
                values[name] = text.lower() in ("1", "true", "yes", "on") if kind is bool else kind(text)  # type: ignore[misc]
            except ValueError:
                raise ValueError(f"BRAZE_{name.upper()}={text!r} is not a valid {kind.__name__}") from None
        return Config(**values)  # type: ignore[arg-type]
