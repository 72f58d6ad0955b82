//! Two engines of which only one takes fast paths, on the same input: all that can be seen of them is the same.
//!
//! A [`World`] is two hosts that speak with each other, so both ends of each connection take fast paths, or neither does. A
//! [`Case`] is what their applications do and what befalls the frames between them. It is made of octets: random ones, or
//! those of a fuzzer.

mod case;
mod choices;
mod requests;
mod seen;
mod side;
mod twist;
mod world;

pub(crate) use self::case::Case;
pub(crate) use self::world::World;

use rnic_core::fast_paths::FastPaths;
use rnic_core::time::Instant;

use self::seen::Reached;

/// Acts behind which all state is compared; what is sent and told is compared behind each.
const STATES_EVERY: usize = 4;
/// Alarms that are waited for behind the last act.
const MOST_ALARMS: usize = 60;

/// Runs a case with these fast paths and with none. Panics where anything differs.
pub(crate) fn check(case: &Case, fast_paths: FastPaths) -> Reached {
    let [mut fast, mut plain] =
        [fast_paths, FastPaths::NONE].map(|paths| World::new(&case.terms, paths));
    compare(&mut fast, &mut plain, case, None);
    for (number, act) in case.acts.iter().enumerate() {
        let alarm = next_timeout([&mut fast, &mut plain]);
        for world in [&mut fast, &mut plain] {
            world.carry_out(act, alarm);
        }
        compare(&mut fast, &mut plain, case, Some(number));
    }
    // Whatever is left to be done, until nobody waits for anything but a silent peer.
    for _ in 0..MOST_ALARMS {
        let alarm = next_timeout([&mut fast, &mut plain]);
        let waits = [&mut fast, &mut plain].map(|world| world.come_to_rest(alarm));
        compare_log(&mut fast, &mut plain, case, Some(case.acts.len()));
        if waits == [false; 2] {
            break;
        }
    }
    compare(&mut fast, &mut plain, case, Some(case.acts.len()));
    fast.reached()
}

/// When the first timer goes off: both worlds have one clock.
fn next_timeout(worlds: [&mut World; 2]) -> Option<Instant> {
    worlds.into_iter().filter_map(World::next_timeout).min()
}

fn compare_log(fast: &mut World, plain: &mut World, case: &Case, act: Option<usize>) {
    let (seen, right) = (fast.take_log(), plain.take_log());
    if seen != right {
        let at = (0..).find(|at| seen.get(*at) != right.get(*at));
        let [seen, right] =
            [&seen, &right].map(|log| format!("{:?}", log.get(at.unwrap_or_default())));
        differ(case, act, &seen, &right);
    }
}

fn compare(fast: &mut World, plain: &mut World, case: &Case, act: Option<usize>) {
    compare_log(fast, plain, case, act);
    if act.is_some_and(|act| !act.is_multiple_of(STATES_EVERY) && act < case.acts.len()) {
        return;
    }
    for (seen, right) in fast.states().into_iter().zip(plain.states()) {
        if seen != right {
            differ(case, act, &seen, &right);
        }
    }
    assert!(
        fast.memory() == plain.memory(),
        "memory differs behind {act:?} of {case:#?}"
    );
}

/// Shows where two texts differ.
fn differ(case: &Case, act: Option<usize>, seen: &str, right: &str) -> ! {
    const AROUND: usize = 300;
    let same = seen.bytes().zip(right.bytes());
    let at = same.take_while(|(one, other)| one == other).count();
    let piece = |text: &str| {
        let end = text.len().min(at + AROUND);
        String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(AROUND)..end]).into_owned()
    };
    let done = act.map(|act| {
        &case.acts[act.saturating_sub(6).min(case.acts.len())..(act + 1).min(case.acts.len())]
    });
    panic!(
        "with fast paths:\n{}\n\nwithout:\n{}\n\nbehind {act:?} of {}, the last of {done:#?} of {:?}",
        piece(seen),
        piece(right),
        case.acts.len(),
        case.terms,
    );
}
