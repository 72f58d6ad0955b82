//! The bounds of what a server gives a client, which is not authenticated.

use super::args::{PerfArgs, Test};
use super::buffer::Memory;
use super::hello::Hello;

/// Octets that a request takes in the rings of a queue pair and in the completion queue,
/// approximately.
const REQUEST: u64 = 512;

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Octets.
    memory: u64,
    qps: u16,
}

impl Limits {
    /// Those of a server whose client is the same process.
    pub(super) const NONE: Self = Self {
        memory: u64::MAX,
        qps: u16::MAX,
    };

    /// Reads them from the command line.
    pub(super) fn of(args: &PerfArgs) -> Self {
        Self {
            memory: args.max_memory << 20,
            qps: args.max_qps,
        }
    }

    /// Fails if a client asks for more, with a reason for both sides.
    pub(super) fn check(&self, hello: &Hello) -> Result<(), String> {
        if hello.qps > self.qps {
            return Err(format!(
                "the client wants {} queue pairs, and the server allows {}: choose fewer with -q, or start the server with a larger --max-qps",
                hello.qps, self.qps
            ));
        }
        let memory = memory(hello);
        if memory > self.memory {
            return Err(format!(
                "the client's test takes {} MiB of memory here, and the server allows {}: choose less with -s, -q or -t, or start the server with a larger --max-memory",
                memory.div_ceil(1 << 20),
                self.memory >> 20
            ));
        }
        Ok(())
    }
}

/// Returns the number of octets that a server needs for a client.
fn memory(hello: &Hello) -> u64 {
    let buffers = Memory::of_one(hello.largest, hello.depth, hello.verify) as u64;
    // These two have messages in both directions.
    let both_ways = matches!(hello.test, Test::WriteLat | Test::SendLat);
    let each = buffers * (1 + u64::from(both_ways)) + u64::from(hello.depth) * REQUEST;
    each * u64::from(hello.qps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::hello::{NO_BUFFER, Role};

    fn hello(qps: u16, largest: u64, depth: u32, verify: bool) -> Hello {
        Hello {
            test: Test::WriteBw,
            role: Role::Control,
            session: 1,
            qps,
            depth,
            largest,
            verify,
            use_srq: false,
            buffer: NO_BUFFER,
        }
    }

    #[test]
    fn a_server_gives_no_more_than_it_was_told_to() {
        let limits = Limits {
            memory: 1 << 30,
            qps: 64,
        };
        for modest in [
            hello(1, 1 << 16, 128, false),
            hello(64, 8 << 20, 128, false),
            hello(8, 8 << 20, 128, true),
        ] {
            assert_eq!(limits.check(&modest), Ok(()), "{modest:?}");
        }
        for (greedy, option) in [
            (hello(512, 1 << 30, 128, false), "--max-qps"),
            (hello(65, 1, 1, false), "--max-qps"),
            (hello(2, 1 << 30, 1, false), "--max-memory"),
            (hello(64, 64 << 20, 1, false), "--max-memory"),
            (hello(64, 1 << 20, 128, true), "--max-memory"),
        ] {
            let why = limits.check(&greedy).unwrap_err();
            assert!(why.contains(option), "{why}");
            assert_eq!(Limits::NONE.check(&greedy), Ok(()));
        }
    }
}
