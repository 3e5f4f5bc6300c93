//! The `symwin` program: the library's main job from the command line, and a launcher.
//!
//! `symwin run` starts ranks as threads or as processes, registers windows, reduces them and checks the result.
//! `symwin bench` measures. `symwin launch` starts another program as processes of ranks. `symwin sim` explores the
//! library under the deterministic runtime. This file reads the command line; [`run`], [`bench`], [`launch`] and [`sim`]
//! do the rest.
#![deny(unsafe_code)]

mod backend;
mod bench;
mod child;
mod cli;
mod colours;
mod errors;
mod launch;
mod memory;
mod npy;
mod output;
mod pattern;
mod phases;
mod plan;
mod processes;
mod progress;
mod rank;
mod reduce;
mod report;
mod run;
mod sim;
mod size;
mod spawn;
mod table;
mod threads;

use std::env;
use std::io;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use rustix::process::{Resource, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};

/// A simulation is mostly small allocations. Without huge pages: what a batch takes is far less than one, and clearing
/// them was half of the processors' time of a registration of a thousand windows.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(args) => {
            let prepared = if args.has_waiting_kernels() { prepare_streams() } else { prepare() };
            prepared.and_then(|()| bench::run(&args)).map(|()| ExitCode::SUCCESS)
        }
        Command::Child => prepare().and_then(|()| child::run()).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => prepare_streams().and_then(|()| run::run(&args)).map(|()| ExitCode::SUCCESS),
        Command::Sim(args) => prepare().and_then(|()| sim::run(&args)),
        // The programs that these start find limits and environment as they were.
        Command::Launch(args) => launch::run(&args),
        Command::Supervise(args) => launch::supervise::run(&args),
        Command::ExecRank(args) => launch::exec::run(&args),
    };
    done.unwrap_or_else(|error| {
        errors::tell(format!("{error:#}"));
        ExitCode::FAILURE
    })
}

/// What ranks need that wait for each other on one GPU, however many they are.
fn prepare_streams() -> anyhow::Result<()> {
    backend::serve_all_streams();
    prepare()
}

/// What ranks in this process need.
fn prepare() -> anyhow::Result<()> {
    raise_descriptor_limit();
    start_log()
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
    let colours = colours::wanted(&io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).init();
    Ok(())
}
