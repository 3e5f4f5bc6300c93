//! Heat that spreads over a plate: a 2-D stencil over ranks, with an exchange of halos in every step.
//!
//! ```console
//! cargo run --release --example halo
//! ```
//!
//! The plate is cut into strips of rows, one for each rank. A new value is the mean of the four neighbours of the old
//! one (Jacobi), so that a strip needs one row of each neighbouring strip: its halo. Each rank's kernel writes its
//! first and last row straight into its neighbours' halos, and one barrier a step is all that it takes: there are two
//! plates, and while neighbours write into the halos of the new one, everybody reads the old one.
//!
//! The result is compared, bit by bit, with that of a plain loop over the whole plate.
#![allow(clippy::print_stdout, reason = "an example shows what it has done")]

use symwin::device::{DeviceWindow, Kernel};
use symwin::{Communicator, DevCommRequirements, Group, LsaRank, Result, WindowFlags};

fn main() -> Result<()> {
    let ranks = Communicator::in_process(RANKS)?;
    let group = Group::named("plate");
    let mut pending = Vec::new();
    for comm in &ranks {
        // Zeroed: the plate and what is around it are cold.
        let strip = comm.alloc(2 * PLATE_BYTES)?;
        let window = group.register(comm, &strip, WindowFlags::empty());
        let dev_comm = group.create_dev_comm(comm, DevCommRequirements::new().lsa_barriers(1));
        pending.push((strip, window, dev_comm));
    }
    group.end()?;

    let mut running = Vec::new();
    for (strip, window, dev_comm) in pending {
        if running.is_empty() {
            // The row above the plate, in both of rank 0's plates, is hot and stays so.
            let hot = HOT.to_ne_bytes().repeat(COLUMNS);
            strip.write(0, &hot)?;
            strip.write(PLATE_BYTES, &hot)?;
        }
        let window = window.wait()?;
        let handle = window.device_address();
        let kernel = dev_comm.wait()?.launch(1, move |kernel| spread(kernel, &kernel.window(handle)?))?;
        running.push((strip, window, kernel));
    }

    let mut plate = Vec::new();
    for (strip, window, kernel) in running {
        kernel.join()?;
        let mut bytes = vec![0; 4 * ROWS * COLUMNS];
        strip.read(usize::try_from(at(STEPS % 2, 1)).expect("it is in the window"), &mut bytes)?;
        plate.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)));
        drop(window);
    }
    let expected = serial();
    let wrong = plate.iter().zip(&expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert_eq!((plate.len(), wrong), (expected.len(), 0), "bitwise the same as without ranks");
    assert!(plate[COLUMNS / 2] > 0.0 && plate[(RANKS as usize * ROWS - 1) * COLUMNS + COLUMNS / 2] > 0.0);
    println!("{RANKS} strips of {ROWS} x {COLUMNS}, {STEPS} steps: the same as without ranks, bit by bit");
    ranks.into_iter().try_for_each(Communicator::finalize)
}

/// One rank's steps. Row 0 and row `ROWS + 1` of its strip are the halos.
fn spread(kernel: &Kernel<'_>, window: &DeviceWindow<'_>) -> Result<()> {
    let me = kernel.lsa_rank().get();
    let upper = me.checked_sub(1).map(LsaRank::new);
    let lower = Some(me + 1).filter(|rank| *rank < kernel.lsa_size()).map(LsaRank::new);
    let mut barrier = kernel.barrier(0)?;
    let mut rows = [[0.0; COLUMNS]; 3];
    for step in 0..STEPS {
        let (old, new) = (step % 2, (step + 1) % 2);
        let read = |row: usize, to: &mut [f32; COLUMNS]| {
            window.local_slice::<f32>(at(old, row), COLUMNS)?.read_into(0, to)
        };
        let write = |to: LsaRank, row: usize, from: &[f32; COLUMNS]| {
            window.slice::<f32>(to, at(new, row), COLUMNS)?.write_from(0, from)
        };
        read(0, &mut rows[0])?;
        read(1, &mut rows[1])?;
        for row in 1..=ROWS {
            read(row + 1, &mut rows[2])?;
            let mean = stencil(&rows[0], &rows[1], &rows[2]);
            write(kernel.lsa_rank(), row, &mean)?;
            if let Some(upper) = upper.filter(|_| row == 1) {
                write(upper, ROWS + 1, &mean)?;
            }
            if let Some(lower) = lower.filter(|_| row == ROWS) {
                write(lower, 0, &mean)?;
            }
            rows.rotate_left(1);
        }
        // All have read the old plate and written the new one.
        barrier.sync()?;
    }
    Ok(())
}

/// The whole plate in one loop.
fn serial() -> Vec<f32> {
    let rows = RANKS as usize * ROWS;
    let mut old = vec![[0.0; COLUMNS]; rows + 2];
    old[0] = [HOT; COLUMNS];
    let mut new = old.clone();
    for _ in 0..STEPS {
        for row in 1..=rows {
            new[row] = stencil(&old[row - 1], &old[row], &old[row + 1]);
        }
        std::mem::swap(&mut old, &mut new);
    }
    old[1..=rows].concat()
}

/// A row's new values. Left and right of the plate it is cold.
fn stencil(above: &[f32; COLUMNS], row: &[f32; COLUMNS], below: &[f32; COLUMNS]) -> [f32; COLUMNS] {
    std::array::from_fn(|column| {
        let left = if column == 0 { 0.0 } else { row[column - 1] };
        let right = row.get(column + 1).copied().unwrap_or(0.0);
        0.25 * (above[column] + below[column] + left + right)
    })
}

/// Where a row of one of the two plates begins in the window, in bytes.
fn at(plate: usize, row: usize) -> u64 {
    (plate * PLATE_BYTES + 4 * row * COLUMNS) as u64
}

const RANKS: u32 = 4;
const ROWS: usize = 32;
const COLUMNS: usize = 96;
const STEPS: usize = 401;
const HOT: f32 = 100.0;
/// A strip with its two halos.
const PLATE_BYTES: usize = 4 * (ROWS + 2) * COLUMNS;
