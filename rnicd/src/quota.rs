//! What each user holds.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::{Limits, Memory, Origin, Setting};
use crate::owners::local_name;

/// What a user can hold a limited amount of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Ports of devices.
    Ports,
    /// Frames of all ports.
    Frames,
    /// Octets of hugepages.
    Hugepages,
    /// TCP ports that are listened on.
    Listeners,
    /// TCP ports that connections are made from.
    Connections,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 5] = [
        Self::Ports,
        Self::Frames,
        Self::Hugepages,
        Self::Listeners,
        Self::Connections,
    ];

    /// Returns its key in the configuration.
    pub fn key(self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::Frames => "frames",
            Self::Hugepages => "hugepages",
            Self::Listeners => "listeners",
            Self::Connections => "connections",
        }
    }

    /// Returns what a user may hold.
    pub fn limit(self, limits: &Limits) -> Setting<u64> {
        let (value, origin) = match self {
            Self::Ports => (limits.ports.value.0, &limits.ports.origin),
            Self::Frames => (limits.frames.value.0, &limits.frames.origin),
            Self::Hugepages => (limits.hugepages.value.0, &limits.hugepages.origin),
            Self::Listeners => (limits.listeners.value.0, &limits.listeners.origin),
            Self::Connections => (limits.connections.value.0, &limits.connections.origin),
        };
        let origin = origin.clone();
        Setting { value, origin }
    }

    /// Returns an amount in words.
    fn amount(self, amount: u64) -> String {
        match self {
            Self::Hugepages => Memory(amount).to_string().trim_matches('"').to_owned(),
            _ => amount.to_string(),
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Ports => "close a port",
            Self::Frames => "ask for fewer frames, or close a port",
            Self::Hugepages => "ask for fewer frames, or close a port",
            Self::Listeners => "close a listener",
            Self::Connections => "end a connection",
        }
    }
}

/// A limit is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaError {
    /// The user.
    pub uid: u32,
    /// What it has too little of.
    pub resource: Resource,
    /// What it holds already.
    pub held: u64,
    /// What it asked for.
    pub wanted: u64,
    /// What it may hold.
    pub limit: u64,
    /// Who has set the limit.
    pub origin: Origin,
}

impl std::error::Error for QuotaError {}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [held, wanted, limit] =
            [self.held, self.wanted, self.limit].map(|amount| self.resource.amount(amount));
        write!(
            f,
            "{} may hold {} = {limit} (set by {}), holds {held} and wants {wanted} more; {}, or ask the administrator for more",
            name(self.uid),
            self.resource.key(),
            self.origin,
            self.resource.remedy(),
        )
    }
}

/// Returns how messages call a user.
fn name(uid: u32) -> String {
    match local_name(uid) {
        Some(name) => format!("user {name} (uid {uid})"),
        // The number says it too.
        None => format!("uid {uid}"),
    }
}

/// A user, and what it holds.
type Account = (u32, Resource);

/// How much is held. There is no account of nothing.
type Accounts = HashMap<Account, u64>;

/// The accounts of all users. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    accounts: Arc<Mutex<Accounts>>,
}

impl Quotas {
    /// Reserves an amount for a user. Fails if the user would then hold more than the limits allow.
    pub fn try_take(
        &self,
        uid: u32,
        resource: Resource,
        wanted: u64,
        limits: &Limits,
    ) -> Result<Charge, QuotaError> {
        let Setting {
            value: limit,
            origin,
        } = resource.limit(limits);
        let mut accounts = self.accounts();
        let held = accounts.get(&(uid, resource)).copied().unwrap_or(0);
        let sum = held.checked_add(wanted).filter(|sum| *sum <= limit);
        if sum.is_none() {
            return Err(QuotaError {
                uid,
                resource,
                held,
                wanted,
                limit,
                origin,
            });
        }
        Ok(self.take(&mut accounts, (uid, resource), wanted))
    }

    /// Counts what a user is found to hold when rnicd starts, whatever the limits are by then.
    pub fn adopt(&self, uid: u32, resource: Resource, found: u64) -> Charge {
        self.take(&mut self.accounts(), (uid, resource), found)
    }

    /// Returns how much of a resource a user holds.
    pub fn held(&self, uid: u32, resource: Resource) -> u64 {
        self.accounts().get(&(uid, resource)).copied().unwrap_or(0)
    }

    fn take(&self, accounts: &mut Accounts, account: Account, amount: u64) -> Charge {
        let held = accounts.get(&account).copied().unwrap_or(0);
        let sum = held.saturating_add(amount);
        if sum > 0 {
            accounts.insert(account, sum);
        }
        Charge {
            accounts: Arc::clone(&self.accounts),
            account,
            // What is given back is what was added.
            amount: sum - held,
        }
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        lock(&self.accounts)
    }
}

fn lock(accounts: &Mutex<Accounts>) -> MutexGuard<'_, Accounts> {
    // Each change is one assignment: a panic of another thread leaves nothing half done.
    accounts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was taken for a user. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "what was taken is given back when this is dropped"]
pub struct Charge {
    accounts: Arc<Mutex<Accounts>>,
    account: Account,
    amount: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut accounts = lock(&self.accounts);
        let held = accounts.remove(&self.account).unwrap_or(0);
        // Only what was taken is given back, and once.
        let rest = held - self.amount;
        if rest > 0 {
            accounts.insert(self.account, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::{Config, Count};

    fn limits(text: &str) -> Limits {
        let config = Config::parse(text, "/etc/rnic/rnicd.toml".as_ref());
        config.unwrap().defaults
    }

    #[test]
    fn an_error_says_who_limits_what_and_what_to_do() {
        let quotas = Quotas::default();
        let limits = limits("[defaults]\n\nports = 2\nhugepages = \"3MiB\"\n");
        let nobody_has = 4_000_000_001;
        let _two = quotas
            .try_take(nobody_has, Resource::Ports, 2, &limits)
            .unwrap();
        let _memory = quotas
            .try_take(0, Resource::Hugepages, 2 << 20, &limits)
            .unwrap();
        let say = |uid, resource, wanted| {
            let error = quotas.try_take(uid, resource, wanted, &limits);
            error.unwrap_err().to_string()
        };
        assert_eq!(
            say(nobody_has, Resource::Ports, 1),
            "uid 4000000001 may hold ports = 2 (set by /etc/rnic/rnicd.toml:3), holds 2 and wants 1 more; close a port, or ask the \
             administrator for more"
        );
        assert_eq!(
            say(0, Resource::Hugepages, 2 << 20),
            "user root (uid 0) may hold hugepages = 3MiB (set by /etc/rnic/rnicd.toml:4), holds 2MiB and wants 2MiB more; ask for \
             fewer frames, or close a port, or ask the administrator for more"
        );
        assert_eq!(
            say(0, Resource::Frames, 32_769),
            "user root (uid 0) may hold frames = 32768 (set by the default), holds 0 and wants 32769 more; ask for fewer frames, \
             or close a port, or ask the administrator for more"
        );
        assert!(say(0, Resource::Listeners, 65).contains("; close a listener, or ask"));
        assert!(say(0, Resource::Connections, 1025).contains("; end a connection, or ask"));
    }

    #[test]
    fn sums_do_not_wrap() {
        let quotas = Quotas::default();
        let all = quotas.adopt(1, Resource::Frames, u64::MAX - 1);
        let more = quotas.adopt(1, Resource::Frames, 7);
        assert_eq!(quotas.held(1, Resource::Frames), u64::MAX);
        let limits = limits("[defaults]\nframes = 4294967295\n");
        let none = quotas.try_take(1, Resource::Frames, u64::MAX, &limits);
        assert_eq!(none.unwrap_err().held, u64::MAX);
        drop(more);
        assert_eq!(quotas.held(1, Resource::Frames), u64::MAX - 1);
        drop(all);
        assert!(lock(&quotas.accounts).is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(u32, usize, u64),
        Adopt(u32, usize, u64),
        GiveBack(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..3_u32, 0..5_usize, 0..12_u64).prop_map(|(uid, of, n)| Step::Take(uid, of, n)),
            1 => (0..3_u32, 0..5_usize, 0..12_u64).prop_map(|(uid, of, n)| Step::Adopt(uid, of, n)),
            3 => any::<usize>().prop_map(Step::GiveBack),
        ]
    }

    proptest! {
        /// The model keeps each thing that was taken, and adds them up anew each time.
        #[test]
        fn quotas_agree_with_a_model(most in 0..30_u64, steps in prop::collection::vec(step(), 0..200)) {
            let count = Setting::built_in(Count(most));
            let limits = Limits {
                ports: count.clone(),
                frames: count.clone(),
                listeners: count.clone(),
                connections: count,
                hugepages: Setting::built_in(Memory(most)),
                ..Limits::default()
            };
            let quotas = Quotas::default();
            let mut taken: Vec<(Account, u64, Charge)> = Vec::new();
            for step in steps {
                let sum = |taken: &[(Account, u64, Charge)], account: Account| -> u64 {
                    let of = taken.iter().filter(|(other, ..)| *other == account);
                    of.map(|(_, amount, _)| amount).sum()
                };
                match step {
                    Step::Take(uid, of, wanted) => {
                        let account = (uid, Resource::ALL[of]);
                        let held = sum(&taken, account);
                        match quotas.try_take(uid, account.1, wanted, &limits) {
                            Ok(token) => {
                                prop_assert!(held + wanted <= most);
                                taken.push((account, wanted, token));
                            }
                            Err(error) => {
                                prop_assert!(held + wanted > most);
                                prop_assert_eq!((error.held, error.limit), (held, most));
                            }
                        }
                    }
                    Step::Adopt(uid, of, found) => {
                        let account = (uid, Resource::ALL[of]);
                        taken.push((account, found, quotas.adopt(uid, account.1, found)));
                    }
                    Step::GiveBack(at) if !taken.is_empty() => drop(taken.swap_remove(at % taken.len())),
                    Step::GiveBack(_) => {}
                }
                for uid in 0..3 {
                    for resource in Resource::ALL {
                        prop_assert_eq!(quotas.held(uid, resource), sum(&taken, (uid, resource)));
                    }
                }
            }
            drop(taken);
            prop_assert!(lock(&quotas.accounts).is_empty());
        }
    }
}
