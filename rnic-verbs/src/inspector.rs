//! Answers what an administrator asks of a device. It stands beside the way of frames: it reads
//! lists and levels of rings, and an engine's facts come from the worker as it takes its other
//! commands.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, bounded};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::unistd;
use rnic_core::connection::ConnectionFacts;
use rnic_core::engine::{Command, HostEnd, Net, Snapshot};
use rnic_core::esp::{ProtectionFacts, SaFacts};
use rnic_core::ids::{PdId, QpNumber};
use rnic_core::memory::table::list::{StagFacts, StagKind};

use crate::events::{Ends, Router};
use crate::objects::{Objects, QpFacts, ReceiveFacts};
use crate::resource::{
    ConnectionResource, CqResource, DeviceResource, ListenerResource, MpaResource, MrResource,
    PdResource, ProtectionResource, QpResource, Resource, SrqResource, Summary,
};
use crate::state::QpState;

/// Octets written at a time.
const PIECE: usize = 32 << 10;

/// What can answer for a device. It does not keep the device open.
pub(crate) struct Inspector {
    /// What is said first, where nobody else says it.
    first: Option<DeviceResource>,
    hosts: Box<[HostEnd]>,
    router: Arc<Router>,
    objects: Arc<Objects>,
    /// Knows what protects connections, as long as the device is open.
    net: Weak<dyn Net>,
    /// What was asked of each worker and has not come yet. A worker that does not run is not asked
    /// again and again.
    asked: Vec<Option<Receiver<Snapshot>>>,
}

/// A queue pair at one moment.
struct QpNow {
    number: QpNumber,
    state: QpState,
    made_of: Arc<QpFacts>,
    ends: Option<Ends>,
}

/// Who reads an answer, and may be gone or not read.
struct Reader {
    pipe: OwnedFd,
    until: Instant,
}

impl Write for Reader {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut fds = [PollFd::new(self.pipe.as_fd(), PollFlags::POLLOUT)];
            ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None)?;
            match unistd::write(&self.pipe, octets) {
                Err(Errno::EAGAIN) => {}
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Inspector {
    pub(crate) fn new(
        hosts: Box<[HostEnd]>,
        router: Arc<Router>,
        objects: Arc<Objects>,
        net: Weak<dyn Net>,
    ) -> Self {
        let asked = hosts.iter().map(|_| None).collect();
        Self {
            first: None,
            hosts,
            router,
            objects,
            net,
            asked,
        }
    }

    /// Says first what the device is.
    pub(crate) fn of(self, device: DeviceResource) -> Self {
        Self {
            first: Some(device),
            ..self
        }
    }

    /// Answers on a pipe, and closes it. `within`: how long the answer is waited for. The reader may
    /// be gone: then the application, which does not expect it, gets no SIGPIPE if this thread has
    /// been started [without signals](rnic_manager::without_signals).
    pub(crate) fn reply(&mut self, what: &str, within: Duration, pipe: OwnedFd) -> io::Result<()> {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let reader = Reader {
            pipe,
            until: Instant::now() + 2 * within,
        };
        let mut writer = BufWriter::with_capacity(PIECE, reader);
        // The rest of the time is for saying that engines do not run.
        self.answer(what, within * 3 / 4, &mut writer)?;
        writer.flush()
    }

    /// Writes what is wanted, a line for each object. `within`: how long engines may take.
    fn answer(&mut self, what: &str, within: Duration, to: &mut impl Write) -> io::Result<()> {
        let resources = match what {
            "summary" => vec![Resource::Summary(self.summary())],
            "pd" => self.pds().into_iter().map(pd).collect(),
            "mr" => self.stags().into_iter().map(mr).collect(),
            "cq" => self.cqs(),
            "qp" => self.qps().iter().map(qp).collect(),
            "srq" => self.srqs(),
            "listener" => self.listeners(),
            "connection" => self.connections(within),
            _ => vec![Resource::Unknown],
        };
        let first = self.first.clone().map(Resource::Device);
        let all = first.iter().chain(&resources);
        for resource in all.chain([&Resource::End]) {
            serde_json::to_writer(&mut *to, resource)?;
            to.write_all(b"\n")?;
        }
        Ok(())
    }

    fn summary(&self) -> Summary {
        let (qps, mrs) = (self.qps(), self.stags().len() as u32);
        let is_connected = |qp: &&QpNow| matches!(qp.state, QpState::Rts | QpState::Sqd);
        let pds = self.pds().len() as u32;
        let lists = self.objects.lock();
        Summary {
            pd: pds,
            cq: lists.cqs.len() as u32,
            qp: qps.len() as u32,
            srq: lists.srqs.len() as u32,
            mr: mrs,
            listener: lists.listeners.len() as u32,
            connected: Some(qps.iter().filter(is_connected).count() as u32),
        }
    }

    fn stags(&self) -> Vec<StagFacts> {
        // All workers share the table.
        let host = self.hosts.first();
        host.map_or_else(Vec::new, |host| host.table.list())
    }

    /// Returns the queue pairs, by number.
    fn qps(&self) -> Vec<QpNow> {
        let boxes = self.router.boxes();
        let qps = boxes.qps.iter().map(|(&number, mailbox)| QpNow {
            number,
            state: mailbox.state.get(),
            made_of: mailbox.made_of.clone(),
            ends: mailbox.ends,
        });
        let mut qps: Vec<_> = qps.collect();
        drop(boxes);
        qps.sort_by_key(|qp| qp.number);
        qps
    }

    /// Returns the protection domains with their users. One whose handle was dropped goes on as
    /// long as it has any.
    fn pds(&self) -> BTreeMap<PdId, u32> {
        let (qps, stags) = (self.qps(), self.stags());
        let qps = qps.iter().map(|qp| qp.made_of.pd);
        let stags = stags.iter().map(|stag| stag.pd);
        let lists = self.objects.lock();
        let mut pds: BTreeMap<_, _> = lists.pds.iter().map(|&pd| (pd, 0)).collect();
        let srqs = lists.srqs.values().map(|srq| srq.pd);
        for pd in qps.chain(stags).chain(srqs) {
            *pds.entry(pd).or_default() += 1;
        }
        pds
    }

    fn cqs(&self) -> Vec<Resource> {
        let qps = self.qps();
        let users = count(qps.iter().flat_map(|qp| {
            let QpFacts {
                send_cq, recv_cq, ..
            } = *qp.made_of;
            let other = (recv_cq != send_cq).then_some(recv_cq);
            std::iter::once(send_cq).chain(other)
        }));
        let lists = self.objects.lock();
        let cqs = lists.cqs.iter().map(|(cq, levels)| CqResource {
            cqn: cq.0,
            used: levels.iter().map(|level| level.len()).sum(),
            depth: levels.iter().map(|level| level.capacity()).sum(),
            users: users.get(cq).copied().unwrap_or(0),
        });
        cqs.map(Resource::Cq).collect()
    }

    fn srqs(&self) -> Vec<Resource> {
        let qps = self.qps();
        let users = count(qps.iter().filter_map(|qp| match qp.made_of.receives {
            ReceiveFacts::Shared(srq) => Some(srq),
            ReceiveFacts::Own(_) => None,
        }));
        let lists = self.objects.lock();
        let srqs = lists.srqs.iter().map(|(srq, facts)| SrqResource {
            srqn: srq.0,
            pdn: facts.pd.0,
            used: facts.receives.len(),
            depth: facts.receives.capacity(),
            users: users.get(srq).copied().unwrap_or(0),
        });
        srqs.map(Resource::Srq).collect()
    }

    fn listeners(&self) -> Vec<Resource> {
        let listeners = self.objects.lock().listeners.clone();
        let boxes = self.router.boxes();
        let waiting = |id| {
            boxes
                .listeners
                .get(id)
                .map_or(0, |listener| listener.requests.len() as u32)
        };
        let listeners = listeners.iter().map(|(id, &local)| ListenerResource {
            local,
            waiting: waiting(id),
        });
        listeners.map(Resource::Listener).collect()
    }

    fn connections(&mut self, within: Duration) -> Vec<Resource> {
        let (snapshots, idle) = self.snapshots(within);
        let qps = self.qps();
        let depths = |connection: &ConnectionFacts| {
            let at = qps.binary_search_by_key(&connection.qp?, |qp| qp.number);
            let ends = at.ok().and_then(|at| qps[at].ends)?;
            ends.depths
        };
        let net = self.net.upgrade();
        let protection = |one: &ConnectionFacts| net.as_ref()?.protection(one.local, one.remote);
        let has_several = self.hosts.len() > 1;
        let all = snapshots.iter().flat_map(|(worker, snapshot)| {
            let worker = has_several.then_some(*worker);
            let connections = snapshot.connections.iter();
            connections.map(move |one| {
                let beside = (depths(one), protection(one));
                Resource::Connection(Box::new(connection(one, beside, worker)))
            })
        });
        let engines = idle;
        let idle = (engines > 0).then_some(Resource::Idle { engines });
        all.chain(idle).collect()
    }

    /// Returns the state of each engine with its number, and how many did not say it.
    fn snapshots(&mut self, within: Duration) -> (Vec<(u32, Snapshot)>, u32) {
        for (host, asked) in self.hosts.iter().zip(&mut self.asked) {
            let waits = asked
                .as_ref()
                .is_some_and(|answer| matches!(answer.try_recv(), Err(TryRecvError::Empty)));
            if !waits {
                // What has come since the last time is old.
                let (reply, answer) = bounded(1);
                let sent = host.send(Command::Snapshot(reply));
                *asked = sent.is_ok().then_some(answer);
            }
        }
        let until = Instant::now() + within;
        let (mut snapshots, mut idle) = (Vec::new(), 0);
        for (worker, asked) in (0..).zip(&mut self.asked) {
            let Some(answer) = asked else { continue };
            match answer.recv_deadline(until) {
                Ok(snapshot) => snapshots.push((worker, snapshot)),
                Err(RecvTimeoutError::Timeout) => {
                    idle += 1;
                    continue;
                }
                // A worker that has ended has no connections.
                Err(RecvTimeoutError::Disconnected) => {}
            }
            *asked = None;
        }
        (snapshots, idle)
    }
}

/// Returns how often each is there.
fn count<K: Eq + Hash>(all: impl Iterator<Item = K>) -> HashMap<K, u32> {
    let mut counts = HashMap::new();
    for one in all {
        *counts.entry(one).or_default() += 1;
    }
    counts
}

fn pd((pd, users): (PdId, u32)) -> Resource {
    Resource::Pd(PdResource { pdn: pd.0, users })
}

fn mr(stag: StagFacts) -> Resource {
    let kind = match stag.kind {
        StagKind::Region => "region",
        StagKind::Fast => "fast",
        StagKind::Window => "window",
    };
    let (len, access) = stag.opens.unzip();
    // One word, as the values of other keys.
    let word = |text: String| text.replace(", ", ",").replace(' ', "-");
    Resource::Mr(MrResource {
        mrn: stag.slot,
        kind: kind.into(),
        pdn: stag.pd.0,
        len: len.map(|len| len as u64),
        access: access.map(|access| word(access.to_string())),
        page_size: stag.page_size.map(|size| size as u64),
    })
}

fn qp(qp: &QpNow) -> Resource {
    let facts = &*qp.made_of;
    let (rq, srq) = match &facts.receives {
        ReceiveFacts::Own(rq) => (Some(rq), None),
        ReceiveFacts::Shared(srq) => (None, Some(srq.0)),
    };
    let (ird, ord) = qp.ends.and_then(|ends| ends.depths).unzip();
    Resource::Qp(QpResource {
        qpn: qp.number.0,
        state: qp.state.name().into(),
        local: qp.ends.map(|ends| ends.local),
        remote: qp.ends.map(|ends| ends.remote),
        pdn: facts.pd.0,
        scqn: facts.send_cq.0,
        rcqn: facts.recv_cq.0,
        srqn: srq,
        sq_used: facts.sq.len(),
        sq_depth: facts.sq.capacity(),
        rq_used: rq.map(|rq| rq.len()),
        rq_depth: rq.map(|rq| rq.capacity()),
        ird,
        ord,
    })
}

fn connection(
    facts: &ConnectionFacts,
    (depths, protection): (Option<(u16, u16)>, Option<ProtectionFacts>),
    worker: Option<u32>,
) -> ConnectionResource {
    let (ird, ord) = depths.unzip();
    ConnectionResource {
        local: facts.local,
        remote: facts.remote,
        state: format!("{:?}", facts.tcp.state),
        phase: facts.phase.into(),
        qpn: facts.qp.map(|qp| qp.0),
        worker,
        mpa: facts.mpa.map(|mpa| MpaResource {
            mpa: mpa.revision,
            crc: mpa.crc,
            markers: mpa.markers,
            peer_markers: mpa.peer_markers,
            ird,
            ord,
        }),
        protection: protection.as_ref().map(protection_resource),
        tcp: (&facts.tcp).into(),
    }
}

fn protection_resource(facts: &ProtectionFacts) -> ProtectionResource {
    let sa = facts.outbound.as_ref().or(facts.inbound.first());
    ProtectionResource {
        state: facts.state.name().into(),
        required: facts.required,
        mode: sa.map(|sa| sa.mode.to_string()),
        algorithm: sa.map(|sa| sa.algorithm.to_string()),
        spi_out: facts.outbound.map(|sa| sa.spi),
        spi_in: facts.inbound.iter().map(|sa: &SaFacts| sa.spi).collect(),
    }
}

#[cfg(test)]
mod tests;
