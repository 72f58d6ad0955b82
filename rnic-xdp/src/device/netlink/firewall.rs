//! The tables of the host's firewall, which does not see what XDP takes.

use std::fs;

use rustix::net::netlink;
use zerocopy::{Immutable, IntoBytes};

use super::error::NetlinkError;
use super::message::{Builder, Message};
use super::socket::{Groups, ReplyMode, Socket};

/// `NFNL_SUBSYS_NFTABLES`, and messages of it.
const NFTABLES: u16 = 10 << 8;
const NEW_TABLE: u16 = NFTABLES;
const GET_TABLE: u16 = NFTABLES | 1;
const NFTA_TABLE_NAME: u16 = 1;

/// `struct nfgenmsg`
#[derive(
    Clone, Copy, Debug, Default, zerocopy::FromBytes, IntoBytes, Immutable, zerocopy::KnownLayout,
)]
#[repr(C)]
struct NetfilterHeader {
    family: u8,
    version: u8,
    resource: u16,
}

fn name(message: &Message) -> Option<String> {
    if message.kind != NEW_TABLE {
        return None;
    }
    let (header, attributes) = message.split::<NetfilterHeader>()?;
    let family = match header.family {
        1 => "inet",
        2 => "ip",
        3 => "arp",
        5 => "netdev",
        7 => "bridge",
        10 => "ip6",
        _ => "other",
    };
    Some(format!("{family} {}", attributes.string(NFTA_TABLE_NAME)?))
}

/// Lists the tables of nftables, and of iptables if that does not use nftables, in the network
/// namespace of this thread.
pub(crate) fn firewall_tables() -> Result<Vec<String>, NetlinkError> {
    let doing = "list the tables of nftables";
    let socket = Socket::open(netlink::NETFILTER, Groups::NONE);
    let mut socket = socket.map_err(|source| NetlinkError::Socket { doing, source })?;
    let messages = socket.request(doing, ReplyMode::Dump, |flags| {
        Builder::new(GET_TABLE, flags, &NetfilterHeader::default())
    })?;
    let mut tables: Vec<_> = messages.iter().filter_map(name).collect();
    for program in ["ip", "ip6"] {
        let names = fs::read_to_string(format!("/proc/thread-self/net/{program}_tables_names"));
        let names = names.unwrap_or_default();
        tables.extend(
            names
                .lines()
                .map(|table| format!("{program}tables {table}")),
        );
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netlink::message::parse;

    #[test]
    fn tables_are_named_with_their_family() {
        let header = NetfilterHeader {
            family: 1,
            ..Default::default()
        };
        let message = Builder::new(NEW_TABLE, 0, &header).string(NFTA_TABLE_NAME, "filter");
        let read = |message: Builder| name(&parse(&message.finish(1))[0]);
        assert_eq!(read(message).as_deref(), Some("inet filter"));
        assert_eq!(read(Builder::new(NEW_TABLE, 0, &header)), None);
        assert_eq!(read(Builder::new(GET_TABLE, 0, &header)), None);
    }
}
