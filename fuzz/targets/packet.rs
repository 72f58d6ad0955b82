//! Any frame: reading it does not panic, and a segment that is read, written and read again is the
//! same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rnic_core::wire::{
    checksum::{Checksums, sum},
    packet::parse,
    tcp::{HEADER_LEN, MAX_OPTIONS_LEN},
    template::NetHeader,
};

fuzz_target!(|frame: &[u8]| {
    let verified = parse(frame, Checksums::None);
    let Ok(packet) = parse(frame, Checksums::Unnecessary) else {
        assert!(verified.is_err(), "fewer checks refused more");
        return;
    };
    let reply = NetHeader::reply_to(&packet);
    let header = packet.segment.header;
    let payload = packet.segment.payload;
    let payload_at = reply.len() + header.len();
    let mut written = vec![0; payload_at + payload.len()];
    written[payload_at..].copy_from_slice(payload);
    let len = reply.write(&mut written, &header, payload.len(), sum(payload));
    // A reply to a group's address, for example, is refused by its receiver.
    if let Ok(mut back) = parse(&written[..len], Checksums::None) {
        // Options are written aligned, so that a SACK block may no longer fit that did before.
        let sack = &mut back.segment.header.options.sack;
        let all = packet.segment.header.options.sack;
        assert!(sack.iter().eq(all.iter().take(sack.len())));
        assert!(sack.len() == all.len() || header.len() + 8 > HEADER_LEN + MAX_OPTIONS_LEN);
        *sack = all;
        assert_eq!(back.segment, packet.segment);
        assert_eq!(back.destination.ip(), packet.source.ip());
    }
});
