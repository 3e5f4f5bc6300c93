//! `symwin run`: checks what can be checked before anything starts, lets the ranks do the job, and reports.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use symwin::Communicator;

use crate::child::Work;
use crate::cli::RunArgs;
use crate::errors::combine;
use crate::output::Output;
use crate::plan::{Data, Job};
use crate::progress::Bar;
use crate::rank::{self, RankReport};
use crate::reduce;
use crate::report::Report;
use crate::size::show_bytes;
use crate::spawn;
use crate::table;
use crate::threads;

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let (ranks, each) = (args.ranks(), args.ranks_per_process());
    let (windows, bytes) = (args.windows(), args.bytes());
    let device = args.device.device(ranks)?;
    let output = args.output.as_deref().map(Output::new).transpose()?;
    let data = match &output {
        None => Data::Pattern { windows, bytes },
        Some(output) => {
            let result = output.temporary().to_owned();
            Data::Arrays { inputs: reduce::inspect(&args.input)?, result }
        }
    };
    let job = Job { ranks, device, op: args.op(), data };
    device.check_memory(|ranks| describe_memory(&job, ranks), ranks, job.memory_bytes())?;

    let began = Instant::now();
    let reports = work(&job, each, Bar::new(job.work_bytes(), !args.json))?;
    check_digests(&reports)?;
    if let Some(output) = output {
        output.commit()?;
    }
    let report = Report::new(&job, each, &reports, began.elapsed(), args.output.as_deref());
    let text = if args.json { format!("{}\n", report.to_json()) } else { table::show(&report) };
    io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}

fn work(job: &Job, each: Option<u32>, bar: Bar) -> anyhow::Result<Vec<RankReport>> {
    let Some(each) = each else {
        let make = |config: &symwin::Config| Communicator::in_process_with(job.ranks, config);
        let work = |comm, bootstrap| rank::run(comm, job, bootstrap, &bar);
        return threads::run(job.device, make, work).map_err(|errors| combine(&[], errors));
    };
    let mut reports: Vec<RankReport> = spawn::run(Work::Run(job.clone()), job.ranks, each, SILENCE, &bar)?;
    reports.sort_by_key(|report| report.rank);
    Ok(reports)
}

/// Every rank of an LSA team holds the same bytes in the end.
fn check_digests(reports: &[RankReport]) -> anyhow::Result<()> {
    for report in reports {
        let first = report.rank / report.lsa_size * report.lsa_size;
        let other = reports.iter().find(|other| other.rank == first);
        ensure!(
            other.is_some_and(|other| other.digest == report.digest),
            "rank {} and rank {first} hold different results: the reduction is wrong, please report it",
            report.rank
        );
    }
    Ok(())
}

fn describe_memory(job: &Job, ranks: u32) -> String {
    let (windows, bytes) = (job.windows(), show_bytes(job.bytes()));
    match job.data {
        Data::Arrays { .. } => format!("{ranks} arrays of {bytes}"),
        Data::Pattern { .. } => format!("{windows} windows x {bytes} x {ranks} ranks"),
    }
}

/// How long no process at all may say anything. Each says something every 16 MiB of work, and ends its own waits by
/// their deadlines long before; this is for processes that are stopped or hang outside of any wait.
pub(crate) const SILENCE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(lsa_size: u32, digests: &[u64]) -> Vec<RankReport> {
        let report = |(rank, &digest)| RankReport {
            rank,
            lsa_size,
            device: "host".to_owned(),
            laps: Vec::new(),
            digest,
        };
        (0..).zip(digests).map(report).collect()
    }

    #[test]
    fn differing_digests_of_one_team_are_an_error_that_names_both_ranks() {
        check_digests(&reports(4, &[7; 4])).unwrap();
        check_digests(&reports(2, &[7, 7, 8, 8])).unwrap();
        for (lsa_size, digests, first, other) in [(4, [7, 7, 8, 7], 0, 2), (2, [7, 7, 8, 9], 2, 3)] {
            let error = check_digests(&reports(lsa_size, &digests)).unwrap_err();
            let expected = format!("rank {other} and rank {first} hold different results");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
        // A team whose first rank never reported.
        let mut late = reports(2, &[7, 7]);
        late.remove(0);
        check_digests(&late).unwrap_err();
    }
}
