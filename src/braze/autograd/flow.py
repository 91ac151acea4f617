"""Minimum cut of a directed network: Dinic's algorithm on flat lists."""

from __future__ import annotations

INFINITE = 1 << 60


class Network:
    """Nodes are numbered by :meth:`node`; 0 is the source and 1 the sink.

    >>> g = Network(); a = g.node(); g.edge(0, a, 3); g.edge(a, 1, 2); g.min_cut()
    (2, [True, False, True])
    """

    def __init__(self) -> None:
        self.out: list[list[int]] = [[], []]
        self.to: list[int] = []
        self.room: list[int] = []

    def node(self) -> int:
        self.out.append([])
        return len(self.out) - 1

    def edge(self, a: int, b: int, capacity: int) -> None:
        """An edge; edge ``e ^ 1`` is always the reverse of ``e``."""
        if capacity <= 0 or a == b:
            return
        e = len(self.to)
        self.to += (b, a)
        self.room += (min(capacity, INFINITE), 0)
        self.out[a].append(e)
        self.out[b].append(e + 1)

    def _levels(self) -> list[int] | None:
        """Distance to the sink in the residual network, or None when the source cannot reach it."""
        level = [-1] * len(self.out)
        level[1] = 0
        queue = [1]
        to, room, out = self.to, self.room, self.out
        for v in queue:
            below = level[v] + 1
            for e in out[v]:
                u = to[e]
                if level[u] < 0 and room[e ^ 1] > 0:
                    level[u] = below
                    if u == 0:
                        return level
                    queue.append(u)
        return None

    def _augment(self, level: list[int], at: list[int]) -> int:
        """Push flow along one shortest path; 0 when there is none left. ``at[v]`` is v's next edge to try."""
        to, room, out = self.to, self.room, self.out
        path: list[int] = []
        v = 0
        while v != 1:
            edges = out[v]
            i = at[v]
            down = level[v] - 1
            while i < len(edges) and not (room[edges[i]] > 0 and level[to[edges[i]]] == down):
                i += 1
            at[v] = i
            if i < len(edges):
                path.append(edges[i])
                v = to[edges[i]]
            elif path:
                v = to[path.pop() ^ 1]
                at[v] += 1
            else:
                return 0
        pushed = min(room[e] for e in path)
        for e in path:
            room[e] -= pushed
            room[e ^ 1] += pushed
        return pushed

    def min_cut(self) -> tuple[int, list[bool]]:
        """The cut's capacity, and which nodes are on the source's side: as many as any minimum cut has.

        ValueError when the cut would be infinite.
        """
        total = 0
        while (level := self._levels()) is not None:
            at = [0] * len(self.out)
            while pushed := self._augment(level, at):
                total += pushed
                if total >= INFINITE:
                    raise ValueError("no finite cut")
        return total, [not r for r in self._reaching()]

    def _reaching(self) -> list[bool]:
        """Which nodes reach the sink in the residual network."""
        reaches: list[bool] = [False] * len(self.out)
        reaches[1] = True
        queue = [1]
        for v in queue:
            for e in self.out[v]:
                u = self.to[e]
                if not reaches[u] and self.room[e ^ 1] > 0:
                    reaches[u] = True
                    queue.append(u)
        return reaches
