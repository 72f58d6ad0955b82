"""qperf over rdma_cm (-cm1): its server forks for each client, and has a connection of the kernel's
TCP beside."""

from programs import ALONE, SHARED, Case, table

TESTS = ("rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat", "rc_rdma_write_bw", "rc_rdma_read_lat",
         "rc_rdma_read_bw", "rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add")

# It posts 1,024 receives and lets nobody know when they are used up; over iWARP a Send, or a Write with
# immediate data, without a receive ends the connection. Where its thread gets no processor for a while,
# so much more data is room.
LARGE = {"rc_bw": " -m 1M", "rc_bi_bw": " -m 1M", "rc_rdma_write_bw": " -m 1M"}

table(*(
    Case(f"qperf {test}", f"qperf {{server}} -t 1 -cm1{LARGE.get(test, '')} {test}", "qperf", port=19765, kernel=True, lasting=True,
         says=(r"^ +(latency|bw|msg_rate) += +[\d.]+ \S+",) if test[:3] == "rc_" else (rf"^{test}:",),
         ways=(ALONE, SHARED) if test in ("rc_lat", "rc_bw", "rc_rdma_read_bw") else (ALONE,))
    for test in TESTS
))
