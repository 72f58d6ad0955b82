//! The messages, as text.

use std::fmt::Debug;

use rnic_manager::protocol::{
    Answer, Ask, DecodeError, FromDaemon, MAX_MESSAGE, Message, Reason, Refused, Reply, Request,
};
use serde_json::{Value, json};

use crate::values::{TOKEN, from_daemon, grant, hello, requests};

fn agree<M: Message + PartialEq + Debug>(messages: Vec<(M, String)>) {
    for (message, json) in &messages {
        let octets = message.encode().unwrap();
        assert_eq!(str::from_utf8(&octets).unwrap(), json);
        assert_eq!(M::decode(&octets).as_ref(), Ok(message), "{json}");
    }
    for name in M::TYPES {
        let typed = format!(r#""type":"{name}""#);
        let has_it = messages.iter().any(|(_, json)| json.contains(&typed));
        assert!(has_it, "no test has a message of type {name}");
    }
}

#[test]
fn every_message_is_written_and_read() {
    agree(requests());
    agree(from_daemon());
}

/// Adds a field to each object within the value.
fn extend(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(extend);
            fields.insert("new in version 2".into(), json!({"type": "x", "id": -1}));
        }
        Value::Array(elements) => elements.iter_mut().for_each(extend),
        _ => {}
    }
}

fn unmoved_by_new_fields<M: Message + PartialEq + Debug>(messages: Vec<(M, String)>) {
    for (message, json) in messages {
        // An enum of the mode has no room for fields.
        if json.contains("generic") {
            continue;
        }
        let mut value = serde_json::from_str(&json).unwrap();
        extend(&mut value);
        assert_eq!(M::decode(value.to_string().as_bytes()), Ok(message));
    }
}

#[test]
fn fields_that_the_reader_does_not_know_are_passed_over() {
    unmoved_by_new_fields(requests());
    unmoved_by_new_fields(from_daemon());
}

#[test]
fn a_field_that_the_writer_does_not_know_has_a_default() {
    for (without, with) in [
        (
            r#"{"id":9,"type":"listen","port":7,"local":"0.0.0.0:7174"}"#,
            r#"{"id":9,"type":"listen","port":7,"local":"0.0.0.0:7174","peers":null}"#,
        ),
        (
            r#"{"id":9,"type":"connect","port":7,"remote":"192.0.2.2:7174"}"#,
            r#"{"id":9,"type":"connect","port":7,"remote":"192.0.2.2:7174","local":null}"#,
        ),
        (
            r#"{"id":9,"type":"show","what":"leases"}"#,
            r#"{"id":9,"type":"show","what":"leases","after":null}"#,
        ),
        (
            r#"{"id":9,"type":"remove_device","netdev":"eth1"}"#,
            r#"{"id":9,"type":"remove_device","netdev":"eth1","force":false}"#,
        ),
        (
            r#"{"id":9,"type":"set_user","user":"a","changes":[{"key":"rate"}]}"#,
            r#"{"id":9,"type":"set_user","user":"a","changes":[{"key":"rate","value":null}]}"#,
        ),
    ] {
        assert_eq!(decode(without), decode(with));
        decode(with).unwrap();
    }
}

fn decode(json: &str) -> Result<Request, DecodeError> {
    Request::decode(json.as_bytes())
}

/// What rnicd answers to a message that is none.
fn answer(json: &str) -> (u64, Refused) {
    match decode(json).unwrap_err().answer() {
        FromDaemon::Answer(Reply {
            id,
            answer: Answer::Refused(refused),
        }) => (id, refused),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_type_is_answered() {
    let (id, refused) = answer(r#"{"id":77,"type":"open_window\u001b[2J","pane":3}"#);
    assert_eq!((id, refused.reason), (77, Reason::Malformed));
    assert_eq!(
        refused.message,
        "messages of type \"open_window\\u{1b}[2J\" are unknown in version 3 of this protocol; upgrade the older one of rnicd \
         and its client"
    );
    // A client knows no request, and rnicd no answer.
    for (_, json) in requests() {
        let error = FromDaemon::decode(json.as_bytes()).unwrap_err();
        assert!(matches!(error, DecodeError::UnknownType { .. }), "{error}");
    }
    for (_, json) in from_daemon() {
        let error = decode(&json).unwrap_err();
        assert!(matches!(error, DecodeError::UnknownType { .. }), "{error}");
    }
}

#[test]
fn a_reason_that_is_new_is_any_other() {
    let json = r#"{"id":1,"type":"refused","reason":"too_late","message":"come earlier"}"#;
    let Ok(FromDaemon::Answer(Reply { answer, .. })) = FromDaemon::decode(json.as_bytes()) else {
        panic!("{:?}", FromDaemon::decode(json.as_bytes()));
    };
    let refused = Refused::new(Reason::Other, "come earlier");
    assert_eq!(answer, Answer::Refused(refused));
}

#[test]
fn what_makes_no_sense_is_refused_with_its_reason() {
    let long = "x".repeat(257);
    let many = vec!["::/0"; 1025];
    let changes = vec![json!({"key": "rate"}); 65];
    for (fields, reason) in [
        (json!({}), "it has no \"type\""),
        (json!({"type": 1}), "it has no \"type\""),
        (json!({"type": "hello"}), "missing field `version`"),
        (
            json!({"type": "hello", "version": -1, "program": ""}),
            "invalid value: integer `-1`, expected u32",
        ),
        (
            json!({"type": "hello", "version": 0, "program": ""}),
            "version is 0; a number from 1 to 4294967295 is needed",
        ),
        (
            json!({"type": "hello", "version": 1, "program": long}),
            "program has 257 octets; 256 are possible",
        ),
        (
            json!({"type": "hello", "version": 1, "program": "\u{1b}[2J"}),
            "program has control characters",
        ),
        (
            json!({"type": "open_port", "netdev": "../eth1", "rx_frames": 32, "tx_frames": 32, "tx_ring": 32}),
            "\"../eth1\" is no name of a network device",
        ),
        (
            json!({"type": "open_port", "netdev": "eth1", "rx_frames": 33, "tx_frames": 32, "tx_ring": 32}),
            "rx_frames is 33; a power of two from 32 to 1048576 is needed",
        ),
        (
            json!({"type": "open_port", "netdev": "eth1", "rx_frames": 32, "tx_frames": 2097152, "tx_ring": 32}),
            "tx_frames is 2097152; a power of two from 32 to 1048576 is needed",
        ),
        (
            json!({"type": "open_port", "netdev": "eth1", "rx_frames": 32, "tx_frames": 32, "tx_ring": 0}),
            "tx_ring is 0; a power of two from 32 to 1048576 is needed",
        ),
        (
            json!({"type": "listen", "port": 1, "local": "192.0.2.1"}),
            "invalid socket address syntax",
        ),
        (
            json!({"type": "listen", "port": 1, "local": "192.0.2.1:1", "peers": ["192.0.2.0/33"]}),
            "\"192.0.2.0/33\" is no address or prefix; 192.0.2.1, 192.0.2.0/24 and 2001:db8::/32 are some",
        ),
        (
            json!({"type": "listen", "port": 1, "local": "192.0.2.1:1", "peers": many}),
            "peers has 1025 elements; 1024 are possible",
        ),
        (
            json!({"type": "connect", "port": 1, "remote": "192.0.2.1:0"}),
            "no peer has TCP port 0: 192.0.2.1:0",
        ),
        (
            json!({"type": "adopt", "port": 1, "token": "1234"}),
            "a token has 32 hexadecimal digits",
        ),
        (
            json!({"type": "add_device", "netdev": "a b"}),
            "\"a b\" is no name of a network device",
        ),
        (
            json!({"type": "remove_device", "netdev": ""}),
            "\"\" is no name of a network device",
        ),
        (
            json!({"type": "set_device", "netdev": "eth1", "changes": [{"key": "k".repeat(65)}]}),
            "key has 65 octets; 64 are possible",
        ),
        (
            json!({"type": "set_user", "user": "alice", "changes": changes}),
            "changes has 65 elements; 64 are possible",
        ),
        (
            json!({"type": "set_user", "user": "alice", "changes": [{"key": "rate", "value": "1\n[x]"}]}),
            "value has control characters",
        ),
        (
            json!({"type": "set_user", "user": "alice", "changes": [{"key": "listen", "value": "1".repeat(4097)}]}),
            "value has 4097 octets; 4096 are possible",
        ),
        (
            json!({"type": "reset_user", "user": "a\u{1b}[2J"}),
            "user has control characters",
        ),
        (
            json!({"type": "follow", "port": 4294967296_u64, "destination": "::1"}),
            "invalid value: integer `4294967296`, expected u32",
        ),
        (
            json!({"type": "inspect", "port": 1, "what": "a\u{1b}", "within": 1}),
            "what is no word of at most 32 small letters and underscores",
        ),
        (
            json!({"type": "inspect", "port": 1, "what": "a".repeat(33), "within": 1}),
            "what is no word of at most 32 small letters and underscores",
        ),
        (
            json!({"type": "inspect", "port": 1, "what": "qp", "within": 60_001}),
            "within is 60001; a number from 1 to 60000 is needed",
        ),
    ] {
        let mut message = fields.clone();
        message["id"] = 5.into();
        let (id, refused) = answer(&message.to_string());
        assert_eq!((id, refused.reason), (5, Reason::Malformed), "{fields}");
        assert_eq!(
            refused.message,
            format!("a message is malformed: {reason}"),
            "{fields}"
        );
    }
    for (text, reason) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        (
            "{\"id\":5",
            "EOF while parsing an object at line 1 column 7",
        ),
        ("[]", "it has no \"type\""),
        ("\u{0}", "expected value at line 1 column 1"),
    ] {
        let (id, refused) = answer(text);
        assert_eq!(id, 0, "{text}");
        assert_eq!(refused.message, format!("a message is malformed: {reason}"));
    }
    // A value that is repeated is cut: the client must be able to read the answer.
    let long = "\u{1f980}".repeat(MAX_MESSAGE / 8);
    let error = decode(&json!({"id": 5, "type": "follow", "port": long}).to_string()).unwrap_err();
    let answered = error.answer();
    assert_eq!(
        FromDaemon::decode(&answered.encode().unwrap()),
        Ok(answered)
    );
    let deep = "[".repeat(MAX_MESSAGE);
    assert!(answer(&deep).1.message.contains("recursion limit exceeded"));
}

#[test]
fn what_rnicd_says_is_checked_too() {
    let port = |change: fn(&mut Value)| {
        let answer = Answer::Port(grant());
        let mut value = json!(FromDaemon::Answer(Reply { id: 9, answer }));
        change(&mut value);
        FromDaemon::decode(value.to_string().as_bytes()).map_err(|error| error.to_string())
    };
    port(|_| {}).unwrap();
    for (change, reason) in [
        (
            (|value| value["chunk"] = 8192.into()) as fn(&mut Value),
            "chunk is 8192; 2048 or 4096 is needed",
        ),
        (
            |value| value["chunks"] = 65.into(),
            "chunks is 65; a number from 1 to 64 is needed",
        ),
        (
            |value| value["rx_chunks"] = 0.into(),
            "rx_chunks is 0; a number from 1 to 8388608 is needed",
        ),
        (
            |value| value["tx_chunks"] = u32::MAX.into(),
            "tx_chunks is 4294967295; a number from 1 to 8388608 is needed",
        ),
        (
            |value| value["rings"]["fill"] = 0.into(),
            "the fill ring has 0 entries; a power of two to 8388608 is needed",
        ),
        (
            |value| value["rings"]["tx"] = 127.into(),
            "the tx ring has 127 entries; a power of two to 8388608 is needed",
        ),
        (
            |value| value["mtu"] = 12289.into(),
            "mtu is 12289; a number from 68 to 12288 is needed",
        ),
        (
            |value| value["link_mtu"] = 1500.into(),
            "link_mtu is 1500; a number from 9000 to 4294967295 is needed",
        ),
        (
            |value| value["netdev"] = "".into(),
            "\"\" is no name of a network device",
        ),
        (
            |value| value["copied"] = "x".repeat(4097).into(),
            "copied has 4097 octets; 4096 are possible",
        ),
    ] {
        assert_eq!(
            port(change),
            Err(format!("a message is malformed: {reason}"))
        );
    }
    let hop = |vlan: u16, mtu: u16| {
        let hop = json!({"source_mac": [2, 0, 0, 0, 0, 1], "destination_mac": [2, 0, 0, 0, 0, 2], "vlan": vlan, "mtu": mtu});
        let notice = json!({"type": "next_hop", "port": 1, "destination": "::1", "hop": hop});
        FromDaemon::decode(notice.to_string().as_bytes()).is_ok()
    };
    assert!(hop(1, 68) && hop(4094, 65535));
    assert!(!hop(0, 1500) && !hop(4095, 1500) && !hop(1, 67));
    let untagged = |vlan: u16| {
        let notice = json!({"type": "untagged", "port": 1, "addresses": [{"address": "fe80::1", "vlan": vlan}]});
        FromDaemon::decode(notice.to_string().as_bytes()).is_ok()
    };
    assert!(untagged(1) && untagged(4094) && !untagged(0) && !untagged(4095));
    let describe = |what: &str, within: u32| {
        let notice = json!({"type": "describe", "port": 1, "what": what, "within": within});
        FromDaemon::decode(notice.to_string().as_bytes()).is_ok()
    };
    assert!(describe("any_thing", 60_000));
    assert!(!describe("", 1) && !describe("QP", 1) && !describe("qp", 0));
}

#[test]
fn no_log_has_a_token() {
    let adopt = requests()
        .into_iter()
        .find(|(request, _)| matches!(request.ask, Ask::Adopt { .. }));
    let (adopt, json) = adopt.unwrap();
    let port = FromDaemon::Answer(Reply {
        id: 1,
        answer: Answer::Port(grant()),
    });
    for text in [format!("{adopt:?}{adopt:#?}"), format!("{port:?}{port:#?}")] {
        assert!(
            text.contains("Token(..)") && !text.contains(&TOKEN[..8]),
            "{text}"
        );
    }
    // Nor when the message is spoilt elsewhere, or the token itself is.
    for spoilt in [
        json.replace("\"port\":7", "\"port\":\"7\""),
        json.replace(TOKEN, &TOKEN[1..]),
        json.replace("0e0f", "0e0g"),
        json.replace(TOKEN, &format!("{TOKEN}0")),
    ] {
        let error = decode(&spoilt).unwrap_err();
        let said = format!("{error} {error:?}");
        assert!(!said.contains(&TOKEN[8..16]), "{said}");
    }
}

#[test]
fn a_message_that_is_too_long_is_not_written() {
    let mut request = hello();
    request.ask = Ask::Hello {
        version: 1,
        program: "x".repeat(MAX_MESSAGE),
    };
    assert_eq!(request.encode(), None);
}
