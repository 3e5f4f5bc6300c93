//! A process of ranks before it is the program: it asks the kernel to end it with the supervisor. That holds on
//! through the change, except for programs that run with other rights than their user's.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use super::args::ExecArgs;
use super::program::exec_status;
use crate::errors::tell;
use crate::processes::die_with_parent;

/// Becomes the program. Comes back only if that fails.
pub(crate) fn run(args: &ExecArgs) -> anyhow::Result<ExitCode> {
    die_with_parent(args.parent)?;
    let program = &args.program[0];
    let error = Command::new(program).args(&args.program[1..]).exec();
    tell(format!("`{}` cannot be executed: {error}", program.display()));
    Ok(ExitCode::from(exec_status(&error)))
}
