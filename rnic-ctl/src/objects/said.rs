//! What clients say of themselves: anything, much of it, or nothing.

use std::time::Duration;

use rnic_manager::{Inspected, InspectionEnd, MAX_SAID};
use rnic_verbs::resource::Resource;
use serde::Serialize;
use serde_json::Value;

use super::line::Line;
use crate::out::printable;

/// The most characters of a word that a client says.
const MAX_CHARACTERS: usize = 64;
/// The most octets of a line: many times what any object takes.
const MAX_OCTETS: usize = 64 << 10;

/// Reads what a client says, object by object, and returns why it is not all, if it is not.
pub(super) fn read(
    answer: &Inspected,
    (what, within): (&str, Duration),
    mut each: impl FnMut(Resource),
) -> Option<String> {
    let mut fault = None;
    let mut lines = answer.said.split_inclusive(|&octet| octet == b'\n');
    let ended = loop {
        // The last line may be a part of one.
        let Some(line) = lines.next().and_then(|line| line.strip_suffix(b"\n")) else {
            break false;
        };
        if line.len() > MAX_OCTETS {
            return Some("what it says of an object is too long".to_owned());
        }
        match serde_json::from_slice(line) {
            Ok(Resource::End) => break true,
            Ok(Resource::Newer) => {}
            Ok(device @ Resource::Device(_)) => each(device),
            Ok(Resource::Unknown) => {
                fault = Some("its version of rnic does not know that".to_owned())
            }
            Ok(Resource::Idle { .. }) => fault = Some(idle(within)),
            Ok(resource) if kind(&resource) == what => each(resource),
            Ok(_) => return Some("it says what it was not asked for".to_owned()),
            Err(error) => {
                let error: String = error.to_string().chars().take(128).collect();
                return Some(format!("what it says is malformed: {error}"));
            }
        }
    };
    if !ended {
        fault = Some(broken(answer, within));
    }
    fault
}

fn idle(within: Duration) -> String {
    format!(
        "no answer within {} s; its program does not poll now, which alone drives its connections",
        within.as_secs_f64()
    )
}

/// Returns why an answer has no end.
fn broken(answer: &Inspected, within: Duration) -> String {
    let seconds = within.as_secs_f64();
    match (&answer.end, answer.said.is_empty()) {
        (InspectionEnd::Refused(refused), _) => refused.message.clone(),
        (InspectionEnd::NotAsked, _) => {
            "it was not asked: other clients that do not answer took all the time".to_owned()
        }
        (InspectionEnd::TimedOut, true) => {
            format!("no answer within {seconds} s; its process may be stopped")
        }
        (InspectionEnd::TimedOut, false) => {
            format!("its answer has no end within {seconds} s; --timeout gives it more time")
        }
        (InspectionEnd::TooLong, _) => format!("it says more than {} MiB", MAX_SAID >> 20),
        (InspectionEnd::Closed, true) => {
            "it gives no answer: it ends, or its version of rnic cannot be asked".to_owned()
        }
        (InspectionEnd::Closed, false) => "its answer breaks off".to_owned(),
    }
}

/// Returns what has to be asked for to hear of an object.
fn kind(resource: &Resource) -> &'static str {
    match resource {
        Resource::Summary(_) => "summary",
        Resource::Pd(_) => "pd",
        Resource::Mr(_) => "mr",
        Resource::Cq(_) => "cq",
        Resource::Qp(_) => "qp",
        Resource::Srq(_) => "srq",
        Resource::Listener(_) => "listener",
        Resource::Connection(_) => "connection",
        Resource::Device(_)
        | Resource::Idle { .. }
        | Resource::Unknown
        | Resource::End
        | Resource::Newer => "",
    }
}

/// Returns a word of a client in a form that is safe, and not too long.
pub(super) fn word(text: &str) -> String {
    let text: String = text.chars().take(MAX_CHARACTERS).collect();
    printable(&text)
}

/// Makes a line of the fields of an object, of which text has the others with `-d`.
pub(super) fn line(object: &impl Serialize, details: &[&str]) -> Line {
    let Ok(Value::Object(fields)) = serde_json::to_value(object) else {
        return Line::default();
    };
    fields
        .into_iter()
        .fold(Line::default(), |line, (key, value)| {
            let value = match value {
                Value::String(text) => word(&text).into(),
                other => other,
            };
            match details.contains(&key.as_str()) {
                true => line.detail(key, value),
                false => line.with(key, value),
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(2);

    fn heard(said: &[u8], end: InspectionEnd) -> (Vec<Resource>, Option<String>) {
        let said = said.to_vec();
        let answer = Inspected { said, end };
        let mut heard = Vec::new();
        let fault = read(&answer, ("pd", SOON), |one| heard.push(one));
        (heard, fault)
    }

    #[test]
    fn an_answer_is_whole_only_with_its_end() {
        let pd = "{\"type\":\"pd\",\"pdn\":1,\"users\":2,\"new\":[]}\n";
        let closed = |said: &str| heard(said.as_bytes(), InspectionEnd::Closed);
        let (said, fault) = closed(&format!(
            "{pd}{{\"type\":\"news\"}}\n{pd}{{\"type\":\"end\"}}\n"
        ));
        assert_eq!((said.len(), fault), (2, None));
        for (said, words) in [
            ("".to_owned(), "cannot be asked"),
            (pd.to_owned(), "breaks off"),
            (format!("{pd}{{\"type\":\"end\"}}"), "breaks off"),
            (format!("{pd}x\n"), "malformed"),
            (format!("{pd}\n"), "malformed"),
            (format!("{pd}{}\n", "[".repeat(70_000)), "too long"),
            (format!("{pd}{{\"type\":\"pd\",\"pdn\":-1}}\n"), "malformed"),
            (format!("{pd}{{\"type\":\"mr\"}}\n"), "not asked for"),
            (
                format!("{pd}{{\"type\":\"unknown\"}}\n{{\"type\":\"end\"}}\n"),
                "does not know",
            ),
            (
                format!("{pd}{{\"type\":\"idle\",\"engines\":1}}\n{{\"type\":\"end\"}}\n"),
                "does not poll",
            ),
        ] {
            let (heard, fault) = closed(&said);
            assert_eq!(heard.len(), usize::from(!said.is_empty()), "{said}");
            assert!(fault.unwrap().contains(words), "{said}");
        }
        for (end, words) in [
            (InspectionEnd::TimedOut, "no end within 2 s"),
            (InspectionEnd::TooLong, "more than 16 MiB"),
        ] {
            let (said, fault) = heard(pd.as_bytes(), end);
            assert!(said.len() == 1 && fault.unwrap().contains(words));
        }
        let (said, fault) = heard(b"", InspectionEnd::TimedOut);
        assert!(said.is_empty() && fault.unwrap().contains("may be stopped"));
    }

    #[test]
    fn words_of_a_client_are_short_and_harmless() {
        let wicked = "\u{1b}[2J\u{9b}\u{202e}".repeat(100);
        let resource = rnic_verbs::resource::MrResource {
            kind: wicked,
            ..Default::default()
        };
        let line = line(&resource, &[]);
        let json = line.json()["kind"].as_str().unwrap().to_owned();
        assert!(json.len() < 1000 && json.chars().all(|char| matches!(char, ' '..='~')));
    }
}
