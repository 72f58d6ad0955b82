//! The steps of a plan. In each one the responder says that it is ready and where its memory is,
//! the requester does what the step says, and tells the responder when it is done; then the
//! responder looks at every octet. A step that ends the connection has neither: both sides wait for
//! the end.

use rnic_verbs::{Mr, RemoteAddress, SendRequest, Sge, Stag};

use crate::outcome::Outcome;
use crate::plan::{Key, Layout, Operation, Step};
use crate::side::{PATIENCE, Side, wait};

pub(crate) fn play(side: &mut Side, step: &Step) -> Outcome {
    let played = if step.mine {
        request(side, step)
    } else {
        respond(side, step)
    };
    played.map_err(|why| format!("step {}: {why}", step.number).into())
}

/// Puts the data of a step where a layout has them, or clears that memory.
fn paint(memory: &Mr, layout: &Layout, seed: Option<u32>) -> Outcome {
    Ok(memory.write(0, &layout.image(seed))?)
}

/// Returns whether memory holds the data of a step, or none, and nothing else.
fn holds(memory: &Mr, layout: &Layout, seed: Option<u32>) -> Outcome<bool> {
    let mut octets = vec![0; layout.extent()];
    memory.read(0, &mut octets)?;
    Ok(octets == layout.image(seed))
}

fn check(memory: &Mr, layout: &Layout, step: &Step, what: &str) -> Outcome {
    if !holds(memory, layout, Some(step.number))? {
        return Err(format!("wrong octets in the {what}").into());
    }
    Ok(())
}

fn request(side: &mut Side, step: &Step) -> Outcome {
    let layout = step.request_layout();
    let there = side.receive_control(step.number)?;
    if step.reads_nothing() && side.receive()?.byte_len() != 0 {
        return Err("expected an empty message".into());
    }
    let is_read = step.operation == Operation::Read;
    paint(&side.source, &layout, (!is_read).then_some(step.number))?;
    post(side, step, aimed(step, there))?;
    for index in 0..step.count as u64 {
        let completion = wait(&mut side.send_cq)?;
        if completion.wr_id() != index || !(step.ends || completion.is_success()) {
            return Err(format!("request {index}: {completion:?}").into());
        }
        if step.ends {
            println!("completion={:?}", completion.status());
        }
    }
    if step.ends {
        println!("end={}", side.wait_for_the_end()?);
        return Ok(());
    }
    if is_read {
        check(&side.source, &layout, step, "memory read into")?;
    }
    side.send_control(step.number, None)
}

/// Returns the address of the peer's memory that the step names.
fn aimed(step: &Step, there: RemoteAddress) -> RemoteAddress {
    let stag = there.stag.0;
    RemoteAddress {
        offset: if step.absolute { 0 } else { there.offset }.wrapping_add_signed(step.at),
        stag: Stag(match step.key {
            Key::Good => stag,
            // No memory has this STag: STags are random.
            Key::Wrong => 0x5a5a_5a5a,
            Key::Stale => stag & !0xff | stag.wrapping_add(1) & 0xff,
        }),
    }
}

fn post(side: &mut Side, step: &Step, there: RemoteAddress) -> Outcome {
    let layout = step.request_layout();
    for index in 0..step.count {
        let pieces: Vec<Sge> = layout
            .cut(index)
            .iter()
            .map(|&(at, length)| side.source.sge(at, length as u32))
            .collect();
        let mut octets = vec![0; if step.inline { step.length } else { 0 }];
        if step.inline {
            side.source.read(layout.cut(index)[0].0, &mut octets)?;
        }
        let at = RemoteAddress {
            offset: there.offset.wrapping_add((index * step.length) as u64),
            ..there
        };
        let request = match step.operation {
            Operation::Write => SendRequest::write(at),
            Operation::Read => SendRequest::read(at),
            Operation::Send {
                invalidates: true, ..
            } => SendRequest::send_invalidate(there.stag),
            Operation::Send { .. } => SendRequest::send(),
        };
        let request = request.wr_id(index as u64);
        let request = if step.is_solicited() {
            request.solicited()
        } else {
            request
        };
        side.qp.post_send(&if step.inline {
            request.inline(&octets)
        } else {
            request.memory(&pieces)
        })?;
    }
    Ok(())
}

fn respond(side: &mut Side, step: &Step) -> Outcome {
    let layout = step.response_layout();
    let is_read = step.operation == Operation::Read;
    let memory = if step.is_send() {
        &side.inbox
    } else {
        &side.target
    };
    paint(memory, &layout, is_read.then_some(step.number))?;
    if step.is_solicited() {
        // From here on only a solicited message notifies. Notifications of earlier messages are
        // taken first.
        side.recv_cq.acknowledge();
        side.recv_cq.arm(true);
    }
    let here = side.describe(step)?;
    if let Err(why) = side.send_control(step.number, Some(here)) {
        // The answer to the message can end the connection before the message counts as sent.
        return if step.ends {
            respond_to_the_end(side, step, &layout)
        } else {
            Err(why)
        };
    }
    if step.reads_nothing() {
        side.send(&[])?;
    }
    if step.ends {
        return respond_to_the_end(side, step, &layout);
    }
    if step.is_solicited() && !side.recv_cq.wait_notified(PATIENCE)? {
        return Err("no solicited event".into());
    }
    if step.is_send() {
        receive_data(side, step, here.stag)?;
    }
    side.receive_control(step.number)?;
    match step.operation {
        Operation::Write => check(&side.target, &layout, step, "memory written to"),
        Operation::Read => Ok(()),
        Operation::Send { .. } => check(&side.inbox, &layout, step, "message"),
    }
}

fn receive_data(side: &mut Side, step: &Step, stag: Stag) -> Outcome {
    for _ in 0..step.count {
        let completion = side.receive()?;
        let invalidated = step.invalidates().then_some(stag);
        if completion.byte_len() as usize != step.length
            || completion.is_solicited() != step.is_solicited()
            || completion.invalidated() != invalidated
        {
            return Err(format!("received {completion:?}").into());
        }
    }
    if step.invalidates() && !side.is_once_invalid() {
        return Err("the STag is valid still".into());
    }
    Ok(())
}

fn respond_to_the_end(side: &mut Side, step: &Step, layout: &Layout) -> Outcome {
    println!("end={}", side.wait_for_the_end()?);
    for status in side.rest_of_receives()? {
        println!("received={status:?}");
    }
    let memory = if step.is_send() {
        &side.inbox
    } else {
        &side.target
    };
    if step.operation != Operation::Read {
        println!("untouched={}", u8::from(holds(memory, layout, None)?));
    }
    Ok(())
}
