"""braze: a compiler for PyTorch programs. ``braze.compile(model)`` where you wrote ``torch.compile(model)``."""
