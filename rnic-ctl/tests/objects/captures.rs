//! `rnic-ctl capture` on a device that rnicd shares, read by tshark.

use std::fs;
use std::process::Command;

use rnic_xdp::shared::LAYOUT;

use crate::common::{Running, text};
use crate::world::{World, succeed};

/// A running capture, and its file.
struct Capture {
    running: Running,
    file: String,
}

/// What became of it.
struct Captured {
    file: String,
    /// What it said at its end.
    last: String,
}

impl Capture {
    /// Starts the command, and waits until it captures.
    fn start(world: &World, mut command: Command, name: &str) -> Self {
        let file = format!("{}/{name}.pcapng", world.place());
        command.args(["-w", &file]);
        let running = Running::start(command);
        let is_written = || fs::metadata(&file).is_ok_and(|file| file.len() > 0);
        world.until("it captures", || is_written().then_some(()));
        Self { running, file }
    }

    fn of_nic(world: &World, options: &str, name: &str) -> Self {
        let command = world.root(&format!("capture -i nic {options}"));
        Self::start(world, command, name)
    }

    /// Ends it as Ctrl-C does.
    fn end(self) -> Captured {
        self.running.interrupt();
        let output = self.running.finish("the capture");
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        Captured {
            file: self.file,
            last: said.lines().last().unwrap().to_owned(),
        }
    }
}

impl Captured {
    /// Returns the fields of the frames that match a filter of Wireshark's, separated by blanks.
    fn frames(&self, filter: &str, fields: &[&str]) -> Vec<String> {
        let mut tshark = Command::new("tshark");
        tshark.args(["-r", &self.file, "-Y", filter, "-T", "fields"]);
        tshark.args(["-E", "separator=/s"]);
        for field in fields {
            tshark.args(["-e", field]);
        }
        let output = succeed(&mut tshark);
        text(&output.stdout).lines().map(str::to_owned).collect()
    }

    fn count(&self, filter: &str) -> u64 {
        self.frames(filter, &["frame.number"]).len() as u64
    }
}

const IN: &str = "frame.packet_flags_direction == 1";
const OUT: &str = "frame.packet_flags_direction == 2";

/// The peer pings a client of rnicd, which ends then.
fn ping(world: &World, options: &str) {
    let server = world.nobody("rping -s -a 10.77.0.1 --netdev nic");
    let server = Running::start(server).until_it_says("listening on");
    let line = format!("rping -c -a 10.77.0.1 --netdev theirs {options}");
    Running::start(world.peers(&line)).succeed("the peer");
    server.succeed("the client");
}

/// How many frames went to clients so far.
fn to_clients(world: &World) -> u64 {
    world.ask("dev")[0]["received"]["to_ports"]
        .as_u64()
        .unwrap()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_of_clients_are_captured_both_ways() {
    let world = World::new("");
    // The peer has its device for itself, and is there before its frames are captured: of a process
    // that comes later, the first may be missing. The client of rnicd comes later.
    let server = world.peers("perf write-bw -s 20000 -n 50 --local 10.77.0.2 --netdev theirs");
    let server = Running::start(server).until_it_says("waiting for a client");
    let there = Capture::start(&world, world.peers("capture -i theirs"), "there");
    let here = Capture::of_nic(&world, "", "here");
    let client = world.nobody("perf write-bw -s 20000 -n 50 10.77.0.2 --netdev nic");
    let client = Running::start(client);
    let pid = client.id();
    client.succeed("the client");
    server.succeed("the peer");
    let (here, there) = (here.end(), there.end());

    let (received, sent) = (here.count(IN), here.count(OUT));
    assert_eq!(received, to_clients(&world));
    assert!(sent > 0);
    let expected = format!("{} frames captured, 0 lost", received + sent);
    assert_eq!(here.last, expected);
    // The peer received what the client sent, and nothing else.
    let acknowledged = ["tcp.srcport", "tcp.seq_raw", "tcp.ack_raw", "tcp.len"];
    let one_way = |captured: &Captured, filter| captured.frames(filter, &acknowledged);
    assert_eq!(one_way(&here, OUT), one_way(&there, IN));

    // Whole frames: Wireshark finds the start of MPA, and every octet that was written, in DDP
    // segments.
    assert_eq!(here.count("iwarp_mpa.req"), 2);
    assert_eq!(here.count("iwarp_mpa.rep"), 2);
    let payload: u64 = here
        .frames(OUT, &["tcp.len"])
        .iter()
        .map(|len| len.parse::<u64>().unwrap())
        .sum();
    assert!(payload >= 50 * 20_000, "{payload}");
    assert!(here.count("iwarp_ddp.tagged") > 50);
    assert_eq!(here.count("frame.cap_len != frame.len"), 0);

    let names = here.frames("frame", &["frame.interface_name"]);
    let name = format!("nic port 1 (nobody, rnic-ctl, pid {pid})");
    assert!(names.iter().all(|found| *found == name), "{names:?}");
    assert_eq!(here.count("frame.verdict.ebpf_xdp == 4"), received + sent);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn filters_leave_what_they_say() {
    let world = World::new("");
    for (options, frames, filter) in [
        ("-Q in", true, IN),
        ("-Q out", true, OUT),
        ("--port-id 1", true, "frame"),
        ("--port-id 9", false, ""),
        ("--tcp-port 7174", true, "tcp.port == 7174"),
        ("--tcp-port 7175", false, ""),
        ("--peer 10.77.0.2", true, "ip.addr == 10.77.0.2"),
        ("--peer 10.77.0.0/25 -Q out", true, "ip.dst == 10.77.0.2"),
        ("--peer 10.78.0.0/16", false, ""),
        ("--peer ::/0", false, ""),
        ("-s 60", true, "frame.cap_len == 60 && frame.len >= 60"),
    ] {
        let capture = Capture::of_nic(&world, options, "filtered");
        ping(&world, "-C 1");
        let captured = capture.end();
        let all = captured.count("frame");
        assert_eq!(all > 0, frames, "{options}: {}", captured.last);
        if frames {
            assert_eq!(captured.count(filter), all, "{options}");
        }
        fs::remove_file(captured.file).unwrap();
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_client_may_not_send_is_captured_with_the_reason() {
    let world = World::new("[[user]]\nname = \"nobody\"\nrate = \"20Mbit\"\n");
    let capture = Capture::of_nic(&world, "-Q out", "dropped");
    let server = world.nobody("rping -s -a 10.77.0.1 --netdev nic");
    let server = Running::start(server).until_it_says("listening on");
    let ends = "rping -c -a 10.77.0.1 --netdev theirs -S 60000 -C 0";
    let peer = Running::start(world.peers(ends));
    let dropped = || {
        let port = &world.ask("port")[0];
        port["sent"]["rate"]["frames"].as_u64().unwrap_or(0)
    };
    world.until("the client is over its rate", || {
        (dropped() > 0).then_some(())
    });
    peer.interrupt();
    peer.finish("the peer");
    drop(server);
    let captured = capture.end();
    let drops = captured.frames("frame.verdict.ebpf_xdp == 1", &["frame.comment"]);
    // What answers the peer's SYN may be ahead of the next hop that rnicd allows.
    let of_rate = drops.iter().filter(|why| *why == "dropped: rate").count();
    assert!(of_rate > 0 && of_rate + 1 >= drops.len(), "{drops:?}");
    assert_eq!(captured.count("frame.comment"), drops.len() as u64);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn lost_frames_are_counted() {
    let world = World::new("");
    let capture = Capture::of_nic(&world, "-B 1 -Q in", "lost");
    let signal = |signal: &str| {
        let mut kill = Command::new("kill");
        succeed(kill.args([signal, &capture.running.id().to_string()]));
    };
    // It reads nothing while many more octets come than the rings hold.
    signal("-STOP");
    let server = world.nobody("perf write-bw -s 65536 -n 200 --local 10.77.0.1 --netdev nic");
    let server = Running::start(server).until_it_says("waiting for a client");
    let peer = world.peers("perf write-bw -s 65536 -n 200 10.77.0.1 --netdev theirs");
    Running::start(peer).succeed("the peer");
    server.succeed("the client");
    signal("-CONT");
    let captured = capture.end();
    let kept = captured.count("frame");
    let lost = to_clients(&world) - kept;
    assert!(kept > 0 && lost > 0, "{}", captured.last);
    let expected = format!(
        "{kept} frames captured, {lost} lost ({lost}: ring buffer full, -B MIB makes it larger)"
    );
    assert_eq!(captured.last, expected);
    let mut capinfos = Command::new("capinfos");
    let about = text(&succeed(capinfos.arg(&captured.file)).stdout);
    assert!(about.contains("Number of stat entries = 1"), "{about}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_capture_that_is_killed_leaves_nothing() {
    let world = World::new("");
    let pin = format!("{}/bpf/nic/{LAYOUT}/data_capture", world.place());
    let is_on = || {
        let mut bpftool = Command::new("bpftool");
        let dumped = text(&succeed(bpftool.args(["map", "dump", "pinned", &pin])).stdout);
        !dumped.contains("\"kinds\": 0")
    };
    assert!(!is_on());
    let capture = Capture::of_nic(&world, "", "killed");
    assert!(is_on());
    let stranger = world.nobody("capture -i nic -w /dev/null").output();
    let stranger = stranger.unwrap();
    assert_eq!(stranger.status.code(), Some(3));
    assert!(text(&stranger.stderr).contains("it takes root"));
    let busy = world.root("capture -i nic -w /dev/null").output().unwrap();
    assert_eq!(busy.status.code(), Some(1));
    let said = text(&busy.stderr);
    assert!(said.contains("another process captures on nic"), "{said}");
    // Dropping it kills it. Its rings go with it, which the programs notice with the next frame.
    drop(capture);
    ping(&world, "-C 1");
    assert!(!is_on());
    // And the next one has all.
    let before = to_clients(&world);
    let again = Capture::of_nic(&world, "-Q in", "again");
    ping(&world, "-C 1");
    let again = again.end();
    let frames = to_clients(&world) - before;
    assert_eq!(again.last, format!("{frames} frames captured, 0 lost"));
    assert!(!is_on());
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_capture_goes_on_while_rnicd_is_replaced() {
    let mut world = World::new("");
    let capture = Capture::of_nic(&world, "-Q in", "replaced");
    world.restart();
    world.until("the new rnicd serves", || {
        let shown = world.root("-j dev").output().unwrap();
        text(&shown.stdout).contains("\"nic\"").then_some(())
    });
    ping(&world, "-C 1");
    let captured = capture.end();
    assert_eq!(captured.count("frame"), to_clients(&world));
}
