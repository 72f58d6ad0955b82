//! The same counts for aarch64, as QEMU's emulation of single programs executes them, beside those of
//! x86-64. It names each instruction that it executes, if each is translated by itself.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::instructions::{Action, COUNTED, Counts, Kept, output};

/// Counts for aarch64 that are kept in the repository.
const KEPT: Kept = Kept {
    path: concat!(env!("CARGO_MANIFEST_DIR"), "/instructions-arm.txt"),
    heading: "\
# Instructions of aarch64 for what instructions.txt counts on x86-64. `ci/bench instructions --arm --accept` writes this
# file; `ci/bench instructions --arm --check` fails where a count is more than 3 % above. QEMU executed them, one by one,
# as the processor that is named: other processors take other ways through CRCs, and compilers differ.
",
};
const EMULATOR: &str = "qemu-aarch64-static";
/// The processor of many hosts: Armv8.2 with CRC32, PMULL and LSE; neither SHA3 nor SVE.
const PROCESSOR: &str = "neoverse-n1";
/// Batches of the two runs: as few as show the same from run to run, as each instruction is a line.
const RUNS: [usize; 2] = [2, 10];

/// Counts, and then shows, checks or keeps the counts, of this program for aarch64.
pub(crate) fn run(action: Action, program: &Path) -> Result<(), Failure> {
    KEPT.apply(
        action,
        &count(program)?,
        "--arm ",
        Some(&Kept::X86_64.read()?),
    )
}

fn count(program: &Path) -> Result<Counts, Failure> {
    let [few, many] = RUNS.map(|batches| trace(program, batches));
    let (few, many) = (few?, many?);
    let counts = COUNTED.iter().enumerate().map(|(index, counted)| {
        let (name, function, in_batch) = *counted;
        match (few.costs[index], many.costs[index]) {
            (Some(few), Some(many)) => {
                let times = ((RUNS[1] - RUNS[0]) * in_batch) as f64;
                Ok((name.into(), (many - few) as f64 / times))
            }
            _ => Err(format!("{}: no call of {function} was seen", program.display()).into()),
        }
    });
    let counts = counts.collect::<Result<_, Failure>>()?;
    let rustc = output(Command::new("rustc").arg("--version"))?;
    let emulator = output(Command::new(EMULATOR).arg("--version"))?;
    let emulator = emulator.lines().next().unwrap_or_default();
    let tools = format!("{}, {emulator}, {PROCESSOR}", rustc.trim());
    Ok(Counts::new(tools, counts))
}

/// Runs batches, and returns what was executed.
fn trace(program: &Path, batches: usize) -> Result<Trace, Failure> {
    let failed = |error| format!("{EMULATOR}: {error}; ci/deps arm installs it");
    let mut emulator = Command::new(EMULATOR)
        .args(["-cpu", PROCESSOR, "-singlestep"])
        .args(["-d", "exec,nochain,in_asm"])
        .arg(program)
        .args(["--stages", &batches.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut trace = Trace::default();
    let mut said = BufReader::with_capacity(1 << 20, emulator.stderr.take().ok_or("no output")?);
    let mut line = Vec::new();
    let mut result = Ok(());
    while result.is_ok() && said.read_until(b'\n', &mut line)? != 0 {
        result = trace.take(&line);
        line.clear();
    }
    if result.is_err() {
        emulator.kill()?;
    }
    let status = emulator.wait()?;
    result?;
    match (status.success(), trace.within.last()) {
        (false, _) => Err(format!("{EMULATOR} {}: {status}", program.display()).into()),
        (true, Some(call)) => {
            let function = COUNTED[call.counted].1;
            Err(format!("{function} has not returned").into())
        }
        (true, None) => Ok(trace),
    }
}

/// What QEMU has said of a run.
#[derive(Default)]
struct Trace {
    executed: u64,
    /// Which of the counted functions each symbol is, if any.
    symbols: HashMap<Vec<u8>, Option<usize>>,
    /// Where each of the counted functions begins: it is seen there first.
    entries: [Option<u64>; COUNTED.len()],
    /// Instructions that call.
    calls: HashSet<u64>,
    /// The last one.
    before: u64,
    /// The counted functions that have not returned, the innermost last.
    within: Vec<Call>,
    /// What each of the counted functions has cost, with all that it called.
    costs: [Option<u64>; COUNTED.len()],
}

struct Call {
    counted: usize,
    began: u64,
    returns_to: u64,
}

impl Trace {
    /// Takes a line: an instruction that is about to be executed, or one that was translated.
    fn take(&mut self, line: &[u8]) -> Result<(), Failure> {
        match line.strip_prefix(b"Trace ") {
            Some(rest) => {
                let (at, symbol) = executed(rest).ok_or_else(|| unclear(line))?;
                self.execute(at, symbol)
            }
            None => {
                self.calls.extend(call(line));
                Ok(())
            }
        }
    }

    fn execute(&mut self, at: u64, symbol: &[u8]) -> Result<(), Failure> {
        if let Some(call) = self.within.pop_if(|call| call.returns_to == at) {
            *self.costs[call.counted].get_or_insert(0) += self.executed - call.began;
        }
        if let Some(counted) = self.counted(symbol)
            && *self.entries[counted].get_or_insert(at) == at
        {
            if self.calls.contains(&self.before) {
                self.within.push(Call {
                    counted,
                    began: self.executed,
                    returns_to: self.before + 4,
                });
            } else if self
                .within
                .last()
                .is_none_or(|call| call.counted != counted)
            {
                let function = COUNTED[counted].1;
                return Err(format!("{function} is jumped to: nothing says where it ends").into());
            }
        }
        self.executed += 1;
        self.before = at;
        Ok(())
    }

    fn counted(&mut self, symbol: &[u8]) -> Option<usize> {
        if let Some(known) = self.symbols.get(symbol) {
            return *known;
        }
        let counted = counted(symbol);
        self.symbols.insert(symbol.to_owned(), counted);
        counted
    }
}

fn unclear(line: &[u8]) -> String {
    format!("{EMULATOR}: unclear: {}", String::from_utf8_lossy(line))
}

/// Returns the address and the symbol of an instruction, of a line such as
/// `0: 0x7efe4563a080 [0000000000001001/00000055000007d8/00000001/00000201] main`.
fn executed(line: &[u8]) -> Option<(u64, &[u8])> {
    let text = line.trim_ascii_end();
    let mut parts = text.splitn(3, |octet| *octet == b'/');
    let at = std::str::from_utf8(parts.nth(1)?).ok()?;
    let rest = parts.next()?;
    let end = rest.iter().position(|octet| *octet == b']')?;
    let at = u64::from_str_radix(at, 16).ok()?;
    Some((at, rest[end + 1..].trim_ascii_start()))
}

/// Returns the address of a call, of a line such as `0x55000007d4:  97fffe3f  bl  #0x5500000010`.
fn call(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?;
    let (at, rest) = line.strip_prefix("0x")?.split_once(':')?;
    let calls = matches!(rest.split_whitespace().nth(1)?, "bl" | "blr");
    calls.then(|| u64::from_str_radix(at, 16).ok()).flatten()
}

/// Returns which of the counted functions a symbol is. Names are mangled as lengths and words.
fn counted(symbol: &[u8]) -> Option<usize> {
    let symbol = std::str::from_utf8(symbol).ok()?;
    let (_, name) = symbol.split_once("10rnic_bench")?;
    // A hash ends it, or nothing.
    let name = match name.find("17h") {
        Some(end) => &name[..end],
        None => name,
    };
    let is = |function: &str| {
        let words = function.split("::");
        name == words.fold(String::new(), |name, word| {
            format!("{name}{}{word}", word.len())
        })
    };
    COUNTED.iter().position(|(_, function, _)| is(function))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traced(text: &str) -> Result<Trace, Failure> {
        let mut trace = Trace::default();
        for line in text.lines() {
            trace.take(line.as_bytes())?;
        }
        Ok(trace)
    }

    /// A line for each instruction, as QEMU has them.
    fn lines(instructions: &[(u64, &str)]) -> String {
        let line = |(at, symbol): &(u64, &str)| {
            format!(
                "Trace 0: 0x7efe4563a080 [0000000000001001/{at:016x}/00000001/00000201] {symbol}\n"
            )
        };
        instructions.iter().map(line).collect()
    }

    const PARSE: &str = "_ZN10rnic_bench6stages5parse17h0123456789abcdefE";
    const INDEX: usize = 0;

    #[test]
    fn a_function_costs_what_it_does_and_what_it_calls() {
        assert_eq!(COUNTED[INDEX].1, "stages::parse");
        let ran = lines(&[
            (0x10, "main"),
            (0x100, PARSE),
            (0x104, PARSE),
            (0x200, "memcpy"),
            (0x108, PARSE),
            // Back to the start of the function is no call of it.
            (0x100, PARSE),
            (0x14, "main"),
            (0x18, "main"),
        ]);
        let calls = "0x00000010:  97fffe3f  bl       #0x100\n0x00000104:  d63f0120  blr      x9\n";
        let trace = traced(&format!("{calls}{ran}")).unwrap();
        assert_eq!((trace.executed, trace.costs[INDEX]), (8, Some(5)));
        assert!(trace.within.is_empty());
        assert_eq!(trace.costs[1], None);
    }

    #[test]
    fn a_jump_to_a_counted_function_is_an_error() {
        let jump = "0x00000010:  14000000  b        #0x100\n";
        let ran = lines(&[(0x10, "main"), (0x100, PARSE)]);
        assert!(traced(&format!("{jump}{ran}")).is_err());
    }

    #[test]
    fn functions_are_known_by_either_way_of_mangling() {
        let known = |symbol: &str| counted(symbol.as_bytes());
        assert_eq!(known(PARSE), Some(INDEX));
        assert_eq!(known("_RNvNtCsabc_10rnic_bench6stages5parse"), Some(INDEX));
        assert_eq!(
            known("_ZN10rnic_bench6stages5parse4deep17h0123456789abcdefE"),
            None
        );
        assert_eq!(known("_ZN9rnic_core6stages5parse17h01E"), None);
        assert_eq!(known(""), None);
    }

    #[test]
    fn a_line_that_is_cut_is_an_error() {
        assert!(traced("Trace 0: 0x7efe4563a080 [00000000").is_err());
    }
}
