//! The start-up exchange with a peer that sends anything, in any pieces: no panic, and the pieces
//! do not matter.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rnic_core::mpa::startup::{MpaInitiator, MpaOptions, MpaResponder};
use rnic_fuzz::cut;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    revision: u8,
    crc: bool,
    ird: u16,
    ord: u16,
    lengths: &'a [u8],
    stream: &'a [u8],
}

/// What the responder makes of the stream, and what it answers.
fn respond(pieces: &mut dyn Iterator<Item = &[u8]>, options: &MpaOptions) -> String {
    let mut responder = MpaResponder::new();
    for mut piece in pieces {
        match responder.receive(&mut piece) {
            Ok(None) => assert!(piece.is_empty(), "octets are left while more are needed"),
            Ok(Some(request)) => return format!("{request:?} {:?}", responder.accept(options)),
            Err(error) => return format!("{error:?} {:?}", error.action()),
        }
    }
    String::new()
}

/// What the initiator makes of the stream.
fn initiate(pieces: &mut dyn Iterator<Item = &[u8]>, options: &MpaOptions) -> String {
    let Ok((mut initiator, _)) = MpaInitiator::new(options.clone()) else {
        return String::new();
    };
    for mut piece in pieces {
        match initiator.receive(&mut piece) {
            Ok(None) => assert!(piece.is_empty(), "octets are left while more are needed"),
            Ok(Some(reply)) => return format!("{reply:?}"),
            Err(error) => return format!("{error:?} {:?}", error.action()),
        }
    }
    String::new()
}

fuzz_target!(|input: Input| {
    let options = MpaOptions {
        revision: input.revision,
        crc: input.crc,
        ird: input.ird,
        ord: input.ord,
        ..MpaOptions::default()
    };
    for role in [respond, initiate] {
        let whole = role(&mut std::iter::once(input.stream), &options);
        let in_pieces = role(&mut cut(input.stream, input.lengths), &options);
        assert_eq!(whole, in_pieces);
    }
});
