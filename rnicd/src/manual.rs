//! The manual pages: rnicd(8) from the command line, rnicd.toml(5) from the configuration that the
//! package brings.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

/// The configuration that the package brings, which explains each key.
const CONFIGURATION: &str = include_str!("../rnicd.toml");

/// Writes the pages into a directory.
pub(crate) fn write(directory: &Path, command: Command) -> io::Result<()> {
    let mut page = Vec::new();
    Man::new(command).section("8").render(&mut page)?;
    fs::write(directory.join("rnicd.8"), page)?;
    fs::write(directory.join("rnicd.toml.5"), configuration())
}

/// Returns the page of the configuration.
fn configuration() -> String {
    let mut page = String::from(
        r#".TH rnicd.toml 5
.SH NAME
rnicd.toml \- configuration of rnicd
.SH SYNOPSIS
/etc/rnic/rnicd.toml
.SH DESCRIPTION
The file is in TOML. It says which network devices
.BR rnicd (8)
shares, and which users may have how much of them.
.B rnicd \-\-check
says what is wrong with it,
.B rnicd \-\-show\-config
prints all of it with the defaults, and
.B systemctl reload rnicd
makes rnicd read it again.
.PP
This is the file as the package brings it, with every key:
.PP
.EX
"#,
    );
    for line in CONFIGURATION.lines() {
        // A period or an apostrophe in front would be a request; this does not print.
        let line = line.replace('\\', r"\e");
        let _ = writeln!(page, r"\&{line}");
    }
    page + ".EE\n.SH SEE ALSO\n.BR rnicd (8),\n.BR rnic\\-ctl (1),\n/usr/share/doc/rnic/docs/sharing.md\n"
}
