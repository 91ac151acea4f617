"""What every random program starts with: helpers, classes, a module, and globals that change between calls."""

PRELUDE = """
import collections, contextlib, dataclasses, enum, functools, itertools, operator, types
import torch
from torch import nn

COUNTER = CLOSED = 0
SEEN = []
SCALE = 2
TABLE = {"k": 1, "m": 2}
NAMES = ["p", "q"]

class Box:
    kind, weight = "box", 1
    def __init__(self, v, tag=0):
        self.v = v
        self.log = []
        self.tag = tag
    @property
    def twice(self):
        return self.v * 2
    def bump(self, k=1):
        self.v = self.v + k
        self.log.append(k)
        return self
    def loud(self, k):
        self.log.append(k)
        print("loud", k, len(self.log))
        return self.v + k
    def __len__(self):
        return len(self.log)
    def __getitem__(self, i):
        return self.log[i]
    def __add__(self, other):
        return Box(self.v + other, self.tag + 1)
    def __eq__(self, other):
        return isinstance(other, Box) and self.tag == other.tag
    def __hash__(self):
        return hash(self.tag)

class Manager:
    def __init__(self, obj, swallow):
        self.obj, self.swallow = obj, swallow
    def __enter__(self):
        self.obj.log.append("in")
        return self
    def __exit__(self, kind, value, tb):
        self.obj.log.append("out" if kind is None else kind.__name__)
        return self.swallow and kind is not None and issubclass(kind, ValueError)

class LoudManager(Manager):
    def __exit__(self, kind, value, tb):
        print("leaving", kind and kind.__name__)
        return Manager.__exit__(self, kind, value, tb)

@contextlib.contextmanager
def scope(obj, tag):
    obj.log.append(("+", tag))
    try:
        yield tag
    finally:
        obj.log.append(("-", tag))

def quiet_helper(x, k=1):
    z = x * 0.5 + k
    return torch.tanh(z)

def loud_helper(x, k):
    z = torch.relu(x) + k
    print("helper", k)
    return z * 0.5

def deep_helper(x, k, *rest, scale=1):
    if k % 2:
        x = loud_helper(x, k) * scale
    return quiet_helper(x, k) + len(rest)

def raising_helper(x, k):
    if k % 3 == 0:
        raise ValueError("bad", k)
    print("survived", k)
    return x - k

def numbers(x, k):
    for i in range(k % 4):
        yield x * i

def loud_numbers(x, k):
    try:
        for i in range(k % 4):
            got = yield x + i
            print("got", i, got is None)
    finally:
        global CLOSED
        CLOSED += 1

def delegating(x, k):
    r = yield from loud_numbers(x, k)
    yield x if r is None else r

def count_calls(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        global COUNTER
        COUNTER += 1
        return fn(*args, **kwargs)
    return inner

@count_calls
def decorated(x, k=2, *, neg=False):
    return -x if neg else x * k

class Kind(enum.Enum):
    A = 1
    B = 2

KIND = Kind.A
Point = collections.namedtuple("Point", "x y")

@dataclasses.dataclass
class Pair:
    left: object
    right: int = 1
    def both(self):
        return self.left * self.right

class Base:
    factor = 2
    def __init__(self, v):
        self.v, self.seen = v, 0
    def apply(self, t, k=1):
        self.seen += 1
        return t * self.factor + k
    @classmethod
    def make(cls, v):
        return cls(v)
    @staticmethod
    def shift(t, k):
        return t + k
    def __call__(self, t):
        return self.apply(t, k=2)
    def __iter__(self):
        return iter([self.v, self.v * 2])
    def __contains__(self, k):
        return k in (1, 2)
    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return len(name)
        raise AttributeError(name)

class Derived(Base):
    def apply(self, t, k=1):
        return super().apply(t, k) - 1
    @property
    def level(self):
        return self.seen
    @level.setter
    def level(self, value):
        self.seen = value

class Conf:
    pass

class OtherConf(Conf):
    rate = 7

CONF = Conf()
CONF.rate, CONF.mode, CONF.flags, CONF.sizes, CONF.limit = 0.5, "a", {"p", "q"}, (1, 2), None
CONF.nested = {"a": {"b": 1}, "list": [1, [2, 3]]}
CONF.fn, CONF.part = quiet_helper, functools.partial(quiet_helper, k=2)
CONF.shared = CONF.nested["list"]

class Net(nn.Module):
    scale = 1
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
        self.register_buffer("count", torch.zeros(()))
        self.gain = 0.5
    def forward(self, t, k=1):
        t = self.lin(t) * self.gain + k
        for layer in self.layers:
            t = layer(t)
        if self.training:
            self.count += 1
        return t * self.scale
    def loud(self, t):
        print("net", self.training)
        return self(t) + self.count

torch.manual_seed(5)
NET = Net()

def other_helper(x, k=3):
    return x - k

def other_forward(self, t, k=1):
    return self.lin(t) - k

def hook(module, args, out):
    SEEN.append("hook")
    return out + 1

def pre_hook(module, args):
    return (args[0] * 2,)

class Half(nn.Module):
    def forward(self, w):
        return w * 0.5

def other_bump(self, k=1):
    self.log.append("other")
    return self

def finder(x, items):
    for v in items:
        try:
            if v % 3 == 0:
                return x * v
            if v % 3 == 1:
                continue
            print("try", v)
        finally:
            x = x + 1
            SEEN.append(v)
    return x

def careful(x, k, box):
    with Manager(box, True):
        try:
            if k % 2:
                raise ValueError(k)
            print("careful", k)
        except KeyError:
            return x
        finally:
            x = x * 2
        return x + 1
    return x - 1

def recurse(x, k):
    if k <= 0:
        return x
    if k == 2:
        print("depth", k)
    return recurse(x * 0.5, k - 1) + k

def pairs(items):
    state = {"n": 0}
    def step(v):
        state["n"] += v
        return state["n"]
    for v in items:
        yield v, step(v)

def accumulate(x):
    total = 0
    while True:
        got = yield x * total
        if got is None:
            return total
        total += got

def tally(items, **extra):
    out = collections.defaultdict(list)
    for v in items:
        out[v % 3].append(v)
    for name in sorted(extra):
        out[name].append(extra[name])
    return out
"""

CHANGES = [  # what may happen between two calls, in the program's module
    *(f"SCALE = {v}" for v in ("3", "2.0", "True", "0.5", "-0.0", "2")),
    "TABLE['k'] = 5", "TABLE['k'] = 1.0", "TABLE.pop('k', None)", "TABLE['new'] = 3", "TABLE.clear()",
    "TABLE = dict(reversed(list(TABLE.items())))", "TABLE = dict(TABLE)",
    "NAMES.append('r')", "NAMES.reverse()", "NAMES[:] = ['p', 'q']", "NAMES = tuple(NAMES)",
    "KIND = Kind.B", "KIND = Kind.A",
    "Box.kind = 'crate'", "Box.weight = 3", "Box.bump = other_bump", "Box.extra = 1", "Box.loud.__defaults__ = (4,)",
    "Base.factor = 3", "Derived.factor = 5", "Base.apply.__defaults__ = (4,)", "Derived.apply = Base.apply",
    "Derived.level = 9", "Base.__contains__ = lambda self, k: k == 3", "Base.shift = staticmethod(lambda t, k: t - k)",
    "quiet_helper = other_helper", "quiet_helper.__defaults__ = (2,)", "quiet_helper.__code__ = other_helper.__code__",
    "decorated.__kwdefaults__ = {'neg': True}", "decorated = loud_helper",
    "CONF.rate = 0.25", "CONF.rate = 2", "CONF.__dict__.pop('rate', None)", "CONF.extra = 2", "CONF.limit = 3",
    "CONF.mode = 'b'", "CONF.mode = b'a'", "CONF.flags.add('z')", "CONF.flags.discard('p')", "CONF.flags = {'q'}",
    "CONF.sizes = (1, 2, 3)", "CONF.sizes = [1, 2]", "CONF.__class__ = OtherConf", "OtherConf.rate = 8",
    "CONF.nested['a']['b'] = 2", "CONF.nested['a'] = {}", "CONF.nested['list'][1].append(4)", "CONF.shared = [1, [2]]",
    "CONF.fn = other_helper", "CONF.fn = lambda x, k=1: x + SCALE", "CONF.part.keywords['k'] = 4",
    "CONF.part = functools.partial(other_helper, k=1)", "CONF.__dict__ = dict(CONF.__dict__)",
    "NET.train()", "NET.eval()", "NET.gain = 2.0", "NET.gain = 1", "NET.lin = nn.Linear(3, 3)", "NET.lin.bias = None",
    "NET.lin.weight.data.mul_(2)", "NET.lin.weight.requires_grad_(False)", "NET.requires_grad_(False)",
    "NET.layers.append(nn.ReLU())", "NET.layers[0] = nn.ReLU()", "NET.layers = NET.layers[:1]", "NET.count.add_(5)",
    "NET.register_forward_hook(hook)", "NET.lin.register_forward_pre_hook(pre_hook)", "NET.scale = 2", "Net.scale = 3",
    "NET.forward = types.MethodType(other_forward, NET)", "Net.forward = other_forward", "NET.count = torch.ones(3)",
    "nn.utils.parametrize.register_parametrization(NET.lin, 'weight', Half())", "NET = Net()",
    "torch.set_num_threads(1)", "pairs = lambda items: [(v, v) for v in items]", "len = lambda v: 4", "del len",
]  # fmt: skip
