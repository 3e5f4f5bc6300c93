//! The command line, the environment, and what is refused before any rank starts.

use crate::program::{end, fails, ok, run, symwin};

#[test]
fn help_says_what_there_is() {
    let general = ok(&mut symwin(["--help"]));
    for variable in [
        "SYMWIN_STRIDE",
        "SYMWIN_LSA_TEAM_SIZE",
        "SYMWIN_DEADLINE",
        "SYMWIN_BOOTSTRAP_DEADLINE",
        "SYMWIN_WORKERS",
        "SYMWIN_LOG",
        "ulimit -n",
    ] {
        assert!(general.contains(variable), "{variable} is not in\n{general}");
    }
    assert!(!general.contains("child"), "{general}");
    assert!(general.contains("bench"), "{general}");
    let of_bench = ok(&mut symwin(["bench", "--help"]));
    for part in ["register", "allreduce", "barrier", "lookup"] {
        assert!(of_bench.contains(part), "{part} is not in\n{of_bench}");
    }
    let of_register = ok(&mut symwin(["bench", "register", "--help"]));
    for part in
        ["--ranks", "--windows", "--bytes", "--arena", "--own", "--maps", "--samples", "--json", "--no-mpi"]
    {
        assert!(of_register.contains(part), "{part} is not in\n{of_register}");
    }
    assert!(!of_register.contains("--traced"), "{of_register}");
    let of_run = ok(&mut symwin(["run", "--help"]));
    for part in [
        "--ranks",
        "--procs",
        "--threads",
        "--windows",
        "--bytes",
        "--json",
        "--op",
        "--input",
        "--output",
        "--ranks-per-gpu",
    ] {
        assert!(of_run.contains(part), "{part} is not in\n{of_run}");
    }
    assert!(of_run.contains("Exit status") && of_run.contains("Examples"), "{of_run}");
}

#[test]
fn usage_errors_have_status_2_and_name_what_is_wrong() {
    let cases = [
        ("--bytes 6", "multiple of 4"),
        ("--bytes 0", "multiple of 4"),
        ("--bytes 4XiB", "4XiB"),
        ("--bytes 99999999TiB", "64 bits"),
        ("--ranks 0", "--ranks"),
        ("--windows 0", "--windows"),
        ("--procs 0", "--procs"),
        ("--ranks 4 --procs 5", "more than the 4 ranks"),
        ("--ranks 5 --procs 4", "does not divide 5 ranks"),
        ("--threads --procs", "--procs"),
        ("--op product", "product"),
        ("--backend tpu", "tpu"),
        ("--ranks-per-gpu 2", "--backend cuda"),
        ("--backend cuda --ranks-per-gpu 0", "--ranks-per-gpu"),
        ("--input a.npy", "--output"),
        ("--output a.npy", "--input"),
        ("--input a.npy b.npy --output o.npy --ranks 3", "--ranks 3 with 2 --input files"),
        ("--input a.npy --output o.npy --windows 3", "--windows"),
        ("--input a.npy --output o.npy --bytes 3", "--bytes"),
        ("--colour", "--colour"),
    ];
    for (args, part) in cases {
        let said = fails(&mut run(args), 2);
        assert!(said.contains(part), "{args}: {said}");
    }
    let (status, ..) = end(&mut symwin::<&str>([]));
    assert_eq!(status, Some(2));
}

/// Where there is no GPU, the program says so before any rank starts, and what to do. `SYMWIN_TEST_GPU` says that there
/// is one.
#[test]
fn without_gpus_the_cuda_backend_says_what_is_missing() {
    if std::env::var_os("SYMWIN_TEST_GPU").is_some() {
        return;
    }
    let why = if cfg!(feature = "cuda") { "needs no GPU" } else { "this build has no cuda backend" };
    for command in ["run", "bench register", "bench allreduce", "bench barrier"] {
        for how in ["--threads", "--procs"] {
            let args = format!("{command} --backend cuda --ranks-per-gpu 2 {how}");
            let said = fails(&mut symwin(args.split_whitespace()), 1);
            assert!(said.contains(why) && said.contains("--backend host"), "{args}: {said}");
        }
    }
}

#[test]
fn bad_settings_are_named_by_their_variable_once() {
    let cases = [
        ("SYMWIN_STRIDE", "wide"),
        ("SYMWIN_LSA_TEAM_SIZE", "3"),
        ("SYMWIN_DEADLINE", "-1"),
        ("SYMWIN_BOOTSTRAP_DEADLINE", "soon"),
        ("SYMWIN_WORKERS", "many"),
        ("SYMWIN_LOG", "symwin=loud"),
    ];
    for (name, value) in cases {
        for how in ["--threads", "--procs"] {
            let said = fails(run(&format!("{how} --bytes 4K")).env(name, value), 1);
            let named = if name == "SYMWIN_LSA_TEAM_SIZE" { "LSA team" } else { name };
            assert!(said.to_lowercase().contains(&named.to_lowercase()), "{name}, {how}: {said}");
            assert_eq!(said.matches(value).count(), 1, "{name}, {how}: {said}");
        }
    }
}

#[test]
fn more_memory_than_there_is_is_refused_before_anything_starts() {
    for how in ["--threads", "--procs"] {
        let said = fails(&mut run(&format!("{how} --bytes 1000TiB")), 1);
        assert!(said.contains("8 windows x 1000 TiB x 4 ranks need"), "{said}");
        assert!(said.contains("is available"), "{said}");
    }
    let said = fails(&mut run("--bytes 16000000TiB --windows 4000000000"), 1);
    assert!(said.contains("more than 2^64 bytes"), "{said}");
}

#[test]
fn the_hidden_command_is_not_for_people() {
    let said = fails(&mut symwin(["child"]), 1);
    assert!(said.contains("only for `symwin` itself"), "{said}");
}

#[test]
fn a_result_that_cannot_be_printed_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output =
        run("--ranks 2 --bytes 4K").stdout(full).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let output = output.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("standard output: No space left"), "{said}");
}
