"""`rnic-ctl capture` of a process that has its NIC for itself, both ways: in zero-copy, in copy
mode, and of what ESP protects."""

import base64
import json
import os
import pathlib
import subprocess

from esp import ALGORITHMS, IF_ID, Protection
from nic import EAST, WEST
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


def dissected(capture, config):
    """What tshark finds in each packet of ESP of a capture, with the keys in a directory."""
    command = ["tshark", "-r", capture, "-o", "esp.enable_encryption_decode:TRUE", "-Y", "esp", "-T", "fields", "-e", "frame.protocols"]
    environment = {**os.environ, "WIRESHARK_CONFIG_DIR": str(config)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, "tshark cannot read it:", done.stderr)
    return done.stdout.split()


@case("capture of ESP, with the keys for tshark", kinds=("virtio",))
def _(nics):
    directory = pathlib.Path(nics.bed.directory) / "wireshark"
    directory.mkdir()
    for algorithm in ("GCM", "GCM of 256 bits", "CBC and SHA2", "CBC and SHA1", "NULL and SHA2"):
        with Protection(nics, algorithm=ALGORITHMS[algorithm]) as protection:
            command = f"{nics.ctl} capture -i nic0 -w /tmp/esp.pcapng --keys /tmp/esp_sa --ipsec-if-id"
            capture = nics.bed.spawn("east", f"exec {command} {IF_ID} 2>&1", 120)
            nics.wait(lambda: nics.east("test -s /tmp/esp.pcapng").code == 0, "it captures", 40)
            # These come later, and the first ones are gone before it ends.
            protection.rekey()
            keys = lambda: int(nics.east("wc -l </tmp/esp_sa").checked())
            nics.wait(lambda: keys() == 4, "the keys of later associations are written", 40)
            protection.delete()
            nics.perf("send-bw", f"--via xdp --ipsec-if-id {IF_ID} -s 5000 -n 10", "--via kernel", host=WEST)
            said = nics.end(capture)
        expect(said.code == 0 and "the keys of 4 associations" in said.output, f"capture ends with {said.code}:", said.output)
        refused = nics.east(f"{command} 0x7", 30)
        expect(refused.code == 1 and "it exists" in refused.output, "it takes a file that exists:", refused)
        rights = nics.east("stat -c %a /tmp/esp_sa").checked().strip()
        expect(rights == "600", "others can read the keys:", rights)
        for name in ("esp.pcapng", "esp_sa"):
            octets = base64.b64decode(nics.east(f"base64 /tmp/{name} && rm /tmp/{name}").checked())
            (directory / name).write_bytes(octets)
        packets = dissected(directory / "esp.pcapng", directory)
        expect(len(packets) > 40 and all(":tcp" in each for each in packets), f"{algorithm}: not all is read:", *packets[:60])
        expect(any("iwarp_ddp" in each for each in packets), f"{algorithm}: no segment of DDP is found:", *packets[:60])
        if "NULL" not in algorithm:
            (directory / "esp_sa").unlink()
            packets = dissected(directory / "esp.pcapng", directory)
            expect(not any(":tcp" in each for each in packets), f"{algorithm}: it is read without keys:", *packets[:60])
