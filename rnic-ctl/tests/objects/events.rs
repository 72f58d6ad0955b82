//! What `rnic-ctl monitor` shows.

use std::time::Duration;

use nix::sys::signal::Signal;
use rnic_manager::states::Event;
use rnic_manager::{Administrator, AskError};
use serde_json::{Value, json};

use crate::common::Running;
use crate::world::{World, succeed};

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_monitor_shows_what_happens_in_order() {
    let world = World::new("");
    let monitor = Running::start(world.root("-j monitor")).until_it_says("listening");
    let server = world.nobody("rping -s -a 10.77.0.1 --netdev nic");
    let server = Running::start(server).until_it_says("listening on");
    succeed(&mut world.root("lease revoke 1 10.77.0.1:7174"));
    // It ends by itself, too.
    drop(server);
    world.until("the port ends with its client", || {
        (world.ask("port") == json!([])).then_some(())
    });
    assert!(!world.nobody("dev").output().unwrap().status.success());
    let server = world.nobody("rping -s -a 10.77.0.1 --netdev nic");
    let _server = Running::start(server).until_it_says("listening on");
    succeed(&mut world.root("client kill 1"));
    succeed(&mut world.root("user set nobody rate 1Gbit"));
    for (change, state) in [("down", "down"), ("up", "up")] {
        world.host.ip(&format!("link set nic {change}")).unwrap();
        world.until("rnicd sees the link change", || {
            (world.ask("dev")[0]["state"] == state).then_some(())
        });
    }
    world.host.ip("link del nic").unwrap();
    world.until("rnicd sees that the device is gone", || {
        (world.ask("dev")[0]["state"] == "waiting").then_some(())
    });
    let monitor = monitor.until_it_says("\"gone\"");
    monitor.interrupt();
    let said = monitor.succeed("monitor");
    let events = said.lines().map(|line| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let fields = event.as_object_mut().unwrap();
        for varying in ["at", "pid"] {
            fields.remove(varying);
        }
        event
    });
    let opened = json!({ "event": "port_opened", "port": 1, "dev": "nic", "user": "nobody", "uid": 65534, "program": "rnic-ctl" });
    let lease = "10.77.0.1:7174";
    let leased = json!({ "event": "lease_added", "port": 1, "lease": lease });
    let changed = |state| json!({ "event": "device_changed", "dev": "nic", "state": state });
    let ended = |why| json!({ "event": "port_ended", "port": 1, "dev": "nic", "why": why });
    let refused = json!({
        "event": "refused", "user": "nobody", "uid": 65534, "program": "rnic-ctl", "reason": "not_permitted",
        "message": "uid 65534 may not see the devices: only root may (`sudo`)",
    });
    let expected = [
        json!({ "event": "listening" }),
        opened.clone(),
        leased.clone(),
        json!({ "event": "lease_ended", "port": 1, "lease": lease, "revoked": true }),
        ended("client_left"),
        refused,
        opened,
        leased,
        ended("killed"),
        json!({ "event": "settings_changed", "what": "uid 65534: an administrator has set rate = 1Gbit" }),
        changed("down"),
        changed("up"),
        changed("gone"),
    ];
    // A device that goes down and up loses its link-local address and gets it again.
    let of_addresses = [json!("address_added"), json!("address_removed")];
    let events = events.filter(|event| !of_addresses.contains(&event["event"]));
    let events: Vec<_> = events.collect();
    assert_eq!(events, expected);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_monitor_outlives_rnicd() {
    let mut world = World::new("");
    let monitor = Running::start(world.root("monitor")).until_it_says("event listening\n");
    world.stop();
    let monitor = monitor.until_it_says("event rnicd_away why ");
    world.restart();
    let monitor = monitor.until_it_says("\nevent listening\n");
    world.until("the device is shared again", || {
        let output = world.root("dev show").output().ok()?;
        (!output.stdout.is_empty()).then_some(())
    });
    succeed(&mut world.root("user set nobody rate 1Gbit"));
    let monitor = monitor.until_it_says("event settings_changed ");
    monitor.interrupt();
    monitor.succeed("monitor");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_monitor_shows_changes_of_a_device_and_a_refused_reload() {
    let world = World::new("");
    let monitor = Running::start(world.root("-j monitor")).until_it_says("listening");
    let (mac, address) = ("02:00:00:00:77:01", "10.77.0.9");
    let change = |what: &str| world.host.ip(what).unwrap();
    change(&format!("addr add {address}/24 dev nic"));
    let monitor = monitor.until_it_says(address);
    change(&format!("addr del {address}/24 dev nic"));
    change("link set dev nic mtu 1400");
    change(&format!("link set dev nic address {mac}"));
    let monitor = monitor.until_it_says("mac_changed");
    world.configure("[[device]]\nnam = 1\n");
    world.signal(Signal::SIGHUP);
    let monitor = monitor.until_it_says("reload_refused");
    monitor.interrupt();
    let said = monitor.succeed("monitor");
    let events: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind: &str, key: &str| {
        let mut found = events.iter().filter(|event| event["event"] == kind);
        let found = found.next().unwrap_or_else(|| panic!("no {kind}: {said}"));
        assert!(found["at"].is_string());
        found[key].clone()
    };
    // The device has link-local addresses too.
    for kind in ["address_added", "address_removed"] {
        let is_it = |event: &Value| event["event"] == kind && event["address"] == address;
        assert!(events.iter().any(is_it), "no {kind}: {said}");
    }
    assert_eq!(
        (of("mtu_changed", "mtu"), of("mtu_changed", "dev")),
        (json!(1400), json!("nic"))
    );
    assert_eq!(of("mac_changed", "mac"), mac);
    let why = of("reload_refused", "why");
    assert!(
        why.as_str().unwrap().contains("unknown key \"nam\""),
        "{why}"
    );
    // The old one counts.
    assert_eq!(world.ask("dev")[0]["state"], "up");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_reader_that_is_too_slow_learns_how_much_it_missed() {
    const EVENTS: u64 = 3000;
    let world = World::new("");
    let connect = || Administrator::connect(&world.socket()).unwrap();
    let (mut slow, mut other) = (connect(), connect());
    slow.monitor().unwrap();
    for _ in 0..EVENTS {
        let refused = other.end_port(77);
        assert!(matches!(refused, Err(AskError::Refused(_))), "{refused:?}");
    }
    let (mut came, mut missed) = (0, 0);
    world.until("all events are accounted for", || {
        match slow.next_event(Duration::from_secs(1)).unwrap() {
            Some((_, Event::Refused { .. })) if missed == 0 => came += 1,
            Some((_, Event::Missed { events })) => missed += events,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        (came + missed >= EVENTS).then_some(())
    });
    assert_eq!(came + missed, EVENTS);
    assert!(
        missed > 0 && came > 256,
        "{came} came, {missed} were missed"
    );
    // It can be used on.
    let _ = other.end_port(78);
    let next = world.until("the next event", || {
        slow.next_event(Duration::from_secs(1)).unwrap()
    });
    assert!(matches!(next.1, Event::Refused { .. }), "{next:?}");
}
