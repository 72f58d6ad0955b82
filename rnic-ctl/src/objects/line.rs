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

/// An object. A key with a dot in it, such as "kernel.mtu", is "kernel_mtu" in text, and in JSON "mtu" in the object "kernel".
#[derive(Clone, Debug, Default)]
pub(super) struct Line(Vec<(String, Value, Shown)>);

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
        words.collect::<Vec<_>>().join(" ")
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
        object
    }
}

/// Returns a value in a form that is safe on a terminal, and that can be told from the key behind it.
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
