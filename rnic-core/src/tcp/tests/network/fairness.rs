//! How connections share a bottleneck.

use core::time::Duration;

use super::{Bottleneck, Network};
use crate::tcp::tests::script::{ms, seconds};
use crate::tcp::{CongestionAlgorithm, EcnMode, TcpConfig};

const CUBIC: CongestionAlgorithm = CongestionAlgorithm::Cubic;
const NEW_RENO: CongestionAlgorithm = CongestionAlgorithm::NewReno;

/// A bottleneck of 100 Mb/s whose queue holds 20 ms.
fn path() -> Bottleneck {
    Bottleneck {
        bandwidth: 100_000_000,
        queue: 250_000,
        loss: 0,
        reordering: 0,
        late: Duration::ZERO,
        mark_above: None,
    }
}

fn config(congestion: CongestionAlgorithm) -> TcpConfig {
    TcpConfig {
        congestion,
        receive_window: 8 << 20,
        ..TcpConfig::default()
    }
}

/// Returns the goodput of connections in megabits per second, from the twentieth second to the
/// eightieth. Each has an algorithm, a round-trip time, and a time at which it opens.
fn shares(flows: &[(CongestionAlgorithm, u64, u64)]) -> Vec<f64> {
    let mut network = Network::new(path());
    for &(algorithm, round_trip, at) in flows {
        network.open(&config(algorithm), ms(round_trip), seconds(at));
    }
    network.run(seconds(20), u64::MAX);
    let received = |network: &Network| -> Vec<u64> {
        (0..flows.len())
            .map(|flow| network.received(flow))
            .collect()
    };
    let before = received(&network);
    network.run(seconds(60), u64::MAX);
    let rates = received(&network).into_iter().zip(before);
    rates
        .map(|(after, before)| (after - before) as f64 * 8.0 / 60e6)
        .collect()
}

/// Returns Jain's index: 1 where all get the same, 1 / n where one gets all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[track_caller]
fn expect_fair(flows: &[(CongestionAlgorithm, u64, u64)], least: f64) {
    let shares = shares(flows);
    println!("{flows:?}: {shares:.1?} Mb/s, index {:.3}", jain(&shares));
    assert!(shares.iter().sum::<f64>() > 85.0, "{shares:?} Mb/s");
    assert!(jain(&shares) > least, "{shares:?} Mb/s");
}

#[test]
fn equals_share_equally() {
    expect_fair(&[(CUBIC, 20, 0), (CUBIC, 20, 0)], 0.9);
    expect_fair(&[(NEW_RENO, 20, 0), (NEW_RENO, 20, 0)], 0.9);
}

#[test]
fn who_comes_later_gets_its_share() {
    expect_fair(&[(CUBIC, 20, 0), (CUBIC, 20, 10)], 0.9);
}

#[test]
fn cubic_leaves_newreno_its_share() {
    expect_fair(&[(CUBIC, 20, 0), (NEW_RENO, 20, 0)], 0.9);
}

#[test]
fn a_longer_path_is_not_starved() {
    expect_fair(&[(CUBIC, 10, 0), (CUBIC, 40, 0)], 0.7);
}

#[test]
fn marks_instead_of_losses_keep_the_bottleneck_busy() {
    let mut network = Network::new(Bottleneck {
        mark_above: Some(60_000),
        ..path()
    });
    let config = TcpConfig {
        ecn: EcnMode::Ask,
        ..config(CUBIC)
    };
    let flow = network.open(&config, ms(20), Duration::ZERO);
    network.run(seconds(5), u64::MAX);
    assert!(network.sender(flow).uses_ecn());
    let (before, dropped) = (network.received(flow), network.dropped);
    network.run(seconds(20), u64::MAX);
    let rate = (network.received(flow) - before) as f64 * 8.0 / 20e6;
    println!("{rate:.1} Mb/s, {} marks", network.marked);
    assert!(rate > 75.0, "{rate} Mb/s");
    assert!(network.marked > 0);
    assert_eq!(network.dropped, dropped);
    assert_eq!(network.sender(flow).counters().timeouts, 0);
}

#[test]
fn pacing_shortens_the_queue_of_a_window_that_is_not_full() {
    // A window of 1 MB over 100 ms at 1 Gb/s fills an eighth of the path.
    let mut network = Network::new(Bottleneck {
        bandwidth: 1_000_000_000,
        queue: 1 << 20,
        ..path()
    });
    let config = TcpConfig {
        receive_window: 1 << 20,
        receive_window_limit: 0,
        ..config(CUBIC)
    };
    let flow = network.open(&config, ms(100), Duration::ZERO);
    network.run(seconds(5), u64::MAX);
    assert!(network.sender(flow).pacing_rate().is_some());
    println!("longest queue {}", network.longest_queue);
    assert!(
        network.longest_queue < 256 * 1024,
        "{}",
        network.longest_queue
    );
}
