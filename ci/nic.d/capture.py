"""`rnic-ctl capture` of a process that has its NIC for itself, both ways: in zero-copy, and in copy
mode."""

import json

from nic import EAST
from nic_cases import EACH, case, expect


def captured(nics, way):
    """Captures one way in the east, whose server has its NIC before. Returns how many frames were
    captured, and what the server says of its frames."""
    serving = nics.serve("-j perf send-bw", "--counters", side="east")
    capture = nics.bed.spawn("east", f"exec {nics.ctl} -j capture -i nic0 -Q {way} -w /tmp/capture.pcapng 2>&1", 120)
    nics.wait(lambda: nics.east("test -s /tmp/capture.pcapng").code == 0, "it captures", 40)
    done = nics.west(f"{nics.ctl} perf send-bw -s 20000 -n 40 --netdev nic1 {EAST}")
    served = nics.end(serving) if done.code else serving.wait()
    said = nics.end(capture)
    expect(done.code == 0 and served.code == 0, "perf ends badly:", done.output, served.output)
    # Whoever cannot capture something says so ahead of the report.
    expect(said.code == 0 and said.output.startswith("{"), f"capture ends with {said.code}:", said.output)
    nics.east("rm /tmp/capture.pcapng").checked()
    report, frames = json.loads(served.output[served.output.index("{"):]), json.loads(said.output)
    expect(frames["lost"] == {"ring_full": 0, "unreadable": 0}, "frames are lost:", frames)
    return frames["frames"], [worker["engine"] for worker in report["workers"]]


@case("capture", kinds=EACH)
def _(nics):
    for way, counter in (("out", "frames_sent"), ("in", "frames_received")):
        frames, engines = captured(nics, way)
        counted = sum(engine[counter] for engine in engines)
        expect(frames >= counted > 0, f"-Q {way}: {frames} frames are captured of {counted}")
        # Behind its report, the server ends its connection: a few frames more.
        expect(frames <= counted + 20, f"-Q {way}: {frames} frames are captured of {counted}")
