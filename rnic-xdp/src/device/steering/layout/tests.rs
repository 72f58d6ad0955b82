use super::*;

fn entry_at(local: &str, vlan: u16) -> Entry {
    let local = local.parse().unwrap();
    Entry { local, vlan }
}

#[test]
fn keys_read_back() {
    for text in ["10.1.2.3:4420", "0.0.0.0:1", "[fd00::1]:65535", "[::]:7"] {
        let written = entry_at(text, 42);
        assert_eq!(entry(&key(&written)), Some(written));
    }
    assert_eq!(entry(&[0; 24]), None);
}

#[test]
fn keys_have_the_layout_of_the_c_structure() {
    let key = key(&entry_at("[102:304:506:708:90a:b0c:d0e:f10]:4370", 0xabc));
    let expected = [
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0x11, 0x12, 6, 0,
    ];
    assert_eq!(key[..20], expected);
    assert_eq!(key[20..], 0xabc_u32.to_ne_bytes());
    use crate::device::steering::skeleton::types::steer_key;
    assert_eq!(size_of::<steer_key>(), key.len());
    assert_eq!(std::mem::offset_of!(steer_key, vlan), 20);
}

#[test]
fn peers_have_the_layout_of_the_c_structure() {
    let entry = entry_at("192.0.2.1:4370", 0xabc);
    let (bits, octets) = peers(&entry, "10.77.0.0/16".parse().unwrap()).unwrap();
    assert_eq!((bits, &octets[..24]), (24 * 8 + 16, &key(&entry)[..]));
    assert_eq!(octets[24..], [&[10, 77][..], &[0; 14]].concat());
    assert_eq!(peers(&entry, "fd00::/8".parse().unwrap()), None);
    use crate::device::steering::skeleton::types::steer_peer;
    assert_eq!(size_of::<steer_peer>(), 4 + octets.len());
    assert_eq!(std::mem::offset_of!(steer_peer, local), 4);
    assert_eq!(std::mem::offset_of!(steer_peer, address), 28);
}

#[test]
fn links_have_the_layout_of_the_c_structure() {
    let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].map(MacAddr);
    let octets = link(Some(macs), false);
    assert_eq!(octets[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    assert_eq!(octets[12..], 1u32.to_ne_bytes());
    let removing = link(Some(macs), true);
    assert_eq!(removing[..12], octets[..12]);
    assert_eq!(removing[12..], 2u32.to_ne_bytes());
    assert_eq!((untags(&octets), untags(&removing)), (false, true));
    assert_eq!((link(None, false), link(None, true)), ([0; 16], [0; 16]));
    use crate::device::steering::skeleton::types::steer_link;
    assert_eq!(size_of::<steer_link>(), octets.len());
    assert_eq!(std::mem::offset_of!(steer_link, known), 12);
}

#[test]
fn addresses_have_the_layout_of_the_c_structure() {
    let octets = address([10, 1, 2, 3].into());
    assert_eq!(octets[..16], [&[10, 1, 2, 3][..], &[0; 12]].concat());
    assert_eq!(octets[16..], 4u32.to_ne_bytes());
    let octets = address("102:304:506:708:90a:b0c:d0e:f10".parse().unwrap());
    let expected: Vec<u8> = (1..=16).collect();
    assert_eq!(octets[..16], expected);
    assert_eq!(octets[16..], 6u32.to_ne_bytes());
    use crate::device::steering::skeleton::types::steer_address;
    assert_eq!(size_of::<steer_address>(), octets.len());
    assert_eq!(std::mem::offset_of!(steer_address, family), 16);
}

#[test]
fn associations_have_the_layout_of_the_c_structure() {
    let octets = association(SaId {
        spi: 0x0102_0304,
        destination: [10, 1, 2, 3].into(),
    });
    let address = [&[10, 1, 2, 3][..], &[0; 12]].concat();
    assert_eq!(
        (&octets[..16], &octets[16..20]),
        (&address[..], &[1, 2, 3, 4][..])
    );
    assert_eq!(octets[20..], 4u32.to_ne_bytes());
    use crate::device::steering::skeleton::types::steer_sa;
    assert_eq!(size_of::<steer_sa>(), octets.len());
    assert_eq!(std::mem::offset_of!(steer_sa, spi), 16);
    assert_eq!(std::mem::offset_of!(steer_sa, family), 20);
}

#[test]
fn associations_read_back() {
    for destination in ["10.1.2.3", "fd00::1"] {
        let destination = destination.parse().unwrap();
        let id = SaId {
            spi: 0x0102_0304,
            destination,
        };
        assert_eq!(association_of(&association(id)), Some(id));
    }
    assert_eq!(association_of(&[0; 24]), None);
}

#[test]
fn uses_of_associations_have_the_layout_of_the_c_structure() {
    use crate::device::steering::skeleton::types::steer_sa_use;
    assert_eq!(size_of::<steer_sa_use>(), size_of::<UsedAssociation>());
    let offsets = [
        std::mem::offset_of!(steer_sa_use, print),
        std::mem::offset_of!(steer_sa_use, source),
        std::mem::offset_of!(steer_sa_use, udp_port),
        std::mem::offset_of!(steer_sa_use, packets),
        std::mem::offset_of!(steer_sa_use, octets),
    ];
    assert_eq!(offsets, [4, 8, 24, 32, 40]);
    let used = UsedAssociation::new(7, 9, Some([10, 1, 2, 3].into()));
    assert_eq!(used.octets()[4..8], 9u32.to_ne_bytes());
    assert_eq!(used.octets()[8..12], [10, 1, 2, 3]);
    let in_udp = used.in_udp(Some(4500)).octets();
    assert_eq!(in_udp[24..28], 4500u32.to_ne_bytes());
    assert_eq!(UsedAssociation::read(used.octets()), used);
}

#[test]
fn what_is_protected_is_no_queue() {
    let word = protected_recipient(7);
    assert_eq!((port_in(word), is_queue(word)), (7, false));
    assert!(is_protected(word) && !is_protected(recipient(7, Some(3))));
}

#[test]
fn targets_have_the_layout_of_the_c_structure() {
    use crate::device::steering::skeleton::types::steer_target;
    assert_eq!(size_of::<steer_target>(), size_of::<TargetWords>());
    assert_eq!(std::mem::offset_of!(steer_target, port), 4);
}

#[test]
fn port_entries_have_the_layout_of_the_c_structure() {
    let any = entry_at("0.0.0.0:1", 0);
    let first = entry_at("[102:304:506:708:90a:b0c:d0e:f10]:1", 0xabc);
    let other_vlan = Entry { vlan: 7, ..first };
    let one = PortEntries::default().with(&first, 9);
    let entries = one.with(&any, 7);
    assert_eq!(entries.without(&any), one);
    assert_eq!(one.with(&other_vlan, 7).without(&other_vlan), one);
    let hidden = entries.without(&first);
    assert!(hidden.is_hidden());
    assert_eq!(hidden.with(&first, 9), entries);
    let octets = entries.octets();
    let mut expected = [
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    expected[18..20].copy_from_slice(&0xabc_u16.to_ne_bytes());
    expected[20..24].copy_from_slice(&1u32.to_ne_bytes());
    expected[24..].copy_from_slice(&9u32.to_ne_bytes());
    assert_eq!(octets, expected);
    assert_eq!(PortEntries::read(&octets), entries);
    use crate::device::steering::skeleton::types::steer_port;
    assert_eq!(size_of::<steer_port>(), octets.len());
    assert_eq!(std::mem::offset_of!(steer_port, family), 16);
    assert_eq!(std::mem::offset_of!(steer_port, any_address), 17);
    assert_eq!(std::mem::offset_of!(steer_port, vlan), 18);
    assert_eq!(std::mem::offset_of!(steer_port, others), 20);
    assert_eq!(std::mem::offset_of!(steer_port, port), 24);
    let any = PortEntries::default().with(&any, 0);
    assert_eq!(any.octets()[..20], [&[0; 16][..], &[4, 1, 0, 0]].concat());
}
