//! `symwin bench lookup`: finding a window by an address, beside a plain binary search over the same keys.

use std::hint::black_box;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, ensure};
use crossbeam_channel::bounded;
use serde_json::{Map, Value, json};
use symwin::{Buffer, Communicator, Config, Group, Window, WindowFlags};

use super::cli::LookupArgs;
use super::clock;
use super::output::{figures_table, line};
use super::stats::Figure;
use crate::memory;
use crate::phases::Phase;
use crate::progress::{Bar, Progress};
use crate::table::plural;

pub(crate) fn run(args: &LookupArgs) -> anyhow::Result<()> {
    let need = u64::from(args.windows) * PAGE as u64;
    memory::check(&format!("{} of {PAGE} bytes", plural(args.windows, "window")), Some(need))?;
    let mut ranks = Communicator::in_process_with(1, &Config::from_env()?)?;
    let comm = ranks.pop().context("one rank was made")?;
    let (buffer, windows) = register(&comm, args.windows as usize)?;
    let keys = Keys::new(&windows);
    let addresses = addresses(&keys);
    ensure!(
        addresses.iter().all(|address| {
            let found = comm.find_window(std::ptr::without_provenance(*address), 1);
            found.map(|window| window.address()) == keys.find(*address).map(|index| keys.starts[index])
        }),
        "find_window and a binary search find different windows: please report it"
    );
    let bar = Bar::new(u64::from(2 * args.output.samples), !args.output.json);
    let mut figures: Vec<(&str, Figure)> = Vec::new();
    let quiet = samples(&comm, &keys, &addresses, args.output.samples, &bar);
    let (busy, registrations) =
        while_registering(&comm, || samples(&comm, &keys, &addresses, args.output.samples, &bar))?;
    for (of, names) in [(quiet, QUIET), (busy, BUSY)] {
        for (samples, name) in of.into_iter().zip(names) {
            figures.push((name, Figure::new(samples).context("no samples")?));
        }
    }
    drop(bar);
    drop((windows, buffer));
    comm.finalize()?;
    let text = if args.output.json {
        to_json(args, &figures, registrations)
    } else {
        to_table(args, &figures, registrations)
    };
    io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}

/// Windows of a page each, side by side in one allocation.
fn register(comm: &Communicator, count: usize) -> anyhow::Result<(Buffer, Vec<Window>)> {
    let buffer = comm.alloc_own(count * PAGE)?;
    let mut windows = Vec::with_capacity(count);
    for first in (0..count).step_by(GROUP) {
        let group = Group::named("symwin bench");
        let mut pending = Vec::new();
        for index in first..count.min(first + GROUP) {
            let slice = buffer.slice(index * PAGE..(index + 1) * PAGE).map_err(symwin::Error::from)?;
            pending.push(group.register(comm, slice, WindowFlags::empty()));
        }
        group.end().map_err(symwin::Error::from)?;
        for window in pending {
            windows.push(window.wait()?);
        }
    }
    Ok((buffer, windows))
}

/// What a plain binary search looks into.
struct Keys {
    /// In order.
    starts: Vec<usize>,
    ends: Vec<usize>,
    /// What it may hand out of each.
    handles: Vec<Arc<usize>>,
}

impl Keys {
    fn new(windows: &[Window]) -> Self {
        let mut ranges: Vec<_> = windows.iter().map(|w| (w.address(), w.address() + w.size())).collect();
        ranges.sort_unstable();
        let (starts, ends): (Vec<usize>, Vec<usize>) = ranges.into_iter().unzip();
        let handles = (0..starts.len()).map(Arc::new).collect();
        Self { starts, ends, handles }
    }

    fn find(&self, address: usize) -> Option<usize> {
        let index = self.starts.partition_point(|start| *start <= address).checked_sub(1)?;
        (address < self.ends[index]).then_some(index)
    }
}

/// Addresses in windows, in no order.
fn addresses(keys: &Keys) -> Vec<usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap_or(0)
    };
    (0..LOOKUPS).map(|_| keys.starts[next() % keys.starts.len()] + next() % PAGE).collect()
}

/// Nanoseconds of one lookup: symwin's, the plain search, the plain search that hands out a counted reference.
fn samples(comm: &Communicator, keys: &Keys, addresses: &[usize], count: u32, bar: &Bar) -> [Vec<f64>; 3] {
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..WARM + count {
        let taken = [
            time(addresses, |address| {
                drop(black_box(comm.find_window(std::ptr::without_provenance(address), 1)))
            }),
            time(addresses, |address| {
                black_box(keys.find(address));
            }),
            time(addresses, |address| {
                drop(black_box(keys.find(address).map(|index| Arc::clone(&keys.handles[index]))));
            }),
        ];
        if round >= WARM {
            all.iter_mut().zip(taken).for_each(|(samples, taken)| samples.push(taken));
            bar.tell(Phase::Measure, 1);
        }
    }
    all
}

fn time(addresses: &[usize], find: impl Fn(usize)) -> f64 {
    let begin = clock::now();
    for _ in 0..PASSES {
        addresses.iter().for_each(|address| find(*address));
    }
    (clock::now() - begin) as f64 / (PASSES * addresses.len()) as f64
}

/// Does the work while another thread registers and closes a window again and again. Returns how often it did.
fn while_registering<T>(comm: &Communicator, work: impl FnOnce() -> T) -> anyhow::Result<(T, u64)> {
    let buffer = comm.alloc_own(PAGE)?;
    let (stop, (began, begins)) = (&AtomicBool::new(false), bounded(1));
    let register = move || -> symwin::Result<u64> {
        let mut registrations = 0;
        while !stop.load(Ordering::Relaxed) {
            comm.register(&buffer, WindowFlags::empty())?.close()?;
            registrations += 1;
            let _ = began.try_send(());
        }
        Ok(registrations)
    };
    let (result, registered) = thread::scope(|scope| {
        let writer = scope.spawn(register);
        // A registration has its deadline, so this wait has one. One that fails ends it too, and is told of below.
        let _ = begins.recv();
        let result = work();
        stop.store(true, Ordering::Relaxed);
        (result, writer.join())
    });
    let registered = registered.ok();
    let registered =
        registered.context("a bug in symwin, please report it: the registering thread panicked")?;
    Ok((result, registered?))
}

fn median(figures: &[(&str, Figure)], name: &str) -> f64 {
    figures.iter().find(|(of, _)| *of == name).map_or(f64::NAN, |(_, figure)| figure.median)
}

fn to_json(args: &LookupArgs, figures: &[(&str, Figure)], registrations: u64) -> String {
    let mut json = json!({
        "bench": "lookup",
        "windows": args.windows,
        "samples": args.output.samples,
        "lookups": PASSES * LOOKUPS,
        "registrations": registrations,
    });
    for (name, figure) in figures {
        json[name] = figure.median.into();
    }
    let spreads: Map<String, Value> =
        figures.iter().map(|(name, figure)| ((*name).to_owned(), figure.to_json())).collect();
    json["ns"] = spreads.into();
    line(json)
}

fn to_table(args: &LookupArgs, figures: &[(&str, Figure)], registrations: u64) -> String {
    let rows: Vec<_> =
        TITLES.iter().zip(figures).map(|(title, (_, f))| ((*title).to_owned(), *f, None)).collect();
    let ratio = |of: &str, to: &str| median(figures, of) / median(figures, to);
    let lines = [
        format!("an address among {}, {} lookups a sample", plural(args.windows, "window"), PASSES * LOOKUPS),
        figures_table("ns for each", &rows).to_string(),
        format!("find_window / plain search: {:.2}", ratio(QUIET[0], QUIET[1])),
        format!("find_window / plain search and a counted reference: {:.2}", ratio(QUIET[0], QUIET[2])),
        format!("find_window / plain search, while another thread registers: {:.2}", ratio(BUSY[0], BUSY[1])),
        format!("windows registered and closed meanwhile: {registrations}"),
    ];
    lines.join("\n") + "\n"
}

const QUIET: [&str; 3] = ["find_ns", "plain_ns", "plain_counted_ns"];
const BUSY: [&str; 3] = ["find_registering_ns", "plain_registering_ns", "plain_counted_registering_ns"];
const TITLES: [&str; 6] = [
    "find_window",
    "plain search",
    "plain search and a counted reference",
    "find_window, registering",
    "plain search, registering",
    "plain search and a counted reference, registering",
];
/// Of each window, in bytes.
const PAGE: usize = 4096;
/// Windows of one group.
const GROUP: usize = 1000;
/// Each sample looks all addresses up so often: it must be long beside what the system takes in between.
const PASSES: usize = 5;
/// Addresses.
const LOOKUPS: usize = 50_000;
/// Samples that nobody counts.
const WARM: u32 = 2;
