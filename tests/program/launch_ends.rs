//! `symwin launch`: how runs end, and that nothing is left behind.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::process::Signal;

use crate::launch::launch;
use crate::program::{end, ok, path};
use crate::watch::{MINUTE, children, is_gone, kill, stat, until};

/// Prints its number and that of a process that it has started, and runs until it is ended.
const FOREVER: &str = "sleep 1000 & echo $$ $!; wait; sleep 1000";

/// A run that goes on.
struct Run {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl Run {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (lines, errors) = (listen(child.stdout.take().unwrap()), listen(child.stderr.take().unwrap()));
        Self { child, lines, errors }
    }

    /// With signals as most programs find them, whatever this test's own process ignores.
    fn start_signalled(options: &str, script: &str) -> Self {
        Self::start(&mut through_env("--default-signal", options, script))
    }

    /// The next line of each of `count` processes, by rank and without the rank.
    fn next_lines(&self, count: usize) -> Vec<String> {
        let next = |_| self.lines.recv_timeout(MINUTE).expect("another line within a minute");
        let mut lines: Vec<_> = (0..count).map(next).collect();
        lines.sort_unstable();
        let text =
            |(rank, line): (usize, &String)| line.strip_prefix(&format!("[{rank}] ")).unwrap().to_owned();
        lines.iter().enumerate().map(text).collect()
    }

    /// The processes whose numbers `count` processes print next.
    fn next_pids(&self, count: usize) -> Vec<u32> {
        let lines = self.next_lines(count);
        lines.iter().flat_map(|line| line.split(' ')).map(|pid| pid.parse().unwrap()).collect()
    }

    fn signal(&self, signal: Signal) {
        kill(self.child.id(), signal);
    }

    /// How it ends by itself, and what else it has said on standard error.
    fn end(mut self) -> (ExitStatus, String) {
        let status = until("the launcher ends", || self.child.try_wait().unwrap());
        let errors: Vec<_> = std::iter::from_fn(|| self.errors.recv_timeout(MINUTE).ok()).collect();
        (status, errors.join("\n"))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (says, hears) = channel();
    thread::spawn(move || {
        BufReader::new(stream).lines().map_while(Result::ok).try_for_each(|line| says.send(line))
    });
    hears
}

/// A launch by `env`, which sets what signals do.
fn through_env(how: &str, options: &str, script: &str) -> Command {
    let launch = launch(options, script);
    let mut command = Command::new("env");
    command.arg(how).arg(launch.get_program()).args(launch.get_args()).stdin(Stdio::null());
    command
}

fn all_gone(pids: &[u32]) {
    until("all processes are gone", || pids.iter().all(|pid| is_gone(*pid)).then_some(()));
}

#[test]
fn a_failure_names_the_rank_and_gives_its_status() {
    for (ranks, rank, script, said, status) in [
        ("-n 1", "rank 0, pid ", "exit 3", "ended with exit status 3", 3),
        ("-n 1", "rank 0, pid ", "kill -KILL $$", "was killed by signal 9 (SIGKILL)", 137),
        (
            "-n 3",
            "rank 2, pid ",
            "[ $RANK = 2 ] && exit 41; exec sleep 1000",
            "ended with exit status 41",
            41,
        ),
        (
            "-n 4 --ranks-per-process 2",
            "ranks 2 to 3, pid ",
            "[ $RANK = 2 ] && kill -ABRT $$; exec sleep 1000",
            "was killed by signal 6 (SIGABRT)",
            134,
        ),
    ] {
        let (is, out, err) = end(&mut launch(ranks, script));
        assert_eq!((is, out.as_str()), (Some(status), ""), "{err}");
        let last = err.lines().last().unwrap();
        assert!(last.starts_with(&format!("symwin: error: {rank}")), "{err}");
        assert!(last.ends_with(said), "{err}");
    }
}

#[test]
fn who_failed_first_is_named_also_when_several_ends_are_seen_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let script = "cd $0; mkfifo go$RANK; echo $$; read x <go$RANK; exit $((3 + RANK))";
    let script = script.replace("$0", directory.path().to_str().unwrap());
    let run = Run::start(&mut launch("-n 3", &script));
    let pids = run.next_pids(3);
    let supervisor = children(run.child.id())[0];
    kill(supervisor, Signal::STOP);
    until("the supervisor sees nothing", || stat(supervisor).filter(|(state, _)| state == "T"));
    for rank in [2, 0, 1] {
        std::fs::write(directory.path().join(format!("go{rank}")), "\n").unwrap();
        all_gone(&pids[rank..=rank]);
    }
    kill(supervisor, Signal::CONT);
    let (status, said) = run.end();
    assert_eq!(status.code(), Some(5), "{said}");
    let expected = format!("symwin: error: rank 2, pid {}, ended with exit status 5", pids[2]);
    assert_eq!(said, expected);
}

#[test]
fn when_one_fails_the_others_are_asked_to_end() {
    let directory = tempfile::tempdir().unwrap();
    let script = "cd $0; if [ $RANK = 1 ]; then mkfifo go; : >there; read x <go; exit 5; fi
        trap 'echo asked; exit 0' TERM; echo $$; while :; do sleep 1000 & wait; done";
    let script = script.replace("$0", directory.path().to_str().unwrap());
    let run = Run::start_signalled("-n 3 --grace 600", &script);
    let first = run.lines.recv_timeout(MINUTE).unwrap();
    let second = run.lines.recv_timeout(MINUTE).unwrap();
    until("rank 1 waits", || directory.path().join("there").exists().then_some(()));
    std::fs::write(directory.path().join("go"), "\n").unwrap();
    let mut asked = [run.lines.recv_timeout(MINUTE).unwrap(), run.lines.recv_timeout(MINUTE).unwrap()];
    asked.sort_unstable();
    assert_eq!(asked, ["[0] asked", "[2] asked"]);
    let (status, said) = run.end();
    assert_eq!(status.code(), Some(5), "{said}");
    assert!(said.contains("ended with exit status 5: ending the other 2 processes"), "{said}");
    let pid = |line: &str| line.split(' ').nth(1).unwrap().parse().unwrap();
    all_gone(&[pid(&first), pid(&second)]);
}

#[test]
fn who_does_not_end_when_asked_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let script = "cd $0; if [ $RANK = 1 ]; then mkfifo go; : >there; read x <go; exit 5; fi
        trap '' TERM; sleep 1000 & echo $$ $!; wait";
    let script = script.replace("$0", directory.path().to_str().unwrap());
    let run = Run::start(&mut launch("-n 2 --grace 0.1", &script));
    let pids = run.next_pids(1);
    until("rank 1 waits", || directory.path().join("there").exists().then_some(()));
    std::fs::write(directory.path().join("go"), "\n").unwrap();
    let (status, said) = run.end();
    assert_eq!(status.code(), Some(5), "{said}");
    assert!(said.contains("not ended on SIGTERM within 0.1 s, killing: rank 0"), "{said}");
    assert!(said.lines().last().unwrap().starts_with("symwin: error: rank 1"), "{said}");
    all_gone(&pids);
}

#[test]
fn signals_are_passed_on() {
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2] {
        let number = signal.as_raw();
        let script =
            format!("trap 'echo got; exit 0' {number}; echo there; while :; do sleep 1000 & wait; done");
        let run = Run::start_signalled("-n 2", &script);
        assert_eq!(run.next_lines(2), ["there", "there"]);
        run.signal(signal);
        assert_eq!(run.next_lines(2), ["got", "got"], "{signal:?}");
        let (status, said) = run.end();
        assert_eq!((status.code(), said.as_str()), (Some(0), ""), "{signal:?}");
    }
}

#[test]
fn who_is_ended_by_a_signal_ends_the_run_with_it() {
    let run = Run::start_signalled("-n 2", "echo $$; exec sleep 1000");
    let pids = run.next_pids(2);
    run.signal(Signal::TERM);
    let (status, said) = run.end();
    assert_eq!(status.code(), Some(128 + 15), "{said}");
    assert!(said.contains("was killed by signal 15 (SIGTERM)"), "{said}");
    all_gone(&pids);
}

#[test]
fn a_second_interrupt_kills() {
    let run =
        Run::start_signalled("-n 2", "trap 'echo got' INT; echo $$; while :; do sleep 1000 & wait; done");
    let pids = run.next_pids(2);
    run.signal(Signal::INT);
    assert_eq!(run.next_lines(2), ["got", "got"]);
    run.signal(Signal::INT);
    let (status, said) = run.end();
    assert_eq!(status.code(), Some(128 + 9), "{said}");
    all_gone(&pids);
}

#[test]
fn signals_that_are_ignored_stay_so() {
    let script = "trap 'exit 0' USR1; echo there; while :; do sleep 1000 & wait; done";
    let run = Run::start(&mut through_env("--ignore-signal=INT", "-n 2", script));
    run.next_lines(2);
    run.signal(Signal::INT);
    run.signal(Signal::INT);
    run.signal(Signal::USR1);
    let (status, said) = run.end();
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

#[test]
fn a_stop_stops_all_until_they_are_continued() {
    let run =
        Run::start_signalled("-n 2", "trap 'exit 0' USR1; echo $$; while :; do sleep 1000 & wait; done");
    let mut pids = run.next_pids(2);
    pids.push(run.child.id());
    let state = |is: &'static str| {
        let pids = &pids;
        let all = move || {
            let stopped = |pid: &u32| stat(*pid).is_some_and(|(state, _)| state == "T");
            pids.iter().all(|pid| stopped(pid) == (is == "stopped")).then_some(())
        };
        until(is, all);
    };
    run.signal(Signal::TSTP);
    state("stopped");
    run.signal(Signal::CONT);
    state("running");
    run.signal(Signal::USR1);
    assert_eq!(run.end().0.code(), Some(0));
}

#[test]
fn nothing_outlives_a_launcher_that_is_killed() {
    let run = Run::start(&mut launch("-n 2", FOREVER));
    let mut pids = run.next_pids(2);
    pids.extend(children(run.child.id()));
    assert_eq!(pids.len(), 5, "two of each process, and the supervisor");
    run.signal(Signal::KILL);
    all_gone(&pids);
}

#[test]
fn nothing_outlives_a_launcher_that_is_killed_whatever_session_it_hides_in() {
    // A launch within a launch: its supervisor has a session of its own.
    let inner = format!("echo $$; \"$SYMWIN\" launch -n 2 --no-prefix -- sh -c '{FOREVER}'");
    for victim in ["launcher", "supervisor", "rank"] {
        let run = Run::start(launch("-n 1", &inner).env("SYMWIN", path()));
        let mut pids: Vec<u32> = run.next_lines(1)[0].split(' ').map(|pid| pid.parse().unwrap()).collect();
        for _ in 0..2 {
            let line = run.lines.recv_timeout(MINUTE).unwrap();
            pids.extend(line.split(' ').skip(1).map(|pid| pid.parse::<u32>().unwrap()));
        }
        assert_eq!(pids.len(), 5);
        let supervisor = children(run.child.id())[0];
        match victim {
            "launcher" => run.signal(Signal::KILL),
            "supervisor" => kill(supervisor, Signal::KILL),
            _ => kill(pids[0], Signal::KILL),
        }
        pids.extend([supervisor, run.child.id()]);
        all_gone(&pids);
    }
}

#[test]
fn nothing_outlives_a_supervisor_that_is_killed() {
    let run = Run::start(&mut launch("-n 2", FOREVER));
    let pids = run.next_pids(2);
    let supervisor = children(run.child.id());
    kill(supervisor[0], Signal::KILL);
    let (status, said) = run.end();
    assert_eq!(status.code(), Some(128 + 9), "{said}");
    let expected = format!("supervising process, pid {}, was killed by signal 9", supervisor[0]);
    assert!(said.contains(&expected), "{said}");
    assert!(pids.iter().all(|pid| is_gone(*pid)), "gone before the launcher is");
}

#[test]
fn a_process_that_is_killed_ends_the_run_with_all_that_it_has_started() {
    let run = Run::start(&mut launch("-n 3", FOREVER));
    let pids = run.next_pids(3);
    kill(pids[2], Signal::KILL);
    let (status, said) = run.end();
    assert_eq!(status.code(), Some(128 + 9), "{said}");
    let expected = format!("rank 1, pid {}, was killed by signal 9 (SIGKILL)", pids[2]);
    assert!(said.contains(&expected), "{said}");
    assert!(pids.iter().all(|pid| is_gone(*pid)), "gone before the launcher is");
}

#[test]
fn what_processes_leave_running_ends_with_the_run() {
    let said = ok(&mut launch("-n 2 --no-prefix", "sleep 1000 & echo $!"));
    let pids: Vec<u32> = said.lines().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| is_gone(*pid)), "{said}");
}
