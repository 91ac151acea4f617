"""Lists, tuples, named tuples, deques, slices, unpacking, comprehensions."""

# ruff: noqa: E501

EXPRESSIONS = """
[1, 2] + [3], [0] * 3, 2 * [1], [1] == [1], [1, 2] < [1, 3], [1] != (1,)
items[0], items[-1], items[1:], items[::-1], items[:2], items[5:], items[-2:]
len(items), 2 in items, 9 not in items, items.index(1), items.count(3), sorted(items), sorted(items, reverse=True)
list(reversed(items)), list(enumerate(items, 1)), list(zip(items, "abc")), list(map(str, items))
[*items, 4], [*items, *items], (*items, 0), {*items} == {1, 2, 3}, [*range(3)], [*"ab", *(1, 2)]
[i * 2 for i in items], [i for i in items if i > 1], [[j for j in range(i)] for i in items]
[(i, j) for i in items for j in "ab" if i != 2], [a + b for a, b in [(1, 2), (3, 4)]]
[i if i > 1 else -i for i in items], [f"{i}" for i in items], [x * i for i in items][1]
tuple(items), tuple(i for i in items), (1,), (), (1, 2)[0], (1, 2) + (3,), (0,) * 2, (1, 2).index(2), (1, 1).count(1)
items.copy(), list(items), items[:] is items, list(items) == items, [].copy()
sorted(["b", "A", "c"], key=str.lower), sorted([(2, "a"), (1, "b")]), sorted({"b": 1, "a": 2})
sorted(items, key=lambda v: (v % 2, -v)), sorted([1.5, 1, True]), sorted("bca", reverse=True)
max(items), min(items), sum(items), any(i > 2 for i in items), all(i for i in items)
list(filter(None, [0, 1, "", 2])), list(filter(lambda v: v > 1, items)), list(map(lambda a, b: a + b, items, items))
list(zip(*[(1, 2), (3, 4)])), list(zip(items, items[1:])), list(zip()), list(zip([1, 2], [3], strict=False))
next(iter(items)), next(iter([]), "none"), list(iter(items)), next(i for i in items if i < 3)
Point(1, 2), Point(1).y, Point(1, 2)._replace(x=5), Point(3, 4)._asdict(), Point._fields, Point(-1, 2).norm1()
Point(1, 2) == (1, 2), Point(1, 2)[0], len(Point(1, 2)), [*Point(1, 2)], Point._make([7, 8]), isinstance(Point(1), tuple)
Pair(1), Pair(1, 2).second, Pair(first=3, second=4), Pair._field_defaults, Point(x * 2, 1).x + 1
deque([1, 2, 3], maxlen=2), list(deque(items)), deque(items)[0], len(deque()), deque([1]) == deque([1])
Stack([1, 2]).push(3), Stack([1]).top(), len(Stack([1, 2])), Stack() == [], isinstance(Stack(), list)
[[1, 2], [3]][0][1], [(1, [2])][0][1][0], [x, y][1] + 1, [None] * 2
items[slice(0, 2)], items[slice(None, None, -1)], (1, 2, 3)[1:], [1, 2, 3, 4][1:-1:2]
list({"a": 1}), list({1: 2}.items()), list((1, 2)), list("ab"), list({3}), list(range(2))
[i for i in range(10) if i % 2 if i % 3], [y2 for v in items if (y2 := v * 2) > 2]
list(itertools.chain(items, [4])), list(itertools.chain.from_iterable([[1], [2]])), list(itertools.islice(items, 1, None))
list(itertools.accumulate(items)), list(itertools.accumulate(items, operator.mul, initial=1)), list(itertools.pairwise(items))
list(itertools.product([1, 2], "ab")), list(itertools.combinations(items, 2)), list(itertools.permutations([1, 2]))
list(itertools.repeat(1, 2)), list(zip(itertools.count(5, 2), "ab")), list(itertools.zip_longest([1], [2, 3], fillvalue=0))
list(itertools.takewhile(lambda v: v > 1, items)), list(itertools.dropwhile(lambda v: v > 1, items))
list(itertools.starmap(pow, [(2, 3), (3, 2)])), list(itertools.filterfalse(lambda v: v > 1, items))
list(itertools.compress("abc", [1, 0, 1])), [(k, list(g)) for k, g in itertools.groupby("aab")], list(itertools.islice(itertools.cycle("ab"), 5))
[list(t) for t in itertools.tee(items)], list(itertools.combinations_with_replacement("ab", 2)), list(itertools.islice("abcdef", 1, 5, 2))
reduce(lambda a, b: a * b, items), reduce(operator.add, [[1], [2]]), reduce(max, items, 0), reduce(lambda a, b: a + b, [x, y])
list(Countdown(3)), sum(Countdown(4)), [*Countdown(2)], tuple(Indexed()), 4 in Indexed(), max(Indexed())
list(gen(3)), sum(gen(4)), [*gen(2)], dict(zip(gen(2), "ab")), max(gen(3)), sorted(gen(3), reverse=True)
list(map(None.__class__, [])), list(map(int, "12")), list(map(operator.itemgetter(0), ["ab", "cd"]))
copy.copy(items), copy.copy([items])[0] is items, copy.deepcopy([items])[0] is items, copy.deepcopy({"a": [1]})
len([x, y]), torch.stack([x, y]), torch.cat([x, y], dim=0), torch.cat([t * 2 for t in (x, y)])
sum([x, y]), sum(t.sum() for t in (x, y)), [t.shape for t in (x, y)], max([x, y], key=lambda t: t.dim()) is x
[x, y].index(x) if False else 0, any(t is x for t in [x, y]), [x] is [x]
tuple(t + 1 for t in (x, y)), dict(a=x)["a"] + 1, [*x][0] + 1, [*zip(x, y)][1][0], list(x.unbind())[0]
type(items).__name__, items.__len__(), items.__contains__(1), list.__add__([1], [2]), [1].__eq__([1])
(lambda a, *b: (a, b))(*items), kw(*[1, 2], c=3), kw(1, *(2, 3), c=4, **{"z": 5}), print.__name__, max(*items)
isinstance(items, typing.Sequence) if False else 1, isinstance(items, collections.abc.Sequence), isinstance((), collections.abc.Hashable)
UserList([1, 2]) + [3] if False else 0, list(reversed((1, 2))), list(reversed("ab")), [*reversed(items)]
[a for a, *b in [(1, 2, 3), (4,)]], [b for a, *b in [(1, 2, 3), (4,)]], [c for (_, (c, *_)) in [(0, (1, 2))]]
"""

CASES = {
    0: [
        *EXPRESSIONS.strip().splitlines(),
        "items.append(4)\nitems.extend((5, 6))\nitems.insert(0, 0)\nr = items.pop(), items.pop(0)\nitems.remove(1)\nitems.reverse()",
        "items.sort()\nr = items.copy()\nitems.sort(key=lambda v: -v)\nitems.clear()",
        "items[0] = 9\nitems[-1] += 1\nitems[1:2] = [7, 8]\ndel items[0]\ndel items[-1:]\nr = items",
        "items += [1]\nr = items\nitems *= 2\nr2 = items is r\nreturn x + 0, r, r2",
        "a, b, c = items\n(d1, e), f2 = (a, b), c\nr = a, b, c, d1, e, f2",
        "a, *b = items\n*c, e = items\nf2, *g, h = items\n[i, [*j]] = [1, 'ab']\nr = a, b, c, e, f2, g, h, i, j",
        "a, b = 1, 2\na, b = b, a\nr = a, b",
        "items[0], items[1] = items[1], items[0]\nr = items",
        "try:\n    a, b = items\nexcept ValueError as e:\n    r = str(e)",
        "try:\n    a, b, c, e, *g = items\nexcept ValueError as e:\n    r = str(e)",
        "try:\n    r = items[10]\nexcept IndexError as e:\n    r = str(e)",
        "try:\n    items[7] = 1\nexcept IndexError as e:\n    r = str(e)",
        "try:\n    [].pop()\nexcept IndexError as e:\n    r = str(e)",
        "try:\n    items.remove(99)\nexcept ValueError as e:\n    r = str(e)",
        "try:\n    list(zip([1], [2, 3], strict=True))\nexcept ValueError as e:\n    r = str(e)",
        "try:\n    (1, 2)[0] = 3\nexcept TypeError as e:\n    r = type(e)",
        "q = deque(items, maxlen=3)\nq.append(4)\nq.appendleft(0)\nr = q.pop(), q.popleft(), list(q)\nq.extend([7, 8, 9])\nr += (list(q),)",
        "grid = [[0] * 2 for _ in range(2)]\ngrid[1][0] = x\nr = grid",
        "same = [[]] * 2\nsame[0].append(1)\nr = same",
        "a = items\nb = items[:]\na.append(5)\nr = len(b), a is items",
        "def add(v, acc=[]):\n    acc.append(v)\n    return acc\nadd(1)\nr = add(2), add(3) is add(4), x + 1",
        "out = []\nfor i, v in enumerate(items):\n    out.append((i, v))\n    if i == 1: break\nelse:\n    out = None\nr = out",
        "out = []\nfor a, (b, c) in [(1, (2, 3)), (4, (5, 6))]:\n    out.append(a + b * c)\nr = out",
        "it = iter(items)\nr = next(it), list(it), next(it, None)",
        "it = iter(items)\nr = [(a, next(it, None)) for a in it]",
        "r = []\nfor v in items:\n    if v < 5 and len(items) < 8:\n        items.append(v + 3)\n    r.append(v)",
        "r = [0, 0, 0]\nr[1] = r\nr = len(r), r[1] is r",
        "r = [lambda: i for i in range(3)]\nr = [f() for f in r]",
        "fs = []\nfor i in range(3):\n    fs.append(lambda k=i: k + i)\nr = [f() for f in fs]",
        "acc = []\nfor t in (x, y):\n    acc.append(t * 2)\nr = torch.stack(acc).sum(0)",
        "out = [None] * 2\nout[0] = x + 1\nout[1] = out[0] * 2\nr = out",
        "stack = [(x, 0)]\nr = []\nwhile stack:\n    t, k = stack.pop()\n    r.append(t + k)\n    if k < 2:\n        stack.append((t * 2, k + 1))",
        "s2 = Stack()\ns2.push(x).push(1)\ns2[0] = 4\nr = s2, len(s2), list(s2)",
        "w = items\nw[:] = [v * 2 for v in w]\nr = w is items",
        "p = Point(x, n)\na, b = p\nr = p._replace(y=b + 1), a is x",
        "log.append(1)\nlog.append(log[-1] + 1)\nr = list(log)\nlog[0] = x * 3",
        "r = [v for v in items for _ in range(v)]\nr.sort(reverse=True)",
        "matrix = [[1, 2], [3, 4]]\nr = [list(row) for row in zip(*matrix)], [v for row in matrix for v in row]",
        "r = {i: [j for j in range(i)] for i in items}\nr2 = [[i * j for j in items] for i in items]\nreturn x + r2[0][0], r, r2",
        "def f2(*args):\n    return args\nr = f2(*items, *[7], 8), f2(*[]), f2(*(i for i in items)), x + 1",
        "del items[1]\nitems.insert(5, 9)\nitems.insert(-1, 8)\nr = items.index(9), items.pop(-2)",
        "b = items.pop\nr = b(), b()",
        "r = list(map(items.append, [7, 8]))",
        "items.extend(i * 2 for i in items[:2])\nr = items",
    ],
    "any": [
        "items.extend(x.sum().item() for _ in range(2))\nr = items",
        "r = [print(i) or i for i in items]",
        "r = sorted([x.sum(), x.mean(), x.max()])[0] + 1",
        "r = x in [x, y]",
        "r = [x, y].index(x)",
        "r = x == [1, 2, 3]",
        "r = x[items[0] - 3], x[[0, 1]], x[:, [0]], x[..., None].shape, x[x > 2]",
        "r = x.tolist(), list(x.shape), x[0].tolist()",
        "r = UserList([1, 2]) + [3]",
        "r = list(set(items))",
        "v = {1, 2, 3}.pop()\nr = v in (1, 2, 3)",
        "r = heap = [3, 1, 2]\nimport heapq\nheapq.heapify(heap)\nr = heapq.heappop(heap), heap",
        "import bisect\nr = bisect.bisect([1, 3, 5], n)",
        "r = np.array(items).sum()",
        "r = np.asarray(x.numpy()).shape, torch.from_numpy(np.ones((2, 3), np.float32)) + x",
        "r = array.array('i', items)",
    ],
}
