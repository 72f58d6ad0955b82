//! `rnic-ctl capture`: the frames that pass the kernel by, for Wireshark.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write, stdout};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rnic_manager::PoliceVerdict;
use rnic_manager::channel::default_socket;
use rnic_xdp::capture::{Capture, CaptureError, Direction, Frame, Lost};
use serde_json::json;

// From the ground up: args, pcapng, interfaces, keys < this
mod args;
mod interfaces;
mod keys;
mod pcapng;

pub(crate) use args::CaptureArgs;

use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::out;
use interfaces::{DEVICE, Interfaces, name};
use keys::KeyFile;
use pcapng::{Packet, Pcapng};

/// How long a frame may wait before it is written: it is what a live view lags behind.
const PATIENCE: Duration = Duration::from_millis(100);

/// Runs the command.
pub(crate) fn run(args: &CaptureArgs, json: bool, interrupt: &Interrupt) -> Outcome {
    let is_stdout = args.file.as_os_str() == "-";
    check(args, json, is_stdout)?;
    let ring = args.buffer_size as usize * 1024 * 1024;
    let mut capture = Capture::open(&args.netdev, &args.wanted(), ring)
        .map_err(|error| failed(&args.netdev, &error))?;
    // Ahead of the file of frames, which is begun anew.
    let keys = args.keys.as_deref();
    let mut keys = keys
        .map(|path| KeyFile::create(path, args.ipsec_if_id))
        .transpose()?;
    let mut output = Output::open(args).inspect_err(|_| {
        if let Some(keys) = &keys {
            keys.remove();
        }
    })?;
    note_gaps(&mut capture);
    if !json {
        out::note(format_args!("capturing on {}", args.netdev));
    }
    let deadline = args.autostop.map(|duration| Instant::now() + duration);
    let is_over = |output: &Output| {
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        late || output.is_full() || interrupt.is_signalled()
    };
    while !is_over(&output) {
        let left = deadline.map_or(PATIENCE, |deadline| deadline - Instant::now().min(deadline));
        let frames = capture.next(left.min(PATIENCE));
        output.write(&frames.map_err(|error| failed(&args.netdev, &error))?)?;
        note_gaps(&mut capture);
        if let Some(keys) = &mut keys {
            keys.look_now_and_then();
        }
    }
    let rest = capture
        .finish()
        .and_then(|rest| Ok((rest, capture.lost()?)));
    let (rest, lost) = rest.map_err(|error| failed(&args.netdev, &error))?;
    output.write(&rest)?;
    let captured = output.finish(lost)?;
    let has_keys = keys.map_or(Ok(()), |keys| keys.finish(json));
    report(json, captured, lost)?;
    has_keys
}

/// Checks what does not fit together, and who asks.
fn check(args: &CaptureArgs, json: bool, is_stdout: bool) -> Outcome {
    let what = "capture to standard output";
    if is_stdout && json {
        return Err(Failure::usage(what, "-j writes there too; name a file"));
    }
    if is_stdout && stdout().is_terminal() {
        let why =
            "it is a terminal; `-w FILE` writes a file, `| wireshark -k -i -` shows the frames";
        return Err(Failure::usage(what, why));
    }
    if !nix::unistd::geteuid().is_root() {
        let what = format!("capture on {}", args.netdev);
        return Err(Failure::environment(
            what,
            "it takes root: frames of all users are shown",
        ));
    }
    Ok(())
}

fn failed(netdev: &str, error: &CaptureError) -> Failure {
    let what = format!("capture on {netdev}");
    match error {
        CaptureError::NoSuchDevice(_) | CaptureError::NotPermitted(_) => {
            Failure::environment(what, error)
        }
        _ => Failure::operation(what, error),
    }
}

fn note_gaps(capture: &mut Capture) {
    for gap in capture.gaps() {
        out::note(format_args!("rnic-ctl: {gap}"));
    }
}

/// Reports how many frames were captured and lost.
fn report(json: bool, captured: u64, lost: Lost) -> Outcome {
    if json {
        let lost = json!({ "ring_full": lost.full, "unreadable": lost.unreadable });
        return out::line(json!({ "frames": captured, "lost": lost }));
    }
    let mut why = Vec::new();
    if lost.full > 0 {
        why.push(format!(
            "{}: ring buffer full, -B MIB makes it larger",
            lost.full
        ));
    }
    if lost.unreadable > 0 {
        why.push(format!(
            "{}: the kernel could not copy them",
            lost.unreadable
        ));
    }
    let why = match why.is_empty() {
        true => String::new(),
        false => format!(" ({})", why.join("; ")),
    };
    let all = lost.full + lost.unreadable;
    out::note(format_args!("{captured} frames captured, {all} lost{why}"));
    Ok(())
}

/// The file.
struct Output<'a> {
    args: &'a CaptureArgs,
    pcapng: Pcapng<BufWriter<Box<dyn Write>>>,
    interfaces: Interfaces,
    captured: u64,
}

impl<'a> Output<'a> {
    fn open(args: &'a CaptureArgs) -> Outcome<Self> {
        let begin = || -> io::Result<_> {
            let file: Box<dyn Write> = match args.file.as_os_str() == "-" {
                true => Box::new(stdout()),
                false => Box::new(File::create(&args.file)?),
            };
            let application = concat!("rnic-ctl ", env!("CARGO_PKG_VERSION"));
            let mut pcapng = Pcapng::new(BufWriter::new(file), application)?;
            pcapng.interface(&args.netdev, args.snapshot_length)?;
            // Wireshark waits for it.
            pcapng.flush()?;
            Ok(pcapng)
        };
        Ok(Self {
            pcapng: begin().map_err(|error| not_written(&args.file, &error))?,
            args,
            interfaces: Interfaces::new(),
            captured: 0,
        })
    }

    /// Returns whether it has as many frames as were asked for.
    fn is_full(&self) -> bool {
        self.args.count.is_some_and(|count| self.captured >= count)
    }

    /// Writes frames, as many as were asked for.
    fn write(&mut self, frames: &[Frame]) -> Outcome {
        for frame in frames {
            if self.is_full() {
                break;
            }
            self.frame(frame)
                .map_err(|error| not_written(&self.args.file, &error))?;
            self.captured += 1;
        }
        let flushed = self.pcapng.flush();
        flushed.map_err(|error| not_written(&self.args.file, &error))
    }

    fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        let (interface, is_new) = self.interfaces.count(frame.port);
        if let Some(port) = frame.port.filter(|_| is_new) {
            let rnicd = self.args.socket.clone().unwrap_or_else(default_socket);
            let name = name(&self.args.netdev, port, &rnicd);
            self.pcapng.interface(&name, self.args.snapshot_length)?;
        }
        self.pcapng.packet(&Packet {
            interface,
            time: frame.time,
            inbound: frame.direction == Direction::Received,
            action: frame.action,
            comment: comment(frame).as_deref(),
            len: frame.len,
            octets: &frame.octets,
        })
    }

    /// Ends the file. Returns how many frames it has.
    fn finish(mut self, lost: Lost) -> Outcome<u64> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        let lost = lost.full + lost.unreadable;
        let mut write = || -> io::Result<()> {
            for (interface, frames) in self.interfaces.frames() {
                // Nobody knows whose the lost frames were.
                let lost = if interface == DEVICE { lost } else { 0 };
                self.pcapng
                    .statistics(interface, now, frames + lost, lost)?;
            }
            self.pcapng.flush()
        };
        write().map_err(|error| not_written(&self.args.file, &error))?;
        Ok(self.captured)
    }
}

/// Returns what became of a client's frame, unless it went to the network.
fn comment(frame: &Frame) -> Option<String> {
    match (frame.verdict?, frame.to_port) {
        (PoliceVerdict::ToNic, _) => None,
        (PoliceVerdict::ToPort, Some(port)) => Some(format!("to port {port} of this host")),
        (PoliceVerdict::ToPort, None) => Some("to another port of this host".to_string()),
        (verdict, _) => Some(format!("dropped: {}", verdict.name())),
    }
}

fn not_written(file: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::closed_pipe(),
        _ => Failure::operation(format_args!("write {}", file.display()), error),
    }
}
