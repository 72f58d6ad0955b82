//! The entries of devices in `/sys/class/infiniband`, as the kernel would have them: what the verbs
//! tell of a device, as files.

use std::net::IpAddr;

use super::lanes::Lanes;
use super::netdev::{Netdev, gid_of, holder};
use super::{FIRMWARE, Label, PKEY, PORT, device_of};

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
    let all = netdevs
        .iter()
        .map(|netdev| (&**netdev, Netdev::read(netdev)));
    let mut there: Vec<_> = all.filter(|(_, read)| read.index != 0).collect();
    if netdevs.is_empty() {
        there.push(("", Netdev::read("")));
    }
    let entries = there.into_iter();
    entries
        .map(|(name, read)| entry(name, &read, label))
        .collect()
}

fn entry(netdev: &str, read: &Netdev, label: Label) -> Entry {
    let guid = groups(&read.guid());
    let node_type = match label {
        Label::Iwarp => "4: RNIC",
        Label::Roce => "1: CA",
    };
    let (state, phys_state) = match read.is_active {
        true => ("4: ACTIVE", "5: LinkUp"),
        false => ("1: DOWN", "3: Disabled"),
    };
    let name = device_of(netdev);
    let device = [
        ("node_type", node_type.to_owned()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", name.clone()),
        ("fw_ver", FIRMWARE.to_owned()),
    ];
    let of_port = [
        ("state", state.to_owned()),
        ("phys_state", phys_state.to_owned()),
        ("rate", Lanes::of(Netdev::speed(netdev)).to_string()),
        ("link_layer", "Ethernet".to_owned()),
        ("lid", "0x0".to_owned()),
        ("sm_lid", "0x0".to_owned()),
        ("pkeys/0", format!("{PKEY:#x}")),
    ];
    let mut files: Vec<_> = device.map(|(name, text)| (name.to_owned(), text)).into();
    let of_port = of_port.map(|(name, text)| (name.to_owned(), text));
    // 3FS learns the interface of a port here, and nowhere else.
    let interface =
        (!netdev.is_empty()).then(|| (format!("net/{netdev}/ifindex"), read.index.to_string()));
    let of_port = of_port.into_iter().chain(gids(netdev, read, label));
    let of_port = of_port.chain(interface);
    files.extend(of_port.map(|(name, text)| (format!("ports/{PORT}/{name}"), text)));
    for (_, text) in &mut files {
        text.push('\n');
    }
    Entry {
        name,
        netdev: netdev.to_owned(),
        files,
    }
}

/// Returns the files of the table of GIDs.
fn gids(netdev: &str, read: &Netdev, label: Label) -> Vec<(String, String)> {
    let kind = match label {
        Label::Iwarp => "IB/RoCE v1",
        Label::Roce => "RoCE v2",
    };
    let holder = |address: IpAddr| match netdev {
        "" => holder(address),
        netdev => Some(netdev.to_owned()),
    };
    let mut files = Vec::new();
    if read.addresses.is_empty() {
        files.push(("gids/0".to_owned(), groups(&[0; 16])));
    }
    for index in 0..read.addresses.len().max(Netdev::FIRST_GIDS) {
        let Some(address) = read.at_gid_index(index) else {
            break;
        };
        files.push((format!("gids/{index}"), groups(&gid_of(address))));
        files.push((format!("gid_attrs/types/{index}"), kind.to_owned()));
        let holder = holder(address).map(|netdev| (format!("gid_attrs/ndevs/{index}"), netdev));
        files.extend(holder);
    }
    files
}

/// Returns octets as the kernel prints a GID or a GUID: in groups of four digits.
fn groups(octets: &[u8]) -> String {
    let groups = octets.chunks(2);
    let groups = groups.map(|group| group.iter().map(|octet| format!("{octet:02x}")).collect());
    groups.collect::<Vec<String>>().join(":")
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
            assert_eq!(all("ports/1/net/lo/ifindex"), "1\n");
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
}
