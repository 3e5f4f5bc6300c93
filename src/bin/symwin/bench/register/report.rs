//! What `symwin bench register` has to say of one number of windows.

use std::collections::BTreeMap;

use comfy_table::{Table, presets};
use serde_json::{Map, Value, json};

use super::super::World;
use super::super::cli::{Maps, RegisterArgs};
use super::super::mpi::{MpiFigures, Mpis};
use super::super::output::{figures_table, line, mpi_json, ratio, right, show};
use super::super::stats::{Figure, merge};
use super::super::syscalls::Counts;
use super::{Measured, Variant, variants};
use crate::size::show_bytes;
use crate::table::plural;

/// One number of windows.
#[derive(Debug)]
pub(crate) struct Report {
    world: World,
    windows: u32,
    bytes: u64,
    devices: String,
    arena: bool,
    each: bool,
    /// Whether what maps everything in each rank was left out.
    left_out: bool,
    /// By variant's name: microseconds of wall time and of processors' time for each window.
    figures: BTreeMap<&'static str, (Figure, Figure)>,
    /// How many rounds of messages a group took: the most of any.
    rounds: u64,
    /// Of a group, in order: name and microseconds. The median over ranks and samples.
    steps: Vec<(String, Figure)>,
    /// Microseconds for each window, or why there are none.
    mpi: MpiFigures,
    /// Calls of one group of all ranks, or why they were not counted.
    syscalls: Result<Counts, String>,
}

impl Report {
    pub(crate) fn new(
        args: &RegisterArgs,
        world: &World,
        windows: u32,
        measured: &Measured,
        mpis: &Mpis,
    ) -> Self {
        let per_window = 1.0 / (1e3 * f64::from(windows));
        let figure = |variant: Variant| {
            let (wall, cpu) = merge(&measured.ranks, variant.name());
            let scaled = |samples| Some(Figure::new(samples)?.scaled(per_window));
            Some((variant.name(), (scaled(wall)?, scaled(cpu)?)))
        };
        let syscalls = match &measured.syscalls {
            Some(Ok(counts)) => Ok(counts.clone()),
            Some(Err(why)) => Err(format!("{why:#}")),
            None => Err("nobody asked".to_owned()),
        };
        Self {
            world: *world,
            windows,
            bytes: args.bytes(),
            devices: measured.devices.join(", "),
            arena: args.arena,
            each: args.maps == Maps::Each,
            left_out: variants(args, world, windows).1,
            figures: Variant::ALL.into_iter().filter_map(figure).collect(),
            rounds: measured.rounds.iter().copied().max().unwrap_or(0),
            steps: steps(&measured.steps),
            mpi: mpis.figures(&measured.mpi),
            syscalls,
        }
    }

    /// One JSON object on one line.
    pub(crate) fn to_json(&self) -> String {
        let wall = |variant: Variant| self.wall(variant).map(|figure| figure.median);
        let cpu = |variant: Variant| self.cpu(variant).map(|figure| figure.median);
        let dedup = if self.arena { Variant::Dedup } else { Variant::Protocol };
        let each = if self.each || self.world.ranks_per_process == Some(1) {
            Variant::Bare
        } else {
            Variant::BareEach
        };
        let per_rank = |cpu: f64| cpu / f64::from(self.world.ranks);
        let spreads = |of: fn(&(Figure, Figure)) -> Figure| -> Map<String, Value> {
            self.figures.iter().map(|(name, figures)| ((*name).to_owned(), of(figures).to_json())).collect()
        };
        let steps: Map<String, Value> =
            self.steps.iter().map(|(name, figure)| (name.clone(), figure.median.into())).collect();
        let json = json!({
            "bench": "register",
            "ranks": self.world.ranks,
            "processes": self.world.processes(),
            "mode": self.world.mode(),
            "maps": if self.each { "each" } else { "shared" },
            "backend": self.world.device.backend(),
            "device": self.devices,
            "windows": self.windows,
            "bytes": self.bytes,
            "arena": self.arena,
            "samples": self.wall(Variant::Symwin).map(|figure| figure.samples),
            "rounds_per_group": self.rounds,
            "us_per_window": wall(Variant::Symwin),
            "baseline_us_per_window": wall(Variant::Protocol),
            "baseline_dedup_us_per_window": wall(dedup),
            "syscalls_us_per_window": wall(Variant::Bare),
            "driver_us_per_window": self.floor().map(|floor| floor.1.median),
            "driver_threads": self.floor().map(|floor| floor.0.threads()),
            "symwin_over_driver": wall(Variant::Symwin)
                .zip(self.floor())
                .map(|(symwin, floor)| symwin / floor.1.median),
            "syscalls_each_us_per_window": wall(each),
            "cpu_us_per_window": cpu(Variant::Symwin),
            "cpu_us_per_rank_and_window": cpu(Variant::Symwin).map(per_rank),
            "baseline_cpu_us_per_window": cpu(Variant::Protocol),
            "syscalls_cpu_us_per_window": cpu(Variant::Bare),
            "nothing_us_per_sample": wall(Variant::Nothing).map(|us| us * f64::from(self.windows)),
            "syscalls_per_group": self.syscalls.as_ref().ok().map(|counts| counts.values().sum::<u64>()),
            "syscalls_by_name": self.syscalls.as_ref().ok(),
            "steps_us": steps,
            "mpi_us_per_window": mpi_json(&self.mpi),
            "wall_us_per_window": spreads(|(wall, _)| *wall),
            "processors_us_per_window": spreads(|(_, cpu)| *cpu),
        });
        line(json)
    }

    /// As people read it.
    pub(crate) fn to_table(&self) -> String {
        let mut lines = vec![self.headline(), self.figures_table().to_string()];
        for (above, below) in [
            (Variant::Symwin, Variant::Bare),
            (Variant::Protocol, Variant::Symwin),
            (Variant::Dedup, Variant::Symwin),
        ] {
            if let (Some(above_figure), Some(below_figure)) = (self.wall(above), self.wall(below)) {
                let ratio = ratio(above_figure.median, below_figure.median);
                lines.push(format!("{} / {}: {ratio}", above.title(), below.title()));
            }
        }
        if let (Some(symwin), Some((floor, bare))) = (self.wall(Variant::Symwin), self.floor()) {
            lines.push(format!("symwin / {}: {}", floor.title(), ratio(symwin.median, bare.median)));
        }
        if self.left_out {
            lines.push(
                "per-window protocol: left out: each rank would map all windows of all ranks, which is more than \
                 this system allows a process (vm.max_map_count)"
                    .to_owned(),
            );
        }
        for (name, figure) in &self.mpi {
            match figure {
                Ok(figure) => {
                    let ratio = self.wall(Variant::Symwin).map(|symwin| ratio(figure.median, symwin.median));
                    lines.extend(ratio.map(|ratio| format!("{name} / symwin: {ratio}")));
                }
                Err(why) => lines.push(format!("{name}: not measured: {why}")),
            }
        }
        if let Some(nothing) = self.wall(Variant::Nothing) {
            let skew = nothing.median * f64::from(self.windows);
            lines.push(format!("of each sample, ranks begin and end apart: {skew:.1} us"));
        }
        lines.push(format!("rounds of messages for the group: {}", self.rounds));
        lines.push(match &self.syscalls {
            Ok(counts) => show_calls(counts),
            Err(why) => format!("system calls of the group: not counted: {why}"),
        });
        lines.push(if self.steps.is_empty() {
            "steps of the group: not recorded: unset SYMWIN_LOG".to_owned()
        } else {
            self.steps_table().to_string()
        });
        lines.join("\n") + "\n\n"
    }

    fn wall(&self, variant: Variant) -> Option<Figure> {
        self.figures.get(variant.name()).map(|(wall, _)| *wall)
    }

    /// The fastest of the bare driver's.
    fn floor(&self) -> Option<(Variant, Figure)> {
        let all = Variant::FLOORS.into_iter().filter_map(|floor| Some((floor, self.wall(floor)?)));
        all.min_by(|a, b| a.1.median.total_cmp(&b.1.median))
    }

    fn cpu(&self, variant: Variant) -> Option<Figure> {
        self.figures.get(variant.name()).map(|(_, cpu)| *cpu)
    }

    fn headline(&self) -> String {
        let (ranks, windows, bytes) = (self.world.ranks, self.windows, show_bytes(self.bytes));
        let place = self.world.describe();
        let memory = if self.arena { "from one allocation" } else { "each its own allocation" };
        let on = if self.world.device.is_cuda() { format!(" on {}", self.devices) } else { String::new() };
        format!("{} {place}{on}, {} of {bytes}, {memory}", plural(ranks, "rank"), plural(windows, "window"))
    }

    fn figures_table(&self) -> Table {
        let shown = Variant::ALL.into_iter().filter(|variant| *variant != Variant::Nothing);
        let mut rows: Vec<_> = shown
            .filter_map(|variant| Some((variant.title().to_owned(), self.wall(variant)?, self.cpu(variant))))
            .collect();
        rows.extend(self.mpi.iter().filter_map(|(name, figure)| {
            let title = format!("{name}: MPI_Win_allocate_shared");
            Some((title, *figure.as_ref().ok()?, None))
        }));
        figures_table("us per window", &rows)
    }

    fn steps_table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
            "step of the group",
            "us (median)",
            "quartiles",
        ]);
        for (name, figure) in &self.steps {
            let quartiles = format!("{}..{}", show(figure.low), show(figure.high));
            table.add_row([name.clone(), show(figure.median), quartiles]);
        }
        right(&mut table, 1..3);
        table
    }
}

/// Each step's figure over all ranks and samples, in the order in which they came up.
fn steps(recorded: &[Vec<(String, u64)>]) -> Vec<(String, Figure)> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in recorded.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let figure = |name: &str| {
        let of_name = recorded.iter().flatten().filter(|(other, _)| other == name);
        Some((name.to_owned(), Figure::new(of_name.map(|(_, nanos)| *nanos as f64 / 1e3))?))
    };
    names.into_iter().filter_map(figure).collect()
}

/// The most frequent calls first.
fn show_calls(counts: &Counts) -> String {
    let mut sorted: Vec<_> = counts.iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let all: u64 = counts.values().sum();
    let kinds: Vec<_> = sorted.iter().take(8).map(|(name, count)| format!("{name} {count}")).collect();
    format!("system calls of the group, all ranks: {all} ({})", kinds.join(", "))
}
