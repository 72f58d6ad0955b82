//! Users and times in words.

use std::collections::HashMap;

use nix::unistd::{Uid, User};

/// The names of users, each looked up once.
#[derive(Default)]
pub(super) struct Users(HashMap<u32, String>);

impl Users {
    /// Returns the name of a user, or the number if it has none here.
    pub(super) fn name(&mut self, uid: u32) -> &str {
        self.0.entry(uid).or_insert_with(|| {
            let found = User::from_uid(Uid::from_raw(uid));
            let found = found.ok().flatten();
            found.map_or_else(|| uid.to_string(), |user| user.name)
        })
    }
}

/// Returns a time, in milliseconds since 1970-01-01 UTC, as RFC 3339 has it.
pub(super) fn time(millis: u64) -> String {
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = match millis {
        0 => String::new(),
        millis => format!(".{millis:03}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Returns the year, month and day of a number of days since 1970-01-01 in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, leap days are the last ones of years, of four years, of centuries
    // and of 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (year, month + 3),
        _ => (year + 1, month - 9),
    };
    (400 * era + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // As `date -u -d @SECONDS` says.
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time(seconds * 1000), expected);
        }
        assert_eq!(time(1_700_000_000_007), "2023-11-14T22:13:20.007Z");
    }

    #[test]
    fn users_have_names_or_numbers() {
        let mut users = Users::default();
        assert_eq!(users.name(0), "root");
        assert_eq!(users.name(4_000_000_001), "4000000001");
    }
}
