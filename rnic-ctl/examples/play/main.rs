//! Plays a plan with a siw peer at the other end (`ci/guest/siw-play`): every operation, many
//! sizes, errors. It is a part of `ci/interop`, and not for users.
//!
//! It and `ci/guest/siw-play` implement the language of the plans twice, in Rust over rnic-verbs
//! and in C over libibverbs, so that neither side's mistake in it hides the other's. A change to
//! the language goes to both, and to `ci/lib/play.py`.
//!
//! ```text
//! play NETDEV connect ADDRESS:PORT PLAN    initiates the plan's connections, one after the other
//! play NETDEV listen ADDRESS:PORT PLAN     responds to them
//! ```
//!
//! Prints one `name=value` line for each result; exit code 0 if all went as planned.

// From the ground up: outcome < plan < side < step.
mod outcome;
mod plan;
mod side;
mod step;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use rnic_verbs::{ConnectError, ConnectionOptions, Device, Established, Listener, ReadDepths};

use outcome::Outcome;
use plan::{Connection, pattern};
use side::{Memory, PATIENCE, Side};

/// A siw responder can overlook FPDUs that come sooner after its MPA Reply.
const FIRST_FPDU_DELAY: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("failed={why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [netdev, role, address, plan] = words.as_slice() else {
        return Err("usage: play NETDEV connect|listen ADDRESS:PORT PLAN".into());
    };
    let address: SocketAddr = address.parse()?;
    let connections = plan::read(&std::fs::read_to_string(plan)?, "ours")?;
    let device = Device::open(netdev)?;
    let memory = Memory::new()?;
    let listener = match role.as_str() {
        "listen" => Some(device.listen(address)?),
        "connect" => None,
        _ => return Err(format!("no role '{role}'").into()),
    };
    if listener.is_some() {
        println!("listening={address}");
    }
    for (number, connection) in connections.iter().enumerate() {
        println!("connection={number}");
        if listener.is_some() && connection.refused {
            continue;
        }
        let mut side = Side::new(&device, &memory, connection)?;
        let stands = match &listener {
            Some(listener) => respond(&mut side, listener, connection)?,
            None => initiate(&mut side, address, connection)?,
        };
        if stands {
            let played = play(&mut side, connection, listener.is_none());
            if played.is_err() {
                println!("then={:?}", side.qp.next_event(Duration::from_secs(1))?);
            }
            played?;
        }
    }
    println!("done={}", connections.len());
    Ok(())
}

fn private_data(length: usize) -> Vec<u8> {
    (0..length).map(|i| pattern(length as u32, i)).collect()
}

fn check_private_data(got: &[u8], length: usize) -> Outcome {
    if got != private_data(length) {
        return Err(format!(
            "{} octets of private data instead of {length}, or wrong ones: {got:x?}",
            got.len()
        )
        .into());
    }
    Ok(())
}

fn options(connection: &Connection, length: usize) -> ConnectionOptions {
    ConnectionOptions {
        mpa_revision: connection.revision,
        crc: connection.crc,
        ird: connection.ird,
        ord: connection.ord,
        peer_to_peer: connection.peer_to_peer,
        private_data: private_data(length),
        first_fpdu_delay: FIRST_FPDU_DELAY,
        connect_timeout: PATIENCE,
        ..ConnectionOptions::default()
    }
}

/// Connects. Returns whether the connection is established.
fn initiate(side: &mut Side, peer: SocketAddr, connection: &Connection) -> Outcome<bool> {
    let options = options(connection, connection.private_data);
    match side.qp.connect_blocking(peer, None, options) {
        Err(why) if connection.refused => {
            println!("refused={why}");
            Ok(false)
        }
        Ok(established) if !connection.reject => {
            check_private_data(&established.private_data, connection.reply)?;
            print_depths(&established);
            Ok(true)
        }
        Err(ConnectError::Rejected { private_data, .. }) if connection.reject => {
            check_private_data(&private_data, connection.reply)?;
            Ok(false)
        }
        Ok(_) => Err("the connection was accepted".into()),
        Err(why) => Err(why.into()),
    }
}

fn respond(side: &mut Side, listener: &Listener, connection: &Connection) -> Outcome<bool> {
    let request = listener.next_request(PATIENCE)?.ok_or("nobody connects")?;
    check_private_data(request.private_data(), connection.private_data)?;
    let options = options(connection, connection.reply);
    if connection.reject {
        request.reject(&options.private_data)?;
        return Ok(false);
    }
    request.accept(&mut side.qp, options)?;
    print_depths(&side.qp.wait_established(PATIENCE)?);
    Ok(true)
}

fn print_depths(established: &Established) {
    let peer = established
        .peer_depths
        .unwrap_or(ReadDepths { ird: 0, ord: 0 });
    println!(
        "depths={}/{} of {}/{}",
        established.ird, established.ord, peer.ird, peer.ord
    );
}

fn play(side: &mut Side, connection: &Connection, initiates: bool) -> Outcome {
    side.greet(initiates, initiates != connection.responder_greets)?;
    for step in &connection.steps {
        step::play(side, step)?;
    }
    if connection.steps.last().is_some_and(|step| step.ends) {
        return Ok(());
    }
    if initiates != connection.responder_closes {
        side.qp.disconnect()?;
    }
    println!("end={}", side.wait_for_the_end()?);
    Ok(())
}
