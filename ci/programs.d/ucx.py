"""UCX. It takes TCP or shared memory without a word where it does not like a device: so it must say
that it has connected by rnic. Both ends are on one kernel. As root each end has a namespace of its
own for shared memory, and UCX chooses freely; elsewhere shared memory is left out."""

from programs import ALONE, ONE_HOST, SHARED, Case, table

BY_RNIC = r"UCX +INFO +ep_cfg\[\d+\]: .*rc_verbs/rnic_"
APART = "--as roce unshare --ipc env UCX_LOG_LEVEL=info"
LEFT_OUT = "--as roce env UCX_LOG_LEVEL=info UCX_TLS=^sm"
PORT = 13337


def perftest(what, options="-n 500", ways=(ALONE, SHARED, ONE_HOST), how=""):
    for way in ways:
        start = APART if way == ALONE else LEFT_OUT
        line = f"{start} ucx_perftest -t {what} {options}"
        yield Case(f"ucx_perftest, {what}{how}", f"{line} {{server}}", line, port=PORT, kernel=True,
                   says=(BY_RNIC, r"^Final: "), ways=(way,), frames_only=way == ALONE)


table(
    Case("ucx_info", "--as roce ucx_info -d", says=(r"Transport: rc_verbs", r"Transport: ud_verbs", r"Device: rnic_")),
    *perftest("tag_lat"),
    # It polls a queue, arms it, and sleeps: what came in between notifies at once.
    *perftest("tag_lat", "-n 200 -E sleep", ways=(ALONE, SHARED), how=", asleep"),
    *perftest("tag_bw", "-n 500 -s 65536"),
    *perftest("stream_bw", "-n 500 -s 4096"),
    *perftest("ucp_am_lat", ways=(ALONE, SHARED)),
    *perftest("ucp_put_lat", ways=(ALONE, SHARED)),
    *perftest("ucp_put_bw", "-n 500 -s 65536"),
    *perftest("ucp_get", "-n 500 -s 65536"),
    *perftest("ucp_fadd"),
    *perftest("ucp_cswap", ways=(ALONE, SHARED)),
)
