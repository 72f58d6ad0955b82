"""perftest, connected by rdma_cm (-R), as its programs must be on iWARP."""

from programs import ALONE, SHARED, Case, table

BW = r"BW average"
LAT = r"t_avg"


def perftest(name, program, options, says, **how):
    """Both ends have the same options; they measure and end together."""
    return Case(f"{program}{name}", f"{program} -R -F {options} {{server}}", f"{program} -R -F {options}", port=18515,
                says=(says,), **how)


EACH = [perftest("", f"ib_{operation}_bw", "-s 65536 -n 1000", BW) for operation in ("write", "read", "send")]
EACH += [perftest("", f"ib_{operation}_lat", "-s 64 -n 1000", LAT) for operation in ("write", "read", "send")]
EACH += [perftest(f", {how}", f"ib_atomic_{what}", f"-A {how} -n 1000", pattern)
         for how in ("FETCH_AND_ADD", "CMP_AND_SWAP") for what, pattern in (("bw", BW), ("lat", LAT))]

table(
    *EACH,
    *(perftest(", old post", f"ib_{operation}_{what}", "-n 500 --use_old_post_send", pattern, ways=(ALONE, SHARED))
      for operation in ("write", "read", "send") for what, pattern in (("bw", BW), ("lat", LAT))),
    *(perftest(", all sizes", f"ib_{operation}_bw", "-a -n 20", r"^ 8388608 +\d", ways=(ALONE, SHARED), seconds=60)
      for operation in ("write", "read", "send")),
    *(perftest(", all sizes", f"ib_{operation}_lat", "-a -n 20", r"^ 8388608 +\d", ways=(ALONE,), seconds=60)
      for operation in ("write", "read", "send")),
    perftest(", events", "ib_read_bw", "-s 4096 -n 1000 -e", BW),
    # Of 499 Sends, which the program gives 500 receives, none waits for a credit. A credit comes
    # without an event, and the program would wait for one for ever.
    perftest(", events", "ib_send_bw", "-s 4096 -n 499 -e", BW),
    *(perftest(", events", f"ib_{operation}_lat", "-s 4096 -n 1000 -e", LAT, ways=(ALONE, SHARED))
      for operation in ("read", "send")),
    *(perftest(", 8 queue pairs", f"ib_{operation}_bw", "-s 16384 -n 500 -q 8", BW, ways=(ALONE, SHARED))
      for operation in ("write", "read", "send")),
    *(perftest(", both directions", f"ib_{operation}_bw", "-s 16384 -n 1000 -b", BW) for operation in ("write", "read", "send")),
    # With more queue pairs it counts the credits of iWARP by the wrong one: by the receive that a
    # message took.
    perftest(", a shared receive queue", "ib_send_bw", "-s 4096 -n 1000 --use-srq", BW),
    perftest(", a shared receive queue", "ib_send_lat", "-s 64 -n 1000 --use-srq", LAT, ways=(ALONE,)),
    perftest(", inline", "ib_write_lat", "-s 200 -I 220 -n 1000", LAT, ways=(ALONE,)),
    perftest(", lists of requests", "ib_write_bw", "-s 1024 -n 1024 -l 16", BW, ways=(ALONE,)),
    perftest(", for 2 seconds", "ib_write_bw", "-s 65536 -D 2", BW, ways=(ALONE,)),
    # Over sockets the server learns that the client has ended, and ends too.
    Case("ib_write_bw, run infinitely", "ib_write_bw -R -F -D 1 --run_infinitely {server}",
         "ib_write_bw -R -F -D 1 --run_infinitely", port=18515, lasting=True, stopped_after=4, code=-2, frames_only=True,
         says=(r"^ 65536 +\d+ +[\d.]+ +[\d.]+",)),
)
