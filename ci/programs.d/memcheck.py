"""valgrind's memcheck over programs: what our libraries do with the memory of the program is judged
too. No rping here: its thread for events reads the program's state after main() has freed it."""

from programs import ALONE, SHARED, Case, table

MEMCHECK = "valgrind --quiet --tool=memcheck --error-exitcode=99 --suppressions={files}/memcheck.supp"


def both(client, server, options="", **how):
    """A case with both of its programs under memcheck."""
    program = client.split()[0]
    return Case(f"{program} under memcheck", f"{MEMCHECK} {options} {client}", f"{MEMCHECK} {options} {server}", seconds=90,
                ways=(ALONE, SHARED), **how)


# These programs send memory as malloc() gave it: checksums of that are no errors.
UNDEFINED = "--undef-value-errors=no"


def perftest(command):
    return both(f"{command} {{server}}", command, UNDEFINED, port=18515, says=(r"^ 20000 +100 ",))


table(
    Case("ibv_devinfo under memcheck", f"{MEMCHECK} ibv_devinfo -v", says=(r"hca_id:\s+rnic_",), seconds=60),
    Case("its device in sysfs under memcheck", f"--as roce {MEMCHECK} {{own}}/in_sysfs roce {{device}}", says=(r"^in_sysfs: right",),
         seconds=60),
    both("rdma_client -s {server}", "rdma_server", port=7471, says=(r"rdma_client: end 0",), server_says=(r"rdma_server: end 0",)),
    both("ucmatose -s {server} -c 3 -C 20", "ucmatose -c 3 -C 20", UNDEFINED, port=7471, says=(r"data transfers complete",)),
    perftest("ib_write_bw -R -n 100 -s 20000"),
    perftest("ib_read_bw -R -n 100 -s 20000"),
    perftest("ib_send_lat -R -e -n 100 -s 20000"),
)
