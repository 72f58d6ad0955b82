//! The command line.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Parser};
use rnicd::config::{PATH, socket_path};

/// Gives unprivileged programs shares of network devices, as its configuration allows.
///
/// It serves until SIGTERM; SIGHUP reads the configuration again. Ports and their connections go on
/// without it, and the next rnicd takes them over.
///
/// Exit codes: 0 done, 1 the configuration is wrong or rnicd cannot serve, 2 wrong command line.
#[derive(Debug, Parser)]
#[command(name = "rnicd", version, group = ArgGroup::new("what"))]
pub(crate) struct Cli {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = PATH)]
    config: PathBuf,

    /// Say what is wrong with the configuration, or with FILE, and with what rnic-ctl has set over
    /// it; print nothing if it is right. The names in it are looked up once the rest is right
    #[arg(long, value_name = "FILE", num_args = 0..=1, group = "what")]
    pub(crate) check: Option<Option<PathBuf>>,

    /// Print the whole configuration, defaults included, and which of it rnic-ctl has set
    #[arg(long, group = "what")]
    pub(crate) show_config: bool,

    /// Stop sharing all devices and leave nothing of it: end all ports, detach the programs, and
    /// remove their maps, and what rnic-ctl has set. No rnicd may run
    #[arg(long, group = "what")]
    pub(crate) unshare: bool,

    /// Hold for rnicd what outlives it, as its keeper: it listens at standard input, and removes
    /// the socket at PATH when it ends
    #[arg(long, value_name = "PATH", num_args = 0..=1, group = "what", hide = true)]
    pub(crate) keep: Option<Option<PathBuf>>,

    /// Free the memory of a port for rnicd: the file that standard input is
    #[arg(long, group = "what", hide = true)]
    pub(crate) free: bool,

    /// Write the manual pages into a directory
    #[arg(long, value_name = "DIR", group = "what", hide = true)]
    pub(crate) man: Option<PathBuf>,

    /// The Unix socket to listen at, whatever the configuration says
    #[arg(long, value_name = "PATH", value_parser = socket_path)]
    pub(crate) socket: Option<PathBuf>,

    /// The directory of the records of ports, and of what rnic-ctl has set; it must not outlive the
    /// system
    #[arg(long, value_name = "DIR", default_value = "/run/rnic-admin")]
    pub(crate) state: PathBuf,

    /// The directory of a BPF file system where the maps of each device are pinned
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/rnic")]
    pub(crate) pins: PathBuf,
}

impl Cli {
    /// Returns the configuration to read.
    pub(crate) fn file(&self) -> &Path {
        let checked = self.check.as_ref().and_then(Option::as_ref);
        checked.unwrap_or(&self.config)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_file_is_named_by_either_option() {
        let file = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            cli.file().display().to_string()
        };
        assert_eq!(file("rnicd --check"), "/etc/rnic/rnicd.toml");
        assert_eq!(file("rnicd --check a.toml"), "a.toml");
        assert_eq!(file("rnicd --check --config b.toml"), "b.toml");
        assert_eq!(file("rnicd --config b.toml --check a.toml"), "a.toml");
        assert_eq!(file("rnicd --show-config --config b.toml"), "b.toml");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "rnicd --check --show-config",
            "rnicd --check --unshare",
            "rnicd --check --socket run/rnicd.sock",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
