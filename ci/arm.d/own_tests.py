"""The tests of the programs in ebpf/, which the guest's kernel compiles for its processor."""

from arm import BUILT, BUILT_FOR_ARM, IN_GUEST, case
from bench import expect


def own_tests(name, long):
    @case(f"own tests: {name}", long=long)
    def _(bed):
        built = [path for path in (BUILT_FOR_ARM / BUILT.name / "deps").glob(f"{name}-*") if not path.suffix]
        expect(built, f"{name} is not built: cargo test --no-run -p rnic-xdp --test {name} --target aarch64-unknown-linux-gnu")
        newest = max(built, key=lambda path: path.stat().st_mtime)
        said = bed.arm.run(f"{IN_GUEST}/deps/{newest.name} --test-threads=1", 600)
        expect("ignored, needs root" not in said, "they were not built as root:", said)


for each in ("port_program", "steer_program", "police_program"):
    own_tests(each, long=each != "port_program")
