"""Classes: attributes, properties, descriptors, operators, metaclasses, dataclasses, super(), modules; side effects."""

# ruff: noqa: E501

EXPRESSIONS = """
obj.v + 1, obj.kind, obj.twice, Box.static(3), Box.make(2).v, obj.static(1, b=5), Box.count
Sub(x).method(2), Sub(1).kind, Sub.make(3).extra, Sub(1, extra=2).extra, isinstance(Sub(1), Box), Sub.__mro__[1] is Box
getattr(obj, "v") is obj.v, getattr(obj, "zz", 7), hasattr(obj, "v"), hasattr(obj, "nope"), obj.__class__ is Box, type(obj).kind
obj.__dict__.keys() == {"v", "log"}, vars(obj)["v"] is obj.v, "v" in obj.__dict__, sorted(vars(Sub(1)))
D().who(), [c.__name__ for c in D.__mro__], B.who(D()), super(D, D()).who()
Vec(1, 2) + Vec(3, 4), Vec(1) * 3, 3 * Vec(1), -Vec(2), 10 + Vec(1, 2), Vec(1, 2) @ Vec(3, 4), ~Vec(), Vec() // 4, 9 - Vec()
Vec(1, 2)[1], len(Vec(1, 2)), list(Vec(1, 2)), bool(Vec(1)), bool(Vec(1, 2)), Vec(5)(0), Vec(7)(), [9, 8, 7][Vec(1, 2)]
Vec(x) + Vec(y), Vec(x)[0] + 1, sum(Vec(x, y)), [v * 2 for v in Vec(x)], Vec(1) ** 5, pow(Vec(), 2, 7), list(reversed(Vec(1, 2))), abs(Vec(1))
(Vec(1) << 2 << 3).parts, 1 in Vec(1), "zz" in Vec("zz"), (Vec(1, 2), 3)[0][0], max(Vec(3, 9)), sorted(Vec(2, 1))
Slotted(1, x).a, Slotted(1, x).b + 1, hasattr(Slotted(1, 2), "__dict__"), Slotted.__slots__
Lazy().auto_x, Lazy().real, hasattr(Lazy(), "nope"), getattr(Lazy(), "other", 3), Lazy().auto_long
Watching().secret, hasattr(Watching(), "zz"), Described().cached, Described().heavy, Described.size is not None
WithMeta(3).a, WithMeta().made_by_meta, WithMeta["k"], "in" in WithMeta, len(WithMeta), WithMeta.tag, type(WithMeta) is Meta
Config(3), Config(3).total, Config(2, 5, ["a"]).names, Config(1) == Config(1), Config(1) != Config(2), Config(width=4, extra=x).extra + 1
Frozen(1, "z"), Frozen(1) < Frozen(2), hash(Frozen(3)) == hash(Frozen(3)), Frozen(1).b, Tight(x).b, Tight(1, 2).a
dataclasses.replace(Frozen(1), a=5), dataclasses.asdict(Frozen(1)), [f.name for f in dataclasses.fields(Config)], dataclasses.is_dataclass(Config)
Square(3).describe(), Square(2).area(), isinstance(Square(1), Shape), issubclass(Square, Shape)
Point(x, 2).x + 1, Point(3, 4).norm1(), Point.__name__, Pair._fields, isinstance(Point(1), Point), Point(1, 2) < Point(1, 3)
Ranked(1) < Ranked(2), Ranked(3) >= Ranked(2), Ranked(1) == Ranked(1), sorted([Ranked(3), Ranked(1)])[0].r, min(Ranked(2), Ranked(1)).r
Meters(2.0).feet(), Meters(1) + 1, isinstance(Meters(1), float), Name("a").shout(), Stack([1]).top(), Attr(k=1).k
Color.RED.pretty, Color(2).name, Level.HIGH.value * 2, list(Flags)[0].name, Mode.EVAL.value
callable(obj), callable(Vec()), obj.__len__(), len(obj), bool(obj), not obj, str(obj), repr(Box(1))
object() is not object(), type(object()).__name__, isinstance(obj, object), obj == obj, obj != Box(1), obj is obj
typing.cast(int, n), Optional[int] is not None, list[int] is not None, isinstance(n, int | None), typing.get_origin(list[int]) is list
(obj if n else None).v.sum() * 1, [o.v for o in (obj, Sub(x))][1] + 1, {o.kind for o in (obj, Sub(1))} == {"box", "sub"}
nn.ReLU()(x - 2), nn.Sequential(nn.Identity(), nn.Tanh())(x), nn.Flatten()(x).shape, nn.Softmax(-1)(x).sum(), isinstance(nn.ReLU(), nn.Module)
F.relu(x - 2), F.softmax(x, -1), F.one_hot(torch.tensor([0, 2]), 3), F.pad(x, (1, 1)), F.linear(x, y), F.layer_norm(x, (3,))
torch.where(x > 2, x, y), torch.einsum("ij,kj->ik", x, y), torch.arange(n), torch.zeros_like(x), x.new_ones(2), torch.tensor([n, 2])
x.view(-1), x.reshape(3, 2), x.T, x.permute(1, 0), x.unsqueeze(0).squeeze(0), x.flatten(), x.expand(2, 2, 3), x.chunk(2)[0], x.split(1)[1]
x[0], x[:, 1], x[..., -1], x[None].shape, x[[0, 1]], x[0, 1], x[:1], x[:, ::2]
x.max(dim=1).values, torch.max(x, 1)[1], x.sum(0, keepdim=True), x.mean(), x.std(dim=0), x.argmax(), x.topk(2).indices, torch.sort(x).values
x.to(torch.float64).dtype, x.half().float(), x.int(), x.type(torch.int64), x.double() + 1, x.bool(), x.clone().detach(), x.contiguous()
x.add(1).mul(2).sub_(1), x.clone().fill_(2), x.clone().clamp_(1, 3), torch.add(x, y, alpha=2), x.pow(2).sqrt(), x.matmul(y.T)
"""

CASES = {
    0: [
        *EXPRESSIONS.strip().splitlines(),
        "obj.v = x * 3\nobj.new = n\nr = obj.v + 1, obj.new\ndel obj.new\nr += (hasattr(obj, 'new'),)",
        "obj.twice = x\nr = obj.v, obj.twice",
        "setattr(obj, 'dyn', x)\nr = obj.dyn + 1\ndelattr(obj, 'dyn')\nr += hasattr(obj, 'dyn')",
        "obj.log.append(1)\nobj.log += [2]\nobj.count += 1\nr = obj.log, obj.count, Box.count",
        "b2 = Box(x)\nb2.other = obj\nobj.friend = b2\nr = obj.friend.other is obj",
        "o = Sub(x)\no.v = o.v * 2\nr = o.method(1), o.log",
        "sl = Slotted(1, 2)\nsl.a = x\nsl.b += 1\ndel sl.b\nr = sl.a + 1, hasattr(sl, 'b')",
        "st = Strict()\nst.a = 1\nr = st.a\ndel st.a\nr = r, st.a",
        "de = Described()\nde.size = 4\nr = de.size, de._size, de.heavy, de.heavy, 'heavy' in de.__dict__",
        "de = Described()\ntry:\n    de.size = 'x'\nexcept TypeError as e:\n    r = str(e)",
        "fr = Frozen(1)\ntry:\n    fr.a = 2\nexcept dataclasses.FrozenInstanceError as e:\n    r = str(e)",
        "cf = Config(2)\ncf.names.append('a')\ncf.width *= 2\nr = cf, Config(2).names",
        "v = Vec(1, x)\nv[0] = y\nv *= 2\ndel v[0]\nr = v.parts, v is not None",
        "v = w = Vec(1)\nv *= 3\nr = w.parts, v is w",
        "s2 = Stack([1])\ns2.push(2).push(x)\ns2.attr = 'a'\nr = len(s2), s2.attr, s2.top() + 1, s2[:2]",
        "r = nn.Linear.__name__",
        "obj2 = obj\nobj2.v = 5\nr = obj.v, obj is obj2",
        "o1, o2 = Box(1), Box(1)\no1.log.append(o2)\nr = o1.log[0] is o2, o1 == o2, len(o2)",
        "c = copy.copy(obj)\nc.v = 1\nr = c.log is obj.log, obj.v is not c.v",
        "c = copy.deepcopy(Box([1, [2]]))\nc.v[1].append(3)\nr = c.v",
        "o = Box.__new__(Box)\no.v = x\nr = o.v + 1, hasattr(o, 'log')",
        "f2 = Box.method\nr = f2(obj, 4), obj.log",
        "r = [m() for m in (obj.method, Sub(1).method)]",
        "props = {k: getattr(obj, k) for k in ('v', 'kind')}\nr = props",
        "for name, value in {'a': 1, 'b': x}.items():\n    setattr(obj, name, value)\nr = obj.a, obj.b + 1",
        "x += 1\nr = x * 2",
        "x.add_(1).mul_(2)\nr = x",
        "z = x.view(-1)\nz[0] = 100\nr = x",
        "a, b = x.unbind(0)\nr = a * b",
        "rows = [row * i for i, row in enumerate(x)]\nr = torch.stack(rows)",
        "h = x\nfor layer in [torch.tanh, torch.relu, lambda v: v * 2]:\n    h = layer(h)\nr = h",
        "q, k, v = (x * i for i in range(1, 4))\nr = F.softmax(q @ k.T / math.sqrt(q.shape[-1]), -1) @ v",
        "b, t = x.shape\nr = x.view(b, t, 1).expand(-1, -1, n).reshape(b, t * n)",
        "mask = torch.ones(n, n).tril().bool()\nr = torch.zeros(n, n).masked_fill(~mask, float('-inf'))",
        "cache = {}\ndef get(k):\n    if k not in cache: cache[k] = x * k\n    return cache[k]\nr = get(1) is get(1), get(2)",
        "out = {}\nfor name in ('a', 'b'):\n    out.setdefault(name, []).append(x)\nr = {k: torch.cat(v) for k, v in out.items()}",
        "total = 0.0\nfor w in (0.5, 0.25):\n    total = total + w * x.sum()\nr = total",
        "r = None\nfor t in (x, y):\n    r = t if r is None else r + t",
        "x = x if x.dim() == 2 else x[None]\nr = x.shape[0] * x.size(1)",
        "assert x.shape[1] == y.shape[1], f'{x.shape} {y.shape}'\nr = x @ y.T",
        "kwargs = dict(dim=-1, keepdim=True)\nr = x.sum(**kwargs)",
        "args = (x, y)\nr = torch.add(*args, alpha=n)",
        "fn = getattr(torch, 'tanh')\nr = fn(x), getattr(x, 'sum')(), getattr(F, 'relu')(x)",
        "dt = {'f': torch.float64, 'i': torch.int64}['f']\nr = x.to(dt), x.to(device=x.device, dtype=dt)",
        "r = torch.empty(0)\nr = torch.cat([r.view(0, 3), x])",
        "s1, s2 = x.split([1, 2], dim=1)\nr = s2 * s1",
        "import torch.nn.functional as FF\nr = FF.gelu(x)",
        "@torch.no_grad()\ndef f2(v): return v * 2, torch.is_grad_enabled()\nr = f2(x)",
        "r = functools.reduce(torch.add, [x, y, x])",
        "log.append(x)\nlog[0] = log[0] + 1\nlog.append(log[0] * 2)\nr = len(log)",
        "obj.v, obj.log = obj.log, obj.v\nr = len(obj.v)",
        "d['o'] = obj\nd['o'].v = 3\nr = obj.v",
        "lst = [obj, obj]\nlst[0].v = 1\nlst[1].v += 1\nr = obj.v, lst[0] is lst[1]",
        "a = [x]\nb = a\nb[0] = b[0] + 1\nr = a[0], a is b",
        "def swap(o):\n    o.v, o.w = 1, o.v\n    return o\nr = swap(obj) is obj, obj.w + 1",
        "obj.__dict__['direct'] = 5\nr = obj.direct, vars(obj)['direct']",
        "obj.__dict__.update(a=1, b=2)\nr = obj.a + obj.b",
        "ns = types.SimpleNamespace(x=x)\nns.y = ns.x + 1\nr = ns.y",
        "items.append(items)\nr = items[-1] is items\nitems.pop()",
        "r = obj.method.__func__ is Box.method, obj.method.__name__",
        "class_attr = Box.kind\nobj.kind = 'mine'\nr = obj.kind, Box.kind, class_attr\ndel obj.kind\nr += (obj.kind,)",
    ],
    "any": [
        "loss = nn.CrossEntropyLoss()\nprint('made')\nr = loss(x, torch.tensor([0, 1]))",
        "class Late(nn.Module):\n    def __init__(self):\n        print('before')\n        super().__init__()\n        self.k = 2\n    def forward(self, v): return v * self.k\nr = Late()(x)",
        "Box.count += 1\nr = Box.count\nBox.count = 0",
        "TABLE['three'] = 3\nr = len(TABLE)",
        "n2 = Net()\nr = n2(x).shape",
        "lin = nn.Linear(3, 2)\nr = lin(x).shape, lin.in_features",
        "x.foo = 5\nr = x.foo",
        "r = x.requires_grad_().requires_grad",
        "z = x.clone().requires_grad_()\n(z * 2).sum().backward()\nr = z.grad",
        "w = nn.Parameter(x)\nr = w * 2",
        "r = torch.autograd.grad((y.requires_grad_() * 2).sum(), y)",
        "r = [type(m).__name__ for m in Net().modules()]",
        "obj.v.data = x * 0\nr = obj.v",
        "r = x.data_ptr() == x.data_ptr()",
        "r = torch.equal(x, x), torch.allclose(x, y), x.is_same_size(y)",
        "r = x.unique(), x.nonzero(), torch.masked_select(x, x > 2)",
        "r = x.storage_offset(), x.is_leaf, x.grad, x.grad_fn, x._version >= 0",
        "r = hash(x) == hash(x), x is x, id(x) == id(x)",
        "r = copy.deepcopy(x) + 1, copy.copy(y)",
        "r = torch.jit.is_scripting(), torch.compiler.is_compiling() or True",
        "import weakref\nw = weakref.ref(obj)\nr = w() is obj",
        "r = sys.getrefcount(obj) > 0",
        "r = dir(obj)[:1]",
        "r = threading.active_count() if 'threading' in globals() else 1",
        "obj2 = Box.__new__(Box)\nr = isinstance(obj2, Box)",
        "e = x.sum().item()\nfor i in range(int(e) % 4):\n    x = x + i\nr = x",
        "k = int(x.max())\nr = x[:, :k] if k < 3 else x",
        "r = [x * i for i in range(int(y.numel()))][-1]",
        "r = x.sum().item() if x.sum() > 1 else y.sum().item()",
        "vals = x.tolist()\nr = sum(vals[0])",
        "a = np.ones(3)\nr = torch.from_numpy(a) + 1, x.numpy().sum()",
        "r = np.float64(2.0) * x, x * np.float32(2)",
        "r = os.environ.get('HOME', '') != '' or True",
        "with open(os.devnull) as fh:\n    r = fh.read()",
        "r = time.perf_counter() > 0, time.time() > 0",
        "x2 = x.clone()\nx2[0] = 1\nx2[:, 1] += 2\nx2[x2 > 3] = 0\nr = x2",
        "i = torch.tensor(1)\nr = x[i], x.index_select(0, i), x.gather(1, torch.tensor([[0], [1]]))",
    ],
}
