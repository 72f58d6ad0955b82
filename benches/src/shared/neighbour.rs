//! Who uses the same device beside a victim: nobody, another honest client, or an attacker.

use std::time::{Duration, SystemTime};

use rnic_verbs::Device;

use super::crowd::{Crowd, go, ready, start};
use super::peer::Peer;
use super::process::Process;
use super::quota::Quota;
use crate::bed::Bed;
use crate::failure::Failure;
use crate::rnicd::{SLOW_USER, command_in};

/// The attacker of rnicd's tests, which has none of rnic's code.
const SCRIPT: [&str; 2] = [
    include_str!("../../../rnicd/tests/sharing/rings.py"),
    include_str!("../../../rnicd/tests/sharing/script.py"),
];
/// A user without rights, and the group that may connect to rnicd.
const USER: u32 = 65532;
const GROUP: u32 = 65534;
/// Longer than any measurement beside it.
const FOREVER: Duration = Duration::from_secs(3600);

/// Of one processor's time.
pub(crate) const HUNDREDTHS: u32 = 20;

/// What a neighbour does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conduct {
    /// There is none.
    Absent,
    /// It writes to the same peer as fast as it can.
    Honest,
    /// It sends frames that police drops, as fast as the kernel takes them.
    Forged,
    /// It sends frames that police lets out, as fast as the kernel takes them.
    Valid,
    /// The same, with a `rate`.
    Limited,
    /// The same, with a CPU quota of [`HUNDREDTHS`] in place of a rate.
    Rationed,
    /// It leases and releases TCP ports.
    Leases,
    /// It sends garbage and parts of messages to rnicd.
    Garbage,
}

impl Conduct {
    /// Returns whether it counts what it sends.
    pub(crate) fn counts(self) -> bool {
        !matches!(self, Self::Absent | Self::Honest)
    }

    /// Returns what the attacker is told.
    fn order(self, bed: &Bed) -> String {
        let (own, peer) = (bed.client.mac, bed.server.mac);
        match self {
            Self::Absent | Self::Honest => String::new(),
            Self::Forged => format!("deluge forged {own} {peer}"),
            Self::Valid | Self::Limited | Self::Rationed => format!("deluge valid {own} {peer}"),
            Self::Leases => "leases_on".to_owned(),
            Self::Garbage => "garbage_on".to_owned(),
        }
    }

    fn user(self) -> u32 {
        match self {
            Self::Limited => SLOW_USER,
            _ => USER,
        }
    }
}

/// A neighbour at work. It ends when this is dropped.
pub(super) struct Neighbour {
    process: Option<Process>,
    /// The other end of an honest one.
    peer: Option<Peer>,
    _quota: Option<Quota>,
}

impl Neighbour {
    /// Starts one on a processor, and returns when it is at work. `device` is the peer's.
    pub(super) fn start(
        bed: &Bed,
        conduct: Conduct,
        processor: usize,
        device: &Device,
    ) -> Result<Self, Failure> {
        match conduct {
            Conduct::Absent => Ok(Self {
                process: None,
                peer: None,
                _quota: None,
            }),
            Conduct::Honest => Self::honest(bed, processor, device),
            _ => Self::hostile(bed, conduct, processor, device),
        }
    }

    fn honest(bed: &Bed, processor: usize, device: &Device) -> Result<Self, Failure> {
        let one = Crowd {
            processes: 1,
            ports: 1,
            connections: 1,
        };
        let mut peer = Peer::listen(&bed.server, device)?;
        let mut process = start(bed, one, processor)?;
        ready(&mut process, || peer.turn())?;
        go(&mut process, SystemTime::now(), FOREVER)?;
        Ok(Self {
            process: Some(process),
            peer: Some(peer),
            _quota: None,
        })
    }

    fn hostile(
        bed: &Bed,
        conduct: Conduct,
        processor: usize,
        device: &Device,
    ) -> Result<Self, Failure> {
        let mut process = attacker(bed, conduct.user(), processor)?;
        let quota = match conduct {
            Conduct::Rationed => Some(Quota::give(process.id(), HUNDREDTHS)?),
            _ => None,
        };
        process.tell(&conduct.order(bed))?;
        let began = process.answer(|| {
            device.drive();
            Ok(())
        })?;
        if began != "> ok begun" {
            return Err(format!("the attacker says {began:?}").into());
        }
        Ok(Self {
            process: Some(process),
            peer: None,
            _quota: quota,
        })
    }

    /// Ends it. Fails if it has not been at work until now. Returns how much an attacker has sent.
    pub(super) fn end(self) -> Result<Option<u64>, Failure> {
        let Some(mut process) = self.process else {
            return Ok(None);
        };
        if let Some(said) = process.said()? {
            return Err(format!("the neighbour has ended: {said}").into());
        }
        if self.peer.is_some() {
            return Ok(None);
        }
        process.tell("end")?;
        let answer = process.answer(|| Ok(()))?;
        let last = answer
            .strip_prefix("> ok ")
            .and_then(|rest| rest.rsplit(' ').next());
        let sent = last.and_then(|word| word.parse().ok());
        sent.map(Some)
            .ok_or_else(|| format!("the attacker says {answer:?}").into())
    }
}

/// Starts an attacker, without any right.
fn attacker(bed: &Bed, user: u32, processor: usize) -> Result<Process, Failure> {
    let mut command = command_in(bed.client.namespace());
    command
        .args(["--reuid", &user.to_string(), "--regid", &GROUP.to_string()])
        .args(["--clear-groups", "--bounding-set=-all", "--no-new-privs"])
        .args(["taskset", "-c", &processor.to_string()])
        .args(["prlimit", "--memlock=8388608:8388608"])
        .args(["python3", "-c", &SCRIPT.concat()])
        .env("NETDEV", bed.client.netdev)
        .env("NEAR", bed.client.address.to_string())
        .env("FAR", bed.server.address.to_string());
    if let Some(socket) = &bed.client.manager {
        command.env("RNICD_SOCKET", socket);
    }
    Process::start(command)
}
