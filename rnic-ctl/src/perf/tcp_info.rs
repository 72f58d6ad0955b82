//! The state of TCP of the connections of a test.

use std::time::Duration;

use rnic_core::connection::ConnectionFacts;
use rnic_verbs::Device;
use serde_json::{Map, Value, json};

use crate::failure::{Doing, Failure, Outcome};

/// How long to wait for the engine, which replies at once or never.
const PROMPTLY: Duration = Duration::from_secs(2);

/// Reads the state of all connections of a device.
pub(super) fn connections(device: &Device) -> Outcome<Vec<ConnectionFacts>> {
    const WHAT: &str = "ask for the state of TCP";
    let snapshot = device.snapshot(PROMPTLY).doing(WHAT)?;
    let snapshot =
        snapshot.ok_or_else(|| Failure::operation(WHAT, "the engine does not answer"))?;
    Ok(snapshot.connections)
}

/// Returns a line in the form of `ss -ti`.
pub(super) fn to_line(connection: &ConnectionFacts) -> String {
    let ConnectionFacts {
        local, remote, tcp, ..
    } = connection;
    format!(" {local} {remote} {tcp}")
}

/// Returns the whole state as JSON. Times are in milliseconds, sizes in octets.
pub(super) fn to_json(connection: &ConnectionFacts) -> Value {
    let tcp = &connection.tcp;
    let millis = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let counters: Map<_, _> = tcp
        .counters
        .entries()
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect();
    json!({
        "local": connection.local.to_string(),
        "remote": connection.remote.to_string(),
        "state": connection.state,
        "rtt": tcp.rtt.map(|(rtt, _)| millis(rtt)),
        "rttvar": tcp.rtt.map(|(_, variation)| millis(variation)),
        "minrtt": tcp.min_rtt.map(millis),
        "reordering_window": millis(tcp.reo_wnd),
        "rto": millis(tcp.rto),
        "backoff": tcp.backoff,
        "mss": tcp.mss,
        "path_mss": tcp.path_mss,
        "cwnd": tcp.cwnd,
        "ssthresh": tcp.ssthresh,
        "congestion": tcp.congestion.to_string(),
        "pacing_rate": tcp.pacing_rate,
        "delivery_rate": tcp.delivery_rate.map(|rate| rate.octets_per_second),
        "application_limited": tcp.delivery_rate.map(|rate| rate.application_limited),
        "unacked": tcp.unacked,
        "in_flight": tcp.in_flight,
        "sacked": tcp.sacked,
        "lost": tcp.lost,
        "retransmitted": tcp.retransmitted,
        "send_window": tcp.send_window,
        "receive_window": tcp.receive_window,
        "bytes_acked": tcp.acked,
        "bytes_received": tcp.received,
        "last_sent": tcp.last_sent.map(millis),
        "last_received": millis(tcp.last_received),
        "timer": tcp.timer.map(millis),
        "counters": counters,
    })
}
