//! Sets the cfg `carrier_sockets` where `RNIC_TEST_CARRIER=sockets` is in the environment: then the
//! hosts of the tests run over the sockets of a [virtual kernel](testing::kernel).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RNIC_TEST_CARRIER");
    println!("cargo::rustc-check-cfg=cfg(carrier_sockets)");
    match std::env::var("RNIC_TEST_CARRIER").as_deref() {
        Ok("sockets") => println!("cargo::rustc-cfg=carrier_sockets"),
        Err(_) | Ok("" | "frames") => {}
        Ok(other) => panic!("RNIC_TEST_CARRIER={other}: it is `frames` or `sockets`"),
    }
}
