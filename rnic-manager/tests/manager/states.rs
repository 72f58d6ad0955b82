//! What rnicd shows, as values and as JSON.

use rnic_manager::LinkState;
use rnic_manager::Mode;
use rnic_manager::protocol::Reason;
use rnic_manager::states::{
    AssociationState, Configured, DeviceNews, DeviceState, Event, Holding, KernelLink, LeaseState,
    Page, PortEnd, PortState, SentFrames, SteeredFrames, UsageState, UserState,
};

fn kernel() -> KernelLink {
    KernelLink {
        name: "eth1".into(),
        ifindex: 2,
        up: true,
        mtu: 1500,
        program: Some(45),
        xdp: Some("native".into()),
        rx_packets: 1,
        rx_octets: 64,
        rx_dropped: 0,
        tx_packets: 2,
        tx_octets: 128,
        tx_dropped: u64::MAX,
    }
}

fn by_default(key: &str, value: &str) -> Configured {
    Configured {
        key: key.into(),
        value: value.into(),
        set_by: "the default".into(),
    }
}

pub(crate) const DEVICES: &str = r#""list":[{"netdev":"eth1","state":"active","fault":null,"mode":"native","mtu":1500,"ports":1,"leases":2,"set_by":"/etc/rnic/rnicd.toml:2","settings":[{"key":"xdp_mode","value":"auto","set_by":"the default"}],"received":[{"reason":"to_ports","frames":9}],"kernel":{"name":"eth1","ifindex":2,"up":true,"mtu":1500,"program":45,"xdp":"native","rx_packets":1,"rx_octets":64,"rx_dropped":0,"tx_packets":2,"tx_octets":128,"tx_dropped":18446744073709551615}}],"more":true"#;

pub(crate) fn devices() -> Page<DeviceState> {
    let device = DeviceState {
        netdev: "eth1".into(),
        state: LinkState::Active,
        fault: None,
        mode: Some(Mode::Native),
        mtu: 1500,
        ports: 1,
        leases: 2,
        set_by: "/etc/rnic/rnicd.toml:2".into(),
        settings: vec![by_default("xdp_mode", "auto")],
        received: vec![SteeredFrames {
            reason: "to_ports".into(),
            frames: 9,
        }],
        kernel: Some(kernel()),
    };
    Page {
        list: vec![device],
        more: true,
    }
}

pub(crate) const PORTS: &str = r#""list":[{"port":7,"netdev":"eth1","uid":1000,"program":"rping","pid":4242,"connected":true,"frames":4608,"huge_octets":16777216,"leases":1,"since":1700000000,"sent":[{"verdict":"to_nic","frames":3,"octets":300}],"host_end":null}],"more":false"#;

pub(crate) fn ports() -> Page<PortState> {
    let port = PortState {
        port: 7,
        netdev: "eth1".into(),
        uid: 1000,
        program: "rping".into(),
        pid: 4242,
        connected: true,
        ending: false,
        frames: 4608,
        huge_octets: 16 << 20,
        leases: 1,
        since: 1_700_000_000,
        sent: vec![SentFrames {
            verdict: "to_nic".into(),
            frames: 3,
            octets: 300,
        }],
        host_end: None,
        queue: None,
    };
    Page {
        list: vec![port],
        more: false,
    }
}

pub(crate) const LEASES: &str = r#""list":[{"port":7,"local":"192.0.2.1:7174","netdev":"eth1","uid":1000,"since":1700000000},{"port":7,"local":"[2001:db8::1]:1","known_as":"[2001:db8::1]:80","netdev":"eth1","uid":1000,"since":null}],"more":false"#;

pub(crate) const ASSOCIATIONS: &str = r#""list":[{"port":7,"netdev":"eth1","uid":1000,"spi":4097,"destination":"192.0.2.2"}],"more":false"#;

pub(crate) fn associations() -> Page<AssociationState> {
    let one = AssociationState {
        port: 7,
        netdev: "eth1".into(),
        uid: 1000,
        spi: 4097,
        destination: "192.0.2.2".parse().unwrap(),
    };
    let list = vec![one];
    Page { list, more: false }
}

pub(crate) fn leases() -> Page<LeaseState> {
    let lease = |local: &str, known_as: Option<&str>, since| LeaseState {
        port: 7,
        local: local.parse().unwrap(),
        known_as: known_as.map(|at: &str| at.parse().unwrap()),
        netdev: "eth1".into(),
        uid: 1000,
        since,
    };
    Page {
        list: vec![
            lease("192.0.2.1:7174", None, Some(1_700_000_000)),
            lease("[2001:db8::1]:1", Some("[2001:db8::1]:80"), None),
        ],
        more: false,
    }
}

pub(crate) const USERS: &str = r#""list":[{"uid":1000,"connections":2,"resources":[{"resource":"ports","held":1,"limit":4,"set_by":"the default"}],"settings":[{"key":"rate","value":"none","set_by":"the default"}]}],"more":false"#;

pub(crate) fn users() -> Page<UserState> {
    let holding = Holding {
        resource: "ports".into(),
        held: 1,
        limit: 4,
        set_by: "the default".into(),
    };
    let user = UserState {
        uid: 1000,
        connections: 2,
        resources: vec![holding],
        settings: vec![by_default("rate", "none")],
    };
    Page {
        list: vec![user],
        more: false,
    }
}

pub(crate) const USAGE: &str = r#""list":[{"netdev":"eth1","uid":null,"sent":[{"verdict":"to_nic","frames":3,"octets":180}],"received_frames":4,"received_octets":240}],"more":true"#;

pub(crate) fn usage() -> Page<UsageState> {
    let sent = SentFrames {
        verdict: "to_nic".into(),
        frames: 3,
        octets: 180,
    };
    let usage = UsageState {
        netdev: "eth1".into(),
        uid: None,
        sent: vec![sent],
        received_frames: 4,
        received_octets: 240,
    };
    Page {
        list: vec![usage],
        more: true,
    }
}

/// An event of each kind, with its part of the JSON.
pub(crate) fn events() -> Vec<(Event, &'static str)> {
    let (port, netdev) = (7, || "eth1".to_owned());
    let local = "192.0.2.1:7174".parse().unwrap();
    vec![
        (
            Event::PortOpened {
                port,
                netdev: netdev(),
                uid: 1000,
                pid: 4242,
                program: "rping".into(),
            },
            r#""event":"port_opened","port":7,"netdev":"eth1","uid":1000,"pid":4242,"program":"rping""#,
        ),
        (
            Event::PortEnded {
                port,
                netdev: netdev(),
                why: PortEnd::Killed,
            },
            r#""event":"port_ended","port":7,"netdev":"eth1","why":"killed""#,
        ),
        (
            Event::LeaseAdded { port, local },
            r#""event":"lease_added","port":7,"local":"192.0.2.1:7174""#,
        ),
        (
            Event::LeaseEnded {
                port,
                local,
                revoked: true,
            },
            r#""event":"lease_ended","port":7,"local":"192.0.2.1:7174","revoked":true"#,
        ),
        (
            Event::SettingsChanged {
                what: "uid 1000: rate = 1Gbit".into(),
            },
            r#""event":"settings_changed","what":"uid 1000: rate = 1Gbit""#,
        ),
        (
            Event::DeviceShared { netdev: netdev() },
            r#""event":"device_shared","netdev":"eth1""#,
        ),
        (
            Event::DeviceChanged {
                netdev: netdev(),
                state: LinkState::Inactive,
            },
            r#""event":"device_changed","netdev":"eth1","state":"inactive""#,
        ),
        (
            Event::DeviceNews {
                netdev: netdev(),
                news: DeviceNews::Mac {
                    mac: "02:00:00:00:00:01".into(),
                },
            },
            r#""event":"device_news","netdev":"eth1","news":{"what":"mac","mac":"02:00:00:00:00:01"}"#,
        ),
        (
            Event::DeviceNews {
                netdev: netdev(),
                news: DeviceNews::ProgramAttached,
            },
            r#""event":"device_news","netdev":"eth1","news":{"what":"program_attached"}"#,
        ),
        (
            Event::ReloadRefused {
                why: "rnicd.toml:5: no".into(),
            },
            r#""event":"reload_refused","why":"rnicd.toml:5: no""#,
        ),
        (
            Event::Refused {
                uid: 1000,
                pid: 4242,
                program: String::new(),
                reason: Reason::Quota,
                message: "no more".into(),
            },
            r#""event":"refused","uid":1000,"pid":4242,"program":"","reason":"quota","message":"no more""#,
        ),
        (
            Event::Missed { events: 3 },
            r#""event":"missed","events":3"#,
        ),
    ]
}
