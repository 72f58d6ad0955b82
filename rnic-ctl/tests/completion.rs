//! The completion scripts and the manual pages.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio, id};

fn rnic_ctl(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic-ctl"));
    command.args(arguments).output().unwrap()
}

#[test]
fn bash_completes_objects_and_verbs() {
    let script = rnic_ctl(&["completion", "bash"]);
    assert!(script.status.success());
    let ask = "complete=$(complete -p rnic-ctl); complete=${complete#*-F }; complete=${complete%% *}\n\
               COMP_WORDS=(rnic-ctl lease rev); COMP_CWORD=2; $complete rnic-ctl rev lease; echo ${COMPREPLY[*]}\n\
               COMP_WORDS=(rnic-ctl ''); COMP_CWORD=1; $complete rnic-ctl '' rnic-ctl; echo ${COMPREPLY[*]}\n";
    let mut bash = Command::new("bash");
    bash.arg("--norc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut bash = bash.spawn().unwrap();
    let mut stdin = bash.stdin.take().unwrap();
    stdin.write_all(&script.stdout).unwrap();
    stdin.write_all(ask.as_bytes()).unwrap();
    drop(stdin);
    let said = bash.wait_with_output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert_eq!(lines[0], "revoke");
    for object in [
        "dev", "port", "lease", "client", "user", "stat", "monitor", "conn", "res", "sa", "steer",
        "metrics",
    ] {
        assert!(lines[1].split(' ').any(|word| word == object), "{said}");
    }
}

#[test]
fn other_shells_have_scripts_too() {
    for shell in ["zsh", "fish"] {
        let script = rnic_ctl(&["completion", shell]);
        assert!(script.status.success());
        let script = String::from_utf8(script.stdout).unwrap();
        assert!(
            script.contains("rnic-ctl") && script.contains("revoke"),
            "{shell}"
        );
    }
    assert_eq!(rnic_ctl(&["completion", "tcsh"]).status.code(), Some(2));
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = std::env::temp_dir().join(format!("rnic-man-{}", id()));
    let name = directory.to_str().unwrap();
    let absent = rnic_ctl(&["man", name]);
    assert_eq!(absent.status.code(), Some(1));
    let said = String::from_utf8(absent.stderr).unwrap();
    assert!(said.contains(name) && said.contains("mkdir -p"), "{said}");
    fs::create_dir(&directory).unwrap();
    let written = rnic_ctl(&["man", name]);
    let read = |page: &str| fs::read_to_string(directory.join(page));
    let pages = [
        "rnic-ctl.1",
        "rnic-ctl-port-show.1",
        "rnic-ctl-client-kill.1",
    ];
    let pages = pages.map(|page| read(page).unwrap_or_default());
    fs::remove_dir_all(&directory).unwrap();
    assert!(written.status.success());
    assert!(pages[0].contains("rnic\\-ctl\\-port(1)"), "{}", pages[0]);
    assert!(pages[1].contains("The number of the port"), "{}", pages[1]);
    assert!(pages[2].contains("\\-\\-pid"), "{}", pages[2]);
}
