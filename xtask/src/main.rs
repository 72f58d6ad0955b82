//! `cargo xtask`: builds everything that a user needs.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::cross::Tools;

mod compare;
mod cross;
mod exports;
mod libraries;
mod trampolines;

const HELP: &str = "\
Builds everything that a user needs, in target/PROFILE or target/TARGET/PROFILE.

Usage: cargo xtask COMMAND [OPTIONS]

Commands:
  build      Build the commands, and the C libraries in lib/ beside them
  libraries  Build the C libraries alone: lib/libibverbs.so.1, lib/librdmacm.so.1 and
             lib/librnic_sysfs.so
  compare    Compare what the C libraries export with the libraries of this system's rdma-core

Options:
  --profile PROFILE  One of cargo's profiles [default: release]
  --target TARGET    x86_64-unknown-linux-gnu or aarch64-unknown-linux-gnu [default: this machine's]

$CC is the compiler that links, of TARGET [default: cc, or TARGET's own where it is not this
machine's]. What another architecture needs besides, `ci/deps build arm` and `rustup target add
TARGET` install.
";

/// What went wrong, in a sentence.
type Failure = Box<dyn Error>;

/// What is built, and where.
struct Build {
    /// The source tree.
    root: PathBuf,
    profile: String,
    /// The triple that `--target` names.
    target: Option<String>,
}

impl Build {
    /// Reads the options.
    fn parse(mut options: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut build = Self {
            root: root.parent().ok_or("no source tree")?.to_owned(),
            profile: "release".to_owned(),
            target: None,
        };
        while let Some(option) = options.next() {
            let value = options.next();
            match (option.as_str(), value) {
                ("--profile", Some(profile)) => build.profile = profile,
                ("--target", Some(target)) => build.target = Some(target),
                _ => return Err(format!("'{option}' is not understood: see --help").into()),
            }
        }
        Ok(build)
    }

    /// Returns the architecture that is built for.
    fn architecture(&self) -> &str {
        match &self.target {
            Some(target) => target.split('-').next().unwrap_or(target),
            None => env::consts::ARCH,
        }
    }

    /// Returns the tools of another architecture, where it is built for one.
    fn tools(&self) -> Result<Option<Tools>, Failure> {
        Tools::of(self.architecture(), self.target.as_deref())
    }

    /// Returns the directory that cargo puts what it builds into.
    fn output(&self) -> PathBuf {
        let mut output =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), PathBuf::from);
        output.extend(&self.target);
        output.join(match self.profile.as_str() {
            "dev" | "test" => "debug",
            "bench" => "release",
            profile => profile,
        })
    }

    /// Has cargo build some packages.
    fn cargo(&self, packages: &[&str]) -> Result<(), Failure> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            "build",
            "--locked",
            "--lib",
            "--bins",
            "--profile",
            &self.profile,
        ]);
        cargo.args(packages).current_dir(&self.root);
        // What `cargo run` says of this package: ring's build script asks for it, and would have all
        // built anew whenever a cargo by hand and this one alternate.
        for (name, _) in env::vars_os() {
            let said = name.to_string_lossy();
            if said.starts_with("CARGO_PKG_") || said.starts_with("CARGO_MANIFEST_") {
                cargo.env_remove(&name);
            }
        }
        if self.profile == "test" && env::var_os("RNIC_BUILD_ALL").is_none() {
            // What tests depend on counts too: then this is what `cargo test` has built. So it does
            // where an example is among what is built.
            cargo.arg("--tests");
        }
        if let Some(target) = &self.target {
            cargo.args(["--target", target]);
        }
        if let Some(tools) = self.tools()? {
            tools.check()?;
            tools.set(&mut cargo);
        }
        run(&mut cargo)
    }
}

/// Runs a program, which must succeed.
fn run(command: &mut Command) -> Result<(), Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{name} failed: {status}").into()),
    }
}

/// The packages of what is installed.
const COMMANDS: [&str; 4] = ["-p", "rnicd", "-p", "rnic-ctl"];

/// Those of the libraries.
const LIBRARIES: [&str; 4] = ["-p", "rnic-ibverbs", "-p", "rnic-sysfs"];

/// Returns the packages that cargo is to build. Cargo builds what packages depend on with the
/// features that these packages ask for, and anew for each selection of packages. ci/test, which
/// needs most of them, has the same selection in all of its steps.
fn selection<'a>(packages: &'a [&'a str]) -> &'a [&'a str] {
    match env::var_os("RNIC_BUILD_ALL") {
        Some(_) => &["--workspace", "--example", "play"],
        None => packages,
    }
}

fn carry_out(mut arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let command = arguments.next().unwrap_or_default();
    match command.as_str() {
        "build" => {
            let build = Build::parse(arguments)?;
            build.cargo(selection(&[COMMANDS, LIBRARIES].concat()))?;
            libraries::link(&build)
        }
        "libraries" => {
            let build = Build::parse(arguments)?;
            build.cargo(selection(&LIBRARIES))?;
            libraries::link(&build)
        }
        "compare" => compare::compare(&Build::parse(arguments)?),
        "-h" | "--help" | "help" => {
            print!("{HELP}");
            Ok(())
        }
        "" => Err("which command? see --help".into()),
        _ => Err(format!("no command '{command}': see --help").into()),
    }
}

fn main() -> ExitCode {
    match carry_out(env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("cargo xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
