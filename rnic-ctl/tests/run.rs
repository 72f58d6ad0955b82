//! `rnic run` and `rnic-ctl env`: which environment they give a program, and how they fail.

#[path = "common/mod.rs"]
mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, id};
use std::sync::atomic::{AtomicU32, Ordering};

use rnic_xdp::testing::{Namespace, copy_program};
use serde_json::Value;

use common::{link, text};

/// A directory with the commands, as they are installed.
struct Installed {
    directory: PathBuf,
}

impl Installed {
    fn new(with_libraries: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("rnic-run-{}-{number}", id()));
        let (bin, lib) = (directory.join("bin"), directory.join("bin/lib"));
        fs::create_dir_all(&lib).unwrap();
        for command in [env!("CARGO_BIN_EXE_rnic"), env!("CARGO_BIN_EXE_rnic-ctl")] {
            let name = PathBuf::from(command);
            copy_program(command, bin.join(name.file_name().unwrap()));
        }
        if with_libraries {
            // No program of these tests loads them.
            for name in ["libibverbs.so.1", "librdmacm.so.1", "librnic_sysfs.so"] {
                fs::write(lib.join(name), "").unwrap();
            }
        }
        Self { directory }
    }

    fn libraries(&self) -> String {
        let lib = self.directory.canonicalize().unwrap().join("bin/lib");
        lib.display().to_string()
    }

    /// A script of these lines.
    fn script(&self, lines: &str) -> String {
        let path = self.directory.join("script");
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    /// A command line in a namespace, without an rnicd.
    fn command(&self, namespace: &Namespace, words: &[&str]) -> Command {
        let (name, arguments) = words.split_first().unwrap();
        let mut command = namespace.command(self.directory.join("bin").join(name));
        command.args(arguments);
        command
            .env("RNICD_SOCKET", "/nowhere")
            .env_remove("RNIC_NETDEV");
        command.env("LD_LIBRARY_PATH", "/theirs");
        command
    }

    fn run(&self, namespace: &Namespace, words: &[&str]) -> Output {
        self.command(namespace, words).output().unwrap()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_program_gets_its_environment_and_keeps_its_exit_code() {
    let (here, _there) = link("run", "theirs");
    let installed = Installed::new(true);
    let script = installed.script("echo $LD_LIBRARY_PATH $RNIC_NETDEV $0 \"$@\"; exit 7");
    let said = installed.run(&here, &["rnic", "run", &script, "-c", "--", "-j"]);
    assert_eq!(said.status.code(), Some(7), "{}", text(&said.stderr));
    let expected = format!("{}:/theirs ours {script} -c -- -j\n", installed.libraries());
    assert_eq!(text(&said.stdout), expected);

    let mut command = installed.command(&here, &["rnic", "run", "--", &script]);
    let said = command.env("RNIC_NETDEV", "lo,ours").output().unwrap();
    assert!(text(&said.stdout).contains(" lo,ours "), "{said:?}");
    let named = ["rnic", "run", "--netdev", "ours,lo", &script];
    let mut command = installed.command(&here, &named);
    let said = command.env("RNIC_NETDEV", "eth9").output().unwrap();
    assert!(text(&said.stdout).contains(" ours,lo "), "{said:?}");
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_program_gets_the_signals() {
    let (here, _there) = link("run", "theirs");
    let installed = Installed::new(true);
    // SIGPIPE, which Rust has its own programs ignore.
    let script = installed.script("kill -PIPE $$; echo still here");
    let said = installed.run(&here, &["rnic", "run", &script]);
    let signal = std::os::unix::process::ExitStatusExt::signal(&said.status);
    assert_eq!((signal, text(&said.stdout)), (Some(13), String::new()));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_shell_gets_the_same_environment() {
    let (here, _there) = link("run", "theirs");
    let installed = Installed::new(true);
    let said = installed.run(&here, &["rnic-ctl", "env"]);
    let libraries = installed.libraries();
    // The way is that of the environment, in which tests run.
    let expected = format!(
        "export LD_LIBRARY_PATH='{libraries}:/theirs'\nexport RNIC_NETDEV='ours'\n\
         export RNIC_VIA='xdp'\n"
    );
    assert_eq!(text(&said.stdout), expected);
    let said = installed.run(&here, &["rnic-ctl", "-j", "env", "--netdev", "ours"]);
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(said["RNIC_NETDEV"], "ours");
    assert_eq!(said["LD_LIBRARY_PATH"], format!("{libraries}:/theirs"));
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_is_missing_is_said_before_the_program_runs() {
    let (here, _there) = link("run", "theirs");
    let fails = |installed: &Installed, words: &[&str], code, why: &str| {
        let said = installed.run(&here, words);
        let stderr = text(&said.stderr);
        assert_eq!(said.status.code(), Some(code), "{words:?}: {stderr}");
        assert!(stderr.contains(why), "{words:?}: {stderr}");
        assert_eq!(text(&said.stdout), "", "{words:?}");
    };
    let installed = Installed::new(true);
    let script = installed.script("echo it runs");
    let nowhere = ["rnic", "run", "--netdev", "eth9", &script];
    fails(
        &installed,
        &nowhere,
        125,
        "use eth9: there is no such interface",
    );
    fails(
        &installed,
        &["rnic", "run", "no-such-program"],
        127,
        "there is no such program",
    );
    fails(&installed, &["rnic", "run", "/etc/passwd"], 126, "chmod +x");
    fails(&installed, &["rnic", "run"], 125, "PROGRAM");
    let bare = Installed::new(false);
    let script = bare.script("echo it runs");
    fails(
        &bare,
        &["rnic", "run", &script],
        125,
        "cargo xtask libraries",
    );
    let alone = Namespace::new("run").unwrap();
    let said = installed.run(&alone, &["rnic", "run", &script]);
    assert!(
        text(&said.stderr).contains("--netdev names one"),
        "{said:?}"
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_user_without_rights_needs_rnicd() {
    let (here, _there) = link("run", "theirs");
    let installed = Installed::new(true);
    let script = installed.script("echo it runs");
    let mut command = here.command("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--bounding-set=-all",
    ]);
    command
        .arg(installed.directory.join("bin/rnic"))
        .args(["run", &script]);
    command.env("RNICD_SOCKET", "/nowhere");
    let said = command.output().unwrap();
    let why = text(&said.stderr);
    assert_eq!(said.status.code(), Some(125), "{why}");
    assert!(
        why.contains("rnicd") && why.contains("without CAP_NET_ADMIN"),
        "{why}"
    );
}

/// A user without any right, over sockets of the kernel. `place` is where he may write.
fn unprivileged(installed: &Installed, namespace: &Namespace, place: &str) -> Command {
    let mut command = namespace.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--bounding-set=-all"]);
    command.arg(installed.directory.join("bin/rnic"));
    command.args(["run", "--via", "kernel", "--netdev", "ours"]);
    command.env("RNICD_SOCKET", "/nowhere");
    command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", place);
    command.env("LD_PRELOAD", "");
    command
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_program_gets_files_of_its_devices() {
    let (here, _there) = link("run", "theirs");
    let installed = Installed::new(true);
    // What is preloaded is an empty file here, which the dynamic linker passes over.
    let script = installed.script(
        "echo $LD_PRELOAD\ncd ${RNIC_SYSFS:-/proc}/class/infiniband 2>/dev/null || exit 9\n\
         echo *\ncat rnic_ours/node_type rnic_ours/ports/1/gid_attrs/ndevs/0",
    );
    let place = installed.directory.join("place");
    fs::create_dir(&place).unwrap();
    std::os::unix::fs::chown(&place, Some(65534), None).unwrap();
    let place = place.display().to_string();
    let run = |options: &[&str], place: &str| {
        let mut command = unprivileged(&installed, &here, place);
        command.args(options).arg(&script).output().unwrap()
    };
    let said = run(&["--as", "roce"], &place);
    let preloaded = format!("{}/librnic_sysfs.so", installed.libraries());
    let expected = format!("{preloaded}\nrnic_ours\n1: CA\nours\n");
    assert_eq!(text(&said.stdout), expected, "{said:?}");
    let said = run(&["--sysfs", "yes"], &place);
    assert!(text(&said.stdout).contains("4: RNIC\n"), "{said:?}");
    // Nor do programs see those of an `rnic run` around this one.
    let around = installed.directory.join("around");
    fs::create_dir_all(around.join("class/infiniband")).unwrap();
    for options in [&["--as", "roce", "--sysfs", "no"][..], &["--as", "iwarp"]] {
        let mut command = unprivileged(&installed, &here, &place);
        command.env("RNIC_SYSFS", &around);
        let said = command.args(options).arg(&script).output().unwrap();
        let seen = (said.status.code(), text(&said.stdout));
        assert_eq!(seen, (Some(9), "\n".to_owned()), "{options:?}");
    }
    // Without any place to write to, it runs without them.
    let said = run(&["--as", "roce"], "/proc");
    let seen = (said.status.code(), text(&said.stdout));
    assert_eq!(seen, (Some(9), "\n".to_owned()), "{said:?}");
    let said = run(&["--as", "roce", "--check"], "/proc");
    let stdout = text(&said.stdout);
    assert!(
        stdout.contains("no place for its files (/proc/rnic-65534"),
        "{stdout}"
    );
    let said = run(&["--as", "roce", "--check"], &place);
    let stdout = text(&said.stdout);
    assert!(
        stdout.contains(&format!("{place}/rnic-65534/sysfs-")),
        "{stdout}"
    );
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn a_check_says_all_at_once() {
    let (here, _there) = link("run", "theirs");
    let installed = Installed::new(true);
    let program = fs::canonicalize("/bin/sh").unwrap().display().to_string();
    let said = installed.run(&here, &["rnic", "-j", "run", "--check", &program]);
    let found: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(
        (said.status.code(), &found["ok"]),
        (Some(0), &true.into()),
        "{found:#}"
    );
    for part in ["program", "host", "ours"] {
        assert!(found["findings"][part].is_array(), "{found:#}");
    }
    let said = installed.run(&here, &["rnic", "run", "--check", &program]);
    let stdout = text(&said.stdout);
    assert!(
        stdout.contains("does not load libibverbs.so.1 by itself"),
        "{stdout}"
    );

    // Of a program that gains rights the dynamic linker ignores the environment.
    let privileged = installed.directory.join("privileged");
    copy_program(&program, &privileged);
    std::os::unix::fs::chown(&privileged, Some(65534), None).unwrap();
    fs::set_permissions(&privileged, fs::Permissions::from_mode(0o4755)).unwrap();
    let privileged = privileged.display().to_string();
    let said = installed.run(&here, &["rnic", "run", "--check", &privileged]);
    assert_eq!(said.status.code(), Some(1));
    assert!(text(&said.stdout).contains("FAIL  program"), "{said:?}");
    let said = installed.run(&here, &["rnic", "run", &privileged, "-c", "echo it runs"]);
    assert_eq!(
        (said.status.code(), text(&said.stdout)),
        (Some(125), String::new())
    );
    assert!(text(&said.stderr).contains("setuid"), "{said:?}");
}

#[test]
fn shells_and_man_know_the_command() {
    let rnic = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
        command.args(words).output().unwrap()
    };
    let script = text(&rnic(&["completion", "bash"]).stdout);
    assert!(
        script.contains("--netdev") && script.contains("--check"),
        "{script}"
    );
    let help = text(&rnic(&["run", "--help"]).stdout);
    assert!(help.contains("PROGRAM"), "{help}");
    let directory = std::env::temp_dir().join(format!("rnic-run-man-{}", id()));
    fs::create_dir(&directory).unwrap();
    let written = rnic(&["man", directory.to_str().unwrap()]);
    let page = fs::read_to_string(directory.join("rnic-run.1")).unwrap_or_default();
    fs::remove_dir_all(&directory).unwrap();
    assert!(written.status.success());
    assert!(page.contains("\\-\\-netdev"), "{page}");
}
