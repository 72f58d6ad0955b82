//! A device by an alternative name, of which systemd gives each NIC several.

use std::fs;

use rnic_xdp::InterfaceConfig;
use rnic_xdp::client::Manager;

use crate::rig::{RULES, Rnicd};

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_device_is_shared_and_found_by_each_of_its_names() {
    let mut rnicd = Rnicd::start("names");
    let (_, host) = rnicd.kill();
    let names = ["nic", "enp24s0f3", "aNameThatIsLongerThanFifteen"];
    let [_, short, long] = names;
    host.ip(&format!(
        "link property add dev nic altname {short} altname {long}"
    ))
    .unwrap();
    for configured in ["nic", short] {
        assert_eq!(rnicd.command("--unshare"), (Some(0), String::new()));
        let scratch = &rnicd.scratch;
        let rules = RULES.replace("\"nic\"", &format!("\"{configured}\""));
        fs::write(scratch.path("rnicd.toml"), rules).unwrap();
        rnicd.start_as(&format!("shares {configured}"));
        let socket = rnicd.scratch.path("socket");
        rnicd.namespaces[0].run(|| {
            for name in names {
                let manager = Manager::connect(&socket).unwrap();
                assert!(manager.offers(name), "{name} of {configured}");
            }
            let manager = Manager::connect(&socket).unwrap();
            assert!(!manager.offers("lo"));
            let config = InterfaceConfig {
                rx_frames: 32,
                tx_frames: 32,
                ..InterfaceConfig::new("nic")
            };
            manager.open(&config).unwrap();
        });
        rnicd.kill();
    }
}
