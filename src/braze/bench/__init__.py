"""Measure eager, braze and torch.compile side by side: one process a contender, rounds interleaved, medians.

``models`` builds the cases, ``worker`` runs one contender in its own process, ``runner`` drives the workers round by
round, ``table`` and ``plot`` show the results.
"""
