"""Ceph of Debian, whose messenger connects its queue pairs itself (ms_type = async+rdma). It takes
several processes of a host, so a port of rnicd for each."""

from programs import ONE_HOST, SHARED, Case, table

START = "{ceph}/cluster %s {ceph} {server} {device}"

table(
    Case("Ceph, a monitor, an OSD and a client", START % "ask", START % "serve", port=3300, kernel=True, lasting=True, seconds=90,
         says=(r"^20000000 octets are the same",), server_says=(r"the OSD has received [2-9]\d{7,} octets by RDMA",),
         ways=(SHARED, ONE_HOST)),
)
