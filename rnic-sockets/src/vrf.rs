//! Which VRF an interface belongs to. Only netlink tells: a VRF is a kind of link, which sysfs does
//! not show.

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{MsgFlags, recv, send};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a link is called that is a VRF.
const KIND: &[u8] = b"vrf";

/// The flag bits above an attribute's type.
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// The kernel's dumps come in parts that are smaller.
const REPLY: usize = 1 << 16;

/// How often a dump is begun again under which links have changed.
const TRIES: usize = 8;

/// A VRF of this thread's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vrf {
    pub(crate) name: String,
    /// The interfaces that belong to it, if it is the one that was asked about.
    pub(crate) members: Vec<String>,
}

impl Vrf {
    /// Returns the VRF that an interface belongs to, or that it is.
    pub(crate) fn of(index: u32) -> io::Result<Option<Self>> {
        let Some(link) = links(Some(index))?.pop() else {
            return Ok(None);
        };
        if link.is_vrf {
            let members = links(None)?.into_iter();
            let members = members.filter(|member| member.is_in(index));
            return Ok(Some(Self {
                name: link.name,
                members: members.map(|member| member.name).collect(),
            }));
        }
        let master = link.vrf.map(|vrf| links(Some(vrf))).transpose()?;
        let master = master.and_then(|mut found| found.pop());
        Ok(master.map(|master| Self {
            name: master.name,
            members: Vec::new(),
        }))
    }
}

/// A link, as far as VRFs are concerned.
#[derive(Debug, Default, PartialEq, Eq)]
struct Link {
    name: String,
    is_vrf: bool,
    /// The index of the VRF that it belongs to.
    vrf: Option<u32>,
}

impl Link {
    fn is_in(&self, vrf: u32) -> bool {
        self.vrf == Some(vrf)
    }

    /// Reads the attributes of a link.
    fn read(octets: &[u8]) -> Self {
        let (mut link, mut master, mut is_in_vrf) = (Self::default(), None, false);
        for (kind, value) in attributes(octets) {
            match kind {
                libc::IFLA_IFNAME => {
                    link.name = String::from_utf8_lossy(text(value)).into_owned();
                }
                libc::IFLA_MASTER => master = u32::read_from_bytes(value).ok(),
                libc::IFLA_LINKINFO => {
                    for (kind, value) in attributes(value) {
                        let says_so = text(value) == KIND;
                        match kind {
                            libc::IFLA_INFO_KIND => link.is_vrf = says_so,
                            libc::IFLA_INFO_SLAVE_KIND => is_in_vrf = says_so,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        link.vrf = master.filter(|_| is_in_vrf);
        link
    }
}

/// `struct nlmsghdr`
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    len: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

/// `struct ifinfomsg`
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct LinkInfo {
    family: u8,
    padding: u8,
    kind: u16,
    index: u32,
    flags: u32,
    change: u32,
}

/// What the kernel has told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reply {
    links: Vec<Link>,
    /// Links have come or gone meanwhile: some may be missing, or stand there twice.
    is_interrupted: bool,
}

/// Reads one link, or all. One that is not there (any more) is left out.
fn links(index: Option<u32>) -> io::Result<Vec<Link>> {
    let mut reply = ask(index)?;
    for _ in 1..TRIES {
        if !reply.is_interrupted {
            break;
        }
        reply = ask(index)?;
    }
    Ok(reply.links)
}

fn ask(index: Option<u32>) -> io::Result<Reply> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let dump = if index.is_none() { libc::NLM_F_DUMP } else { 0 };
    let header = Header {
        len: (size_of::<Header>() + size_of::<LinkInfo>()) as u32,
        kind: libc::RTM_GETLINK,
        flags: (libc::NLM_F_REQUEST | dump) as u16,
        sequence: 1,
        port: 0,
    };
    let info = LinkInfo {
        index: index.unwrap_or(0),
        ..LinkInfo::default()
    };
    let request = [header.as_bytes(), info.as_bytes()].concat();
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut reply = Reply::default();
    let mut octets = vec![0; REPLY];
    loop {
        // The reply is there when the call returns.
        let len = recv(socket.as_raw_fd(), &mut octets, MsgFlags::MSG_DONTWAIT)?;
        let ended = read_reply(&octets[..len], &mut reply)?;
        if ended || index.is_some() {
            return Ok(reply);
        }
    }
}

/// Reads a part of a reply. Returns whether it was the last.
fn read_reply(mut octets: &[u8], reply: &mut Reply) -> Result<bool, Errno> {
    const NEW_LINK: i32 = libc::RTM_NEWLINK as i32;
    while let Ok((header, _)) = Header::read_from_prefix(octets) {
        let Some(payload) = octets.get(size_of::<Header>()..header.len as usize) else {
            break;
        };
        reply.is_interrupted |= i32::from(header.flags) & libc::NLM_F_DUMP_INTR != 0;
        let code = i32::read_from_prefix(payload).map_or(0, |(code, _)| code);
        match i32::from(header.kind) {
            libc::NLMSG_DONE if code >= 0 => return Ok(true),
            // A dump that has failed half way ends like this too.
            libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                return match Errno::from_raw(code.saturating_neg()) {
                    Errno::ENODEV => Ok(true),
                    errno => Err(errno),
                };
            }
            NEW_LINK => {
                reply
                    .links
                    .extend(payload.get(size_of::<LinkInfo>()..).map(Link::read));
            }
            _ => {}
        }
        octets = after(octets, header.len as usize);
    }
    Ok(false)
}

/// Returns the attributes of a message, or of another attribute. A malformed rest is left out.
fn attributes(mut octets: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const HEADER: usize = 4;
    std::iter::from_fn(move || {
        let ([len, kind], _) = <[u16; 2]>::read_from_prefix(octets).ok()?;
        let value = octets.get(HEADER..len.into())?;
        octets = after(octets, len.into());
        Some((kind & ATTRIBUTE_TYPE, value))
    })
}

/// Returns what is behind so many octets and their padding.
fn after(octets: &[u8], len: usize) -> &[u8] {
    octets.get(len.next_multiple_of(4)..).unwrap_or(&[])
}

/// Returns a string without the zero at its end.
fn text(value: &[u8]) -> &[u8] {
    value.split(|octet| *octet == 0).next().unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use nix::net::if_::if_nametoindex;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (4 + value.len()) as u16;
        let mut octets = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        octets.extend(value);
        octets.resize(octets.len().next_multiple_of(4), 0);
        octets
    }

    fn link(name: &str, master: Option<u32>, info: &[(u16, &str)]) -> Vec<u8> {
        let info: Vec<_> = info
            .iter()
            .flat_map(|(kind, word)| attribute(*kind, word.as_bytes()))
            .collect();
        let master = master.map(|index| attribute(libc::IFLA_MASTER, &index.to_ne_bytes()));
        [
            attribute(libc::IFLA_IFNAME, format!("{name}\0").as_bytes()),
            master.unwrap_or_default(),
            // It is marked as one that holds others.
            attribute(libc::IFLA_LINKINFO | 0x8000, &info),
        ]
        .concat()
    }

    #[test]
    fn a_vrf_and_its_members_are_told_from_other_links() {
        const OWN: u16 = libc::IFLA_INFO_KIND;
        const OF_MASTER: u16 = libc::IFLA_INFO_SLAVE_KIND;
        for (master, info, is_vrf, vrf) in [
            (None, &[(OWN, "vrf\0")][..], true, None),
            (Some(7), &[(OF_MASTER, "vrf")], false, Some(7)),
            (
                Some(7),
                &[(OWN, "veth"), (OF_MASTER, "vrf\0")],
                false,
                Some(7),
            ),
            (Some(7), &[(OF_MASTER, "bridge")], false, None),
            (None, &[(OF_MASTER, "vrf")], false, None),
            (None, &[(OWN, "vrfs")], false, None),
            (None, &[], false, None),
        ] {
            let name = "a0".to_owned();
            let read = Link::read(&link("a0", master, info));
            assert_eq!(read, Link { name, is_vrf, vrf }, "{master:?} {info:?}");
        }
    }

    #[test]
    fn malformed_messages_end_the_reading() {
        let whole = link("a0", Some(7), &[(libc::IFLA_INFO_SLAVE_KIND, "vrf")]);
        for len in 0..whole.len() {
            let _ = Link::read(&whole[..len]);
            let _ = read_reply(&whole[..len], &mut Reply::default());
        }
        // An attribute that is shorter than its header.
        assert_eq!(Link::read(&[0; 64]), Link::default());
    }

    fn message(kind: i32, flags: i32, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            len: (size_of::<Header>() + payload.len()) as u32,
            kind: kind as u16,
            flags: flags as u16,
            sequence: 1,
            port: 0,
        };
        [header.as_bytes(), payload].concat()
    }

    #[test]
    fn a_dump_is_whole_only_if_the_kernel_says_nothing_else() {
        let of_link = [LinkInfo::default().as_bytes(), &link("a0", None, &[])].concat();
        let new_link = |flags| message(libc::RTM_NEWLINK.into(), flags, &of_link);
        let done = |code: i32| message(libc::NLMSG_DONE, 0, &code.to_ne_bytes());
        for (flags, is_interrupted) in [(0, false), (libc::NLM_F_DUMP_INTR, true)] {
            let mut reply = Reply::default();
            let octets = [new_link(flags), done(0)].concat();
            assert_eq!(read_reply(&octets, &mut reply), Ok(true));
            assert_eq!(reply.is_interrupted, is_interrupted);
            assert_eq!(reply.links[0].name, "a0");
        }
        let octets = [new_link(0), done(-libc::ENOMEM)].concat();
        let read = read_reply(&octets, &mut Reply::default());
        assert_eq!(read, Err(Errno::ENOMEM));
    }

    #[test]
    fn the_loopback_interface_is_in_no_vrf() {
        let index = if_nametoindex("lo").unwrap();
        assert_eq!(Vrf::of(index).unwrap(), None);
        let all = links(None).unwrap();
        assert!(all.iter().any(|link| link.name == "lo"), "{all:?}");
        // One that has just gone.
        assert_eq!(Vrf::of(i32::MAX as u32).unwrap(), None);
    }
}
