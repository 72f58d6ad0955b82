//! What hosts run over: the cfg `carrier_sockets`, which the build script sets, chooses.

/// What drives the engines of hosts.
#[cfg(not(carrier_sockets))]
pub type Chosen = super::framed::Framed;
/// What drives the engines of hosts.
#[cfg(carrier_sockets)]
pub type Chosen = super::socketed::OverSockets;

/// What the connections of hosts run over.
#[cfg(not(carrier_sockets))]
pub type ChosenCarrier = crate::tcp::Tcp;
/// What the connections of hosts run over.
#[cfg(carrier_sockets)]
pub type ChosenCarrier = crate::connection::KernelTcp<crate::testing::kernel::VirtualSockets>;
