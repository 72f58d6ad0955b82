//! The command as its users run it, both sides in one process over a link in memory: needs no
//! rights.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn rnic_ctl(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic-ctl"));
    command.args(line.split_whitespace());
    command
}

fn run(line: &str) -> Output {
    rnic_ctl(line).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeed(line: &str) -> String {
    let output = run(line);
    assert!(
        output.status.success(),
        "{line}: {}\n{}",
        stdout(&output),
        stderr(&output)
    );
    stdout(&output)
}

fn json(line: &str) -> Value {
    serde_json::from_str(&succeed(line)).unwrap()
}

#[test]
fn every_test_measures_and_verifies() {
    for test in [
        "write-bw",
        "read-bw",
        "send-bw",
        "write-lat",
        "read-lat",
        "send-lat",
    ] {
        for size in [1, 64, 5000, 200_000] {
            let report = json(&format!(
                "-j perf {test} --in-memory -v -n 60 -t 16 -s {size}"
            ));
            assert_eq!(report["test_info"]["test"], test);
            assert_eq!(report["test_info"]["verified"], true);
            let row = &report["results"][0];
            assert_eq!(
                (row["MsgSize"].as_u64(), row["n_iterations"].as_u64()),
                (Some(size), Some(60))
            );
            let figure = if test.ends_with("bw") {
                "BW_average"
            } else {
                "t_typical"
            };
            assert!(row[figure].as_f64().unwrap() > 0.0, "{report}");
        }
    }
}

#[test]
fn atomics_are_counted() {
    for test in ["atomic-bw", "atomic-lat"] {
        for line in ["-v -n 300 -t 16", "-n 100", "-v -n 50 --thread"] {
            let report = json(&format!("-j perf {test} --in-memory {line}"));
            assert_eq!(report["test_info"]["test"], test);
            assert_eq!(report["results"][0]["MsgSize"], 8, "{report}");
        }
        for sizes in ["-a", "-s 16"] {
            let output = run(&format!("perf {test} --in-memory {sizes}"));
            assert!(stderr(&output).contains("8 octets"), "{}", stderr(&output));
        }
    }
}

#[test]
fn queue_pairs_share_a_receive_queue() {
    for options in ["send-bw -q 5 -t 8", "send-bw --thread -q 2", "send-lat"] {
        let line = format!("perf {options} --in-memory --use-srq -v -n 40 -s 3000");
        let report = json(&format!("-j {line}"));
        assert_eq!(report["test_info"]["use_srq"], true, "{line}");
        assert!(succeed(&line).contains("Using SRQ       : ON"), "{line}");
    }
    let refused = run("perf write-bw --in-memory --use-srq");
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("send-bw"), "{}", stderr(&refused));
}

#[test]
fn messages_without_octets() {
    for test in ["write-bw", "read-bw", "send-bw", "read-lat", "send-lat"] {
        let report = json(&format!("-j perf {test} --in-memory -v -n 30 -s 0"));
        assert_eq!(report["results"][0]["n_iterations"], 30, "{test}");
    }
}

#[test]
fn several_connections_and_a_thread_each() {
    for (test, size) in [
        ("write-bw", 3000),
        ("read-bw", 3000),
        ("send-bw", 3000),
        ("atomic-bw", 8),
    ] {
        let report = json(&format!(
            "-j perf {test} --in-memory --thread -v -q 5 -n 40 -s {size}"
        ));
        assert_eq!(report["results"][0]["n_iterations"], 200, "{test}");
    }
}

#[test]
fn all_sizes_are_measured() {
    let table = succeed("perf send-bw --in-memory -a -n 5 -t 4 -v");
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with(' ') && line.contains(" 5 "))
        .collect();
    assert_eq!(rows.len(), 23, "{table}");
    assert!(
        rows[0].starts_with(" 2 ") && rows[22].starts_with(" 8388608 "),
        "{table}"
    );
    let table = succeed("perf write-lat --in-memory -a -n 3 -v");
    assert_eq!(
        table.lines().filter(|line| line.contains(" 3 ")).count(),
        23,
        "{table}"
    );
}

#[test]
fn the_table_is_perftests() {
    let table = succeed("perf write-bw --in-memory -n 20 -s 1000 --report_gbits -F");
    assert!(table.contains("over a link in memory"), "{table}");
    let heading =
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]";
    assert!(table.contains(heading), "{table}");
}

#[test]
fn what_tcp_knows_is_shown_on_request() {
    let report = json("-j perf write-bw --in-memory -n 100 -q 2 --tcp-info");
    let connections = report["tcp_info"].as_array().unwrap();
    // Two data connections, and the control connection.
    assert_eq!(connections.len(), 3);
    let acked = |connection: &Value| connection["bytes_acked"].as_u64().unwrap();
    let busy = connections.iter().filter(|c| acked(c) > 100 * 65_536);
    assert_eq!(busy.count(), 2);
    for connection in connections {
        assert_eq!(connection["state"], "Established, streaming");
        assert!(connection["cwnd"].as_u64().unwrap() > 0);
        assert!(connection["rtt"].as_f64().is_some());
    }
    let report = json("-j perf write-bw --in-memory -n 100 --congestion reno --tcp-info");
    assert_eq!(report["tcp_info"][0]["congestion"], "reno");
    let table = succeed("perf write-bw --in-memory -n 100 --tcp-info");
    assert!(table.contains("Established cubic "), "{table}");
    let lines = table
        .lines()
        .filter(|line| line.contains(" rto:") && line.contains(" cwnd:"));
    assert_eq!(lines.count(), 2);
    assert!(
        json("-j perf write-bw --in-memory -n 10")
            .get("tcp_info")
            .is_none()
    );
}

#[test]
fn what_each_worker_counted_is_shown_on_request() {
    let report = json("-j perf write-bw --in-memory -n 100 --counters");
    let workers = report["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 1);
    // The data connection, and the control connection.
    assert_eq!(
        (&workers[0]["worker"], &workers[0]["connections"]),
        (&0.into(), &2.into())
    );
    let count = |layer: &str, name: &str| workers[0][layer][name].as_u64().unwrap();
    assert!(count("engine", "frames_sent") > 100);
    assert!(count("tcp", "octets_sent") > 100 * 65_536);
    assert!(count("rdma", "fpdus_sent") > 100);
    assert_eq!(count("drops", "hand_over_full"), 0);
    assert_eq!(workers[0]["queues"], Value::Array(Vec::new()));
    let table = succeed("perf write-bw --in-memory -n 100 --counters");
    let line = table
        .lines()
        .find(|line| line.starts_with(" worker 0 engine "));
    let line = line.expect("a line for the engine");
    assert!(
        line.contains(" frames_sent:") && !line.contains("handed_over"),
        "{line}"
    );
    let without = json("-j perf write-bw --in-memory -n 10");
    assert!(without.get("workers").is_none());
}

#[test]
fn a_run_by_time_lasts_that_long() {
    for test in ["write-bw", "send-lat"] {
        let began = Instant::now();
        let report = json(&format!("-j perf {test} --in-memory -D 2 -f 0 -s 100 -t 8"));
        let lasted = began.elapsed();
        assert!(lasted >= Duration::from_secs(2), "{lasted:?}");
        assert!(
            report["results"][0]["n_iterations"].as_u64().unwrap() > 10,
            "{report}"
        );
    }
}

#[test]
fn the_report_can_go_to_a_file() {
    let file = std::env::temp_dir().join(format!("rnic-ctl-report-{}.json", std::process::id()));
    succeed(&format!(
        "perf write-lat --in-memory -n 20 --out_json --out_json_file {}",
        file.display()
    ));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(report["results"][0]["n_iterations"], 20);
}

#[test]
fn rping_pings() {
    let said = succeed("rping -c --in-memory -C 3 -v -V");
    assert_eq!(said.matches("ping data: rdma-ping-").count(), 3, "{said}");
    for options in [
        "-S 65535",
        "-S 26",
        "--no-crc",
        "--markers",
        "--markers --no-crc",
        "--mpa-revision 1",
        "--thread",
        "--first-fpdu-delay 0",
    ] {
        let report = json(&format!("-j rping -c --in-memory -C 5 -V {options}"));
        assert_eq!(report["pings"], 5, "{options}");
    }
    let said = succeed("rping -s --in-memory -C 3 -v");
    assert_eq!(
        said.matches("server ping data: rdma-ping-").count(),
        3,
        "{said}"
    );
}

#[test]
fn a_wrong_rkey_is_answered_by_terminate() {
    for (operation, layer) in [("read", 0), ("write", 1)] {
        for (role, direction) in [("-c", "sent"), ("-s", "received")] {
            let output = run(&format!(
                "-j rping {role} --in-memory -C 3 --bad-rkey {operation}"
            ));
            assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
            let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
            let terminate = &report["terminate"];
            assert_eq!(terminate["direction"], direction, "{report}");
            assert_eq!(
                (&terminate["layer"], &terminate["type"], &terminate["code"]),
                (&layer.into(), &1.into(), &0.into())
            );
            let words = format!("Terminate {direction}: layer {layer}, type 1, code 0x00");
            assert!(
                report["error"].as_str().unwrap().contains(&words),
                "{report}"
            );
        }
    }
}

#[test]
fn a_server_rejects() {
    let said = succeed("rping -s --in-memory --reject go-away");
    assert!(
        said.contains("rejected the client, who had said nothing"),
        "{said}"
    );
}

/// Sends a signal to a command that has said something. Returns its exit code, and what it said.
fn signalled(line: &str, begun: &str, signal: Signal) -> (Option<i32>, String) {
    let mut command = rnic_ctl(line);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains(begun) {
        assert!(said.read_line(&mut text).unwrap() > 0, "{line}: {text}");
    }
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    // It may print more before it ends.
    let rest = std::thread::spawn(move || {
        said.read_to_string(&mut text).unwrap();
        text
    });
    let code = wait(child, line).status.code();
    (code, rest.join().unwrap())
}

#[test]
fn ctrl_c_ends_it() {
    for (line, begun) in [
        ("perf write-bw --in-memory -n 1000000000", "#bytes"),
        ("perf send-lat --in-memory -n 1000000000", "#bytes"),
        ("rping -c --in-memory -v", "ping data"),
    ] {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let (code, _) = signalled(line, begun, signal);
            assert_eq!(code, Some(130), "{line}");
        }
    }
}

#[test]
fn ctrl_c_ends_a_time_early_and_there_are_figures() {
    for (line, size) in [
        ("perf write-bw --in-memory -v -D 3600 -s 4096", "4096"),
        ("perf send-bw --in-memory -D 3600 -a -f 5", "2"),
        ("perf read-lat --in-memory -D 3600", "2"),
    ] {
        // Ahead of the first message it stops the command: then once more.
        let (code, said) = (0..3)
            .map(|_| signalled(line, "#bytes", Signal::SIGINT))
            .find(|(code, _)| *code != Some(130))
            .unwrap();
        assert_eq!(code, Some(0), "{line}: {said}");
        let rows = said.lines().skip_while(|line| !line.contains("#bytes"));
        let rows: Vec<Vec<&str>> = rows
            .map(|row| row.split_whitespace().collect())
            .filter(|row: &Vec<&str>| row.len() > 1)
            .collect();
        let [_, row] = &rows[..] else {
            panic!("{line}: {said}");
        };
        assert_eq!(row[0], size, "{line}: {said}");
        assert!(row[1].parse::<u64>().unwrap() > 0, "{line}: {said}");
    }
}

/// Waits for the end of a child, up to a minute.
fn wait(mut child: Child, what: &str) -> Output {
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{what} does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    for (line, lines_read) in [
        ("rping -c --in-memory -v", 2),
        ("rping -s --in-memory -v", 2),
        ("rping -c --in-memory --thread -v", 1),
        ("perf write-lat --in-memory -a", 0),
        ("-j perf send-bw --in-memory -n 10", 0),
        ("doctor --netdev lo --no-trial", 0),
    ] {
        let mut command = rnic_ctl(line);
        let (reader, writer) = std::io::pipe().unwrap();
        let mut said = (lines_read > 0).then(|| BufReader::new(reader));
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn();
        // The command holds an end of the pipe for the next child that it would start.
        drop(command);
        for _ in 0..lines_read {
            let mut text = String::new();
            said.as_mut().unwrap().read_line(&mut text).unwrap();
            assert!(text.contains("ping data"), "{line}: {text}");
        }
        drop(said);
        let child = child.unwrap();
        let output = wait(child, line);
        assert_eq!(output.status.code(), Some(141), "{line}");
        assert_eq!(stderr(&output), "", "{line}");
    }
}

#[test]
fn exit_codes_tell_what_kind_of_failure() {
    for (line, code, words) in [
        ("perf write-bw --via xdp", 2, "--netdev"),
        ("perf write-lat --in-memory -s 0", 2, "last octet"),
        ("perf nothing", 2, "nothing"),
        ("rping --in-memory", 2, "--server"),
        ("perf write-bw --netdev rnic-absent", 3, "rnic-absent"),
        ("steering --netdev rnic-absent", 3, "rnic-absent"),
    ] {
        let output = run(line);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{line}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(words),
            "{line}: {}",
            stderr(&output)
        );
        let output = run(&format!("-j {line}"));
        assert_eq!(output.status.code(), Some(code), "-j {line}");
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert!(
            report["error"].as_str().unwrap().contains(words),
            "-j {line}: {report}"
        );
        assert_eq!(report["exit_code"], code);
    }
    let output = run("doctor --netdev rnic-absent");
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("FAIL"), "{}", stdout(&output));
    assert!(run("--help").status.success() && run("--version").status.success());
}

#[test]
fn json_is_all_that_rping_prints_where_it_is_asked_for() {
    for role in ["-s", "-c"] {
        let report = json(&format!("-j rping {role} --in-memory -C 3 -v"));
        assert_eq!(report["pings"], 3);
        assert_eq!(report["end"], "disconnected in order");
    }
}

fn with_log(filter: &str, line: &str) -> Command {
    let mut command = rnic_ctl(line);
    command.env("RUST_LOG", filter);
    command
}

#[test]
fn the_log_is_there_on_request_alone() {
    let line = "perf write-bw --in-memory -n 20";
    let log = |filter| {
        let output = with_log(filter, line).output().unwrap();
        assert!(output.status.success(), "{filter}: {}", stderr(&output));
        assert!(stdout(&output).contains("#iterations"), "{filter}");
        stderr(&output)
    };
    let wanted = log("rnic=debug");
    for words in [
        "listening on ",
        "asks to connect",
        "is established",
        "ended: closed by ",
    ] {
        let says = |line: &str| line.contains("DEBUG rnic_verbs::") && line.contains(words);
        assert!(wanted.lines().any(says), "{words}: {wanted}");
    }
    for filter in ["", "off", "rnic=error", "other=debug"] {
        assert_eq!(log(filter), "", "{filter}");
    }
    let wrong = log("rnic=shout");
    assert!(
        wrong.starts_with("rnic-ctl: RUST_LOG is not understood: "),
        "{wrong}"
    );
    assert_eq!(wrong.lines().count(), 1, "{wrong}");
}

#[test]
fn a_log_that_nobody_reads_is_no_reason_to_stop() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = with_log("rnic=debug", "perf write-bw --in-memory -n 20");
    let child = command.stdout(Stdio::piped()).stderr(writer).spawn();
    let output = wait(child.unwrap(), "a run with a log");
    assert!(output.status.success(), "{}", output.status);
    assert!(stdout(&output).contains("#iterations"));
}

#[test]
fn the_environment_can_require_protection() {
    let run = |required| {
        let mut command = rnic_ctl("perf write-bw --via kernel 127.0.0.1");
        command.env("RNIC_REQUIRE_PROTECTION", required);
        let output = command.output().unwrap();
        (output.status.code(), stderr(&output))
    };
    // Nobody listens there.
    assert_eq!(run("0").0, Some(1));
    let (code, why) = run("1");
    assert_eq!(code, Some(3), "{why}");
    assert!(why.contains("rnic's own ESP"), "{why}");
    let (code, why) = run("perhaps");
    assert_eq!(code, Some(2), "{why}");
    assert!(why.contains("RNIC_REQUIRE_PROTECTION: 0 or 1"), "{why}");
}
