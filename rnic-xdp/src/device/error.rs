//! Why a device could not be opened, with the remedy in each message.

use std::io;
use std::path::PathBuf;

use nix::libc;

use crate::device::netlink::NetlinkError;
use crate::device::tx_checksum::TxChecksum;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such device in this network namespace.
    #[error(
        "there is no network device {netdev} here; `ip link` lists those of this network namespace"
    )]
    NoSuchDevice {
        /// The name of the device.
        netdev: String,
    },
    /// The device is down.
    #[error("{netdev} is down; `ip link set dev {netdev} up` starts it")]
    Down {
        /// The device.
        netdev: String,
    },
    /// The device has no MAC address.
    #[error(
        "{netdev} is no Ethernet device: it has no MAC address, as loopback devices and tunnels have none; choose another, \
         or TCP sockets of the kernel, which take any that has an address (`--via kernel`)"
    )]
    NoEthernet {
        /// The device.
        netdev: String,
    },
    /// A capability is missing.
    #[error(
        "not permitted to {doing}; run as root, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON"
    )]
    NotPermitted {
        /// The refused operation.
        doing: &'static str,
    },
    /// Another process of rnic has the device for itself.
    #[error(
        "another rnic process drives {netdev} already (XDP program {program}{}); end it or choose another device", in_words(*pid)
    )]
    AlreadyDriven {
        /// The device.
        netdev: String,
        /// The id of its XDP program.
        program: u32,
        /// The process, if this one may see it.
        pid: Option<u32>,
    },
    /// rnicd shares the device, and was not asked for a port of it.
    #[error(
        "rnicd shares {netdev}, also while it does not run (XDP program {program}); `systemctl start rnicd` starts it, and \
         `rnicd --unshare` ends the sharing"
    )]
    Shared {
        /// The device.
        netdev: String,
        /// The id of its XDP program.
        program: u32,
    },
    /// An XDP program is attached, and this user may not know whose.
    #[error(
        "{netdev} has an XDP program attached (id {program}, {attachment}) that may be rnic's: do not detach it; \
         `sudo rnic-ctl doctor --netdev {netdev}` says whose it is"
    )]
    HiddenProgram {
        /// The device.
        netdev: String,
        /// The id of the program.
        program: u32,
        /// How it is attached: "native", "generic", ...
        attachment: &'static str,
    },
    /// The manager of the device has what is asked for.
    #[error("{netdev} is managed by rnicd, which alone reserves its addresses; ask it for them")]
    Managed {
        /// The device.
        netdev: String,
    },
    /// The manager of the device gives no port.
    #[error("rnicd gives no port of {netdev}: {reason}")]
    Refused {
        /// The device.
        netdev: String,
        /// What it says, with the remedy.
        reason: String,
    },
    /// Another XDP program is attached.
    #[error(
        "{netdev} has another XDP program attached: \"{name}\" (id {program}, {attachment}); stop the software \
         that attached it, or detach it with `ip link set dev {netdev} {detach} off`"
    )]
    OtherProgram {
        /// The device.
        netdev: String,
        /// The name of the program.
        name: String,
        /// The id of the program.
        program: u32,
        /// How it is attached: "native", "generic", ...
        attachment: &'static str,
        /// The keyword of `ip link` that detaches it.
        detach: &'static str,
    },
    /// The kernel did not accept a program.
    #[error(
        "the kernel did not load an XDP program of rnic; it needs Linux 5.18 or later: {reason}"
    )]
    Load {
        /// The messages of libbpf and the verifier.
        reason: String,
    },
    /// The driver does not support XDP programs.
    #[error(
        "{netdev} cannot run XDP programs natively ({reason}); use the generic mode, or another device"
    )]
    NoNative {
        /// The device.
        netdev: String,
        /// The kernel's error.
        reason: String,
    },
    /// The frames of the device arrive on devices below it.
    #[error(
        "{netdev} cannot run XDP programs natively ({reason}); use the generic mode, or take {below} out of it and open that"
    )]
    IsMaster {
        /// The device.
        netdev: String,
        /// What it is the master of.
        reason: String,
        /// The devices that could be opened if it were not their master.
        below: String,
    },
    /// The queues are too few for XDP.
    #[error(
        "{netdev} has too few queues for XDP: a veth needs as many receive queues as its peer has transmit queues, \
         a NIC as many transmit queues as CPUs; see `ethtool -l {netdev}` and set them with `ethtool -L {netdev}`"
    )]
    TooFewQueues {
        /// The device.
        netdev: String,
    },
    /// The MTU is too large for the driver's XDP.
    #[error(
        "the MTU of {netdev} ({mtu}), or its veth peer's, is larger than its driver supports with XDP; lower it: \
         `ip link set dev {netdev} mtu 1500`"
    )]
    MtuTooLarge {
        /// The device.
        netdev: String,
        /// Its MTU.
        mtu: u32,
    },
    /// The program could not be attached for another reason.
    #[error("cannot attach an XDP program to {netdev}: {source}")]
    Attach {
        /// The device.
        netdev: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The limit of locked memory is too low.
    #[error(
        "not permitted to lock the {octets} octets of frames; grant CAP_IPC_LOCK or raise the limit \
         (`ulimit -l`, LimitMEMLOCK= of systemd)"
    )]
    LockedMemory {
        /// Octets of the UMEM.
        octets: usize,
    },
    /// The memory for frames could not be allocated.
    #[error("cannot make the {octets} octets of frames of a queue: {source}; ask for fewer frames")]
    Memory {
        /// Octets of the UMEM.
        octets: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// A queue is in use.
    #[error(
        "queue {queue} of {netdev} is in use by another AF_XDP socket; end the process that has it (`ss --xdp -p`)"
    )]
    QueueBusy {
        /// The device.
        netdev: String,
        /// The queue.
        queue: u32,
    },
    /// Zero-copy was required and is not possible.
    #[error(
        "{netdev} does not work without copying ({reason}); allow copying, or use another device"
    )]
    NoZeroCopy {
        /// The device.
        netdev: String,
        /// Why not.
        reason: String,
    },
    /// Checksum offload was required and is not possible.
    #[error(
        "TCP checksums of what {netdev} sends cannot be completed as tx_checksum = {choice:?} wants it ({reason}); \
         let the engine compute them: tx_checksum = Auto or Never"
    )]
    NoTxChecksum {
        /// The device.
        netdev: String,
        /// What was to complete the checksums.
        choice: TxChecksum,
        /// Why not.
        reason: String,
    },
    /// A socket could not be opened or bound.
    #[error(
        "cannot open an AF_XDP socket on queue {queue} of {netdev}: {source}{}",
        remedy(source)
    )]
    Socket {
        /// The device.
        netdev: String,
        /// The queue.
        queue: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The device has no such queue, or sends on fewer.
    #[error("{netdev} has no queue {queue}: it has {queues}, from 0 on (`ethtool -l {netdev}`)")]
    NoSuchQueue {
        /// The device.
        netdev: String,
        /// The queue.
        queue: u32,
        /// How many queues receive and send.
        queues: u32,
    },
    /// A value of the configuration is not valid.
    #[error("{field} = {value} is not possible: {rule}")]
    Config {
        /// The field.
        field: &'static str,
        /// What it was set to.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// The device does not send what programs redirect to it.
    #[error(
        "{netdev} cannot be shared natively: it sends no frames that XDP programs redirect to it; use the generic mode, \
         or another device (a veth does if its other end has an XDP program, or GRO: `ethtool -K DEV gro on`)"
    )]
    NoRedirect {
        /// The device.
        netdev: String,
    },
    /// The device is shared in another mode.
    #[error(
        "{netdev} is shared in {mode} mode by a former process, and its clients may still use it; choose that mode, or end \
         the clients and then the sharing"
    )]
    OtherMode {
        /// The device.
        netdev: String,
        /// How its program is attached.
        mode: &'static str,
    },
    /// There is no file system for pins.
    #[error("{path} is not on a BPF file system; `mount -t bpf bpf /sys/fs/bpf` makes one")]
    NoBpffs {
        /// Where the pins are to be.
        path: PathBuf,
    },
    /// Another version has pinned its maps.
    #[error(
        "the maps in {path} are of another version of rnic ({found}, not {wanted}); end all clients of that version, detach \
         its program (`ip link set dev {netdev} xdp off`), and remove {path}"
    )]
    OtherLayout {
        /// The device.
        netdev: String,
        /// The directory of the pins.
        path: PathBuf,
        /// The version found.
        found: String,
        /// Our version.
        wanted: &'static str,
    },
    /// A pin cannot be made, read or removed.
    #[error("cannot {doing} {path}: {source}; it takes root, and a directory that is rnic's alone")]
    Pin {
        /// What was to be done.
        doing: &'static str,
        /// The pin.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Another resource could not be allocated.
    #[error("cannot {doing}: {source}{}", remedy(source))]
    System {
        /// What for.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Returns what helps against an error of the kernel, if that does not depend on what was to be
/// done.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            "; raise the limit of open files (`ulimit -n`, LimitNOFILE= of systemd)"
        }
        _ => "",
    }
}

fn in_words(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(", pid {pid}"))
}

impl OpenError {
    /// Returns whether the kernel or the driver does not support an option of a socket.
    pub(crate) fn is_unsupported(&self) -> bool {
        let Self::Socket { source, .. } = self else {
            return false;
        };
        matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
    }
}
