//! When a device is gone, its connections end at once; while it has no link, by their timeouts.

use std::time::Duration;

use rnic_verbs::{
    AsyncEvent, AsyncEvents, ConnectError, ConnectionEvent, ConnectionOptions, EndReason, Error,
    Qp, SendRequest, WcStatus,
};
use rnic_xdp::testing::Namespace;

use crate::rig::{End, Rig, Runs};

const RUNS: [Runs; 2] = [Runs::Thread(Duration::from_millis(1)), Runs::Inline];

/// Waits for the end of a connection.
fn end_of(rig: &Rig, qp: &mut Qp) -> EndReason {
    let mut end = None;
    rig.until("an end", || {
        if let Some(ConnectionEvent::Disconnected(reason)) = qp.next_event(Duration::ZERO).unwrap()
        {
            end = Some(reason);
        }
        end.is_some()
    });
    end.unwrap()
}

fn wait_for(rig: &Rig, events: &mut AsyncEvents, wanted: AsyncEvent) {
    rig.until("an asynchronous event", || {
        events.next(Duration::ZERO).unwrap() == Some(wanted)
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_that_is_removed_or_moved_ends_its_connections_at_once() {
    let elsewhere = Namespace::new("else").unwrap();
    let moves = format!("link set dev east netns {}", elsewhere.name());
    for (how, runs) in ["link del dev east", &moves].into_iter().zip(RUNS) {
        let rig = Rig::new(1500, 2, runs);
        let (mut client, server) = rig.connect("10.77.0.2:4420", 1 << 20);
        let listener = rig
            .east
            .run(|| rig.client.listen("10.77.0.1:4420".parse().unwrap()))
            .unwrap();
        let mut events = rig.client.async_events().unwrap();
        let sge = [client.mr.sge(0, 1 << 20)];
        for wr_id in 0..32 {
            let write = SendRequest::write(server.mr.remote(0)).memory(&sge);
            client.qp.post_send(&write.wr_id(wr_id)).unwrap();
        }
        rig.east.ip(how).unwrap();
        assert_eq!(end_of(&rig, &mut client.qp), EndReason::DeviceGone);
        let mut completed = 0;
        rig.until("every request completes", || {
            while let Some(completion) = client.cq.poll_one() {
                let status = completion.status();
                assert!(matches!(status, WcStatus::Success | WcStatus::WrFlushed));
                completed += 1;
            }
            completed == 32
        });
        wait_for(&rig, &mut events, AsyncEvent::DeviceFatal);
        // Calls do not wait for what cannot come any more.
        let waited = listener.next_request(Duration::from_secs(3600));
        assert!(matches!(waited, Err(Error::DeviceGone)), "{waited:?}");
        let mut late = End::new(&rig.client, 4096);
        let to = "10.77.0.2:4420".parse().unwrap();
        let options = ConnectionOptions::default();
        let connected = rig.east.run(|| late.qp.connect_blocking(to, None, options));
        assert!(
            matches!(
                connected,
                Err(ConnectError::Device(_) | ConnectError::Failed(_))
            ),
            "{connected:?}"
        );
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn connections_end_by_their_timeouts_while_the_link_is_down() {
    let options = || ConnectionOptions {
        user_timeout: Some(Duration::from_secs(1)),
        ..ConnectionOptions::default()
    };
    for runs in RUNS {
        let rig = Rig::new(1500, 2, runs);
        let (mut client, server) = rig.connect_with("10.77.0.2:4420", 1 << 20, options);
        let mut events = rig.client.async_events().unwrap();
        rig.east.ip("link set dev east down").unwrap();
        wait_for(&rig, &mut events, AsyncEvent::PortError);
        let sge = [client.mr.sge(0, 1 << 20)];
        for wr_id in 0..32 {
            let write = SendRequest::write(server.mr.remote(0)).memory(&sge);
            client.qp.post_send(&write.wr_id(wr_id)).unwrap();
        }
        assert_eq!(end_of(&rig, &mut client.qp), EndReason::TimedOut);
        drop((client, server));
        rig.east.ip("link set dev east up").unwrap();
        wait_for(&rig, &mut events, AsyncEvent::PortActive);
        let address = "10.77.0.2:4422".parse().unwrap();
        let listener = rig.west.run(|| rig.server.listen(address)).unwrap();
        rig.until("the other end is reached", || rig.reaches(&listener));
        // No transmit frames were lost.
        let (mut client, mut server) = rig.connect_with("10.77.0.2:4421", 1 << 20, options);
        rig.exchange(&mut client, &mut server, 1 << 20);
    }
}
