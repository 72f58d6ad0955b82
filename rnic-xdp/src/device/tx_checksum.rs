//! What completes the TCP checksums of sent frames: the choice, and whether it was possible.

/// What completes the TCP checksums of sent frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxChecksum {
    /// The device, if it reports that it can. Otherwise, or if the kernel refuses, the engine.
    #[default]
    Auto,
    /// The engine.
    Never,
    /// The device, whatever it reports. A virtual one passes checksums on incomplete, which only a
    /// kernel at its other end accepts. If the kernel refuses, the port does not open.
    Device,
    /// The kernel, on the copy that it makes. It costs more than the engine, and is for tests of
    /// the device's path. If it refuses, the port does not open.
    Kernel,
}

/// Whether the checksums of what a port sends are offloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TxOffload {
    /// The engine computes them: offload is not offered or was not requested.
    #[default]
    Off,
    /// The device completes them, or the kernel if that was chosen.
    On,
    /// The engine computes them, although the device offers it, for this reason.
    Refused(String),
}
