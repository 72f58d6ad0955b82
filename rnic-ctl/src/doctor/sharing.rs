//! What rnicd has to do with an interface, as this user sees it.

use rnic_manager::channel::default_socket;
use rnic_xdp::InterfaceConfig;
use rnic_xdp::client::Manager;
use rnic_xdp::facts::{Fact, Verdict};

/// What who gets a port of rnicd need not have, by the names of the findings.
const NOT_NEEDED: [&str; 3] = ["rights", "locked memory", "XDP program"];

/// Why there are no ports of an interface.
pub(super) struct NotOffered {
    /// For people, with the remedy.
    why: String,
    /// rnicd is to share it, and cannot.
    is_wanted: bool,
}

/// Returns rnicd, if it shares an interface with this user, or why there are no ports of it.
pub(super) fn manager_of(netdev: &str) -> Result<Manager, NotOffered> {
    let refused = |why, is_wanted| NotOffered { why, is_wanted };
    let manager = Manager::connect(&default_socket());
    let manager = manager.map_err(|error| refused(error.to_string(), false))?;
    if manager.offers(netdev) {
        return Ok(manager);
    }
    Err(match manager.waits_for(netdev) {
        Some(why) => refused(format!("it cannot share {netdev} now: {why}"), true),
        None => {
            let why = format!(
                "rnicd does not share {netdev} with this user; the administrator can (/etc/rnic/rnicd.toml)"
            );
            refused(why, false)
        }
    })
}

/// Reports that programs of this user get ports.
pub(super) fn offered(netdev: &str) -> Fact {
    let found = format!("it shares {netdev} with this user, whose programs need no rights");
    fact(Verdict::Ok, found, None)
}

/// Reports why they do not. Who may have an interface alone needs no rnicd.
pub(super) fn not_offered(
    NotOffered { why, is_wanted }: &NotOffered,
    may_have_it_alone: bool,
) -> Fact {
    let (found, remedy) = why.split_once(';').unwrap_or((why, "see its log"));
    match may_have_it_alone && !is_wanted {
        true => fact(Verdict::Ok, format!("not used: {found}"), None),
        false => fact(
            Verdict::Fail,
            found.to_owned(),
            Some(remedy.trim().to_owned()),
        ),
    }
}

fn fact(verdict: Verdict, found: String, remedy: Option<String>) -> Fact {
    Fact {
        name: "rnicd",
        verdict,
        found,
        remedy,
    }
}

/// Withdraws the verdict on what does not matter to a port of rnicd.
pub(super) fn settle(facts: &mut [Fact]) {
    let failed = |fact: &&mut Fact| fact.verdict != Verdict::Ok;
    let facts = facts.iter_mut().filter(failed);
    for fact in facts.filter(|fact| NOT_NEEDED.contains(&fact.name)) {
        fact.verdict = Verdict::Ok;
        fact.remedy = None;
        fact.found
            .push_str(", which does not matter to a port of rnicd");
    }
}

/// Gets a port for a moment, as an application does, and reports the outcome.
pub(super) fn trial(manager: Manager, netdev: &str) -> Fact {
    let opened = manager.open(&InterfaceConfig::new(netdev));
    let (verdict, found, remedy) = match opened {
        Ok((port, _)) => (
            Verdict::Ok,
            format!("a port of rnicd: {}", port.report()),
            None,
        ),
        Err(error) => {
            let text = error.to_string();
            let (found, remedy) = text.split_once(';').unwrap_or((&text, "see rnicd's log"));
            let remedy = Some(remedy.trim().to_owned());
            (Verdict::Fail, found.to_owned(), remedy)
        }
    };
    Fact {
        name: "trial",
        verdict,
        found,
        remedy,
    }
}
