//! Connections that another engine of the device accepts.

use crate::connection::{Connection, ConnectionOptions};
use crate::ids::QpNumber;

/// A connection on its way to another engine, where a queue pair accepts it.
pub struct Adoption {
    /// `None` if it has ended.
    pub(super) connection: Option<Connection>,
    pub(super) qp: QpNumber,
    pub(super) options: ConnectionOptions,
}
