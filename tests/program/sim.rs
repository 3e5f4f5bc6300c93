//! `symwin sim`: what it prints and how it ends.

use serde_json::Value;

use crate::program::{end, fails, json, ok, path, symwin};

fn sim(args: &str) -> std::process::Command {
    symwin(["sim"].into_iter().chain(args.split_whitespace()))
}

#[test]
fn help_names_every_flag_and_the_exit_status() {
    let help = ok(&mut sim("--help"));
    for part in [
        "--ranks",
        "--hosts",
        "--ranks-per-process",
        "--comms",
        "--windows",
        "--groups",
        "--policy",
        "--seed",
        "--depth",
        "--runs",
        "--faults",
        "--replay",
        "--device",
        "--host-threads",
        "--no-finalize",
        "--json",
        "Examples",
        "Exit status",
        "partition",
    ] {
        assert!(help.contains(part), "{part} is not in\n{help}");
    }
}

#[test]
fn bad_flags_are_refused_in_a_line() {
    let cases = [
        ("--ranks 0", "--ranks"),
        ("--runs 0", "--runs"),
        ("--depth 0", "--depth"),
        ("--seed -1", "-1"),
        ("--seed 18446744073709551616", "too large"),
        ("--policy fast", "fast"),
        ("--faults nonsense", "nonsense"),
        ("--faults kill,flood", "flood"),
        ("--replay s1.r.1 --seed 3", "--seed"),
        ("--replay s1.r.1 --runs 3", "--runs"),
        ("--replay s1.r.1 --policy dfs", "--policy"),
        ("--ranks 3 --hosts 2", "does not divide"),
        ("--ranks 5000", "1 to 4096 processes"),
        ("--ranks 4 --hosts 2 --ranks-per-process 4", "does not divide"),
        ("--replay garbage", "garbage"),
        ("--replay s1.d.z(4000000000)", "schedule"),
        ("--ranks 4294967295", "1 to 4096 processes"),
    ];
    for (args, part) in cases {
        let said = fails(&mut sim(args), 2);
        assert!(said.contains(part), "{args}: {said}");
    }
}

#[test]
fn a_schedule_with_the_largest_numbers_runs() {
    for schedule in ["s1.p.ffffffffffffffff.4294967295.18446744073709551615", "s1.d.(4294967295)", "s1.b.0"] {
        ok(&mut sim(&format!("--groups 1 --replay {schedule}")));
    }
    ok(&mut sim("--policy pct --depth 4294967295 --runs 3 --seed 18446744073709551615"));
}

#[test]
fn json_has_what_a_script_needs() {
    let report = json(&mut sim("--runs 20 --hosts 2 --faults delay --seed 7"));
    for name in [
        "runs",
        "steps",
        "steps_per_s",
        "digests",
        "failures",
        "policy",
        "seed",
        "digest_of_digests",
        "world_rounds",
        "exhausted",
    ] {
        assert!(!report[name].is_null(), "{name} is not in {report}");
    }
    assert_eq!((&report["runs"], &report["seed"]), (&Value::from(20), &Value::from(7)));
    assert_eq!((&report["failures"], &report["policy"]), (&Value::from(0), &Value::from("random")));
    let again = json(&mut sim("--runs 20 --hosts 2 --faults delay --seed 7"));
    assert_eq!(report["digest_of_digests"], again["digest_of_digests"]);
    let other = json(&mut sim("--runs 20 --hosts 2 --faults delay --seed 8"));
    assert_ne!(report["digest_of_digests"], other["digest_of_digests"]);
}

#[test]
fn depth_first_says_whether_it_has_seen_everything() {
    let small = "--policy dfs --ranks 2 --comms 1 --windows 1 --groups 1";
    let report = json(&mut sim(small));
    assert_eq!(report["exhausted"], true, "{report}");
    assert!(report["states"].as_u64() > Some(100), "{report}");
    assert!(ok(&mut sim(small)).contains("everything seen;"));
    let text = ok(&mut sim(&format!("{small} --runs 10")));
    assert!(text.contains("NOT everything seen"), "{text}");
    for line in text.lines().skip(1) {
        let (name, value) = line.split_at(26);
        assert!(name.ends_with(' ') && !value.starts_with(' '), "columns: {line}");
    }
}

/// A run fails where there is no address space for the device's reservations.
#[test]
fn the_line_of_a_failed_run_makes_it_again() {
    let limited = |line: &str| {
        let shell = format!("ulimit -v 3000000; exec \"$0\" {line}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &shell]).arg(path());
        command
    };
    let (status, text, said) = end(&mut limited("sim --device host --ranks 2 --groups 1 --runs 5"));
    assert_eq!((status, said.as_str()), (Some(1), ""), "{text}");
    let again = text.lines().find_map(|line| line.strip_prefix("to see it again: symwin ")).expect("a line");
    assert!(text.contains("run 0 failed:") && text.contains("replay: s1.r.1"), "{text}");
    let (status, replayed, _) = end(&mut limited(again));
    assert_eq!((status, replayed), (Some(1), text.clone()));
    let (_, json, _) = end(&mut limited(&format!("{again} --json")));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["failures"], &json["schedule"]), (&Value::from(1), &Value::from("s1.r.1")));
    assert!(json["replay"].as_str().is_some_and(|line| line.contains(again)), "{json}");
}
