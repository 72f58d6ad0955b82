//! Measures rnic beside what a user would pick instead, and beside the limits of the machine: raw
//! AF_XDP, the kernel's TCP, and the copies and CRCs alone. All are measured in one run, in turn.

// From the ground up; each file imports only from those below it:
// failure, heap, plain, pool, rnicd, sealing, stats < bed, engine, pace, stages < effort, machine, memory,
// quiet < octets, pingpong, short < kernel, packed, raw, rdma < framed, instructions, many,
// shared, streams < emulated, fast_paths, plan < report; impaired stands on failure and stats
mod bed;
mod effort;
mod emulated;
mod engine;
mod failure;
mod fast_paths;
mod framed;
mod heap;
mod impaired;
mod instructions;
mod kernel;
mod machine;
mod many;
mod memory;
mod octets;
mod pace;
mod packed;
mod pingpong;
mod plain;
mod plan;
mod pool;
mod quiet;
mod raw;
mod rdma;
mod report;
mod rnicd;
mod sealing;
mod shared;
mod short;
mod stages;
mod stats;
mod streams;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rnic_core::fast_paths::FastPaths;

use crate::bed::{Bed, Cores};
use crate::effort::{Effort, PING, Shape};
use crate::failure::Failure;
use crate::plan::{Goals, Measurement, Row};
use crate::quiet::Quiet;
use crate::report::Report;
use crate::shared::client;
use crate::stats::Samples;

const USAGE: &str =
    "usage: rnic-bench [--quick] [--repetitions N] [--seconds S] [--only TEXT] [--json FILE] [--plots DIR]
       rnic-bench --engine|--stages|--pings COUNT
       rnic-bench shared|isolation|sockets|esp [--quick] [--repetitions N] [--seconds S] [--only TEXT] [--json FILE]
       rnic-bench instructions|fast-paths|impaired|box --help

  shared           measures a device that a real rnicd shares beside one that a client has alone, and beside the same way of
                   the frames with redirects that check nothing
  isolation        measures a client of a shared device beside neighbours: none, an honest one, hostile ones
  sockets          measures rnic over TCP sockets of the kernel beside itself over AF_XDP, and beside the kernel's TCP with
                   MPA's CRC and copy
  esp              measures rnic protected by ESP beside itself in the clear, and beside raw AF_XDP that seals and opens

  --quick          one short repetition: shows that everything works, not how fast
  --repetitions N  of each measurement, alternating (default 7)
  --seconds S      length of a bandwidth measurement (default 0.5)
  --only TEXT      measurements whose name contains it (raw, tcp, mpa, write, send, bw, lat, rate, engine)
  --json FILE      writes the results there too
  --plots DIR      draws goodput and round trips over message size there, as SVG
  --engine N       only runs N batches of 64 segments through the engine, for a profiler
  --stages N       the same through each stage, then through the engine
  --fast-paths F   with --engine or --stages: all (the default), none, or all but the one that is named
  --pings N        only N round trips of Writes of 64 octets, one core, for a profiler; beside it N of raw AF_XDP

Needs root: it makes two network namespaces joined by a veth pair, and removes them.";

/// Turns of each in `--pings`.
const PARTS: usize = 10;

struct Options {
    repetitions: usize,
    effort: Effort,
    quick: bool,
    only: Option<String>,
    json: Option<PathBuf>,
    plots: Option<PathBuf>,
    engine: Option<usize>,
    stages: Option<usize>,
    pings: Option<usize>,
    fast_paths: FastPaths,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let commands = [
        "instructions",
        "fast-paths",
        "impaired",
        "box",
        "shared",
        "isolation",
        "sockets",
        "esp",
        client::COMMAND,
    ];
    let command = arguments.next_if(|first| commands.contains(&first.as_str()));
    match command.as_deref() {
        Some("instructions") => execute(
            instructions::Options::parse(arguments),
            instructions::USAGE,
            |options| match &options.arm {
                Some(program) => emulated::run(options.action, program),
                None => instructions::run(options.action),
            },
        ),
        Some("fast-paths") => execute(
            fast_paths::options(arguments),
            fast_paths::USAGE,
            fast_paths::run,
        ),
        Some("impaired") => execute(
            impaired::ImpairedOptions::parse(arguments),
            impaired::USAGE,
            impaired::run,
        ),
        Some("shared") => execute(parse(arguments), USAGE, |options| {
            measure(options, &Bed::new()?, plan::sharing()?, plan::SHARING_GOALS)
        }),
        Some("isolation") => execute(parse(arguments), USAGE, |options| {
            measure(
                options,
                &Bed::new()?,
                plan::isolation()?,
                plan::ISOLATION_GOALS,
            )
        }),
        Some("sockets") => execute(parse(arguments), USAGE, |options| {
            let plan = plan::sockets(options.effort.connections);
            measure(options, &Bed::new()?, plan, plan::SOCKETS_GOALS)
        }),
        Some("esp") => execute(parse(arguments), USAGE, |options| {
            let bed = Bed::new()?;
            bed.protect()?;
            measure(options, &bed, plan::protection(), plan::PROTECTION_GOALS)
        }),
        // A process that `shared` and `isolation` start.
        Some(client::COMMAND) => {
            execute(client::ClientOptions::parse(arguments), USAGE, client::run)
        }
        Some(_) => execute(
            impaired::ImpairedOptions::parse(arguments),
            impaired::USAGE,
            impaired::run_box,
        ),
        None => execute(parse(arguments), USAGE, run),
    }
}

/// Runs what the command line asks for. `None` asks for help.
fn execute<O>(
    options: Result<Option<O>, Failure>,
    usage: &str,
    command: impl FnOnce(&O) -> Result<(), Failure>,
) -> ExitCode {
    let options = match options {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{usage}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("rnic-bench: {error}\n{usage}");
            return ExitCode::from(2);
        }
    };
    match command(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rnic-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, Failure> {
    let mut options = Options {
        repetitions: 7,
        effort: Effort {
            duration: Duration::from_millis(500),
            round_trips: 20_000,
            batches: 4_000,
            connections: 10_000,
        },
        quick: false,
        only: None,
        json: None,
        plots: None,
        engine: None,
        stages: None,
        pings: None,
        fast_paths: FastPaths::ALL,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--quick" => {
                options.repetitions = 1;
                options.quick = true;
                options.effort = Effort {
                    duration: Duration::from_millis(50),
                    round_trips: 500,
                    batches: 100,
                    connections: 1_000,
                };
            }
            "--repetitions" => options.repetitions = value()?.parse()?,
            "--seconds" => {
                options.effort.duration = Duration::try_from_secs_f64(value()?.parse()?)?
            }
            "--only" => options.only = Some(value()?),
            "--json" => options.json = Some(value()?.into()),
            "--plots" => options.plots = Some(value()?.into()),
            "--engine" => options.engine = Some(value()?.parse()?),
            "--stages" => options.stages = Some(value()?.parse()?),
            "--fast-paths" => options.fast_paths = fast_paths::parse(&value()?)?,
            "--pings" => options.pings = Some(value()?.parse()?),
            "-h" | "--help" => return Ok(None),
            other => return Err(format!("{other} is not an option").into()),
        }
    }
    Ok(Some(options))
}

fn run(options: &Options) -> Result<(), Failure> {
    if let Some(batches) = options.engine {
        engine::Pair::connect(
            1,
            engine::Kind::Write,
            engine::Timing::Virtual,
            options.fast_paths,
        )?
        .measure(batches);
        return Ok(());
    }
    if let Some(batches) = options.stages {
        return instructions::run_batches(batches, options.fast_paths);
    }
    let bed = Bed::new()?;
    if let Some(round_trips) = options.pings {
        return play(
            &bed,
            Effort {
                round_trips,
                ..options.effort
            },
        );
    }
    let plan = plan::everything(options.effort.connections)?;
    measure(options, &bed, plan, plan::GOALS)
}

/// Measures what is wanted of a plan, in turn, and reports it.
fn measure(
    options: &Options,
    bed: &Bed,
    mut plan: Vec<Measurement>,
    goals: Goals,
) -> Result<(), Failure> {
    let mut machine = machine::describe();
    let wanted = |row: &Row| {
        bed.allows(row.cores)
            && options
                .only
                .as_ref()
                .is_none_or(|only| row.key.id.contains(only))
    };
    plan.retain(|measurement| measurement.rows.iter().any(wanted));
    let mut quiet = match options.quick {
        true => None,
        false => Some(Quiet::survey(bed)?),
    };
    for repetition in 1..=options.repetitions {
        for measurement in &mut plan {
            measurement.repeat(bed, &options.effort, quiet.as_mut())?;
        }
        eprintln!("repetition {repetition} of {} done", options.repetitions);
    }
    machine.extend(quiet.map(|quiet| ("others", quiet.describe())));
    let rows: Vec<_> = plan
        .iter()
        .flat_map(|measurement| &measurement.rows)
        .collect();
    let report = Report {
        machine: &machine,
        repetitions: options.repetitions,
        rows: &rows,
        goals,
    };
    print!("{}", report.table());
    if let Some(file) = &options.json {
        let text = format!("{:#}\n", report.json());
        std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if let Some(directory) = &options.plots {
        report.write_plots(directory)?;
    }
    Ok(())
}

/// Measures round trips alone, in short turns, so that a disturbance hits all.
fn play(bed: &Bed, effort: Effort) -> Result<(), Failure> {
    let shape = Shape {
        cores: Cores::One,
        mtu: 1500,
        size: PING,
    };
    let part = Effort {
        round_trips: effort.round_trips / PARTS,
        ..effort
    };
    let mut ratios = Samples::default();
    for _ in 0..PARTS {
        let raw = raw::latency(bed, shape, &part, raw::Work::None)?.median;
        let write = rdma::write_latency(bed, shape, &part)?.median;
        println!("raw {raw:.2} us, Write {write:.2} us");
        ratios.push(write / raw);
    }
    println!("median of the ratios {:.3}", ratios.median());
    Ok(())
}
