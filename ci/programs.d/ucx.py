"""UCX. It takes TCP or shared memory without a word where it does not like a device: so it must say
that it has connected by rnic, and the kernel must not have carried its octets."""

from programs import ALONE, SHARED, Case, table

BY_RNIC = r"UCX +INFO +ep_cfg\[\d+\]: .*rc_verbs/rnic_"
PORT = 13337


def perftest(what, options="-n 500", how="", **more):
    line = f"--as roce env UCX_LOG_LEVEL=info ucx_perftest -t {what} {options}"
    return Case(f"ucx_perftest, {what}{how}", f"{line} {{server}}", line, port=PORT, kernel=True,
                says=(BY_RNIC, r"^Final: "), **more)


table(
    Case("ucx_info", "--as roce ucx_info -d", says=(r"Transport: rc_verbs", r"Transport: ud_verbs", r"Device: rnic_")),
    perftest("tag_lat"),
    # It polls a queue, arms it, and sleeps: what came in between notifies at once.
    perftest("tag_lat", "-n 200 -E sleep", ways=(ALONE, SHARED), how=", asleep"),
    perftest("tag_bw", "-n 500 -s 65536"),
    perftest("stream_bw", "-n 500 -s 4096"),
    perftest("ucp_am_lat"),
    perftest("ucp_put_lat"),
    perftest("ucp_put_bw", "-n 500 -s 65536"),
    perftest("ucp_get", "-n 500 -s 65536"),
    perftest("ucp_fadd"),
    perftest("ucp_cswap"),
)
