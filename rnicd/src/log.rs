//! The log, on standard error, where the journal reads it. `RUST_LOG` says how much of it there is.
//!
//! A thread of its own writes it: a reader that does not read holds up nobody but that.

use std::io::{self, Write, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};

/// Lines that wait for the reader.
const ROOM: usize = 4096;
/// How long the end of rnicd waits for the reader.
const PATIENCE: Duration = Duration::from_secs(1);

/// The way to the thread that writes.
static LOG: OnceLock<Log> = OnceLock::new();

/// What the thread is to do.
enum Task {
    Write(Vec<u8>),
    /// Say that all before was written.
    Answer(SyncSender<()>),
}

/// Where lines go: to the thread that writes, as far as there is room.
#[derive(Clone)]
struct Log {
    tasks: SyncSender<Task>,
    lost: Arc<AtomicU64>,
}

/// Writes what happens to standard error: what `RUST_LOG` asks for, or what an administrator should
/// know.
pub(crate) fn install() -> Result<(), ParseError> {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let filter = match std::env::var("RUST_LOG") {
        Ok(wanted) => filter.parse(wanted)?,
        Err(_) => filter.parse("")?,
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(false);
    // The journal has the time of each line.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init();
    } else {
        log.init();
    }
    Ok(())
}

/// Waits until what was said is written, unless nobody reads it.
pub(crate) fn flush() {
    let Some(log) = LOG.get() else { return };
    let (answer, answered) = sync_channel(1);
    if log.tasks.try_send(Task::Answer(answer)).is_ok() {
        let _ = answered.recv_timeout(PATIENCE);
    }
}

/// Returns where a line goes. The thread starts with the first one.
fn writer() -> Box<dyn Write> {
    let log = LOG.get_or_init(|| {
        let (tasks, received) = sync_channel(ROOM);
        let lost = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&lost);
        let thread = std::thread::Builder::new().name("rnicd-log".into());
        // Without it, `write` finds that nobody receives.
        let _ = thread.spawn(move || write_all(&received, &counted));
        Log { tasks, lost }
    });
    Box::new(log.clone())
}

fn write_all(tasks: &Receiver<Task>, lost: &AtomicU64) {
    for task in tasks {
        match task {
            // Who reads it may be gone.
            Task::Write(line) => drop(stderr().write_all(&line)),
            Task::Answer(answer) => drop(answer.send(())),
        }
        // Relaxed: it is a number alone.
        match lost.swap(0, Ordering::Relaxed) {
            0 => {}
            lines => drop(writeln!(
                stderr(),
                "{lines} lines are missing here: nobody read"
            )),
        }
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.tasks.try_send(Task::Write(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
