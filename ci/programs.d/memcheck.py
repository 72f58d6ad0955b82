"""valgrind's memcheck over programs: what our libraries do with the memory of the program is judged
too. No rping here: its thread for events reads the program's state after main() has freed it."""

from programs import ALONE, SHARED, Case, table

MEMCHECK = "valgrind --quiet --tool=memcheck --error-exitcode=99 --suppressions={files}/memcheck.supp"


def both(client, server=None, **how):
    """A case with both of its programs under memcheck."""
    program = client.split()[0]
    return Case(f"{program} under memcheck", f"{MEMCHECK} {client}", f"{MEMCHECK} {server or program}", seconds=90,
                ways=(ALONE, SHARED), **how)


table(
    Case("ibv_devinfo under memcheck", f"{MEMCHECK} ibv_devinfo -v", says=(r"hca_id:\s+rnic_",), seconds=60),
    both("ucmatose -s {server} -c 3 -C 20", "ucmatose -c 3 -C 20", port=7471, says=(r"data transfers complete",)),
    both("ib_write_bw -R -n 100 -s 20000 {server}", "ib_write_bw -R -n 100 -s 20000", port=18515, says=(r"^ 20000 +100 ",)),
    both("ib_read_bw -R -n 100 -s 20000 {server}", "ib_read_bw -R -n 100 -s 20000", port=18515, says=(r"^ 20000 +100 ",)),
    both("ib_send_lat -R -e -n 100 -s 20000 {server}", "ib_send_lat -R -e -n 100 -s 20000", port=18515, says=(r"^ 20000 +100 ",)),
)
