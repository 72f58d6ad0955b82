//! The program on a client's end in the kernel, run on one frame at a time.

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};
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

/// Runs the program on a frame whose first buffer has 64 octets. Linux cuts frames so since 6.18.
fn run_in_pieces(skeleton: &PortSkel<'_>, frame: &[u8]) -> u32 {
    // data and data_end of struct xdp_md, from 0 on; the rest is zero.
    let mut context = [0; 24];
    context[4..8].copy_from_slice(&64_u32.to_ne_bytes());
    let input = ProgramInput {
        data_in: Some(frame),
        context_in: Some(&mut context),
        ..Default::default()
    };
    let output = skeleton.progs.rnic_port.test_run(input);
    output.unwrap().return_value
}

/// Fails if frames go elsewhere than to the socket, by their actions.
fn all_go_to_the_socket(expect: fn(&PortSkel<'_>, u32)) {
    let namespace = Namespace::new("end").unwrap();
    namespace.run(|| {
        let mut object = MaybeUninit::uninit();
        let open = PortSkelBuilder::default().open(&mut object).unwrap();
        let skeleton = open.load().unwrap();
        expect(&skeleton, XDP_DROP);

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
        expect(&skeleton, XDP_REDIRECT);

        // The kernel takes a socket that is closed out of the map.
        drop((sockets, umem));
        expect(&skeleton, XDP_DROP);
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn all_frames_go_to_the_socket_and_none_elsewhere_without_one() {
    all_go_to_the_socket(|skeleton, action| {
        // Which frames come here, others have decided: this one looks at none.
        for frame in [vec![0; 14], vec![0xff; 64], vec![0xaa; 1514]] {
            assert_eq!(run(skeleton, &frame), action, "{} octets", frame.len());
        }
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
#[cfg_attr(
    all(root, not(cut_frames)),
    ignore = "needs a kernel that runs programs on cut frames"
)]
fn so_do_frames_of_several_buffers() {
    all_go_to_the_socket(|skeleton, action| {
        assert_eq!(run_in_pieces(skeleton, &[0xaa; 3000]), action);
    });
}
