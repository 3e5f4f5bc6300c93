//! Many requests in one group: two rounds of messages, however many they are.
//!
//! ```console
//! cargo run --example batching
//! ```
//!
//! 64 buffers and a device communicator in one group cost an offer and a vote. The same 64 buffers, each registered by
//! itself, cost 64 times as many rounds. `Communicator::status` counts them.
#![allow(clippy::print_stdout, reason = "an example shows what it has done")]

use symwin::{Buffer, Communicator, DevComm, DevCommRequirements, Group, Result, Window, WindowFlags};

fn main() -> Result<()> {
    // One thread drives all ranks, as requests of a group wait for nobody before its end.
    let ranks = Communicator::in_process(4)?;
    let mut buffers = Vec::new();
    for comm in &ranks {
        buffers.push((0..WINDOWS).map(|_| comm.alloc(64 << 10)).collect::<Result<Vec<_>>>()?);
    }

    let before = rounds(&ranks);
    let (windows, dev_comms) = together(&ranks, &buffers)?;
    let batched = rounds(&ranks) - before;
    println!("{WINDOWS} windows and a device communicator in one group: {batched} rounds");
    assert_eq!(batched, 2, "an offer and a vote");
    assert_eq!((windows.len(), dev_comms.len()), (4 * WINDOWS, 4));
    drop((windows, dev_comms));

    let before = rounds(&ranks);
    let windows = one_by_one(&ranks, &buffers)?;
    let single = rounds(&ranks) - before;
    println!("{WINDOWS} windows in groups of their own: {single} rounds");
    assert_eq!(single, 2 * WINDOWS as u64);
    assert_eq!(windows.len(), 4 * WINDOWS);
    drop(windows);

    ranks.into_iter().try_for_each(Communicator::finalize)
}

/// All buffers and a device communicator in one group.
fn together(ranks: &[Communicator], buffers: &[Vec<Buffer>]) -> Result<(Vec<Window>, Vec<DevComm>)> {
    let group = Group::named("all at once");
    let (mut windows, mut dev_comms) = (Vec::new(), Vec::new());
    for (comm, buffers) in ranks.iter().zip(buffers) {
        // What is queued comes back as something to wait for. Nothing has been sent yet.
        windows.extend(buffers.iter().map(|buffer| group.register(comm, buffer, WindowFlags::empty())));
        dev_comms.push(group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(1)));
    }
    // One batch for each rank: it is real on all of them after this, or on none.
    group.end()?;
    let windows = windows.into_iter().map(|window| window.wait()).collect::<Result<_>>()?;
    let dev_comms = dev_comms.into_iter().map(|dev_comm| dev_comm.wait()).collect::<Result<_>>()?;
    Ok((windows, dev_comms))
}

/// The same windows, a group for each.
fn one_by_one(ranks: &[Communicator], buffers: &[Vec<Buffer>]) -> Result<Vec<Window>> {
    let mut windows = Vec::new();
    for index in 0..WINDOWS {
        let group = Group::named(format!("window {index}"));
        let register = |(comm, buffers): (&Communicator, &Vec<Buffer>)| {
            group.register(comm, &buffers[index], WindowFlags::empty())
        };
        let pending: Vec<_> = ranks.iter().zip(buffers).map(register).collect();
        group.end()?;
        for window in pending {
            windows.push(window.wait()?);
        }
    }
    Ok(windows)
}

/// Rounds in which rank 0 has sent messages.
fn rounds(ranks: &[Communicator]) -> u64 {
    ranks[0].status().rounds
}

const WINDOWS: usize = 64;
