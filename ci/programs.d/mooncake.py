"""Mooncake's transfer engine, unmodified from PyPI. Its benchmark looks at no contents, its class for
Python has them compared. The class looks for the device in sysfs, and takes TCP without a word where
it does not find it: so the target must say that it has connected a queue pair."""

from programs import Case, table

DEVICE = r"RDMA device: rnic_"
# What the initiator tells over the socket when its queue pair is in RTS; the target's is, too.
CONNECTED = r"rdma_endpoint.*Received RDMA ready ACK"
# The target listens before that, and an initiator that finds no memory there dies of it.
REGISTERED = r"registerMemoryRegion: "
# Its texts are a matter of the level.
START = "env MC_LOG_LEVEL=TRACE"


def benchmark(operation, port):
    options = "--metadata_server=P2PHANDSHAKE --protocol=rdma --device_name={device} --buffer_size=134217728"
    program = "{mooncake}/mooncake/transfer_engine_bench"
    ports = f"MC_MIN_PRC_PORT={port} MC_MAX_PRC_PORT={port} MC_MIN_RPC_PORT={port} MC_MAX_RPC_PORT={port}"
    return Case(
        f"Mooncake, transfer_engine_bench, {operation}",
        f"{START} {program} {options} --mode=initiator --local_server_name={{client}} --segment_id={{server}}:{port} "
        f"--operation={operation} --duration=2 --threads=2 --batch_size=8",
        f"{START} {ports} {program} {options} --mode=target --local_server_name={{server}}",
        port=port, kernel=True, ready=REGISTERED, lasting=True,
        says=(DEVICE, r"Test completed: duration [\d.]+, batch count [1-9]"), server_says=(DEVICE, CONNECTED))


def contents():
    line = f"--as roce {START} PYTHONPATH={{mooncake}} {{mooncake}}/contents %s {{server}} %s {{device}}"
    right = r"^contents: right"
    return Case("Mooncake, TransferEngine of Python", line % ("initiator", "{client}"), line % ("target", "{server}"),
                port=18700, kernel=True, says=(DEVICE, right), server_says=(DEVICE, CONNECTED, right))


table(benchmark("read", 12001), benchmark("write", 12002), contents())
