//! Which interfaces a program sees as RDMA devices.

use std::net::{Ipv4Addr, Ipv6Addr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use rnic_manager::channel::default_socket;
use rnic_verbs::Via;
use rnic_xdp::client::Manager;
use rnic_xdp::device_name;
use rnic_xdp::facts::{self, Fact, Verdict};

use crate::failure::{Failure, Outcome};

/// The variable that names the interfaces to our libraries.
pub(super) const VARIABLE: &str = "RNIC_NETDEV";

/// ARPHRD_ETHER of <linux/if_arp.h>.
const ETHERNET: u16 = 1;

/// The interfaces, and what rnicd has to do with them.
pub(super) struct Devices {
    /// None if connections may take any: over TCP sockets of the kernel.
    pub(super) names: Vec<String>,
    /// What is to carry the connections.
    pub(super) via: Via,
    /// What rnicd offers this user, or why it offers nothing.
    offered: Result<Vec<String>, String>,
    /// Of these, what it is to offer and cannot now, with the reason.
    withheld: Vec<(String, String)>,
}

impl Devices {
    /// Chooses those that the command line names, or else the environment, or else rnicd. Without
    /// any of these, all of this network namespace that can be used, if this user may have them
    /// alone; and else none, for TCP sockets of the kernel on any.
    pub(super) fn choose(named: &[String], via: Option<Via>) -> Outcome<Self> {
        let via = via.map_or_else(via_in_environment, Ok)?;
        let manager = Manager::connect(&default_socket());
        let offered = manager.as_ref().map(|manager| manager.devices().to_vec());
        let offered = offered.map_err(ToString::to_string);
        let mut names = named.to_vec();
        if names.is_empty() {
            names = in_environment();
        }
        if names.is_empty() && !via.is_of_sockets() {
            names = offered.clone().unwrap_or_default();
        }
        let is_unprivileged = || failing_right().is_some();
        let by_sockets = via.is_of_sockets() || via == Via::Best && is_unprivileged();
        if names.is_empty() && !by_sockets {
            names = usable();
        }
        if names.is_empty() && !by_sockets && via != Via::Best {
            let why = "no Ethernet interface here is up and has an address; `ip address` shows them, --netdev names one";
            return Err(Failure::environment("choose an interface", why));
        }
        for name in &mut names {
            let is_offered = offered.iter().flatten().any(|offered| offered == name);
            if let Some(first) = device_name(name).filter(|_| !is_offered) {
                *name = first;
            }
        }
        let why = |name: &String| manager.as_ref().ok()?.waits_for(name);
        let withheld = names.iter();
        let withheld = withheld.filter_map(|name| Some((name.clone(), why(name)?.to_owned())));
        Ok(Self {
            withheld: withheld.collect(),
            names,
            via,
            offered,
        })
    }

    /// Fails where a program could not use one of them.
    pub(super) fn check(&self) -> Outcome {
        for name in self.names.iter().filter(|name| !self.is_offered(name)) {
            let failed = |why: String| Failure::environment(format_args!("use {name}"), why);
            if if_nametoindex(name.as_str()).is_err() {
                return Err(failed(
                    "there is no such interface; `ip link` lists them".into(),
                ));
            }
            if self.via.may_take_sockets() {
                continue;
            }
            if let Some(rights) = failing_right() {
                let mut withheld = self.withheld.iter();
                if let Some((_, why)) = withheld.find(|(withheld, _)| withheld == name) {
                    return Err(failed(format!("rnicd cannot share it now: {why}")));
                }
                let without = match &self.offered {
                    Ok(_) => format!(
                        "rnicd does not share it with this user, who is {} to have it alone",
                        rights.found
                    ),
                    Err(why) => format!(
                        "{}, and this user is {} to have it alone",
                        why.split(';').next().unwrap_or(why),
                        rights.found
                    ),
                };
                return Err(failed(format!(
                    "{without}; have rnicd share it (/etc/rnic/rnicd.toml), or run this as root"
                )));
            }
        }
        Ok(())
    }

    fn is_offered(&self, name: &str) -> bool {
        let offered = self.offered.iter().flatten();
        offered.into_iter().any(|offered| offered == name)
    }
}

/// Returns the right that this user lacks to have an interface alone.
fn failing_right() -> Option<Fact> {
    let rights = facts::host().into_iter().find(|fact| fact.name == "rights");
    rights.filter(|rights| rights.verdict == Verdict::Fail)
}

/// Returns what the environment says is to carry the connections.
fn via_in_environment() -> Outcome<Via> {
    let via = Via::of_environment();
    via.map_err(|why| Failure::usage(format_args!("read {}", Via::VARIABLE), why))
}

fn in_environment() -> Vec<String> {
    split(&std::env::var(VARIABLE).unwrap_or_default())
}

/// Splits a list with commas.
pub(super) fn split(list: &str) -> Vec<String> {
    let names = list.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Returns the Ethernet interfaces that are up and have an address at which others find them, in
/// the order of the kernel.
fn usable() -> Vec<String> {
    let addresses: Vec<_> = getifaddrs().into_iter().flatten().collect();
    let is_reached = |name: &str| {
        let own = addresses.iter().filter(|each| each.interface_name == name);
        own.filter_map(|each| each.address.as_ref()).any(|address| {
            let v4 = address.as_sockaddr_in().map(|address| address.ip());
            let v6 = address.as_sockaddr_in6().map(|address| address.ip());
            v4.is_some_and(is_global_v4) || v6.is_some_and(is_global_v6)
        })
    };
    let links = addresses.iter().filter(|each| {
        let link = each
            .address
            .as_ref()
            .and_then(|address| address.as_link_addr());
        link.is_some_and(|link| link.hatype() == ETHERNET)
            && each.flags.contains(InterfaceFlags::IFF_UP)
    });
    // Each link has one of these entries, and they come in the order of their indices.
    let names = links.map(|link| link.interface_name.clone());
    names.filter(|name| is_reached(name)).collect()
}

fn is_global_v4(address: Ipv4Addr) -> bool {
    !address.is_loopback() && !address.is_link_local()
}

fn is_global_v6(address: Ipv6Addr) -> bool {
    !address.is_loopback() && !address.is_unicast_link_local()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_commas() {
        assert_eq!(split("eth1, eth2,"), ["eth1", "eth2"]);
        assert_eq!(split(""), [""; 0]);
    }

    #[test]
    fn the_loopback_interface_is_not_usable() {
        assert!(!usable().contains(&"lo".to_owned()));
    }

    #[test]
    fn an_interface_that_is_not_there_cannot_be_used() {
        let devices = Devices {
            names: vec!["rnic-nowhere".into()],
            via: Via::Best,
            offered: Err("rnicd is not there; start it".into()),
            withheld: Vec::new(),
        };
        let why = devices.check().unwrap_err().to_string();
        assert!(why.contains("there is no such interface"), "{why}");
        let shared = Devices {
            offered: Ok(devices.names.clone()),
            ..devices
        };
        shared.check().unwrap();
    }
}
