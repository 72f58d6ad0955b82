//! The test bed: two network namespaces joined by a veth pair, and threads on processors of their
//! own.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, geteuid};
use rnic_core::esp::{Algorithm, Keys, Mode, Sa, SaId};
use rnic_core::wire::ethernet::MacAddr;
use rnic_xdp::testing::{Namespace, VethEnd, give_association, veth_pair};

use crate::failure::Failure;
use crate::plain::Plain;
use crate::rnicd::Rnicd;

/// How many processors drive the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cores {
    /// One thread drives both.
    One,
    /// A thread each.
    Two,
}

impl Cores {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::One => "one core",
            Self::Two => "two cores",
        }
    }

    pub(crate) fn count(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// The number of the policies and associations that protect devices.
pub(crate) const PROTECTED: NonZeroU32 = NonZeroU32::new(4791).unwrap();

/// One of the two hosts.
pub(crate) struct Host {
    namespace: Namespace,
    pub(crate) netdev: &'static str,
    pub(crate) address: Ipv4Addr,
    pub(crate) mac: MacAddr,
    /// The socket of the rnicd that shares the device. `None`: no rnicd shares it, and the process
    /// that opens it has it alone.
    pub(crate) manager: Option<PathBuf>,
}

impl Host {
    /// Runs a function on a thread in the host's namespace. Sockets that it opens stay in that
    /// namespace.
    pub(crate) fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(body)
    }

    /// Returns the name of its network namespace.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.name()
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address.into(), port)
    }
}

/// How the client's host uses its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Through ports of a real rnicd.
    Ports,
    /// The same, with redirects in the place of steer and police that check nothing.
    Plain,
}

/// Two hosts.
pub(crate) struct Bed {
    rnicd: Option<Rnicd>,
    plain: Option<Plain>,
    pub(crate) client: Host,
    pub(crate) server: Host,
    processors: Vec<usize>,
    mtu: AtomicU16,
}

impl Bed {
    /// Makes the namespaces and the veth pair. Dropping it removes them.
    pub(crate) fn new() -> Result<Self, Failure> {
        if !geteuid().is_root() {
            let why = "run it as root: it makes network namespaces and opens AF_XDP sockets";
            return Err(why.into());
        }
        let host = |netdev, last| -> Result<Host, Failure> {
            Ok(Host {
                namespace: Namespace::new("bench")?,
                netdev,
                address: Ipv4Addr::new(10, 77, 10, last),
                mac: MacAddr([2, 0, 0, 0, 0, last]),
                manager: None,
            })
        };
        let (client, server) = (host("rnic-client", 1)?, host("rnic-server", 2)?);
        let addresses = [&client, &server].map(|host| format!("{}/24", host.address));
        let end = |host: &'static str, namespace, addresses| VethEnd {
            namespace,
            name: host,
            addresses,
        };
        veth_pair(
            end(client.netdev, &client.namespace, &addresses[0]),
            end(server.netdev, &server.namespace, &addresses[1]),
            1,
        )?;
        for host in [&client, &server] {
            let command = format!("link set dev {} address {}", host.netdev, host.mac);
            host.namespace.ip(&command)?;
        }
        Ok(Self {
            rnicd: None,
            plain: None,
            client,
            server,
            processors: processors()?,
            mtu: AtomicU16::new(1500),
        })
    }

    /// Makes them with an rnicd on the client's host.
    pub(crate) fn shared(sharing: Sharing) -> Result<Self, Failure> {
        let mut bed = Self::new()?;
        // A veth sends what programs redirect to it only to an end that has a program, or GRO.
        let mut ethtool = bed.server.namespace.command("ethtool");
        ethtool.args(["-K", bed.server.netdev, "gro", "on"]);
        succeed(ethtool)?;
        let rnicd = Rnicd::start(bed.client.namespace(), bed.client.netdev)?;
        bed.client.manager = Some(rnicd.socket());
        if sharing == Sharing::Plain {
            let plain = Plain::load(&rnicd.maps())?;
            let netdev = bed.client.netdev;
            bed.client.run(|| plain.replace_steer(netdev))?;
            bed.plain = Some(plain);
        }
        bed.rnicd = Some(rnicd);
        Ok(bed)
    }

    /// Prepares the devices that were opened since. To be called before each measurement.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        match &self.plain {
            Some(plain) => self.client.run(|| plain.replace_police()),
            None => Ok(()),
        }
    }

    /// Returns the number of a processor.
    pub(crate) fn processor(&self, thread: usize) -> usize {
        self.processors[thread % self.processors.len()]
    }

    /// Returns whether there is a processor for each end.
    pub(crate) fn allows(&self, cores: Cores) -> bool {
        self.processors.len() >= usize::from(cores.count())
    }

    /// Switches the kernel's segmentation and checksum offloads, which let it send 64 KiB at once
    /// over a veth pair.
    pub(crate) fn set_offloads(&self, on: bool) -> Result<(), Failure> {
        let state = if on { "on" } else { "off" };
        for host in [&self.client, &self.server] {
            let mut ethtool = host.namespace.command("ethtool");
            ethtool.args(["-K", host.netdev, "tx", state, "tso", state, "gso", state]);
            succeed(ethtool)?;
        }
        Ok(())
    }

    /// Has what devices with `ipsec_if_id` [`PROTECTED`] send each other protected by ESP in
    /// transport mode, with AES-GCM and 128 bits. The kernel need not have ESP.
    pub(crate) fn protect(&self) -> Result<(), Failure> {
        for (number, from, to) in [
            (1, &self.client, &self.server),
            (2, &self.server, &self.client),
        ] {
            let sa = Sa {
                id: SaId {
                    spi: 0x1000 + number,
                    destination: to.address.into(),
                },
                source: from.address.into(),
                mode: Mode::Transport,
                algorithm: Algorithm::AesGcm,
                extended: true,
                encapsulation: None,
                request: 1,
            };
            // A key of 16 octets and a salt of 4.
            let keys = Keys::new(vec![number as u8; 20], Vec::new());
            for (host, direction) in [(from, "out"), (to, "in")] {
                give_association(host.netdev, sa.clone(), keys.clone());
                let ends = format!("src {} dst {}", from.address, to.address);
                host.namespace.ip(&format!(
                    "xfrm policy add {ends} proto tcp dir {direction} if_id {PROTECTED} \
                     tmpl {ends} proto esp reqid 1 mode transport"
                ))?;
            }
        }
        Ok(())
    }

    /// Sets the MTU of both devices, in octets.
    pub(crate) fn set_mtu(&self, mtu: u16) -> Result<(), Failure> {
        if self.mtu.swap(mtu, Ordering::Relaxed) == mtu {
            return Ok(());
        }
        for host in [&self.client, &self.server] {
            let command = format!("link set dev {} mtu {mtu}", host.netdev);
            host.namespace.ip(&command)?;
        }
        Ok(())
    }

    /// Runs a function pinned to the first processor.
    pub(crate) fn on_one<T: Send>(
        &self,
        body: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        self.on(0, body)
    }

    /// Runs a function pinned to one of the processors.
    pub(crate) fn on<T: Send>(
        &self,
        processor: usize,
        body: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.pin(processor)?;
                body()
            });
            thread
                .join()
                .unwrap_or_else(|_| Err("a measuring thread panicked".into()))
        })
    }

    /// Runs two functions at the same time, each pinned to a processor of its own. They begin
    /// together.
    pub(crate) fn on_two<A: Send, B: Send>(
        &self,
        one: impl FnOnce() -> Result<A, Failure> + Send,
        other: impl FnOnce() -> Result<B, Failure> + Send,
    ) -> Result<(A, B), Failure> {
        let both = Barrier::new(2);
        let stand_by = |processor| {
            let pinned = self.pin(processor);
            both.wait();
            pinned
        };
        thread::scope(|scope| {
            let one = scope.spawn(|| {
                stand_by(0)?;
                one()
            });
            let other = scope.spawn(|| {
                stand_by(1)?;
                other()
            });
            let panicked = |_| Err("a measuring thread panicked".into());
            let one = one.join().unwrap_or_else(panicked);
            let other = other
                .join()
                .unwrap_or_else(|_| Err("a measuring thread panicked".into()));
            Ok((one?, other?))
        })
    }

    fn pin(&self, thread: usize) -> Result<(), Failure> {
        let mut set = CpuSet::new();
        set.set(self.processor(thread))?;
        Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
    }
}

/// Returns the processors that this process may use.
pub(crate) fn processors() -> Result<Vec<usize>, Failure> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    let all = 0..CpuSet::count();
    Ok(all
        .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
        .collect())
}

fn succeed(mut command: Command) -> Result<(), Failure> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}", stderr.trim()).into())
}
