"""valgrind's memcheck over programs: what our libraries do with the memory of the program is judged
too."""

from programs import Case, table

MEMCHECK = "valgrind --quiet --tool=memcheck --error-exitcode=99 --suppressions={files}/memcheck.supp"

table(
    Case("ibv_devinfo under memcheck", f"{MEMCHECK} ibv_devinfo -v", says=(r"hca_id:\s+rnic_",), seconds=60),
    Case("rping under memcheck", f"{MEMCHECK} rping -c -v -V -C 10 -a {{server}}", f"{MEMCHECK} rping -s -v -V -C 10 -a {{server}}",
         port=7174, says=(r"ping data: rdma-ping-9",), server_says=(r"server ping data: rdma-ping-9",), seconds=90),
)
