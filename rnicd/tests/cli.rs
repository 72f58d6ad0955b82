//! The command, as an administrator calls it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, id};

/// A file that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnicd-{name}-{}.toml", id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnicd"));
    command.env_remove("RUST_LOG");
    command
}

/// The exit code, standard output and standard error.
fn said(output: Output) -> (i32, String, String) {
    let text = |octets| String::from_utf8(octets).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn rnicd(arguments: &[&str]) -> (i32, String, String) {
    said(command().args(arguments).output().unwrap())
}

const NOTHING: (i32, String, String) = (0, String::new(), String::new());

#[test]
fn check_says_nothing_of_what_is_right_and_all_of_what_is_wrong() {
    let right = Scratch::new("right", "socket_group = \"root\"\n");
    assert_eq!(rnicd(&["--check", right.name()]), NOTHING);
    assert_eq!(rnicd(&["--check", "--config", right.name()]), NOTHING);
    let wrong = Scratch::new("wrong", "group = 1\n\n[defaults]\nportz = 2\n");
    let name = wrong.name();
    let expected = format!(
        "{name}:1: group is no list of tables; write [[group]] above the keys of each\n\
         {name}:4: unknown key \"portz\" in [defaults]; did you mean \"ports\"?\n"
    );
    assert_eq!(rnicd(&["--check", name]), (1, String::new(), expected));
    let unknown = Scratch::new("unknown", "socket_group = \"nobody knows\"\n");
    let (code, _, error) = rnicd(&["--check", unknown.name()]);
    assert!(
        code == 1 && error.contains(":1: there is no group \"nobody knows\""),
        "{error}"
    );
    let (code, _, error) = rnicd(&["--check", "/nowhere/rnicd.toml"]);
    assert_eq!(code, 1);
    assert_eq!(
        error,
        "cannot read /nowhere/rnicd.toml: No such file or directory (os error 2); --config names another file\n"
    );
}

#[test]
fn what_is_shown_can_be_read_again() {
    let file = Scratch::new(
        "show",
        "socket_group = \"root\"\n[[user]]\nuid = 7\nrate = \"1Gbit\"\n",
    );
    let (code, shown, error) = rnicd(&["--show-config", "--config", file.name()]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(
        shown.contains("socket = \"/run/rnic/rnicd.sock\"\n") && shown.contains("\nports = 4\n")
    );
    let again = Scratch::new("again", &shown);
    assert_eq!(rnicd(&["--show-config", "--config", again.name()]).1, shown);
    let (_, elsewhere, _) = rnicd(&[
        "--show-config",
        "--config",
        file.name(),
        "--socket",
        "/run/other",
    ]);
    assert_eq!(
        elsewhere,
        shown.replace("/run/rnic/rnicd.sock", "/run/other")
    );
}

#[test]
fn what_rnic_ctl_has_set_is_shown_over_the_configuration_and_marked() {
    let file = Scratch::new(
        "over",
        "socket_group = \"root\"\n[[device]]\nname = \"eth1\"\n[[device]]\nname = \"eth3\"\nshared = false\n\
         [[user]]\nname = \"root\"\nports = 7\nrate = \"1Gbit\"\n",
    );
    let state = std::env::temp_dir().join(format!("rnicd-set-{}", id()));
    fs::create_dir_all(&state).unwrap();
    let set = state.join("rnic-ctl.toml");
    let text = "[[device]]\nname = \"eth1\"\nshared = false\n[[device]]\nname = \"eth2\"\nshared = true\n\
                [[device]]\nname = \"eth9\"\nxdp_mode = \"native\"\n[[user]]\nuid = 0\nrate = \"2Gbit\"\n";
    fs::write(&set, text).unwrap();
    let shown = |options: &[&str]| {
        let places = ["--config", file.name(), "--state", state.to_str().unwrap()];
        rnicd(&[options, &places].concat())
    };
    let (code, said, error) = shown(&["--show-config"]);
    fs::remove_dir_all(&state).unwrap();
    assert_eq!((code, error.as_str()), (0, ""));
    let place = set.display();
    // One of which nothing says that it is shared is not there.
    let devices = format!(
        "\n[[device]]\nname = \"eth1\"\nshared = false # set by rnic-ctl in {place}:3\nxdp_mode = \"auto\"\nforwarding = \"refuse\"\n\
         \n[[device]]\nname = \"eth3\"\nshared = false\nxdp_mode = \"auto\"\nforwarding = \"refuse\"\n\
         \n[[device]]\nname = \"eth2\" # set by rnic-ctl in {place}:5\nshared = true # set by rnic-ctl in {place}:6\n\
         xdp_mode = \"auto\"\nforwarding = \"refuse\"\n\n[defaults]\n"
    );
    assert!(said.contains(&devices), "{said}");
    let user = format!(
        "\n[[user]]\nname = \"root\"\nports = 7\nrate = \"2Gbit\" # set by rnic-ctl in {place}:12\n"
    );
    assert!(said.ends_with(&user), "{said}");
}

#[test]
fn without_a_configuration_it_does_not_serve() {
    let (code, out, error) = rnicd(&["--config", "/nowhere/rnicd.toml"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(error.contains("/nowhere/rnicd.toml"), "{error}");
}

#[test]
fn a_log_that_nobody_understands_is_an_error() {
    let mut command = command();
    command.args(["--check"]).env("RUST_LOG", "rnic=loud");
    let (code, _, error) = said(command.output().unwrap());
    assert_eq!(code, 1);
    assert!(
        error.starts_with("rnicd: RUST_LOG is not understood: "),
        "{error}"
    );
}

#[test]
fn the_manual_pages_have_each_option_and_each_key() {
    let directory = std::env::temp_dir().join(format!("rnicd-man-{}", id()));
    let name = directory.to_str().unwrap();
    let write = || said(command().args(["--man", name]).output().unwrap());
    let (code, _, stderr) = write();
    assert!(code == 1 && stderr.contains(name), "{stderr}");
    fs::create_dir(&directory).unwrap();
    assert_eq!(write(), (0, String::new(), String::new()));
    let page = |page: &str| fs::read_to_string(directory.join(page)).unwrap();
    let (command, configuration) = (page("rnicd.8"), page("rnicd.toml.5"));
    fs::remove_dir_all(&directory).unwrap();
    for option in ["config", "check", r"show\-config", "unshare", "socket"] {
        let option = format!("\n\\fB\\-\\-{option}\\fR");
        assert!(command.contains(&option), "{option}: {command}");
    }
    for line in include_str!("../rnicd.toml").lines() {
        let line = format!("\n\\&{line}\n");
        assert!(configuration.contains(&line), "{line}");
    }
}

#[test]
fn a_socket_that_cannot_be_made_has_a_remedy() {
    let error = rnicd::serve::ServeError::Listen {
        path: "/run/rnic/rnicd.sock".into(),
        source: std::io::ErrorKind::PermissionDenied.into(),
    };
    assert_eq!(
        error.to_string(),
        "cannot listen at /run/rnic/rnicd.sock: permission denied; start rnicd as root (`systemctl start rnicd`), or name a socket in a \
         directory that this user may write to (--socket)"
    );
}

/// Nobody but root may enter the directory of the state, so that clients would find no rnicd, and
/// nothing would say why.
#[test]
fn a_state_that_has_the_socket_of_clients_in_it_is_refused() {
    let file = Scratch::new("hidden", "socket_group = \"root\"\n");
    let directory = std::env::temp_dir().join(format!("rnicd-hidden-{}", id()));
    fs::create_dir(&directory).unwrap();
    let within = |name: &str| directory.join(name).to_str().unwrap().to_string();
    let (state, pins) = (within("."), within("pins"));
    for socket in ["rnicd.sock", "run/rnic/rnicd.sock"] {
        let socket = within(socket);
        let places = ["--state", &state, "--pins", &pins, "--socket", &socket];
        let (code, _, error) = rnicd(&[&["--config", file.name()][..], &places].concat());
        assert_eq!(code, 1, "{error}");
        assert!(
            error.contains(&socket) && error.contains("--state"),
            "{error}"
        );
    }
    fs::remove_dir_all(&directory).unwrap();
}
