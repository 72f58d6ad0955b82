//! How the two queue pairs of a connection meet. Whoever calls has locked the settings.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rnic_core::wire::hello::{self, Hello, Kind, Receipts, Refusal};
use rnic_verbs::{
    Access, ConnectRequest, ConnectionEvent, ConnectionOptions, Established, Keepalive, WcStatus,
};
use tracing::debug;

use crate::abi::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QPS_ERR,
    IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTS,
};
use crate::objects::Qp;
use crate::rendezvous::reject::reject;
use crate::rendezvous::waiting::Waiting;
use crate::settings::{MAX_READS, Meeting, Settings, Stage};
use rnic_verbs::rdma::gid_of;

/// How long a side waits before it tries again for the first time, and at most. The pause doubles.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a side waits for its program to move the queue pair from RTR to RTS, before it connects
/// without the PSN that it will send.
const SOON: Duration = Duration::from_millis(10);

/// When a silent peer is probed: nobody else tells that its host was started anew.
const PROBES: Keepalive = Keepalive {
    idle: Duration::from_secs(5),
    interval: Duration::from_secs(1),
    count: u8::MAX,
};

/// How long an attempt lasts. Longer than a request [waits](crate::rendezvous::waiting::PATIENCE):
/// a side that gave up while the other one accepts would end its connection.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(90);

/// A time that never ends, where the program wants none.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// The least time that a peer has to answer: programs set times for adapters, and software on a
/// busy host takes longer.
const LEAST_PATIENCE: Duration = Duration::from_secs(4);

/// Returns what a side says of itself.
fn hello_of(qp: &Qp, settings: &Settings, meeting: &Meeting) -> Hello {
    // The kernel acknowledges what this process has not placed yet.
    let by_sockets = qp
        .adapter
        .device()
        .is_ok_and(|device| device.kernel().is_some());
    Hello {
        kind: Kind::QueuePairs,
        own: meeting.own,
        peer: meeting.peer,
        rq_psn: settings.attr.rq_psn,
        sq_psn: settings.may_send().then_some(settings.attr.sq_psn),
        gid: gid_of(meeting.local.ip()),
        receipts: match by_sockets {
            true => Receipts::Sent,
            false => Receipts::Known,
        },
    }
}

/// Returns how a connection is to be set up.
fn options(qp: &Qp, settings: &Settings, meeting: &Meeting) -> ConnectionOptions {
    ConnectionOptions {
        ird: settings.attr.max_dest_rd_atomic.into(),
        // What the peer accepts decides.
        ord: MAX_READS,
        private_data: hello_of(qp, settings, meeting).octets(None).to_vec(),
        peer_to_peer: true,
        traffic_class: settings.attr.ah_attr.grh.traffic_class,
        keepalive: Some(PROBES),
        user_timeout: patience(settings),
        connect_timeout: LONGEST_ATTEMPT,
        min_rnr_timer: min_rnr_timer(settings.attr.min_rnr_timer),
        rc: true,
        remote_access: remote_access(settings.attr.qp_access_flags),
        ..ConnectionOptions::default()
    }
}

/// Returns what a peer may do by the flags of a queue pair.
pub(super) fn remote_access(flags: u32) -> Access {
    let rights = [
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ];
    let given = rights.into_iter().filter(|(flag, _)| flags & flag != 0);
    given.fold(Access::default(), |all, (_, right)| all | right)
}

/// Returns the time that a code of InfiniBand stands for: how long a peer waits that has found no
/// receive.
fn min_rnr_timer(code: u8) -> Duration {
    /// In hundredths of a millisecond, by the code.
    const TIMES: [u32; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    Duration::from_micros(10) * TIMES[usize::from(code) % TIMES.len()]
}

/// Returns how long the peer may take to acknowledge a request. The program sets it with RTS; a time
/// of 0 has no end.
fn patience(settings: &Settings) -> Option<Duration> {
    let attr = &settings.attr;
    match (settings.may_send(), attr.timeout) {
        (true, 0) => return Some(FOR_EVER),
        (true, _) => {}
        (false, _) => return None,
    }
    // 4.096 us, doubled so many times, for each of the attempts.
    let once = Duration::from_nanos(4096 << attr.timeout.min(31));
    let patience = once * (u32::from(attr.retry_cnt) + 1);
    Some(patience.max(LEAST_PATIENCE))
}

/// Begins: the program has named the other side.
pub(super) fn begin(qp: &Qp, settings: &mut Settings, waiting: &Waiting) {
    let Some(meeting) = &mut settings.meeting else {
        return;
    };
    debug!(
        "queue pair {:#x} {} {:#x} at {}",
        meeting.own,
        if meeting.connects {
            "connects to"
        } else {
            "waits for"
        },
        meeting.peer,
        meeting.remote
    );
    if meeting.connects {
        meeting.not_before = Instant::now() + SOON;
        waiting.again_by(meeting.own, meeting.not_before);
    }
    look_again(qp, settings, waiting);
}

/// Looks at the requests that wait for a queue pair.
fn look_again(qp: &Qp, settings: &mut Settings, waiting: &Waiting) {
    let Some(own) = settings.meeting.as_ref().map(|meeting| meeting.own) else {
        return;
    };
    for (request, hello) in waiting.requests_for(own) {
        ask(qp, settings, waiting, request, hello);
    }
}

/// What is done with a request.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Accept,
    /// It waits until the program has moved the queue pair, or its connection has failed.
    Keep,
    Reject(Refusal),
}

/// Decides on the request of a peer with this address.
fn answer(settings: &Settings, hello: &Hello, from: IpAddr) -> Answer {
    let Some(meeting) = &settings.meeting else {
        return match settings.state {
            IBV_QPS_RESET | IBV_QPS_INIT => Answer::Keep,
            _ => Answer::Reject(Refusal::OtherPeer),
        };
    };
    let is_peer = hello.own == meeting.peer
        && from.to_canonical() == meeting.remote.ip().to_canonical()
        && hello.gid == gid_of(meeting.remote.ip());
    if !is_peer || (meeting.connects && meeting.mirror.is_none()) {
        return Answer::Reject(Refusal::OtherPeer);
    }
    match meeting.stage {
        // The other end is this one's own, which has begun to connect, with its own PSN.
        Stage::Meeting if meeting.mirror.is_some() => match hello.rq_psn == settings.attr.rq_psn {
            true => Answer::Accept,
            false => Answer::Reject(Refusal::Psn),
        },
        Stage::Apart if !fits(settings, hello) => Answer::Reject(Refusal::Psn),
        Stage::Apart => Answer::Accept,
        // The peer has begun anew: its former attempt has failed, or will.
        Stage::Meeting | Stage::Met | Stage::Left => Answer::Keep,
        Stage::Over => Answer::Reject(Refusal::OtherPeer),
    }
}

/// Returns whether the PSNs of a peer are those that the program expects, as far as both are known.
fn fits(settings: &Settings, hello: &Hello) -> bool {
    let sends = hello.sq_psn.is_none_or(|psn| psn == settings.attr.rq_psn);
    sends && has_psn(settings, hello.rq_psn)
}

/// Returns whether the queue pair sends with the PSN that the other side expects, as far as the
/// program has said.
fn has_psn(settings: &Settings, expected: u32) -> bool {
    !settings.may_send() || settings.attr.sq_psn == expected
}

/// Handles the request of a peer.
pub(super) fn ask(
    qp: &Qp,
    settings: &mut Settings,
    waiting: &Waiting,
    request: ConnectRequest,
    hello: Hello,
) {
    match answer(settings, &hello, request.peer().ip()) {
        Answer::Reject(refusal) => reject(request, &hello, refusal),
        Answer::Keep => waiting.keep(request, hello),
        Answer::Accept => accept(qp, settings, request, &hello),
    }
}

fn accept(qp: &Qp, settings: &mut Settings, request: ConnectRequest, hello: &Hello) {
    let Some(meeting) = &settings.meeting else {
        return;
    };
    let (options, own) = (options(qp, settings, meeting), meeting.own);
    let mirror = settings
        .meeting
        .as_mut()
        .and_then(|meeting| meeting.mirror.as_mut());
    let is_mirror = mirror.is_some();
    let accepted = match mirror {
        Some(mirror) => request.accept(mirror, options),
        None => request.accept(&mut qp.lock(), options),
    };
    match accepted {
        // The queue pair itself connects.
        Ok(()) if is_mirror => {}
        Ok(()) => {
            if let Some(meeting) = &mut settings.meeting {
                meeting.expected = hello.rq_psn;
                meeting.stage = Stage::Meeting;
            }
        }
        // The peer was rejected, and asks again.
        Err(why) => debug!("queue pair {own:#x} cannot accept: {why}"),
    }
}

fn move_on(settings: &mut Settings, stage: Stage) {
    if let Some(meeting) = &mut settings.meeting {
        meeting.stage = stage;
    }
}

/// Connects to the other side, or has it tried again.
fn connect(qp: &Qp, settings: &mut Settings, waiting: &Waiting) {
    let Some(meeting) = &settings.meeting else {
        return;
    };
    let options = options(qp, settings, meeting);
    let (remote, local) = (meeting.remote, meeting.local);
    let begun = qp.lock().connect(remote, Some(local), options);
    match begun {
        Ok(()) => move_on(settings, Stage::Meeting),
        Err(why) => {
            debug!("queue pair {:#x} cannot connect: {why}", meeting.own);
            try_again(settings, waiting);
        }
    }
}

/// Has the queue pair go on a while later.
fn try_again(settings: &mut Settings, waiting: &Waiting) {
    let Some(meeting) = &mut settings.meeting else {
        return;
    };
    meeting.stage = Stage::Apart;
    meeting.not_before = Instant::now() + meeting.pause;
    waiting.again_by(meeting.own, meeting.not_before);
    meeting.pause = (meeting.pause * 2).min(LONGEST_PAUSE);
}

/// Tells that the program has moved the queue pair to RTS.
pub(super) fn may_send(qp: &Qp, settings: &mut Settings, waiting: &Waiting) {
    let Some(meeting) = &settings.meeting else {
        return;
    };
    if meeting.stage == Stage::Met {
        // It began without. Fails only where there is no engine any more.
        let _ = qp.lock().set_user_timeout(patience(settings));
    }
    match meeting.stage {
        Stage::Met if !has_psn(settings, meeting.expected) => give_up(qp, settings),
        Stage::Met | Stage::Over => {}
        // Requests may wait from now on.
        Stage::Apart | Stage::Meeting | Stage::Left => {
            waiting.again_by(meeting.own, Instant::now());
            match (meeting.connects, meeting.stage) {
                (true, Stage::Apart) => connect(qp, settings, waiting),
                (true, _) => {}
                // PSNs can be compared now.
                (false, _) => look_again(qp, settings, waiting),
            }
        }
    }
}

/// Goes on with what is due: another attempt to connect, or the end of patience with a peer that
/// does not come.
pub(super) fn go_on(qp: &Qp, settings: &mut Settings, waiting: &Waiting, now: Instant) {
    let limit = patience(settings);
    let Some(meeting) = &mut settings.meeting else {
        return;
    };
    if !matches!(meeting.stage, Stage::Apart | Stage::Meeting | Stage::Left) {
        return;
    }
    let waits = {
        let inner = qp.lock();
        let has_requests = inner.send_room() < inner.caps().max_send_wr;
        // In SQD requests wait for the program, except for those that had begun before.
        has_requests && (settings.state == IBV_QPS_RTS || inner.is_draining())
    };
    meeting.waits_since = waits.then(|| meeting.waits_since.unwrap_or(now));
    if let (Some(since), Some(limit)) = (meeting.waits_since, limit)
        && now >= since + limit
    {
        return give_up(qp, settings);
    }
    let own = meeting.own;
    if meeting.connects && meeting.stage == Stage::Apart && now >= meeting.not_before {
        connect(qp, settings, waiting);
    }
    if settings.may_send() {
        waiting.again_by(own, now + LONGEST_PAUSE);
    }
}

/// Fails a queue pair whose peer does not answer, or does not expect what it sends.
fn give_up(qp: &Qp, settings: &mut Settings) {
    // Fails only where there is no engine any more.
    let _ = qp.lock().fail_as(WcStatus::RetryExceeded);
    end(qp, settings);
}

/// Notes that a queue pair is in the error state. What is posted from now on is flushed.
pub(crate) fn end(qp: &Qp, settings: &mut Settings) {
    qp.lock().open_sends(true);
    move_on(settings, Stage::Over);
    settings.state = IBV_QPS_ERR;
    let meeting = settings.meeting.as_mut();
    if let Some(mirror) = meeting.and_then(|meeting| meeting.mirror.as_mut()) {
        // Its receives are flushed. Fails only where there is no engine any more.
        let _ = mirror.fail();
    }
}

/// Follows the events of a connection.
pub(super) fn follow(qp: &Qp, settings: &mut Settings, waiting: &Waiting, event: ConnectionEvent) {
    match event {
        ConnectionEvent::Established(established) => meet(qp, settings, &established),
        ConnectionEvent::Rejected { private_data, .. } => {
            debug!("a peer has rejected: {}", hello::why(&private_data));
            after_failure(qp, settings, waiting);
        }
        ConnectionEvent::Failed(reason) => {
            debug!("connecting has failed: {reason}");
            after_failure(qp, settings, waiting);
        }
        // InfiniBand does not tell: a request does that is not answered in its time.
        ConnectionEvent::PeerLeft(_) => leave_behind(settings, waiting),
        ConnectionEvent::Disconnected(_) => end(qp, settings),
    }
}

/// Notes that the other side has left.
fn leave_behind(settings: &mut Settings, waiting: &Waiting) {
    if let Some(meeting) = &mut settings.meeting
        && meeting.stage == Stage::Met
    {
        meeting.stage = Stage::Left;
        waiting.again_by(meeting.own, Instant::now());
    }
}

fn after_failure(qp: &Qp, settings: &mut Settings, waiting: &Waiting) {
    let connects = match &settings.meeting {
        Some(meeting) if meeting.stage == Stage::Meeting => meeting.connects,
        _ => return,
    };
    if connects {
        return try_again(settings, waiting);
    }
    move_on(settings, Stage::Apart);
    look_again(qp, settings, waiting);
}

/// Handles that the connection is there.
fn meet(qp: &Qp, settings: &mut Settings, established: &Established) {
    let Some(meeting) = &mut settings.meeting else {
        return;
    };
    // The engine has compared the numbers of a Reply.
    if meeting.connects
        && let Some(hello) = Hello::parse(&established.private_data)
    {
        meeting.expected = hello.rq_psn;
    }
    meeting.stage = Stage::Met;
    if settings.may_send() {
        // The program may have set it since the attempt began.
        let _ = qp.lock().set_user_timeout(patience(settings));
    }
    if !has_psn(
        settings,
        settings
            .meeting
            .as_ref()
            .map_or(0, |meeting| meeting.expected),
    ) {
        give_up(qp, settings);
    }
}

/// Returns whether this side connects: the one with the smaller GID and number.
pub(crate) fn connects(own: (SocketAddr, u32), peer: (SocketAddr, u32)) -> bool {
    let key = |(at, number): (SocketAddr, u32)| (gid_of(at.ip()), number);
    key(own) < key(peer)
}
