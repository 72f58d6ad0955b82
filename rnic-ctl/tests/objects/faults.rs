//! What users and administrators learn where rnicd does not run, or cannot share what it is to
//! share.

use std::process::Command;

use nix::sys::signal::Signal;
use rnic_verbs::{Device, DeviceConfig, Driving, InterfaceConfig};
use rnic_xdp::steering::ModeChoice;
use serde_json::{Value, json};

use crate::common::{Running, text};
use crate::doctor::{doctor, found, nobody};
use crate::world::{World, succeed};

const SERVE: &str = "rping -s -a 10.77.0.1 --netdev nic";

/// What a command says that fails.
fn fails(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?}");
    text(&output.stderr)
}

fn assert_says(said: &str, words: &[&str], not: &[&str]) {
    for words in words {
        assert!(said.contains(words), "no {words:?}: {said}");
    }
    for words in not {
        assert!(!said.contains(words), "{words:?}: {said}");
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_rnicd_has_attached_is_not_to_be_detached_while_it_does_not_run() {
    let mut world = World::new("");
    world.stop();
    let none = format!("no rnicd listens at {}", world.socket().display());
    let said = fails(world.root(SERVE));
    assert_says(
        &said,
        &[
            &none,
            "rnicd shares nic",
            "`systemctl start rnicd`",
            "`rnicd --unshare`",
        ],
        &["xdp off", "another rnic process"],
    );
    let said = fails(nobody(&world, SERVE));
    assert_says(&said, &[&none, "do not detach it"], &["xdp off", "\"?\""]);

    // doctor finds what opening does.
    for line in [
        "-j doctor --netdev nic",
        "-j doctor --netdev nic --no-trial",
    ] {
        let (code, said) = doctor(world.root(line));
        assert_eq!(
            (code, &said["ok"]),
            (Some(1), &Value::Bool(false)),
            "{said:#}"
        );
        let program = found(&said, "device", "XDP program")["found"].as_str();
        assert!(
            program.unwrap().starts_with("that of rnicd (id "),
            "{said:#}"
        );
        assert_eq!(found(&said, "device", "rnicd")["verdict"], "fail");
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn whoever_may_not_reach_rnicd_is_not_told_to_detach_its_program() {
    let world = World::new("");
    let mut outsider = Command::new("nsenter");
    outsider.arg(format!("--net=/run/netns/{}", world.host.name()));
    outsider.args([
        "setpriv",
        "--reuid=65534",
        "--regid=65533",
        "--clear-groups",
    ]);
    outsider.args(["--bounding-set=-all", "--no-new-privs"]);
    outsider
        .arg(world.place() + "/rnic-ctl")
        .args(SERVE.split(' '));
    outsider.env("RNICD_SOCKET", world.socket());
    let said = fails(outsider);
    assert_says(
        &said,
        &["not permitted to connect to rnicd", "do not detach it"],
        &["xdp off"],
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_process_that_has_the_device_for_itself_is_named_to_root_alone() {
    let world = World::new("");
    let server = world.peers("rping -s -a 10.77.0.2 --netdev theirs");
    let server = Running::start(server).until_it_says("listening on");
    let line = "rping -s -a 10.77.0.2 --netdev theirs -p 7000";
    let said = fails(world.peers(line));
    let pid = format!(", pid {})", server.id());
    assert_says(
        &said,
        &["another rnic process drives theirs already", &pid],
        &["no rnicd"],
    );
    let mut user = Command::new("nsenter");
    user.arg(format!("--net=/run/netns/{}", world.peer.name()));
    let inner = world.nobody(line);
    user.arg(inner.get_program()).args(inner.get_args());
    user.env("RNICD_SOCKET", "/nowhere");
    assert_says(&fails(user), &["do not detach it"], &["xdp off"]);
}

/// The state of the device, as root sees it.
fn device(world: &World) -> Value {
    world.ask("dev show nic")[0].take()
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_program_that_was_detached_is_attached_again() {
    let world = World::new("");
    let monitor = Running::start(world.root("-j monitor")).until_it_says("listening");
    let program = |world: &World| device(world)["kernel"]["xdp_program"].clone();
    let before = program(&world);
    assert!(before.is_u64(), "{before}");
    world.host.ip("link set dev nic xdp off").unwrap();
    let monitor = monitor.until_it_says("program_attached");
    let after = program(&world);
    assert!(after.is_u64() && after != before, "{before} {after}");
    monitor.interrupt();
    monitor.succeed("monitor");
    // Its clients reach others.
    let server = world.peers("rping -s -a 10.77.0.2 --netdev theirs");
    let _server = Running::start(server).until_it_says("listening on");
    succeed(&mut world.nobody("rping -c -a 10.77.0.2 --netdev nic -C 3"));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn whose_program_is_in_the_place_of_rnicds_is_said() {
    let world = World::new("");
    let monitor = Running::start(world.root("-j monitor")).until_it_says("listening");
    world.signal(Signal::SIGSTOP);
    world.host.ip("link set dev nic xdp off").unwrap();
    let mut other = world.root(SERVE);
    other.env("RNICD_SOCKET", "/nowhere");
    let other = Running::start(other).until_it_says("listening on");
    world.signal(Signal::SIGCONT);
    let monitor = monitor.until_it_says("program_detached");
    let shown = device(&world);
    assert_eq!(shown["state"], "detached");
    let whose = format!(", pid {})", other.id());
    assert_says(
        shown["reason"].as_str().unwrap(),
        &["another rnic process", &whose],
        &[],
    );
    let said = fails(world.nobody(SERVE));
    assert_says(
        &said,
        &["rnicd cannot share it now: another rnic process", &whose],
        &[],
    );
    for command in [
        world.root("-j doctor --netdev nic"),
        nobody(&world, "-j doctor --netdev nic"),
    ] {
        let (code, said) = doctor(command);
        assert_eq!(code, Some(1), "{said:#}");
        let rnicd = found(&said, "device", "rnicd");
        assert_eq!(rnicd["verdict"], "fail");
        assert!(
            rnicd["found"]
                .as_str()
                .unwrap()
                .contains("cannot share nic now"),
            "{rnicd}"
        );
    }
    other.interrupt();
    let _ = other.finish("the other process");
    let monitor = monitor.until_it_says("program_attached");
    assert_eq!(
        (&device(&world)["state"], &device(&world)["reason"]),
        (&json!("up"), &Value::Null)
    );
    monitor.interrupt();
    monitor.succeed("monitor");
    let _server = Running::start(world.nobody(SERVE)).until_it_says("listening on");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_that_waits_is_shown_with_the_reason() {
    let world = World::new("[[device]]\nname = \"eth9\"\n");
    let why =
        "there is no network device eth9 here; `ip link` lists those of this network namespace";
    let shown = text(&succeed(&mut world.root("dev show")).stdout);
    let line = format!("dev eth9 state waiting reason \"{why}\" ports 0 leases 0");
    assert_eq!(shown.lines().next(), Some(line.as_str()));
    let shown = world.ask("dev show eth9");
    assert_eq!(
        (&shown[0]["state"], &shown[0]["reason"], &shown[0]["xdp"]),
        (&json!("waiting"), &json!(why), &Value::Null)
    );
    let said = fails(world.nobody("rping -s -a 10.77.0.1 --netdev eth9"));
    assert_says(
        &said,
        &["there is no port of eth9: rnicd cannot share it now: ", why],
        &[],
    );
    // It is no failure of the others.
    assert_eq!(device(&world)["state"], "up");
    // Nor does it bring a device that is not allowed to light.
    let world = World::new(
        "[[device]]\nname = \"eth9\"\n[[user]]\nname = \"nobody\"\ndevices = [\"nic\"]\n",
    );
    let said = fails(world.nobody("rping -s -a 10.77.0.1 --netdev eth9"));
    assert_says(
        &said,
        &["rnicd does not share it with this user"],
        &["cannot share"],
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn who_holds_an_address_is_said_to_its_user_alone() {
    let world = World::new("");
    let server = Running::start(world.nobody(SERVE)).until_it_says("listening on");
    let whose = format!(
        "10.77.0.1:7174 is in use by port 1 of rnicd (rnic-ctl, pid {}); ",
        server.id()
    );
    let remedy = "`rnic-ctl lease show`";
    assert_says(
        &fails(world.nobody(SERVE)),
        &[&whose, remedy],
        &["ss -tlnp"],
    );
    // A program of root's is a client as any other: it may be in a container. The remedy shows the
    // host's root all.
    let others = "in use by another user's client of rnicd; ";
    for command in [world.root(SERVE), world.user(12345, SERVE)] {
        assert_says(&fails(command), &[others, remedy], &["pid"]);
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_port_says_what_it_does_not_do() {
    let world = World::new("");
    let config = DeviceConfig {
        interface: InterfaceConfig {
            mode: ModeChoice::Generic,
            busy_poll: true,
            ..InterfaceConfig::new("nic")
        },
        driving: Driving::Threads {
            most: Some(4),
            idle: std::time::Duration::ZERO,
            pin: false,
        },
        manager: Some(world.socket()),
        ..DeviceConfig::new("nic")
    };
    let device = Device::open_with(&config).unwrap();
    let report = device.interface().unwrap().report().to_string();
    let words = [
        "busy poll off: a port of rnicd has no interrupts of its own",
        "XDP not generic: a port has the mode in which rnicd shares nic (its xdp_mode)",
        "1 worker, not 4: a port of rnicd has one queue",
    ];
    assert_says(&report, &words, &[]);
    // What was not asked for is not mentioned.
    let config = DeviceConfig {
        manager: config.manager,
        ..DeviceConfig::new("nic")
    };
    let device = Device::open_with(&config).unwrap();
    let report = device.interface().unwrap().report().to_string();
    assert_says(&report, &[], &["busy poll", "XDP not", "worker"]);
}
