//! What the program costs. It is no test of anything: figures for whoever changes the program.

use libbpf_rs::ProgramInput;

use crate::frames::{Segment, allowed, segment};
use crate::program::with_rig;

/// Prints the nanoseconds of a frame that goes to the network, and of one that turns around.
#[test]
#[ignore = "prints figures: cargo test --test police_program cost:: -- --ignored --nocapture"]
fn the_cost_of_a_frame() {
    const TIMES: u32 = 1_000_000;
    with_rig(|rig| {
        let local = segment("10.1.2.3:4420", "10.1.2.3:5000");
        let [four, six, vlan] = allowed();
        let kinds = [
            ("IPv4", four),
            ("IPv6", six),
            ("VLAN", vlan),
            ("local", local),
        ];
        for (kind, segment) in kinds {
            let frame = Segment {
                payload: 1400,
                ..segment
            }
            .octets();
            let mut best = u32::MAX;
            for _ in 0..5 {
                let input = ProgramInput {
                    data_in: Some(&frame),
                    repeat: TIMES,
                    ..Default::default()
                };
                let output = rig.skeleton.progs.rnic_police.test_run(input).unwrap();
                best = best.min(output.duration.as_nanos() as u32);
            }
            println!("{kind}: {best} ns");
        }
    });
}
