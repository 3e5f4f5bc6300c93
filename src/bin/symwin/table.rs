//! A run's report as people read it.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::report::Report;
use crate::size::show_bytes;

/// All of it, with a line's end at its end.
pub(crate) fn show(report: &Report) -> String {
    let mut lines = vec![headline(report), table(report).to_string()];
    if report.lsa_size < report.ranks {
        let ranks = plural(report.lsa_size, "rank");
        lines.push(format!("LSA teams of {ranks}: each reduced its own windows (SYMWIN_LSA_TEAM_SIZE)"));
    }
    lines.push(verdict(report));
    lines.join("\n") + "\n"
}

fn headline(report: &Report) -> String {
    let ranks = plural(report.ranks, "rank");
    let how = match report.mode {
        "processes" => format!("as {}", plural(report.processes, "process")),
        "mixed" => format!("as threads of {}", plural(report.processes, "process")),
        _ => "as threads of one process".to_owned(),
    };
    let windows = plural(report.windows, "window");
    let memory = match report.backend {
        "host" => "host memory".to_owned(),
        _ => format!("memory of {}", report.devices.join(", ")),
    };
    let (bytes, dtype, op) = (show_bytes(report.bytes), report.dtype, report.op);
    format!("{ranks} {how}, {windows} of {bytes}, {op} of {dtype}, {memory}")
}

fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(["phase", "time (slowest rank)", "rounds"]);
    for lap in &report.laps {
        let time = show_time(Duration::from_micros(lap.micros));
        table.add_row([lap.phase.to_string(), time, lap.rounds.to_string()]);
    }
    let rounds: u64 = report.laps.iter().map(|lap| lap.rounds).sum();
    table.add_row(["all".to_owned(), show_time(report.total), rounds.to_string()]);
    for column in [1, 2] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn verdict(report: &Report) -> String {
    let Some((path, shape)) = &report.output else {
        let (windows, ranks) = (plural(report.windows, "window"), plural(report.ranks, "rank"));
        return format!("verified: {windows} x {} x {ranks}, every element", show_bytes(report.bytes));
    };
    let (path, dtype, op, arrays) = (path.display(), report.dtype, report.op, plural(report.ranks, "array"));
    format!("verified: all ranks hold the same result; wrote {path}: {dtype} {shape}, {op} of {arrays}")
}

/// How many of what.
pub(crate) fn plural(count: u32, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "process") => format!("{count} processes"),
        _ => format!("{count} {what}s"),
    }
}

fn show_time(time: Duration) -> String {
    let micros = time.as_micros();
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{}.{:02} ms", micros / 1_000, micros % 1_000 / 10),
        _ => format!("{}.{:02} s", micros / 1_000_000, micros % 1_000_000 / 10_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_the_unit_that_fits() {
        assert_eq!(show_time(Duration::from_micros(999)), "999 us");
        assert_eq!(show_time(Duration::from_micros(1_050)), "1.05 ms");
        assert_eq!(show_time(Duration::from_millis(61_230)), "61.23 s");
    }
}
