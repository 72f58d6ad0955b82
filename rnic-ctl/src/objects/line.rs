//! An object as a line of text, as `rdma` prints it ("key value key value"), or as JSON.

use serde_json::{Map, Value};

use crate::out::printable;

/// When text has a value. JSON has all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Always,
    /// With `-d`.
    InDetail,
    /// With `-d`, or if it is not zero.
    UnlessZero,
}

/// Where text has a part of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Behind the rest, and behind its own name.
    Behind,
    /// With `-d`, on a line of its own.
    Below,
    /// The same, in other words.
    BelowAs(String),
}

/// An object. A key with a dot in it, such as "kernel.mtu", is "kernel_mtu" in text, and in JSON
/// "mtu" in the object "kernel".
#[derive(Clone, Debug, Default)]
pub(super) struct Line(
    Vec<(String, Value, Shown)>,
    Vec<(&'static str, Line, Place)>,
);

impl Line {
    /// Adds a value. Text has none that is null.
    pub(super) fn with(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.add(key, value, Shown::Always)
    }

    /// Adds a value that text has with `-d`.
    pub(super) fn detail(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.add(key, value, Shown::InDetail)
    }

    /// Adds a number that text has with `-d`, or if it is not zero.
    pub(super) fn unless_zero(self, key: impl Into<String>, value: u64) -> Self {
        self.add(key, value, Shown::UnlessZero)
    }

    /// Leaves values out.
    pub(super) fn without(mut self, keys: &[&str]) -> Self {
        self.0.retain(|(key, _, _)| !keys.contains(&key.as_str()));
        self
    }

    /// Adds an object that is part of this one, such as what somebody else says.
    pub(super) fn behind(mut self, name: &'static str, part: Line) -> Self {
        self.1.push((name, part, Place::Behind));
        self
    }

    /// Adds an object that is part of this one, of which text has a line of its own with `-d`.
    pub(super) fn below(mut self, name: &'static str, part: Line) -> Self {
        self.1.push((name, part, Place::Below));
        self
    }

    /// Adds an object that is part of this one, of which text has these words on a line of its own
    /// with `-d`.
    pub(super) fn below_as(mut self, name: &'static str, part: Line, words: &str) -> Self {
        let words = Place::BelowAs(printable(words));
        self.1.push((name, part, words));
        self
    }

    fn add(mut self, key: impl Into<String>, value: impl Into<Value>, shown: Shown) -> Self {
        self.0.push((key.into(), value.into(), shown));
        self
    }

    /// Returns the line of text.
    pub(super) fn text(&self, details: bool) -> String {
        let is_shown = |value: &Value, shown| match shown {
            _ if value.is_null() => false,
            Shown::Always => true,
            Shown::InDetail => details,
            Shown::UnlessZero => details || *value != 0,
        };
        let shown = self.0.iter();
        let shown = shown.filter(|(_, value, shown)| is_shown(value, *shown));
        let words =
            shown.map(|(key, value, _)| format!("{} {}", key.replace('.', "_"), word(value)));
        let mut text = words.collect::<Vec<_>>().join(" ");
        for (name, part, place) in &self.1 {
            match place {
                Place::Behind => text.push_str(&format!(" {name}: {}", part.text(details))),
                Place::Below if details => text.push_str(&format!("\n\t{}", part.text(details))),
                Place::BelowAs(words) if details => text.push_str(&format!("\n\t{words}")),
                Place::Below | Place::BelowAs(_) => {}
            }
        }
        text
    }

    /// Returns the object as JSON.
    pub(super) fn json(&self) -> Value {
        let mut object = Value::Object(Map::new());
        for (key, value, _) in &self.0 {
            // Indexing makes the objects on the way.
            let slot = key
                .split('.')
                .fold(&mut object, |object, key| &mut object[key]);
            *slot = value.clone();
        }
        for (name, part, _) in &self.1 {
            object[*name] = part.json();
        }
        object
    }
}

/// Returns a value in a form that is safe on a terminal, and that can be told from the key behind
/// it.
fn word(value: &Value) -> String {
    match value {
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::String(text) => {
            let text = printable(text);
            let is_word = !text.is_empty() && !text.contains([' ', '"', '\\']);
            if is_word { text } else { format!("{text:?}") }
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line::default()
            .with("port", 7)
            .with("program", "a b")
            .with("up", true)
            .with("gone", Value::Null)
            .detail("kernel.mtu", 1500)
            .detail("kernel.up", false)
            .unless_zero("sent.rate.frames", 0)
            .unless_zero("sent.to_nic.frames", 3)
    }

    #[test]
    fn text_has_details_on_request() {
        let brief = r#"port 7 program "a b" up yes sent_to_nic_frames 3"#;
        assert_eq!(line().text(false), brief);
        let whole = r#"port 7 program "a b" up yes kernel_mtu 1500 kernel_up no sent_rate_frames 0 sent_to_nic_frames 3"#;
        assert_eq!(line().text(true), whole);
    }

    #[test]
    fn json_has_everything() {
        assert_eq!(
            line().json().to_string(),
            r#"{"port":7,"program":"a b","up":true,"gone":null,"kernel":{"mtu":1500,"up":false},"sent":{"rate":{"frames":0},"to_nic":{"frames":3}}}"#
        );
    }

    #[test]
    fn parts_stand_behind_or_below() {
        let part = || Line::default().with("rtt", 7).detail("mss", 9);
        let said = Line::default().with("qpn", 1).below("tcp", part());
        let line = Line::default().with("port", 7).behind("client", said);
        assert_eq!(line.text(false), "port 7 client: qpn 1");
        assert_eq!(line.text(true), "port 7 client: qpn 1\n\trtt 7 mss 9");
        let json = r#"{"port":7,"client":{"qpn":1,"tcp":{"rtt":7,"mss":9}}}"#;
        assert_eq!(line.json().to_string(), json);
        let line = Line::default()
            .with("qpn", 1)
            .below_as("tcp", part(), "rtt:7\u{1b}");
        assert_eq!(
            (line.text(false), line.text(true)),
            ("qpn 1".into(), "qpn 1\n\trtt:7\\u{1b}".into())
        );
        assert_eq!(
            line.json().to_string(),
            r#"{"qpn":1,"tcp":{"rtt":7,"mss":9}}"#
        );
    }

    #[test]
    fn what_a_client_calls_itself_cannot_steer_a_terminal() {
        for (said, printed) in [
            ("", r#""""#),
            ("rping", "rping"),
            ("a\u{1b}[2J", r#""a\\u{1b}[2J""#),
            ("x port 9", r#""x port 9""#),
            ("\"", r#""\"""#),
        ] {
            assert_eq!(
                Line::default().with("program", said).text(false),
                format!("program {printed}")
            );
        }
    }
}
