//! Associations in the layout of the kernel's header, octet by octet.

use super::*;
use crate::device::netlink::message::parse;
use crate::testing::Namespace;
use rnic_core::esp::Template;

/// `struct xfrm_usersa_info` of an association from 10.79.0.1 to 10.79.0.2.
fn info(mode: u8, flags: u8) -> [u8; 224] {
    let mut octets = [0; 224];
    octets[56..60].copy_from_slice(&[10, 79, 0, 2]);
    octets[72..76].copy_from_slice(&0x1001_u32.to_be_bytes());
    octets[76] = 50;
    octets[80..84].copy_from_slice(&[10, 79, 0, 1]);
    for (at, limit) in [(96, 1000u64), (104, 2000), (112, 10), (120, u64::MAX)] {
        octets[at..at + 8].copy_from_slice(&limit.to_ne_bytes());
    }
    for (at, current) in [(160, 500u64), (168, 5), (176, 1_700_000_000)] {
        octets[at..at + 8].copy_from_slice(&current.to_ne_bytes());
    }
    octets[208..212].copy_from_slice(&42u32.to_ne_bytes());
    octets[212..214].copy_from_slice(&2u16.to_ne_bytes());
    octets[214..217].copy_from_slice(&[mode, 32, flags]);
    octets
}

fn algorithm_octets(name: &str, lengths: &[u32], key: &[u8]) -> Vec<u8> {
    let mut octets = name.as_bytes().to_vec();
    octets.resize(NAME, 0);
    lengths
        .iter()
        .for_each(|length| octets.extend(length.to_ne_bytes()));
    octets.extend(key);
    octets
}

fn esn(numbers: [u32; 4], words: u32) -> Vec<u8> {
    let [sent, received, sent_high, received_high] = numbers;
    let all = [words, sent, received, sent_high, received_high, words * 32];
    let mut octets = all.as_bytes().to_vec();
    octets.resize(24 + words as usize * 4, 0);
    octets
}

fn read(builder: Builder) -> Association {
    Association::from_message(&parse(&builder.finish(1))[0]).unwrap()
}

/// Returns an association in transport mode, with a key that says nothing.
pub(crate) fn example_association() -> Association {
    let builder = Builder::new(NEW_SA, 0, &info(0, 0))
        .attribute(XFRMA_ALG_AEAD, &gcm(&[7; 20]))
        .attribute(XFRMA_REPLAY_VAL, &[0; 12]);
    read(builder)
}

fn gcm(key: &[u8]) -> Vec<u8> {
    algorithm_octets("rfc4106(gcm(aes))", &[key.len() as u32 * 8, 128], key)
}

#[test]
fn an_association_is_read_with_its_keys_numbers_and_limits() {
    let key: Vec<u8> = (1..=20).collect();
    let builder = Builder::new(NEW_SA, 0, &info(1, FLAG_ESN))
        .attribute(XFRMA_ALG_AEAD, &gcm(&key))
        .attribute(XFRMA_REPLAY_ESN_VAL, &esn([7, 8, 1, 2], 4))
        .attribute(XFRMA_IF_ID, &0x524e_u32.to_ne_bytes());
    let found = read(builder);
    assert_eq!(found.id.spi, 0x1001);
    assert_eq!(
        [found.source, found.id.destination].map(|ip| ip.to_string()),
        ["10.79.0.1", "10.79.0.2"]
    );
    assert_eq!(
        (found.request, found.if_id, found.window),
        (42, 0x524e, 128)
    );
    assert!(found.extended);
    assert_eq!((found.sent, found.received), ((1 << 32) + 7, (2 << 32) + 8));
    let expected = (Mode::Tunnel, Algorithm::AesGcm, Keys::new(key, Vec::new()));
    assert!(found.usable == Ok(expected));
    assert_eq!(
        found.spent,
        Spent {
            octets: 500,
            packets: 5
        }
    );
    assert!(!found.spent.reaches(found.soft_limit));
    assert!(
        Spent {
            octets: 1000,
            packets: 0
        }
        .reaches(found.soft_limit)
    );
    assert!(
        Spent {
            octets: 1,
            packets: 10
        }
        .reaches(found.soft_limit)
    );
    assert!(
        !Spent {
            octets: 1999,
            packets: 1 << 40
        }
        .reaches(found.hard_limit)
    );
    assert_eq!(found.added, 1_700_000_000);

    // The counters that are written have the form of those that were read.
    let (kind, octets) = found.counter.attribute((5 << 32) + 9, (6 << 32) + 10);
    assert_eq!(kind, XFRMA_REPLAY_ESN_VAL);
    let mut expected = esn([9, 10, 5, 6], 4);
    expected[24..].fill(0xff);
    assert_eq!(octets, expected);
    assert_eq!(size_of::<RawEvent>(), 48, "struct xfrm_aevent_id");
    assert_eq!(size_of::<RawExpire>(), 232, "struct xfrm_user_expire");
    assert!(!format!("{found:?}").contains("20, "), "no key is shown");
}

#[test]
fn encryption_with_an_icv_of_its_own_is_read() {
    let algorithms = |cipher: &str, hash: &str, icv| {
        let builder = Builder::new(NEW_SA, 0, &info(0, 0))
            .attribute(XFRMA_ALG_CRYPT, &algorithm_octets(cipher, &[128], &[1; 16]))
            .attribute(
                XFRMA_ALG_AUTH_TRUNC,
                &algorithm_octets(hash, &[160, icv], &[2; 20]),
            )
            .attribute(XFRMA_REPLAY_VAL, [3u32, 4, 0].as_bytes());
        let found = read(builder);
        assert_eq!((found.sent, found.received, found.window), (3, 4, 32));
        assert!(!found.extended);
        found.usable.map(|(mode, algorithm, _)| (mode, algorithm))
    };
    let transport = |algorithm| Ok((Mode::Transport, algorithm));
    assert_eq!(
        algorithms("cbc(aes)", "hmac(sha1)", 96),
        transport(Algorithm::AesCbcHmacSha1)
    );
    assert_eq!(
        algorithms("cbc(aes)", "hmac(sha256)", 128),
        transport(Algorithm::AesCbcHmacSha256)
    );
    assert_eq!(
        algorithms("ecb(cipher_null)", "hmac(sha1)", 96),
        transport(Algorithm::NullHmacSha1)
    );
    // Linux's old truncation of SHA-256.
    let refused = algorithms("cbc(aes)", "hmac(sha256)", 96).unwrap_err();
    assert!(refused.contains("hmac(sha256) of 96 bits"), "{refused}");
}

/// A template of this kind, with the ports 4500 and 4501.
fn encapsulation(kind: u16) -> Vec<u8> {
    let mut octets = kind.to_ne_bytes().to_vec();
    octets.extend([4500u16.to_be_bytes(), 4501u16.to_be_bytes()].concat());
    octets.resize(24, 0);
    octets
}

#[test]
fn packets_in_udp_have_ports() {
    let plain = || {
        Builder::new(NEW_SA, 0, &info(0, 0))
            .attribute(XFRMA_REPLAY_VAL, &[0; 12])
            .attribute(XFRMA_ALG_AEAD, &gcm(&[9; 20]))
    };
    assert_eq!(read(plain()).encapsulation, None);
    // `UDP_ENCAP_ESPINUDP`
    let found = read(plain().attribute(XFRMA_ENCAP, &encapsulation(2)));
    assert!(found.usable.is_ok(), "{:?}", found.usable);
    let ports = found.encapsulation.unwrap();
    assert_eq!((ports.source, ports.destination), (4500, 4501));
}

#[test]
fn what_rnic_cannot_use_has_a_reason() {
    let with = |mode, attributes: &[(u16, Vec<u8>)]| {
        let base = Builder::new(NEW_SA, 0, &info(mode, 0)).attribute(XFRMA_REPLAY_VAL, &[0; 12]);
        let add =
            |builder: Builder, (kind, octets): &(u16, Vec<u8>)| builder.attribute(*kind, octets);
        read(attributes.iter().fold(base, add)).usable.map(drop)
    };
    let good = (XFRMA_ALG_AEAD, gcm(&[9; 20]));
    assert_eq!(with(0, std::slice::from_ref(&good)), Ok(()));
    for (mode, attributes, word) in [
        (4, vec![good.clone()], "mode"),
        (
            0,
            vec![good.clone(), (XFRMA_ENCAP, encapsulation(7))],
            "UDP",
        ),
        (0, vec![good.clone(), (XFRMA_ENCAP, vec![0; 8])], "UDP"),
        (0, vec![good.clone(), (XFRMA_MARK, vec![0; 8])], "marked"),
        (0, vec![good, (XFRMA_OFFLOAD_DEV, vec![0; 8])], "offloaded"),
        (0, vec![(XFRMA_ALG_AEAD, gcm(&[0; 20]))], "lockdown"),
        (
            0,
            vec![(
                XFRMA_ALG_AEAD,
                algorithm_octets("rfc4309(ccm(aes))", &[152, 128], &[1; 19]),
            )],
            "ccm",
        ),
        (
            0,
            vec![(XFRMA_ALG_AEAD, gcm(&[1; 20])[..80].to_vec())],
            "malformed",
        ),
        (0, vec![], "no encryption"),
    ] {
        let why = with(mode, &attributes).unwrap_err();
        assert!(why.contains(word), "{why}");
    }
}

#[test]
fn a_key_is_for_one_association_whoever_uses_the_other() {
    let with = |spi: u8, if_id: u32, key: u8| {
        let mut info = info(0, FLAG_ESN);
        info[75] = spi;
        let builder = Builder::new(NEW_SA, 0, &info)
            .attribute(XFRMA_ALG_AEAD, &gcm(&[key; 20]))
            .attribute(XFRMA_REPLAY_ESN_VAL, &esn([0; 4], 4));
        read(match if_id {
            0 => builder,
            _ => builder.attribute(XFRMA_IF_ID, &if_id.to_ne_bytes()),
        })
    };
    let one = with(1, 7, 9);
    assert!(!one.is_twin_of(&with(1, 7, 9)), "it is the same");
    assert!(one.is_twin_of(&with(2, 7, 9)));
    assert!(one.is_twin_of(&with(2, 0, 9)), "it is the kernel's");
    assert!(!one.is_twin_of(&with(2, 0, 8)));
}

/// Reads what `ip xfrm monitor` prints of an ACQUIRE.
#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces")]
fn key_managers_are_asked_for_what_a_policy_demands() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    let namespace = Namespace::new("acquire").unwrap();
    for (mode, ends, gateways) in [
        (
            Mode::Transport,
            ["192.0.2.1:7471", "192.0.2.2:0"],
            ["192.0.2.1", "192.0.2.2"],
        ),
        (
            Mode::Tunnel,
            ["[fd00::1]:0", "[fd00::2]:9"],
            ["203.0.113.1", "203.0.113.2"],
        ),
    ] {
        let said = namespace.run(|| {
            let mut monitor = Command::new("ip")
                .args(["xfrm", "monitor", "acquire"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut socket = AssociationSocket::open().unwrap();
            let template = Template {
                request: 42,
                mode,
                local: gateways[0].parse().unwrap(),
                remote: gateways[1].parse().unwrap(),
            };
            let [local, remote] = ends.map(|end| end.parse().unwrap());
            let mut printed = BufReader::new(monitor.stdout.take().unwrap());
            let reading = std::thread::spawn(move || {
                let mut lines = String::new();
                while !lines.contains("reqid") && printed.read_line(&mut lines).unwrap() > 0 {}
                lines
            });
            // What is asked before the monitor listens, nobody hears.
            let until = Instant::now() + Duration::from_secs(20);
            while !reading.is_finished() && Instant::now() < until {
                socket.acquire(&template, (local, remote), 0x524e).unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
            monitor.kill().unwrap();
            monitor.wait().unwrap();
            reading.join().unwrap()
        });
        let has = |words: &str| assert!(said.contains(words), "{words}: {said}");
        has("acquire proto esp");
        has(&format!("reqid 42 mode {mode}"));
        has(&format!("tmpl src {} dst {}", gateways[0], gateways[1]));
        match mode {
            Mode::Transport => has("sel src 192.0.2.1/32 dst 192.0.2.2/32 proto tcp sport 7471"),
            Mode::Tunnel => has("sel src fd00::1/128 dst fd00::2/128 proto tcp dport 9"),
        }
    }
}
