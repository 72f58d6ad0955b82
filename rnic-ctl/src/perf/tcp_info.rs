//! The state of TCP of the connections of a test.

use std::time::Duration;

use rnic_core::connection::ConnectionFacts;
use rnic_verbs::Device;
use rnic_verbs::resource::TcpResource;
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
    format!(
        " {local} {remote} {:?} {}",
        tcp.state,
        TcpResource::from(tcp)
    )
}

/// Returns the whole state as JSON, with the keys of `rnic-ctl conn`.
pub(super) fn to_json(connection: &ConnectionFacts) -> Value {
    let ends = json!({
        "local": connection.local.to_string(),
        "remote": connection.remote.to_string(),
        "state": connection.state,
    });
    let tcp = serde_json::to_value(TcpResource::from(&connection.tcp)).unwrap_or_default();
    let counters: Map<_, _> = connection
        .tcp
        .counters
        .entries()
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect();
    let parts = [ends, tcp, json!({ "counters": counters })];
    let fields = parts.into_iter().filter_map(|part| match part {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    Value::Object(fields.flatten().collect())
}
