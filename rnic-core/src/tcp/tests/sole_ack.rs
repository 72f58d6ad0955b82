//! The fast path of a sole ACK has the same outcome as the ordinary way.

use core::time::Duration;

use super::script::{Script, ms, plain};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The application has so many more octets to send.
    Write(u64),
    /// The peer sends an octet, and acknowledges so many more octets, as far as they were sent.
    Ack(u64),
    /// The peer sends an octet and a SACK block: so many octets of ours are missing in front of so
    /// many.
    Sack(u64, u64),
    /// So many microseconds pass.
    Pass(u64),
}

/// Two connections that see the same, of which one has no fast path.
struct Twins {
    short: Script,
    long: Script,
    /// Octets that the peer has sent.
    heard: u64,
}

impl Twins {
    fn open() -> Self {
        let open = || Script::over_path(&plain(), "mss 1000,sackOK", ms(3));
        let (short, long) = (open(), open());
        Self {
            short,
            long,
            heard: 0,
        }
    }

    fn each(&mut self, mut run: impl FnMut(&mut Script)) {
        run(&mut self.short);
        run(&mut self.long);
    }

    /// Lets the peer acknowledge so many octets more.
    fn acknowledge(&mut self, octets: u64, sack: Option<(u64, u64)>) {
        let (una, nxt) = (self.short.tcp.send.una(), self.short.tcp.send.nxt());
        let ack = una.saturating_add(octets).min(nxt) + 1;
        let sack = sack.map_or(String::new(), |(gap, len)| {
            let from = (ack + gap).min(nxt);
            let to = (from + len).min(nxt + 1);
            format!(" <sack {from}:{to}>")
        });
        let from = self.heard + 1;
        let text = format!("P. {from}:{}(1) ack {ack}{sack}", from + 1);
        self.heard += 1;
        assert_eq!(self.short.inject(&text), self.long.inject_long(&text));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(octets) => self.each(|one| one.write(octets)),
            Step::Ack(octets) => self.acknowledge(octets, None),
            Step::Sack(gap, len) => self.acknowledge(0, Some((gap, len))),
            Step::Pass(micros) => self.each(|one| {
                one.pass(Duration::from_micros(micros));
            }),
        }
        loop {
            let [short, long] = [&mut self.short, &mut self.long]
                .map(|one| one.next().map(|sent| sent.show("win <>")));
            assert_eq!(short, long);
            if short.is_none() {
                break;
            }
        }
        let [short, long] = [&self.short, &self.long].map(|one| format!("{:#?}", one.tcp));
        assert_eq!(short, long, "after {step:?}");
    }
}

#[test]
fn messages_one_by_one_go_the_short_way() {
    let mut twins = Twins::open();
    for _ in 0..20 {
        twins.step(Step::Write(64));
        twins.step(Step::Pass(7));
        twins.step(Step::Ack(64));
    }
    assert_eq!(twins.short.tcp.acked_offset(), 20 * 64);
}

/// The last segment was not retransmitted; but its ACK also ends the recovery of a segment before
/// it.
#[test]
fn the_end_of_a_recovery_goes_the_long_way() {
    let mut twins = Twins::open();
    for step in [
        Step::Write(3000),
        Step::Sack(1000, 1000),
        Step::Pass(5000),
        Step::Ack(2000),
        Step::Ack(1000),
        Step::Write(64),
        Step::Ack(64),
    ] {
        twins.step(step);
    }
    assert_eq!(twins.short.tcp.acked_offset(), 3064);
}
