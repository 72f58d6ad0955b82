"""ESP on several workers of a device, which share numbers and replay windows; the kernel's ESP as the
peer."""

from esp import Protection, perf
from nic_cases import case, expect


@case("ESP: workers share associations", kinds=("virtio",))
def _(nics):
    with Protection(nics, window=1024) as protection:
        for test in ("write-bw", "send-bw"):
            # perf checks that no number comes twice on the wire.
            report = perf(nics, test, "--thread --workers 2 -q 6 -s 20000 -n 50 --verify", wire=600)
            device = report["test_info"]["device"]
            expect("2 threads" in device, "there are not two workers:", device)
            # Those in use, and then others.
            protection.rekey()
            protection.delete()
        # The threads overtake each other. What is behind the window is sent again: the kernel takes its
        # number for one of the next 2^32, by which the ICV is wrong.
        protection.expect_no_errors(but=("XfrmInStateProtoError", "XfrmInStateSeqError"))
