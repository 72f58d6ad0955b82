"""fio's rdma engine. Its server is a job that reads, its client one that writes; the verb says what
moves the data."""

from programs import ALONE, SHARED, Case, table

JOB = "fio --ioengine=rdma --port=7777 --bs=64k --size=16m --iodepth=16 --thread"


def fio(verb, client="", server="", name=""):
    return Case(f"fio, {verb}{name}", f"{JOB} --name=client --rw=write --hostname={{server}} --verb={verb} {client}",
                f"{JOB} --name=server --rw=read {server}", port=7777, says=(r"err= *0", r"io=16\.0MiB"), server_says=(r"err= *0",),
                ways=(ALONE, SHARED), seconds=40)


table(
    fio("write"),
    fio("read"),
    # The server must have as many receives as the client can send ahead of it: iWARP knows no
    # "receiver not ready".
    fio("send", "", "--iodepth=256"),
    # The client writes checksums into its blocks, the server verifies them.
    fio("send", "--verify=crc32c --do_verify=0", "--iodepth=256 --verify=crc32c", ", verified"),
)
