//! A key-value store whose clients read the values from the server's memory: the server's program
//! answers no get.
//!
//!     kv serve eth1 192.0.2.1:4420
//!     kv client eth1 192.0.2.1:4420     # reads lines such as "put colour blue" and "get colour"
//!
//! The hash table has buckets of four records, with the values in them: a get is one RDMA Read of a
//! bucket. A put is a Send of a record, which the server's program copies into the table, maybe
//! while a client reads it. Such a Read brings anything (RFC 5040 section 5.5, rule 8), old octets
//! and new ones in any mixture: no rule orders the octets of a Read, so version numbers around the
//! value would prove nothing. A checksum does, in whatever order they are taken; if it is wrong,
//! the client reads again. This relies on one rule alone, that a Read has brought its data when it
//! completes (rule 6), and on 64 bits that are not right by chance.

mod common;

use std::{sync::Mutex, time::Duration};

use common::{Outcome, PATIENCE, text};
use rnic_verbs::*;
use siphasher::sip::SipHasher13;

/// A record: a checksum of the rest, the hash of the key, and from octet 16 on the value, filled up
/// with zeros.
const RECORD: usize = 1024;
const VALUE: usize = 16;
const BUCKET: usize = 4 * RECORD;
const BUCKETS: usize = 1024;
const GEOMETRY: [u8; 4] = ((BUCKETS * BUCKET) as u32).to_be_bytes();

fn hash(octets: &[u8]) -> u64 {
    SipHasher13::new().hash(octets) // the same on every host, as the standard library's need not be
}

/// Returns whether a record is free, or is what one put has written.
fn is_whole(record: &[u8]) -> bool {
    record[..VALUE] == [0; VALUE] || record[..8] == hash(&record[8..]).to_be_bytes()
}

fn serve(netdev: &str, address: &str) -> Outcome<()> {
    // A thread drives the device: it answers Reads, and shows that this side lives, while the
    // program sleeps.
    let device = Device::open_with(&DeviceConfig::threaded(netdev))?;
    let pd = device.pd();
    // Whatever clients send, they can only read the table.
    let table = Mutex::new(pd.allocate(BUCKETS * BUCKET, Access::REMOTE_READ)?);
    let listener = device.listen(address.parse()?)?;
    println!("serving at {}", listener.local_address());
    std::thread::scope(|scope| {
        // The most queue pairs of the device are the most clients, and threads: further ones are
        // rejected.
        while let Some(request) = listener.next_request(Duration::MAX)? {
            scope.spawn(|| {
                let client = request.peer();
                let ended = serve_client(request, &pd, &table);
                ended.unwrap_or_else(|why| eprintln!("{client}: {why}"));
            });
        }
        Ok(())
    })
}

/// Carries out the puts of a client, until its connection ends: then the receive fails.
fn serve_client(request: ConnectRequest, pd: &Pd, table: &Mutex<Mr>) -> Outcome<()> {
    let lock = || table.lock().map_err(|_| "a put has panicked");
    let mut cq = pd.device().cq(16)?;
    let mut qp = pd.qp(&cq, &cq, QpCaps::default())?;
    // A client waits for the reply to a put. One that does not finds no receive, which ends its
    // connection.
    let inbox = pd.allocate(RECORD, Access::LOCAL_WRITE)?;
    let whole = [inbox.sge(0, RECORD as u32)];
    qp.post_recv(0, &whole)?;
    // The private data tell the client where the table is, and how large.
    let there = lock()?.remote(0).to_octets();
    let mut options = ConnectionOptions::with_patience(PATIENCE);
    options.private_data = [&there[..], &GEOMETRY].concat();
    request.accept(&mut qp, options)?;
    qp.wait_established(PATIENCE)?;
    while let Some(done) = cq.next_completion(Duration::MAX)? {
        let len = qp.check(done)?.byte_len();
        let record = inbox.copy(0, len as usize)?;
        qp.post_recv(0, &whole)?;
        let put = put(&*lock()?, &record);
        let reply = put.map_or_else(|why| why.to_string(), |()| "done".into());
        qp.post_send(&SendRequest::send().inline(reply.as_bytes()).unsignaled())?;
    }
    Ok(())
}

/// Copies a record into the table, which clients read at any moment.
fn put(table: &Mr, record: &[u8]) -> Outcome<()> {
    if record.len() != RECORD || !is_whole(record) {
        return Err("this is no record".into());
    }
    let key = u64::from_be_bytes(record[8..VALUE].try_into()?);
    let bucket = key as usize % BUCKETS * BUCKET;
    for place in (bucket..bucket + BUCKET).step_by(RECORD) {
        let there = table.copy(place + 8, 8)?;
        if there == [0; 8] || there == key.to_be_bytes() {
            return Ok(table.write(place, record)?);
        }
    }
    Err("the bucket of this key is full".into())
}

struct Client {
    qp: Qp,
    cq: Cq,
    table: RemoteAddress,
    /// A place for each bucket that may be read at once.
    memory: Mr,
}

impl Client {
    fn next(&mut self) -> Outcome<Completion> {
        let done = self.cq.next_completion(PATIENCE)?;
        Ok(self.qp.check(done.ok_or("the server does not answer")?)?)
    }

    /// Prints the values of as many keys as Reads may be outstanding. Returns the keys whose bucket
    /// a put was changing.
    fn get<'a>(&mut self, names: &[&'a str]) -> Outcome<Vec<&'a str>> {
        for (slot, name) in names.iter().enumerate() {
            let sink = [self.memory.sge(slot * BUCKET, BUCKET as u32)];
            let bucket = hash(name.as_bytes()) as usize % BUCKETS * BUCKET;
            let read = SendRequest::read(self.table.plus(bucket as u64));
            self.qp.post_send(&read.memory(&sink))?;
        }
        let mut torn = Vec::new();
        for (slot, name) in names.iter().enumerate() {
            self.next()?; // they complete in their order (rule 15)
            let bucket = self.memory.copy(slot * BUCKET, BUCKET)?;
            let (mut records, key) = (bucket.chunks(RECORD), hash(name.as_bytes()).to_be_bytes());
            let is_it = |record: &&[u8]| record[8..VALUE] == key && is_whole(record);
            match records.clone().find(is_it) {
                Some(record) => println!("{name} = {}", text(&record[VALUE..])),
                None if records.all(is_whole) => println!("{name} is not there"),
                None => torn.push(*name),
            }
        }
        Ok(torn)
    }

    fn put(&mut self, name: &str, value: &str) -> Outcome<()> {
        let mut record = [&hash(name.as_bytes()).to_be_bytes(), value.as_bytes()].concat();
        record.resize(RECORD - 8, 0);
        if value.len() > RECORD - VALUE {
            return Err("the value is too long".into());
        }
        self.memory.write(0, &hash(&record).to_be_bytes())?;
        self.memory.write(8, &record)?;
        let reply = [self.memory.sge(RECORD, DEFAULT_INLINE as u32)];
        self.qp.post_recv(0, &reply)?;
        let record = [self.memory.sge(0, RECORD as u32)];
        let put = SendRequest::send().memory(&record).unsignaled();
        self.qp.post_send(&put)?;
        // A Read that followed at once could be answered before the put is carried out (rule 18).
        let len = self.next()?.byte_len() as usize;
        println!("{}", text(&self.memory.copy(RECORD, len)?));
        Ok(())
    }
}

fn client(netdev: &str, address: &str) -> Outcome<()> {
    let device = Device::open_with(&DeviceConfig::threaded(netdev))?;
    let (pd, cq) = (device.pd(), device.cq(64)?);
    let mut qp = pd.qp(&cq, &cq, QpCaps::default())?;
    let options = ConnectionOptions::with_patience(PATIENCE);
    let server = qp.connect_blocking(address.parse()?, None, options)?;
    let there = server.private_data.strip_suffix(&GEOMETRY);
    let there = there.ok_or("the server has no table of this size")?;
    let table = RemoteAddress::from_octets(there.try_into()?);
    let depth = usize::from(server.ord).max(1);
    let memory = pd.allocate(depth * BUCKET, Access::LOCAL_WRITE)?;
    let mut client = Client {
        qp,
        cq,
        table,
        memory,
    };
    let mut again = 0;
    for line in std::io::stdin().lines() {
        match line?.split_whitespace().collect::<Vec<_>>()[..] {
            ["put", key, value] => client.put(key, value)?,
            ["get", ref keys @ ..] => {
                for keys in keys.chunks(depth) {
                    let mut left = keys.to_vec();
                    while !left.is_empty() {
                        left = client.get(&left)?;
                        again += left.len();
                    }
                }
            }
            _ => eprintln!("say put KEY VALUE, or get KEY..."),
        }
    }
    eprintln!("{again} Reads met a put");
    Ok(client.qp.close(PATIENCE).map(drop)?)
}

fn main() {
    common::run("kv serve|client NETDEV ADDRESS:PORT", |words| match words {
        ["serve", netdev, address] => Some(serve(netdev, address)),
        ["client", netdev, address] => Some(client(netdev, address)),
        _ => None,
    });
}
