//! Instructions for a segment, stage by stage, as callgrind counts them, compared with the kept
//! counts.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rnic_core::fast_paths::FastPaths;

use crate::engine::{Kind, Pair, Timing};
use crate::failure::Failure;
use crate::packed;
use crate::short::ShortMessages;
use crate::stages::{BATCH, StageTimes, Stages};

pub(crate) const USAGE: &str = "usage: rnic-bench instructions [--arm PROGRAM] [--check | --accept]

  counts the instructions of each stage of a segment, and of the whole engine, beside those kept in the repository
  --check   fails where one has become more than 3 % higher
  --accept  keeps what is counted now
  --arm     counts those of PROGRAM, which is rnic-bench built for aarch64, in an emulator, and shows them beside those
            kept for x86-64";

/// Counts that are kept in a file of the repository.
pub(crate) struct Kept {
    pub(crate) path: &'static str,
    /// What the file says of them.
    pub(crate) heading: &'static str,
}

const HEADING: &str = "\
# Instructions for a segment that fills an MTU of 1500 (1428 octets of payload): stage by stage, then the whole engine, for
# Writes, Sends and Reads of 64 KiB, at the end that receives the payload and at the other; for one message of 64 octets
# that answers another, Write or Send: posting it with the turn that sends it, and the turn that receives it with the poll
# that sees it; for a Read of 64 octets, both ends together; and for a Write of 8 octets of which 51 share a segment.
# `ci/bench instructions --accept` writes this file; `ci/bench instructions --check` fails where a count is more than
# 3 % above. Counted by callgrind, which has no AVX-512 and therefore takes other ways through copies, sums and CRCs than
# the processor would; and compilers differ: compare these counts with each other, and with the same tools, only.
";
/// By how much a count may grow before the check fails.
const TOLERANCE: f64 = 0.03;
/// Batches of the two runs. Their difference is counted, so that set-up is not.
const RUNS: [usize; 2] = [40, 240];

/// What is counted, the function whose instructions these are, with all that it calls, and how many
/// a batch has.
pub(crate) const COUNTED: [(&str, &str, usize); 25] = [
    ("parse", "stages::parse", BATCH),
    ("flow-lookup", "stages::look_up", BATCH),
    ("tcp-receive", "stages::receive", BATCH),
    ("deframe", "stages::deframe", BATCH),
    ("crc", "stages::crc", BATCH),
    ("stag-check", "stages::check", BATCH),
    ("place", "stages::place", BATCH),
    ("completion", "stages::complete", BATCH),
    ("segment", "stages::segment", BATCH),
    ("emit", "stages::emit", BATCH),
    ("engine-receive", "engine::receive_batch", BATCH),
    ("engine-transmit", "engine::transmit_batch", BATCH),
    ("sends-receive", "engine::receive_sends", BATCH),
    ("sends-transmit", "engine::transmit_sends", BATCH),
    ("reads-receive", "engine::receive_reads", BATCH),
    ("reads-transmit", "engine::transmit_reads", BATCH),
    ("short-write-post", "short::write", BATCH),
    ("short-write-see", "short::see", BATCH),
    ("short-send-post", "short::send", BATCH),
    ("short-send-see", "short::receive", BATCH),
    ("short-read", "short::read_one", BATCH),
    ("packed-post", "packed::post", packed::WRITES),
    ("packed-transmit", "packed::transmit", packed::WRITES),
    ("packed-receive", "packed::receive", packed::WRITES),
    ("packed-complete", "packed::complete", packed::WRITES),
];

/// What to do with the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Show,
    Check,
    Accept,
}

/// What the command line asks for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) action: Action,
    /// The program of aarch64 whose instructions are counted.
    pub(crate) arm: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(
        mut arguments: impl Iterator<Item = String>,
    ) -> Result<Option<Self>, Failure> {
        let mut options = Self {
            action: Action::Show,
            arm: None,
        };
        while let Some(argument) = arguments.next() {
            match (argument.as_str(), options.action) {
                ("-h" | "--help", _) => return Ok(None),
                ("--check", Action::Show) => options.action = Action::Check,
                ("--accept", Action::Show) => options.action = Action::Accept,
                ("--arm", _) => {
                    let program = arguments.next().ok_or("--arm needs a program")?;
                    options.arm = Some(program.into());
                }
                (other, _) => return Err(format!("{other} is too much").into()),
            }
        }
        Ok(Some(options))
    }
}

/// Runs batches through everything that is counted.
pub(crate) fn run_batches(batches: usize, fast_paths: FastPaths) -> Result<(), Failure> {
    let mut stages = Stages::new()?;
    for _ in 0..batches {
        if stages.turn(&mut StageTimes::default())? != BATCH {
            return Err("a batch was not sent as a whole".into());
        }
    }
    for kind in [Kind::Write, Kind::Send, Kind::Read] {
        Pair::connect(1, kind, Timing::Virtual, fast_paths)?.measure(batches);
    }
    // As many messages as the others have segments.
    let mut messages = ShortMessages::connect(fast_paths)?;
    messages.play(batches * BATCH)?;
    messages.read(batches * BATCH)?;
    packed::write_batches(batches, fast_paths)
}

/// Counts, with what they were made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Compiler, profiler and processor: only counts of the same can be compared.
    tools: String,
    counts: Vec<(String, f64)>,
}

impl Counts {
    pub(crate) fn new(tools: String, counts: Vec<(String, f64)>) -> Self {
        Self { tools, counts }
    }

    /// Returns what a file holds.
    fn parse(text: &str) -> Result<Self, Failure> {
        let mut all = Self::default();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for line in lines {
            match line.split_once(' ') {
                Some(("with", tools)) => all.tools = tools.into(),
                Some((name, count)) => all.counts.push((name.into(), count.parse()?)),
                None => return Err(format!("{line:?} is no count").into()),
            }
        }
        Ok(all)
    }

    fn text(&self, heading: &str) -> String {
        let mut text = format!("{heading}with {}\n", self.tools);
        for (name, count) in &self.counts {
            let _ = writeln!(text, "{name} {count:.1}");
        }
        text
    }

    /// Returns each row.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&str, f64)> {
        self.counts
            .iter()
            .map(|(name, count)| (name.as_str(), *count))
    }

    pub(crate) fn of(&self, name: &str) -> Option<f64> {
        let found = self.counts.iter().find(|(counted, _)| counted == name);
        found.map(|(_, count)| *count)
    }

    /// Returns the counts that have grown too much beyond those kept, or were not kept.
    fn grown<'a>(&'a self, kept: &'a Self) -> impl Iterator<Item = &'a str> {
        let grown = |name: &str, count| {
            kept.of(name)
                .is_none_or(|before| count > before * (1.0 + TOLERANCE))
        };
        let all = self
            .counts
            .iter()
            .filter(move |(name, count)| grown(name, *count));
        all.map(|(name, _)| name.as_str())
    }

    /// Shows them beside those kept, and perhaps those of x86-64.
    fn table(&self, kept: &Self, x86_64: Option<&Self>) -> String {
        let mut text = format!("{:<18} {:>10} {:>10}", "instructions", "now", "kept");
        text += if x86_64.is_some() {
            "              x86-64\n"
        } else {
            "\n"
        };
        for (name, count) in &self.counts {
            let _ = write!(text, "{name:<18} {count:>10.1}");
            text += &beside(*count, kept.of(name));
            if let Some(x86_64) = x86_64 {
                text += &beside(*count, x86_64.of(name));
            }
            text += "\n";
        }
        text
    }
}

/// Returns another count, and how much `count` is above it.
fn beside(count: f64, other: Option<f64>) -> String {
    match other {
        None => format!(" {:>10} {:>9}", "-", ""),
        Some(other) => format!(" {other:>10.1} {:>+7.1} %", (count / other - 1.0) * 100.0),
    }
}

impl Kept {
    pub(crate) const X86_64: Self = Self {
        path: concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt"),
        heading: HEADING,
    };

    pub(crate) fn read(&self) -> Result<Counts, Failure> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.path);
        let text = fs::read_to_string(self.path).map_err(|error| failed(&error))?;
        Ok(Counts::parse(&text).map_err(|error| failed(&error))?)
    }

    /// Shows, checks or keeps counts. `option` is that of `ci/bench instructions` for them.
    pub(crate) fn apply(
        &self,
        action: Action,
        now: &Counts,
        option: &str,
        x86_64: Option<&Counts>,
    ) -> Result<(), Failure> {
        if action == Action::Accept {
            let written = fs::write(self.path, now.text(self.heading));
            written.map_err(|error| format!("{}: {error}", self.path))?;
            println!("kept in {}", self.path);
            return Ok(());
        }
        let kept = self.read()?;
        print!("{}", now.table(&kept, x86_64));
        if kept.tools != now.tools {
            println!(
                "kept: {}\nhere: {}\nCounts of other tools say nothing about each other: NOT CHECKED. To check here: \
                 `ci/bench instructions {option}--accept` with the code as it was, then `--check` with the code as it is.",
                kept.tools, now.tools
            );
            return Ok(());
        }
        let grown: Vec<_> = now.grown(&kept).collect();
        if action == Action::Check && !grown.is_empty() {
            return Err(format!(
                "more instructions than kept, by over {} %: {}. Make them fewer; or, if they are worth it, \
                 `ci/bench instructions {option}--accept`, and say why in the commit",
                TOLERANCE * 100.0,
                grown.join(", ")
            )
            .into());
        }
        Ok(())
    }
}

/// Counts, and then shows, checks or keeps the counts.
pub(crate) fn run(action: Action) -> Result<(), Failure> {
    Kept::X86_64.apply(action, &count("all")?, "", None)
}

/// Counts in two runs of callgrind, with these [fast paths](crate::fast_paths::parse).
pub(crate) fn count(fast_paths: &str) -> Result<Counts, Failure> {
    let directory = std::env::temp_dir().join(format!("rnic-instructions-{}", std::process::id()));
    fs::create_dir(&directory)?;
    let profiles = RUNS.map(|batches| profile(&directory.join("callgrind"), batches, fast_paths));
    fs::remove_dir_all(&directory)?;
    let [few, many] = profiles;
    let (few, many) = (few?, many?);
    let counts = COUNTED.iter().map(|(name, function, in_batch)| {
        let times = ((RUNS[1] - RUNS[0]) * in_batch) as f64;
        let function = format!("rnic_bench::{function}");
        match (few.get(&function), many.get(&function)) {
            (Some(few), Some(many)) => Ok(((*name).into(), (many - few) as f64 / times)),
            _ => Err(
                format!("callgrind has not seen {function}: build with debug information").into(),
            ),
        }
    });
    Ok(Counts {
        tools: tools()?,
        counts: counts.collect::<Result<_, Failure>>()?,
    })
}

fn profile(file: &Path, batches: usize, fast_paths: &str) -> Result<HashMap<String, u64>, Failure> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind"]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    valgrind.arg(std::env::current_exe()?);
    let batches = batches.to_string();
    output(valgrind.args(["--stages", &batches, "--fast-paths", fast_paths]))?;
    Ok(inclusive(&fs::read_to_string(file)?))
}

fn tools() -> Result<String, Failure> {
    let [rustc, valgrind] =
        ["rustc", "valgrind"].map(|tool| output(Command::new(tool).arg("--version")));
    Ok(format!(
        "{}, {}, {}",
        rustc?.trim(),
        valgrind?.trim(),
        processor()
    ))
}

/// Returns what of the processor decides which instructions are used.
#[cfg(target_arch = "x86_64")]
fn processor() -> &'static str {
    if std::is_x86_feature_detected!("avx2") {
        "AVX2"
    } else {
        "no AVX2"
    }
}

/// Returns what of the processor decides which instructions are used.
#[cfg(target_arch = "aarch64")]
fn processor() -> &'static str {
    "aarch64"
}

pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{program}: {error}; ci/deps installs it"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} failed: {}", said.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns what each function of a profile cost with all that it called, in the format
/// of <https://valgrind.org/docs/manual/cl-format.html>. Functions that call themselves count more
/// than once.
fn inclusive(profile: &str) -> HashMap<String, u64> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut costs: HashMap<&str, u64> = HashMap::new();
    let mut function = "";
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = resolve(&mut names, name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            resolve(&mut names, name);
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            // A place and what it cost: its own instructions, or those of a call from there.
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok());
            *costs.entry(function).or_default() += cost.unwrap_or(0u64);
        }
    }
    let costs = costs.into_iter();
    costs.map(|(name, cost)| (name.to_owned(), cost)).collect()
}

/// Resolves a name of the format: "(7) name" defines number 7, and "(7)" stands for that name from
/// then on.
fn resolve<'a>(names: &mut HashMap<&'a str, &'a str>, text: &'a str) -> &'a str {
    match text.split_once(' ') {
        Some((number, name)) if number.starts_with('(') => {
            names.insert(number, name);
            name
        }
        _ => names.get(text).copied().unwrap_or(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages;

    const PROFILE: &str = "\
version: 1
positions: line
events: Ir

fl=(1) a.rs
fn=(1) main
10 5
cfn=(2) stage
calls=2 20
11 300
+2 7

fn=(2)
20 100
fi=(2) b.rs
* 20
cfn=(3) leaf
calls=4 30
-3 180

fn=(3)
30 180
";

    #[test]
    fn a_function_costs_what_it_does_and_what_it_calls() {
        let costs = inclusive(PROFILE);
        let of = |name: &str| costs[name];
        assert_eq!((of("main"), of("stage"), of("leaf")), (312, 300, 180));
    }

    fn counts(counts: &[(&str, f64)]) -> Counts {
        Counts {
            tools: "rustc 1, valgrind 2".into(),
            counts: counts
                .iter()
                .map(|(name, count)| ((*name).into(), *count))
                .collect(),
        }
    }

    #[test]
    fn every_stage_is_counted() {
        let counted = |name: &str| COUNTED.iter().any(|(counted, ..)| *counted == name);
        assert!(stages::NAMES.iter().all(|name| counted(name)));
    }

    #[test]
    fn whole_batches_go_through_every_stage() {
        run_batches(3, FastPaths::ALL).unwrap();
    }

    #[test]
    fn three_percent_may_be_and_more_may_not() {
        let kept = counts(&[("parse", 100.0), ("place", 50.0)]);
        let grown = |parse, place| {
            let now = counts(&[("parse", parse), ("place", place)]);
            now.grown(&kept).map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(grown(103.0, 50.0).is_empty());
        assert!(grown(10.0, 5.0).is_empty());
        assert_eq!(grown(103.1, 50.0), ["parse"]);
        assert_eq!(grown(104.0, 52.0), ["parse", "place"]);
    }

    #[test]
    fn a_stage_that_was_never_kept_is_not_accepted_silently() {
        let (kept, now) = (counts(&[("parse", 1.0)]), counts(&[("place", 1.0)]));
        assert_eq!(now.grown(&kept).collect::<Vec<_>>(), ["place"]);
    }

    #[test]
    fn what_is_kept_reads_the_same() {
        let kept = counts(&[("parse", 1234.5), ("engine-receive", 3.0)]);
        assert_eq!(Counts::parse(&kept.text(HEADING)).unwrap(), kept);
        assert!(Counts::parse("nonsense").is_err());
    }
}
