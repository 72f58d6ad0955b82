"""Open MPI over libfabric, and over UCX. With libfabric its data can go over rnic only: no other
component for messages is allowed. UCX says by what it has connected; its shared memory is left out,
because all ranks are on one kernel."""

from programs import ALONE, ONE_HOST, Case, table

ONLY_RNIC = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs\\;ofi_rxm -x FI_MR_CACHE_MONITOR=disabled"
# mpirun wants to be told that root means it. Without rights nobody enters the other namespace:
# hence as root only.
TWO_HOSTS = ("--allow-run-as-root --host {server},{client} --mca plm rsh "
             "--mca plm_rsh_agent '{files}/mpi-agent {other_host}'")


UCX = "--mca pml ucx --mca osc ucx -x UCX_TLS=^sm -x UCX_LOG_LEVEL=info"
BY_RNIC = r"UCX +INFO +ep_cfg\[\d+\]: .*rc_verbs/rnic_"


def mpi(name, options, over=ONLY_RNIC, ranks=2, says=(), label="", **how):
    hello = tuple(rf"^hello from {rank} of {ranks}$" for rank in range(ranks))
    return Case(f"Open MPI, {name}",
                f'{label}sh -c "mpicc -O2 -o {{place}}/mpi {{files}}/mpi.c && mpirun -np {ranks} {over} {options} {{place}}/mpi"',
                says=(*hello, r"^bandwidth: ", *says), seconds=90, **how)


def ucx(name, options, **how):
    return mpi(f"{name}, over UCX", options, over=UCX, says=(BY_RNIC,), label="--as roce ", **how)


table(
    mpi("two hosts", TWO_HOSTS, ways=(ALONE,), frames_only=True),
    mpi("one host", "--oversubscribe", ways=(ONE_HOST,)),
    ucx("two hosts", TWO_HOSTS, ways=(ALONE,), frames_only=True),
    ucx("one host", "--oversubscribe", ways=(ONE_HOST,)),
    ucx("one host, 4 ranks", "--oversubscribe", ranks=4, ways=(ONE_HOST,)),
)
