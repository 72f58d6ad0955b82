//! What stands in the way of a program, each finding with its remedy, as `rnic-ctl doctor` has
//! them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rnic_manager::{NODE, has_node};
use rnic_xdp::facts::{Fact, Verdict};
use serde_json::{Map, Value, json};

use super::devices::Devices;
use super::executable::{Loading, is_privileged, loading};
use super::libraries;
use super::surroundings::Label;
use super::sysfs::{self, Sysfs};
use crate::doctor::{Findings, has_failures, render, to_json};
use crate::failure::{Failure, Outcome};
use crate::out;

const VERBS: &str = "libibverbs.so.1";
const CM: &str = "librdmacm.so.1";

/// Examines a program.
pub(super) fn program(path: &Path) -> Vec<Fact> {
    let found = |verdict, found: String, remedy: Option<&str>| Fact {
        name: "program",
        verdict,
        found: format!("{}: {found}", path.display()),
        remedy: remedy.map(str::to_owned),
    };
    let fail = |why: String, remedy| vec![found(Verdict::Fail, why, Some(remedy))];
    if is_privileged(path) {
        return fail(
            "it is setuid, setgid or has file capabilities, so the dynamic linker ignores LD_LIBRARY_PATH".into(),
            "run a copy of it without them, or have /etc/ld.so.conf.d name our libraries (docs/programs.md)",
        );
    }
    let loading = match loading(path) {
        Ok(loading) => loading,
        Err(error) => {
            let remedy = "`chmod +r`: who can read it learns how it is loaded";
            return vec![found(Verdict::Warn, error.to_string(), Some(remedy))];
        }
    };
    match loading {
        Loading::Static => fail(
            "it is linked statically".into(),
            "build it against the shared libibverbs: a static one cannot be replaced",
        ),
        Loading::Foreign => fail(
            "it is for another processor".into(),
            "our libraries are of 64 bits, for this machine",
        ),
        Loading::Interpreted => vec![found(
            Verdict::Ok,
            "a script; what it runs has the same environment".into(),
            None,
        )],
        Loading::Dynamic { libraries, first } => {
            let named = [VERBS, CM].map(|name| libraries.iter().any(|other| other == name));
            let shadow = first.iter().find(|place| place.join(VERBS).is_file());
            match (shadow, named) {
                (Some(place), _) => fail(
                    format!("it finds {VERBS} in {} first (DT_RPATH)", place.display()),
                    "`patchelf --remove-rpath` a copy of it, or build it without",
                ),
                (None, [false, false]) => vec![found(
                    Verdict::Ok,
                    format!("it does not load {VERBS} by itself; what it loads or runs may"),
                    None,
                )],
                (None, _) => vec![found(Verdict::Ok, format!("it loads {VERBS}"), None)],
            }
        }
    }
}

/// Fails with the first finding that has failed.
pub(super) fn pass(program: &Path, facts: &[Fact]) -> Outcome {
    match facts.iter().find(|fact| fact.verdict == Verdict::Fail) {
        None => Ok(()),
        Some(fact) => {
            let remedy = fact.remedy.as_deref().unwrap_or_default();
            let why = format!("{}; {remedy}", fact.found);
            Err(Failure::environment(
                format_args!("run {}", program.display()),
                why,
            ))
        }
    }
}

/// Prints everything that matters to a program. The exit code is 1 if something stands in its way.
pub(super) fn report(
    path: &Path,
    devices: &Outcome<Devices>,
    label: Option<Label>,
    sysfs: Option<Sysfs>,
    json: bool,
) -> Outcome<ExitCode> {
    let mut first = vec![own_libraries()];
    first.extend(program(path));
    first.extend((label == Some(Label::Roce)).then(node));
    let made = devices.as_ref().ok();
    let made = made.and_then(|devices| sysfs::made(sysfs, label, devices));
    first.extend(made.map(|made| in_sysfs(path, made)));
    first.extend(kernel_devices());
    if let Err(failure) = devices {
        first.push(of_failure("interface", failure));
    }
    let mut parts = vec![("program".to_owned(), first)];
    for name in devices.iter().flat_map(|devices| &devices.names) {
        // A trial would take an interface from whoever is about to use it.
        let Findings { host, device } = Findings::of(name, false);
        if parts.len() == 1 {
            parts.push(("host".into(), host));
        }
        parts.push((name.clone(), device));
    }
    if devices.as_ref().is_ok_and(may_take_sockets) {
        leave_sockets(&mut parts);
    }
    let fails = parts.iter().any(|(_, facts)| has_failures(facts));
    if json {
        let parts = parts
            .iter()
            .map(|(name, facts)| (name.clone(), to_json(facts)));
        let parts: Map<_, _> = parts.collect();
        let report = json!({ "ok": !fails, "findings": Value::from(parts) });
        out::line(format_args!("{report:#}"))?;
    } else {
        for (name, facts) in &parts {
            out::write(&render(name, facts))?;
        }
    }
    Ok(ExitCode::from(u8::from(fails)))
}

/// Returns whether programs may use TCP sockets of the kernel, and have an interface for it.
fn may_take_sockets(devices: &Devices) -> bool {
    devices.via.may_take_sockets() && devices.check().is_ok()
}

/// Turns what stands in the way of better ways into warnings: over TCP sockets of the kernel
/// programs need none of it.
fn leave_sockets(parts: &mut [(String, Vec<Fact>)]) {
    let [(_, first), rest @ ..] = parts else {
        return;
    };
    let rest = rest.iter_mut().flat_map(|(_, facts)| facts);
    for fact in rest.filter(|fact| fact.verdict == Verdict::Fail) {
        fact.verdict = Verdict::Warn;
    }
    first.push(Fact {
        name: "sockets",
        verdict: Verdict::Ok,
        found: "TCP sockets of the kernel do where no better way is there".into(),
        remedy: None,
    });
}

fn own_libraries() -> Fact {
    match libraries::directory() {
        Ok(directory) => Fact {
            name: "libraries",
            verdict: Verdict::Ok,
            found: directory.display().to_string(),
            remedy: None,
        },
        Err(failure) => of_failure("libraries", &failure),
    }
}

/// Examines the file that programs look for where devices call themselves RoCE.
fn node() -> Fact {
    let (verdict, found, remedy) = match has_node() {
        true => (Verdict::Ok, NODE.to_owned(), None),
        false => (
            Verdict::Warn,
            format!("there is no {NODE}; UCX and Mooncake leave devices out without it"),
            Some("start rnicd, or the program, as root once: `rnic run --as roce true`".to_owned()),
        ),
    };
    Fact {
        name: "device file",
        verdict,
        found,
        remedy,
    }
}

/// Tells whether the program sees the devices in sysfs.
fn in_sysfs(program: &Path, made: Result<PathBuf, String>) -> Fact {
    let without = "programs that look for devices there find none";
    let (verdict, found, remedy) = match made {
        Ok(_) if matches!(loading(program), Ok(Loading::Static)) => (
            Verdict::Warn,
            format!("a static program loads no library; {without}"),
            None,
        ),
        Ok(tree) => (Verdict::Ok, tree.display().to_string(), None),
        Err(why) => (
            Verdict::Warn,
            format!("{why}; {without}"),
            Some("have TMPDIR name a directory of your own".to_owned()),
        ),
    };
    Fact {
        name: "sysfs",
        verdict,
        found,
        remedy,
    }
}

fn of_failure(name: &'static str, failure: &Failure) -> Fact {
    let (found, remedy) = failure.why.split_once(';').unwrap_or((&failure.why, ""));
    Fact {
        name,
        verdict: Verdict::Fail,
        found: found.to_owned(),
        remedy: Some(remedy.trim().to_owned()),
    }
}

/// Reports RDMA devices of the kernel, which programs over rnic do not see.
fn kernel_devices() -> Option<Fact> {
    let entries = fs::read_dir("/sys/class/infiniband").ok()?;
    let mut names: Vec<_> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    (!names.is_empty()).then(|| Fact {
        name: "hardware",
        verdict: Verdict::Warn,
        found: format!("the program does not see {}", names.join(", ")),
        remedy: Some("without `rnic run` it does, and does not see ours".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_load_verbs_may_run_one_that_does() {
        let own = std::env::current_exe().unwrap();
        let facts = program(&own);
        assert!(!has_failures(&facts));
        assert!(facts[0].found.contains("by itself"), "{facts:?}");
        pass(&own, &facts).unwrap();
    }

    #[test]
    fn what_cannot_be_read_may_run_all_the_same() {
        let facts = program(Path::new("/nowhere/program"));
        assert_eq!(facts[0].verdict, Verdict::Warn);
        assert!(facts[0].found.contains("No such file"), "{facts:?}");
        pass(Path::new("program"), &facts).unwrap();
    }
}
