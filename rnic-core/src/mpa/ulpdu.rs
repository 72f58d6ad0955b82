//! What MPA carries for DDP.

/// The octets of one ULPDU.
pub type Ulpdu<'a> = &'a [u8];
