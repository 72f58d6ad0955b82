//! What each process does.

use std::os::fd::AsRawFd;
use std::thread;

use nix::libc::*;
use nix::sys::eventfd::EventFd;

use crate::calls::{RDMA_IOMAPSIZE, RDMA_SQSIZE, Repoll, SOL_RDMA, Socket, errno, poll};
use crate::hosts::{CLIENT, READY, SERVER};

pub(crate) const PORT: u16 = 7471;
pub(crate) const UNUSED: u16 = 7472;

pub(crate) fn play(role: &str) {
    match role {
        "echo" => echo(),
        "echo-client" => echo_client(),
        "reader" => reader(),
        "writer" => writer(),
        "watcher" => watcher(),
        "pieces" => pieces(),
        "pieces-client" => pieces_client(),
        "ends" => ends(),
        "ends-client" => ends_client(),
        "nothing" => drop(listen()),
        "errors-client" => errors_client(),
        "mapper" => mapper(),
        "mapped-writer" => mapped_writer(),
        other => panic!("no role {other}"),
    }
}

pub(crate) fn server() -> String {
    format!("{SERVER}:{PORT}")
}

pub(crate) fn listen() -> Socket {
    let listener = Socket::listening(&server());
    // Behind what the test harness prints without an end of line.
    println!("\n{READY}");
    listener
}

fn ip(text: &str) -> u32 {
    text.parse::<std::net::Ipv4Addr>().unwrap().into()
}

/// Octets of which no two neighbourhoods are alike.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

pub(crate) fn receive_exactly(socket: &Socket, length: usize) -> Vec<u8> {
    let mut received = vec![0; length];
    assert_eq!(socket.recv(&mut received, MSG_WAITALL).unwrap(), length);
    received
}

fn echo() {
    let listener = listen();
    let socket = listener.accept().unwrap();
    assert_eq!(socket.peer().unwrap().0, ip(CLIENT));
    assert_eq!(socket.local().unwrap(), (ip(SERVER), PORT));
    let mut buffer = vec![0; 70_000];
    loop {
        let length = socket.recv(&mut buffer, 0).unwrap();
        if length == 0 {
            break;
        }
        assert_eq!(socket.send(&buffer[..length], 0).unwrap(), length);
    }
}

/// One thread sends and another receives, so that both wait for room and for data at the same time.
fn echo_client() {
    let socket = Socket::connected(&server());
    let sent = pattern(20_000_000);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut left = &sent[..];
            for length in [
                1,
                2,
                63,
                64,
                65,
                255,
                257,
                2048,
                4096,
                65_537,
                200_001,
                1 << 20,
            ]
            .into_iter()
            .cycle()
            {
                let (now, rest) = left.split_at(length.min(left.len()));
                assert_eq!(socket.send(now, 0).unwrap(), now.len());
                left = rest;
                if left.is_empty() {
                    break;
                }
            }
            socket.shutdown(SHUT_WR).unwrap();
            assert_eq!(errno(socket.send(b"more", 0)), ECONNRESET);
        });
        assert!(receive_exactly(&socket, sent.len()) == sent);
        assert_eq!(socket.recv(&mut [0; 10], 0).unwrap(), 0);
    });
}

/// Reads nothing from its first client until the second asks for it.
fn reader() {
    let listener = listen();
    let (bulk, control) = (listener.accept().unwrap(), listener.accept().unwrap());
    let asked = receive_exactly(&control, 8);
    let length = u64::from_ne_bytes(asked.try_into().unwrap()) as usize;
    assert!(receive_exactly(&bulk, length) == pattern(length));
    control.send(b"!", 0).unwrap();
    assert_eq!(control.recv(&mut [0], 0).unwrap(), 0);
}

fn writer() {
    let bulk = Socket::of_type(AF_INET, SOCK_STREAM | SOCK_NONBLOCK).unwrap();
    assert_eq!(errno(bulk.connect(&server())), EINPROGRESS);
    assert_eq!(bulk.poll(POLLOUT, -1), POLLOUT);
    assert_eq!(bulk.error(), 0);
    assert_eq!(errno(bulk.recv(&mut [0], 0)), EAGAIN);
    let control = Socket::connected(&server());
    assert_eq!(errno(control.recv(&mut [0], MSG_DONTWAIT)), EAGAIN);

    let data = pattern(10_000_000);
    let mut sent = 0;
    while let Ok(now) = bulk.send(&data[sent..], 0) {
        sent += now;
    }
    assert_eq!(errno(bulk.send(&data[sent..], 0)), EAGAIN);
    // At least the half of the peer's buffer that is offered first.
    assert!((1 << 16..data.len()).contains(&sent), "{sent}");
    assert_eq!(bulk.poll(POLLOUT, 1), 0);

    // Sockets and ordinary descriptors are polled together.
    let ordinary = EventFd::from_value(1).unwrap();
    let entry = |fd, events| pollfd {
        fd,
        events,
        revents: 0,
    };
    let mut fds = [
        entry(bulk.0, POLLOUT),
        entry(ordinary.as_raw_fd(), POLLIN),
        entry(control.0, POLLIN),
    ];
    assert_eq!(poll(&mut fds, -1).unwrap(), 1);
    assert_eq!(fds.map(|fd| fd.revents), [0, POLLIN, 0]);
    ordinary.read().unwrap();

    control.send(&(sent as u64).to_ne_bytes(), 0).unwrap();
    assert!(poll(&mut fds, -1).unwrap() > 0);
    control.wait_readable();
    assert_eq!(receive_exactly(&control, 1), b"!");
    assert_eq!(bulk.poll(POLLOUT, -1), POLLOUT);
    assert_eq!(bulk.fcntl(F_GETFL, 0).unwrap(), O_RDWR | O_NONBLOCK);
    bulk.fcntl(F_SETFL, O_RDWR).unwrap();
    assert_eq!(bulk.fcntl(F_GETFL, 0).unwrap(), O_RDWR);
}

fn pieces() {
    let listener = listen();
    let socket = listener.accept().unwrap();
    socket.wait_readable();
    let mut peeked = [0; 3];
    assert_eq!(socket.recv(&mut peeked, MSG_PEEK).unwrap(), 3);
    assert_eq!(&peeked, b"one");
    let (mut first, mut second) = ([0; 4], [0; 20]);
    let length = socket.recv_into(&mut [&mut first, &mut second]).unwrap();
    assert_eq!(length, 13);
    assert_eq!((&first, &second[..9]), (b"one ", &b"two three"[..]));
    socket.send(b"thanks", 0).unwrap();
    assert_eq!(socket.recv(&mut second, 0).unwrap(), 0);
}

fn pieces_client() {
    let socket = Socket::connected(&server());
    assert_eq!(
        socket
            .send_from(&[b"one ", b"", b"two ", b"three"])
            .unwrap(),
        13
    );
    assert_eq!(receive_exactly(&socket, 6), b"thanks");
}

/// Its clients say farewell in different ways.
fn ends() {
    let listener = listen();
    let mut buffer = [0; 10];

    let half = listener.accept().unwrap();
    assert_eq!(half.recv(&mut buffer, 0).unwrap(), 4);
    assert_eq!(half.recv(&mut buffer, 0).unwrap(), 0);
    assert_eq!(half.poll(POLLIN, -1), POLLIN);
    assert_eq!(half.send(b"later", 0).unwrap(), 5);
    drop(half);

    let closed = listener.accept().unwrap();
    assert_eq!(closed.poll(0, -1), POLLHUP);
    assert_eq!(closed.recv(&mut buffer, 0).unwrap(), 4);
    assert_eq!(closed.recv(&mut buffer, 0).unwrap(), 0);
    assert_eq!(errno(closed.send(b"?", 0)), ECONNRESET);
    assert_eq!(closed.error(), 0);

    let aborted = listener.accept().unwrap();
    assert_eq!(errno(aborted.recv(&mut buffer, 0)), ECONNRESET);
    assert_eq!(aborted.poll(POLLIN, -1), POLLIN | POLLHUP | POLLERR);
    assert_eq!(aborted.error(), ECONNRESET);
    assert_eq!(aborted.error(), 0);
    // The client's last socket ends when it knows that this one was seen.
    drop(listener.accept().unwrap());
}

fn ends_client() {
    let mut buffer = [0; 10];
    let half = Socket::connected(&server());
    half.send(b"half", 0).unwrap();
    half.shutdown(SHUT_WR).unwrap();
    assert_eq!(half.recv(&mut buffer, MSG_WAITALL).unwrap(), 5);
    assert_eq!(half.recv(&mut buffer, 0).unwrap(), 0);

    let closed = Socket::connected(&server());
    closed.send(b"full", 0).unwrap();
    drop(closed);

    let aborted = Socket::connected(&server());
    aborted
        .set(
            SOL_SOCKET,
            SO_LINGER,
            linger {
                l_onoff: 1,
                l_linger: 0,
            },
        )
        .unwrap();
    drop(aborted);
    let last = Socket::connected(&server());
    assert_eq!(last.recv(&mut buffer, 0).unwrap(), 0);
}

fn errors_client() {
    for r#type in [SOCK_DGRAM, SOCK_RAW, SOCK_DGRAM | SOCK_NONBLOCK] {
        assert_eq!(errno(Socket::of_type(AF_INET, r#type)), EOPNOTSUPP);
    }
    assert_eq!(errno(Socket::of_type(AF_UNIX, SOCK_STREAM)), EOPNOTSUPP);
    let socket = Socket::new();
    assert_eq!(errno(socket.peer()), ENOTCONN);
    assert_eq!(socket.local().unwrap(), (0, 0));
    assert_eq!(errno(socket.recv(&mut [0], 0)), ENOTCONN);
    assert_eq!(errno(socket.send(b"?", 0)), ENOTCONN);
    assert_eq!(errno(socket.shutdown(SHUT_RDWR)), ENOTCONN);
    assert_eq!(errno(socket.accept()), EINVAL);
    assert_eq!(errno(socket.bind(&server())), EADDRNOTAVAIL);
    assert_eq!(socket.map(&mut [0; 10], -1), -1);
    assert_eq!(socket.poll(POLLIN | POLLOUT, 0), 0);

    socket.set(SOL_RDMA, RDMA_SQSIZE, 100).unwrap();
    assert_eq!(socket.get(SOL_RDMA, RDMA_SQSIZE).unwrap(), 100);
    socket.set(SOL_SOCKET, SO_RCVBUF, 1 << 20).unwrap();
    assert_eq!(socket.get(SOL_SOCKET, SO_RCVBUF).unwrap(), 2 << 20);
    assert_eq!(
        errno(socket.set(SOL_SOCKET, SO_BINDTODEVICE, 0)),
        EOPNOTSUPP
    );
    assert_eq!(errno(socket.set(SOL_SOCKET, SO_RCVBUF, 0u8)), EINVAL);

    assert_eq!(
        errno(socket.connect(&format!("{SERVER}:{UNUSED}"))),
        ECONNREFUSED
    );
    assert_eq!(socket.error(), 0);
    assert_eq!(errno(socket.connect(&server())), ENOTCONN);
    let number = socket.0;
    drop(socket);
    let closed = std::mem::ManuallyDrop::new(Socket(number));
    assert_eq!(errno(closed.send(b"?", 0)), EBADF);
}

fn mapper() {
    let listener = listen();
    let socket = listener.accept().unwrap();
    let mut buffers = [vec![0; 10_000], vec![0; 100_000]];
    for (offset, buffer) in [0, 50_000].into_iter().zip(&mut buffers) {
        assert_eq!(socket.map(buffer, offset), offset);
    }
    // The client has room for two.
    assert_eq!(socket.map(&mut [0; 10], -1), -1);
    socket.send(b"mapped", 0).unwrap();
    assert_eq!(receive_exactly(&socket, 7), b"written");
    assert!(buffers[0][100..2100] == pattern(2000));
    assert!(buffers[1] == pattern(100_000));
    assert!(
        buffers[0][..100]
            .iter()
            .chain(&buffers[0][2100..])
            .all(|octet| *octet == 0)
    );
    for buffer in &mut buffers {
        socket.unmap(buffer).unwrap();
    }
    assert_eq!(errno(socket.unmap(&mut buffers[0])), EINVAL);
    // The entries can be used again, and credits do not run out.
    let mut again = vec![0; 10];
    for _ in 0..1000 {
        assert_eq!(socket.map(&mut again, 7), 7);
        socket.send(b".", 0).unwrap();
        assert_eq!(receive_exactly(&socket, 1), b".");
        socket.unmap(&mut again).unwrap();
    }
    assert_eq!(socket.recv(&mut [0], 0).unwrap(), 0);
}

fn mapped_writer() {
    let socket = Socket::new();
    socket.set(SOL_RDMA, RDMA_IOMAPSIZE, 2).unwrap();
    socket.connect(&server()).unwrap();
    assert_eq!(receive_exactly(&socket, 6), b"mapped");
    assert_eq!(socket.write_mapped(&pattern(2000), 100), 2000);
    assert_eq!(socket.write_mapped(&pattern(100_000), 50_000), 100_000);
    assert_eq!(socket.write_mapped(b"nowhere", 20_000), 0);
    socket.send(b"written", 0).unwrap();
    for _ in 0..1000 {
        assert_eq!(receive_exactly(&socket, 1), b".");
        assert_eq!(socket.write_mapped(b"1234567890", 7), 10);
        socket.send(b".", 0).unwrap();
    }
}

/// Talks to an echo, and waits for what comes back in a set that has another descriptor too.
fn watcher() {
    let socket = Socket::connected(&server());
    let other = EventFd::new().unwrap();
    let set = Repoll::new();
    assert_eq!(set.control(EPOLL_CTL_ADD, socket.0, EPOLLIN, 1), 0);
    assert_eq!(set.control(EPOLL_CTL_ADD, other.as_raw_fd(), EPOLLIN, 2), 0);
    assert_eq!(set.control(EPOLL_CTL_ADD, socket.0, EPOLLIN, 1), EEXIST);
    assert_eq!(set.wait(0), None);
    for number in 0..50u8 {
        assert_eq!(socket.send(&[number], 0).unwrap(), 1);
        assert_eq!(set.wait(-1), Some((EPOLLIN, 1)));
        assert_eq!(receive_exactly(&socket, 1), [number]);
    }
    other.write(1).unwrap();
    assert_eq!(set.wait(-1), Some((EPOLLIN, 2)));
    assert_eq!(set.control(EPOLL_CTL_DEL, other.as_raw_fd(), 0, 0), 0);
    assert_eq!(set.control(EPOLL_CTL_DEL, other.as_raw_fd(), 0, 0), ENOENT);
    assert_eq!(set.wait(1), None);
    assert_eq!(set.control(EPOLL_CTL_MOD, socket.0, EPOLLOUT, 3), 0);
    assert_eq!(set.wait(-1), Some((EPOLLOUT, 3)));
    assert_eq!(set.control(EPOLL_CTL_ADD, -1, EPOLLIN, 0), EBADF);
    assert_eq!(Repoll::new().control(77, socket.0, EPOLLIN, 0), EINVAL);
}
