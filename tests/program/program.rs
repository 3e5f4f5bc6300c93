//! Running the program.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The program, with nothing of this test's environment that it would listen to.
pub(crate) fn symwin<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(path());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SYMWIN_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// Where the program is: where cargo built it, or where a test run that was moved elsewhere has put it.
pub(crate) fn path() -> OsString {
    std::env::var_os("SYMWIN_TEST_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_symwin").into())
}

/// `symwin run` with these arguments, in one string.
pub(crate) fn run(args: &str) -> Command {
    symwin(["run"].into_iter().chain(args.split_whitespace()))
}

/// How a program ended: its status, standard output and standard error.
pub(crate) fn end(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// What a run prints that must end well, without a word on standard error.
pub(crate) fn ok(command: &mut Command) -> String {
    let (status, stdout, stderr) = end(command);
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{command:?}\n{stdout}");
    stdout
}

/// The same as JSON.
pub(crate) fn json(command: &mut Command) -> Value {
    let stdout = ok(command.arg("--json"));
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

/// What a run says on standard error that must end with this status, and print nothing.
pub(crate) fn fails(command: &mut Command, status: i32) -> String {
    let (is, stdout, stderr) = end(command);
    assert_eq!((is, stdout.as_str()), (Some(status), ""), "{command:?}\n{stderr}");
    stderr
}
