//! What it takes to build for another architecture than that of this machine: its compiler and
//! binutils, and its libraries of the system.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

use crate::Failure;

/// The tools of an architecture, as Debian names them.
pub(crate) struct Tools {
    architecture: String,
    target: String,
}

impl Tools {
    /// Returns the tools for an architecture, of the triple `target`. Returns `None` where those of
    /// this machine do.
    pub(crate) fn of(architecture: &str, target: Option<&str>) -> Result<Option<Self>, Failure> {
        match architecture {
            "x86_64" | "aarch64" if architecture == env::consts::ARCH => Ok(None),
            "x86_64" | "aarch64" => Ok(target.map(|target| Self {
                architecture: architecture.to_owned(),
                target: target.to_owned(),
            })),
            other => Err(format!("rnic is built for x86_64 and aarch64, not for '{other}'").into()),
        }
    }

    fn named(&self, tool: &str) -> String {
        format!("{}-linux-gnu-{tool}", self.architecture)
    }

    /// Returns the compiler, which links too.
    pub(crate) fn compiler(&self) -> OsString {
        env::var_os("CC").unwrap_or_else(|| self.named("gcc").into())
    }

    /// Fails, with what to do, where something is missing that cargo would need only after minutes.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let compiler = self.compiler();
        for tool in [
            compiler.clone(),
            self.named("ld").into(),
            self.named("objcopy").into(),
        ] {
            said(Command::new(&tool).arg("--version")).map_err(|failure| self.missing(&failure))?;
        }
        for library in ["libelf.so", "libz.so"] {
            let asked = format!("-print-file-name={library}");
            let output = said(Command::new(&compiler).arg(asked))?;
            // The name alone, where it does not find it.
            let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if !Path::new(&found).is_absolute() {
                return Err(self.missing(&format!("no {library} of {}", self.architecture)));
            }
        }
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let libraries = said(rustc.args(["--print", "target-libdir", "--target", &self.target]))?;
        let libraries = String::from_utf8_lossy(&libraries.stdout).trim().to_owned();
        if !Path::new(&libraries).is_dir() {
            let target = &self.target;
            return Err(format!(
                "Rust's standard library for {target} is missing: rustup target add {target}"
            )
            .into());
        }
        Ok(())
    }

    fn missing(&self, what: &str) -> Failure {
        let remedy = match self.architecture.as_str() {
            "aarch64" => "as root: ci/deps build arm",
            _ => "install its gcc, its libelf and its zlib",
        };
        format!("building for {}: {what}; {remedy}", self.architecture).into()
    }

    /// Lets cargo use them, as far as `.cargo/config.toml` does not: it names the binutils, and the
    /// linker of aarch64.
    pub(crate) fn set(&self, cargo: &mut Command) {
        let target = self.target.to_uppercase().replace('-', "_");
        let linker = format!("CARGO_TARGET_{target}_LINKER");
        let configured = self.architecture == "aarch64" && env::var_os("CC").is_none();
        if !configured && env::var_os(&linker).is_none() {
            cargo.env(linker, self.compiler());
        }
    }
}

/// Runs a program, and returns what it said, or what is wrong with it.
fn said(command: &mut Command) -> Result<Output, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    match output.status.success() {
        true => Ok(output),
        false => Err(format!(
            "{name} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
