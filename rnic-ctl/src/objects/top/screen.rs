//! The screen: draws what a thread reads of rnicd, and takes keys. The terminal is as before when
//! it ends, however it ends.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::{DefaultTerminal, try_init, try_restore};
use rnic_manager::{Administrator, AskError};

use super::connections::{Connections, Patience};
use super::model::{Rows, Sample, WHAT};
use super::text::{LEAST, Table, table_of_each};
use super::view::{Next, View};
use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::objects::access::connect;
use crate::out;

/// The clients of one look: as many as are asked at a time.
pub(super) const SOME: Patience = Patience {
    most: 16,
    within: Duration::from_millis(200),
};
/// How soon Ctrl-C is noticed at the latest.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Lines beside the rows: the head, the state, three titles, two gaps and the keys.
const OTHER_LINES: usize = 8;
const KEYS: &str = "q quit  p pause  / filter  < > sort  r reverse  arrows, PgUp, PgDn scroll";

/// Where samples come from.
pub(super) struct Source {
    pub(super) socket: Option<PathBuf>,
    pub(super) delay: Duration,
    pub(super) administrator: Option<Administrator>,
    /// What clients have said of their connections.
    pub(super) connections: Connections,
}

impl Source {
    /// Asks rnicd, on a new connection if the last one has ended.
    fn read(&mut self) -> Result<Sample, AskError> {
        let mut administrator = match self.administrator.take() {
            Some(administrator) => administrator,
            None => connect(self.socket.as_deref())?,
        };
        let known = std::mem::take(&mut self.connections);
        let sample = Sample::read(&mut administrator, known, SOME)?;
        self.connections.clone_from(&sample.connections);
        self.administrator = Some(administrator);
        Ok(sample)
    }

    /// Sends samples, or why there is none, until nobody takes them.
    fn send_all(mut self, to: &Sender<Result<Sample, AskError>>) {
        let mut due = Instant::now();
        loop {
            // After a pause of the whole process, it does not catch up.
            due = (due + self.delay).max(Instant::now());
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.send(self.read()).is_err() {
                return;
            }
        }
    }
}

/// The terminal while the screen is ours.
struct Screen(DefaultTerminal);

impl Screen {
    /// Takes over the screen. A panic of any thread gives it back, too.
    fn take() -> Outcome<Self> {
        try_init().map(Self).doing("take over the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Err(why) = try_restore() {
            out::note(format_args!(
                "rnic-ctl: cannot restore the terminal: {why}; `reset` does it"
            ));
        }
    }
}

/// Returns a number of things in words.
fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// What is on the screen.
struct Shown {
    rows: Rows,
    /// The last sample, if rnicd was there.
    last: Option<Sample>,
    /// Why there was none.
    away: Option<String>,
    view: View,
    delay: Duration,
}

impl Shown {
    /// Records a sample, or that there is none. What is paused stays as it is.
    fn update(&mut self, read: Result<Sample, AskError>) {
        match read {
            Ok(sample) => {
                self.away = None;
                if !self.view.paused {
                    self.rows = Rows::of(&sample, self.last.as_ref());
                }
                self.last = Some(sample);
            }
            Err(why) => {
                self.away = Some(format!("rnicd is away: {why}"));
                // What the next one counts may begin anew.
                self.last = None;
            }
        }
    }

    fn head(&self) -> String {
        let Rows {
            devices,
            clients,
            users,
        } = &self.rows;
        let devices = devices.as_ref().map_or_else(String::new, |devices| {
            format!("{}, ", counted(devices.len(), "device"))
        });
        let leases: u32 = clients.iter().map(|client| client.leases).sum();
        let (clients, users) = (clients.len(), users.len());
        let [clients, users, leases] = [
            (clients, "client"),
            (users, "user"),
            (leases as usize, "lease"),
        ]
        .map(|(count, what)| counted(count, what));
        let seconds = self.delay.as_secs_f64();
        format!("rnic-ctl top: {devices}{clients} of {users}, {leases}; every {seconds} s")
    }

    /// Returns the line about what is shown, and whether it is a warning.
    fn state(&self) -> (String, bool) {
        if let Some(away) = &self.away {
            return (away.clone(), true);
        }
        let View {
            sort,
            reversed,
            filter,
            writes_filter,
            paused,
            ..
        } = &self.view;
        if *writes_filter {
            return (format!("filter: {filter}_"), false);
        }
        let mut state = format!("sorted by {}", sort.title());
        if *reversed {
            state += ", reversed";
        }
        if !filter.is_empty() {
            state += &format!("; only clients with \"{filter}\"");
        }
        if *paused {
            state += "; paused";
        }
        (state, *paused)
    }

    /// Draws all of it. Returns how many clients have room.
    fn draw(&mut self, area: Rect, buffer: &mut Buffer) -> usize {
        let mut lines = Lines { area, buffer, y: 0 };
        if area.width < LEAST.0 || area.height < LEAST.1 {
            lines.put("rnic-ctl top: this terminal is too small", Style::new());
            let needed = format!(
                "{}x{}; {}x{} are needed",
                area.width, area.height, LEAST.0, LEAST.1
            );
            lines.put(&needed, Style::new());
            lines.put("q quit", Style::new());
            return 0;
        }
        let [devices, clients, users] = table_of_each(&self.rows, &self.view, area.width);
        let room = usize::from(area.height) - OTHER_LINES;
        let few = |table: &Table| table.rows.len().min((room / 4).max(1));
        let page = room - few(&devices) - few(&users);
        self.view.above = self.view.above.min(clients.rows.len().saturating_sub(page));
        lines.put(&self.head(), Modifier::BOLD.into());
        let (state, warns) = self.state();
        let style = if warns {
            Modifier::REVERSED
        } else {
            Modifier::empty()
        };
        lines.put(&state, style.into());
        lines.table(&devices, 0, few(&devices));
        lines.y += 1;
        lines.table(&clients, self.view.above, page);
        lines.y = area.height - 2 - few(&users) as u16;
        lines.table(&users, 0, few(&users));
        lines.put(KEYS, Modifier::DIM.into());
        page
    }
}

/// Lines of the screen from above.
struct Lines<'a> {
    area: Rect,
    buffer: &'a mut Buffer,
    y: u16,
}

impl Lines<'_> {
    fn put(&mut self, text: &str, style: Style) {
        if self.y < self.area.height {
            let (x, y) = (self.area.x, self.area.y + self.y);
            let width = self.area.width.into();
            self.buffer.set_stringn(x, y, text, width, style);
        }
        self.y += 1;
    }

    /// Puts the titles and some rows. The last one says how many have no room.
    fn table(&mut self, table: &Table, above: usize, room: usize) {
        self.put(&table.titles, Modifier::REVERSED.into());
        let below = table.rows.len().saturating_sub(above + room);
        for (at, row) in table.rows.iter().skip(above).take(room).enumerate() {
            match at + 1 {
                last if last == room && below > 0 => {
                    self.put(&format!("... and {} more", below + 1), Style::new());
                }
                _ => self.put(row, Style::new()),
            }
        }
    }
}

/// Shows samples until the user stops it, or they are enough.
pub(super) fn run(source: Source, first: Sample, looks: u64, interrupt: &Interrupt) -> Outcome {
    let mut shown = Shown {
        rows: Rows::of(&first, None),
        last: Some(first),
        away: None,
        view: View::default(),
        delay: source.delay,
    };
    let (sender, samples) = channel();
    let mut screen = Screen::take()?;
    thread::spawn(move || source.send_all(&sender));
    show(&mut screen, &mut shown, &samples, looks, interrupt)
}

fn show(
    screen: &mut Screen,
    shown: &mut Shown,
    samples: &Receiver<Result<Sample, AskError>>,
    looks: u64,
    interrupt: &Interrupt,
) -> Outcome {
    let (mut looked, mut page) = (0, 0);
    while looked < looks && !interrupt.is_signalled() {
        let drawn = screen.0.draw(|frame| {
            page = shown.draw(frame.area(), frame.buffer_mut());
        });
        drawn.doing("draw on the terminal")?;
        // A signal interrupts this, and is no error.
        if event::poll(PATIENCE).unwrap_or(false) {
            // What else comes is drawn next: a new size.
            if let Event::Key(key) = event::read().doing("read the keyboard")?
                && key.kind != KeyEventKind::Release
                && shown.view.key(key, page) == Next::Quit
            {
                return Ok(());
            }
        }
        match samples.try_recv() {
            Ok(read) => {
                shown.update(read);
                looked += 1;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(Failure::operation(
                    WHAT,
                    "nothing is read of rnicd any more",
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::Read;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;
    use crate::objects::top::model::ClientRow;

    fn shown(clients: u32) -> Shown {
        let client = |port| ClientRow {
            port,
            user: "alice".into(),
            program: format!("program{port}"),
            ..ClientRow::default()
        };
        Shown {
            rows: Rows {
                clients: (1..=clients).map(client).collect(),
                ..Rows::default()
            },
            last: None,
            away: None,
            view: View::default(),
            delay: Duration::from_secs(1),
        }
    }

    /// The lines of a screen, without what is blank at their ends.
    fn lines(shown: &mut Shown, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        shown.draw(area, &mut buffer);
        let line = |y| {
            let cells = (0..width).map(|x| buffer[(x, y)].symbol());
            cells.collect::<String>().trim_end().to_owned()
        };
        (0..height).map(line).collect()
    }

    #[test]
    fn what_has_no_room_is_counted_and_scrolled() {
        let mut shown = shown(10);
        let screen = lines(&mut shown, 120, 12);
        assert_eq!(
            screen[0],
            "rnic-ctl top: 10 clients of 0 users, 10 leases; every 1 s"
                .replace("10 leases", "0 leases")
        );
        assert_eq!(screen[1], "sorted by TX B/s");
        assert!(screen[2].starts_with("DEV") && screen[4].starts_with("PORT"));
        assert!(screen[5].contains(" program1 ") && screen[7].contains(" program3 "));
        assert_eq!(screen[8], "... and 7 more");
        assert!(
            screen[10].starts_with("USER") && screen[11] == KEYS,
            "{screen:#?}"
        );
        shown.view.above = 100;
        let screen = lines(&mut shown, 120, 12);
        assert_eq!(shown.view.above, 6);
        assert!(screen[5].contains(" program7 ") && screen[8].contains(" program10 "));
    }

    #[test]
    fn a_screen_that_is_too_small_says_so() {
        for (width, height) in [(79, 24), (80, 11), (1, 1), (40, 2)] {
            let screen = lines(&mut shown(3), width, height);
            assert!(
                "rnic-ctl top: this terminal is too small".starts_with(&screen[0]),
                "{screen:?}"
            );
        }
        assert!(lines(&mut shown(3), 80, 12)[5].contains("progra"));
    }

    #[test]
    fn what_the_user_wants_is_said() {
        let mut shown = shown(1);
        shown.view.filter = "ali".into();
        shown.view.reversed = true;
        shown.view.paused = true;
        let expected = "sorted by TX B/s, reversed; only clients with \"ali\"; paused";
        assert_eq!(shown.state(), (expected.to_owned(), true));
        shown.view.writes_filter = true;
        assert_eq!(shown.state(), ("filter: ali_".to_owned(), false));
        shown.update(Err(AskError::WrongAnswer));
        assert!(shown.state().0.starts_with("rnicd is away: "));
    }

    #[test]
    #[ignore = "a part of the next test, which runs it in a terminal"]
    fn panics_while_it_has_the_screen() {
        let _screen = Screen::take().unwrap();
        // Not of this thread: nothing is dropped by it.
        let panicked = thread::spawn(|| panic!("as if by mistake")).join();
        assert!(panicked.is_err());
        std::process::abort();
    }

    #[test]
    fn a_panic_is_read_on_the_screen_that_was_there_before() {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let modes = tcgetattr(&own).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO));
        let name = ptsname(&own, Vec::new()).unwrap();
        let other = OpenOptions::new()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        let part = "objects::top::screen::tests::panics_while_it_has_the_screen";
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(std::env::current_exe().unwrap());
        command.args(["--exact", part, "--ignored", "--nocapture"]);
        command.stdin(other.try_clone().unwrap());
        command
            .stdout(Stdio::from(other.try_clone().unwrap()))
            .stderr(other);
        let mut child = command.spawn().unwrap();
        // Else this process would keep the terminal open.
        drop(command);
        let (mut said, mut octets) = (Vec::new(), [0; 4096]);
        let mut terminal = File::from(own);
        // The end of the command is an error here.
        while let Ok(read @ 1..) = terminal.read(&mut octets) {
            said.extend_from_slice(&octets[..read]);
        }
        assert!(!child.wait().unwrap().success());
        let said = String::from_utf8_lossy(&said);
        let [taken, given_back, panicked] =
            ["\x1b[?1049h", "\x1b[?1049l", "as if by mistake"].map(|text| said.find(text));
        assert!(
            taken.is_some() && taken < given_back && given_back < panicked,
            "{said}"
        );
        assert_eq!(tcgetattr(&terminal).unwrap().local_modes, modes);
    }
}
