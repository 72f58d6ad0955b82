//! The program on a client's end in the kernel, run on one frame at a time.

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, ProgramInput};
use rnic_xdp::shared::port_skeleton::{PortSkel, PortSkelBuilder};
use rnic_xdp::testing::Namespace;
use xsk_rs::config::{LibxdpFlags, SocketConfig, UmemConfig};
use xsk_rs::{Socket, Umem};

const XDP_DROP: u32 = 1;
const XDP_REDIRECT: u32 = 4;

/// Runs the program on a frame, which it must leave as it is. Returns its action.
fn run(skeleton: &PortSkel<'_>, frame: &[u8]) -> u32 {
    let mut out = vec![0; frame.len() + 64];
    let input = ProgramInput {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ..Default::default()
    };
    let output = skeleton.progs.rnic_port.test_run(input).unwrap();
    assert_eq!(output.data.as_deref(), Some(frame));
    output.return_value
}

/// Runs the program on a frame whose first buffer has 64 octets. Returns `None` if the kernel
/// cannot cut frames so (before Linux 6.18).
fn run_in_pieces(skeleton: &PortSkel<'_>, frame: &[u8]) -> Option<u32> {
    // data and data_end of struct xdp_md, from 0 on; the rest is zero.
    let mut context = [0; 24];
    context[4..8].copy_from_slice(&64_u32.to_ne_bytes());
    let input = ProgramInput {
        data_in: Some(frame),
        context_in: Some(&mut context),
        ..Default::default()
    };
    match skeleton.progs.rnic_port.test_run(input) {
        Ok(output) => Some(output.return_value),
        Err(error) if error.kind() == ErrorKind::InvalidInput => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn all_frames_go_to_the_socket_and_none_elsewhere_without_one() {
    let namespace = Namespace::new("end").unwrap();
    namespace.run(|| {
        let mut object = MaybeUninit::uninit();
        let open = PortSkelBuilder::default().open(&mut object).unwrap();
        let skeleton = open.load().unwrap();
        let expect = |action| {
            // Which frames come here, others have decided: this one looks at none.
            for frame in [vec![0; 14], vec![0xff; 64], vec![0xaa; 1514]] {
                assert_eq!(run(&skeleton, &frame), action, "{} octets", frame.len());
            }
            let in_pieces = run_in_pieces(&skeleton, &[0xaa; 3000]);
            assert_eq!(in_pieces.unwrap_or(action), action);
        };
        expect(XDP_DROP);

        let (umem, _) = Umem::new(UmemConfig::default(), 16.try_into().unwrap(), false).unwrap();
        let config = SocketConfig::builder()
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .build();
        let interface = "lo".parse().unwrap();
        // SAFETY: the first socket of this UMEM.
        #[allow(unsafe_code)]
        let sockets = unsafe { Socket::new(config, &umem, &interface, 0) }.unwrap();
        let map = &skeleton.maps.port_socket;
        let fd = sockets.1.fd().as_raw_fd().to_ne_bytes();
        map.update(&0_u32.to_ne_bytes(), &fd, MapFlags::ANY)
            .unwrap();
        expect(XDP_REDIRECT);

        // The kernel takes a socket that is closed out of the map.
        drop((sockets, umem));
        expect(XDP_DROP);
    });
}
