//! `rnic-ctl metrics --listen` as local users reach it, honest ones and others. No rnicd runs here:
//! `rnic_up` is 0.

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio, id};
use std::time::Duration;

use common::text;

/// The longest time that anything may take, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(120);
const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn command(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic-ctl"));
    command.arg("metrics").args(line.split_whitespace());
    command.env("RNICD_SOCKET", "/nowhere");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// An exporter, and where it listens.
struct Exporter {
    child: Child,
    place: String,
}

impl Exporter {
    fn start(listen: &str) -> Self {
        let mut child = command(&format!("--listen {listen}")).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let place = line.strip_prefix("listening on ").expect("it listens");
        let place = place.trim_end().to_owned();
        Self { child, place }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.place).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Asks as a scraper does.
    fn scrape(&self) -> String {
        let mut stream = self.connect();
        stream.write_all(REQUEST).unwrap();
        rest(stream)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What comes until the other end closes, in order or by a reset.
fn rest(mut stream: TcpStream) -> String {
    let mut octets = Vec::new();
    if let Err(error) = stream.read_to_end(&mut octets) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    text(&octets)
}

fn assert_metrics(reply: &str) {
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    assert!(
        reply.contains("\r\nContent-Type: text/plain; version=0.0.4"),
        "{reply}"
    );
    assert!(reply.ends_with("\nrnic_up 0\n"), "{reply}");
}

fn curl(args: &[&str]) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--include"])
        .args(args);
    curl.output().expect("curl is installed")
}

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("rnic-metrics-{}-{name}", id()))
}

#[test]
fn without_rnicd_the_metrics_say_so() {
    let output = command("").output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(
        stdout.ends_with("# TYPE rnic_up gauge\nrnic_up 0\n"),
        "{stdout}"
    );
    assert!(
        stderr.contains("rnic_up is 0: no rnicd listens at /nowhere"),
        "{stderr}"
    );
}

#[test]
fn curl_gets_them_over_tcp_and_over_a_unix_socket() {
    let exporter = Exporter::start("127.0.0.1:0");
    let url = format!("http://{}/metrics", exporter.place);
    assert_metrics(&text(&curl(&[&url]).stdout));
    let head = text(&curl(&["--head", &url]).stdout);
    assert!(
        head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    let other = text(&curl(&[&format!("http://{}/", exporter.place)]).stdout);
    assert!(other.starts_with("HTTP/1.1 404 "), "{other}");
    let post = text(&curl(&["--data", "x", &url]).stdout);
    assert!(post.starts_with("HTTP/1.1 405 "), "{post}");

    let path = socket("curl");
    let at_path = Exporter::start(&format!("unix:{}", path.display()));
    let path = path.to_str().unwrap();
    let reply = curl(&["--unix-socket", path, "http://localhost/metrics"]);
    assert_metrics(&text(&reply.stdout));
    drop(at_path);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn many_half_requests_keep_nobody_out() {
    let exporter = Exporter::start("127.0.0.1:0");
    // Many more than it keeps, and none of them ends.
    let slow = (0..300).map(|_| {
        let mut stream = exporter.connect();
        // It may have been closed for the next one already.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nA: ");
        stream
    });
    let slow: Vec<_> = slow.collect();
    assert_metrics(&exporter.scrape());
    // All are closed in the end, the last ones because their time is over, and none gets a reply.
    for stream in slow {
        assert_eq!(rest(stream), "");
    }
    assert_metrics(&exporter.scrape());
}

#[test]
fn long_and_broken_requests_are_refused() {
    let exporter = Exporter::start("127.0.0.1:0");
    let long = format!(
        "GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n",
        "a".repeat(1 << 20)
    );
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: a\r\n".repeat(65));
    let endless = "a".repeat(9000);
    for (request, status) in [
        (long.as_str(), "431"),
        (&many, "431"),
        (&endless, "431"),
        ("\x16\x03\x01\x02\r\n\r\n", "400"),
        ("GET /metrics\r\n\r\n", "400"),
        ("GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", "400"),
    ] {
        let mut stream = exporter.connect();
        // It replies before it has read all of a long one.
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let reply = rest(stream);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
    }
    assert_metrics(&exporter.scrape());
}

#[test]
fn it_listens_at_loopback_unless_told_otherwise() {
    let refused = command("--listen 0.0.0.0:0").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let said = text(&refused.stderr);
    assert!(said.contains("--reachable-from-network"), "{said}");
    let _allowed = Exporter::start("0.0.0.0:0 --reachable-from-network");
}

#[test]
fn a_socket_that_nobody_serves_is_no_obstacle() {
    let path = socket("stale");
    let listen = format!("unix:{}", path.display());
    // Killed, it leaves its socket.
    drop(Exporter::start(&listen));
    assert!(path.exists());
    let mut exporter = Exporter::start(&listen);
    let second = command(&format!("--listen {listen}")).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = text(&second.stderr);
    assert!(said.contains("Address already in use"), "{said}");
    // A signal ends it in order.
    let pid = exporter.child.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(killed.unwrap().success());
    assert!(exporter.child.wait().unwrap().success());
    assert!(!path.exists());
}
