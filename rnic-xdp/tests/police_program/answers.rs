//! What the program must answer to what no client of this host accepts, written anew from its
//! description.

use rnic_manager::PoliceVerdict;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;
/// ECE and CWR, in the SYN of a host that offers ECN.
pub(crate) const ECN: u8 = 0xc0;

/// Returns the RST in answer to a frame with this verdict: to one for nobody that is none itself,
/// and to the SYN of a stranger.
pub(crate) fn answer_to(frame: &[u8], verdict: PoliceVerdict) -> Option<Vec<u8>> {
    if !matches!(verdict, PoliceVerdict::Nobody | PoliceVerdict::Stranger) {
        return None;
    }
    let ip = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    let claimed = |at: usize| usize::from(word(&frame[at..]));
    let (tcp, address_len, end) = match frame[ip] >> 4 {
        4 => (ip + 20, 4, ip + claimed(ip + 2)),
        _ => (ip + 40, 16, ip + 40 + claimed(ip + 4)),
    };
    let data_len = end - tcp - usize::from(frame[tcp + 12] >> 4) * 4;
    let flags = frame[tcp + 13];
    if flags & RST != 0 || verdict == PoliceVerdict::Stranger && flags & (SYN | ACK) != SYN {
        return None;
    }
    let mut answer = frame.to_vec();
    answer[..12].rotate_left(6);
    answer[tcp - 2 * address_len..tcp].rotate_left(address_len);
    answer[tcp..tcp + 4].rotate_left(2);
    answer[tcp + 4..tcp + 12].fill(0);
    answer[tcp + 12] &= 0xf0;
    answer[tcp + 13] = RST;
    if flags & ACK != 0 {
        answer[tcp + 4..tcp + 8].copy_from_slice(&frame[tcp + 8..tcp + 12]);
    } else {
        let ends = (flags & SYN != 0) as usize + (flags & FIN != 0) as usize;
        let seq = u32::from_be_bytes(frame[tcp + 4..tcp + 8].try_into().unwrap());
        let next = seq.wrapping_add((data_len + ends) as u32);
        answer[tcp + 8..tcp + 12].copy_from_slice(&next.to_be_bytes());
        answer[tcp + 13] |= ACK;
    }
    answer[tcp + 14..tcp + 16].fill(0);
    // As RFC 1624 has it: the words in front of the checksum have changed, but for the ports, which
    // changed places.
    let mut sum = u32::from(!word(&frame[tcp + 16..]));
    for at in (tcp + 4..tcp + 16).step_by(2) {
        sum += u32::from(!word(&frame[at..])) + u32::from(word(&answer[at..]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    answer[tcp + 16..tcp + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    Some(answer)
}

pub(crate) fn word(octets: &[u8]) -> u16 {
    u16::from_be_bytes([octets[0], octets[1]])
}
