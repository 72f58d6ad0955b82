//! What an application and the Privileged Resource Manager, `rnicd`, say to each other
//! (RFC 5041 section 8.3.2), and what administrators say to it.
//!
//! rnicd gives clients without any right a share of a network device: a *port*. They ask for it
//! over a Unix socket, and get descriptors: the port's AF_XDP socket and UMEM. The sockets that
//! reserve TCP ports stay with rnicd. Frames never pass rnicd.
//!
//! A message is a JSON object in a datagram of a `SOCK_SEQPACKET` socket, at most 64 KiB long.
//! [`protocol`] has the messages, [`channel`] the transport, [`Administrator`] the administrator's
//! side. A client's side and rnicd's need a device: they are in `rnic-xdp`, on which nothing here
//! stands. Beside that are here what all that carries connections needs of the host: bells,
//! descriptors of its own, threads without signals, questions to port mappers ([`Questions`]).

mod administrator;
mod bell;
pub mod channel;
mod checks;
mod closer;
mod convert;
mod device;
pub mod dialogue;
mod grant;
mod inspected;
mod inspection;
mod maker;
mod mappers;
mod node;
mod peer;
mod peers;
mod private;
mod processes;
pub mod protection;
pub mod protocol;
mod refused;
mod signals;
mod sockets;
pub mod states;
mod token;
mod verdict;
mod wiped;

pub use administrator::{Administrator, AskError, TimedEvent};
pub use bell::{Bell, bell};
pub use checks::is_device_name;
pub use closer::Closer;
pub use device::{LinkState, Mode, Untagged};
pub use inspected::{Inspected, InspectionEnd, MAX_SAID};
pub use inspection::{Inspection, InspectionSocket};
pub use maker::Maker;
pub use mappers::{Asked, Asker, Questions, Told, Watch, Ways};
pub use node::{NODE, has_node, make_node};
pub use private::{Private, PrivateFd, take_private};
pub use processes::{DeviceProcess, inspect_processes};
pub use signals::without_signals;
pub use token::Token;
pub use verdict::PoliceVerdict;
