//! What an administrator asks of rnicd.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::channel::{ChannelError, administration_socket, io_error, observation_socket};
use crate::dialogue::{Dialogue, program};
use crate::inspected::{self, ALL_TOGETHER, INSPECTIONS, Inspected, InspectionEnd};
use crate::protocol::{Answer, Ask, Change, FromDaemon, Notice, Reason, Refused, Show};
use crate::states::{
    AssociationState, DaemonState, DeviceState, Event, LeaseState, Page, PortState, UsageState,
    UserState,
};

/// The most pages of a list: more than the leases of all TCP ports of many addresses take. rnicd
/// repeats itself if there are more.
const MAX_PAGES: usize = 4096;

/// Why rnicd did not do what an administrator asked for.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// rnicd cannot be reached, or not any more.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// It refuses.
    #[error("{}", .0.message)]
    Refused(Refused),
    /// It gave an answer to something else.
    #[error("rnicd gave a wrong answer; upgrade the older one of rnicd and this program")]
    WrongAnswer,
}

/// An event, and when it happened: milliseconds since 1970-01-01 UTC.
pub type TimedEvent = (u64, Event);

/// A connection to rnicd that holds nothing there. Administrators may ask for all of this,
/// observers may see all; other users see their own ports and leases.
pub struct Administrator {
    dialogue: Dialogue,
    /// Events that came ahead of an answer.
    events: VecDeque<TimedEvent>,
}

impl Administrator {
    /// Connects to the rnicd that listens for clients at a path: as an administrator if this
    /// process may, else as an observer, else as any client.
    pub fn connect(clients: &Path) -> Result<Self, AskError> {
        for path in [administration_socket(clients), observation_socket(clients)] {
            match Self::connect_at(&path) {
                // That this process may not, or that there is none: the directory may be hidden, or
                // rnicd an older one.
                Err(AskError::Channel(
                    ChannelError::NoDaemon { .. }
                    | ChannelError::NotPermitted { .. }
                    | ChannelError::Path { .. },
                )) => {}
                Err(AskError::Refused(refused)) if refused.reason == Reason::NotPermitted => {}
                connected => return connected,
            }
        }
        Self::connect_at(clients)
    }

    fn connect_at(path: &Path) -> Result<Self, AskError> {
        let (dialogue, welcome) = Dialogue::connect(path, &program())?;
        let events = VecDeque::new();
        match welcome {
            Answer::Welcome { .. } => Ok(Self { dialogue, events }),
            Answer::Refused(refused) => Err(AskError::Refused(refused)),
            _ => Err(AskError::WrongAnswer),
        }
    }

    /// Returns the devices that rnicd shares, by name.
    pub fn devices(&mut self) -> Result<Vec<DeviceState>, AskError> {
        let show = |last: Option<&DeviceState>| Show::Devices {
            after: last.map(|device| device.netdev.clone()),
        };
        self.all(show, |answer| match answer {
            Answer::Devices(page) => Some(page),
            _ => None,
        })
    }

    /// Returns the ports that have not ended, by number.
    pub fn ports(&mut self) -> Result<Vec<PortState>, AskError> {
        let mut ports = self.all_ports()?;
        ports.retain(|port| !port.ending);
        Ok(ports)
    }

    /// Returns the ports, by number, those included that have ended while somebody still has their
    /// sockets.
    pub fn all_ports(&mut self) -> Result<Vec<PortState>, AskError> {
        let show = |last: Option<&PortState>| Show::Ports {
            after: last.map(|port| port.port),
        };
        self.all(show, |answer| match answer {
            Answer::Ports(page) => Some(page),
            _ => None,
        })
    }

    /// Returns the leases, by port and address.
    pub fn leases(&mut self) -> Result<Vec<LeaseState>, AskError> {
        let show = |last: Option<&LeaseState>| Show::Leases {
            after: last.map(|lease| (lease.port, lease.local)),
        };
        self.all(show, |answer| match answer {
            Answer::Leases(page) => Some(page),
            _ => None,
        })
    }

    /// Returns the associations whose keys ports have, by port, receiver and SPI.
    pub fn associations(&mut self) -> Result<Vec<AssociationState>, AskError> {
        let show = |last: Option<&AssociationState>| Show::Associations {
            after: last.map(|last| (last.port, last.destination, last.spi)),
        };
        self.all(show, |answer| match answer {
            Answer::Associations(page) => Some(page),
            _ => None,
        })
    }

    /// Returns the users that have ports or are connected, by number.
    pub fn users(&mut self) -> Result<Vec<UserState>, AskError> {
        let show = |last: Option<&UserState>| Show::Users {
            after: last.map(|user| user.uid),
        };
        self.all(show, |answer| match answer {
            Answer::Users(page) => Some(page),
            _ => None,
        })
    }

    /// Returns what users have sent and received, by device and user.
    pub fn usage(&mut self) -> Result<Vec<UsageState>, AskError> {
        let show = |last: Option<&UsageState>| Show::Usage {
            after: last.map(|usage| (usage.netdev.clone(), usage.uid)),
        };
        self.all(show, |answer| match answer {
            Answer::Usage(page) => Some(page),
            _ => None,
        })
    }

    /// Returns what rnicd says of itself.
    pub fn daemon(&mut self) -> Result<DaemonState, AskError> {
        match self.ask(Ask::Show(Show::Daemon))? {
            Answer::Daemon(daemon) => Ok(daemon),
            _ => Err(AskError::WrongAnswer),
        }
    }

    /// Ends a port. When this returns, nothing is sent or received there any more.
    pub fn end_port(&mut self, port: u32) -> Result<(), AskError> {
        self.done(Ask::EndPort { port })
    }

    /// Ends a lease. When this returns, nothing is steered there and nothing is sent from there any
    /// more.
    pub fn revoke(&mut self, port: u32, local: SocketAddr) -> Result<(), AskError> {
        self.done(Ask::Revoke { port, local })
    }

    /// Shares a device. When this returns, clients can have ports of it.
    pub fn add_device(&mut self, netdev: &str, changes: Vec<Change>) -> Result<(), AskError> {
        let netdev = netdev.to_owned();
        self.done(Ask::AddDevice { netdev, changes })
    }

    /// Shares a device no more. Without `force` it must have no ports.
    pub fn remove_device(&mut self, netdev: &str, force: bool) -> Result<(), AskError> {
        let netdev = netdev.to_owned();
        self.done(Ask::RemoveDevice { netdev, force })
    }

    /// Changes how a device is shared. Without `force` it must have no ports if the change would
    /// end them.
    pub fn set_device(
        &mut self,
        netdev: &str,
        changes: Vec<Change>,
        force: bool,
    ) -> Result<(), AskError> {
        let netdev = netdev.to_owned();
        self.done(Ask::SetDevice {
            netdev,
            changes,
            force,
        })
    }

    /// Changes what a user, by name or number, may have.
    pub fn set_user(&mut self, user: &str, changes: Vec<Change>) -> Result<(), AskError> {
        let user = user.to_owned();
        self.done(Ask::SetUser { user, changes })
    }

    /// Reverts all that [`set_user`](Self::set_user) has changed for a user.
    pub fn reset_user(&mut self, user: &str) -> Result<(), AskError> {
        let user = user.to_owned();
        self.done(Ask::ResetUser { user })
    }

    /// Asks for the events from now on.
    pub fn monitor(&mut self) -> Result<(), AskError> {
        self.done(Ask::Monitor)
    }

    /// Asks the clients of ports what they say of themselves, some at a time, and passes on what
    /// these say, by number of the port, until `each` wants no more. A client is waited for as long
    /// as stated (a minute at most), and all together eight times as long. What they say is theirs,
    /// and may be anything.
    pub fn inspect(
        &mut self,
        ports: &[u32],
        what: &str,
        within: Duration,
        mut each: impl FnMut(&mut Self, Vec<(u32, Inspected)>) -> bool,
    ) -> Result<(), AskError> {
        let until = Instant::now() + ALL_TOGETHER * within;
        let mut ports = ports.to_vec();
        ports.sort_unstable();
        for ports in ports.chunks(INSPECTIONS) {
            let within = within.min(until.saturating_duration_since(Instant::now()));
            let some = self.inspect_some(ports, what, within)?;
            if !each(self, some) {
                break;
            }
        }
        Ok(())
    }

    fn inspect_some(
        &mut self,
        ports: &[u32],
        what: &str,
        within: Duration,
    ) -> Result<Vec<(u32, Inspected)>, AskError> {
        if within.is_zero() {
            let ports = ports.iter();
            return Ok(ports.map(|&port| (port, Inspected::not_asked())).collect());
        }
        let (mut all, mut asked, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
        for &port in ports {
            match self.ask_for_socket(port, what, within) {
                Ok(socket) => {
                    asked.push(port);
                    sockets.push(socket);
                }
                // An rnicd that knows no inspections.
                Err(AskError::Refused(refused)) if refused.reason != Reason::Malformed => {
                    let refused = InspectionEnd::Refused(refused);
                    all.push((port, Inspected::silent(refused)));
                }
                Err(error) => return Err(error),
            }
        }
        all.extend(asked.into_iter().zip(inspected::read(sockets, within)));
        all.sort_by_key(|&(port, _)| port);
        Ok(all)
    }

    fn ask_for_socket(
        &mut self,
        port: u32,
        what: &str,
        within: Duration,
    ) -> Result<OwnedFd, AskError> {
        let ask = Ask::Inspect {
            port,
            what: what.to_owned(),
            within: within.as_millis().try_into().unwrap_or(u32::MAX).max(1),
        };
        match self.ask_for(ask)? {
            (Answer::Inspecting, sockets) => {
                sockets.into_iter().next().ok_or(AskError::WrongAnswer)
            }
            _ => Err(AskError::WrongAnswer),
        }
    }

    /// Waits for the next event after [`monitor`](Self::monitor), as long as stated or until a
    /// signal comes.
    pub fn next_event(&mut self, within: Duration) -> Result<Option<TimedEvent>, AskError> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let channel = &self.dialogue.channel;
        let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut fds, Some(TimeSpec::from_duration(within)), None) {
            Ok(0) | Err(Errno::EINTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(io_error("wait for rnicd", error).into()),
        }
        match channel.receive() {
            Ok((FromDaemon::Notice(Notice::Event { at, event }), _)) => Ok(Some((at, event))),
            // What a newer rnicd says, and this version does not know.
            Ok(_) | Err(ChannelError::Decode(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn ask(&mut self, ask: Ask) -> Result<Answer, AskError> {
        Ok(self.ask_for(ask)?.0)
    }

    /// Asks for an answer with its descriptors.
    fn ask_for(&mut self, ask: Ask) -> Result<(Answer, Vec<OwnedFd>), AskError> {
        let Self { dialogue, events } = self;
        let keep = |notice| {
            if let Notice::Event { at, event } = notice {
                events.push_back((at, event));
            }
        };
        match dialogue.ask(ask, keep)? {
            (Answer::Refused(refused), _) => Err(AskError::Refused(refused)),
            answer => Ok(answer),
        }
    }

    fn done(&mut self, ask: Ask) -> Result<(), AskError> {
        match self.ask(ask)? {
            Answer::Done => Ok(()),
            _ => Err(AskError::WrongAnswer),
        }
    }

    /// Reads a list page by page.
    fn all<T>(
        &mut self,
        show: impl Fn(Option<&T>) -> Show,
        page: impl Fn(Answer) -> Option<Page<T>>,
    ) -> Result<Vec<T>, AskError> {
        let mut all = Vec::new();
        for _ in 0..MAX_PAGES {
            let answer = self.ask(Ask::Show(show(all.last())))?;
            let Page { list, more } = page(answer).ok_or(AskError::WrongAnswer)?;
            all.extend(list);
            if !more {
                return Ok(all);
            }
        }
        Err(AskError::WrongAnswer)
    }
}
