//! Queue pairs that their programs connect by `ibv_modify_qp`: the two tell each other numbers over
//! a socket of the kernel.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::libc;

use crate::alone::open;
use crate::calls::*;
use crate::end::{ALL, Memory, qp_attributes};
use crate::hosts::{CLIENT, READY, SERVER};

/// Where the server tells its numbers.
const PORT: u16 = 7473;

/// The PSNs that the sides begin with.
pub(crate) const PSNS: [u32; 2] = [0x0012_3456, 0x00fe_dcba];

/// A socket over which the two talk, line by line.
pub(crate) struct Talk {
    lines: BufReader<TcpStream>,
}

impl Talk {
    fn new(socket: TcpStream) -> Self {
        socket.set_nodelay(true).unwrap();
        Self {
            lines: BufReader::new(socket),
        }
    }

    pub(crate) fn of(is_server: bool) -> Self {
        match is_server {
            true => Self::serve(),
            false => Self::connect(),
        }
    }

    fn serve() -> Self {
        let listener = TcpListener::bind((SERVER, PORT)).unwrap();
        println!("\n{READY}");
        Self::new(listener.accept().unwrap().0)
    }

    fn connect() -> Self {
        Self::new(TcpStream::connect((SERVER, PORT)).unwrap())
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.lines.get_mut(), "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.hear().parse().unwrap()
    }

    /// Tells a number and hears one.
    pub(crate) fn exchange(&mut self, own: u64) -> u64 {
        self.say(&own.to_string());
        self.number()
    }

    /// Waits for the other side to come as far.
    pub(crate) fn meet(&mut self) {
        assert_eq!(self.exchange(7), 7);
    }
}

/// What a side has of the device.
pub(crate) struct Side {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) memory: Memory,
    /// The addresses of this side and of the other.
    pub(crate) at: [Ipv4Addr; 2],
    pub(crate) psns: [u32; 2],
}

impl Side {
    pub(crate) unsafe fn new(is_server: bool) -> Self {
        let context = open();
        let pd = made(ibv_alloc_pd(context));
        let cq = made(ibv_create_cq(
            context,
            1000,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
        ));
        let (mut at, mut psns) = ([SERVER, CLIENT].map(|ip| ip.parse().unwrap()), PSNS);
        if !is_server {
            at.reverse();
            psns.reverse();
        }
        Self {
            context,
            pd,
            cq,
            memory: Memory::new(pd, 1 << 16, ALL),
            at,
            psns,
        }
    }

    pub(crate) unsafe fn queue_pair(&self) -> *mut ibv_qp {
        made(ibv_create_qp(self.pd, &mut qp_attributes(self.cq)))
    }

    pub(crate) unsafe fn close(self) {
        ok(ibv_destroy_cq(self.cq));
        drop(self.memory);
        ok(ibv_dealloc_pd(self.pd));
        ok(ibv_close_device(self.context));
    }
}

const INIT: i32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
const RTR: i32 = IBV_QP_STATE
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
const RTS: i32 = IBV_QP_STATE
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC;

/// Returns the attributes with which a side moves its queue pair to any state.
fn attributes(side: &Side, state: u32, peer: u32) -> ibv_qp_attr {
    let mut attr = ibv_qp_attr {
        qp_state: state,
        qp_access_flags: ALL,
        port_num: 1,
        path_mtu: IBV_MTU_1024,
        dest_qp_num: peer,
        sq_psn: side.psns[0],
        rq_psn: side.psns[1],
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..ibv_qp_attr::default()
    };
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.dgid.raw = side.at[1].to_ipv6_mapped().octets();
    attr
}

pub(crate) unsafe fn change(side: &Side, qp: *mut ibv_qp, state: u32, peer: u32) {
    let mask = match state {
        IBV_QPS_INIT => INIT,
        IBV_QPS_RTR => RTR,
        IBV_QPS_RTS => RTS,
        _ => IBV_QP_STATE,
    };
    change_by(side, qp, state, peer, mask);
}

/// Moves a queue pair with these attributes.
pub(crate) unsafe fn change_by(side: &Side, qp: *mut ibv_qp, state: u32, peer: u32, mask: i32) {
    ok(ibv_modify_qp(qp, &mut attributes(side, state, peer), mask));
    assert_eq!((*qp).state, state);
}

pub(crate) unsafe fn state_of(qp: *mut ibv_qp) -> ibv_qp_attr {
    let mut attr = ibv_qp_attr::default();
    let mut init = qp_attributes(std::ptr::null_mut());
    ok(ibv_query_qp(qp, &mut attr, IBV_QP_STATE, &mut init));
    attr
}

pub(crate) unsafe fn receive(side: &Side, qp: *mut ibv_qp, place: usize) {
    let mut sge = side.memory.sge(place * 256, 256);
    let mut wr: ibv_recv_wr = std::mem::zeroed();
    (wr.wr_id, wr.sg_list, wr.num_sge) = (place as u64, &mut sge, 1);
    ok(post_recv(qp, &mut wr));
}

pub(crate) unsafe fn request(
    side: &Side,
    qp: *mut ibv_qp,
    opcode: u32,
    place: usize,
    there: (u64, u32),
) -> i32 {
    let mut sge = side.memory.sge(place * 256, 256);
    let mut wr: ibv_send_wr = std::mem::zeroed();
    (wr.wr_id, wr.opcode, wr.send_flags) = (100 + place as u64, opcode, IBV_SEND_SIGNALED);
    (wr.sg_list, wr.num_sge) = (&mut sge, 1);
    wr.wr.rdma = ibv_send_wr_rdma {
        remote_addr: there.0,
        rkey: there.1,
    };
    post_send(qp, &mut wr)
}

/// Moves the queue pairs to RTS, one side before the other, and lets both send.
pub(crate) unsafe fn connect_and_talk(
    side: &mut Side,
    talk: &mut Talk,
    qp: *mut ibv_qp,
    is_first: bool,
) {
    let peer = talk.exchange((*qp).qp_num.into()) as u32;
    assert_ne!(peer, (*qp).qp_num);
    change(side, qp, IBV_QPS_INIT, 0);
    for place in 0..4 {
        receive(side, qp, place);
    }
    assert_eq!(
        request(side, qp, IBV_WR_SEND, 8, (0, 0)),
        libc::EINVAL,
        "in INIT"
    );
    let octets: Vec<u8> = (0..=255)
        .map(|at: u8| at.wrapping_mul(side.psns[0] as u8))
        .collect();
    side.memory.write(8 * 256, &octets);
    if !is_first {
        talk.meet();
    }
    change(side, qp, IBV_QPS_RTR, peer);
    assert_eq!(
        request(side, qp, IBV_WR_SEND, 8, (0, 0)),
        libc::EINVAL,
        "in RTR"
    );
    change(side, qp, IBV_QPS_RTS, peer);
    // It waits for the connection.
    ok(request(side, qp, IBV_WR_SEND, 8, (0, 0)));
    if is_first {
        talk.meet();
    }
    let mut seen = [false; 2];
    for _ in 0..2 {
        let wc = completion(side.cq);
        assert_eq!((wc.status, wc.qp_num), (IBV_WC_SUCCESS, (*qp).qp_num));
        let (number, is_send) = (wc.wr_id, wc.opcode == IBV_WC_SEND);
        assert_eq!(number, if is_send { 108 } else { 0 });
        seen[usize::from(is_send)] = true;
    }
    assert_eq!(seen, [true; 2]);
    let theirs: Vec<u8> = (0..=255)
        .map(|at: u8| at.wrapping_mul(side.psns[1] as u8))
        .collect();
    assert_eq!(side.memory.read(0, 256), theirs);
    let now = state_of(qp);
    assert_eq!((now.qp_state, now.dest_qp_num), (IBV_QPS_RTS, peer));
    assert_eq!((now.sq_psn, now.rq_psn), (side.psns[0], side.psns[1]));
    assert_eq!(
        (now.timeout, now.retry_cnt, now.path_mtu),
        (14, 7, IBV_MTU_1024)
    );
    assert_eq!(
        now.ah_attr.grh.dgid.raw,
        side.at[1].to_ipv6_mapped().octets()
    );
    talk.meet();
}

/// Both orders, then again after a reset with the same numbers.
pub(crate) unsafe fn meet(is_server: bool) {
    let mut talk = if is_server {
        Talk::serve()
    } else {
        Talk::connect()
    };
    let mut side = Side::new(is_server);
    for server_is_first in [true, false] {
        let qp = side.queue_pair();
        for round in 0..2 {
            let number = (*qp).qp_num;
            connect_and_talk(&mut side, &mut talk, qp, is_server == server_is_first);
            change(&side, qp, IBV_QPS_RESET, 0);
            assert_eq!(((*qp).state, (*qp).qp_num), (IBV_QPS_RESET, number));
            assert!(
                poll(side.cq).is_none(),
                "nothing of the former connection, round {round}"
            );
            talk.meet();
        }
        ok(ibv_destroy_qp(qp));
    }
    side.close();
}

/// A queue pair has one peer: others that know its number get nothing, and do not keep that one
/// away.
pub(crate) unsafe fn strangers(is_server: bool) {
    let mut talk = if is_server {
        Talk::serve()
    } else {
        Talk::connect()
    };
    let mut side = Side::new(is_server);
    let qp = side.queue_pair();
    // The side with the smaller address connects.
    if !is_server {
        // They come before the program names its peer, and after.
        talk.say(&(*qp).qp_num.to_string());
        talk.meet();
        connect_and_talk(&mut side, &mut talk, qp, true);
        talk.meet();
    } else {
        let number = talk.number() as u32;
        let mut others = Vec::new();
        for at in 0..3 {
            let other = side.queue_pair();
            change(&side, other, IBV_QPS_INIT, 0);
            receive(&side, other, at);
            change(&side, other, IBV_QPS_RTR, number);
            change(&side, other, IBV_QPS_RTS, number);
            ok(request(&side, other, IBV_WR_SEND, 9, (0, 0)));
            others.push(other);
        }
        talk.meet();
        connect_and_talk(&mut side, &mut talk, qp, false);
        assert!(poll(side.cq).is_none(), "a stranger has sent something");
        for other in others {
            ok(ibv_destroy_qp(other));
        }
        talk.meet();
    }
    ok(ibv_destroy_qp(qp));
    side.close();
}

/// Connects by the kernel's TCP, and sends an MPA Request (RFC 5044 section 7.1.1) with these
/// private data.
pub(crate) fn ask(port: u16, private_data: &[u8]) -> TcpStream {
    ask_at((CLIENT.parse().unwrap(), port), private_data)
}

pub(crate) fn ask_at(at: (Ipv4Addr, u16), private_data: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(at).unwrap();
    say_request(&mut socket, private_data);
    socket
}

/// Sends an MPA Request with these private data.
pub(crate) fn say_request(socket: &mut TcpStream, private_data: &[u8]) {
    let mut frame = b"MPA ID Req Frame\x40\x01".to_vec();
    frame.extend((private_data.len() as u16).to_be_bytes());
    frame.extend(private_data);
    socket.write_all(&frame).unwrap();
}

/// Checks that the other side rejects, and ends the connection.
pub(crate) fn assert_rejected(socket: &mut TcpStream, private_data: &[u8]) {
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    assert_eq!(&answer[..16], b"MPA ID Rep Frame");
    assert_eq!(answer[16] & 0x20, 0x20, "not rejected: {private_data:?}");
}

/// What a peer says of itself: its number and GID, and whom it means.
pub(crate) fn hello(own: u32, peer: u32) -> Vec<u8> {
    hello_at(SERVER, own, peer)
}

/// What a peer says of itself that claims this address.
pub(crate) fn hello_at(address: &str, own: u32, peer: u32) -> Vec<u8> {
    let mut octets = b"RNRC\x01\0\0\0".to_vec();
    octets.extend(own.to_be_bytes());
    octets.extend(peer.to_be_bytes());
    octets.extend([0; 8]);
    octets.extend(
        address
            .parse::<Ipv4Addr>()
            .unwrap()
            .to_ipv6_mapped()
            .octets(),
    );
    octets
}

/// How long a number is not given out again.
const REST: Duration = Duration::from_secs(5);

/// Queue pairs that come and go: their numbers come back, and no peer finds another than it means.
pub(crate) unsafe fn come_and_go(is_server: bool) {
    let mut talk = if is_server {
        Talk::serve()
    } else {
        Talk::connect()
    };
    let mut side = Side::new(is_server);
    // When each number was given back.
    let mut rests = BTreeMap::<u32, Instant>::new();
    let mut stays = None;
    for round in 0..40 {
        if round == 20 {
            // Before it, each round ends with the last queue pair of a port, which is closed then:
            // the kernel may give another one. Behind it, a port is this process's all the time.
            stays = Some(side.queue_pair());
        }
        let qps: Vec<_> = (0..8).map(|_| side.queue_pair()).collect();
        for number in qps.iter().map(|qp| (**qp).qp_num) {
            let rested = rests.get(&number).map(Instant::elapsed);
            assert!(
                rested.is_none_or(|rested| rested >= REST),
                "{number:#x} comes back after {rested:?}"
            );
        }
        // One of them connects. The others go as they are.
        connect_and_talk(
            &mut side,
            &mut talk,
            qps[round % 8],
            round % 2 == usize::from(is_server),
        );
        for qp in qps {
            rests.insert((*qp).qp_num, Instant::now());
            ok(ibv_destroy_qp(qp));
        }
        while poll(side.cq).is_some() {}
        talk.meet();
    }
    // Once all have rested, the first of that port comes back.
    std::thread::sleep(REST);
    let stays = stays.unwrap();
    let port = (*stays).qp_num >> 8;
    let of_port = rests.iter().filter(|(number, _)| **number >> 8 == port);
    let (first, _) = of_port.min_by_key(|(_, since)| **since).unwrap();
    let qps: Vec<_> = (0..256).map(|_| side.queue_pair()).collect();
    let again = qps.iter().any(|qp| (**qp).qp_num == *first);
    assert!(again, "{first:#x} does not come back");
    for qp in qps.into_iter().chain([stays]) {
        ok(ibv_destroy_qp(qp));
    }
    side.close();
}

/// Two queue pairs of one process on one device, and one that is its own peer.
pub(crate) unsafe fn one_process() {
    let mut side = Side::new(false);
    side.at = [side.at[0]; 2];
    side.psns = [PSNS[0]; 2];
    let pair = [side.queue_pair(), side.queue_pair()];
    let sole = side.queue_pair();
    let peers = [(*pair[1]).qp_num, (*pair[0]).qp_num, (*sole).qp_num];
    for (qp, peer) in [pair[0], pair[1], sole].into_iter().zip(peers) {
        change(&side, qp, IBV_QPS_INIT, 0);
        change(&side, qp, IBV_QPS_RTR, peer);
        change(&side, qp, IBV_QPS_RTS, peer);
    }
    let octets: Vec<u8> = (0..=255).collect();
    side.memory.write(8 * 256, &octets);
    for (from, to) in [(0, 1), (1, 0)] {
        receive(&side, pair[to], to);
        ok(request(&side, pair[from], IBV_WR_SEND, 8, (0, 0)));
        let mut both = [completion(side.cq), completion(side.cq)];
        both.sort_by_key(|wc| wc.wr_id);
        assert_eq!(
            both.map(|wc| (wc.status, wc.wr_id)),
            [(IBV_WC_SUCCESS, to as u64), (IBV_WC_SUCCESS, 108)]
        );
        assert_eq!(
            both.map(|wc| wc.qp_num),
            [(*pair[to]).qp_num, (*pair[from]).qp_num]
        );
        assert_eq!(side.memory.read(to * 256, 256), octets);
    }
    let rkey = (*side.memory.mr).rkey;
    for (opcode, from, to) in [(IBV_WR_RDMA_WRITE, 8, 20), (IBV_WR_RDMA_READ, 22, 20)] {
        ok(request(
            &side,
            sole,
            opcode,
            from,
            (side.memory.address(to * 256), rkey),
        ));
        let wc = completion(side.cq);
        assert_eq!((wc.status, wc.qp_num), (IBV_WC_SUCCESS, (*sole).qp_num));
    }
    assert_eq!(side.memory.read(22 * 256, 256), octets);
    // The same checks hold.
    ok(request(
        &side,
        sole,
        IBV_WR_RDMA_READ,
        22,
        (side.memory.address(0), rkey ^ 0x100),
    ));
    assert_eq!(completion(side.cq).status, IBV_WC_REM_ACCESS_ERR);
    for qp in [pair[0], sole, pair[1]] {
        ok(ibv_destroy_qp(qp));
    }
    side.close();
}

/// What `ibv_modify_qp` refuses.
pub(crate) unsafe fn refusals() {
    let side = Side::new(false);
    let qp = side.queue_pair();
    let refused = |state, mask, edit: &dyn Fn(&mut ibv_qp_attr)| {
        let mut attr = attributes(&side, state, 0x7fff_ff00 >> 8 << 8 & 0x00ff_ffff);
        edit(&mut attr);
        assert_eq!(
            ibv_modify_qp(qp, &mut attr, mask),
            libc::EINVAL,
            "{state} {mask:#x}"
        );
    };
    refused(IBV_QPS_RTR, RTR, &|_| ());
    refused(IBV_QPS_INIT, INIT & !IBV_QP_PORT, &|_| ());
    refused(IBV_QPS_INIT, INIT, &|attr| attr.port_num = 2);
    refused(IBV_QPS_INIT, INIT, &|attr| attr.pkey_index = 1);
    change(&side, qp, IBV_QPS_INIT, 0);
    refused(IBV_QPS_RTS, RTS, &|_| ());
    for bit in [
        IBV_QP_AV,
        IBV_QP_PATH_MTU,
        IBV_QP_DEST_QPN,
        IBV_QP_RQ_PSN,
        IBV_QP_MIN_RNR_TIMER,
    ] {
        refused(IBV_QPS_RTR, RTR & !bit, &|_| ());
    }
    refused(IBV_QPS_RTR, RTR, &|attr| attr.ah_attr.is_global = 0);
    refused(IBV_QPS_RTR, RTR, &|attr| attr.ah_attr.grh.sgid_index = 200);
    refused(IBV_QPS_RTR, RTR, &|attr| attr.dest_qp_num = 5);
    refused(IBV_QPS_RTR, RTR, &|attr| attr.dest_qp_num |= 1 << 24);
    refused(IBV_QPS_RTR, RTR, &|attr| attr.path_mtu = 9);
    refused(IBV_QPS_RTR, RTR, &|attr| {
        attr.ah_attr.grh.dgid.raw = [0; 16]
    });
    assert_eq!(state_of(qp).qp_state, IBV_QPS_INIT);
    // Nobody is there. That is no error of the program.
    let mut attr = attributes(&side, IBV_QPS_RTR, 0x0080_0001);
    attr.ah_attr.grh.dgid.raw = Ipv4Addr::new(10, 78, 0, 77).to_ipv6_mapped().octets();
    ok(ibv_modify_qp(qp, &mut attr, RTR));
    change(&side, qp, IBV_QPS_RTS, 0);
    refused(IBV_QPS_INIT, INIT, &|_| ());
    change(&side, qp, IBV_QPS_ERR, 0);
    receive(&side, qp, 1);
    assert_eq!(completion(side.cq).status, IBV_WC_WR_FLUSH_ERR);
    refused(IBV_QPS_RTS, RTS, &|_| ());
    change(&side, qp, IBV_QPS_RESET, 0);
    ok(ibv_destroy_qp(qp));
    side.close();
}
