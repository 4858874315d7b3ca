"""The independent side of the tests: Python's csv, json and gzip.

tables.py write DIR ROWS      one table as csv in each dialect, and as JSON lines as csv reads it back
tables.py read DIALECT FILE…  what csv reads in the files, as JSON lines
tables.py json DIR ROWS       JSON lines of all kinds of values, written in two ways
tables.py same A B            whether two files of JSON lines have the same values, as json reads them
tables.py gzip IN OUT         compresses, in two members
tables.py gunzip IN OUT
"""
import csv
import gzip
import json
import random
import sys


class Excel(csv.excel):
    """CRLF, quotes only where they are needed."""


class Unix(csv.unix_dialect):
    """LF, everything in quotes."""


class Tab(csv.excel_tab):
    """Tabs."""


class Semicolon(csv.excel):
    delimiter = ";"
    quotechar = "'"


class Bom(csv.excel):
    """With a byte order mark."""


DIALECTS = {"excel": Excel, "unix": Unix, "tab": Tab, "semicolon": Semicolon, "bom": Bom}
COLUMNS = ["id", "plain", "quoted", "lines", "spaces", "текст", 'na"me, quoted']

PIECES = ["", " ", "  lead", "trail  ", "\t", "\n", "\r\n", "\r", "\n\n", ",", ",,", ";", '"', '""', "'", "''", '","', "\";\"",
          "\\", "\\n", "\\\"", "/", "null", "NaN", "0", "-0", "1e400", "00012", "true", "=1+1", "#", "{}", "[1]", "<&>",
          "ä", "ß", "日本", "🚀", "\u2028", "\u00a0", "e\u0301", "\ufeff", "\x01", "\x1f", "\x7f", "\u0080"]


def opened(path, dialect, mode):
    encoding = "utf-8-sig" if dialect == "bom" else "utf-8"
    return open(path, mode, encoding=encoding, newline="")


def table(rows):
    rng = random.Random(20)

    def nasty():
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(5)))

    for i in range(rows):
        yield [str(i), rng.choice(("Ada", "Bruno", "Chloe")), nasty(), nasty(), " " * rng.randrange(3) + nasty(), nasty(), nasty()]


def write(directory, rows):
    data = list(table(rows))
    for name, dialect in DIALECTS.items():
        with opened(f"{directory}/{name}.csv", name, "w") as f:
            w = csv.writer(f, dialect)
            w.writerow(COLUMNS)
            w.writerows(data)
    with open(f"{directory}/table.jsonl", "w", encoding="utf-8", newline="\n") as f:
        for row in data:
            f.write(json.dumps(dict(zip(COLUMNS, row)), ensure_ascii=False) + "\n")
    # What is compared with is what Python reads, not what it wrote.
    for name in DIALECTS:
        n = 0
        for row, want in zip(records(name, [f"{directory}/{name}.csv"]), data, strict=True):
            assert list(row.values()) == want, (name, row, want)
            n += 1
        assert n == rows


def records(dialect, paths):
    for path in paths:
        with opened(path, dialect, "r") as f:
            for row in csv.DictReader(f, dialect=DIALECTS[dialect], strict=True):
                assert None not in row and None not in row.values(), (path, row)
                yield row


def read(dialect, paths):
    for row in records(dialect, paths):
        sys.stdout.buffer.write((json.dumps(row) + "\n").encode())


def values(directory, rows):
    rng = random.Random(21)

    def value(depth):
        kind = rng.randrange(9 if depth < 3 else 6)
        if kind == 0:
            return rng.choice([None, True, False])
        if kind == 1:
            return rng.choice([0, -1, 2**53 + 1, -2**63, 2**64, 10**30, rng.randrange(10**6)])
        if kind == 2:
            return rng.choice([0.1, -0.0, 1e-7, 1.7976931348623157e308, 5e-324, rng.random()])
        if kind <= 5:
            return "".join(rng.choice(PIECES) for _ in range(rng.randrange(4)))
        if kind == 6:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        return {rng.choice(PIECES) + str(k): value(depth + 1) for k in range(rng.randrange(4))}

    with open(f"{directory}/ascii.jsonl", "w", newline="\n") as a, open(f"{directory}/utf8.jsonl", "w", encoding="utf-8", newline="\n") as u:
        for i in range(rows):
            v = {"id": i, "v": value(0), "w": value(0)}
            a.write(json.dumps(v, ensure_ascii=True) + "\n")
            u.write(json.dumps(v, ensure_ascii=False, separators=(",", ":")) + "\n")


def same(a, b):
    n = 0
    with open(a, "rb") as left, open(b, "rb") as right:
        for n, (x, y) in enumerate(zip(left, right, strict=True), 1):
            if x != y and canonical(x) != canonical(y):
                sys.exit(f"record {n}:\n{x!r}\n{y!r}")
    print(n)


def canonical(line):
    # The order of names counts, too.
    return json.loads(line, object_pairs_hook=tuple, parse_float=repr_float)


def repr_float(text):
    return ("float", repr(float(text)))


def pack(source, target):
    with open(source, "rb") as f, open(target, "wb") as out:
        data = f.read()
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as z:
                z.write(part)


def unpack(source, target):
    with gzip.open(source, "rb") as f, open(target, "wb") as out:
        out.write(f.read())


if __name__ == "__main__":
    verb, *args = sys.argv[1:]
    if verb == "write":
        write(args[0], int(args[1]))
    elif verb == "read":
        read(args[0], args[1:])
    elif verb == "json":
        values(args[0], int(args[1]))
    elif verb == "same":
        same(*args)
    elif verb == "gzip":
        pack(*args)
    elif verb == "gunzip":
        unpack(*args)
    else:
        sys.exit(__doc__)
