"""Dicts, sets, default dicts, ordered dicts, counters, keys with their own hash."""

# ruff: noqa: E501

EXPRESSIONS = """
d["a"], d.get("a"), d.get("zz"), d.get("zz", 5), "a" in d, "zz" not in d, len(d)
list(d), list(d.keys()), list(d.values())[0], [k for k, v in d.items()], sorted(d)
{**d, "z": 1}["z"], {"a": 1} | {"b": 2}, dict(a=1, b=2), dict([("a", 1)]), dict({"k": 1}, j=2), {}
{k: v for k, v in [("a", 1), ("b", 2)]}, {v: k for k, v in {"a": 1}.items()}, {i: i * i for i in items if i > 1}
d.items() is not None, list({"a": 1}.items()), ("a", 1) in {"a": 1}.items(), 1 in {"a": 1}.values(), {"a": 1}.keys() & {"a", "b"}
{"a": 1} == {"a": 1}, {"a": 1, "b": 2} == {"b": 2, "a": 1}, {"a": 1} != {"a": 2}, {} == [], bool({}), not d
dict.fromkeys("ab"), dict.fromkeys(["a"], 0), {1: "a", 1.0: "b", True: "c"}, {(1, 2): "t"}[1, 2], {None: 0}[None]
list(reversed({"a": 1, "b": 2})), list(reversed({"a": 1, "b": 2}.values())), next(iter({"q": 1})), max({"a": 1, "b": 5})
max({"a": 1, "b": 5}, key={"a": 1, "b": 5}.get), sum({"a": 1, "b": 5}.values()), min({3: 1, 2: 1}), len({**{}})
{1, 2} | {3}, {1, 2} & {2}, {1, 2} - {1}, {1, 2} ^ {2, 3}, 1 in {1}, len({1, 1}), {1} <= {1, 2}, {1, 2} > {1}
{1, 2}.union([3], [4]), {1, 2}.intersection([2]), {1}.issubset({1, 2}), {1, 2}.issuperset([1]), {1}.isdisjoint({2}), {1, 2}.difference({1})
set() == set(), set([1, 2]) == {1, 2}, frozenset([1]) == {1}, frozenset("ab") | {"c"}, sorted({3, 1}), {i % 2 for i in items} == {0, 1}
hash(frozenset([1])) == hash(frozenset([1])), frozenset([1, 2]) & frozenset([2]), {frozenset([1]): "f"}[frozenset([1])]
OrderedDict(a=1, b=2), list(OrderedDict([("b", 1), ("a", 2)])), OrderedDict(a=1) == {"a": 1}, OrderedDict(a=1) == OrderedDict(a=1)
defaultdict(list), defaultdict(int, a=1)["a"], dict(defaultdict(int, {"z": 2})), defaultdict(lambda: 7)["q"]
Defaults()["k"], len(Defaults(a=1)), Attr(q=3).q, Attr(q=3)["q"], isinstance(Attr(), dict), list(Attr(a=1).items())
{Keyed(1): "one"}[Keyed(1)], Keyed(1) in {Keyed(1)}, len({Keyed(1), Keyed(1), Keyed(2)}), {Keyed(1): 1}.get(Keyed(2))
{Frozen(1): "f"}[Frozen(1)], Frozen(1) == Frozen(1), hash(Frozen(1)) == hash(Frozen(1)), Frozen(1) < Frozen(2), Frozen(1) in {Frozen(1)}
{Ranked(1): 5}[Ranked(1)], sorted([Ranked(2), Ranked(1)])[0].r, max(Ranked(1), Ranked(3)).r, Ranked(1) >= Ranked(1), Ranked(2) != Ranked(1)
{Color.RED: 1, Color.GREEN: 2}[Color.GREEN], {int: "i", str: "s"}[type(n)], {len: 1}[len], {Box: 2}[type(obj)], {obj: 1}[obj]
{x: 1}[x], x in {x: 1}, len({x, y}), {torch.float32: "f"}[x.dtype], {x.dtype: 1, x.device: 2}[x.device], {(2, 3): "s"}[tuple(x.shape)]
{"t": x}["t"] + 1, [v.shape for v in {"a": x, "b": y}.values()], {k: v * 2 for k, v in {"a": x}.items()}["a"]
TABLE["one"], "two" in TABLE, len(TABLE), {**TABLE}, [k for k in TABLE], TABLE.get("three", 3), TABLE == {"one": 1, "two": 2}
copy.copy(d) is d, copy.copy({"a": [1]}), copy.deepcopy({"a": [1]}), d.copy() is not d, dict(d)["a"]
types.SimpleNamespace(a=1).a, vars(types.SimpleNamespace(b=2)), types.SimpleNamespace(**{"q": x}).q + 1
type(d).__name__, isinstance(d, collections.abc.Mapping), isinstance({}, dict), d.__len__(), d.__contains__("a"), dict.get(d, "a")
kw(1, c=2, **{"zz": 3}), kw(**{"a": 1, "c": 2}), dict(**{"a": 1}, b=2), (lambda **k: sorted(k))(b=1, a=2)
{"a": {"b": {"c": 1}}}["a"]["b"]["c"], {"l": [1, 2]}["l"][1], {0: "zero"}[False], {"x": x}["x"].shape
str({"a": 1}), repr({1}), f"{ {'a': 1} }", str({}), str(OrderedDict(a=1)) != "", len(str(d.keys() - {"b", "c"}))
all(k in d for k in ("a", "b")), any(v == 1 for v in {"a": 1}.values()), {"a", "b"} <= d.keys(), d.keys() - {"a"} == {"b", "c"}
"""

CASES = {
    0: [
        *EXPRESSIONS.strip().splitlines(),
        "d['new'] = x * 2\nd['a'] += 1\ndel d['c']\nr = d.pop('zz', None), d.pop('b').sum() * 1, list(d)",
        "d.update(a=5, q=6)\nd.update({'w': 1})\nd.update([('e', 2)])\nr = d.setdefault('a', 0), d.setdefault('n', 9)",
        "r = d.popitem()[0], len(d)\nd.clear()\nr += (len(d),)",
        "d |= {'z': 1}\nr = d['z']\ne = d | {'a': 0}\nreturn x + e['a'], r",
        "try:\n    r = d['missing']\nexcept KeyError as e:\n    r = e.args, str(e)",
        "try:\n    r = {}.pop('k')\nexcept KeyError as e:\n    r = e.args",
        "try:\n    r = {[1]: 2}\nexcept TypeError as e:\n    r = str(e)",
        "try:\n    r = {}.popitem()\nexcept KeyError as e:\n    r = str(e)",
        "try:\n    for k in d:\n        d[k + 'x'] = 1\nexcept RuntimeError as e:\n    r = str(e)",
        "dd = defaultdict(list)\nfor i in items:\n    dd[i % 2].append(x * i)\nr = dict(dd), len(dd[7]), sorted(dd)",
        "c = defaultdict(int)\nfor ch in 'abca':\n    c[ch] += 1\nr = c, c['zz'], len(c)",
        "od = OrderedDict(a=1, b=2, c=3)\nod.move_to_end('a')\nr = list(od), od.popitem()\nod.pop('b')\nr += (list(od),)",
        "st = {1, 2}\nst.add(3)\nst.discard(9)\nst.remove(1)\nst |= {7}\nst.update([8], [9])\nr = sorted(st), len(st)\nst.clear()",
        "st = set(items)\nst -= {1}\nst &= {2, 3, 4}\nst ^= {4}\nr = sorted(st)",
        "try:\n    {1}.remove(2)\nexcept KeyError as e:\n    r = e.args",
        "at = Attr()\nat.k = x\nat['j'] = 2\nr = at, at.j, sorted(at)",
        "de = Defaults()\nde['a']\nde['b']\nr = de, 'c' in de",
        "cache = {}\nfor i in [1, 2, 1]:\n    if i not in cache:\n        cache[i] = x * i\nr = cache, len(cache)",
        "key = Keyed(3)\nd[key] = 1\nd[Keyed(3)] = 2\nr = d[Keyed(3)], len(d), key in d\ndel d[Keyed(3)]",
        "seen = set()\nfor k in (Keyed(1), Keyed(2), Keyed(1)):\n    seen.add(k)\nr = len(seen), Keyed(2) in seen, Keyed(5) in seen",
        "nested = {'a': {'b': [1]}}\nnested['a']['b'].append(x)\nnested['a']['c'] = nested['a']['b']\nr = nested",
        "r = {}\nr['self'] = r\nr = r['self'] is r, len(r)",
        "for k in list(d):\n    if k != 'a':\n        del d[k]\nr = d",
        "r = []\nfor k, v in d.items():\n    r.append((k, type(v).__name__))",
        "e = d\ne['shared'] = 1\nr = 'shared' in d, e is d",
        "mapping = {'add': lambda a: a + 1, 'mul': lambda a: a * 2}\nr = [mapping[k](x) for k in ('add', 'mul')]",
        "k, v = next(iter(d.items()))\nr = k, v",
        "match d:\n    case {'a': int(v), **rest}: r = v, sorted(rest)\n    case _: r = None",
        "r = dict(zip('abc', items))\nr.update(dict.fromkeys('ab', x))",
        "inv = {}\nfor k, v in {'a': 1, 'b': 1}.items():\n    inv.setdefault(v, []).append(k)\nr = inv",
        "ns = types.SimpleNamespace(a=1)\nns.b = x\nns.a += 1\nr = ns.a, ns.b + 1, vars(ns).keys() == {'a', 'b'}",
        "fz = {Frozen(1): x, Frozen(2): y}\nr = fz[Frozen(2)] + 1, Frozen(3) in fz",
        "d['a'] = d['a'] + 1\nd['a'] = d['a'] * 2\nr = d['a']",
        "tmp = d.pop('a')\nd['a'] = tmp\nr = list(d)",
        "d.pop('a')\nd['a'] = 5\nr = list(d)",
        "del d['a']\nr = 'a' in d, d.get('a')",
    ],
    "any": [
        "c = Counter('hello')\nr = c['l'], c.most_common(1), sum(c.values()), c['zz']",
        "c = Counter(a=1) + Counter(a=2, b=1)\nr = dict(c)",
        "cm = ChainMap({'a': 1}, {'a': 2, 'b': 3})\nr = cm['a'], cm['b'], len(cm)",
        "ud = UserDict(a=1)\nud['b'] = 2\nr = dict(ud), len(ud)",
        "d[x] = 1\nr = x in d, len(d)",
        "d[x.sum().item()] = 1\nr = len(d)",
        "st = {1.0, 2.0}\nr = st.pop() in (1.0, 2.0), len(st)",
        "d[obj] = 1\nobj.log.append(2)\nr = d[obj]",
        "for k in d:\n    print(k)\n    d[k] = 0\nr = d",
        "r = {k: print(k) for k in d}",
        "r = {print('el', i) for i in items}",
        "od = OrderedDict(a=1, b=2)\nod.move_to_end('b', last=False)\nr = list(od)",
        "r = d.items() - {('a', 1)} if False else sorted(d.keys() ^ {'a', 'q'})",
        "import json\nr = json.dumps({'a': 1})",
        "r = globals()['SCALE']",
        "r = sorted(locals())",
        "r = types.MappingProxyType({'a': 1})['a'], dict(types.MappingProxyType({'a': 1}))",
    ],
}
