//! `symwin bench`: what it says and how it ends. Of times only that they are there.

use std::process::Command;

use serde_json::Value;

use crate::program::{fails, ok, symwin};
use crate::watch::many_descriptors;

fn bench(args: &str) -> Command {
    symwin(["bench"].into_iter().chain(args.split_whitespace()))
}

/// The objects of a benchmark that must end well, one a line.
fn objects(args: &str) -> Vec<Value> {
    let said = ok(&mut bench(&format!("{args} --json")));
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Checks that these are numbers above zero.
fn positive(json: &Value, names: &[&str]) {
    for name in names {
        assert!(json[name].as_f64().is_some_and(|number| number > 0.0), "{name} in {json}");
    }
}

/// Checks a place for each MPI: a figure, or why there is none.
fn check_mpi(json: &Value) {
    let names: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, ["MPICH", "Open MPI"], "{json}");
    for figure in json.as_object().unwrap().values() {
        assert!(figure["not_measured"].is_string() || figure["median"].is_f64(), "{json}");
    }
}

#[test]
fn register_says_everything_of_each_number_of_windows() {
    let worlds = [
        ("--ranks 2 --threads", 2, 1, "threads", "shared"),
        ("--ranks 2 --threads --maps each", 2, 1, "threads", "each"),
        ("--ranks 2 --procs", 2, 2, "processes", "shared"),
        ("--ranks 3 --procs 2", 3, 2, "mixed", "shared"),
        ("--ranks 1", 1, 1, "threads", "shared"),
    ];
    for (world, ranks, processes, mode, maps) in worlds {
        for arena in [false, true] {
            let memory = if arena { "--arena" } else { "--own" };
            let args = format!("register {world} {memory} --windows 1,5 --bytes 5000 --samples 2 --no-mpi");
            let objects = objects(&args);
            let windows: Vec<_> = objects.iter().map(|json| json["windows"].as_u64().unwrap()).collect();
            assert_eq!(windows, [1, 5], "{args}");
            for json in objects {
                assert_eq!(json["bench"], "register", "{json}");
                assert_eq!(json["ranks"], ranks, "{json}");
                assert_eq!(json["processes"], processes, "{json}");
                assert_eq!(json["mode"], mode, "{json}");
                assert_eq!(json["maps"], maps, "{json}");
                assert_eq!(json["bytes"], 5000, "{json}");
                assert_eq!(json["arena"], arena, "{json}");
                assert_eq!(json["samples"], 2, "{json}");
                assert_eq!(json["rounds_per_group"], 2, "A-4: {json}");
                let figures = [
                    "us_per_window",
                    "baseline_us_per_window",
                    "baseline_dedup_us_per_window",
                    "syscalls_us_per_window",
                    "syscalls_each_us_per_window",
                    "cpu_us_per_window",
                    "cpu_us_per_rank_and_window",
                ];
                positive(&json, &figures);
                for step in ["submit", "prepare", "offer", "decide", "map", "vote", "commit"] {
                    assert!(json["steps_us"][step].is_number(), "{step} in {json}");
                }
                assert_eq!(json["mpi_us_per_window"], serde_json::json!({}), "{json}");
            }
        }
    }
}

/// As on GPUs, on the host: beside the bare driver, with new allocations for each sample.
#[test]
fn register_beside_the_bare_driver() {
    let worlds = [
        ("--ranks 3", 3, "threads"),
        ("--ranks 2 --procs", 2, "processes"),
        ("--ranks 3 --procs 2", 3, "mixed"),
        ("--ranks 1", 1, "threads"),
    ];
    for (world, ranks, mode) in worlds {
        for memory in ["--arena", "--own"] {
            // More descriptors than one message takes.
            let windows = if mode == "processes" { "1,300" } else { "1,5" };
            let args = format!(
                "register --floor {world} {memory} --windows {windows} --bytes 5000 --samples 2 --no-mpi"
            );
            for json in objects(&args) {
                assert_eq!((&json["ranks"], &json["mode"]), (&ranks.into(), &mode.into()), "{json}");
                assert_eq!((&json["backend"], &json["device"]), (&"host".into(), &"host".into()), "{json}");
                assert_eq!((&json["samples"], &json["rounds_per_group"]), (&2.into(), &2.into()), "{json}");
                let of_16 = &json["wall_us_per_window"]["driver_16_threads"];
                assert_eq!(of_16.is_object(), mode == "threads", "{json}");
                positive(
                    &json,
                    &["us_per_window", "driver_us_per_window", "driver_threads", "symwin_over_driver"],
                );
                assert!(json["baseline_us_per_window"].is_null(), "{json}");
                assert!(json["syscalls_us_per_window"].is_null(), "{json}");
            }
        }
    }
    let said = ok(&mut bench("register --floor --ranks 2 --windows 1 --bytes 4K --samples 1"));
    assert!(said.contains("bare driver, 16 threads") && said.contains("symwin / bare driver, "), "{said}");
}

/// More descriptors than one message takes.
#[test]
fn register_with_more_windows_than_descriptors_in_a_message() {
    let json = objects("register --ranks 2 --procs --windows 300 --bytes 4K --samples 1 --no-mpi").remove(0);
    assert_eq!((&json["windows"], &json["rounds_per_group"]), (&300.into(), &2.into()), "{json}");
    positive(&json, &["us_per_window", "syscalls_us_per_window"]);
}

/// What cannot be mapped is left out, and the rest is measured.
#[test]
fn register_leaves_out_what_the_system_cannot_map() {
    let max = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if max.trim().parse::<u64>().unwrap() > 65_530 || !many_descriptors() {
        return;
    }
    let args = "register --ranks 16 --windows 256 --bytes 4K --samples 1 --no-mpi";
    let json = objects(args).remove(0);
    positive(&json, &["us_per_window", "syscalls_us_per_window"]);
    assert!(json["baseline_us_per_window"].is_null(), "{json}");
    assert!(ok(&mut bench(args)).contains("per-window protocol: left out"));
}

/// Each window of each rank is one mapping in each process, or the count is none at all.
#[test]
fn register_counts_system_calls_where_strace_is_installed() {
    let worlds = [("--threads", 2), ("--threads --maps each", 4), ("--procs", 4)];
    for (world, maps) in worlds {
        let args = format!("register --ranks 2 {world} --windows 50 --bytes 4K --samples 1 --no-mpi");
        let json = objects(&args).remove(0);
        let Some(all) = json["syscalls_per_group"].as_u64() else {
            assert!(json["syscalls_by_name"].is_null(), "{json}");
            return;
        };
        let mmaps = json["syscalls_by_name"]["mmap"].as_u64().unwrap();
        // Some more where memory for other things was just then needed.
        assert!(mmaps >= 50 * maps && mmaps < 50 * (maps + 1), "{args}: {json}");
        assert!(all >= mmaps, "{json}");
    }
}

#[test]
fn tables_are_for_people() {
    let said = ok(&mut bench("register --ranks 2 --windows 1 --bytes 4K --samples 1 --no-mpi --arena"));
    for part in [
        "2 ranks as threads, 1 window of 4 KiB, from one allocation",
        "bare calls",
        "symwin / bare calls: ",
        "per-window protocol / symwin: ",
        "per-window protocol with dedup / symwin: ",
        "rounds of messages for the group: 2",
        "system calls of the group",
        "step of the group",
        "commit",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    let said = ok(&mut bench("allreduce --ranks 2 --bytes 8 --samples 1 --no-mpi"));
    assert!(said.contains("2 ranks as threads, all-reduce of 8 bytes, sum of f32"), "{said}");
    assert!(said.contains("Communicator::all_reduce / the faster plain loop: "), "{said}");
    let said = ok(&mut bench("barrier --ranks 2 --samples 1 --no-mpi"));
    assert!(said.contains("LSA barrier") && said.contains("std::sync::Barrier"), "{said}");
    let said = ok(&mut bench("lookup --windows 10 --samples 1"));
    assert!(said.contains("find_window / plain search: "), "{said}");
}

#[test]
fn allreduce_measures_and_checks_every_type() {
    for (how, mode) in [("--threads", "threads"), ("--procs", "processes")] {
        let objects = objects(&format!("allreduce --ranks 2 {how} --bytes 8,4K --samples 2 --no-mpi"));
        let bytes: Vec<_> = objects.iter().map(|json| json["bytes"].as_u64().unwrap()).collect();
        assert_eq!(bytes, [8, 4096]);
        for json in objects {
            assert_eq!((&json["mode"], &json["dtype"]), (&mode.into(), &"f32".into()), "{json}");
            let figures =
                ["us", "kernel_us", "plain_us", "plain_one_shot_us", "plain_two_shot_us", "repetitions"];
            positive(&json, &figures);
        }
    }
    for dtype in ["f64", "i32", "i64", "u8", "f16", "bf16"] {
        let args = format!("allreduce --ranks 3 --dtype {dtype} --bytes 24 --samples 1 --no-mpi");
        positive(&objects(&args)[0], &["us", "kernel_us", "plain_us"]);
    }
}

#[test]
fn barriers_meet_as_threads_and_across_processes() {
    let threads = objects("barrier --ranks 3 --samples 2 --no-mpi").remove(0);
    positive(&threads, &["us_per_round", "cpu_us_per_round", "std_us_per_round", "rounds"]);
    let procs = objects("barrier --ranks 3 --procs --samples 2 --no-mpi").remove(0);
    positive(&procs, &["us_per_round", "cpu_us_per_round", "rounds"]);
    assert!(procs["std_us_per_round"].is_null(), "{procs}");
}

#[test]
fn lookup_finds_what_a_binary_search_finds_while_another_thread_registers() {
    for windows in [1, 1500] {
        let json = objects(&format!("lookup --windows {windows} --samples 1")).remove(0);
        assert_eq!(json["windows"], windows, "{json}");
        positive(&json, &["find_ns", "plain_ns", "plain_counted_ns"]);
        positive(&json, &["find_registering_ns", "plain_registering_ns", "registrations"]);
    }
}

/// An MPI may take its time where others compute too, so this asks for little.
#[test]
fn mpi_is_measured_where_it_is_installed_and_said_to_be_absent_where_not() {
    let json = objects("register --ranks 1 --windows 1 --bytes 4K --samples 1").remove(0);
    check_mpi(&json["mpi_us_per_window"]);
    let json = objects("allreduce --ranks 1 --bytes 8 --samples 1").remove(0);
    check_mpi(&json["mpi_us"]);
    check_mpi(&objects("barrier --ranks 1 --samples 1")[0]["mpi_us_per_round"]);
    // MPI has no such type.
    let json = objects("allreduce --ranks 1 --bytes 8 --samples 1 --dtype bf16").remove(0);
    for figure in json["mpi_us"].as_object().unwrap().values() {
        assert!(figure["not_measured"].is_string(), "{json}");
    }
    let mut without = bench("register --ranks 1 --windows 1 --bytes 4K --samples 1 --json");
    let said = ok(without.env("PATH", "/nowhere"));
    let json: Value = serde_json::from_str(&said).unwrap();
    let why = json["mpi_us_per_window"]["Open MPI"]["not_measured"].as_str().unwrap();
    assert!(why.contains("mpicc.openmpi") && why.contains("installed"), "{why}");
    assert!(json["syscalls_per_group"].is_null(), "{json}");
}

#[test]
fn bad_arguments_are_refused_with_a_word_that_helps() {
    let cases = [
        ("register --windows 0", "--windows"),
        ("register --windows 4,x", "x"),
        ("register --bytes 0", "at least 1"),
        ("register --samples 0", "--samples"),
        ("register --ranks 4 --procs 5", "more than the 4 ranks"),
        ("register --ranks 5 --procs 4", "does not divide 5 ranks"),
        ("register --arena --own", "--own"),
        ("register --threads --procs", "--procs"),
        ("register --procs --maps each", "--maps"),
        ("register --maps some", "each"),
        ("allreduce --bytes 6", "multiple of 4"),
        ("allreduce --bytes 8 --dtype f8", "bf16"),
        ("lookup --windows 0", "--windows"),
        ("barrier --ranks 0", "--ranks"),
        ("sing", "sing"),
    ];
    for (args, part) in cases {
        let said = fails(&mut bench(args), 2);
        assert!(said.contains(part), "{args}: {said}");
    }
    let said = fails(&mut bench("register --traced"), 1);
    assert!(said.contains("for `symwin bench` itself"), "{said}");
    let said = fails(&mut bench("register --windows 1000000 --bytes 1TiB"), 1);
    assert!(said.contains("1000000 windows x 1 TiB x 4 ranks need"), "{said}");
    let mut teams = bench("register --windows 1 --bytes 4K --samples 1 --no-mpi");
    let said = fails(teams.env("SYMWIN_LSA_TEAM_SIZE", "2"), 1);
    assert!(said.contains("unset SYMWIN_LSA_TEAM_SIZE"), "{said}");
}
