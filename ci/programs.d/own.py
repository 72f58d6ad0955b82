"""Programs of our own in C, of kinds that the distribution has none of. They are in
ci/programs.d/c."""

from programs import ALONE, FROM_XDP, KERNEL, KERNEL_HOST, ONE_HOST, SHARED, Case, table

SERVER_BY_SOCKETS = (KERNEL, KERNEL_HOST, FROM_XDP)


def pair(name, program, server="server", client="client", place="own", **how):
    return Case(name, f"{{{place}}}/{program} {client} {{server}}", f"{{{place}}}/{program} {server} {{server}}", **how)


table(
    pair("killed in ibv_get_cq_event", "killed", port=7480, server_says=(r"client 5 is gone",)),
    # Over sockets of the server both are TCP sockets of its kernel, and the number is one.
    pair("one number for TCP and RDMA", "one_number", port=7490, kernel=True, left_out=SERVER_BY_SOCKETS,
         server_says=(r"both were served",)),
    Case("one number for TCP and RDMA, RDMA first", "{own}/one_number client {server}",
         "env RNIC_PORT_MAPPER=always {own}/one_number first {server}", port=7490, kernel=True, left_out=SERVER_BY_SOCKETS,
         server_says=(r"both were served",)),
    Case("one number for TCP and RDMA, which rdma_cm chooses", "{own}/one_number asker {server}",
         "env RNIC_PORT_MAPPER=always {own}/one_number chosen {server}", port=7490, kernel=True, left_out=SERVER_BY_SOCKETS,
         server_says=(r"both were served",)),
    Case("a number that a TCP socket has, and no port mapper knows", "rping -c -a {server} -p 7492",
         """python3 -c "import socket; s = socket.create_server(('{server}', 7492)); [c.send(b'-ERR') for c, _ in iter(s.accept, 0)]\"""",
         port=7492, kernel=True, code=255, lasting=True, ways=(ALONE, SHARED),
         says=(r"no RDMA connection to .*:7492: .* must answer at UDP port 3935",)),
    pair("cancelled while it posts and polls", "cancelled", port=7481, says=(r"300 threads were cancelled",)),
    pair("posting behind ERR", "posted_late", port=7471, says=(r"200 queue pairs ended",)),
    pair("forking with a connection", "forking", port=7471),
    pair("forking first, a device for each child", "forking", "servers", "clients", port=7471, ways=(SHARED, ONE_HOST)),
    Case("loaded by dlopen", "{own}/loaded client {server} {device}", "{own}/loaded server {server} {device}", port=7471),
    *(Case(f"its device in sysfs, {label}", f"{options} {{own}}/in_sysfs {label} {{device}}", says=(r"^in_sysfs: right",))
      for label, options in (("roce", "--as roce"), ("iwarp", "--sysfs yes"))),
    # Compiled with the newest headers, whose inline functions and structures are not those of the
    # distribution.
    pair("compiled anew: cancelled while it posts and polls", "cancelled", place="newest", port=7481,
         says=(r"300 threads were cancelled",), ways=(ALONE, SHARED)),
    pair("compiled anew: forking with a connection", "forking", place="newest", port=7471, ways=(ALONE, SHARED)),
    Case("compiled anew: loaded by dlopen", "{newest}/loaded client {server} {device}", "{newest}/loaded server {server} {device}",
         port=7471, ways=(ALONE, SHARED)),
)
