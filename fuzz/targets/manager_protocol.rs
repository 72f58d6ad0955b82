//! A datagram from any client, or from any daemon: reading it does not panic, and a message that is
//! read, written and read again is the same.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use rnic_manager::protocol::{FromDaemon, Message, Request};

fn read<M: Message + PartialEq + Debug>(octets: &[u8]) {
    match M::decode(octets) {
        Ok(message) => {
            let written = message
                .encode()
                .expect("an input is far shorter than a message may be");
            assert_eq!(M::decode(&written), Ok(message));
        }
        Err(error) => {
            let answer = error.answer();
            let written = answer.encode().expect("an answer is short");
            assert_eq!(FromDaemon::decode(&written), Ok(answer));
        }
    }
}

fuzz_target!(|octets: &[u8]| {
    let (request, answer) = (
        Request::decode(octets).is_ok(),
        FromDaemon::decode(octets).is_ok(),
    );
    assert!(!(request && answer), "a message has one direction");
    read::<Request>(octets);
    read::<FromDaemon>(octets);
});
