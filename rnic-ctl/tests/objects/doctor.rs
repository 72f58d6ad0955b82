//! What doctor says of a device that rnicd shares, or does not.

use std::process::Command;

use serde_json::Value;

use crate::common::text;
use crate::world::World;

/// Runs doctor. Returns its exit code and what it says.
pub(crate) fn doctor(mut command: Command) -> (Option<i32>, Value) {
    let output = command.output().unwrap();
    let said = serde_json::from_slice(&output.stdout);
    let said = said.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    (output.status.code(), said)
}

/// The finding of a name.
pub(crate) fn found<'a>(said: &'a Value, part: &str, name: &str) -> &'a Value {
    let facts = said[part].as_array().unwrap();
    let fact = facts.iter().find(|fact| fact["name"] == name);
    fact.unwrap_or_else(|| panic!("no {name}: {said:#}"))
}

const ASK: &str = "-j doctor --netdev nic";

/// The command in the network namespace of the host, as nobody, without any right.
pub(crate) fn nobody(world: &World, line: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", world.host.name()));
    let inner = world.nobody(line);
    command.arg(inner.get_program()).args(inner.get_args());
    command.env("RNICD_SOCKET", world.socket());
    command
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_user_learns_that_it_gets_ports() {
    let world = World::new("");
    for command in [nobody(&world, ASK), world.root(ASK)] {
        let (code, said) = doctor(command);
        assert_eq!(
            (code, &said["ok"]),
            (Some(0), &Value::Bool(true)),
            "{said:#}"
        );
        let rnicd = found(&said, "device", "rnicd");
        assert_eq!(rnicd["verdict"], "ok");
        assert!(
            rnicd["found"].as_str().unwrap().contains("it shares nic"),
            "{rnicd}"
        );
        let trial = found(&said, "device", "trial")["found"].as_str().unwrap();
        assert!(trial.starts_with("a port of rnicd: "), "{trial}");
    }
    let mut command = nobody(&world, "doctor --netdev nic --no-trial");
    let said = text(&command.output().unwrap().stdout);
    assert!(
        said.contains("rnicd          it shares nic with this user"),
        "{said}"
    );
    assert!(!said.contains("FAIL") && !said.contains("trial"), "{said}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_user_learns_why_it_gets_none() {
    let world = World::new("[[user]]\nname = \"nobody\"\nports = 0\n");
    let (code, said) = doctor(nobody(&world, ASK));
    assert_eq!(code, Some(1));
    let trial = found(&said, "device", "trial");
    let why = trial["found"].as_str().unwrap();
    assert!(why.contains("may hold ports = 0"), "{trial}");

    let world = World::new("[[user]]\nname = \"nobody\"\ndevices = []\n");
    let (code, said) = doctor(nobody(&world, ASK));
    assert_eq!(code, Some(1));
    let rnicd = found(&said, "device", "rnicd");
    assert_eq!(rnicd["verdict"], "fail");
    assert_eq!(rnicd["found"], "rnicd does not share nic with this user");
    assert!(
        rnicd["remedy"]
            .as_str()
            .unwrap()
            .contains("/etc/rnic/rnicd.toml")
    );

    let mut command = nobody(&world, ASK);
    command.env("RNICD_SOCKET", "/nowhere");
    let (code, said) = doctor(command);
    assert_eq!(code, Some(1));
    let rnicd = found(&said, "device", "rnicd");
    let remedy = rnicd["remedy"].as_str().unwrap();
    assert!(remedy.starts_with("RNICD_SOCKET says so: "), "{remedy}");
    // Root needs none.
    let mut command = world.peers("-j doctor --netdev theirs");
    command.env("RNICD_SOCKET", "/nowhere");
    let (_, said) = doctor(command);
    let rnicd = found(&said, "device", "rnicd");
    assert_eq!(rnicd["verdict"], "ok", "{rnicd}");
}
