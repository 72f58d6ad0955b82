//! What two processes do that are connected. The server does what it is told, and the client
//! checks.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::alone;
use crate::calls::*;
use crate::crowds;
use crate::datagrams;
use crate::descriptors;
use crate::end::{ALL, End, MESSAGE, Memory};
use crate::forks;
use crate::hosts::{READY, SERVER};
use crate::itself;
use crate::own_peer;
use crate::parting;
use crate::psns;
use crate::sections;
use crate::shared::{next_event, shared};
use crate::shared_datagrams;
use crate::stopped;
use crate::there::{There, connect, number};
use crate::threads::threads;
use crate::unreliable;

pub(crate) const IDLE: &str = "idle";
pub(crate) const SERVER_ROLE: &str = "server";

pub(crate) fn play(role: &str) {
    // SAFETY: the roles call functions of C as the manual pages have it.
    unsafe {
        match role {
            IDLE => println!("\n{READY}"),
            SERVER_ROLE => serve(),
            "attributes" => alone::attributes(),
            "objects" => alone::objects(),
            "wrong" => alone::wrong(),
            "kinds" => kinds(),
            "extended" => extended(),
            "channel" => channel(),
            "events" => events(),
            "windows" => windows(),
            "threads" => threads(),
            "shared" => shared(),
            "sections" => sections::sections(),
            "sections-of-threads" => sections::sections_of_threads(),
            "whole" => sections::whole(),
            "forks" => forks::forks(),
            "heirs" => forks::heirs(),
            "meet-server" => itself::meet(true),
            "meet" => itself::meet(false),
            "strangers-server" => itself::strangers(true),
            "strangers" => itself::strangers(false),
            "come-and-go-server" => itself::come_and_go(true),
            "come-and-go" => itself::come_and_go(false),
            "leave-nothing-server" => descriptors::leave_nothing(true),
            "leave-nothing" => descriptors::leave_nothing(false),
            "wrong-psns-server" => psns::wrong(true),
            "wrong-psns" => psns::wrong(false),
            "receiver-server" => psns::receiver(true),
            "receiver" => psns::receiver(false),
            "crowds-server" => crowds::crowds(true),
            "crowds" => crowds::crowds(false),
            "one-process" => itself::one_process(),
            "refusals" => itself::refusals(),
            "last-words-server" => parting::last_words(true),
            "last-words" => parting::last_words(false),
            "last-words-of-many-server" => parting::last_words_of_many(true),
            "last-words-of-many" => parting::last_words_of_many(false),
            "unreliable" => unreliable::unreliable(),
            "own-peer" => own_peer::own_peer(),
            "shared-datagrams" => shared_datagrams::shared_datagrams(),
            "stopped" => stopped::stopped(),
            "datagrams-server" => datagrams::two_hosts(true),
            "datagrams" => datagrams::two_hosts(false),
            "hostile-datagrams-server" => datagrams::hostile(true),
            "hostile-datagrams" => datagrams::hostile(false),
            "late-datagrams-server" => datagrams::late(true),
            "late-datagrams" => datagrams::late(false),
            "many-datagrams-server" => datagrams::many(true),
            "many-datagrams" => datagrams::many(false),
            "datagrams-of-one-process" => datagrams::one_process(),
            unknown => panic!("no role {unknown}"),
        }
    }
}

/// Tells where its memory is, and then answers each message until the connection is over: Immediate
/// Data, a message that invalidated something, the request for a window, anything else as an echo.
unsafe fn serve() {
    let end = End::serve(SERVER, || println!("\n{READY}"));
    let mut hello = end.memory.address(0).to_ne_bytes().to_vec();
    hello.extend((*end.memory.mr).rkey.to_ne_bytes());
    end.say(&hello);
    let alloc_mw = (*(*end.id).verbs).ops.alloc_mw.unwrap();
    let dealloc_mw = (*(*end.id).verbs).ops.dealloc_mw.unwrap();
    let window = made(alloc_mw(end.pd, IBV_MW_TYPE_2));
    loop {
        let (wc, message) = end.message();
        if wc.status != IBV_WC_SUCCESS {
            assert_eq!(wc.status, IBV_WC_WR_FLUSH_ERR);
            break;
        }
        if wc.wc_flags & IBV_WC_WITH_IMM != 0 {
            assert_eq!(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
            let answer = [wc.imm_data.to_ne_bytes(), wc.byte_len.to_ne_bytes()];
            end.say(&answer.concat());
        } else if wc.wc_flags & IBV_WC_WITH_INV != 0 {
            end.say(&wc.imm_data.to_ne_bytes());
        } else if message == b"bind" {
            // The next key, as ibv_inc_rkey has it.
            let key = (*window).rkey & !0xff | ((*window).rkey + 1) & 0xff;
            let wc = end.carry_out(IBV_WR_BIND_MW, &mut [], |wr| {
                wr.bind_mw = ibv_send_wr_bind {
                    mw: window,
                    rkey: key,
                    bind_info: ibv_mw_bind_info {
                        mr: end.memory.mr,
                        addr: end.memory.address(4096),
                        length: 4096,
                        mw_access_flags: IBV_ACCESS_REMOTE_WRITE,
                    },
                };
            });
            assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_BIND_MW));
            (*window).rkey = key;
            end.say(&key.to_ne_bytes());
        } else {
            end.say(&message);
        }
    }
    ok(dealloc_mw(window));
    end.close();
}

/// The client's memory: what is sent lies in the first half, and what comes back in the second.
const BACK: usize = 1 << 15;

unsafe fn kinds() {
    let (mut end, there) = connect(0);
    let octets: Vec<u8> = (0..20_000u32).map(|at| (at * 7 + at / 251) as u8).collect();
    end.memory.write(0, &octets);
    // From two pieces, and back.
    let mut pieces = [end.memory.sge(0, 15_000), end.memory.sge(15_000, 5_000)];
    let wc = end.carry_out(IBV_WR_RDMA_WRITE, &mut pieces, there.at(8));
    assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE));
    let mut piece = [end.memory.sge(BACK, 20_000)];
    let wc = end.carry_out(IBV_WR_RDMA_READ, &mut piece, there.at(8));
    assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_RDMA_READ));
    assert_eq!(end.memory.read(BACK, 20_000), octets);

    // Into several pieces.
    let lengths = [1000, 1, 15_000, 3999];
    let mut pieces = lengths.map(|length| end.memory.sge(BACK, length));
    for at in 1..pieces.len() {
        pieces[at].addr = pieces[at - 1].addr + u64::from(pieces[at - 1].length) + 8;
    }
    let wc = end.carry_out(IBV_WR_RDMA_READ, &mut pieces, there.at(8));
    assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_RDMA_READ));
    let found = pieces.map(|piece| {
        let offset = (piece.addr - end.memory.address(0)) as usize;
        end.memory.read(offset, piece.length as usize)
    });
    assert_eq!(found.concat(), octets);

    // As much inline as a queue pair has room for.
    end.say(&octets[..MESSAGE]);
    assert_eq!(end.message().1, octets[..MESSAGE]);

    // Inline data may change as soon as they are posted.
    end.say(b"an echo");
    let (wc, message) = end.message();
    assert_eq!(
        (wc.opcode, wc.byte_len, &*message),
        (IBV_WC_RECV, 7, &b"an echo"[..])
    );

    // Immediate Data arrive with the length of the Write.
    let wc = end.carry_out(
        IBV_WR_RDMA_WRITE_WITH_IMM,
        &mut [end.memory.sge(0, 300)],
        |wr| {
            there.at(0)(wr);
            wr.imm_data = 0x1234_5678;
        },
    );
    assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE));
    let (_, answer) = end.message();
    assert_eq!((number(&answer), number(&answer[4..])), (0x1234_5678, 300));

    atomics(&mut end, there);
    list(&end, there);
    end.close();
}

unsafe fn atomics(end: &mut End, there: There) {
    end.memory.write(0, &40u64.to_ne_bytes());
    end.carry_out(IBV_WR_RDMA_WRITE, &mut [end.memory.sge(0, 8)], there.at(0));
    let atomic = |compare_add, swap| {
        move |wr: &mut ibv_send_wr| {
            wr.wr.atomic = ibv_send_wr_atomic {
                remote_addr: there.address,
                compare_add,
                swap,
                rkey: there.rkey,
            }
        }
    };
    let found = |end: &End| u64::from_ne_bytes(end.memory.read(BACK, 8).try_into().unwrap());
    let mut back = [end.memory.sge(BACK, 8)];
    let wc = end.carry_out(IBV_WR_ATOMIC_FETCH_AND_ADD, &mut back, atomic(2, 0));
    let expected = (IBV_WC_SUCCESS, IBV_WC_FETCH_ADD, 40);
    assert_eq!((wc.status, wc.opcode, found(end)), expected);
    let wc = end.carry_out(IBV_WR_ATOMIC_CMP_AND_SWP, &mut back, atomic(42, 7));
    let expected = (IBV_WC_SUCCESS, IBV_WC_COMP_SWAP, 42);
    assert_eq!((wc.status, wc.opcode, found(end)), expected);
    end.carry_out(IBV_WR_ATOMIC_FETCH_AND_ADD, &mut back, atomic(0, 0));
    assert_eq!(found(end), 7);
}

/// A list of requests, of which only the last is signalled, and the third of another list is wrong.
unsafe fn list(end: &End, there: There) {
    let mut pieces: Vec<_> = (0..5).map(|at| end.memory.sge(at * 8, 8)).collect();
    let mut list: Vec<ibv_send_wr> = (0..5).map(|_| std::mem::zeroed()).collect();
    for (at, wr) in list.iter_mut().enumerate() {
        wr.wr_id = 100 + at as u64;
        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.sg_list = &mut pieces[at];
        wr.num_sge = 1;
        there.at(at as u64 * 8)(wr);
    }
    for at in 0..4 {
        list[at].next = &raw mut list[at + 1];
    }
    list[4].send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
    ok(post_send(end.qp(), &mut list[0]));
    let wc = completion(end.send_cq);
    assert_eq!((wc.wr_id, wc.status), (104, IBV_WC_SUCCESS));
    assert!(poll(end.send_cq).is_none());

    list[1].send_flags = IBV_SEND_SIGNALED;
    list[2].opcode = 99;
    let mut bad = null_mut();
    let post = (*(*end.id).verbs).ops.post_send.unwrap();
    assert_eq!(post(end.qp(), &mut list[0], &mut bad), nix::libc::EINVAL);
    assert_eq!(bad, &raw mut list[2]);
    assert_eq!(completion(end.send_cq).wr_id, 101);
}

unsafe fn extended() {
    let operations = IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_SEND
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let (mut end, there) = connect(operations);
    let qp = made(ibv_qp_to_qp_ex(end.qp()));
    let calls = &*qp;
    end.memory.write(0, b"built by calls");
    let start = |wr_id, flags| {
        (*qp).wr_id = wr_id;
        (*qp).wr_flags = flags;
    };
    calls.wr_start.unwrap()(qp);
    start(1, 0);
    calls.wr_rdma_write.unwrap()(qp, there.rkey, there.address);
    let from = end.memory.sge(0, 14);
    calls.wr_set_sge.unwrap()(qp, from.lkey, from.addr, from.length);
    start(2, IBV_SEND_SIGNALED);
    calls.wr_rdma_read.unwrap()(qp, there.rkey, there.address);
    let to = end.memory.sge(BACK, 14);
    calls.wr_set_sge_list.unwrap()(qp, 1, &raw const to);
    start(3, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
    calls.wr_send.unwrap()(qp);
    let parts = [b"in ".as_slice(), b"two parts"].map(|part| ibv_data_buf {
        addr: part.as_ptr().cast_mut().cast(),
        length: part.len(),
    });
    calls.wr_set_inline_data_list.unwrap()(qp, 2, parts.as_ptr());
    assert_eq!(calls.wr_complete.unwrap()(qp), 0);

    // The Read, the Send, and the echo.
    let mut seen = Vec::new();
    let cq: *mut ibv_cq_ex = end.send_cq.cast();
    let read = &*cq;
    while seen.len() < 3 {
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        if read.start_poll.unwrap()(cq, &mut attr) != 0 {
            continue;
        }
        loop {
            assert_eq!(
                ((*cq).status, read.read_qp_num.unwrap()(cq)),
                (0, (*end.qp()).qp_num)
            );
            let opcode = read.read_opcode.unwrap()(cq);
            seen.push((opcode, (*cq).wr_id, read.read_byte_len.unwrap()(cq)));
            if read.next_poll.unwrap()(cq) != 0 {
                break;
            }
        }
        read.end_poll.unwrap()(cq);
    }
    let opcodes: Vec<_> = seen.iter().map(|(opcode, ..)| *opcode).collect();
    assert_eq!(opcodes.iter().filter(|o| **o == IBV_WC_RECV).count(), 1);
    assert!(seen.iter().any(|c| (c.0, c.1) == (IBV_WC_RDMA_READ, 2)));
    assert!(seen.iter().any(|c| (c.0, c.1) == (IBV_WC_SEND, 3)));
    assert!(seen.iter().any(|c| (c.0, c.2) == (IBV_WC_RECV, 12)));
    assert_eq!(end.memory.read(BACK, 14), b"built by calls");

    // What is wrong is told at the end, and nothing of it is posted.
    calls.wr_start.unwrap()(qp);
    start(4, IBV_SEND_SIGNALED);
    calls.wr_send.unwrap()(qp);
    calls.wr_set_inline_data.unwrap()(qp, end.memory.address(0) as *mut _, 1 << 15);
    assert_eq!(calls.wr_complete.unwrap()(qp), nix::libc::EINVAL);
    calls.wr_start.unwrap()(qp);
    calls.wr_send.unwrap()(qp);
    calls.wr_abort.unwrap()(qp);
    assert!(poll(end.send_cq).is_none());
    end.close();
}

unsafe fn channel() {
    let (end, there) = connect(0);
    notify(end.send_cq, false);
    notify(end.recv_cq, false);
    // A completion of each queue: each notifies once.
    end.say(b"echo");
    let mut wr: ibv_send_wr = std::mem::zeroed();
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    there.at(0)(&mut wr);
    ok(post_send(end.qp(), &mut wr));
    let mut told = Vec::new();
    for _ in 0..2 {
        let (mut cq, mut context) = (null_mut(), null_mut());
        ok(ibv_get_cq_event(end.channel, &mut cq, &mut context));
        told.push((cq, context.addr()));
    }
    told.sort_by_key(|(_, mark)| *mark);
    assert_eq!(told, [(end.send_cq, 1), (end.recv_cq, 2)]);
    assert_eq!(completion(end.send_cq).status, IBV_WC_SUCCESS);
    assert_eq!(end.message().1, b"echo");
    // Without another notification there is nothing to read.
    nix::fcntl::fcntl(
        std::os::fd::BorrowedFd::borrow_raw((*end.channel).fd),
        nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
    )
    .unwrap();
    let (mut cq, mut context) = (null_mut(), null_mut());
    assert_eq!(ibv_get_cq_event(end.channel, &mut cq, &mut context), -1);
    ibv_ack_cq_events(end.recv_cq, 1);
    // What has come since, and nobody has polled, notifies who arms later.
    end.say(b"unseen");
    while !end.has_received(b"unseen") {
        assert!(poll(end.send_cq).is_none());
    }
    assert!(poll(end.send_cq).is_none());
    notify(end.recv_cq, false);
    let told = (0..1_000_000).any(|_| ibv_get_cq_event(end.channel, &mut cq, &mut context) == 0);
    assert!(told && cq == end.recv_cq);
    ibv_ack_cq_events(end.recv_cq, 1);
    assert_eq!((*end.recv_cq).comp_events_completed, 2);
    assert_eq!(end.message().1, b"unseen");

    // A queue is destroyed once what was read is acknowledged.
    let other = made(ibv_create_cq((*end.id).verbs, 1, null_mut(), null_mut(), 0));
    ok(ibv_destroy_cq(other));
    let acknowledged = AtomicBool::new(false);
    let send_cq = end.send_cq.expose_provenance();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..1000 {
                thread::yield_now();
            }
            acknowledged.store(true, Ordering::SeqCst);
            ibv_ack_cq_events(std::ptr::with_exposed_provenance_mut(send_cq), 1);
        });
        end.close();
        assert!(acknowledged.load(Ordering::SeqCst));
    });
}

unsafe fn events() {
    let (end, there) = connect(0);
    let wrong = There {
        rkey: there.rkey ^ 0x100,
        ..there
    };
    let mut piece = [end.memory.sge(0, 100)];
    let wc = end.carry_out(IBV_WR_RDMA_WRITE, &mut piece, wrong.at(0));
    // A Write is done when TCP has delivered it, which may be before the peer's Terminate comes.
    let known = [IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR];
    assert!(known.contains(&wc.status), "{wc:?}");
    // The receives are flushed, and the queue pair has failed.
    assert_eq!(end.message().0.status, IBV_WC_WR_FLUSH_ERR);
    let mut event = next_event((*end.id).verbs);
    assert_eq!(
        (event.event_type, event.element.qp),
        (IBV_EVENT_QP_FATAL, end.qp())
    );
    let (mut state, mut init) = (ibv_qp_attr::default(), std::mem::zeroed());
    ok(ibv_query_qp(end.qp(), &mut state, IBV_QP_STATE, &mut init));
    assert!([IBV_QPS_SQE, IBV_QPS_ERR].contains(&state.qp_state));
    ibv_ack_async_event(&mut event);
    end.close();
}

unsafe fn windows() {
    let (mut end, there) = connect(0);
    registers_anew(&mut end, there);
    binds_type_1(&end);

    // A window of the server, through which writing is allowed until it is invalidated.
    end.say(b"bind");
    let window = There {
        rkey: number(&end.message().1),
        ..there
    };
    let write = |at: There| {
        let mut piece = [end.memory.sge(0, 64)];
        end.carry_out(IBV_WR_RDMA_WRITE, &mut piece, at.at(4096))
    };
    assert_eq!(write(window).status, IBV_WC_SUCCESS);
    let mut nothing = [];
    let wc = end.carry_out(IBV_WR_SEND_WITH_INV, &mut nothing, |wr| {
        wr.imm_data = window.rkey
    });
    assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_SEND));
    assert_eq!(number(&end.message().1), window.rkey);
    write(window);
    assert_eq!(end.message().0.status, IBV_WC_WR_FLUSH_ERR);
    end.close();
}

/// A region is moved to other memory: what is read comes there, under its new key.
unsafe fn registers_anew(end: &mut End, there: There) {
    end.memory.write(0, b"the other place");
    let mut piece = [end.memory.sge(0, 15)];
    end.carry_out(IBV_WR_RDMA_WRITE, &mut piece, there.at(0));
    let mut moved = Memory::new(end.pd, 64, IBV_ACCESS_LOCAL_WRITE);
    let before = (*moved.mr).lkey;
    let mut other = [0u64; 64];
    let at = other.as_mut_ptr().cast();
    let changes = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS;
    ok(ibv_rereg_mr(
        moved.mr,
        changes,
        null_mut(),
        at,
        512,
        ALL as i32,
    ));
    assert_eq!(((*moved.mr).addr, (*moved.mr).length), (at, 512));
    assert_ne!((*moved.mr).lkey, before);
    let mut piece = [ibv_sge {
        addr: at as u64,
        length: 15,
        lkey: (*moved.mr).lkey,
    }];
    let wc = end.carry_out(IBV_WR_RDMA_READ, &mut piece, there.at(0));
    assert_eq!(wc.status, IBV_WC_SUCCESS);
    let octets: Vec<u8> = other.iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(octets[..15], *b"the other place");
    moved.write(0, b"its own memory");
}

/// A window of type 1 is bound twice, with another key each time, and then unbound.
unsafe fn binds_type_1(end: &End) {
    let calls = &(*(*end.id).verbs).ops;
    let window = made(calls.alloc_mw.unwrap()(end.pd, IBV_MW_TYPE_1));
    let mut bind = ibv_mw_bind {
        wr_id: 9,
        send_flags: IBV_SEND_SIGNALED,
        bind_info: ibv_mw_bind_info {
            mr: end.memory.mr,
            addr: end.memory.address(64),
            length: 640,
            mw_access_flags: IBV_ACCESS_REMOTE_READ,
        },
    };
    let mut keys = vec![(*window).rkey];
    for _ in 0..2 {
        ok(calls.bind_mw.unwrap()(end.qp(), window, &mut bind));
        let wc = completion(end.send_cq);
        let expected = (9, IBV_WC_SUCCESS, IBV_WC_BIND_MW);
        assert_eq!((wc.wr_id, wc.status, wc.opcode), expected);
        assert!(!keys.contains(&(*window).rkey));
        keys.push((*window).rkey);
    }
    bind.bind_info.length = 0;
    ok(calls.bind_mw.unwrap()(end.qp(), window, &mut bind));
    assert_eq!(completion(end.send_cq).status, IBV_WC_SUCCESS);
    ok(calls.dealloc_mw.unwrap()(window));
}
