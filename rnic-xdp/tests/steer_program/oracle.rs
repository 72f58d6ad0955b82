//! What the program must do with a frame, written anew from its description.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::host::{Steered, is_for_us, is_steered};

/// What the program does with a frame. The value is the number of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Redirected = 0,
    NotSteered = 2,
    Fragment = 3,
    NotTcp = 4,
    Truncated = 5,
    OtherHost = 6,
}

/// Returns what must become of a frame.
pub(crate) fn oracle(frame: &[u8], steered: &Steered) -> Verdict {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let mut vlan = 0;
    let mut classify = || -> Option<Result<SocketAddr, Verdict>> {
        let mut ethertype = word(12)?;
        let mut ip = 14;
        if ethertype == 0x8100 {
            vlan = word(ip)? & 0xfff;
            ethertype = word(ip + 2)?;
            ip += 4;
        }
        let header = frame.get(ip..)?;
        let (address, tcp): (IpAddr, usize) = match ethertype {
            0x0800 => {
                let header: &[u8; 20] = header.first_chunk()?;
                let header_len = usize::from(header[0] & 15) * 4;
                if header[0] >> 4 != 4 || header_len < 20 {
                    return None;
                }
                // More fragments, or not the first: all but the "don't fragment" and the reserved
                // bit.
                if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
                    return Some(Err(Verdict::Fragment));
                }
                if header[9] != 6 {
                    return Some(Err(Verdict::NotTcp));
                }
                let address: [u8; 4] = header[16..20].try_into().ok()?;
                (Ipv4Addr::from(address).into(), ip + header_len)
            }
            0x86dd => {
                let header: &[u8; 40] = header.first_chunk()?;
                if header[0] >> 4 != 6 {
                    return None;
                }
                match header[6] {
                    6 => {}
                    44 => return Some(Err(Verdict::Fragment)),
                    _ => return Some(Err(Verdict::NotTcp)),
                }
                let address: [u8; 16] = header[24..40].try_into().ok()?;
                (Ipv6Addr::from(address).into(), ip + 40)
            }
            0 => return None,
            _ => return Some(Err(Verdict::NotTcp)),
        };
        Some(Ok(SocketAddr::new(
            address,
            word(tcp + 2).filter(|_| frame.len() >= tcp + 4)?,
        )))
    };
    match classify() {
        None => Verdict::Truncated,
        Some(Err(verdict)) => verdict,
        Some(Ok(local)) => {
            let mac = *frame.first_chunk().expect("a whole header");
            match is_steered(steered, local, vlan) {
                true if is_for_us(mac, vlan) => Verdict::Redirected,
                true => Verdict::OtherHost,
                false => Verdict::NotSteered,
            }
        }
    }
}
