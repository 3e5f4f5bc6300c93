//! Ranks as processes, started by `symwin launch`.
//!
//! ```console
//! cargo build --example processes
//! cargo run -- launch -n 4 -- target/debug/examples/processes
//! cargo run -- launch -n 4 --ranks-per-process 2 -- target/debug/examples/processes
//! ```
//!
//! The launcher starts this program several times and tells each process its place; `Communicator::ranks_from_env`
//! reads that and finds the other processes. A process with several ranks has a thread for each. From there on the code
//! is the same as with threads alone: rank 0 writes a greeting into the memory of every other rank, in whatever process
//! it is.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it has done")]

use std::process::ExitCode;
use std::thread;

use symwin::{Communicator, DevCommRequirements, Group, Rank, Result, WindowFlags};

fn main() -> Result<ExitCode> {
    if std::env::var_os("SYMWIN_RENDEZVOUS").is_none() {
        eprintln!("This program is one process of several. Start it with:");
        eprintln!("  cargo run -- launch -n 4 -- target/debug/examples/processes");
        return Ok(ExitCode::from(2));
    }
    let ranks = Communicator::ranks_from_env()?;
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a rank checks its result"))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn rank(comm: Communicator) -> Result<()> {
    let buffer = comm.alloc(4096)?;
    let group = Group::named("greetings");
    let window = group.register(&comm, &buffer, WindowFlags::empty());
    let dev_comm = group.create_dev_comm(&comm, DevCommRequirements::new().lsa_barriers(1));
    group.end()?;
    let (window, dev_comm) = (window.wait()?, dev_comm.wait()?);

    let greeting = |to: Rank| format!("rank 0, pid {}, greets {to}", comm.peers()[0].pid);
    if comm.rank().get() == 0 {
        for peer in comm.peers() {
            window.write(peer.rank, 0, greeting(peer.rank).as_bytes())?;
        }
    }
    // All ranks meet: the greetings are there.
    dev_comm.run(|kernel| kernel.barrier(0)?.sync())?;

    let expected = greeting(comm.rank());
    let mut read = vec![0; expected.len()];
    buffer.read(0, &mut read)?;
    assert_eq!(String::from_utf8_lossy(&read), expected);
    println!("pid {} reads: {expected}", std::process::id());

    // Nobody leaves while a peer may still need it.
    dev_comm.run(|kernel| kernel.barrier(0)?.sync())?;
    comm.finalize()
}
