//! The entries of devices in `/sys/class/infiniband`, as the kernel would have them: what the verbs
//! tell of a device, as files.

use std::net::IpAddr;

use crate::abi::*;
use crate::adapter::Adapter;
use crate::interface::{Interface, gid_of, holder};
use crate::label::Label;
use crate::query::{FIRMWARE, PKEY, PORT, guid, port_attr};

/// A device's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the device.
    pub name: String,
    /// The interface. It is empty where connections may take any.
    pub netdev: String,
    /// The files by their paths in the directory of the device, and what they hold.
    pub files: Vec<(String, String)>,
}

/// Returns the entries of the devices of these interfaces, or of the one that takes any interface
/// if none is named.
pub fn entries(netdevs: &[String], label: Label) -> Vec<Entry> {
    let is_there = |netdev: &&String| Interface::read(netdev).index != 0;
    let mut netdevs_there: Vec<_> = netdevs.iter().filter(is_there).cloned().collect();
    if netdevs.is_empty() {
        netdevs_there.push(String::new());
    }
    let adapters = netdevs_there.into_iter().enumerate().map(Adapter::new);
    adapters.map(|adapter| entry(adapter, label)).collect()
}

fn entry(adapter: Adapter, label: Label) -> Entry {
    let port = port_attr(&adapter);
    let guid = groups(&guid(&adapter).to_ne_bytes());
    let node_type = match label.types().0 {
        IBV_NODE_CA => "1: CA",
        _ => "4: RNIC",
    };
    let (state, phys_state) = match port.state {
        IBV_PORT_ACTIVE => ("4: ACTIVE", "5: LinkUp"),
        _ => ("1: DOWN", "3: Disabled"),
    };
    let device = [
        ("node_type", node_type.to_owned()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", adapter.name.clone()),
        ("fw_ver", FIRMWARE.to_owned()),
    ];
    let of_port = [
        ("state", state.to_owned()),
        ("phys_state", phys_state.to_owned()),
        ("rate", rate(port.active_width, port.active_speed)),
        ("link_layer", "Ethernet".to_owned()),
        ("lid", format!("{:#x}", port.lid)),
        ("sm_lid", format!("{:#x}", port.sm_lid)),
        ("pkeys/0", format!("{PKEY:#x}")),
    ];
    let mut files: Vec<_> = device.map(|(name, text)| (name.to_owned(), text)).into();
    let of_port = of_port.map(|(name, text)| (name.to_owned(), text));
    let of_port = of_port.into_iter().chain(gids(&adapter, label));
    files.extend(of_port.map(|(name, text)| (format!("ports/{PORT}/{name}"), text)));
    for (_, text) in &mut files {
        text.push('\n');
    }
    Entry {
        name: adapter.name,
        netdev: adapter.netdev,
        files,
    }
}

/// Returns the files of the table of GIDs.
fn gids(adapter: &Adapter, label: Label) -> Vec<(String, String)> {
    let interface = adapter.interface();
    let kind = match label.sysfs_gid_type() {
        IBV_GID_TYPE_SYSFS_ROCE_V2 => "RoCE v2",
        _ => "IB/RoCE v1",
    };
    let netdev = |address: IpAddr| match adapter.netdev.is_empty() {
        true => holder(address),
        false => Some(adapter.netdev.clone()),
    };
    let mut files = Vec::new();
    if interface.addresses.is_empty() {
        files.push(("gids/0".to_owned(), groups(&[0; 16])));
    }
    for index in 0..interface.addresses.len().max(Interface::FIRST_GIDS) {
        let Some(address) = interface.at_gid_index(index) else {
            break;
        };
        files.push((format!("gids/{index}"), groups(&gid_of(address))));
        files.push((format!("gid_attrs/types/{index}"), kind.to_owned()));
        let netdev = netdev(address).map(|netdev| (format!("gid_attrs/ndevs/{index}"), netdev));
        files.extend(netdev);
    }
    files
}

/// Returns octets as the kernel prints a GID or a GUID: in groups of four digits.
fn groups(octets: &[u8]) -> String {
    let groups = octets.chunks(2);
    let groups = groups.map(|group| group.iter().map(|octet| format!("{octet:02x}")).collect());
    groups.collect::<Vec<String>>().join(":")
}

/// Returns a speed as the kernel prints it.
fn rate(width: u8, speed: u8) -> String {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        _ => 2,
    };
    // In tenths of a gigabit per second.
    let (lane, name) = match speed {
        1 => (25, "SDR"),
        2 => (50, "DDR"),
        4 => (100, "QDR"),
        8 => (100, "FDR10"),
        16 => (140, "FDR"),
        32 => (250, "EDR"),
        64 => (500, "HDR"),
        _ => (1000, "NDR"),
    };
    let all: u32 = lanes * lane;
    let tenths = match all % 10 {
        0 => String::new(),
        tenths => format!(".{tenths}"),
    };
    format!("{}{tenths} Gb/sec ({lanes}X {name})", all / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file<'a>(entry: &'a Entry, path: &str) -> Option<&'a str> {
        let found = entry.files.iter().find(|(name, _)| name == path);
        found.map(|(_, text)| text.as_str())
    }

    #[test]
    fn the_label_decides_what_a_device_calls_itself() {
        for (label, node_type, gid_type) in [
            (Label::Iwarp, "4: RNIC\n", "IB/RoCE v1\n"),
            (Label::Roce, "1: CA\n", "RoCE v2\n"),
        ] {
            let [entry] = &entries(&["lo".to_owned()], label)[..] else {
                panic!("one interface is one device");
            };
            assert_eq!((&*entry.name, &*entry.netdev), ("rnic_lo", "lo"));
            let all = |path: &str| file(entry, path).map(str::to_owned).unwrap_or_default();
            assert_eq!(all("node_type"), node_type);
            for index in 0..4 {
                let named = |what| all(&format!("ports/1/{what}/{index}"));
                assert_eq!(named("gid_attrs/types"), gid_type);
                assert_eq!(named("gid_attrs/ndevs"), "lo\n");
            }
            let gid = "0000:0000:0000:0000:0000:ffff:7f00:0001\n";
            assert_eq!(all("ports/1/gids/0"), gid);
            assert_eq!(all("ports/1/link_layer"), "Ethernet\n");
            assert_eq!(all("ports/1/pkeys/0"), "0xffff\n");
            assert_eq!(all("ports/1/lid"), "0x0\n");
        }
    }

    #[test]
    fn without_interfaces_one_device_takes_any() {
        let all = entries(&[], Label::Roce);
        let names: Vec<_> = all.iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, ["rnic_any"]);
        let netdev = file(&all[0], "ports/1/gid_attrs/ndevs/0");
        assert!(netdev.is_some_and(|netdev| netdev.len() > 1), "{all:?}");
        assert_eq!(entries(&["nowhere".to_owned()], Label::Roce), []);
    }

    #[test]
    fn rates_are_those_of_all_lanes() {
        for (width, speed, expected) in [
            (1, 1, "2.5 Gb/sec (1X SDR)"),
            (1, 8, "10 Gb/sec (1X FDR10)"),
            (1, 32, "25 Gb/sec (1X EDR)"),
            (16, 32, "50 Gb/sec (2X EDR)"),
            (2, 128, "400 Gb/sec (4X NDR)"),
        ] {
            assert_eq!(rate(width, speed), expected);
        }
    }
}
