"""Strings, bytes, formatting, regular expressions."""

# ruff: noqa: E501

EXPRESSIONS = r"""
s.upper(), s.lower(), s.title(), s.swapcase(), s.capitalize(), s.casefold()
s.split(", "), s.split(), s.rsplit("o", 1), s.partition(","), s.rpartition("o"), "a\nb".splitlines()
s.replace("l", "L"), s.replace("l", "", 1), s.strip("Hd"), "  a ".lstrip(), " a ".rstrip()
s.find("o"), s.rfind("o"), s.index("W"), s.count("l"), s.startswith("He"), s.endswith(("x", "ld"))
"-".join(["a", "b"]), "".join(str(i) for i in range(3)), ", ".join(sorted("cab"))
"abc".isalpha(), "12".isdigit(), "a1".isalnum(), " ".isspace(), "Ab".istitle(), "a_1".isidentifier()
"x".center(5, "*"), "7".zfill(3), "a".ljust(3) + "|", "a".rjust(3), "a\tb".expandtabs(2)
s[0], s[-1], s[1:4], s[::-1], s[::2], s[5:], s[:100]
"a" * 3, "a" + "b", "b" in s, "zz" not in s, len(s), "a" < "b", "abc" == "abc"
"abc".encode(), b"abc".decode(), "ä".encode("utf-8"), b"ab" + b"c", b"abc"[1], b"abc"[1:], bytes([65, 66])
b"a,b".split(b","), b"abc".hex(), bytes.fromhex("6162"), b"x" in b"xyz", len(b"abc"), list(b"ab")
"{} {}".format(1, "a"), "{0}{1}{0}".format("x", "y"), "{a:>5}|{b:<3}".format(a=1, b=2), "{!r}".format("q")
"%d %s %.2f %5s %%" % (1, "a", 2.5, "b"), "%(k)s" % {"k": 1}, "%x" % 255, "%s" % (1,)
f"{n}", f"{n:03d}", f"{3.14159:.2f}", f"{n!r:>4}", f"{s!s}", f"{'a'}{1 + 1}", f"{n=}", f"{1000000:,}"
f"{n:{n}d}", f"{'x':^{n + 2}}", f"{0.25:.0%}", f"{255:#x}", f"{True}", f"{None}", f"{[1, 2]}", f"{{}}"
f"{x.shape}", f"{x.dtype}", f"shape {tuple(x.shape)} dims {x.dim()}", f"{x.device}"
str(1), str([1, "a"]), str((1,)), str({"a": 1}), str(None), str(1.0), str(b"a"), str()
repr("a'b"), repr([1]), repr(1.5), repr(None), ascii("ä")
"abc".translate(str.maketrans("ab", "xy")), str.maketrans({"a": None}), "a".maketrans("a", "b")
"aXbX".removesuffix("X"), "preabc".removeprefix("pre"), "abc".__len__(), "abc".__contains__("b")
sorted("hello"), list("abc"), tuple("ab"), set("aab") == {"a", "b"}, dict.fromkeys("ab", 0), "".join(reversed("abc"))
max("hello"), min("hello"), [c.upper() for c in "abc"], {c: ord(c) for c in "ab"}, [*"ab"], list(enumerate("ab"))
list(zip("ab", "cd")), "a,b;c".replace(";", ",").split(","), "line1\nline2".split("\n")
string.ascii_lowercase[:3], string.digits, "ab" "cd", r"\n", "tab\t"
Name("bob").shout(), Name("bob") + "x", type(Name("a")).__name__, len(Name("abc")), isinstance(Name("a"), str)
str(Vec(1)), f"{Vec(1):abc}", format(Vec(), "z"), "%s" % Color.RED.name, format(3.5, ".1f"), format(7, "b")
"".join(f"{k}={v};" for k, v in {"a": 1, "b": 2}.items()), "a".join([]), " ".join(["one"])
"layers.3.weight".split(".")[1], "layers.3".rsplit(".", 1), ".".join(["a", "b"]), "conv1.weight".startswith("conv")
"a".isupper(), "A".isupper(), "".isalpha(), "abc".isascii(), "½".isnumeric(), "a b".split(" ", 1)
"abc" > "abd", "a" == b"a", "a" != "b", "abc".__eq__("abc"), "abc".__hash__() == hash("abc")
int("7") + float("0.5"), str(7) + "x", "7" * 2, bool("False")
"""

CASES = {
    0: [
        *EXPRESSIONS.strip().splitlines(),
        'r = ""\nfor c in s:\n    if c.isalpha():\n        r += c.lower()\n    else:\n        r += "_"',
        'try:\n    r = "abc".index("z")\nexcept ValueError as e:\n    r = str(e)',
        'try:\n    r = "abc"[10]\nexcept IndexError as e:\n    r = str(e)',
        'try:\n    r = "a" + 1\nexcept TypeError as e:\n    r = str(e)',
        'try:\n    r = "{} {}".format(1)\nexcept IndexError as e:\n    r = type(e)',
        'parts = s.partition(", ")\nhead, _, tail = parts\nr = head, tail',
        'first, *rest = "abcd"\nr = first, rest',
        'r = {}\nfor w in "a b a".split():\n    r[w] = r.get(w, 0) + 1',
        'r = "%s is %d" % ("x", n) + " and {}".format(n) + f" and {n}"',
        "match s.split():\n    case [a, b]: r = a + b\n    case _: r = None",
        'match s:\n    case "Hello, World": r = 1\n    case str(): r = 2',
        'r = "multi" \\\n    "line"',
        'key = "scale"\nr = getattr(obj, "v").sum() * 1, hasattr(obj, key), getattr(obj, key, "none")',
    ],
    "any": [
        're.match(r"(\\w+), (\\w+)", s).groups(), re.sub("l+", "L", s), re.findall("o", s), bool(re.search("W", s))',
        're.compile("[aeiou]").sub("*", s), re.split(r"\\W+", s)',
        "str(x), repr(y)",
        'f"{x}", f"{x.sum()}", f"{x.sum().item():.2f}"',
        '"{}".format(x.sum())',
        '"%s" % x.mean()',
        'str(obj), repr(obj), f"{obj!r}"',
    ],
}
