//! One message of each type.

use rnic_core::engine::Peers;
use rnic_manager::LinkState;
use rnic_manager::Mode;
use rnic_manager::Token;
use rnic_manager::protection::{Association, Demanded, Done, Protection, Secret};
use rnic_manager::protocol::{
    Answer, Ask, BigPacket, BigSegment, Change, FromDaemon, Grant, Hop, Notice, Policy, Reason,
    Refused, Reply, Request, RingSizes, Show, UntaggedAddress, Withheld,
};
use rnic_manager::states::{DaemonState, Event};

use crate::states;

pub(crate) const TOKEN: &str = "000102030405060708090a0b0c0d0e0f";

pub(crate) fn token() -> Token {
    serde_json::from_value(TOKEN.into()).unwrap()
}

pub(crate) fn hello() -> Request {
    Request {
        id: 1,
        ask: Ask::Hello {
            version: 1,
            program: "rping".into(),
        },
    }
}

/// A request of each type, with its JSON.
pub(crate) fn requests() -> Vec<(Request, String)> {
    let asks = [
        (
            hello().ask,
            r#""type":"hello","version":1,"program":"rping""#.to_owned(),
        ),
        (
            Ask::OpenPort {
                netdev: "eth1".into(),
                rx_frames: 512,
                tx_frames: 4096,
                tx_ring: 128,
                queue: None,
            },
            r#""type":"open_port","netdev":"eth1","rx_frames":512,"tx_frames":4096,"tx_ring":128"#.into(),
        ),
        (
            Ask::OpenPort {
                netdev: "eth1".into(),
                rx_frames: 512,
                tx_frames: 4096,
                tx_ring: 128,
                queue: Some(3),
            },
            r#""type":"open_port","netdev":"eth1","rx_frames":512,"tx_frames":4096,"tx_ring":128,"queue":3"#.into(),
        ),
        (
            Ask::Adopt {
                port: 7,
                token: token(),
                leases: vec!["192.0.2.1:7174".parse().unwrap()],
            },
            format!(
                r#""type":"adopt","port":7,"token":"{TOKEN}","leases":["192.0.2.1:7174"]"#
            ),
        ),
        (
            Ask::Listen {
                port: 7,
                local: "0.0.0.0:7174".parse().unwrap(),
                peers: Peers::all(),
            },
            r#""type":"listen","port":7,"local":"0.0.0.0:7174","peers":null"#.into(),
        ),
        (
            Ask::Listen {
                port: 7,
                local: "[fe80::1%3]:0".parse().unwrap(),
                peers: Peers::only(["192.0.2.0/24", "2001:db8::1"].map(|text| text.parse().unwrap())),
            },
            r#""type":"listen","port":7,"local":"[fe80::1%3]:0","peers":["192.0.2.0/24","2001:db8::1"]"#.into(),
        ),
        (
            Ask::Listen {
                port: 7,
                local: "0.0.0.0:7174".parse().unwrap(),
                peers: Peers::only([]),
            },
            r#""type":"listen","port":7,"local":"0.0.0.0:7174","peers":[]"#.into(),
        ),
        (
            Ask::Map {
                port: 7,
                local: "192.0.2.1:40000".parse().unwrap(),
                wanted: "192.0.2.1:6379".parse().unwrap(),
            },
            r#""type":"map","port":7,"local":"192.0.2.1:40000","wanted":"192.0.2.1:6379""#.into(),
        ),
        (
            Ask::Unmap {
                port: 7,
                local: "192.0.2.1:40000".parse().unwrap(),
            },
            r#""type":"unmap","port":7,"local":"192.0.2.1:40000""#.into(),
        ),
        (
            Ask::Locate {
                port: 7,
                remote: "192.0.2.2:7174".parse().unwrap(),
                local: None,
            },
            r#""type":"locate","port":7,"remote":"192.0.2.2:7174""#.into(),
        ),
        (
            Ask::Locate {
                port: 7,
                remote: "192.0.2.2:7174".parse().unwrap(),
                local: Some("192.0.2.1:0".parse().unwrap()),
            },
            r#""type":"locate","port":7,"remote":"192.0.2.2:7174","local":"192.0.2.1:0""#.into(),
        ),
        (
            Ask::Connect {
                port: 7,
                remote: "192.0.2.2:7174".parse().unwrap(),
                local: None,
            },
            r#""type":"connect","port":7,"remote":"192.0.2.2:7174","local":null"#.into(),
        ),
        (
            Ask::Connect {
                port: 7,
                remote: "192.0.2.2:7174".parse().unwrap(),
                local: Some("192.0.2.1:0".parse().unwrap()),
            },
            r#""type":"connect","port":7,"remote":"192.0.2.2:7174","local":"192.0.2.1:0""#.into(),
        ),
        (
            Ask::Release {
                port: 7,
                local: "192.0.2.1:7174".parse().unwrap(),
            },
            r#""type":"release","port":7,"local":"192.0.2.1:7174""#.into(),
        ),
        (
            Ask::Follow {
                port: 7,
                source: None,
                destination: "192.0.2.2".parse().unwrap(),
            },
            r#""type":"follow","port":7,"destination":"192.0.2.2""#.into(),
        ),
        (
            Ask::Follow {
                port: 7,
                source: Some("192.0.2.1".parse().unwrap()),
                destination: "192.0.2.2".parse().unwrap(),
            },
            r#""type":"follow","port":7,"source":"192.0.2.1","destination":"192.0.2.2""#.into(),
        ),
        (
            Ask::Forget {
                port: 7,
                source: None,
                destination: "2001:db8::2".parse().unwrap(),
            },
            r#""type":"forget","port":7,"destination":"2001:db8::2""#.into(),
        ),
        (
            Ask::Show(Show::Devices { after: None }),
            r#""type":"show","what":"devices","after":null"#.into(),
        ),
        (
            Ask::Show(Show::Devices { after: Some("eth1".into()) }),
            r#""type":"show","what":"devices","after":"eth1""#.into(),
        ),
        (
            Ask::Show(Show::Ports { after: Some(7) }),
            r#""type":"show","what":"ports","after":7"#.into(),
        ),
        (
            Ask::Show(Show::Leases { after: Some((7, "192.0.2.1:7174".parse().unwrap())) }),
            r#""type":"show","what":"leases","after":[7,"192.0.2.1:7174"]"#.into(),
        ),
        (
            Ask::Show(Show::Users { after: Some(0) }),
            r#""type":"show","what":"users","after":0"#.into(),
        ),
        (
            Ask::Show(Show::Usage { after: Some(("eth1".into(), None)) }),
            r#""type":"show","what":"usage","after":["eth1",null]"#.into(),
        ),
        (Ask::Show(Show::Daemon), r#""type":"show","what":"daemon""#.into()),
        (
            Ask::EndPort { port: 7 },
            r#""type":"end_port","port":7"#.into(),
        ),
        (
            Ask::Revoke {
                port: 7,
                local: "[2001:db8::1]:7174".parse().unwrap(),
            },
            r#""type":"revoke","port":7,"local":"[2001:db8::1]:7174""#.into(),
        ),
        (
            Ask::Admit {
                port: 7,
                local: "192.0.2.1:7174".parse().unwrap(),
                remote: "192.0.2.9:40000".parse().unwrap(),
            },
            r#""type":"admit","port":7,"local":"192.0.2.1:7174","remote":"192.0.2.9:40000""#.into(),
        ),
        (Ask::Monitor, r#""type":"monitor""#.into()),
        (
            Ask::AddDevice {
                netdev: "eth1".into(),
                changes: vec![change("xdp_mode", Some("native"))],
            },
            r#""type":"add_device","netdev":"eth1","changes":[{"key":"xdp_mode","value":"native"}]"#.into(),
        ),
        (
            Ask::RemoveDevice { netdev: "eth1".into(), force: true },
            r#""type":"remove_device","netdev":"eth1","force":true"#.into(),
        ),
        (
            Ask::SetDevice {
                netdev: "eth1".into(),
                changes: vec![change("xdp_mode", None)],
                force: false,
            },
            r#""type":"set_device","netdev":"eth1","changes":[{"key":"xdp_mode","value":null}],"force":false"#.into(),
        ),
        (
            Ask::SetUser {
                user: "alice".into(),
                changes: vec![change("rate", Some("1Gbit")), change("ports", None)],
            },
            r#""type":"set_user","user":"alice","changes":[{"key":"rate","value":"1Gbit"},{"key":"ports","value":null}]"#.into(),
        ),
        (
            Ask::ResetUser { user: "1000".into() },
            r#""type":"reset_user","user":"1000""#.into(),
        ),
        (
            Ask::TakeNumbers {
                port: 7,
                spi: 4097,
                destination: "192.0.2.2".parse().unwrap(),
            },
            r#""type":"take_numbers","port":7,"spi":4097,"destination":"192.0.2.2""#.into(),
        ),
        (
            Ask::Acquire {
                port: 7,
                request: 42,
                local: "192.0.2.1".parse().unwrap(),
                remote: "192.0.2.2".parse().unwrap(),
            },
            r#""type":"acquire","port":7,"request":42,"local":"192.0.2.1","remote":"192.0.2.2""#.into(),
        ),
        (
            Ask::Inspect { port: 7, what: "qp".into(), within: 2000 },
            r#""type":"inspect","port":7,"what":"qp","within":2000"#.into(),
        ),
    ];
    let whole =
        |(ask, json): (Ask, String)| (Request { id: 9, ask }, format!(r#"{{"id":9,{json}}}"#));
    asks.map(whole).into()
}

fn change(key: &str, value: Option<&str>) -> Change {
    Change {
        key: key.into(),
        value: value.map(str::to_owned),
    }
}

pub(crate) fn grant() -> Grant {
    Grant {
        port: 7,
        token: token(),
        netdev: "eth1".into(),
        chunk: 4096,
        chunks: 3,
        rx_chunks: 4096,
        tx_chunks: 4096,
        rings: RingSizes {
            fill: 4096,
            completion: 8192,
            rx: 2048,
            tx: 128,
        },
        mtu: 9000,
        link_mtu: 9000,
        mode: Mode::Generic {
            reason: "no XDP".into(),
        },
        copied: Some("a veth copies".into()),
        huge_pages: true,
        partial_checksums: true,
        crc_optional: true,
        untagged: untagged(),
        queue: None,
        ipsec_if_id: std::num::NonZeroU32::new(0x524e),
    }
}

fn answers() -> Vec<(Answer, String)> {
    let protected = Refused {
        policy: Some(Policy {
            address: "192.0.2.1:0".parse().unwrap(),
            text: "dir out".into(),
        }),
        ..Refused::new(Reason::Protected, "no")
    };
    vec![
        (
            Answer::Welcome {
                version: 1,
                devices: vec!["eth1".into(), "eth2".into()],
                withheld: Vec::new(),
            },
            r#""type":"welcome","version":1,"devices":["eth1","eth2"]"#.into(),
        ),
        (
            Answer::Welcome {
                version: 1,
                devices: Vec::new(),
                withheld: vec![Withheld {
                    netdev: "eth1".into(),
                    why: "eth1 is down".into(),
                }],
            },
            r#""type":"welcome","version":1,"devices":[],"withheld":[{"netdev":"eth1","why":"eth1 is down"}]"#.into(),
        ),
        (
            Answer::Port(grant()),
            format!(
                r#""type":"port","port":7,"token":"{TOKEN}","netdev":"eth1","chunk":4096,"chunks":3,"rx_chunks":4096,"tx_chunks":4096,"rings":{{"fill":4096,"completion":8192,"rx":2048,"tx":128}},"mtu":9000,"link_mtu":9000,"mode":{{"generic":{{"reason":"no XDP"}}}},"copied":"a veth copies","huge_pages":true,"partial_checksums":true,"crc_optional":true,"untagged":[{{"address":"192.0.2.1","vlan":9}},{{"address":"2001:db8::1","vlan":4094}}],"ipsec_if_id":21070"#
            ),
        ),
        (Answer::Adopted, r#""type":"adopted""#.into()),
        (
            Answer::Lease {
                local: "192.0.2.1:7174".parse().unwrap(),
                protected: false,
            },
            r#""type":"lease","local":"192.0.2.1:7174""#.into(),
        ),
        (
            Answer::Lease {
                local: "192.0.2.1:7174".parse().unwrap(),
                protected: true,
            },
            r#""type":"lease","local":"192.0.2.1:7174","protected":true"#.into(),
        ),
        (
            Answer::Numbers { first: 1, end: u64::MAX },
            r#""type":"numbers","first":1,"end":18446744073709551615"#.into(),
        ),
        (
            Answer::Located {
                remote: "192.0.2.2:40000".parse().unwrap(),
            },
            r#""type":"located","remote":"192.0.2.2:40000""#.into(),
        ),
        (Answer::Released, r#""type":"released""#.into()),
        (
            Answer::Devices(states::devices()),
            format!(r#""type":"devices",{}"#, states::DEVICES),
        ),
        (
            Answer::Ports(states::ports()),
            format!(r#""type":"ports",{}"#, states::PORTS),
        ),
        (
            Answer::Leases(states::leases()),
            format!(r#""type":"leases",{}"#, states::LEASES),
        ),
        (
            Answer::Associations(states::associations()),
            format!(r#""type":"associations",{}"#, states::ASSOCIATIONS),
        ),
        (
            Answer::Users(states::users()),
            format!(r#""type":"users",{}"#, states::USERS),
        ),
        (Answer::Inspecting, r#""type":"inspecting""#.into()),
        (
            Answer::Usage(states::usage()),
            format!(r#""type":"usage",{}"#, states::USAGE),
        ),
        (
            Answer::Daemon(DaemonState { version: "0.1.0".into(), since: 1_700_000_000 }),
            r#""type":"daemon","version":"0.1.0","since":1700000000"#.into(),
        ),
        (Answer::Done, r#""type":"done""#.into()),
        (
            Answer::Refused(Refused::new(Reason::NoSuchDevice, "no eth9")),
            r#""type":"refused","reason":"no_such_device","message":"no eth9""#.into(),
        ),
        (
            Answer::Refused(protected),
            r#""type":"refused","reason":"protected","message":"no","policy":{"address":"192.0.2.1:0","text":"dir out"}"#.into(),
        ),
    ]
}

/// Addresses whose frames arrive without a tag.
fn untagged() -> Vec<UntaggedAddress> {
    let all = [("192.0.2.1", 9), ("2001:db8::1", 4094)];
    let each = |(address, vlan): (&str, u16)| UntaggedAddress {
        address: address.parse().unwrap(),
        vlan,
    };
    all.map(each).into()
}

fn protection() -> Protection {
    let (local, remote) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    Protection {
        demands: vec![Demanded {
            outgoing: true,
            local: "192.0.2.1/32".into(),
            local_ports: (7471, 65535),
            remote: "0.0.0.0/0".into(),
            remote_ports: (0, 0),
            action: Done::Protect {
                request: 7,
                tunnel: false,
                local,
                remote,
            },
        }],
        addresses: vec![local],
        associations: vec![Association {
            spi: 4097,
            source: local,
            destination: remote,
            tunnel: false,
            algorithm: "rfc4106(gcm(aes))".into(),
            extended: true,
            udp: Some((4500, 6000)),
            request: 7,
            encryption: Secret::new(&[1, 2]),
            integrity: Secret::new(&[]),
            outbound: true,
            dying: false,
            age: 1_700_000_000,
            window: 1024,
            received: 0,
            first: Some((65536, 1_114_112)),
        }],
    }
}

fn notices() -> Vec<(Notice, String)> {
    let (port, destination) = (7, "192.0.2.2".parse().unwrap());
    let hop = Hop {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 255],
        vlan: Some(5),
        mtu: 9000,
        advertised_mss: None,
    };
    let segment = BigSegment {
        local: "192.0.2.1:1".parse().unwrap(),
        remote: "192.0.2.2:2".parse().unwrap(),
        seq: u32::MAX,
        mtu: 1280,
    };
    let packet = BigPacket {
        source: "192.0.2.1".parse().unwrap(),
        destination: "192.0.2.2".parse().unwrap(),
        spi: 4097,
        number: 5,
        mtu: 1280,
    };
    vec![
        (
            Notice::NextHop { port, source: None, destination, hop: Some(hop) },
            r#"{"type":"next_hop","port":7,"destination":"192.0.2.2","hop":{"source_mac":[2,0,0,0,0,1],"destination_mac":[2,0,0,0,0,255],"vlan":5,"mtu":9000}}"#.into(),
        ),
        (
            Notice::NextHop { port, source: None, destination, hop: None },
            r#"{"type":"next_hop","port":7,"destination":"192.0.2.2","hop":null}"#.into(),
        ),
        (
            Notice::NextHop { port, source: Some(destination), destination, hop: None },
            r#"{"type":"next_hop","port":7,"source":"192.0.2.2","destination":"192.0.2.2","hop":null}"#.into(),
        ),
        (
            Notice::Link { port, state: LinkState::Inactive },
            r#"{"type":"link","port":7,"state":"inactive"}"#.into(),
        ),
        (
            Notice::Untagged { port, addresses: untagged() },
            r#"{"type":"untagged","port":7,"addresses":[{"address":"192.0.2.1","vlan":9},{"address":"2001:db8::1","vlan":4094}]}"#.into(),
        ),
        (
            Notice::TooBig { port, segment },
            r#"{"type":"too_big","port":7,"segment":{"local":"192.0.2.1:1","remote":"192.0.2.2:2","seq":4294967295,"mtu":1280}}"#.into(),
        ),
        (
            Notice::ProtectedTooBig { port, packet },
            r#"{"type":"protected_too_big","port":7,"packet":{"source":"192.0.2.1","destination":"192.0.2.2","spi":4097,"number":5,"mtu":1280}}"#.into(),
        ),
        (
            Notice::Protection { port, protection: protection(), more: false },
            r#"{"type":"protection","port":7,"protection":{"demands":[{"outgoing":true,"local":"192.0.2.1/32","local_ports":[7471,65535],"remote":"0.0.0.0/0","remote_ports":[0,0],"action":{"do":"protect","request":7,"tunnel":false,"local":"192.0.2.1","remote":"192.0.2.2"}}],"addresses":["192.0.2.1"],"associations":[{"spi":4097,"source":"192.0.2.1","destination":"192.0.2.2","tunnel":false,"algorithm":"rfc4106(gcm(aes))","extended":true,"udp":[4500,6000],"request":7,"encryption":"0102","integrity":"","outbound":true,"dying":false,"age":1700000000,"window":1024,"received":0,"first":[65536,1114112]}]}}"#.into(),
        ),
        (
            Notice::Protection { port, protection: rnic_manager::protection::Protection::default(), more: true },
            r#"{"type":"protection","port":7,"protection":{"demands":[],"addresses":[],"associations":[]},"more":true}"#.into(),
        ),
        (
            Notice::Revoked { port, local: "192.0.2.1:7174".parse().unwrap() },
            r#"{"type":"revoked","port":7,"local":"192.0.2.1:7174"}"#.into(),
        ),
        (
            Notice::Describe { port, what: "qp".into(), within: 2000 },
            r#"{"type":"describe","port":7,"what":"qp","within":2000}"#.into(),
        ),
    ]
}

/// A message of rnicd of each type, with its JSON.
pub(crate) fn from_daemon() -> Vec<(FromDaemon, String)> {
    let answer = |(answer, json): (Answer, String)| {
        let reply = Reply { id: 9, answer };
        (FromDaemon::Answer(reply), format!(r#"{{"id":9,{json}}}"#))
    };
    let notice = |(notice, json)| (FromDaemon::Notice(notice), json);
    let event = |(event, json): (Event, &str)| {
        let json = format!(r#"{{"type":"event","at":1700000000007,{json}}}"#);
        (
            Notice::Event {
                at: 1_700_000_000_007,
                event,
            },
            json,
        )
    };
    let answers = answers().into_iter().map(answer);
    let notices = notices()
        .into_iter()
        .chain(states::events().into_iter().map(event));
    answers.chain(notices.map(notice)).collect()
}
