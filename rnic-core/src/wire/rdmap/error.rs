//! Why octets are no RDMAP header.

/// Why octets are no RDMAP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmapWireError {
    /// RFC 5040 defines the opcodes 0 to 7, RFC 7306 adds 8 to 11, and the semantics of RC one more.
    #[error("RDMAP opcode {0} is not known")]
    Opcode(u8),
    /// RFC 7306 defines FetchAdd (0) and CmpSwap (2).
    #[error("atomic operation {0} is not known")]
    AtomicOperation(u8),
    /// A Control message is XOFF (1) or XON (2), or a receipt (3) where both sides know it.
    #[error("a Control message of kind {0} is not known")]
    FlowControl(u8),
    /// The message has not the length of its header.
    #[error("{octets} octets are not the length of the {header}")]
    Length {
        /// Which header.
        header: &'static str,
        /// What came.
        octets: usize,
    },
}
