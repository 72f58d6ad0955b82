//! The defaults of new sockets, which an administrator can change by files in `/etc/rdma/rsocket`
//! (see rsocket(7)).

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use super::layout::sayable_iomaps;
use super::outgoing::LOW_WATER;

const DIRECTORY: &str = "/etc/rdma/rsocket";

/// Bounds of the queues' lengths.
pub(super) const SHORTEST_QUEUE: u16 = 16;
pub(super) const LONGEST_QUEUE: u16 = 0xfffe;

/// What a socket is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Octets of the send and of the receive buffer.
    pub(super) send_buffer: u32,
    pub(super) receive_buffer: u32,
    /// Requests of the send and of the receive queue.
    pub(super) send_queue: u16,
    pub(super) receive_queue: u16,
    /// Octets that are sent without a copy in the send buffer.
    pub(super) inline: u16,
    /// Buffers that the peer may map.
    pub(super) iomaps: u16,
}

impl Sizes {
    /// Sets the send buffer for an application that wants to have so much under way.
    pub(super) fn set_send_buffer(&mut self, octets: u32) {
        self.send_buffer = octets.clamp(LOW_WATER, 1 << 29) * 2;
    }

    /// Sets the receive buffer for an application that wants to be sent so much.
    pub(super) fn set_receive_buffer(&mut self, octets: u32) {
        self.receive_buffer = octets.clamp(1, 1 << 29) * 2;
    }
}

/// The defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) sizes: Sizes,
    /// How long a call polls before it sleeps.
    pub(super) polling: Duration,
}

impl Config {
    /// Returns what the files said when the first socket was made.
    pub(super) fn get() -> &'static Self {
        static CONFIG: OnceLock<Config> = OnceLock::new();
        CONFIG.get_or_init(|| Self::read(Path::new(DIRECTORY)))
    }

    fn read(directory: &Path) -> Self {
        let mut sizes = Sizes {
            send_buffer: value(directory, "wmem_default", 1 << 17),
            receive_buffer: value(directory, "mem_default", 1 << 17),
            send_queue: value(directory, "sqsize_default", 384),
            receive_queue: value(directory, "rqsize_default", 384),
            inline: value(directory, "inline_default", 64),
            iomaps: sayable_iomaps(value(directory, "iomap_size", 0)),
        };
        // Even numbers: the buffers have halves.
        sizes.set_send_buffer(sizes.send_buffer / 2);
        sizes.set_receive_buffer(sizes.receive_buffer / 2);
        Self {
            sizes,
            polling: Duration::from_micros(value(directory, "polling_time", 10)),
        }
    }
}

/// Reads a file that has a number, if it is there.
fn value<T: FromStr>(directory: &Path, name: &str, default: T) -> T {
    let text = fs::read_to_string(directory.join(name)).ok();
    text.and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_override_the_defaults() {
        let directory =
            std::env::temp_dir().join(format!("rnic-rsocket-config-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let defaults = Config::read(&directory);
        assert_eq!(defaults.sizes.receive_buffer, 1 << 17);
        assert_eq!(defaults.polling, Duration::from_micros(10));

        for (name, text) in [
            ("mem_default", "1000001\n"),
            ("wmem_default", "7"),
            ("sqsize_default", " 100 "),
            ("rqsize_default", "none"),
            ("iomap_size", "300"),
            ("polling_time", "0"),
        ] {
            fs::write(directory.join(name), text).unwrap();
        }
        let read = Config::read(&directory);
        fs::remove_dir_all(&directory).unwrap();
        let sizes = Sizes {
            receive_buffer: 1_000_000,
            send_buffer: 2 * LOW_WATER,
            send_queue: 100,
            iomaps: 256,
            ..defaults.sizes
        };
        assert_eq!(
            read,
            Config {
                sizes,
                polling: Duration::ZERO
            }
        );
    }
}
