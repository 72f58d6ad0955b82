//! Connections that another engine of the device accepts.

use std::any::Any;

use crate::connection::ConnectionOptions;
use crate::ids::{QpNumber, StreamId};

/// A connection on its way to another engine, where a queue pair accepts it.
pub struct Adoption {
    /// A connection over the transport of the device. `None` if it has ended.
    pub(super) connection: Option<Box<dyn Any + Send>>,
    pub(super) qp: QpNumber,
    pub(super) stream: StreamId,
    pub(super) options: ConnectionOptions,
}
