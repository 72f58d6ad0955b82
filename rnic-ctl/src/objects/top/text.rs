//! The tables as lines of text.

use super::model::{ClientRow, DeviceRow, Rows, UserRow};
use super::view::View;
use crate::objects::rates::Sums;
use crate::out::printable;

/// The narrowest and the lowest screen on which the tables make sense.
pub(super) const LEAST: (u16, u16) = (80, 12);

/// The widths of the columns that rates have.
const RATES: [(&str, usize); 5] = [
    ("RX f/s", 7),
    ("RX B/s", 7),
    ("TX f/s", 7),
    ("TX B/s", 7),
    ("DROP/s", 7),
];

/// Returns a number of at most five characters: "9999", "12.3k", "123k".
fn scaled(number: u64) -> String {
    if number < 10_000 {
        return number.to_string();
    }
    let mut scale = 1000;
    for unit in ["k", "M", "G", "T", "P"] {
        let whole = number / scale;
        let tenths = number / (scale / 10) % 10;
        match whole {
            0..100 => return format!("{whole}.{tenths}{unit}"),
            100..1000 => return format!("{whole}{unit}"),
            _ => scale *= 1000,
        }
    }
    format!("{}E", number / scale)
}

/// Returns text in a column, aligned to the left.
fn left(text: &str, width: usize) -> String {
    let text: String = printable(text).chars().take(width).collect();
    format!("{text:<width$}")
}

fn rates(rates: Option<Sums>) -> String {
    let numbers = rates.map(|rates| {
        [
            rates.rx_frames,
            rates.rx_octets,
            rates.tx_frames,
            rates.tx_octets,
            rates.dropped_frames,
        ]
    });
    let cell = |(at, (_, width)): (usize, &(&str, usize))| {
        let text = numbers.map_or_else(|| "-".to_owned(), |numbers| scaled(numbers[at]));
        format!("{text:>width$}")
    };
    RATES.iter().enumerate().map(cell).collect()
}

fn rate_titles() -> String {
    let titles = RATES.iter();
    titles
        .map(|(title, width)| format!("{title:>width$}"))
        .collect()
}

/// The widths of the names in the table of clients.
#[derive(Clone, Copy)]
struct Names {
    dev: usize,
    user: usize,
    program: usize,
}

impl Names {
    /// Shares out what the other columns leave: each has 5 at least, and the name of the program
    /// what the others do not need.
    fn of(room: usize) -> Self {
        let spare = room.saturating_sub(17);
        let dev = 6 + spare.min(2);
        let user = 5 + spare.saturating_sub(2).min(3);
        Self {
            dev,
            user,
            program: room.saturating_sub(dev + user),
        }
    }
}

fn client_titles(names: Names) -> String {
    format!(
        "PORT {} {} {:>7} {} LEASES CONNS{}",
        left("DEV", names.dev),
        left("USER", names.user),
        "PID",
        left("PROGRAM", names.program),
        rate_titles()
    )
}

fn client(row: &ClientRow, names: Names) -> String {
    let connections = row.connections.map(|count| scaled(count.into()));
    format!(
        "{:>4} {} {} {:>7} {} {:>6} {:>5}{}",
        row.port,
        left(&row.dev, names.dev),
        left(&row.user, names.user),
        row.pid,
        left(&row.program, names.program),
        row.leases,
        connections.as_deref().unwrap_or("-"),
        rates(row.rates)
    )
}

fn device(row: &DeviceRow, room: usize) -> String {
    format!(
        "{} {:<5} {:<7} {:>5} {:>6}{}",
        left(&row.dev, room),
        row.state,
        row.xdp,
        row.ports,
        row.leases,
        rates(row.rates)
    )
}

fn user(row: &UserRow, room: usize) -> String {
    format!(
        "{} {:>7} {:>6}{}",
        left(&row.user, room),
        row.clients,
        row.leases,
        rates(row.rates)
    )
}

/// A table: its titles and its rows.
pub(super) struct Table {
    pub(super) titles: String,
    pub(super) rows: Vec<String>,
}

/// Returns the tables of devices, clients and users, of this width. Rates stand below rates.
pub(super) fn table_of_each(rows: &Rows, view: &View, width: u16) -> [Table; 3] {
    let rates: usize = RATES.iter().map(|(_, width)| width).sum();
    let room = usize::from(width.clamp(LEAST.0, 120)) - rates;
    // What is left of each line for its longest name.
    let [dev, names, name] = [27, 28, 15].map(|others| room.saturating_sub(others).max(4));
    let names = Names::of(names);
    let devices = Table {
        titles: format!(
            "{} STATE XDP     PORTS LEASES{}",
            left("DEV", dev),
            rate_titles()
        ),
        rows: rows
            .devices
            .iter()
            .flatten()
            .map(|row| device(row, dev))
            .collect(),
    };
    let clients = Table {
        titles: client_titles(names),
        rows: view
            .arrange(&rows.clients)
            .iter()
            .map(|row| client(row, names))
            .collect(),
    };
    let users = Table {
        titles: format!("{} CLIENTS LEASES{}", left("USER", name), rate_titles()),
        rows: rows.users.iter().map(|row| user(row, name)).collect(),
    };
    [devices, clients, users]
}

/// Returns all tables as lines.
pub(super) fn tables(rows: &Rows, view: &View, width: u16) -> Vec<String> {
    let tables = table_of_each(rows, view, width).into_iter();
    let with_gaps = tables.enumerate().flat_map(|(at, table)| {
        let gap = (at > 0).then(String::new);
        gap.into_iter().chain([table.titles]).chain(table.rows)
    });
    with_gaps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_five_characters() {
        for (number, expected) in [
            (0, "0"),
            (9_999, "9999"),
            (10_000, "10.0k"),
            (99_999, "99.9k"),
            (100_000, "100k"),
            (999_999, "999k"),
            (1_000_000, "1.0M"),
            (12_345_678_901, "12.3G"),
            (u64::MAX, "18E"),
        ] {
            assert_eq!(scaled(number), expected);
        }
        let most = (0..64).map(|bit| scaled(1 << bit).len()).max();
        assert_eq!(most, Some(5));
    }

    #[test]
    fn columns_stand_below_their_titles() {
        let sums = Sums {
            tx_frames: 1,
            tx_octets: 20_000,
            rx_frames: 3,
            rx_octets: 4,
            dropped_frames: 5,
        };
        let rows = Rows {
            devices: Some(vec![DeviceRow {
                dev: "eth1".into(),
                state: "up",
                xdp: "native",
                ports: 1,
                leases: 2,
                rates: None,
            }]),
            clients: vec![ClientRow {
                port: 7,
                dev: "eth1".into(),
                user: "alice".into(),
                pid: 4242,
                program: "a\u{1b}[2Jx".into(),
                leases: 2,
                connections: Some(12),
                rates: Some(sums),
            }],
            users: vec![UserRow {
                user: "alice".into(),
                clients: 1,
                leases: 2,
                rates: Some(sums),
            }],
        };
        let expected = "\
DEV                STATE XDP     PORTS LEASES RX f/s RX B/s TX f/s TX B/s DROP/s
eth1               up    native      1      2      -      -      -      -      -

PORT DEV    USER      PID PROGRA LEASES CONNS RX f/s RX B/s TX f/s TX B/s DROP/s
   7 eth1   alice    4242 a\\u{1b      2    12      3      4      1  20.0k      5

USER                           CLIENTS LEASES RX f/s RX B/s TX f/s TX B/s DROP/s
alice                                1      2      3      4      1  20.0k      5";
        let lines = tables(&rows, &View::default(), 80);
        assert_eq!(lines.join("\n"), expected);
        for width in [80, 100, 120] {
            let lines = tables(&rows, &View::default(), width);
            let lengths: Vec<_> = lines
                .iter()
                .filter(|line| !line.is_empty())
                .map(String::len)
                .collect();
            assert!(
                lengths.iter().all(|length| *length == lengths[0]),
                "{width}: {lengths:?}"
            );
        }
    }
}
