"""Numbers, booleans, None, comparison, ``math``, builtin functions on numbers."""

# ruff: noqa: E501

EXPRESSIONS = """
n + 2 * n - 1
n ** 2 // 2 % 5
-n // 2, -n % 4, divmod(-7, 3), divmod(7.5, 2)
n << 2 | 1 & 3 ^ 5, ~n, n >> 1
n / 2, n // 2.0, 2 ** -1, 0 ** 0
1 < n <= 3 < 10, 1 < n > 5
n == 3 and n != 4 or False
not n, not 0, not [], not "", not None
n is not None, None is None, n is None
(n > 2) + (n > 1), True + True, True * 5
abs(-n), abs(-2.5), abs(True)
round(2.5), round(3.14159, 2), round(-1.5), round(1234, -2)
pow(2, 10), pow(3, 4, 5), pow(2.0, 0.5)
min(3, 1, 2), max([1, 5, 2]), min("b", "a"), max((1, 2), (1, 3))
min([], default=7), max(items, key=lambda v: -v)
sum(items), sum(items, 10), sum([[1], [2]], []), sum((0.1, 0.2))
any([0, 0, 1]), all([1, 1]), any([]), all([])
int("12"), int("ff", 16), int(3.9), int(-3.9), int(True), int()
float("1.5"), float("inf"), float(3), float()
bool([]), bool("a"), bool(0.0), bool(None), bool()
complex(1, 2), (1 + 2j) * 2, abs(3 + 4j), (1 + 2j).conjugate()
hex(255), oct(8), bin(5), chr(65), ord("A")
(255).bit_length(), (5).bit_count(), (10).to_bytes(2, "big"), int.from_bytes(b"\\x01\\x00", "big")
(0.5).as_integer_ratio(), (2.0).is_integer(), float.fromhex("0x1p3"), (1.5).hex()
1_000_000, 0xFF, 0b101, 1e-3, 3.
float("nan") == float("nan"), float("nan") != 1
1 == 1.0 == True, 1 is True, 0.0 == -0.0
(1).__add__(2), (3).__neg__(), int.__mul__(2, 3)
math.sqrt(16), math.floor(2.7), math.ceil(2.1), math.trunc(-2.5)
math.pi > 3, math.isclose(0.1 + 0.2, 0.3), math.gcd(12, 18), math.lcm(4, 6)
math.log(math.e), math.log2(8), math.exp(0), math.sin(0.0), math.prod([1, 2, 3])
math.inf > 1, math.isnan(math.nan), math.copysign(1, -0.0), math.hypot(3, 4)
math.comb(5, 2), math.factorial(5), math.fsum([0.1] * 10), math.dist((0, 0), (3, 4))
math.prod(x.shape), math.sqrt(x.shape[1]), math.log(x.numel())
x.shape[0] * n + x.dim(), len(x), x.numel() // 2
isinstance(n, int), isinstance(True, int), isinstance(n, (str, int)), isinstance(n, int | str)
isinstance(None, type(None)), isinstance(x, torch.Tensor), issubclass(bool, int)
type(n), type(n) is int, type(1.0).__name__, type(type(n))
callable(len), callable(n), callable(lambda: 0), callable(Box)
hash(n) == hash(3), hash("a") == hash("a"), hash((1, 2)) == hash((1, 2)), hash(2.0) == hash(2)
n if n > 5 else -n, (n and 0) or 7
(lambda a, b=2: a * b)(n), (lambda *a: a)(1, 2), (lambda **k: k)(a=1)
[n, n * 2][n > 2], (1, 2, 3)[-1], "abc"[n - 1]
sum(i * i for i in range(n)), sum(map(float, items))
n.real, n.imag, n.numerator, (2.5).real
int.__name__, float.__module__, int.mro()[1] is object
1 if x.is_floating_point() else 2
slice(1, 2), slice(None, n, 2).indices(10), slice(3).stop
range(n), range(1, 10, 3)[1], len(range(0, 10, 3)), 4 in range(5), range(5)[1:3], range(3) == range(0, 3)
list(range(10, 0, -3)), range(5).index(2), range(5).count(9), range(n).stop, tuple(reversed(range(n)))
operator.add(n, 1), operator.itemgetter(1)(items), operator.attrgetter("v")(obj) is obj.v
operator.mul(x, 2).sum() * 1, operator.neg(n), operator.not_(n), operator.truth([]), operator.is_(n, None)
operator.contains(items, 2), operator.getitem(items, 0), operator.methodcaller("upper")("a"), operator.index(True)
operator.concat([1], [2]), operator.countOf(items, 1), operator.indexOf(items, 2), operator.xor(5, 3)
operator.lt(1, 2), operator.eq(x, x).sum() * 1, operator.pos(-3), operator.invert(4), operator.matmul(x, x.T)
bool(Flags.A & Flags.B), Flags.A | Flags.B, Color(1), Color["GREEN"], Color.RED.value, Level.LOW < Level.HIGH
Color.RED.pretty, Color.RED.next(), Color.RED is Color.RED, [c.name for c in Color], len(Color), Color.RED in Color
Level.HIGH + 1, int(Level.LOW), Mode.TRAIN == "train", Mode("eval").value.upper(), f"{Level.LOW}"
{Color.RED: 1}[Color.RED], hash(Color.RED) == hash(Color.RED), Color.RED != Color.GREEN, isinstance(Color.RED, Color)
np.prod((2, 3)), np.sqrt(4.0), float(np.float32(1.5)), np.pi > 3, int(np.int64(4))
torch.finfo(x.dtype).eps < 1, torch.iinfo(torch.int32).max, torch.float32.is_floating_point, x.dtype == torch.float32
str(x.dtype), repr(x.device), x.device.type, x.device == torch.device("cpu"), x.shape == (2, 3), tuple(x.shape)
x.size(), x.size(-1), x.stride(), x.ndim, x.is_contiguous(), x.requires_grad, x.is_cuda, x.element_size()
torch.Size([2, 3]).numel(), x.shape[1:], x.shape + (1,), list(x.shape), x.shape.index(3), x.shape[-1] == 3
"""

CASES = {
    0: [
        *EXPRESSIONS.strip().splitlines(),
        """
a = b = n
a += 1
b *= a
a -= b
b //= 2
a %= 7
b **= 2
a <<= 1
b |= 8
a ^= 3
b &= 60
r = a, b
""",
        """
total = 0
for i in range(n):
    for j in range(i):
        if j == 1: continue
        total += i * j
    else:
        total += 100
r = total
""",
        """
k = 0
while True:
    k += 1
    if k % 2: continue
    if k > 7: break
else:
    k = -1
r = k
""",
        """
k = 3
while k:
    k -= 1
else:
    k = "done"
r = k
""",
        """
if (m := n * 2) > 5 and (p := m - 1):
    r = m, p
else:
    r = None
""",
        """
r = [y2 := n, y2 ** 2]
r.append(y2)
""",
        """
try:
    r = n // 0
except ZeroDivisionError as e:
    r = str(e)
""",
        """
try:
    r = int("x")
except ValueError as e:
    r = e.args
""",
        """
try:
    r = n + "a"
except TypeError as e:
    r = str(e)
""",
        """
r = 0
for r in range(n): pass
""",
        """
del n
try:
    r = n
except UnboundLocalError as e:
    r = type(e).__name__, str(e)
""",
    ],
}
