//! Ports that have ended while somebody still has their AF_XDP sockets: what they hold counts until
//! then, because it exists.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rnic_manager::states::PortState;
use rnic_xdp::shared::{HostEnd, HostEnds};
use tracing::{debug, warn};

use crate::freeing::{Freeing, Remains};
use crate::memory::Memory;
use crate::quota::{Charge, Quotas, Resource};
use crate::record::{Ended, Record, Records};

/// Counts what a port holds for its user, as its record says.
pub(crate) fn holdings(quotas: &Quotas, record: &Record) -> Vec<Charge> {
    let take = |resource, amount| quotas.adopt(record.account(), resource, amount);
    vec![
        take(Resource::Ports, 1),
        take(Resource::Frames, record.frames.into()),
        take(Resource::Hugepages, record.huge_octets),
    ]
}

/// Those of all devices, by their numbers, which no other port gets.
pub(crate) struct Endings {
    ports: BTreeMap<u32, (Remains, String, HostEnd)>,
    ends: HostEnds,
    records: Records,
    /// Those whose socket nobody has any more.
    freeing: Freeing,
}

impl Endings {
    /// Takes over those that a former rnicd has recorded. `memory` finds the memory of a port by
    /// its key, and `freer` is the command that frees it.
    pub(crate) fn open(
        records: Records,
        quotas: &Quotas,
        mut memory: impl FnMut(String) -> Option<Memory>,
        freer: &[OsString],
    ) -> io::Result<Self> {
        let mut endings = Self {
            ports: BTreeMap::new(),
            ends: HostEnds::open().map_err(io::Error::other)?,
            records,
            freeing: Freeing::by(freer),
        };
        for record in endings.records.read()? {
            let number = record.port;
            if let Some(ended) = record.ended.clone() {
                let remains = Remains {
                    _held: holdings(quotas, &record),
                    memory: memory(Memory::key(&ended.netdev, number)),
                    record,
                };
                endings.add(remains, &ended.netdev, ended.host_end);
            }
        }
        Ok(endings)
    }

    /// Records the end of a port, so that the next rnicd knows what still counts.
    pub(crate) fn record(&self, record: &Record, netdev: &str, host_end: Option<&HostEnd>) {
        let ended = Some(Ended {
            netdev: netdev.to_owned(),
            host_end: host_end.cloned(),
        });
        let record = Record {
            ended,
            ..record.clone()
        };
        if let Err(error) = self.records.keep(&record) {
            let number = record.port;
            warn!(
                "what port {number} holds counts for this rnicd only: no record is kept: {error}"
            );
        }
    }

    /// Counts what is left of a port for its user as long as its host end exists, that is, as long
    /// as somebody has its socket.
    pub(crate) fn add(&mut self, remains: Remains, netdev: &str, host_end: Option<HostEnd>) {
        let Some(host_end) = host_end else {
            return self.free(remains, netdev);
        };
        let number = remains.record.port;
        let netdev = netdev.to_owned();
        self.ports.insert(number, (remains, netdev, host_end));
        // It may have gone before anybody followed it.
        self.look_for(number);
    }

    /// Forgets the record of a port that has not ended after all.
    pub(crate) fn forget_record(&self, number: u32) {
        self.records.forget(number);
    }

    /// Forgets a port that is gone.
    fn look_for(&mut self, number: u32) {
        let there = match self.ports.get(&number) {
            Some((_, _, host_end)) => self.ends.is_there(host_end),
            None => Ok(false),
        };
        match there {
            Ok(true) => {}
            Ok(false) => self.remove(number),
            Err(error) => warn!("whether port {number} still exists is seen later: {error}"),
        }
    }

    fn remove(&mut self, number: u32) {
        if let Some((remains, netdev, _)) = self.ports.remove(&number) {
            debug!("nobody has the socket of port {number} any more");
            self.free(remains, &netdev);
        }
    }

    /// Forgets those that are gone.
    pub(crate) fn poll(&mut self) {
        let followed = self.ports.iter();
        let followed = followed.map(|(number, (_, _, host_end))| (*number, host_end));
        match self.ends.poll(followed) {
            Ok(gone) => gone.into_iter().for_each(|number| self.remove(number)),
            Err(error) => warn!("which ports still exist is seen later: {error}"),
        }
    }

    /// Frees what is left of a port whose socket nobody has any more.
    pub(crate) fn free(&mut self, remains: Remains, netdev: &str) {
        let number = remains.record.port;
        if remains.memory.is_none() {
            return self.records.forget(number);
        }
        // The next rnicd counts it, too.
        self.record(&remains.record, netdev, None);
        self.freeing.free(remains, netdev);
    }

    /// Frees the memory of a port without a record.
    pub(crate) fn free_memory(&mut self, memory: Memory) {
        self.freeing.free_memory(memory);
    }

    /// Returns how long to wait before what is freed is looked for, whatever is readable.
    pub(crate) fn until_freeing(&self) -> Option<Duration> {
        self.freeing.timeout()
    }

    /// Returns what is readable when something was freed.
    pub(crate) fn freed(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.freeing.freed()
    }

    /// Returns whether memory of a user's ports is being freed.
    pub(crate) fn frees_for(&self, account: u32) -> bool {
        let mut remains = self.freeing.remains();
        remains.any(|remains| remains.record.account() == account)
    }

    /// Forgets what was freed.
    pub(crate) fn poll_freeing(&mut self) {
        for number in self.freeing.poll() {
            self.records.forget(number);
        }
    }

    /// Returns whether a port is one of these.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.ports.contains_key(&number) || self.freeing.get(number).is_some()
    }

    /// Returns all.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u32, &Record)> {
        let ports = self.ports.iter();
        let ports = ports.map(|(number, (remains, ..))| (*number, &remains.record));
        let freed = self.freeing.remains();
        ports.chain(freed.map(|remains| (remains.record.port, &remains.record)))
    }

    /// Returns what the keeper holds of them.
    pub(crate) fn memories(&self) -> impl Iterator<Item = &Memory> {
        let ports = self.ports.values();
        let ended = ports.filter_map(|(remains, ..)| remains.memory.as_ref());
        ended.chain(self.freeing.memories())
    }

    /// Describes a port.
    pub(crate) fn state(&self, number: u32) -> Option<PortState> {
        let (Remains { record, .. }, netdev) = match self.ports.get(&number) {
            Some((remains, netdev, _)) => (remains, netdev.as_str()),
            None => self.freeing.get(number)?,
        };
        Some(PortState {
            port: number,
            netdev: netdev.to_owned(),
            uid: record.uid,
            program: record.program.clone(),
            pid: record.pid,
            connected: false,
            ending: true,
            frames: record.frames,
            huge_octets: record.huge_octets,
            leases: 0,
            since: record.since,
            sent: Vec::new(),
            host_end: None,
            queue: None,
        })
    }
}

impl AsFd for Endings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ends.as_fd()
    }
}
