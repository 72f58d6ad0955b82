//! Calls of many clients.

use nix::sys::signal::Signal;

use crate::rig::hosts;

/// More calls than any test waits for.
const ENDLESS: &str = "1000000000";
/// Frames that only calls can be.
const FRAMES: u64 = 2000;

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn all_clients_get_all_replies() {
    let [near, far] = hosts(true);
    let (server, address) = near.serve("rpc", "serve", &[]);
    let clients: Vec<_> = [&near, &far, &far, &near, &far, &far]
        .map(|host| host.start("rpc", "call", &[&address, "3000"]))
        .into();
    for client in clients {
        let ended = client.finish();
        assert!(ended.succeeded, "{ended:?}; {}", server.errors());
        let said = ended.output;
        assert!(said.starts_with("3000 calls, "), "{said}");
        assert!(said.contains(" a second; half within "), "{said}");
    }
    // It serves those who come later.
    far.start("rpc", "call", &[&address, "0"]).succeed();
    near.until("the server knows that all have gone", || {
        server.errors().matches("closed by the peer").count() == 7
    });
    server.signal(Signal::SIGTERM);
    assert!(!server.finish().succeeded);
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_call_does_not_wait_for_ever() {
    for (signal, expected) in [
        (Signal::SIGSTOP, "no reply in 5s\n"),
        (Signal::SIGKILL, "connection reset by the peer\n"),
    ] {
        let [near, far] = hosts(true);
        let (server, address) = near.serve("rpc", "serve", &[]);
        let client = far.start("rpc", "call", &[&address, ENDLESS]);
        near.until_received(FRAMES);
        server.signal(signal);
        assert_eq!(client.fail(), expected);
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_client_that_is_gone_is_forgotten() {
    let [near, far] = hosts(true);
    let (server, address) = near.serve("rpc", "serve", &[]);
    let client = far.start("rpc", "call", &[&address, ENDLESS]);
    near.until_received(FRAMES);
    client.signal(Signal::SIGKILL);
    assert!(!client.finish().succeeded);
    far.start("rpc", "call", &[&address, "1000"]).succeed();
    near.until("the server knows that the first has gone", || {
        server.errors().contains("reset by the peer") || server.errors().contains("timed out")
    });
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn root_calls_without_an_rnicd() {
    let [near, far] = hosts(false);
    let (_server, address) = near.serve_at(near.addresses[1], "rpc", "serve", &[]);
    let said = far
        .start("rpc", "call", &[&address, "500"])
        .succeed()
        .output;
    assert!(said.starts_with("500 calls, "), "{said}");
}
