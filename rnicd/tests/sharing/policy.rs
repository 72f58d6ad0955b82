//! What binds clients whatever their programs ask for: IPsec policies of the host, which they
//! cannot see, and CRCs.

use std::io::Read;
use std::net::TcpListener;

use crate::client::ALICE;
use crate::exchange::Initiator;
use crate::peer::open;
use crate::rig::{PEER_NIC, Rig};

const POLICY: &str = "src 10.9.0.0/24 dst 10.9.0.1 dir in tmpl proto esp mode transport";

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(all(root, not(ipsec)), ignore = "needs a kernel with IPsec")]
fn a_listener_follows_policies_as_they_change() {
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
    rig.host.ip(&format!("xfrm policy add {POLICY}")).unwrap();
    let error = connect("10.9.0.1:7000").unwrap_err();
    assert!(error.contains("rejected"), "{error}");
    // The policy does not select other addresses.
    connect("[fd09::1]:7000").unwrap();
    rig.host.ip("xfrm policy flush").unwrap();
    connect("10.9.0.1:7000").unwrap();
}

/// The flags of a client's MPA Request say that it wants CRCs.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn programs_do_without_crcs_only_where_the_configuration_says_so() {
    // rfc: 5044-28b, 5044-30
    for (rules, wants) in [
        ("", true),
        ("[defaults]\ncrc = \"always\"\n", true),
        ("[defaults]\ncrc = \"optional\"\n", false),
        ("[[user]]\nuid = 65533\ncrc = \"optional\"\n", false),
        ("[[user]]\nuid = 65532\ncrc = \"optional\"\n", true),
    ] {
        let rig = Rig::new(1500, rules);
        let peer = rig.far.run(|| TcpListener::bind("10.9.0.2:7001")).unwrap();
        let mut client = rig.open_client(ALICE);
        client.tell("without-crc 10.9.0.2:7001");
        let (mut connected, _) = peer.accept().unwrap();
        let mut request = [0; 20];
        connected.read_exact(&mut request).unwrap();
        assert_eq!(&request[..16], b"MPA ID Req Frame");
        assert_eq!(request[16] & 0x40 != 0, wants, "{rules}");
        drop(connected);
        // The peer does not speak iWARP.
        client.answer().unwrap_err();
    }
}
