"""Open MPI over libfabric. Its data can go over rnic only: no other component for messages is
allowed."""

from programs import ALONE, ONE_HOST, Case, table

ONLY_RNIC = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs\\;ofi_rxm"
# mpirun wants to be told that root means it. Without rights nobody enters the other namespace:
# hence as root only.
TWO_HOSTS = ("--allow-run-as-root --host {server},{client} --mca plm rsh "
             "--mca plm_rsh_agent '{files}/mpi-agent {other_host}'")


def mpi(name, options, **how):
    return Case(f"Open MPI, {name}",
                f'sh -c "mpicc -O2 -o {{place}}/mpi {{files}}/mpi.c && mpirun -np 2 {ONLY_RNIC} {options} {{place}}/mpi"',
                says=(r"^hello from 0 of 2$", r"^hello from 1 of 2$", r"^bandwidth: "), seconds=90, **how)


table(
    mpi("two hosts", TWO_HOSTS, ways=(ALONE,)),
    mpi("one host", "--oversubscribe", ways=(ONE_HOST,)),
)
