//! What `rnic-ctl top` shows on a terminal.

use std::process::Command;

use crate::ending::transfer;
use crate::terminal::Terminal;
use crate::world::{World, succeed};

/// The row of the client on port 1, if it is seen with all its rates.
fn client(terminal: &Terminal) -> Option<Vec<String>> {
    let lines = terminal.lines().into_iter();
    let rows = lines.map(|line| line.split_whitespace().map(str::to_owned).collect());
    let mut rows = rows.filter(|row: &Vec<_>| row.len() == 12);
    rows.find(|row| row[..3] == ["1", "nic", "nobody"])
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_screen_shows_who_sends_and_receives() {
    let mut world = World::new("");
    let rping = "rping -c -a 10.77.0.2 -C 1000000000";
    let (_server, _client) = transfer(&world, "rping -s -a 10.77.0.2", rping);
    let pid = world.ask("port show 1")[0]["pid"].to_string();
    let mut top = Terminal::start(&world.root("top -d 0.2"), (100, 30));
    let row = world.until("the client has rates", || {
        let row = client(&top)?;
        // Frames and octets, received and sent.
        row[7..11]
            .iter()
            .all(|rate| rate != "0" && rate != "-")
            .then_some(row)
    });
    assert_eq!(
        (&row[3], row[4].as_str(), row[5].as_str()),
        (&pid, "rnic-ctl", "1")
    );
    world.until("the client says how many connections it has", || {
        (client(&top)?[6] == "1").then_some(())
    });
    let lines = top.lines();
    assert_eq!(
        lines[0],
        "rnic-ctl top: 1 device, 1 client of 1 user, 1 lease; every 0.2 s"
    );
    assert!(
        lines[3].starts_with("nic ") && lines[3].contains(" up    native "),
        "{lines:?}"
    );
    assert!(lines.last().unwrap().starts_with("q quit"), "{lines:?}");

    top.press("/nobody else\r");
    top.until(&world, &["only clients with \"nobody else\""]);
    assert_eq!(client(&top), None);
    top.press("\x1b");
    world.until("the client is back", || client(&top));

    top.resize(60, 20);
    top.until(&world, &["this terminal is too small"]);
    top.until(&world, &["60x20; 80x12 are needed"]);
    top.resize(120, 40);
    top.until(&world, &["PORT", "PROGRAM", "DROP/s"]);
    world.until("the client is back", || client(&top));
    assert!(top.lines().len() == 40);

    world.stop();
    top.until(&world, &["rnicd is away: no rnicd listens at"]);
    world.restart();
    top.until(&world, &["sorted by TX B/s"]);
    world.until("the client is back", || client(&top));

    top.press("p");
    top.until(&world, &["paused"]);
    top.press("q");
    let (status, seen) = top.end(&world);
    assert!(status.success() && seen.is_empty(), "{status}: {seen}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn the_terminal_is_as_before_however_it_ends() {
    let world = World::new("");
    let start = |line: &str| {
        let top = Terminal::start(&world.root(line), (80, 24));
        top.until(&world, &["q quit"]);
        top
    };
    for signal in ["TERM", "HUP", "INT"] {
        let top = start("top");
        let mut kill = Command::new("kill");
        succeed(kill.args(["-s", signal, &top.pid().to_string()]));
        let (status, seen) = top.end(&world);
        assert!(
            status.success() && seen.is_empty(),
            "{signal}: {status}: {seen}"
        );
    }
    let mut top = start("top");
    top.press("\x03");
    assert!(top.end(&world).0.success());
    let top = start("top -d 0.1 -n 3");
    assert!(top.end(&world).0.success());
    // Before it takes the screen.
    let top = Terminal::start(&world.root("top --socket /nowhere"), (80, 24));
    let (status, seen) = top.end(&world);
    assert_eq!(status.code(), Some(3));
    assert!(seen.contains("no rnicd listens at /nowhere"), "{seen}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn looks_can_be_printed() {
    let world = World::new("");
    let rping = "rping -c -a 10.77.0.2 -C 1000000000";
    let (_server, _client) = transfer(&world, "rping -s -a 10.77.0.2", rping);
    let printed = succeed(&mut world.root("top -b -n 3 -d 0.2")).stdout;
    let printed = String::from_utf8(printed).unwrap();
    assert_eq!(printed.matches("PROGRAM").count(), 3, "{printed}");
    let json = world.until("the client says how many connections it has", || {
        let json = world.ask("top -b -n 1");
        (json["clients"][0]["connections"] == 1).then_some(json)
    });
    for (list, name, value) in [
        ("devices", "dev", "nic"),
        ("clients", "program", "rnic-ctl"),
        ("users", "user", "nobody"),
    ] {
        let row = &json[list][0];
        assert_eq!(row[name], value, "{json}");
        for way in ["rx_frames", "rx_octets", "tx_frames", "tx_octets"] {
            let rate = row[format!("{way}_per_second")].as_u64();
            assert!(rate > Some(0), "{list} {way}: {json}");
        }
    }
}
