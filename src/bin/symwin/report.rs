//! What a run has to say in the end: one value, from which the table and the JSON are made.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};
use symwin::coll::{DType, ReduceOp};

use crate::phases::{Lap, Phase};
use crate::plan::{Data, Job};
use crate::rank::RankReport;

/// A run that was checked and is right.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) ranks: u32,
    pub(crate) processes: u32,
    /// `threads`, `processes` or `mixed`.
    pub(crate) mode: &'static str,
    pub(crate) backend: &'static str,
    /// What the ranks' devices are called, each name once.
    pub(crate) devices: Vec<String>,
    pub(crate) windows: u32,
    /// Of each window.
    pub(crate) bytes: u64,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) lsa_size: u32,
    /// Each phase's longest time and most rounds of any rank.
    pub(crate) laps: Vec<Lap>,
    /// All of it, as seen from outside.
    pub(crate) total: Duration,
    /// The output file and its array's shape.
    pub(crate) output: Option<(PathBuf, String)>,
}

impl Report {
    pub(crate) fn new(
        job: &Job,
        ranks_per_process: Option<u32>,
        reports: &[RankReport],
        total: Duration,
        output: Option<&Path>,
    ) -> Self {
        let processes = ranks_per_process.map_or(1, |each| job.ranks.div_ceil(each));
        let mode = match ranks_per_process {
            None => "threads",
            Some(1) => "processes",
            Some(_) if processes == 1 => "threads",
            Some(_) => "mixed",
        };
        let shape = match &job.data {
            Data::Arrays { inputs, .. } => inputs.first().map(|input| input.header.shown_shape()),
            Data::Pattern { .. } => None,
        };
        Self {
            ranks: job.ranks,
            processes,
            mode,
            backend: job.device.backend(),
            devices: devices(reports.iter().map(|report| report.device.clone())),
            windows: job.windows(),
            bytes: job.bytes(),
            dtype: job.dtype(),
            op: job.op,
            lsa_size: reports.first().map_or(job.ranks, |report| report.lsa_size),
            laps: Phase::ALL.into_iter().filter_map(|phase| slowest(reports, phase)).collect(),
            total,
            output: output.map(Path::to_owned).zip(shape),
        }
    }

    /// One JSON object on one line.
    pub(crate) fn to_json(&self) -> Value {
        let by_phase = |figure: fn(&Lap) -> u64| -> Map<String, Value> {
            self.laps.iter().map(|lap| (lap.phase.key().to_owned(), figure(lap).into())).collect()
        };
        let rounds_group = self.laps.iter().find(|lap| lap.phase == Phase::Register).map(|lap| lap.rounds);
        let mut json = json!({
            "ranks": self.ranks,
            "processes": self.processes,
            "mode": self.mode,
            "backend": self.backend,
            "device": self.devices.join(", "),
            "windows": self.windows,
            "bytes": self.bytes,
            "dtype": self.dtype.name(),
            "op": self.op.name(),
            "lsa_team_size": self.lsa_size,
            "rounds_group": rounds_group,
            "verified": true,
            "total_micros": u64::try_from(self.total.as_micros()).unwrap_or(u64::MAX),
            "phases": by_phase(|lap| lap.micros),
            "rounds": by_phase(|lap| lap.rounds),
        });
        if let Some((path, shape)) = &self.output {
            json["output"] = path.to_string_lossy().into();
            json["shape"] = shape.as_str().into();
        }
        json
    }
}

/// Each name once, in the order of the ranks.
pub(crate) fn devices(of_ranks: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in of_ranks {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The longest time and the most rounds of any rank in a phase; `None` if there was no such phase.
fn slowest(reports: &[RankReport], phase: Phase) -> Option<Lap> {
    let laps = reports.iter().flat_map(|report| &report.laps).filter(|lap| lap.phase == phase);
    laps.copied().reduce(|a, b| Lap { phase, micros: a.micros.max(b.micros), rounds: a.rounds.max(b.rounds) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Device;

    #[test]
    fn a_phase_takes_as_long_as_its_slowest_rank() {
        let report = |rank, micros, rounds| {
            let laps = vec![Lap { phase: Phase::Register, micros, rounds }];
            RankReport { rank, lsa_size: 2, device: "host".to_owned(), laps, digest: 0 }
        };
        let job = Job {
            ranks: 3,
            device: Device::Host,
            op: ReduceOp::Sum,
            data: Data::Pattern { windows: 2, bytes: 8 },
        };
        let reports = [report(0, 5, 2), report(1, 9, 2), report(2, 7, 3)];
        let json = Report::new(&job, Some(2), &reports, Duration::from_micros(20), None).to_json();
        assert_eq!(json["phases"], json!({ "register": 9 }));
        assert_eq!(
            (&json["rounds_group"], &json["processes"], &json["mode"]),
            (&json!(3), &json!(2), &json!("mixed"))
        );
    }
}
