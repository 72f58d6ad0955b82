"""The tests of rnic-manager, rnic-sockets and rnic-xdp on the guest's kernel, which is newer than
most hosts' and has VRFs."""

import functools
import json
import subprocess

from nic_cases import ROOT, case, expect

CRATES = ("rnic-manager", "rnic-sockets", "rnic-xdp")
# By the file in their tests/.
TESTS = ("namespaces", "opening", "police_program", "port_program", "steer_program", "waking")
# They take a minute or two each there.
LONG_TESTS = (
    "addresses", "device", "interface", "made_port", "manager", "multi_buffer", "path_mtu", "queues", "shared_device",
    "tx_checksum",
)
LEFT_OUT = {
    "rnic_manager": "a unit test needs no kernel",
    **dict.fromkeys(("rnic_sockets", "connections", "descriptors", "ports"), "any kernel does"),
    "engine": "it moves more than a gibibyte",
}
# Single tests of the files that run.
SKIPPED = {
    "interface": {"no_frame_is_lost_in_a_flood": "it sends 2.5 million frames, some 1500 a second there: that is half an hour"},
}


# Tests that the host may ignore for what its kernel has not. "rnic_xdp" is the unit tests, of which
# no others run: one starts programs 2000 times, which takes longer there than all others.
NEEDED = {
    "addresses": ("a_frame_without_a_tag_is_of_a_vlan_while_tags_are_removed",),
    "device": (
        "policy::a_listener_follows_policies_as_they_change",
        "policy::where_a_policy_demands_protection_nothing_connects_or_listens",
    ),
    "manager": ("hostile::the_kernel_refuses_descriptors_where_it_can",),
    "namespaces": ("ports_of_a_vrf_are_bound_to_it",),
    "port_program": ("so_do_frames_of_several_buffers",),
    "rnic_xdp": (
        "device::interface::numa::tests::a_node_is_preferred_for_as_long_as_something_is_made_there",
        "device::locals::tests::the_addresses_of_a_device_in_a_vrf_are_bound_there",
        "device::netlink::policy::tests::of_policies_with_one_priority_the_older_one_decides_as_in_the_kernel",
        "device::netlink::policy::tests::the_kernels_policies_are_read_and_followed",
        "device::routes::tests::vlans_are_found_by_their_routes",
    ),
    "steer_program": ("headers::headers_beyond_the_first_buffer_are_read",),
}


@functools.cache
def built():
    """What cargo says of the test programs, which are built if need be."""
    # Built for the whole workspace, what `ci/test unit` has built is used again.
    command = ("cargo", "test", "--workspace", "--no-run", "--locked", "--message-format=json")
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    expect(done.returncode == 0, "the tests cannot be built (see above)")
    messages = map(json.loads, done.stdout.splitlines())
    return [each for each in messages if each.get("executable") and each.get("manifest_path")]


def of_crate(crate):
    """The path of each program of a crate."""
    manifest = str(ROOT / crate / "Cargo.toml")
    return {each["target"]["name"]: each["executable"] for each in built() if each["manifest_path"] == manifest}


@functools.cache
def programs():
    """The path of each test program."""
    found = {name: path for crate in CRATES for name, path in of_crate(crate).items()}
    unknown = found.keys() ^ ({*TESTS, *LONG_TESTS, *NEEDED} | LEFT_OUT.keys())
    expect(not unknown, "ci/nic.d/own_tests.py and the tests differ:", *sorted(unknown))
    return found


def own_tests(name):
    @case(f"own tests: {name}", kinds=("igb",), long=name in LONG_TESTS)
    def _(nics):
        program = programs()[name]
        source = (ROOT / f"rnic-xdp/tests/{name}.rs").read_text() if name in SKIPPED else ""
        unknown = [each for each in SKIPPED.get(name, ()) if f"fn {each}()" not in source]
        expect(not unknown, f"ci/nic.d/own_tests.py skips what {name} does not have:", *unknown)
        skipped = " ".join(f"--skip {each}" for each in SKIPPED.get(name, ()))
        # Two at once would wait for each other's processor, and for the kernel's lock of its
        # network configuration.
        done = nics.bed.guest.run(f"exec {program} --test-threads=1 --show-output --exact {skipped}", timeout=600)
        expect(done.code == 0, f"they end with {done.code}:", done.output)
        expect("ignored, needs root" not in done.output, "they were not built as root:", done.output)


for each in TESTS + LONG_TESTS:
    own_tests(each)


@case("own tests: what other kernels lack", kinds=("igb",))
def _(nics):
    for name, tests in NEEDED.items():
        exact = f"--exact {' '.join(tests)}"
        done = nics.bed.guest.run(f"exec {programs()[name]} --test-threads=1 --include-ignored {exact}", timeout=300)
        expect(done.code == 0, f"{name} ends with {done.code}:", done.output)
        expect(f" {len(tests)} passed" in done.output, f"{name} has not all of {tests}:", done.output)
