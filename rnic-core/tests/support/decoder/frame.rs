//! Ethernet, IPv4 or IPv6, and TCP, as far as a listener needs them (RFC 791, 8200, 9293).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A TCP segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpFrame<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    /// Octets of TCP options.
    pub(crate) options_len: usize,
    /// The window field.
    pub(crate) window: u16,
    /// The Maximum Segment Size of a SYN, and the shift of its windows.
    pub(crate) mss: Option<u16>,
    pub(crate) window_scale: Option<u8>,
    pub(crate) payload: &'a [u8],
}

fn be16(octets: &[u8], at: usize) -> Result<u16, String> {
    let field = octets.get(at..at + 2).ok_or("the frame is cut short")?;
    Ok(u16::from_be_bytes([field[0], field[1]]))
}

fn be32(octets: &[u8], at: usize) -> Result<u32, String> {
    Ok(u32::from(be16(octets, at)?) << 16 | u32::from(be16(octets, at + 2)?))
}

/// The one's complement sum of RFC 1071.
fn sum(octets: &[u8], start: u32) -> u32 {
    let mut sum = start;
    for pair in octets.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// Reads a frame. `None`: it is no TCP.
pub(crate) fn parse(frame: &[u8], verify: bool) -> Result<Option<TcpFrame<'_>>, String> {
    let mut at = 12;
    let mut ethertype = be16(frame, at)?;
    while matches!(ethertype, 0x8100 | 0x88a8) {
        at += 4;
        ethertype = be16(frame, at)?;
    }
    let ip = &frame[at + 2..];
    match ethertype {
        0x0800 => parse_ipv4(ip, verify),
        0x86dd => parse_ipv6(ip, verify),
        _ => Ok(None),
    }
}

fn parse_ipv4(ip: &[u8], verify: bool) -> Result<Option<TcpFrame<'_>>, String> {
    if ip.len() < 20 || ip[0] >> 4 != 4 {
        return Err("no IPv4 header".into());
    }
    let header_len = usize::from(ip[0] & 15) * 4;
    let total = usize::from(be16(ip, 2)?);
    if header_len < 20 || total < header_len || total > ip.len() {
        return Err(format!("IPv4 lengths: header {header_len}, packet {total}"));
    }
    if sum(&ip[..header_len], 0) != 0xffff {
        return Err("IPv4 header checksum".into());
    }
    if ip[9] != 6 {
        return Ok(None);
    }
    if be16(ip, 6)? & 0x3fff != 0 {
        return Err("an IPv4 fragment".into());
    }
    let address = |at: usize| -> IpAddr { Ipv4Addr::from([0, 1, 2, 3].map(|n| ip[at + n])).into() };
    let tcp = &ip[header_len..total];
    let pseudo = sum(&ip[12..20], 6 + tcp.len() as u32);
    parse_tcp(tcp, [address(12), address(16)], verify.then_some(pseudo)).map(Some)
}

fn parse_ipv6(ip: &[u8], verify: bool) -> Result<Option<TcpFrame<'_>>, String> {
    if ip.len() < 40 || ip[0] >> 4 != 6 {
        return Err("no IPv6 header".into());
    }
    let len = usize::from(be16(ip, 4)?);
    let tcp = ip.get(40..40 + len).ok_or("IPv6 payload length")?;
    if ip[6] != 6 {
        return Ok(None);
    }
    let address = |at: usize| -> IpAddr {
        let octets: [u8; 16] = std::array::from_fn(|n| ip[at + n]);
        Ipv6Addr::from(octets).into()
    };
    let pseudo = sum(&ip[8..40], 6 + len as u32);
    parse_tcp(tcp, [address(8), address(24)], verify.then_some(pseudo)).map(Some)
}

fn parse_tcp(
    tcp: &[u8],
    [source, destination]: [IpAddr; 2],
    pseudo: Option<u32>,
) -> Result<TcpFrame<'_>, String> {
    if tcp.len() < 20 {
        return Err("no TCP header".into());
    }
    let header_len = usize::from(tcp[12] >> 4) * 4;
    if header_len < 20 || header_len > tcp.len() {
        return Err(format!("a TCP header of {header_len} octets"));
    }
    if let Some(pseudo) = pseudo
        && sum(tcp, pseudo) != 0xffff
    {
        return Err("TCP checksum".into());
    }
    let flags = tcp[13];
    let syn = flags & 0x02 != 0;
    let options = &tcp[20..header_len];
    let mss = option(options, 2, 2)?.filter(|_| syn);
    let scale = option(options, 3, 1)?.filter(|_| syn);
    Ok(TcpFrame {
        source: SocketAddr::new(source, be16(tcp, 0)?),
        destination: SocketAddr::new(destination, be16(tcp, 2)?),
        seq: be32(tcp, 4)?,
        ack: (flags & 0x10 != 0).then_some(be32(tcp, 8)?),
        syn,
        fin: flags & 0x01 != 0,
        rst: flags & 0x04 != 0,
        options_len: options.len(),
        window: be16(tcp, 14)?,
        mss: mss.map(|octets| u16::from_be_bytes([octets[0], octets[1]])),
        window_scale: scale.map(|octets| octets[0]),
        payload: &tcp[header_len..],
    })
}

/// What an option carries.
fn option(mut options: &[u8], wanted: u8, octets: usize) -> Result<Option<&[u8]>, String> {
    while let [kind, rest @ ..] = options {
        options = match kind {
            0 => break,
            1 => rest,
            kind => {
                let len = rest.first().map_or(0, |len| usize::from(*len));
                let Some((option, rest)) = options.split_at_checked(len).filter(|_| len >= 2)
                else {
                    return Err("a TCP option of no length".into());
                };
                if *kind == wanted && len == 2 + octets {
                    return Ok(Some(&option[2..]));
                }
                rest
            }
        };
    }
    Ok(None)
}
