//! A command in a terminal, and what a user sees there.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

use crate::world::World;

/// A terminal with a command that runs in it.
pub(crate) struct Terminal {
    /// The terminal's own end.
    own: File,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<JoinHandle<()>>,
    child: Child,
}

impl Terminal {
    /// Starts a command in a terminal of this size.
    pub(crate) fn start(command: &Command, (columns, rows): (u16, u16)) -> Self {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let name = ptsname(&own, Vec::new()).unwrap();
        let other = || {
            let mut options = OpenOptions::new();
            let path = name.to_str().unwrap();
            Stdio::from(options.read(true).write(true).open(path).unwrap())
        };
        // What is lost when a command does not restore it.
        let mut modes = tcgetattr(&own).unwrap();
        modes.local_modes |= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(&own, OptionalActions::Now, &modes).unwrap();
        tcsetwinsize(&own, size(columns, rows)).unwrap();
        let mut child = Command::new("setsid");
        child.arg("--ctty").arg(command.get_program());
        child.args(command.get_args());
        for (key, value) in command.get_envs() {
            child.env(key, value.unwrap());
        }
        child.env("TERM", "xterm-256color").env_remove("COLUMNS");
        child.stdin(other()).stdout(other()).stderr(other());
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (own, seen) = (File::from(own), Arc::clone(&screen));
        let mut said = own.try_clone().unwrap();
        let child = child.spawn().unwrap();
        let reader = thread::spawn(move || {
            let mut octets = [0; 4096];
            // The end of the command is an error here.
            while let Ok(read @ 1..) = said.read(&mut octets) {
                seen.lock().unwrap().process(&octets[..read]);
            }
        });
        Self {
            own,
            screen,
            reader: Some(reader),
            child,
        }
    }

    /// The lines that are seen.
    pub(crate) fn lines(&self) -> Vec<String> {
        let screen = self.screen.lock().unwrap();
        let contents = screen.screen().contents();
        contents.lines().map(str::to_owned).collect()
    }

    /// Waits for a line that has all these words.
    pub(crate) fn until(&self, world: &World, words: &[&str]) -> String {
        world.until(&format!("{words:?} on the screen"), || {
            let mut lines = self.lines().into_iter();
            lines.find(|line| words.iter().all(|word| line.contains(word)))
        })
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.own.write_all(keys.as_bytes()).unwrap();
    }

    /// Changes its size.
    pub(crate) fn resize(&mut self, columns: u16, rows: u16) {
        self.screen
            .lock()
            .unwrap()
            .screen_mut()
            .set_size(rows, columns);
        tcsetwinsize(&self.own, size(columns, rows)).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of the command. The terminal must be as before; returns what is seen then.
    pub(crate) fn end(mut self, world: &World) -> (ExitStatus, String) {
        let status = world.until("the command ends", || self.child.try_wait().unwrap());
        self.reader.take().unwrap().join().unwrap();
        let modes = tcgetattr(&self.own).unwrap().local_modes;
        for mode in [LocalModes::ICANON, LocalModes::ECHO, LocalModes::ISIG] {
            assert!(modes.contains(mode), "{modes:?}");
        }
        let screen = self.screen.lock().unwrap();
        let screen = screen.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor());
        (status, screen.contents())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
