"""qperf over rdma_cm (-cm1): its server forks for each client, and has a connection of the kernel's
TCP beside."""

from programs import ALONE, SHARED, Case, table

TESTS = ("rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat", "rc_rdma_write_bw", "rc_rdma_read_lat",
         "rc_rdma_read_bw", "rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add")

table(*(
    Case(f"qperf {test}", f"qperf {{server}} -t 1 -cm1 {test}", "qperf", port=19765, kernel=True, lasting=True,
         says=(r"^ +(latency|bw|msg_rate) += +[\d.]+ \S+",) if test[:3] == "rc_" else (rf"^{test}:",),
         ways=(ALONE, SHARED) if test in ("rc_lat", "rc_bw", "rc_rdma_read_bw") else (ALONE,))
    for test in TESTS
))
