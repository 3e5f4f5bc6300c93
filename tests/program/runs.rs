//! Runs that end well.

use std::process::Command;

use serde_json::{Value, json};

use crate::program::{end, json, ok, path, run};

const PHASES: [&str; 8] =
    ["bootstrap", "allocate", "fill", "register", "all_reduce", "check", "deregister", "finalize"];

/// Checks what the JSON of any good run has.
fn check(json: &Value, ranks: u64, processes: u64, mode: &str, windows: u64, bytes: u64) {
    let says = |key: &str| json[key].clone();
    assert_eq!(says("ranks"), ranks, "{json}");
    assert_eq!(says("processes"), processes, "{json}");
    assert_eq!(says("mode"), mode, "{json}");
    assert_eq!(says("backend"), "host", "{json}");
    assert_eq!(says("windows"), windows, "{json}");
    assert_eq!(says("bytes"), bytes, "{json}");
    assert_eq!(says("verified"), true, "{json}");
    for figures in ["phases", "rounds"] {
        let names: Vec<_> = json[figures].as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = PHASES.to_vec();
        expected.sort_unstable();
        assert_eq!(names, expected, "{json}");
        assert!(json[figures].as_object().unwrap().values().all(Value::is_u64), "{json}");
    }
    assert_eq!(json["rounds"]["register"], json["rounds_group"], "{json}");
}

#[test]
fn the_default_is_four_ranks_as_threads_with_a_table() {
    let said = ok(&mut run("--bytes 64K"));
    for part in [
        "4 ranks as threads of one process",
        "8 windows of 64 KiB",
        "register (group)",
        "all-reduce",
        "finalize",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    assert_eq!(said.lines().last(), Some("verified: 8 windows x 64 KiB x 4 ranks, every element"));
}

#[test]
fn json_of_threads() {
    check(&json(&mut run("--bytes 64K")), 4, 1, "threads", 8, 65_536);
    check(&json(&mut run("--threads --ranks 3 --windows 2 --bytes 4")), 3, 1, "threads", 2, 4);
}

#[test]
fn json_of_processes() {
    check(&json(&mut run("--procs --bytes 64K")), 4, 4, "processes", 8, 65_536);
    check(&json(&mut run("--ranks 1 --procs --windows 2 --bytes 1_000")), 1, 1, "processes", 2, 1_000);
}

#[test]
fn json_of_mixed_processes() {
    check(&json(&mut run("--ranks 8 --procs 2 --bytes 64K")), 8, 2, "mixed", 8, 65_536);
    check(&json(&mut run("--ranks 5 --procs 2 --windows 1 --bytes 12")), 5, 2, "mixed", 1, 12);
    check(&json(&mut run("--ranks 3 --procs 1 --windows 1 --bytes 12")), 3, 1, "threads", 1, 12);
}

#[test]
fn a_group_takes_two_rounds_however_many_windows_it_has() {
    for how in ["--threads", "--procs", "--procs 2"] {
        for windows in [1, 64] {
            let json = json(&mut run(&format!("{how} --windows {windows} --bytes 4K")));
            assert_eq!(json["rounds_group"], 2, "{how}, {windows} windows: {json}");
        }
    }
}

#[test]
fn every_operation_is_checked() {
    for op in ["sum", "mean", "min", "max"] {
        for how in ["--threads", "--procs"] {
            let json = json(&mut run(&format!("{how} --ranks 3 --op {op} --bytes 64K")));
            assert_eq!((&json["op"], &json["verified"]), (&json!(op), &json!(true)));
        }
    }
}

#[test]
fn windows_larger_than_a_part_of_work() {
    // One part of 16 MiB and one element.
    check(&json(&mut run("--ranks 2 --windows 1 --bytes 16777220")), 2, 1, "threads", 1, 16_777_220);
}

#[test]
fn smaller_lsa_teams_reduce_by_themselves_and_the_output_says_so() {
    for how in ["--threads", "--procs", "--procs 2"] {
        let said = ok(run(&format!("{how} --bytes 64K")).env("SYMWIN_LSA_TEAM_SIZE", "2"));
        assert!(said.contains("LSA teams of 2 ranks: each reduced its own windows"), "{said}");
    }
    let json = json(run("--bytes 64K").env("SYMWIN_LSA_TEAM_SIZE", "1"));
    assert_eq!(json["lsa_team_size"], 1);
}

#[test]
fn one_worker_is_enough() {
    let json = json(run("--ranks 4 --bytes 64K").env("SYMWIN_WORKERS", "1"));
    assert_eq!(json["verified"], true);
}

#[test]
fn the_log_goes_to_standard_error() {
    for how in ["--threads", "--procs"] {
        let mut command = run(&format!("{how} --json --ranks 2 --bytes 4K"));
        let (status, stdout, stderr) = end(command.env("SYMWIN_LOG", "symwin=trace"));
        assert_eq!(status, Some(0), "{stderr}");
        assert!(serde_json::from_str::<Value>(&stdout).is_ok(), "{stdout}");
        // Events that docs/tracing.md names, of both ranks.
        for event in ["batch.begin", "round.sent", "batch.committed", "comm.closed"] {
            for rank in ["rank=0", "rank=1"] {
                let told = stderr.lines().any(|line| line.contains(event) && line.contains(rank));
                assert!(told, "{how}: no {event} of {rank} in\n{stderr}");
            }
        }
    }
    let (status, _, stderr) = end(run("--json --ranks 2 --bytes 4K").env("SYMWIN_LOG", "symwin=error"));
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "nothing went wrong");
}

#[test]
fn the_soft_limit_of_descriptors_is_raised() {
    let mut shell = Command::new("sh");
    let line = "ulimit -Sn 9 && exec \"$0\" run --ranks 4 --procs --bytes 4K --json";
    let said = ok(shell.args(["-c", line]).arg(path()));
    assert!(said.contains("\"verified\":true"), "{said}");
}
