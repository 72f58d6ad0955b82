//! A program, as `exec` finds it, and how the dynamic linker loads it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getegid, geteuid};
use object::Architecture;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH};
use object::read::Object;
use object::read::elf::{DynamicTable, ElfFile64};

use crate::failure::{Failure, Kind, Outcome};

/// How a program is loaded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Loading {
    /// With these shared libraries. Those in the directories are found before any that the
    /// environment names.
    Dynamic {
        libraries: Vec<String>,
        first: Vec<PathBuf>,
    },
    /// Without any.
    Static,
    /// For another processor.
    Foreign,
    /// By another program, as scripts are.
    Interpreted,
}

/// Returns the file of a program, as a shell finds it.
pub(super) fn find(name: &OsStr) -> Outcome<PathBuf> {
    let failed = |kind, why| Failure::of_program(kind, name.display(), why);
    let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
        vec![name.into()]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|directory| directory.join(name))
            .collect()
    };
    let files: Vec<_> = candidates.iter().filter(|path| path.is_file()).collect();
    if files.is_empty() {
        return Err(failed(Kind::NotFound, "there is no such program"));
    }
    let can_run = |path: &&&PathBuf| access(**path, AccessFlags::X_OK).is_ok();
    match files.iter().find(can_run) {
        Some(path) => Ok(PathBuf::from(path)),
        None => Err(failed(
            Kind::NotExecutable,
            "this user must not execute it; `chmod +x`",
        )),
    }
}

/// Returns whether the dynamic linker passes over the environment for this program, because it gets
/// rights by running it.
pub(super) fn is_privileged(path: &Path) -> bool {
    let Ok(file) = fs::metadata(path) else {
        return false;
    };
    let (user, group) = (geteuid(), getegid());
    let other_user = file.mode() & 0o4000 != 0 && file.uid() != user.as_raw();
    let other_group = file.mode() & 0o2000 != 0 && file.gid() != group.as_raw();
    let mut capabilities = [0; 64];
    let has_capabilities =
        rustix::fs::getxattr(path, "security.capability", &mut capabilities).is_ok();
    other_user || other_group || (has_capabilities && !user.is_root())
}

/// Returns how a program is loaded.
pub(super) fn loading(path: &Path) -> std::io::Result<Loading> {
    let data = fs::read(path)?;
    if !data.starts_with(b"\x7fELF") {
        return Ok(Loading::Interpreted);
    }
    let Ok(file) = ElfFile64::<object::Endianness>::parse(&*data) else {
        return Ok(Loading::Foreign);
    };
    let ours = match std::env::consts::ARCH {
        "x86_64" => Architecture::X86_64,
        "aarch64" => Architecture::Aarch64,
        _ => file.architecture(),
    };
    if file.architecture() != ours {
        return Ok(Loading::Foreign);
    }
    Ok(match file.elf_dynamic_table() {
        Ok(table) if !table.is_empty() => dynamic(&table, path),
        _ => Loading::Static,
    })
}

fn dynamic<'data, R: object::ReadRef<'data>>(
    table: &DynamicTable<'data, object::elf::FileHeader64<object::Endianness>, R>,
    path: &Path,
) -> Loading {
    let strings = |tag| {
        let entries = table.iter().filter(move |entry| entry.tag == tag);
        let strings = entries.filter_map(|entry| table.string(entry).ok());
        strings
            .map(|octets| String::from_utf8_lossy(octets).into_owned())
            .collect::<Vec<_>>()
    };
    let libraries = strings(DT_NEEDED);
    // A static program that can be loaded anywhere has such a table too.
    if libraries.is_empty() {
        return Loading::Static;
    }
    // DT_RUNPATH comes after the environment, and DT_RPATH does not count beside it.
    let rpath = match strings(DT_RUNPATH).is_empty() {
        true => strings(DT_RPATH),
        false => Vec::new(),
    };
    let origin = path.parent().unwrap_or(Path::new("/")).to_string_lossy();
    let first = rpath.iter().flat_map(|list| list.split(':'));
    let first = first.map(|directory| {
        let directory = directory.replace("${ORIGIN}", &origin);
        PathBuf::from(directory.replace("$ORIGIN", &origin))
    });
    Loading::Dynamic {
        first: first.collect(),
        libraries,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_loaded_with_the_c_library() {
        let own = std::env::current_exe().unwrap();
        match loading(&own).unwrap() {
            Loading::Dynamic { libraries, first } => {
                assert!(
                    libraries.iter().any(|name| name == "libc.so.6"),
                    "{libraries:?}"
                );
                assert!(first.is_empty());
            }
            other => panic!("{other:?}"),
        }
        assert!(!is_privileged(&own));
    }

    #[test]
    fn scripts_and_programs_of_other_machines_are_told_apart() {
        let path = std::env::temp_dir().join(format!("rnic-loading-{}", std::process::id()));
        fs::write(&path, "#!/bin/sh\n").unwrap();
        let script = loading(&path).unwrap();
        // An ELF header of 32 bits.
        fs::write(&path, b"\x7fELF\x01\x01\x01").unwrap();
        let foreign = loading(&path).unwrap();
        let code = find(path.as_os_str()).unwrap_err().kind;
        fs::remove_file(&path).unwrap();
        assert_eq!((script, foreign), (Loading::Interpreted, Loading::Foreign));
        assert_eq!(code, Kind::NotExecutable);
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        let none = find(OsStr::new("rnic-no-such-program")).unwrap_err();
        assert_eq!(none.kind, Kind::NotFound);
        assert_eq!(find(OsStr::new("/")).unwrap_err().kind, Kind::NotFound);
    }
}
