//! What each worker of a device has counted.

use std::time::Duration;

use rnic_core::engine::Snapshot;
use rnic_verbs::Device;
use serde_json::{Map, Value, json};

use crate::failure::{Doing, Failure, Outcome};

/// An engine answers at once, or never.
const PROMPTLY: Duration = Duration::from_secs(2);

/// The state of each worker's engine.
pub(super) fn of_workers(device: &Device) -> Outcome<Vec<Snapshot>> {
    const WHAT: &str = "ask the workers for their counters";
    let ask = |worker| {
        let answer = device.snapshot_of(worker, PROMPTLY).doing(WHAT)?;
        answer.ok_or_else(|| Failure::operation(WHAT, format!("worker {worker} does not answer")))
    };
    (0..device.workers()).map(ask).collect()
}

fn groups(snapshot: &Snapshot) -> [(&'static str, Vec<(&'static str, u64)>); 3] {
    [
        ("engine", snapshot.engine.entries().collect()),
        ("tcp", snapshot.tcp.entries().collect()),
        ("rdma", snapshot.rdma.entries().collect()),
    ]
}

/// A line for each layer, without what never happened.
pub(super) fn to_lines(worker: usize, snapshot: &Snapshot) -> Vec<String> {
    let line = |(layer, counters): (&str, Vec<(&str, u64)>)| {
        let counters = counters.into_iter().filter(|(_, count)| *count > 0);
        let counters: Vec<_> = counters
            .map(|(name, count)| format!("{name}:{count}"))
            .collect();
        format!(" worker {worker} {layer:<7} {}", counters.join(" "))
    };
    groups(snapshot).map(line).into()
}

/// All of them.
pub(super) fn to_json(worker: usize, snapshot: &Snapshot) -> Value {
    let mut json = json!({ "worker": worker, "connections": snapshot.connections.len() });
    for (layer, counters) in groups(snapshot) {
        let counters = counters.into_iter();
        let counters: Map<_, _> = counters
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        json[layer] = counters.into();
    }
    json
}
