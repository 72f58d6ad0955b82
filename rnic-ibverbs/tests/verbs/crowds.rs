//! Many that ask for a queue pair at once.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};

use crate::calls::*;
use crate::itself::{Side, Talk, ask, assert_rejected, connect_and_talk, hello};

/// The most requests that wait in a process.
const MOST_REQUESTS: usize = 256;

/// A thousand ask for a queue pair before its program names its peer: some with numbers of their
/// own, some with nonsense. The oldest make room. The peer gets through.
pub(crate) unsafe fn crowds(is_server: bool) {
    let mut talk = Talk::of(is_server);
    let mut side = Side::new(is_server);
    let qp = side.queue_pair();
    let mut crowd = VecDeque::new();
    if is_server {
        let number = talk.number() as u32;
        let port = (number >> 8) as u16;
        for at in 0..1000 {
            crowd.push_back(ask(port, &hello(0x0050_0000 + at, number)));
            if crowd.len() > MOST_REQUESTS {
                assert_rejected(&mut crowd.pop_front().unwrap(), b"the oldest");
            }
        }
        for waiting in &mut crowd {
            waiting.set_nonblocking(true).unwrap();
            let answered = waiting.read(&mut [0]).map_err(|why| why.kind());
            assert_eq!(answered, Err(ErrorKind::WouldBlock), "one that may wait");
        }
        let right = hello(0x0050_0001, number);
        let mut nonsense = vec![
            vec![],
            vec![0; 300],
            right[..39].to_vec(),
            hello(1, number ^ 1),
            hello(1, 7),
        ];
        for at in 0..5 {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            nonsense.push(wrong);
        }
        for private_data in nonsense {
            assert_rejected(&mut ask(port, &private_data), &private_data);
        }
    } else {
        talk.say(&(*qp).qp_num.to_string());
    }
    talk.meet();
    connect_and_talk(&mut side, &mut talk, qp, is_server);
    assert!(poll(side.cq).is_none());
    drop(crowd);
    talk.meet();
    ok(ibv_destroy_qp(qp));
    side.close();
}
