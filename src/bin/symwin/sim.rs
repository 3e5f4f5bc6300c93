//! `symwin sim`: explores symwin itself under the deterministic runtime.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use symwin::sim::{Device, Failure, Faults, Policy, Report, Scenario, Schedule, Shape, Sim};

use crate::cli::refuse;

#[derive(Args, Debug)]
pub(crate) struct SimArgs {
    /// How many ranks there are
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,

    /// How many hosts they are on; it divides the ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,

    /// How many ranks each process has; it divides the ranks of a host
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_process: u32,

    /// How many communicators every rank drives, in an order of its own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    comms: u32,

    /// How many windows a group registers in each communicator
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// How many groups every rank runs
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    groups: u32,

    /// What decides what runs next
    #[arg(long, value_name = "POLICY", default_value = "random")]
    policy: PolicyName,

    /// The seed of the policy
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,

    /// How many ordering constraints a bug may need, for pct
    #[arg(long, value_name = "D", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,

    /// How many runs there are at most [default: 1000; a million for dfs; 1 for rr]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    runs: Option<u64>,

    /// Which faults a run may have, drawn from its seed: all, none, or some of abort, corrupt, cut, deadline, delay,
    /// driver, drop, kill, late, partition, slow, with commas between them
    #[arg(long, value_name = "LIST", default_value = "none")]
    faults: Faults,

    /// Make one run again, from the line that a failed one printed; the other flags must be the same
    #[arg(long, value_name = "SCHEDULE", conflicts_with_all = ["policy", "seed", "runs"])]
    replay: Option<Schedule>,

    /// What is behind the windows: nothing, or memory whose pointers are checked
    #[arg(long, value_name = "DEVICE", default_value = "null")]
    device: DeviceName,

    /// Programs are host threads with blocking calls instead of scripts
    #[arg(long)]
    host_threads: bool,

    /// The world ends without goodbyes: for thousands of ranks
    #[arg(long)]
    no_finalize: bool,

    /// Print one JSON object instead of text, and no progress bar
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    /// Every choice is random
    Random,
    /// Random priorities, changed at a few steps
    Pct,
    /// Every order once, states that were seen before left out
    Dfs,
    /// The plain order
    Rr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeviceName {
    Null,
    Host,
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  symwin sim --runs 10000 --faults all            mixed faults under 10,000 seeds
  symwin sim --policy dfs --ranks 2 --windows 1 --groups 1 --device host
                                                  every order of a small world
  symwin sim --ranks 4096 --hosts 512 --ranks-per-process 8 --comms 1 --windows 64 --groups 1 --runs 1 --no-finalize
                                                  one group among 4,096 ranks
  symwin sim --runs 100000 --faults all --hosts 2  the nightly run

Exit status: 0 if every run held, 1 if one failed: its story and the line that replays it are printed.";

impl SimArgs {
    /// The world; ends the program if there is no such one.
    fn scenario(&self) -> Scenario {
        let Self { ranks, hosts, ranks_per_process: each, .. } = *self;
        let refused = |what: &str| refuse(ErrorKind::ValueValidation, what);
        if !ranks.is_multiple_of(hosts) {
            refused(&format!("--hosts {hosts} does not divide --ranks {ranks}"));
        }
        let host = ranks / hosts;
        if !host.is_multiple_of(each) {
            refused(&format!("--ranks-per-process {each} does not divide the {host} ranks of a host"));
        }
        let shape = Shape { hosts, processes: host / each, ranks: each };
        if let Err(error) = shape.check() {
            refused(&error.to_string());
        }
        Scenario {
            shape,
            comms: self.comms,
            windows: self.windows,
            groups: self.groups,
            threads: self.host_threads,
            device: self.device(),
            finalize: !self.no_finalize,
        }
    }

    const fn device(&self) -> Device {
        match self.device {
            DeviceName::Null => Device::Null,
            DeviceName::Host => Device::Host,
        }
    }

    fn policy(&self) -> Policy {
        if let Some(schedule) = &self.replay {
            return Policy::of(schedule.clone());
        }
        let policy = match self.policy {
            PolicyName::Random => Policy::random(self.seed).runs(1_000),
            PolicyName::Pct => Policy::pct(self.seed, self.depth).runs(1_000),
            PolicyName::Dfs => Policy::depth_first(),
            PolicyName::Rr => Policy::round_robin(),
        };
        match self.runs {
            Some(runs) => policy.runs(runs),
            None => policy,
        }
    }

    /// The command that makes a run again.
    fn replay_line(&self, failure: &Failure) -> String {
        let mut line = "symwin sim".to_owned();
        let defaults = [
            ("ranks", self.ranks, 8),
            ("hosts", self.hosts, 1),
            ("ranks-per-process", self.ranks_per_process, 1),
            ("comms", self.comms, 2),
            ("windows", self.windows, 2),
            ("groups", self.groups, 8),
        ];
        for (flag, value, _) in defaults.iter().filter(|(_, value, default)| value != default) {
            let _ = write!(line, " --{flag} {value}");
        }
        if !self.faults.is_empty() {
            let _ = write!(line, " --faults {}", self.faults);
        }
        if self.device == DeviceName::Host {
            line.push_str(" --device host");
        }
        if self.host_threads {
            line.push_str(" --host-threads");
        }
        if self.no_finalize {
            line.push_str(" --no-finalize");
        }
        let _ = write!(line, " --replay '{}'", failure.schedule);
        line
    }
}

/// Explores; exit status 1 if a run failed.
pub(crate) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    let scenario = args.scenario();
    let policy = args.policy();
    let (processes, ranks) = (scenario.shape.hosts * scenario.shape.processes, args.ranks);
    let sim = Sim::new().device(args.device()).faults(args.faults, processes as usize, ranks as usize);
    let bar = bar(&policy, args.json);
    let found = sim.explore_with(&policy, |world| scenario.build(world), |report| tell(&bar, report));
    bar.finish_and_clear();
    let mut out = io::stdout().lock();
    match found {
        Ok(report) => {
            let text = if args.json { json_of(args, &report, None) } else { text_of(args, &report) };
            out.write_all(text.as_bytes()).context("writing to standard output")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => {
            let line = args.replay_line(&failure);
            let text = if args.json {
                json_of(args, &failure.report, Some((&failure, &line)))
            } else {
                format!("{failure}\n\nto see it again: {line}\n")
            };
            out.write_all(text.as_bytes()).context("writing to standard output")?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn bar(policy: &Policy, json: bool) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    // How many runs depth-first takes is not known before.
    let template = if policy.name() == "dfs" {
        "{spinner} {pos} runs  {elapsed}  {msg}"
    } else {
        "{wide_bar} {pos}/{len} runs  {elapsed}  {msg}"
    };
    let style =
        ProgressStyle::with_template(template).expect("the template is a valid one").progress_chars("=> ");
    let bar = ProgressBar::new(policy.run_count()).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn tell(bar: &ProgressBar, report: &Report) {
    bar.set_position(report.runs);
    if report.runs.is_multiple_of(64) {
        bar.set_message(format!("{:.2} M steps/s", report.steps_per_s() / 1e6));
    }
}

fn text_of(args: &SimArgs, report: &Report) -> String {
    let Report { runs, pruned, verified, steps, digests, states, faulty, net, traffic, .. } = report;
    let mut text = format!(
        "every run held: {runs} runs of {} ranks, {} communicators, {} windows, {} groups\n",
        args.ranks, args.comms, args.windows, args.groups
    );
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<24}{value}");
    };
    let seed = report.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
    row("policy", format!("{}{seed}", report.policy));
    row("steps", format!("{steps}, {:.0} a second", report.steps_per_s()));
    row("different runs", format!("{digests}, digest of all {:016x}", report.digest_of_digests));
    row("made twice", format!("{verified}, with equal digests"));
    if !args.faults.is_empty() {
        let damage =
            format!("{} frames damaged, {} delayed, {} refused", net.damaged, net.delayed, net.refused);
        row("with faults", format!("{faulty} runs ({}); {damage}", args.faults));
    }
    if report.policy == "dfs" {
        let exhausted =
            if report.exhausted { "everything seen" } else { "NOT everything seen: raise --runs" };
        row(
            "depth-first",
            format!("{exhausted}; {states} states, {pruned} runs cut short at one seen before"),
        );
    }
    row(
        "rounds of the last run",
        format!(
            "{} a batch, {} of them between hosts; at most {} messages of a rank a batch",
            per(traffic.rounds_max, traffic.batches),
            traffic.world_rounds(),
            per(traffic.messages_max, traffic.batches)
        ),
    );
    text
}

const fn per(count: u64, batches: u64) -> u64 {
    if batches == 0 { 0 } else { count.div_ceil(batches) }
}

fn json_of(args: &SimArgs, report: &Report, failed: Option<(&Failure, &str)>) -> String {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("ranks", json!(args.ranks));
    put("hosts", json!(args.hosts));
    put("comms", json!(args.comms));
    put("windows", json!(args.windows));
    put("groups", json!(args.groups));
    put("faults", json!(args.faults.to_string()));
    put("policy", json!(report.policy));
    put("seed", json!(report.seed));
    put("runs", json!(report.runs));
    put("pruned", json!(report.pruned));
    put("verified", json!(report.verified));
    put("faulty", json!(report.faulty));
    put("steps", json!(report.steps));
    put("steps_per_s", json!(report.steps_per_s().round()));
    put("seconds", json!(report.elapsed.as_secs_f64()));
    put("digests", json!(report.digests));
    put("digest_of_digests", json!(format!("{:016x}", report.digest_of_digests)));
    put("states", json!(report.states));
    put("exhausted", json!(report.exhausted));
    put("rounds_per_group", json!(per(report.traffic.rounds_max, report.traffic.batches)));
    put("world_rounds", json!(report.traffic.world_rounds()));
    put("messages_per_rank", json!(per(report.traffic.messages_max, report.traffic.batches)));
    put("failures", json!(u64::from(failed.is_some())));
    if let Some((failure, line)) = failed {
        put("run", json!(failure.run));
        put("broken", json!(failure.broken));
        put("drawn", json!(failure.faults));
        put("schedule", json!(failure.schedule.to_string()));
        put("replay", json!(line));
        put("story", json!(failure.story));
    }
    format!("{}\n", Value::Object(object))
}
