"""Programs that connect their queue pairs themselves: they exchange addresses and numbers over a
socket of the kernel, and call ibv_modify_qp. perftest counts credits of its own where a device calls
itself iWARP, and then cannot free its protection domain; its Sends run where it calls itself RoCE.

These cases come last: the kernel has the port of their sockets in TIME-WAIT for a minute, and other
programs listen there for RDMA."""

from programs import ALONE, SHARED, Case, table

BW = r"BW average"
LAT = r"t_avg"
ROCE = "--as roce "


def exchanging(name, program, options, says, label="", **how):
    """Both ends have the same options; the client names the server."""
    return Case(f"{program}{name}, self-connected", f"{label}{program} {options} {{server}}", f"{label}{program} {options}",
                port=18515, kernel=True, says=(says,), server_says=(says,), **how)


def perftest(name, program, options, says, label="", **how):
    case = exchanging(name, program, f"-F {options}", says, label, **how)
    # At a Read or atomic the server only waits.
    case.server_says = ()
    return case


# Those of perftest.py.
EACH = [(f"ib_{operation}_{what}", says, ROCE if operation == "send" else "")
        for operation in ("write", "read", "send") for what, says in (("bw", BW), ("lat", LAT))]
BOTH = {"ways": (ALONE, SHARED)}


def perftests(name, options, *among, **how):
    """The tests with one of these words in their names."""
    return [perftest(name, program, options, says, label, **how) for program, says, label in EACH
            if any(word in program for word in among)]


OF_RDMA_CM = [
    *perftests("", "-s 65536 -n 1000", "bw"),
    *perftests("", "-s 64 -n 1000", "lat"),
    *(perftest(f", {how}", f"ib_atomic_{what}", f"-A {how} -n 1000", pattern)
      for how in ("FETCH_AND_ADD", "CMP_AND_SWAP") for what, pattern in (("bw", BW), ("lat", LAT))),
    *perftests(", old post", "-n 500 --use_old_post_send", "bw", "lat", **BOTH),
    *(perftest(", all sizes", program, "-a -n 20", r"^ 8388608 +\d", label, **BOTH, seconds=60) for program, _, label in EACH),
    *perftests(", events", "-s 4096 -n 1000 -e", "read", "send", **BOTH),
    *perftests(", 8 queue pairs", "-s 16384 -n 500 -q 8", "bw", **BOTH),
    *perftests(", both directions", "-s 16384 -n 1000 -b", "bw"),
    *perftests(", a shared receive queue", "-s 4096 -n 500 --use-srq", "send", **BOTH),
    *perftests(", inline", "-s 200 -I 220 -n 1000", "write_lat", ways=(ALONE,)),
    *perftests(", lists of requests", "-s 1024 -n 1024 -l 16", "write_bw", ways=(ALONE,)),
    *perftests(", for 2 seconds", "-s 65536 -D 2", "write_bw", ways=(ALONE,)),
]


def pingpong(name, program, options, **how):
    return exchanging(name, program, f"-g 0 {options}", r"iters in [\d.]+ seconds", **how)


table(
    pingpong("", "ibv_rc_pingpong", "-n 1000"),
    pingpong(", events", "ibv_rc_pingpong", "-n 1000 -e"),
    pingpong(", 1 MB", "ibv_rc_pingpong", "-n 100 -s 1000000"),
    # Its Sends find no receive.
    pingpong(", one receive", "ibv_rc_pingpong", "-n 500 -r 1"),
    pingpong("", "ibv_srq_pingpong", "-n 500 -q 16"),
    pingpong(", events", "ibv_srq_pingpong", "-n 200 -q 4 -e", ways=(ALONE, SHARED)),
    pingpong("", "ibv_uc_pingpong", "-n 1000"),
    pingpong(", events", "ibv_uc_pingpong", "-s 100000 -n 200 -e"),
    pingpong("", "ibv_ud_pingpong", "-s 1000 -n 1000"),
    pingpong(", events", "ibv_ud_pingpong", "-s 1000 -n 1000 -e"),

    *OF_RDMA_CM,
    # Receiver not ready: 128 Sends may be out, and there is one receive.
    perftest(", one receive", "ib_send_bw", "-n 500 -r 1 -t 128", BW, ROCE),
    perftest(", a shared receive queue, 8 queue pairs", "ib_send_bw", "-s 4096 -n 500 --use-srq -q 8", BW, ROCE),
    # More queue pairs than there are numbers behind a port.
    perftest(", 300 queue pairs", "ib_write_bw", "-s 4096 -n 50 -q 300", BW, seconds=60),
    *(perftest(", unreliable", f"ib_{operation}_bw", "-c UC -s 4096 -n 500", BW, label)
      for operation, label in (("write", ""), ("send", ROCE))),
    # No more than there are receives: nothing sends a datagram again that found none.
    *(perftest(", datagrams", f"ib_send_{what}", "-c UD -s 1024 -n 500", pattern, ROCE)
      for what, pattern in (("bw", BW), ("lat", LAT))),
    perftest(", datagrams, a shared receive queue", "ib_send_bw", "-c UD -s 1024 -n 500 --use-srq", BW, ROCE),
    perftest(", datagrams, events", "ib_send_lat", "-c UD -s 64 -n 1000 -e", LAT, ROCE, ways=(ALONE, SHARED)),
    perftest(", datagrams, both directions", "ib_send_bw", "-c UD -s 1024 -n 500 -b", BW, ROCE, ways=(ALONE, SHARED)),
)
