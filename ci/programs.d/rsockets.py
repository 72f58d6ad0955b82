"""rsockets: sockets over RDMA, by name, and in the place of those of the kernel (librspreload)."""

from programs import ALONE, SHARED, Case, table

PRELOAD = "env LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"


def stream(name, program, options, prefix="", **how):
    line = f"{prefix} {program} {options}".strip()
    return Case(f"{program}{name}", f"{line} -s {{server}}", f"{line} -b {{server}}", port=7471, **how)


table(
    stream(", many small", "rstream", "-S 64 -C 1 -I 2000", says=(r"^custom +64 ",)),
    stream(", few large", "rstream", "-S 1000000 -C 5 -I 10", says=(r"^custom +976k ",)),
    stream(", verified", "rstream", "-S 65536 -C 20 -I 20 -T v"),
    stream(", poll", "rstream", "-S 4096 -C 20 -I 100 -T a", ways=(ALONE, SHARED)),
    stream(", nonblocking", "rstream", "-S 4096 -C 20 -I 100 -T n -T v", ways=(ALONE, SHARED)),
    stream(", blocking", "rstream", "-S 4096 -C 20 -I 100 -T b", ways=(ALONE, SHARED)),
    stream(", addresses resolved by rdma_cm", "rstream", "-S 4096 -C 20 -I 100 -T r", ways=(ALONE,)),
    stream("", "riostream", "-S 4096 -C 20 -I 100", says=(r"^custom +4k ",)),
    stream(", verified", "riostream", "-S 65536 -C 20 -I 20 -T v"),
    Case("rcopy", "sh -c 'seq 1000000 >{place}/from && rcopy {place}/from {server}:{place}/to && cmp {place}/from {place}/to'",
         "rcopy", port=7427, lasting=True, says=(r"bytes in",)),
    stream(" over librspreload", "rstream", "-S 4096 -C 20 -I 100 -T s", PRELOAD, ways=(ALONE, SHARED)),
)
