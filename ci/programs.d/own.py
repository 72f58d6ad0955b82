"""Programs of our own in C, of kinds that the distribution has none of. They are in ci/programs.d/c."""

from programs import ALONE, ONE_HOST, SHARED, Case, table


def pair(name, program, server="server", client="client", **how):
    return Case(name, f"{{own}}/{program} {client} {{server}}", f"{{own}}/{program} {server} {{server}}", **how)


table(
    # On one host nobody answers the probes that the server sends to a client that was killed.
    pair("killed in ibv_get_cq_event", "killed", port=7480, server_says=(r"client 5 is gone",), ways=(ALONE, SHARED)),
    pair("forking with a connection", "forking", port=7471),
    pair("forking first, a device for each child", "forking", "servers", "clients", port=7471, ways=(SHARED, ONE_HOST)),
    Case("loaded by dlopen", "{own}/loaded client {server} {device}", "{own}/loaded server {server} {device}", port=7471),
)
