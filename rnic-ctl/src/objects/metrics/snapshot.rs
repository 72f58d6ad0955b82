//! What rnicd says at one time.

use rnic_manager::channel::ChannelError;
use rnic_manager::states::{DaemonState, DeviceState, PortState, UsageState, UserState};
use rnic_manager::{Administrator, AskError};

use crate::failure::Outcome;
use crate::objects::access::{Access, failed};
use crate::out;

/// What rnicd says.
pub(super) struct Snapshot {
    pub(super) daemon: DaemonState,
    pub(super) devices: Vec<DeviceState>,
    /// What users have sent and received.
    pub(super) usage: Vec<UsageState>,
    pub(super) users: Vec<UserState>,
    /// The ports that are counted each by itself.
    pub(super) ports: Vec<PortState>,
}

impl Snapshot {
    /// Asks rnicd. It is `None` if none runs.
    pub(super) fn take(access: &Access, by_port: usize) -> Outcome<Option<Self>> {
        let asked = access.administrator();
        match asked.and_then(|mut rnicd| Self::ask(&mut rnicd, by_port)) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(error) if is_absence(&error) => {
                out::note(format_args!("rnic-ctl: rnic_up is 0: {error}"));
                Ok(None)
            }
            Err(error) => Err(failed("read metrics")(error)),
        }
    }

    fn ask(rnicd: &mut Administrator, by_port: usize) -> Result<Self, AskError> {
        let mut ports = match by_port {
            0 => Vec::new(),
            _ => rnicd.ports()?,
        };
        ports.truncate(by_port);
        Ok(Self {
            daemon: rnicd.daemon()?,
            devices: rnicd.devices()?,
            usage: rnicd.usage()?,
            users: rnicd.users()?,
            ports,
        })
    }
}

/// Returns whether the reason is that rnicd does not serve, and not that it refuses.
fn is_absence(error: &AskError) -> bool {
    match error {
        AskError::Channel(error) => matches!(
            error,
            ChannelError::NoDaemon { .. } | ChannelError::TimedOut { .. } | ChannelError::Closed
        ),
        AskError::Refused(_) | AskError::WrongAnswer => false,
    }
}
