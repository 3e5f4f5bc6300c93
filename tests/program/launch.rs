//! `symwin launch`: what processes are told, and what of their output comes where.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::program::{end, fails, json, ok, path, run, symwin};

/// `symwin launch` with these options, in one string, of a shell that runs `script`.
pub(crate) fn launch(options: &str, script: &str) -> Command {
    let options = ["launch"].into_iter().chain(options.split_whitespace());
    let mut command = symwin(options.chain(["--", "sh", "-c", script]));
    command.env_remove("NO_COLOR");
    command
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn processes_are_told_their_place() {
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $SYMWIN_RANKS_PER_PROCESS";
    let said = ok(&mut launch("-n 3", script));
    assert_eq!(sorted(&said), ["[0] 0 3 0 3 1", "[1] 1 3 1 3 1", "[2] 2 3 2 3 1"]);
    let said = ok(launch("-n 5 --ranks-per-process 2", script).env("RANK", "7").env("LOCAL_RANK", "7"));
    assert_eq!(sorted(&said), ["[0-1] 0 5 0 3 2", "[2-3] 2 5 1 3 2", "[4] 4 5 2 3 2"]);
}

#[test]
fn every_run_has_a_rendezvous_of_its_own_that_its_processes_share() {
    let name_of_a_run = || {
        let said = ok(&mut launch("-n 3 --no-prefix", "echo $SYMWIN_RENDEZVOUS"));
        let names: Vec<_> = said.lines().map(str::to_owned).collect();
        assert!(names.len() == 3 && names.iter().all(|name| *name == names[0]), "{said}");
        assert!(names[0].len() == 64 && names[0].bytes().all(|byte| byte.is_ascii_hexdigit()), "{said}");
        names[0].clone()
    };
    assert_ne!(name_of_a_run(), name_of_a_run());
}

#[test]
fn arguments_and_limits_reach_the_program_as_they_are() {
    let args = ["launch", "-n", "1", "printf", "%s|", "--help", "-n", "a b", "", "--"];
    assert_eq!(ok(&mut symwin(args)), "[0] --help|-n|a b||--|\n");
    let mut shell = Command::new("sh");
    let line = "ulimit -Sn 64 && exec \"$0\" launch -n 1 -- sh -c 'ulimit -Sn'";
    assert_eq!(ok(shell.args(["-c", line]).arg(path())), "[0] 64\n");
}

#[test]
fn lines_come_whole_and_each_on_its_own_stream() {
    let script = "yes \"from $RANK, in full\" | head -n 3000; \
                  yes \"error of $RANK\" | head -n 1000 >&2; printf 'begun '; printf 'and ended'";
    let (status, out, err) = end(&mut launch("-n 4", script));
    assert_eq!(status, Some(0), "{err}");
    let mut expected = (Vec::new(), Vec::new());
    for rank in 0..4 {
        expected.0.push(format!("[{rank}] begun and ended"));
        expected.0.extend(vec![format!("[{rank}] from {rank}, in full"); 3000]);
        expected.1.extend(vec![format!("[{rank}] error of {rank}"); 1000]);
    }
    assert_eq!(sorted(&out), expected.0);
    assert_eq!(sorted(&err), expected.1);
    assert!(out.ends_with('\n'));
}

#[test]
fn bytes_that_are_no_text_come_unharmed() {
    let output = launch("-n 1", "printf '\\377\\000\\r\\n\\376'").output().unwrap();
    assert_eq!(output.stdout, b"[0] \xff\0\r\n[0] \xfe\n");
}

#[test]
fn a_line_that_is_too_long_comes_in_pieces() {
    let said = ok(&mut launch("-n 1", "head -c 200000 /dev/zero | tr '\\0' x"));
    let pieces: Vec<_> = said.lines().map(|line| line.strip_prefix("[0] ").unwrap().len()).collect();
    assert_eq!(pieces, [65536, 65536, 65536, 200_000 - 3 * 65536]);
}

#[test]
fn without_prefixes_output_is_what_it_is() {
    let (status, out, err) = end(&mut launch("-n 1 --no-prefix", "printf 'a\\nb'; printf c >&2"));
    assert_eq!((status, out.as_str(), err.as_str()), (Some(0), "a\nb", "c"));
}

#[test]
fn the_first_process_has_standard_input() {
    let mut run = launch("-n 3", "cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    run.stdin.take().unwrap().write_all(b"to whom?\n").unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"[0] to whom?\n"[..]));
}

#[test]
fn what_cannot_be_started_is_refused_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    fs::write(&plain, "no program").unwrap();
    let plain = plain.to_str().unwrap();
    let cases = [
        ("no-such-program", 127, "no directory of PATH"),
        ("./no/such/program", 127, "there is no program `./no/such/program`"),
        (plain, 126, "chmod +x"),
        ("/", 126, "it is no file"),
    ];
    for (program, status, part) in cases {
        let said = fails(&mut symwin(["launch", "-n", "4", "--", program]), status);
        assert!(said.starts_with("symwin: error: ") && said.contains(part), "{program}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_program_without_its_interpreter_fails_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let said = fails(&mut symwin(["launch", "-n", "1", script.to_str().unwrap()]), 127);
    assert!(
        said.contains("[0] symwin: error: `") && said.contains("cannot be executed: No such file"),
        "{said}"
    );
}

#[test]
fn ranks_do_not_mind_variables_of_other_launchers() {
    let mut procs = run("--procs --ranks 2 --bytes 4K");
    json(procs.env("LOCAL_RANK", "x").env("LOCAL_WORLD_SIZE", "").env("GROUP_RANK", "7"));
}

#[test]
fn usage_errors_have_status_2() {
    for args in [
        "launch -n 2",
        "launch -n 0 true",
        "launch true",
        "launch -n 9999 true",
        "launch -n 1 --grace=-1 true",
        "launch -n 1 --grace 1e30 true",
    ] {
        fails(&mut symwin(args.split_whitespace()), 2);
    }
    let said = fails(&mut symwin(["launch", "-n", "2", "--ranks-per-process", "0", "true"]), 2);
    assert!(said.contains("--ranks-per-process"), "{said}");
}

#[test]
fn help_says_what_processes_are_told_and_how_a_run_ends() {
    let help = ok(&mut symwin(["launch", "--help"]));
    for part in ["Examples", "LOCAL_WORLD_SIZE", "SIGUSR1", "Standard input", "127", "--no-prefix", "--grace"]
    {
        assert!(help.contains(part), "{part} is not in\n{help}");
    }
    for hidden in ["supervise", "exec-rank"] {
        assert!(!ok(&mut symwin(["--help"])).contains(hidden));
    }
}

#[test]
fn output_that_nobody_can_take_is_an_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = launch("-n 2", "echo lost");
    let output = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("standard output: No space left"), "{said}");
    assert_ne!(output.status.code(), Some(0));
}

#[test]
fn programs_hear_that_the_reader_of_their_output_is_gone() {
    let mut run = launch("-n 2", "exec yes").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(run.stdout.take());
    assert_eq!(run.wait().unwrap().code(), Some(128 + 13));
}
