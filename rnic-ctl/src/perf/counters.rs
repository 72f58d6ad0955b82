//! The counters of each worker of a device, and of each of its queues.

use std::time::Duration;

use rnic_core::engine::Snapshot;
use rnic_verbs::Device;
use rnic_xdp::QueueStatistics;
use serde_json::{Map, Value, json};

use crate::failure::{Doing, Failure, Outcome};

/// How long to wait for an engine, which replies at once or never.
const PROMPTLY: Duration = Duration::from_secs(2);

/// A worker: the state of its engine, and the counters of its queues.
pub(super) struct WorkerCounters {
    number: usize,
    engine: Snapshot,
    queues: Vec<QueueStatistics>,
}

/// Reads the counters of all workers. A worker in memory has no queues.
pub(super) fn of_workers(device: &Device) -> Outcome<Vec<WorkerCounters>> {
    const WHAT: &str = "ask the workers for their counters";
    let queues = match device.interface() {
        Some(port) => {
            let read = port.statistics().read();
            read.doing("read what was counted of the queues")?
        }
        None => Vec::new(),
    };
    let ask = |number| {
        let answer = device.snapshot_of(number, PROMPTLY).doing(WHAT)?;
        let silent = || Failure::operation(WHAT, format!("worker {number} does not answer"));
        let own = queues.iter().filter(|queue| queue.worker == number);
        Ok(WorkerCounters {
            number,
            engine: answer.ok_or_else(silent)?,
            queues: own.copied().collect(),
        })
    };
    (0..device.workers()).map(ask).collect()
}

fn groups(snapshot: &Snapshot) -> [(&'static str, Vec<(&'static str, u64)>); 4] {
    let drops = snapshot.drops.entries();
    [
        ("engine", snapshot.engine.entries().collect()),
        (
            "drops",
            drops
                .map(|(reason, count)| (reason.name(), count))
                .collect(),
        ),
        ("tcp", snapshot.tcp.entries().collect()),
        ("rdma", snapshot.rdma.entries().collect()),
    ]
}

/// Returns a line for each layer and each queue, without counters that are 0, and one for each
/// reason for which frames were dropped.
pub(super) fn to_lines(worker: &WorkerCounters) -> Vec<String> {
    let line = |title: &str, counters: &[(&'static str, u64)]| {
        let counters = counters.iter().filter(|(_, count)| *count > 0);
        let counters: Vec<_> = counters
            .map(|(name, count)| format!("{name}:{count}"))
            .collect();
        let line = format!(
            " worker {} {title:<7} {}",
            worker.number,
            counters.join(" ")
        );
        line.trim_end().to_owned()
    };
    let layers = groups(&worker.engine);
    let layers = layers.iter().map(|(layer, counters)| line(layer, counters));
    let queues = worker.queues.iter();
    let queues = queues.map(|queue| line(&format!("queue {}", queue.queue), &queue.entries()));
    let drops = worker
        .engine
        .drops
        .entries()
        .filter(|(_, count)| *count > 0);
    let drops = drops.map(|(reason, _)| format!("  {}: {}", reason.name(), reason.text()));
    layers.chain(queues).chain(drops).collect()
}

fn to_map(counters: impl IntoIterator<Item = (&'static str, u64)>) -> Map<String, Value> {
    let counters = counters.into_iter();
    counters
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect()
}

/// Returns all counters as JSON.
pub(super) fn to_json(worker: &WorkerCounters) -> Value {
    let connections = worker.engine.connections.len();
    let mut json = json!({ "worker": worker.number, "connections": connections });
    for (layer, counters) in groups(&worker.engine) {
        json[layer] = to_map(counters).into();
    }
    let queue = |queue: &QueueStatistics| {
        let mut json = to_map(queue.entries());
        json.insert("queue".to_owned(), queue.queue.into());
        json
    };
    json["queues"] = worker.queues.iter().map(queue).collect();
    json
}
