//! Datagram queue pairs.

use std::ffi::c_void;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ptr::null_mut;
use std::time::Duration;

use nix::libc;

use crate::calls::*;
use crate::end::qp_attributes;
use crate::hosts::SERVER;
use crate::itself::{Side, Talk, ask, hello};

pub(crate) const QKEY: u32 = 0x1111_1111;

/// Octets in front of the payload of a receive.
const GRH: usize = 40;

/// Octets of a place in the memory of a side.
const PLACE: usize = 2048;

impl Side {
    pub(crate) unsafe fn datagrams(&self, receives: u32) -> *mut ibv_qp {
        self.datagrams_with(receives, 64)
    }

    unsafe fn datagrams_with(&self, receives: u32, sends: u32) -> *mut ibv_qp {
        let mut init = qp_attributes(self.cq);
        init.cap.max_recv_wr = receives;
        init.cap.max_send_wr = sends;
        self.datagrams_of(&mut init)
    }

    pub(crate) unsafe fn datagrams_of(&self, init: &mut ibv_qp_init_attr) -> *mut ibv_qp {
        init.qp_type = IBV_QPT_UD;
        let qp = made(ibv_create_qp(self.pd, init));
        for (state, mask) in [
            (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            (IBV_QPS_RTR, 0),
            (IBV_QPS_RTS, IBV_QP_SQ_PSN),
        ] {
            move_to(qp, state, mask);
        }
        qp
    }

    pub(crate) unsafe fn handle(&self, to: usize) -> *mut ibv_ah {
        self.handle_to(self.at[to])
    }

    unsafe fn handle_to(&self, to: Ipv4Addr) -> *mut ibv_ah {
        let mut attr = ibv_ah_attr {
            is_global: 1,
            port_num: 1,
            ..ibv_ah_attr::default()
        };
        attr.grh.dgid.raw = to.to_ipv6_mapped().octets();
        made(ibv_create_ah(self.pd, &mut attr))
    }

    pub(crate) unsafe fn wait_for(&self, qp: *mut ibv_qp, place: usize, length: usize) -> i32 {
        let mut sge = self.memory.sge(place * PLACE, length);
        let mut wr: ibv_recv_wr = std::mem::zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge) = (place as u64, &mut sge, 1);
        post_recv(qp, &mut wr)
    }

    pub(crate) unsafe fn tell(
        &mut self,
        qp: *mut ibv_qp,
        to: (*mut ibv_ah, u32, u32),
        octets: &[u8],
    ) -> i32 {
        self.memory.write(9 * PLACE, octets);
        let mut sge = self.memory.sge(9 * PLACE, octets.len());
        let mut wr: ibv_send_wr = std::mem::zeroed();
        (wr.wr_id, wr.opcode) = (100, IBV_WR_SEND_WITH_IMM);
        (wr.sg_list, wr.num_sge, wr.send_flags) = (&mut sge, 1, IBV_SEND_SIGNALED);
        wr.imm_data = 0x0403_0201;
        let (ah, remote_qpn, remote_qkey) = to;
        wr.wr.ud = ibv_send_wr_ud {
            ah,
            remote_qpn,
            remote_qkey,
        };
        post_send(qp, &mut wr)
    }

    /// Waits for the completion of a request, and then for that of a receive.
    unsafe fn sent(&self) {
        let wc = completion(self.cq);
        assert_eq!((wc.wr_id, wc.status), (100, IBV_WC_SUCCESS));
    }
}

pub(crate) unsafe fn move_to(qp: *mut ibv_qp, state: u32, mask: i32) {
    let mut attr = ibv_qp_attr {
        qp_state: state,
        port_num: 1,
        qkey: QKEY,
        ..ibv_qp_attr::default()
    };
    ok(ibv_modify_qp(qp, &mut attr, mask | IBV_QP_STATE));
}

/// Checks a datagram that has come to a place.
unsafe fn check(side: &Side, wc: &ibv_wc, (place, from): (usize, u32), octets: &[u8]) {
    assert_eq!((wc.wr_id, wc.status), (place as u64, IBV_WC_SUCCESS));
    assert_eq!((wc.opcode, wc.src_qp), (IBV_WC_RECV, from));
    assert_eq!(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
    assert_eq!(wc.imm_data, 0x0403_0201);
    assert_eq!(wc.byte_len as usize, GRH + octets.len());
    assert_eq!(side.memory.read(place * PLACE + GRH, octets.len()), octets);
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + seed) as u8).collect()
}

/// What two hosts send each other, answered by the header that came with it.
pub(crate) unsafe fn two_hosts(is_server: bool) {
    let mut talk = Talk::of(is_server);
    let mut side = Side::new(is_server);
    let qp = side.datagrams(8);
    let number = (*qp).qp_num;
    let peer = talk.exchange(number.into()) as u32;
    ok(side.wait_for(qp, 1, GRH + 1024));
    ok(side.wait_for(qp, 2, GRH + 1024));
    talk.meet();
    let (mine, theirs) = (pattern(number as usize, 1024), pattern(peer as usize, 1024));
    if is_server {
        let there = side.handle(1);
        ok(side.tell(qp, (there, peer, QKEY), &mine));
        let mut both = [completion(side.cq), completion(side.cq)];
        both.sort_by_key(|wc| wc.wr_id);
        check(&side, &both[0], (1, peer), &theirs);
        ok(ibv_destroy_ah(there));
    } else {
        let mut wc = completion(side.cq);
        check(&side, &wc, (1, peer), &theirs);
        let header = side.memory.address(PLACE) as *mut c_void;
        let back = made(ibv_create_ah_from_wc(side.pd, &mut wc, header, 1));
        ok(side.tell(qp, (back, peer, QKEY), &mine));
        side.sent();
        ok(ibv_destroy_ah(back));
    }
    talk.meet();
    // What is for nobody is dropped, and does not keep what follows.
    let there = side.handle(1);
    for (number, qkey) in [(peer, QKEY + 1), (peer ^ 1, QKEY), (peer ^ 0x100, QKEY)] {
        ok(side.tell(qp, (there, number, qkey), b"nobody"));
        side.sent();
    }
    talk.meet();
    ok(side.tell(qp, (there, peer, QKEY), b"you"));
    let mut both = [completion(side.cq), completion(side.cq)];
    both.sort_by_key(|wc| wc.wr_id);
    check(&side, &both[0], (2, peer), b"you");
    assert!(poll(side.cq).is_none());
    talk.meet();
    // There is no receive any more.
    ok(side.tell(qp, (there, peer, QKEY), b"lost"));
    side.sent();
    talk.meet();
    assert!(poll(side.cq).is_none());
    ok(side.wait_for(qp, 3, GRH));
    talk.meet();
    ok(side.tell(qp, (there, peer, QKEY), b""));
    let mut both = [completion(side.cq), completion(side.cq)];
    both.sort_by_key(|wc| wc.wr_id);
    check(&side, &both[0], (3, peer), b"");
    // A host that is away holds up nobody.
    let away = side.handle_to(Ipv4Addr::new(10, 78, 0, 77));
    for place in 4..8 {
        ok(side.wait_for(qp, place, GRH + 3));
    }
    talk.meet();
    for _ in 0..4 {
        ok(side.tell(qp, (away, peer, QKEY), b"you"));
        ok(side.tell(qp, (there, peer, QKEY), b"you"));
    }
    let mut count = [0; 2];
    while count != [8, 4] {
        let wc = completion(side.cq);
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        count[usize::from(wc.opcode == IBV_WC_RECV)] += 1;
    }
    talk.meet();
    ok(ibv_destroy_ah(away));
    ok(ibv_destroy_ah(there));
    ok(ibv_destroy_qp(qp));
    side.close();
}

/// Each host sends the other one a datagram, with a queue pair that it makes and destroys.
pub(crate) unsafe fn exchange(side: &mut Side, talk: &mut Talk) {
    let qp = side.datagrams(1);
    let number = (*qp).qp_num;
    let peer = talk.exchange(number.into()) as u32;
    ok(side.wait_for(qp, 5, GRH + 100));
    talk.meet();
    let there = side.handle(1);
    ok(side.tell(qp, (there, peer, QKEY), &pattern(number as usize, 100)));
    let mut both = [completion(side.cq), completion(side.cq)];
    both.sort_by_key(|wc| wc.wr_id);
    check(side, &both[0], (5, peer), &pattern(peer as usize, 100));
    ok(ibv_destroy_ah(there));
    talk.meet();
    ok(ibv_destroy_qp(qp));
}

/// Queue pairs of one process, one of them its own peer; and what is refused.
pub(crate) unsafe fn one_process() {
    let mut side = Side::new(false);
    // A send queue as long as the device says is taken.
    let mut device: ibv_device_attr = std::mem::zeroed();
    ok(ibv_query_device((*side.pd).context, &mut device));
    let longest = device.max_qp_wr as u32;
    let pair = [side.datagrams_with(4, longest), side.datagrams(4)];
    let here = side.handle(0);
    let numbers = pair.map(|qp| (*qp).qp_num);
    assert_ne!(numbers[0], numbers[1]);
    for (from, to) in [(0, 1), (1, 0), (0, 0)] {
        let octets = pattern(from, 500);
        ok(side.wait_for(pair[to], to, GRH + 500));
        ok(side.tell(pair[from], (here, numbers[to], QKEY), &octets));
        let mut both = [completion(side.cq), completion(side.cq)];
        both.sort_by_key(|wc| wc.wr_id);
        check(&side, &both[0], (to, numbers[from]), &octets);
        assert_eq!((*pair[to]).qp_num, both[0].qp_num);
    }
    // A datagram for which the receive is too short is dropped, and does not take it.
    ok(side.wait_for(pair[1], 5, GRH + 1));
    ok(side.tell(pair[0], (here, numbers[1], QKEY), b"longer"));
    side.sent();
    ok(side.tell(pair[0], (here, numbers[1], QKEY), b"1"));
    let mut both = [completion(side.cq), completion(side.cq)];
    both.sort_by_key(|wc| wc.wr_id);
    check(&side, &both[0], (5, numbers[0]), b"1");
    // In the error state all is flushed.
    ok(side.wait_for(pair[1], 6, GRH));
    move_to(pair[1], IBV_QPS_ERR, 0);
    let wc = completion(side.cq);
    assert_eq!((wc.wr_id, wc.status), (6, IBV_WC_WR_FLUSH_ERR));
    ok(side.tell(pair[1], (here, numbers[0], QKEY), b"late"));
    assert_eq!(completion(side.cq).status, IBV_WC_WR_FLUSH_ERR);
    ok(side.wait_for(pair[1], 6, GRH));
    // And after a reset nothing of it is left.
    move_to(pair[1], IBV_QPS_RESET, 0);
    assert!(poll(side.cq).is_none());
    // Memory that is not the program's to read is no datagram.
    let mut refused = |to, length: usize| side.tell(pair[0], to, &vec![0; length]);
    assert_eq!(refused((null_mut(), numbers[0], QKEY), 1), libc::EINVAL);
    assert_eq!(refused((here, 5, QKEY), 1), libc::EINVAL);
    assert_eq!(refused((here, numbers[0], QKEY), 1025), libc::EINVAL);
    let mut sge = side.memory.sge(0, 100);
    sge.lkey ^= 0x100;
    let mut wr: ibv_send_wr = std::mem::zeroed();
    (wr.wr_id, wr.opcode, wr.sg_list, wr.num_sge) = (7, IBV_WR_SEND, &mut sge, 1);
    wr.wr.ud = ibv_send_wr_ud {
        ah: here,
        remote_qpn: numbers[0],
        remote_qkey: QKEY,
    };
    ok(post_send(pair[0], &mut wr));
    let wc = completion(side.cq);
    assert_eq!((wc.wr_id, wc.status), (7, IBV_WC_LOC_PROT_ERR));
    // It receives, and sends nothing until it is moved to RTS again.
    ok(side.tell(pair[0], (here, numbers[0], QKEY), b"later"));
    assert_eq!(completion(side.cq).status, IBV_WC_WR_FLUSH_ERR);
    move_to(pair[0], IBV_QPS_RTS, 0);
    ok(side.wait_for(pair[0], 1, GRH + 3));
    ok(side.tell(pair[0], (here, numbers[0], QKEY), b"now"));
    let mut both = [completion(side.cq), completion(side.cq)];
    both.sort_by_key(|wc| wc.wr_id);
    check(&side, &both[0], (1, numbers[0]), b"now");
    for qp in pair {
        ok(ibv_destroy_qp(qp));
    }
    ok(ibv_destroy_ah(here));
    side.close();
}

/// Returns an FPDU (RFC 5044 section 4) of a whole untagged message for queue 0 (RFC 5041 section
/// 4.3).
fn message(opcode: u8, msn: u32, payload: &[u8]) -> Vec<u8> {
    let mut fpdu = (18 + payload.len() as u16).to_be_bytes().to_vec();
    fpdu.extend([0x41, 0x40 | opcode, 0, 0, 0, 0, 0, 0, 0, 0]);
    fpdu.extend(msn.to_be_bytes());
    fpdu.extend([0; 4]);
    fpdu.extend(payload);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = crc32c::crc32c(&fpdu);
    fpdu.extend(crc.to_le_bytes());
    fpdu
}

/// Asks for a link, by a socket of the kernel.
fn link(own: u32, number: u32) -> TcpStream {
    let mut private_data = hello(own, number);
    private_data[6] = 1;
    // It says that it sends receipts.
    private_data[7] = 3;
    let mut socket = ask((number >> 8) as u16, &private_data);
    // Nothing may follow before the Reply, which accepts.
    let mut reply = [0; 20 + 40];
    socket.read_exact(&mut reply).unwrap();
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    assert_eq!(reply[16] & 0x20, 0);
    // That is no word of the side that accepts.
    assert_eq!(reply[20 + 7], 0);
    socket
}

/// Returns what stands in front of a datagram.
fn header(to: u32, from: u32) -> Vec<u8> {
    let words = [0x0100_0000, to, from, QKEY, 0, 0];
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

/// What a hostile process does that knows a number: links without a word, messages that are no
/// datagrams, datagrams in the name of others. None of it keeps an honest peer away.
pub(crate) unsafe fn hostile(is_server: bool) {
    let mut talk = Talk::of(is_server);
    let mut side = Side::new(is_server);
    let qp = side.datagrams(64);
    let mut links = Vec::new();
    let there = side.handle(1);
    if is_server {
        let number = talk.number() as u32;
        let own = 0x0050_0001;
        links.extend((0..300).map(|at| link(own + at, number)));
        const SEND: u8 = 3;
        const IMMEDIATE: u8 = 8;
        let right = header(number, own);
        let mut wrong_version = right.clone();
        wrong_version[0] = 9;
        let in_others_name = header(number, 0x0060_0001);
        for payload in [&b""[..], &right[..23], &wrong_version, &in_others_name] {
            let mut socket = link(own, number);
            socket.write_all(&message(SEND, 1, payload)).unwrap();
            links.push(socket);
        }
        let mut socket = link(own, number);
        socket.write_all(&message(SEND, 1, &right)).unwrap();
        for msn in 2..60 {
            // The other side ends the link.
            if socket.write_all(&message(IMMEDIATE, msn, &[0; 8])).is_err() {
                break;
            }
        }
        talk.meet();
        // One of them was a datagram.
        let peer = talk.exchange((*qp).qp_num.into()) as u32;
        for at in 0..20 {
            ok(side.tell(qp, (there, peer, QKEY), &pattern(at, 700)));
            side.sent();
        }
        ok(side.wait_for(qp, 1, GRH + 5));
        talk.meet();
        let wc = completion(side.cq);
        check(&side, &wc, (1, peer), b"still");
    } else {
        for place in 10..31 {
            ok(side.wait_for(qp, place, GRH + 700));
        }
        talk.say(&(*qp).qp_num.to_string());
        // What is hostile comes while it polls.
        let wc = completion(side.cq);
        assert_eq!((wc.byte_len as usize, wc.src_qp), (GRH, 0x0050_0001));
        talk.meet();
        assert!(poll(side.cq).is_none());
        let peer = talk.exchange((*qp).qp_num.into()) as u32;
        for at in 0..20 {
            let wc = completion(side.cq);
            // The first receive was for the hostile one.
            check(&side, &wc, (11 + at, peer), &pattern(at, 700));
        }
        talk.meet();
        ok(side.tell(qp, (there, peer, QKEY), b"still"));
        side.sent();
    }
    talk.meet();
    drop(links);
    ok(ibv_destroy_ah(there));
    ok(ibv_destroy_qp(qp));
    side.close();
}

/// Accepts a link by a socket of the kernel.
fn accept(listener: &TcpListener, own: u32) -> TcpStream {
    let (mut socket, _) = listener.accept().unwrap();
    // Enhanced private data of 4 octets (RFC 6581 section 9), and a hello.
    let mut request = [0; 20 + 4 + 40];
    socket.read_exact(&mut request).unwrap();
    assert_eq!(&request[..16], b"MPA ID Req Frame");
    let mut reply = b"MPA ID Rep Frame".to_vec();
    reply.extend(&request[16..20]);
    // No Reads; peer-to-peer, with a Send of no octets first (section 9.1).
    reply.extend([0xc0, 0, 0, 0]);
    let asker = u32::from_be_bytes(request[32..36].try_into().unwrap());
    let mut answer = hello(own, asker);
    answer[6] = 1;
    reply.extend(answer);
    socket.write_all(&reply).unwrap();
    socket
}

/// Returns the payload of the next datagram.
fn next_datagram(socket: &mut TcpStream) -> Vec<u8> {
    loop {
        let mut length = [0; 2];
        socket.read_exact(&mut length).unwrap();
        let length = usize::from(u16::from_be_bytes(length));
        let mut rest = vec![0; (2 + length).next_multiple_of(4) + 4 - 2];
        socket.read_exact(&mut rest).unwrap();
        if length > 18 {
            return rest[18 + 24..length].to_vec();
        }
    }
}

/// More than a send queue has room for.
const MANY: usize = 200;

/// Datagrams that are sent, as a program sees it, before the peer has acknowledged any.
const AHEAD: usize = 16;

/// A process that is late loses nothing: the requests wait until their datagrams are on their way.
/// Only so many do not that a program sees its datagram sent before it sees the answer.
pub(crate) unsafe fn late(is_server: bool) {
    let mut talk = Talk::of(is_server);
    if is_server {
        let listener = TcpListener::bind((SERVER, 0)).unwrap();
        let own = u32::from(listener.local_addr().unwrap().port()) << 8;
        talk.say(&own.to_string());
        talk.meet();
        // Long after it was asked for.
        std::thread::sleep(Duration::from_millis(500));
        let mut socket = accept(&listener, own);
        for at in 0..MANY {
            assert_eq!(next_datagram(&mut socket), pattern(at, 100));
        }
    } else {
        let mut side = Side::new(is_server);
        let qp = side.datagrams(1);
        let there = side.handle(1);
        let number = talk.number() as u32;
        for at in 0..AHEAD {
            ok(side.tell(qp, (there, number, QKEY), &pattern(at, 100)));
            assert!(poll(side.cq).is_some(), "datagram {at}");
        }
        ok(side.tell(qp, (there, number, QKEY), &pattern(AHEAD, 100)));
        assert!(poll(side.cq).is_none());
        talk.meet();
        for at in AHEAD + 1..MANY {
            while side.tell(qp, (there, number, QKEY), &pattern(at, 100)) != 0 {
                side.sent();
            }
        }
        talk.meet();
        ok(ibv_destroy_ah(there));
        ok(ibv_destroy_qp(qp));
        side.close();
        return;
    }
    talk.meet();
}

/// Datagrams that have gone ahead to processes which do not answer leave slots for those to others.
pub(crate) unsafe fn many(is_server: bool) {
    let mut talk = Talk::of(is_server);
    if is_server {
        let listeners = [(); 3].map(|()| TcpListener::bind((SERVER, 0)).unwrap());
        let own = |at: usize| u32::from(listeners[at].local_addr().unwrap().port()) << 8;
        (0..3).for_each(|at| talk.say(&own(at).to_string()));
        // The others only have the kernel.
        let mut socket = accept(&listeners[2], own(2));
        for at in 0..MANY {
            assert_eq!(next_datagram(&mut socket), pattern(at, 100));
        }
        talk.meet();
        return;
    }
    let mut side = Side::new(is_server);
    let qp = side.datagrams_with(1, 1);
    let there = side.handle(1);
    let numbers = [(); 3].map(|()| talk.number() as u32);
    for silent in [numbers[0], numbers[1]] {
        for at in 0..AHEAD {
            ok(side.tell(qp, (there, silent, QKEY), &pattern(at, 100)));
            side.sent();
        }
    }
    for at in 0..MANY {
        ok(side.tell(qp, (there, numbers[2], QKEY), &pattern(at, 100)));
        side.sent();
    }
    talk.meet();
    ok(ibv_destroy_ah(there));
    ok(ibv_destroy_qp(qp));
    side.close();
}
