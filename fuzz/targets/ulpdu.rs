//! Any ULPDU: reading its DDP and RDMAP headers does not panic, and what is written again reads the
//! same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rnic_core::wire::ddp::DdpSegment;
use rnic_core::wire::rdmap::{
    AtomicRequest, AtomicResponse, Control, FlowControl, ReadRequest, Terminate,
};

fuzz_target!(|ulpdu: &[u8]| {
    let Ok(segment) = DdpSegment::parse(ulpdu) else {
        return;
    };
    assert_eq!(
        segment.header_octets.len() + segment.payload.len(),
        ulpdu.len()
    );
    let mut written = ulpdu.to_vec();
    segment.header.emit(&mut written);
    let again = DdpSegment::parse(&written).expect("what was written can be read");
    assert_eq!(
        (again.header, again.payload),
        (segment.header, segment.payload)
    );

    let control = Control::from(ulpdu[1]);
    assert_eq!(Control::from(u8::from(control)), control);
    if let Ok(request) = ReadRequest::parse(segment.payload) {
        let mut octets = [0; ReadRequest::LEN];
        request.emit(&mut octets);
        assert_eq!(ReadRequest::parse(&octets), Ok(request));
    }
    if let Ok(request) = AtomicRequest::parse(segment.payload) {
        let mut octets = [0; AtomicRequest::LEN];
        request.emit(&mut octets);
        assert_eq!(AtomicRequest::parse(&octets), Ok(request));
    }
    if let Ok(response) = AtomicResponse::parse(segment.payload) {
        let mut octets = [0; AtomicResponse::LEN];
        response.emit(&mut octets);
        assert_eq!(octets, segment.payload);
    }
    if let Ok(control) = FlowControl::parse(segment.payload) {
        let mut octets = [0; FlowControl::LEN];
        control.emit(&mut octets);
        assert_eq!(FlowControl::parse(&octets), Ok(control));
    }
    let _ = Terminate::parse_as_meant(segment.payload);
    if let Ok(terminate) = Terminate::parse(segment.payload) {
        let mut octets = vec![0; terminate.len()];
        terminate.emit(&mut octets);
        assert_eq!(Terminate::parse(&octets), Ok(terminate));
    }
});
