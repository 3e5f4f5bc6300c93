//! The `symwin` program: the library's main job from the command line.
//!
//! `symwin run` starts ranks as threads or as processes, registers windows, reduces them and checks the result; see
//! `symwin run --help`. `symwin bench` measures. This file reads the command line; [`run`] and [`bench`] do the rest.
#![deny(unsafe_code)]

mod bench;
mod child;
mod cli;
mod errors;
mod memory;
mod npy;
mod output;
mod pattern;
mod phases;
mod plan;
mod progress;
mod rank;
mod reduce;
mod report;
mod run;
mod size;
mod spawn;
mod table;
mod threads;

use std::env;
use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    raise_descriptor_limit();
    let done = start_log().and_then(|()| match cli.command {
        Command::Bench(args) => bench::run(&args),
        Command::Child => child::run(),
        Command::Run(args) => run::run(&args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody hears it, the status still says that something is wrong.
            let _ = writeln!(io::stderr(), "symwin: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Every allocation of every peer is a descriptor, so the program takes what it may have.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where this is not allowed, the program runs with what it has; a shortage is an error that names the limit.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn start_log() -> anyhow::Result<()> {
    let Some(filter) = env::var_os("SYMWIN_LOG") else { return Ok(()) };
    let filter = filter.to_string_lossy();
    let filter = EnvFilter::try_new(filter.as_ref())
        .with_context(|| format!("SYMWIN_LOG = `{filter}` is no filter; an example: symwin=debug"))?;
    // Colours are for people: https://no-color.org, and no escape codes in files and pipes.
    let colours = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).init();
    Ok(())
}
