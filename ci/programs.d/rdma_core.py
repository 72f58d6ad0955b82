"""rdma-core's own programs: the examples of libibverbs and of librdmacm."""

from programs import ALONE, Case, table

table(
    Case("ibv_devices", "ibv_devices", says=(r"^ +rnic_\w+\s+[0-9a-f]{16}$",)),
    Case("ibv_devinfo", "ibv_devinfo -v", says=(
        r"hca_id:\s+rnic_", r"transport:\s+iWARP \(1\)", r"phys_port_cnt:\s+1$", r"state:\s+PORT_ACTIVE \(4\)",
        r"link_layer:\s+Ethernet", r"GID\[ *0\]:\s+[0:]+:ffff:0a4d:080[12]")),
    # Whatever it calls itself.
    *(Case(f"ibv_devinfo says that it is rnic, as {label}", f"--as {label} ibv_devinfo", says=(r"^\s+fw_ver:\s+rnic",))
      for label in ("iwarp", "roce")),
    Case("ibv_devinfo of one device", "ibv_devinfo -d {device}", says=(r"hca_id:\s+rnic_",)),
    Case("ibv_asyncwatch", "ibv_asyncwatch", stopped_after=2, code=-2, says=(r"async event FD",)),

    Case("rping", "rping -c -v -V -C 10 -a {server}", "rping -s -v -V -C 10 -a {server}", port=7174,
         says=(r"ping data: rdma-ping-9",), server_says=(r"server ping data: rdma-ping-9",)),
    Case("rping, IPv6", "rping -c -v -V -C 10 -a {server6}", "rping -s -V -C 10 -a {server6}", port=7174,
         says=(r"ping data: rdma-ping-9",)),
    Case("rping, 65000 octets", "rping -c -V -C 100 -S 65000 -a {server}", "rping -s -V -C 100 -S 65000 -a {server}",
         port=7174),
    Case("rping, any address, a server for many", "rping -c -V -C 10 -a {server}", "rping -s -P -V -C 10", port=7174,
         lasting=True),
    Case("rping, refused", "rping -c -V -C 1 -a {server} -p 7999", code=255, says=(r"REJECTED",)),

    Case("ucmatose", "ucmatose -s {server}", "ucmatose -b {server}", port=7471,
         says=(r"return status 0",), server_says=(r"return status 0",)),
    Case("ucmatose, 20 connections", "ucmatose -s {server} -c 20 -C 100 -S 4000",
         "ucmatose -b {server} -c 20 -C 100 -S 4000", port=7471,
         says=(r"return status 0",), server_says=(r"return status 0",)),
    Case("ucmatose, migrating", "ucmatose -s {server} -m -c 5", "ucmatose -b {server} -m -c 5", port=7471,
         says=(r"return status 0",), server_says=(r"return status 0",)),
    # Datagrams: rdma_cm asks for the queue pair of the peer.
    Case("udaddy", "udaddy -s {server}", "udaddy -b {server}", port=7174,
         says=(r"data transfers complete", r"return status 0"), server_says=(r"return status 0",)),
    Case("udaddy, 5 queue pairs", "udaddy -s {server} -c 5 -C 20 -S 1000", "udaddy -b {server} -c 5 -C 20 -S 1000",
         port=7174, says=(r"return status 0",), server_says=(r"return status 0",)),
    Case("cmtime, 100 connections", "cmtime -s {server} -c 100", "cmtime -b {server} -c 100", port=7471, lasting=True,
         says=(r"^connect +: +\d", r"^disconnect +: +\d")),

    Case("rdma_client, rdma_server", "rdma_client -s {server}", "rdma_server -s {server}", port=7471,
         says=(r"rdma_client: end 0",), server_says=(r"rdma_server: end 0",)),
    Case("rdma_xclient, rdma_xserver", "rdma_xclient -s {server}", "rdma_xserver", port=7471,
         says=(r"rdma_xclient: end 0",), server_says=(r"rdma_xserver: end 0",)),
    # What iWARP has not.
    Case("rdma_xclient, XRC", "rdma_xclient -s {server} -c x", code=255, says=(r"rdma_xclient: end -1",), ways=(ALONE,)),
)
