//! Figures as people read them, and as programs do.

use std::ops::Range;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use super::mpi::MpiFigures;
use super::stats::Figure;

/// By the name of each MPI.
pub(crate) fn mpi_json(figures: &MpiFigures) -> Map<String, Value> {
    let json = |figure: &Result<Figure, String>| match figure {
        Ok(figure) => figure.to_json(),
        Err(why) => json!({ "not_measured": why }),
    };
    figures.iter().map(|(name, figure)| ((*name).to_owned(), json(figure))).collect()
}

/// One JSON object on one line, its numbers with as many digits as say something.
pub(crate) fn line(mut json: Value) -> String {
    round(&mut json);
    format!("{json}\n")
}

fn round(json: &mut Value) {
    match json {
        Value::Array(values) => values.iter_mut().for_each(round),
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|_| number.is_f64()) {
                *json = ((float * 1e4).round() / 1e4).into();
            }
        }
        Value::Object(values) => values.values_mut().for_each(round),
        Value::Bool(_) | Value::Null | Value::String(_) => {}
    }
}

/// A row for each figure: its name, the figure, and the processors' time where it is known.
pub(crate) fn figures_table(unit: &str, rows: &[(String, Figure, Option<Figure>)]) -> Table {
    let mut table = Table::new();
    let header = [unit, "median", "quartiles", "range", "processors (all ranks)"];
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    for (name, wall, cpu) in rows {
        table.add_row([
            name.clone(),
            show(wall.median),
            format!("{}..{}", show(wall.low), show(wall.high)),
            format!("{}..{}", show(wall.min), show(wall.max)),
            cpu.map(|cpu| show(cpu.median)).unwrap_or_default(),
        ]);
    }
    right(&mut table, 1..5);
    table
}

/// Moves columns of numbers to the right.
pub(crate) fn right(table: &mut Table, columns: Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// How many times the second one the first one is.
pub(crate) fn ratio(of: f64, to: f64) -> String {
    let ratio = of / to;
    if ratio < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}

/// A number with as many digits as say something.
pub(crate) fn show(number: f64) -> String {
    if number < 10.0 { format!("{number:.2}") } else { format!("{number:.1}") }
}
