//! Two engines of which only one takes fast paths, on the same input: all that can be seen of them
//! is the same.
//!
//! A [`World`] is two hosts that speak with each other, so both ends of each connection take fast
//! paths, or neither does. A [`Case`] is what their applications do and what befalls the frames
//! between them. It is made of octets: random ones, or those of a fuzzer.

mod case;
mod choices;
mod memory;
mod requests;
mod seen;
mod side;
mod texts;
mod twist;
mod world;

pub(crate) use self::case::Case;
pub(crate) use self::world::World;

use rnic_core::fast_paths::FastPaths;
use rnic_core::time::Instant;

use self::seen::Reached;
use self::side::Side;
use self::texts::first_difference;

/// Acts behind which what is counted and held is compared, and all state and memory; what is sent
/// and told is compared behind each.
const HOLDINGS_EVERY: usize = 4;
const STATES_EVERY: usize = 16;
/// Alarms that are waited for behind the last act.
const MAX_ALARMS: usize = 60;
/// The same where all must be done: a device that keeps frames lets few leave between two.
const ENOUGH_ALARMS: usize = 10_000;

/// Runs a case with these fast paths and with none. Panics where anything differs.
pub(crate) fn check(case: &Case, fast_paths: FastPaths) -> Reached {
    let [mut fast, mut plain] =
        [fast_paths, FastPaths::NONE].map(|paths| World::new(&case.terms, paths));
    compare_log(&mut fast, &mut plain, case, None);
    for (number, act) in case.acts.iter().enumerate() {
        let alarm = next_timeout([&mut fast, &mut plain]);
        for world in [&mut fast, &mut plain] {
            world.carry_out(act, alarm);
        }
        compare(&mut fast, &mut plain, case, number);
    }
    // Whatever is left to be done, until nobody waits for anything but a silent peer.
    for _ in 0..MAX_ALARMS {
        let alarm = next_timeout([&mut fast, &mut plain]);
        let waits = [&mut fast, &mut plain].map(|world| world.come_to_rest(alarm));
        compare_log(&mut fast, &mut plain, case, Some(case.acts.len()));
        if waits == [false; 2] {
            break;
        }
    }
    compare(&mut fast, &mut plain, case, case.acts.len());
    fast.reached()
}

/// Runs an [honest](Case::honest) case, behind which nothing is lost any more. Panics where a
/// request is not completed then.
pub(crate) fn check_all_is_done(case: &Case) {
    let mut world = World::new(&case.terms, FastPaths::ALL);
    for act in &case.acts {
        let alarm = world.next_timeout();
        world.carry_out(act, alarm);
        world.take_log();
    }
    // What a device gives back in one round sets the timers of the next.
    let mut quiet = 0;
    for _ in 0..ENOUGH_ALARMS {
        let alarm = world.next_timeout();
        let waits = world.come_to_rest(alarm);
        let completes = world.take_completions();
        world.take_log();
        quiet = if waits || completes { 0 } else { quiet + 1 };
        if quiet == 2 {
            break;
        }
    }
    let open = world.open_requests();
    if !open.is_empty() {
        let mut text = String::new();
        for side in world.sides() {
            side.write_state(&mut text);
        }
        panic!("(host, connection, posted, completed) {open:?} behind {case:#?}: {text}");
    }
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

fn compare(fast: &mut World, plain: &mut World, case: &Case, act: usize) {
    let is_due = |every| (act + 1).is_multiple_of(every) || act == case.acts.len();
    let act = Some(act);
    compare_log(fast, plain, case, act);
    for (seen, right) in fast.sides().iter().zip(plain.sides()) {
        if is_due(HOLDINGS_EVERY) {
            let (seen, right) = (seen.holdings(), right.holdings());
            if seen != right {
                differ(case, act, &format!("{seen:?}"), &format!("{right:?}"));
            }
        }
        if is_due(STATES_EVERY) {
            compare_states(seen, right, case, act);
        }
    }
}

/// Compares the state of all layers, and memory.
fn compare_states(seen: &Side, right: &Side, case: &Case, act: Option<usize>) {
    let texts = [seen, right].map(|side| {
        let mut text = String::with_capacity(1 << 15);
        side.write_state(&mut text);
        text
    });
    if let Some(at) = first_difference(&texts[0], &texts[1], right.free_in_state()) {
        show(case, act, at, [&texts[0], &texts[1]]);
    }
    assert!(
        seen.memory.equals(&right.memory),
        "memory differs behind {act:?} of {case:#?}"
    );
}

/// Shows where two texts differ.
fn differ(case: &Case, act: Option<usize>, seen: &str, right: &str) -> ! {
    let at = first_difference(seen, right, &[]);
    show(case, act, at.unwrap_or_default(), [seen, right]);
}

/// Shows two texts that differ somewhere.
fn show(case: &Case, act: Option<usize>, at: usize, texts: [&str; 2]) -> ! {
    const AROUND: usize = 300;
    let [seen, right] = texts.map(|text| {
        let (from, end) = (at.saturating_sub(AROUND), text.len().min(at + AROUND));
        String::from_utf8_lossy(&text.as_bytes()[from.min(end)..end]).into_owned()
    });
    let done = act.map(|act| {
        &case.acts[act.saturating_sub(6).min(case.acts.len())..(act + 1).min(case.acts.len())]
    });
    panic!(
        "with fast paths:\n{seen}\n\nwithout:\n{right}\n\nbehind {act:?} of {}, the last of {done:#?} of {:?}",
        case.acts.len(),
        case.terms,
    );
}
