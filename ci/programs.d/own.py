"""Programs of our own in C, of kinds that the distribution has none of. They are in ci/programs.d/c."""

from programs import ONE_HOST, SHARED, Case, table


def pair(name, program, server="server", client="client", **how):
    return Case(name, f"{{own}}/{program} {client} {{server}}", f"{{own}}/{program} {server} {{server}}", **how)


table(
    pair("killed in ibv_get_cq_event", "killed", port=7480, server_says=(r"client 5 is gone",)),
    pair("cancelled while it posts and polls", "cancelled", port=7481, says=(r"300 threads were cancelled",)),
    pair("forking with a connection", "forking", port=7471),
    pair("forking first, a device for each child", "forking", "servers", "clients", port=7471, ways=(SHARED, ONE_HOST)),
    Case("loaded by dlopen", "{own}/loaded client {server} {device}", "{own}/loaded server {server} {device}", port=7471),
)
