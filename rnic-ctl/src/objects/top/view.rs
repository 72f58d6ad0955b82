//! What the user wants to see: which clients, in which order, and whether the screen stands still.

use std::cmp::Ordering;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::ClientRow;
use crate::objects::rates::Sums;

/// The most characters of a filter.
const MAX_FILTER: usize = 40;

/// A column of the clients to sort by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Column {
    Port,
    Dev,
    User,
    Pid,
    Program,
    Leases,
    Connections,
    RxFrames,
    RxOctets,
    TxFrames,
    #[default]
    TxOctets,
    Dropped,
}

impl Column {
    /// From left to right.
    const ALL: [Self; 12] = [
        Self::Port,
        Self::Dev,
        Self::User,
        Self::Pid,
        Self::Program,
        Self::Leases,
        Self::Connections,
        Self::RxFrames,
        Self::RxOctets,
        Self::TxFrames,
        Self::TxOctets,
        Self::Dropped,
    ];

    /// Returns its title.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Port => "PORT",
            Self::Dev => "DEV",
            Self::User => "USER",
            Self::Pid => "PID",
            Self::Program => "PROGRAM",
            Self::Leases => "LEASES",
            Self::Connections => "CONNS",
            Self::RxFrames => "RX f/s",
            Self::RxOctets => "RX B/s",
            Self::TxFrames => "TX f/s",
            Self::TxOctets => "TX B/s",
            Self::Dropped => "DROP/s",
        }
    }

    fn compare(self, one: &ClientRow, other: &ClientRow) -> Ordering {
        let rate = |of: fn(Sums) -> u64| {
            // The most active first.
            let [one, other] = [one, other].map(|row| row.rates.map_or(0, of));
            other.cmp(&one)
        };
        match self {
            Self::Port => one.port.cmp(&other.port),
            Self::Dev => one.dev.cmp(&other.dev),
            Self::User => one.user.cmp(&other.user),
            Self::Pid => one.pid.cmp(&other.pid),
            Self::Program => one.program.cmp(&other.program),
            Self::Leases => other.leases.cmp(&one.leases),
            Self::Connections => other.connections.cmp(&one.connections),
            Self::RxFrames => rate(|rates| rates.rx_frames),
            Self::RxOctets => rate(|rates| rates.rx_octets),
            Self::TxFrames => rate(|rates| rates.tx_frames),
            Self::TxOctets => rate(|rates| rates.tx_octets),
            Self::Dropped => rate(|rates| rates.dropped_frames),
        }
    }
}

/// What to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Draw anew.
    Draw,
    /// End.
    Quit,
}

/// What the user wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) sort: Column,
    pub(super) reversed: bool,
    /// Part of what is shown of a client, in any case of letters.
    pub(super) filter: String,
    /// Whether the filter is being written.
    pub(super) writes_filter: bool,
    pub(super) paused: bool,
    /// Clients above the first one that is shown.
    pub(super) above: usize,
}

impl View {
    /// Handles a key; `page`: how many clients are shown.
    pub(super) fn key(&mut self, key: KeyEvent, page: usize) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Next::Quit,
                _ => Next::Draw,
            };
        }
        if self.writes_filter {
            self.write_filter(key.code);
            return Next::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('/') => self.writes_filter = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('<') | KeyCode::Left => self.sort_by_next(Column::ALL.len() - 1),
            KeyCode::Char('>') | KeyCode::Right => self.sort_by_next(1),
            KeyCode::Up => self.above = self.above.saturating_sub(1),
            KeyCode::Down => self.above = self.above.saturating_add(1),
            KeyCode::PageUp => self.above = self.above.saturating_sub(page),
            KeyCode::PageDown => self.above = self.above.saturating_add(page),
            KeyCode::Home => self.above = 0,
            _ => {}
        }
        Next::Draw
    }

    fn write_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.writes_filter = false,
            KeyCode::Esc => {
                self.writes_filter = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(' '..='~') if self.filter.len() >= MAX_FILTER => {}
            KeyCode::Char(char @ ' '..='~') => self.filter.push(char),
            _ => {}
        }
        self.above = 0;
    }

    fn sort_by_next(&mut self, steps: usize) {
        let now = Column::ALL.iter().position(|column| *column == self.sort);
        let next = (now.unwrap_or(0) + steps) % Column::ALL.len();
        self.sort = Column::ALL[next];
    }

    /// Returns the clients that are to be seen, in order.
    pub(super) fn arrange<'a>(&self, clients: &'a [ClientRow]) -> Vec<&'a ClientRow> {
        let mut seen: Vec<_> = clients.iter().filter(|row| self.matches(row)).collect();
        seen.sort_by(|one, other| {
            let order = self.sort.compare(one, other);
            let order = if self.reversed {
                order.reverse()
            } else {
                order
            };
            order.then(one.port.cmp(&other.port))
        });
        seen
    }

    fn matches(&self, row: &ClientRow) -> bool {
        let filter = self.filter.to_lowercase();
        let (port, pid) = (row.port.to_string(), row.pid.to_string());
        let shown = [&port, &row.dev, &row.user, &pid, &row.program];
        shown
            .iter()
            .any(|text| text.to_lowercase().contains(&filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(port: u32, user: &str, program: &str, tx_octets: u64) -> ClientRow {
        let rates = Some(Sums {
            tx_octets,
            rx_octets: 1000 - tx_octets,
            ..Sums::default()
        });
        ClientRow {
            port,
            user: user.into(),
            program: program.into(),
            rates,
            ..ClientRow::default()
        }
    }

    fn clients() -> [ClientRow; 3] {
        [
            row(1, "alice", "rping", 5),
            row(2, "bob", "Perf", 9),
            row(3, "alice", "perf", 5),
        ]
    }

    fn shown(view: &View) -> Vec<u32> {
        view.arrange(&clients())
            .iter()
            .map(|row| row.port)
            .collect()
    }

    fn press(view: &mut View, codes: impl IntoIterator<Item = KeyCode>) {
        for code in codes {
            assert_eq!(view.key(code.into(), 10), Next::Draw);
        }
    }

    fn written(text: &str) -> impl Iterator<Item = KeyCode> {
        text.chars().map(KeyCode::Char)
    }

    #[test]
    fn the_most_active_come_first_and_equals_by_number() {
        let mut view = View::default();
        assert_eq!(shown(&view), [2, 1, 3]);
        press(&mut view, written("r"));
        assert_eq!(shown(&view), [1, 3, 2]);
        press(&mut view, written("r<<"));
        assert_eq!(view.sort, Column::RxOctets);
        assert_eq!(shown(&view), [1, 3, 2]);
        for (steps, column, order) in [
            (2, Column::Connections, [1, 2, 3]),
            (2, Column::Program, [2, 3, 1]),
            (2, Column::User, [1, 3, 2]),
            (2, Column::Port, [1, 2, 3]),
        ] {
            press(&mut view, "<".repeat(steps).chars().map(KeyCode::Char));
            assert_eq!((view.sort, shown(&view)), (column, order.to_vec()));
        }
        press(&mut view, written("<"));
        assert_eq!(view.sort, Column::Dropped);
        press(&mut view, [KeyCode::Right]);
        assert_eq!(view.sort, Column::Port);
    }

    #[test]
    fn a_filter_is_kept_or_dropped() {
        let mut view = View::default();
        press(&mut view, written("/PERFq"));
        assert_eq!(shown(&view), [0; 0]);
        press(&mut view, [KeyCode::Backspace, KeyCode::Enter]);
        assert_eq!(shown(&view), [2, 3]);
        assert!(!view.writes_filter);
        press(&mut view, [KeyCode::Esc]);
        assert_eq!(shown(&view).len(), 3);
        press(&mut view, written("/bob"));
        assert_eq!(shown(&view), [2]);
        press(&mut view, [KeyCode::Esc]);
        assert_eq!((shown(&view).len(), view.writes_filter), (3, false));
        press(&mut view, written("/"));
        press(&mut view, written(&"x".repeat(100)));
        assert_eq!(view.filter.len(), MAX_FILTER);
    }

    #[test]
    fn q_and_ctrl_c_end_it() {
        let mut view = View::default();
        assert_eq!(view.key(KeyCode::Char('q').into(), 1), Next::Quit);
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        view.writes_filter = true;
        assert_eq!(view.key(KeyCode::Char('q').into(), 1), Next::Draw);
        assert_eq!(view.key(ctrl_c, 1), Next::Quit);
    }

    #[test]
    fn it_pauses_and_scrolls() {
        let mut view = View::default();
        press(&mut view, written("p"));
        assert!(view.paused);
        press(&mut view, written(" "));
        assert!(!view.paused);
        press(&mut view, [KeyCode::Up, KeyCode::Down, KeyCode::PageDown]);
        assert_eq!(view.above, 11);
        press(&mut view, [KeyCode::PageUp, KeyCode::PageUp]);
        assert_eq!(view.above, 0);
    }
}
