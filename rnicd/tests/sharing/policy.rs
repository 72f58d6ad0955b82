//! IPsec policies of the host bind clients, which cannot see them.

use rnic_xdp::testing::is_root;

use crate::client::ALICE;
use crate::exchange::Initiator;
use crate::peer::open;
use crate::rig::{PEER_NIC, Rig};

const POLICY: &str = "src 10.9.0.0/24 dst 10.9.0.1 dir in tmpl proto esp mode transport";

#[test]
fn a_listener_follows_policies_as_they_change() {
    if !is_root("a_listener_follows_policies_as_they_change") {
        return;
    }
    let rig = Rig::new(1500, "");
    let device = open(&rig.far, PEER_NIC);
    let mut server = rig.open_client(ALICE);
    for address in ["10.9.0.1", "[fd09::1]"] {
        server.must(&format!("listen {address}:7000"));
    }
    server.tell("serve");
    let connect = |to: &str| {
        let connect = || Initiator::connect(&device, to.parse().unwrap(), None);
        rig.far.run(connect)?.round(1)
    };
    connect("10.9.0.1:7000").unwrap();
    if rig.host.ip(&format!("xfrm policy add {POLICY}")).is_err() {
        eprintln!("SKIPPED: a kernel without IPsec has no policies");
        return;
    }
    let error = connect("10.9.0.1:7000").unwrap_err();
    assert!(error.contains("rejected"), "{error}");
    // The policy does not select other addresses.
    connect("[fd09::1]:7000").unwrap();
    rig.host.ip("xfrm policy flush").unwrap();
    connect("10.9.0.1:7000").unwrap();
}
