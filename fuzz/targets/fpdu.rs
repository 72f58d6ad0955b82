//! FPDUs in any cut of the stream: no panic, and the cuts do not matter.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rnic_core::mpa::deframe::Deframer;
use rnic_core::mpa::frame::seal;
use rnic_core::wire::mpa::{LENGTH_LEN, fpdu_len};
use rnic_fuzz::cut;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    crc: bool,
    lengths: &'a [u8],
    ulpdus: Vec<&'a [u8]>,
    /// Behind the good FPDUs.
    garbage: &'a [u8],
}

fn sealed(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut fpdu = vec![0; fpdu_len(ulpdu.len())];
    fpdu[LENGTH_LEN..][..ulpdu.len()].copy_from_slice(ulpdu);
    seal(&mut fpdu, ulpdu.len(), crc);
    fpdu
}

/// The ULPDUs that come out, and whether an error ended it.
fn deframe<'a>(pieces: impl Iterator<Item = &'a [u8]>, crc: bool) -> (Vec<Vec<u8>>, bool) {
    let mut deframer = Deframer::new(crc);
    let mut ulpdus = Vec::new();
    for mut piece in pieces {
        if let Some(whole) = deframer.whole_fpdus(piece) {
            whole.for_each(drop);
        }
        loop {
            match deframer.next(&mut piece) {
                Ok(Some(ulpdu)) => ulpdus.push(ulpdu.to_vec()),
                Ok(None) => break,
                Err(_) => return (ulpdus, true),
            }
        }
    }
    (ulpdus, false)
}

fuzz_target!(|input: Input| {
    let good: Vec<&[u8]> = input
        .ulpdus
        .into_iter()
        .filter(|ulpdu| ulpdu.len() < 60_000)
        .collect();
    let mut stream: Vec<u8> = good
        .iter()
        .flat_map(|ulpdu| sealed(ulpdu, input.crc))
        .collect();
    stream.extend(input.garbage);
    let whole = deframe(std::iter::once(&stream[..]), input.crc);
    assert!(whole.0.len() >= good.len());
    assert!(whole.0.iter().zip(&good).all(|(seen, sent)| seen == sent));
    let in_pieces = deframe(cut(&stream, input.lengths), input.crc);
    assert_eq!(whole, in_pieces);
});
