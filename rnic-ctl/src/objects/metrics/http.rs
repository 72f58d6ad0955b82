//! HTTP, as far as a scraper needs it: one request of a connection, and its reply.

use httparse::{EMPTY_HEADER, Request, Status};

/// The most octets of a request.
pub(super) const MAX_OCTETS: usize = 8 << 10;
/// The most header fields of a request.
const MAX_FIELDS: usize = 64;
/// The type of the text format of Prometheus.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The metrics.
    Metrics {
        /// Not only the header.
        body: bool,
    },
    /// Something else, which is refused.
    No(Refusal),
}

/// Why a request is refused: the status, and a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal(&'static str, &'static str);

const MALFORMED: Refusal = Refusal("400 Bad Request", "this is no HTTP request");
const NOT_FOUND: Refusal = Refusal("404 Not Found", "there is nothing but /metrics here");
const NOT_ALLOWED: Refusal = Refusal("405 Method Not Allowed", "there is nothing but GET here");
const TOO_LONG: Refusal = Refusal(
    "431 Request Header Fields Too Large",
    "the request is longer than any of a scraper",
);

/// Reads a request. It is `None` if there must be more of it.
pub(super) fn read(octets: &[u8]) -> Option<Asked> {
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut request = Request::new(&mut fields);
    let parsed = request.parse(octets);
    match parsed {
        Ok(Status::Partial) if octets.len() < MAX_OCTETS => None,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => Some(Asked::No(TOO_LONG)),
        Err(_) => Some(Asked::No(MALFORMED)),
        Ok(Status::Complete(_)) => {
            let target = request.path.unwrap_or_default();
            let path = target.split('?').next();
            Some(match (request.method, path) {
                (_, path) if path != Some("/metrics") => Asked::No(NOT_FOUND),
                (Some("GET"), _) => Asked::Metrics { body: true },
                (Some("HEAD"), _) => Asked::Metrics { body: false },
                _ => Asked::No(NOT_ALLOWED),
            })
        }
    }
}

/// Returns the reply with the metrics.
pub(super) fn metrics(text: &str, body: bool) -> Vec<u8> {
    reply("200 OK", TEXT_FORMAT, text, body)
}

/// Returns the reply to what is refused.
pub(super) fn refusal(Refusal(status, why): Refusal) -> Vec<u8> {
    reply(status, "text/plain", &format!("{why}\n"), true)
}

/// Returns the reply if there are no metrics.
pub(super) fn failure(why: &str) -> Vec<u8> {
    reply(
        "500 Internal Server Error",
        "text/plain",
        &format!("{why}\n"),
        true,
    )
}

fn reply(status: &str, kind: &str, text: &str, body: bool) -> Vec<u8> {
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n"
    );
    (head + if body { text } else { "" }).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_when_they_are_whole() {
        let whole = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), None, "{end}");
        }
        assert_eq!(read(whole), Some(Asked::Metrics { body: true }));
    }

    #[test]
    fn what_is_not_served_is_refused() {
        let long = format!("GET /metrics HTTP/1.1\r\nA: {}", "a".repeat(MAX_OCTETS));
        let many = format!(
            "GET /metrics HTTP/1.1\r\n{}\r\n",
            "A: a\r\n".repeat(MAX_FIELDS + 1)
        );
        for (request, refusal) in [
            ("GET / HTTP/1.1\r\n\r\n", NOT_FOUND),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", NOT_FOUND),
            ("POST /metrics HTTP/1.1\r\n\r\n", NOT_ALLOWED),
            ("\u{1}\r\n\r\n", MALFORMED),
            ("GET /metrics HTTP/9\r\n\r\n", MALFORMED),
            ("GET /metrics HTTP/1.1\r\na b: c\r\n\r\n", MALFORMED),
            (&long, TOO_LONG),
            (&many, TOO_LONG),
        ] {
            assert_eq!(
                read(request.as_bytes()),
                Some(Asked::No(refusal)),
                "{request}"
            );
        }
    }

    #[test]
    fn a_reply_says_how_long_it_is() {
        let said = |body| String::from_utf8(metrics("rnic_up 1\n", body)).unwrap();
        assert!(said(true).starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(said(true).ends_with("\r\n\r\nrnic_up 1\n"));
        assert!(said(false).contains("Content-Length: 10\r\n"));
        assert!(said(false).ends_with("\r\n\r\n"));
    }
}
