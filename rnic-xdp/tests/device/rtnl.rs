//! Frames must not wait while another process holds the lock of the kernel's network configuration
//! (RTNL).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::rig::{Rig, Runs};

/// A process that holds the lock: its ioctl waits for a page of memory that is not provided until
/// the end.
struct Rtnl(Child);

impl Rtnl {
    fn hold() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hold_rtnl.py");
        let mut command = Command::new("python3");
        command
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut said).unwrap();
        assert_eq!(said, "held\n");
        Self(child)
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        // A line of input makes it release the lock.
        if let Some(mut input) = self.0.stdin.take() {
            let _ = input.write_all(b"\n");
        }
        let _ = self.0.wait();
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn frames_do_not_wait_for_the_lock_of_the_kernels_configuration() {
    for runs in [Runs::Thread(Duration::from_secs(1)), Runs::Inline] {
        let rig = Rig::new(1500, 2, runs);
        let (mut client, mut server) = rig.connect("10.77.0.2:4420", 1 << 16);
        let idle = rig.connect("10.77.0.2:4421", 4096);
        rig.exchange(&mut client, &mut server, 1 << 16);
        let lock = Rtnl::hold();
        // Meanwhile ports are released, and everything that is looked up once a second comes due.
        drop(idle);
        let until = Instant::now() + Duration::from_millis(1200);
        while Instant::now() < until {
            rig.exchange(&mut client, &mut server, 1 << 16);
        }
        drop(lock);
        rig.exchange(&mut client, &mut server, 1 << 16);
    }
}
