#!/usr/bin/env python3
"""Keeps the fuzz targets' corpora as text: fuzz/seeds/TARGET.txt has an input on each line, in
base64.

  fuzz/seeds.py unpack           puts them into fuzz/corpus/TARGET/, where cargo-fuzz looks for them
  fuzz/seeds.py pack TARGET...   writes them again, from a corpus that `cargo fuzz cmin TARGET` has
                                 made small
"""

import base64
import hashlib
import sys
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
# The most octets of a file. The shortest inputs come first; those that do not fit contribute least
# for their length.
ROOM = 100 * 1024


def unpack():
    for seeds in sorted((FUZZ / "seeds").glob("*.txt")):
        corpus = FUZZ / "corpus" / seeds.stem
        corpus.mkdir(parents=True, exist_ok=True)
        for line in seeds.read_text().split():
            octets = base64.b64decode(line, validate=True)
            (corpus / hashlib.sha1(octets).hexdigest()).write_bytes(octets)


def pack(target):
    inputs = {path.read_bytes() for path in (FUZZ / "corpus" / target).iterdir()}
    lines, room = [], ROOM
    for octets in sorted(inputs, key=lambda octets: (len(octets), octets)):
        line = base64.b64encode(octets).decode() + "\n"
        room -= len(line)
        if octets and room >= 0:
            lines.append(line)
    (FUZZ / "seeds" / f"{target}.txt").write_text("".join(lines))
    print(f"{target}: {len(lines)} of {len(inputs)} inputs, {ROOM - max(room, 0)} octets")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["unpack"]:
            unpack()
        case ["pack", first, *others]:
            for name in [first, *others]:
                pack(name)
        case _:
            sys.exit(__doc__)
