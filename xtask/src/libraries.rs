//! Links the libraries that RDMA programs load.
//!
//! The shared libraries that cargo makes have one version for all symbols, or none. So cargo makes
//! an archive, and the linker exports from it what `rnic-ibverbs/symbols/*.map` list, each symbol
//! under its version. A symbol that is listed and missing is an error, as is one that the archive
//! needs and no library has. So it is with the library of `rnic-sysfs`, whose symbols have no
//! version.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::exports::{Symbols, exported, listed, listed_in};
use crate::trampolines::trampolines;
use crate::{Build, Failure, run};

/// What cargo puts into the archive needs these libraries of the system: libbpf reads ELF files,
/// whose sections may be compressed.
const SYSTEM: [&str; 5] = ["-lelf", "-lz", "-lgcc_s", "-lm", "-lc"];

/// Never unloaded: a program that loads the library by itself and unloads it would leave threads
/// without their code.
const COMMON: [&str; 8] = [
    "-shared",
    "-Wl,-z,nodelete",
    "-Wl,-z,defs",
    "-Wl,-z,relro,-z,now",
    "-Wl,--build-id",
    "-Wl,--hash-style=gnu",
    "-Wl,--as-needed",
    "-Wl,--no-undefined-version",
];

/// What programs preload.
const PRELOADED: &str = "librnic_sysfs.so";

/// Links the libraries from the archives that cargo has built.
pub(crate) fn link(build: &Build) -> Result<(), Failure> {
    let linker = Linker::new(build)?;
    fs::create_dir_all(&linker.output)?;
    let ibverbs = linker.link_ibverbs(&build.output().join("librnic_ibverbs.a"))?;
    linker.link_rdmacm(build.architecture(), &ibverbs)?;
    linker.name_without_version("libibverbs")?;
    linker.name_without_version("librdmacm")?;
    linker.link_preloaded(&build.output().join("librnic_sysfs.a"))
}

/// Returns the path of the version script of a library.
fn script(build: &Build, name: &str) -> PathBuf {
    build
        .root
        .join("rnic-ibverbs/symbols")
        .join(name)
        .with_extension("map")
}

/// Returns the path of a library.
pub(crate) fn library(build: &Build, name: &str) -> PathBuf {
    build.output().join("lib").join(name).with_extension("so.1")
}

/// Makes shared libraries.
struct Linker {
    compiler: OsString,
    output: PathBuf,
    /// The version scripts.
    ibverbs: PathBuf,
    rdmacm: PathBuf,
    preloaded: PathBuf,
}

impl Linker {
    fn new(build: &Build) -> Result<Self, Failure> {
        let compiler = match build.tools()? {
            Some(tools) => tools.compiler(),
            None => env::var_os("CC").unwrap_or_else(|| "cc".into()),
        };
        Ok(Self {
            compiler,
            output: build.output().join("lib"),
            ibverbs: script(build, "libibverbs"),
            rdmacm: script(build, "librdmacm"),
            preloaded: build.root.join("rnic-sysfs/exports.map"),
        })
    }

    /// Links libibverbs.so.1, and returns its path. Through a version of its own it exports to
    /// librdmacm.so.1 what that one's functions do.
    fn link_ibverbs(&self, archive: &Path) -> Result<PathBuf, Failure> {
        let mut exports = fs::read_to_string(&self.ibverbs)?;
        exports.push_str("\nRNIC_PRIVATE {\n    global:\n");
        for (name, _) in listed(&self.rdmacm)? {
            writeln!(exports, "        rnic_cm_{name};")?;
        }
        exports.push_str("};\n");
        let symbols = listed_in(&exports);
        let script = self.write("libibverbs.map", &exports)?;
        let options = self.options("libibverbs.options", &symbols)?;
        let mut arguments = vec![
            "-Wl,--gc-sections".into(),
            "-Wl,-Bsymbolic-functions".into(),
        ];
        arguments.push(joined("-Wl,@", &options));
        arguments.push(archive.into());
        arguments.extend(SYSTEM.map(OsString::from));
        self.link("libibverbs.so.1", &script, &symbols, arguments)
    }

    /// Links librdmacm.so.1. Its functions have no code of their own: what rdma_cm does needs the
    /// state of the verbs, which is the other library's.
    fn link_rdmacm(&self, architecture: &str, ibverbs: &Path) -> Result<(), Failure> {
        let symbols = listed(&self.rdmacm)?;
        let names = symbols.iter().map(|(name, _)| name.as_str());
        let code = self.write("librdmacm.s", &trampolines(architecture, names)?)?;
        let arguments = vec!["-nostdlib".into(), code.into(), ibverbs.into()];
        self.link("librdmacm.so.1", &self.rdmacm, &symbols, arguments)?;
        Ok(())
    }

    /// Links what programs preload. Its first function is called when it is loaded.
    fn link_preloaded(&self, archive: &Path) -> Result<(), Failure> {
        let symbols = listed(&self.preloaded)?;
        let arguments = vec![
            "-Wl,--gc-sections".into(),
            "-Wl,-init,rnic_sysfs_start".into(),
            joined("-Wl,@", &self.options("librnic_sysfs.options", &symbols)?),
            archive.into(),
            "-lgcc_s".into(),
            "-lc".into(),
        ];
        self.link(PRELOADED, &self.preloaded, &symbols, arguments)?;
        Ok(())
    }

    /// Writes options without which the linker takes no member out of an archive.
    fn options(&self, name: &str, symbols: &Symbols) -> Result<PathBuf, Failure> {
        let names = symbols.iter();
        let undefined: String = names
            .map(|(name, _)| format!("--undefined={name}\n"))
            .collect();
        self.write(name, &undefined)
    }

    /// Links a library, and checks that it exports these symbols and no others.
    fn link(
        &self,
        name: &str,
        script: &Path,
        symbols: &Symbols,
        arguments: Vec<OsString>,
    ) -> Result<PathBuf, Failure> {
        let library = self.output.join(name);
        let mut compiler = Command::new(&self.compiler);
        compiler
            .args(COMMON)
            .arg(format!("-Wl,-soname,{name}"))
            .arg("-o")
            .arg(&library);
        run(compiler
            .arg(joined("-Wl,--version-script=", script))
            .args(arguments))?;
        let exported = exported(&library)?;
        if exported != *symbols {
            let missing: Vec<_> = symbols.difference(&exported).collect();
            let unlisted: Vec<_> = exported.difference(symbols).collect();
            return Err(format!(
                "{} lacks {missing:?} and exports {unlisted:?}, which is not listed",
                library.display()
            )
            .into());
        }
        Ok(library)
    }

    /// Makes a link without the version. NCCL and others load `libibverbs.so` first, which is
    /// rdma-core's where its headers are installed, and `libibverbs.so.1` only where there is none.
    /// A link, and no copy: both names are to lead to one library in a process.
    fn name_without_version(&self, name: &str) -> Result<(), Failure> {
        let link = self.output.join(format!("{name}.so"));
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(format!("{name}.so.1"), link)?;
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.output.join(name);
        fs::write(&path, text)?;
        Ok(path)
    }
}

fn joined(option: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(option);
    argument.push(path);
    argument
}
