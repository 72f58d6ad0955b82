//! Send queues that the application stops.

use std::time::{Duration, Instant};

use rnic_verbs::{
    AsyncEvent, AsyncEvents, Completion, ConnectionOptions, Device, Listener, SendRequest, Sge,
};

use crate::fixture::{INLINE, Side, devices, settle};

/// Two devices that the test drives, and a connection between them.
struct Scene {
    near: Side,
    far: Side,
    events: AsyncEvents,
    devices: [Device; 2],
    listener: Listener,
}

impl Scene {
    fn apart() -> Self {
        let (near_device, far_device, address) = devices(INLINE);
        Self {
            near: Side::new(&near_device),
            far: Side::new(&far_device),
            events: near_device.async_events().unwrap(),
            listener: far_device.listen(address).unwrap(),
            devices: [near_device, far_device],
        }
    }

    fn connect(&mut self, options: &ConnectionOptions) {
        let to = self.listener.local_address();
        self.near.qp.connect(to, None, options.clone()).unwrap();
        self.settle();
        let request = self.listener.next_request(Duration::ZERO).unwrap().unwrap();
        request.accept(&mut self.far.qp, options.clone()).unwrap();
        self.settle();
    }

    fn settle(&self) {
        settle(&[&self.devices[0], &self.devices[1]]);
    }

    /// Lets the near side do what it can without an answer.
    fn settle_near(&self) {
        settle(&[&self.devices[0]]);
    }

    fn event(&mut self) -> Option<AsyncEvent> {
        self.events.next(Duration::ZERO).unwrap()
    }

    fn drained(&self) -> Option<AsyncEvent> {
        let qp = self.near.qp.number();
        Some(AsyncEvent::SqDrained { qp })
    }

    /// Drives both sides until something has completed well at the near side. That may take until a
    /// timer has run, where this thread had no processor for long.
    fn next_completed(&mut self) -> Vec<u64> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            self.settle();
            let done = self.completed();
            if !done.is_empty() {
                return done;
            }
            assert!(Instant::now() < deadline, "nothing completes");
            std::thread::yield_now();
        }
    }

    /// Removes and returns the ids of what has completed well at the near side.
    fn completed(&mut self) -> Vec<u64> {
        let mut done = [Completion::default(); 8];
        let count = self.near.cq.take(&mut done);
        assert!(done[..count].iter().all(Completion::is_success));
        done[..count].iter().map(Completion::wr_id).collect()
    }
}

/// Makes a request for the memory of the other side.
type Kind = for<'a> fn(&Side, &'a [Sge]) -> SendRequest<'a>;

fn each(run: impl Fn(Kind, &ConnectionOptions)) {
    let kinds: [Kind; 3] = [
        |far, piece| SendRequest::write(far.mr.remote(0)).memory(piece),
        |far, piece| SendRequest::read(far.mr.remote(0)).memory(piece),
        |_, piece| SendRequest::send().memory(piece),
    ];
    for kind in kinds {
        for rc in [false, true] {
            let options = ConnectionOptions {
                rc,
                ..ConnectionOptions::default()
            };
            run(kind, &options);
        }
    }
}

#[test]
fn what_has_begun_is_finished_and_what_is_posted_then_waits() {
    each(|kind, options| {
        for length in [8, 50_000] {
            let mut scene = Scene::apart();
            scene.connect(options);
            for wr_id in 0..4 {
                let piece = [scene.far.mr.sge(0, length)];
                scene.far.qp.post_recv(wr_id, &piece).unwrap();
            }
            let piece = [scene.near.mr.sge(0, length)];
            let request = |scene: &Scene, wr_id| kind(&scene.far, &piece).wr_id(wr_id);
            for round in 0..2 {
                let begun = request(&scene, 1);
                scene.near.qp.post_send(&begun).unwrap();
                scene.settle_near();
                scene.near.qp.stop_sends().unwrap();
                scene.settle_near();
                let waits = request(&scene, 2);
                scene.near.qp.post_send(&waits).unwrap();
                scene.settle_near();
                assert!(scene.near.qp.is_draining(), "round {round}");
                assert_eq!(scene.event(), None);
                assert_eq!(scene.next_completed(), [1]);
                assert!(!scene.near.qp.is_draining());
                assert_eq!(scene.event(), scene.drained());
                scene.near.qp.resume_sends().unwrap();
                assert_eq!(scene.next_completed(), [2]);
                assert_eq!(scene.event(), None, "it is told once");
            }
        }
    });
}

#[test]
fn a_stop_outlasts_the_attempt_to_connect() {
    each(|kind, options| {
        let mut scene = Scene::apart();
        scene
            .far
            .qp
            .post_recv(1, &[scene.far.mr.sge(0, 8)])
            .unwrap();
        scene.near.qp.open_sends(true);
        scene.near.qp.stop_sends().unwrap();
        scene.settle();
        assert_eq!(scene.event(), scene.drained());
        let piece = [scene.near.mr.sge(0, 8)];
        let request = kind(&scene.far, &piece).wr_id(3);
        scene.near.qp.post_send(&request).unwrap();
        scene.connect(options);
        assert!(scene.completed().is_empty());
        assert_eq!(scene.event(), None);
        scene.near.qp.resume_sends().unwrap();
        scene.settle();
        assert_eq!(scene.completed(), [3]);
    });
}

#[test]
fn each_stop_is_told_unless_it_is_over_before_and_a_failure_flushes() {
    let mut scene = Scene::apart();
    scene.connect(&ConnectionOptions::default());
    let remote = scene.far.mr.remote(0);
    for _ in 0..2 {
        let begun = SendRequest::write(remote).inline(b"begun").wr_id(1);
        scene.near.qp.post_send(&begun).unwrap();
        scene.settle_near();
        scene.near.qp.stop_sends().unwrap();
        scene.near.qp.resume_sends().unwrap();
        scene.settle();
        assert_eq!(scene.completed(), [1]);
        assert_eq!(scene.event(), None, "it was not stopped any more");
        scene.near.qp.stop_sends().unwrap();
        scene.settle();
        assert_eq!(scene.event(), scene.drained());
        scene.near.qp.resume_sends().unwrap();
    }
    scene.near.qp.stop_sends().unwrap();
    scene.settle();
    assert_eq!(scene.event(), scene.drained());
    assert_eq!(scene.event(), None);
    let waits = SendRequest::write(remote).inline(b"flushed");
    scene.near.qp.post_send(&waits).unwrap();
    scene.near.qp.fail().unwrap();
    scene.settle();
    let mut done = [Completion::default(); 2];
    assert_eq!(scene.near.cq.take(&mut done), 1);
    assert_eq!(done[0].status(), rnic_verbs::WcStatus::WrFlushed);
}
