//! Who stands behind a user: one that has subordinate ids (/etc/subuid) is tens of thousands of
//! users to the kernel, and one here.
//!
//! The files are read as they are. Name services, which may wait for a network, are asked for what
//! an administrator names alone.

use std::collections::BTreeSet;
use std::fs;

/// The subordinate ids of users, as in /etc/subuid.
const SUBUID: &str = "/etc/subuid";
/// The users of this host.
const PASSWD: &str = "/etc/passwd";

/// Ids that count as another user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subordinate {
    /// The first of them.
    pub first: u32,
    /// How many they are.
    pub count: u32,
    /// As whom they count.
    pub owner: u32,
}

impl Subordinate {
    fn contains(&self, uid: u32) -> bool {
        uid.checked_sub(self.first)
            .is_some_and(|at| at < self.count)
    }
}

/// The owners of subordinate ids. Of two that have the same ids, the first counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// What the configuration says.
    stated: Vec<Subordinate>,
    /// What /etc/subuid says.
    listed: Vec<Subordinate>,
    /// The users of this host, who are nobody's subordinates by that file.
    users: BTreeSet<u32>,
}

impl Owners {
    /// Reads /etc/subuid; `more` counts before it. Without such a file, there are no others.
    pub fn read(more: Vec<Subordinate>) -> Self {
        let text = |file| fs::read_to_string(file).unwrap_or_default();
        Self::of(more, &text(SUBUID), &text(PASSWD))
    }

    fn of(stated: Vec<Subordinate>, subuid: &str, passwd: &str) -> Self {
        let lines = subuid.lines().map(str::trim);
        let lines = lines.filter(|line| !line.starts_with('#'));
        let listed = lines.filter_map(|line| {
            let mut fields = line.split(':');
            let who = fields.next()?;
            let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            let owner = who.parse().ok().or_else(|| uid_in(passwd, who));
            // Those of a user whom this host does not know are one user at least. So are those of
            // root, who has them for others: for containers whose root is not to be that of this
            // host.
            let owner = owner.filter(|owner| *owner != 0).unwrap_or(first);
            Some(Subordinate {
                first,
                count,
                owner,
            })
        });
        Self {
            stated,
            listed: listed.collect(),
            users: users(passwd).map(|(_, uid)| uid).collect(),
        }
    }

    /// Returns the user as whom a user counts.
    pub fn owner(&self, uid: u32) -> u32 {
        // A user can be in somebody's range by mistake, or so that a container of root runs as that
        // user.
        let listed = match self.users.contains(&uid) {
            true => &[],
            false => self.listed.as_slice(),
        };
        let mut ranges = self.stated.iter().chain(listed);
        let found = ranges.find(|range| range.contains(uid));
        found.map_or(uid, |range| range.owner)
    }
}

/// Returns the number of a user of this host, if it is in its own file.
pub(crate) fn local_uid(name: &str) -> Option<u32> {
    uid_in(&fs::read_to_string(PASSWD).ok()?, name)
}

/// Returns the name of a user of this host, if it is in its own file.
pub(crate) fn local_name(uid: u32) -> Option<String> {
    let passwd = fs::read_to_string(PASSWD).ok()?;
    let mut users = users(&passwd);
    let (name, _) = users.find(|(_, of)| *of == uid)?;
    Some(name.to_owned())
}

fn uid_in(passwd: &str, name: &str) -> Option<u32> {
    let (_, uid) = users(passwd).find(|(of, _)| *of == name)?;
    Some(uid)
}

fn users(passwd: &str) -> impl Iterator<Item = (&str, u32)> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        Some((name, fields.nth(1)?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str =
        "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n+::::::\n";

    #[test]
    fn subordinate_ids_are_their_owners() {
        let subuid = "# ids\nalice:100000:65536\n1001:165536:10\ncarol:300000:5\nbroken:1\n\n";
        let more = vec![Subordinate {
            first: 100_100,
            count: 2,
            owner: 7,
        }];
        let owners = Owners::of(more, subuid, USERS);
        for (uid, owner) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (100_100, 7),
            (100_102, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (165_546, 165_546),
            // Whom this host does not know has one user's share, not five.
            (300_004, 300_000),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(owners.owner(uid), owner, "{uid}");
        }
    }

    #[test]
    fn nobody_counts_as_root_and_no_user_as_another() {
        let subuid = "root:100000:65536\nroot:1000:1\nalice:0:4294967295\n";
        let owners = Owners::of(Vec::new(), subuid, USERS);
        for (uid, owner) in [
            (0, 0),
            (1000, 1000),
            (100_000, 100_000),
            (100_007, 100_000),
            (7, 1000),
        ] {
            assert_eq!(owners.owner(uid), owner, "{uid}");
        }
        // An administrator can say so.
        let (first, count, owner) = (1000, 1, 0);
        let stated = Subordinate {
            first,
            count,
            owner,
        };
        let owners = Owners::of(vec![stated], subuid, USERS);
        assert_eq!(owners.owner(1000), 0);
    }

    #[test]
    fn users_have_names_and_numbers() {
        assert_eq!(uid_in(USERS, "alice"), Some(1000));
        assert_eq!(uid_in(USERS, "bob"), None);
        assert_eq!(local_name(0).as_deref(), Some("root"));
        assert_eq!(local_uid("root"), Some(0));
    }
}
