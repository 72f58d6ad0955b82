//! FPDUs in any cut of the stream, with markers or without: no panic, and the cuts do not matter.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rnic_core::mpa::deframe::Deframer;
use rnic_core::mpa::frame::seal;
use rnic_core::mpa::marker;
use rnic_core::wire::mpa::LENGTH_LEN;
use rnic_fuzz::cut;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    crc: bool,
    markers: bool,
    lengths: &'a [u8],
    ulpdus: Vec<&'a [u8]>,
    /// Behind the good FPDUs.
    garbage: &'a [u8],
}

/// The FPDU of `ulpdu`; `position`: where it stands, if it is to have markers.
fn sealed(ulpdu: &[u8], crc: bool, position: Option<u64>) -> Vec<u8> {
    let mut fpdu = vec![0; marker::max_fpdu_len(ulpdu.len())];
    fpdu[LENGTH_LEN..][..ulpdu.len()].copy_from_slice(ulpdu);
    let len = match position {
        None => seal(&mut fpdu, ulpdu.len(), crc),
        Some(position) => marker::seal(&mut fpdu, ulpdu.len(), position, crc),
    };
    fpdu.truncate(len);
    fpdu
}

/// The ULPDUs that come out, and whether an error ended it.
fn deframe<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    crc: bool,
    markers: bool,
) -> (Vec<Vec<u8>>, bool) {
    let mut deframer = match markers {
        false => Deframer::new(crc),
        true => Deframer::with_markers(crc),
    };
    let mut ulpdus = Vec::new();
    for (position, mut piece) in (0..).step_by(4).zip(pieces) {
        if let Some(octets) = piece.first_chunk() {
            let _ = marker::fpdu_start(position * 512, *octets);
        }
        if let Some(len) = marker::fpdu_len(position, piece)
            && let Some(fpdu) = piece.get(..len)
        {
            let _ = deframer.open_out_of_order(position, fpdu);
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
    let mut stream = Vec::new();
    for ulpdu in &good {
        let position = input.markers.then_some(stream.len() as u64);
        stream.extend(sealed(ulpdu, input.crc, position));
    }
    stream.extend(input.garbage);
    let whole = deframe(std::iter::once(&stream[..]), input.crc, input.markers);
    assert!(whole.0.len() >= good.len());
    assert!(whole.0.iter().zip(&good).all(|(seen, sent)| seen == sent));
    let in_pieces = deframe(cut(&stream, input.lengths), input.crc, input.markers);
    assert_eq!(whole, in_pieces);
});
