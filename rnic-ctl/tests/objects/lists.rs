//! Lists that are longer than a message, and what a new rnicd knows of old ports.

use std::net::SocketAddr;

use rnic_core::engine::{Net, Peers};
use rnic_manager::Administrator;
use rnic_manager::states::{LeaseState, PortState};
use rnic_xdp::InterfaceConfig;
use rnic_xdp::client::Manager;

use crate::world::World;

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn all_leases_are_shown_in_order() {
    const LEASES: u16 = 1500;
    let world = World::new("[defaults]\nlisteners = 4000\nlisten = [\"10000-11999\"]\n");
    let manager = Manager::connect(&world.socket()).unwrap();
    let (_port, net) = manager.open(&InterfaceConfig::new("nic")).unwrap();
    let leases: Vec<_> = (0..LEASES)
        .map(|number| {
            let local = SocketAddr::from(([10, 77, 0, 1], 10_000 + number));
            net.listen_to(local, &Peers::all()).unwrap()
        })
        .collect();
    let shown = world.ask("lease show");
    let shown = shown.as_array().unwrap().iter();
    let shown: Vec<_> = shown
        .map(|lease| lease["lease"].as_str().unwrap())
        .collect();
    let expected: Vec<_> = leases.iter().map(|(local, _)| local.to_string()).collect();
    assert_eq!(shown, expected);
}

/// The last port, and all leases, if rnicd is there.
fn show(world: &World) -> Option<(PortState, Vec<LeaseState>)> {
    let mut administrator = Administrator::connect(&world.socket()).ok()?;
    let mut ports = administrator.ports().ok()?;
    Some((ports.pop()?, administrator.leases().ok()?))
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_new_rnicd_knows_who_has_a_port_and_since_when() {
    let mut world = World::new("");
    let manager = Manager::connect(&world.socket()).unwrap();
    let (_port, net) = manager.open(&InterfaceConfig::new("nic")).unwrap();
    let local = "10.77.0.1:19000".parse().unwrap();
    let _lease = net.listen_to(local, &Peers::all()).unwrap();
    let (before, leases) = show(&world).unwrap();
    assert!(leases[0].since >= Some(before.since), "{leases:?}");
    world.restart();
    let (after, leases) = world.until("the client comes back", || {
        show(&world).filter(|(port, _)| port.connected)
    });
    // The new one has attached its own program.
    let [after, before] = [after, before].map(|mut port| {
        let program = &mut port.host_end.as_mut().unwrap().program;
        assert!(program.take().is_some());
        port
    });
    assert_eq!(after, before);
    assert_eq!((leases[0].local, leases[0].since), (local, None));
}
