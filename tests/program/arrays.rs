//! `--input` and `--output`: the reduction of files, against an oracle that shares no code with the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use half::f16;
use tempfile::tempdir;

use crate::npy::{Element, Form, elements, file, inputs};
use crate::program::{json, ok, symwin};

const OPS: [&str; 4] = ["sum", "mean", "min", "max"];

/// A row form: little endian where that matters.
const ROW: Form = Form { order: '<', fortran: "False", shape: "(6,)" };

pub(crate) fn reduce(op: &str, how: &[&str], inputs: &[PathBuf], output: &Path) -> Command {
    let mut command = symwin(["run", "--op", op]);
    command.args(how).arg("--output").arg(output).arg("--input").args(inputs);
    command
}

/// Reduces three arrays with each operation and compares bit by bit.
fn compare<T: Element>(form: Form, arrays: [[T; 6]; 3], oracle: impl Fn(&str, [T; 3]) -> T) {
    let directory = tempdir().unwrap();
    let inputs = inputs(directory.path(), &arrays.map(|array| file(form, &array)));
    let output = directory.path().join("out.npy");
    for (op, how) in OPS.into_iter().zip([&[][..], &["--procs"], &["--procs", "2"], &["--threads"]]) {
        let said = ok(&mut reduce(op, how, &inputs, &output));
        assert!(said.contains("all ranks hold the same result; wrote"), "{said}");
        let bits = |value: T| value.to_le();
        let is: Vec<_> = elements(form, &fs::read(&output).unwrap()).into_iter().map(bits).collect();
        let should: Vec<_> =
            (0..6).map(|i| bits(oracle(op, [arrays[0][i], arrays[1][i], arrays[2][i]]))).collect();
        assert_eq!(is, should, "{op} of {}", T::CODE);
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 4, "nothing but inputs and output remains");
}

macro_rules! float_oracle {
    ($name:ident, $type:ty) => {
        fn $name(op: &str, [a, b, c]: [$type; 3]) -> $type {
            match op {
                "sum" => a + b + c,
                "mean" => (a + b + c) / 3.0,
                "min" => a.min(b).min(c),
                "max" => a.max(b).max(c),
                _ => panic!("{op}"),
            }
        }
    };
}

float_oracle!(of_f32, f32);
float_oracle!(of_f64, f64);

/// Halves are reduced as f32 and rounded once.
fn of_f16(op: &str, values: [f16; 3]) -> f16 {
    f16::from_f32(of_f32(op, values.map(f32::from)))
}

/// The exact result: a mean is truncated toward zero.
fn of_integers(op: &str, values: [i128; 3]) -> i128 {
    let [a, b, c] = values;
    match op {
        "sum" => a + b + c,
        "mean" => (a + b + c) / 3,
        "min" => a.min(b).min(c),
        "max" => a.max(b).max(c),
        _ => panic!("{op}"),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "sums wrap")]
fn of_i32(op: &str, values: [i32; 3]) -> i32 {
    of_integers(op, values.map(i128::from)) as i32
}

#[allow(clippy::cast_possible_truncation, reason = "sums wrap")]
fn of_i64(op: &str, values: [i64; 3]) -> i64 {
    of_integers(op, values.map(i128::from)) as i64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sums wrap")]
fn of_u8(op: &str, values: [u8; 3]) -> u8 {
    of_integers(op, values.map(i128::from)) as u8
}

#[test]
fn f4_with_every_operation_in_both_byte_orders() {
    let arrays = [
        [0.1, 1e30, -7.25, f32::MIN_POSITIVE, 3.0, f32::INFINITY],
        [0.2, -1e30, 2.5, f32::MIN_POSITIVE / 2.0, 3.0, 1.0],
        [0.3, 1.0, 1e-7, -f32::MIN_POSITIVE, 3.0, -1.0],
    ];
    compare::<f32>(ROW, arrays, of_f32);
    compare::<f32>(Form { order: '>', ..ROW }, arrays, of_f32);
}

#[test]
fn f8_with_every_operation_in_both_byte_orders() {
    let arrays = [
        [0.1, 1e300, -7.25, 1e-320, 3.0, f64::INFINITY],
        [0.2, -1e300, 2.5, 1e-310, 3.0, 1.0],
        [0.3, 1.0, 1e-17, -1e-315, 3.0, -1.0],
    ];
    compare::<f64>(ROW, arrays, of_f64);
    compare::<f64>(Form { order: '>', ..ROW }, arrays, of_f64);
}

#[test]
fn f2_with_every_operation_in_both_byte_orders() {
    let arrays = [
        [0.1, 60000.0, -7.25, 6e-8, 3.0, 2048.0],
        [0.2, 60000.0, 2.5, 1e-7, 3.0, 1.0],
        [0.3, -60000.0, 1e-3, -1e-5, 3.0, 1.0],
    ]
    .map(|array| array.map(f16::from_f32));
    compare::<f16>(ROW, arrays, of_f16);
    compare::<f16>(Form { order: '>', ..ROW }, arrays, of_f16);
}

#[test]
fn i4_with_every_operation_in_both_byte_orders() {
    let arrays =
        [[i32::MAX, i32::MIN, -7, 1, 0, 5], [i32::MAX, i32::MIN, -3, 1, 0, -5], [i32::MAX, -1, -1, 0, 0, 1]];
    compare::<i32>(ROW, arrays, of_i32);
    compare::<i32>(Form { order: '>', ..ROW }, arrays, of_i32);
}

#[test]
fn i8_with_every_operation_in_both_byte_orders() {
    let arrays =
        [[i64::MAX, i64::MIN, -7, 1, 0, 5], [i64::MAX, i64::MIN, -3, 1, 0, -5], [i64::MAX, -1, -1, 0, 0, 1]];
    compare::<i64>(ROW, arrays, of_i64);
    compare::<i64>(Form { order: '>', ..ROW }, arrays, of_i64);
}

#[test]
fn u1_with_every_operation() {
    let arrays = [[255, 200, 7, 1, 0, 5], [255, 100, 3, 1, 0, 9], [255, 50, 1, 0, 0, 1]];
    compare::<u8>(Form { order: '|', ..ROW }, arrays, of_u8);
}

/// Two arrays of this form in, their sum of the same form out.
fn keeps_its_form(form: Form, count: u8) {
    let directory = tempdir().unwrap();
    let a: Vec<i32> = (0..count).map(i32::from).collect();
    let b: Vec<i32> = (0..count).map(|i| i32::from(i) * 1000).collect();
    let inputs = inputs(directory.path(), &[file(form, &a), file(form, &b)]);
    let output = directory.path().join("out.npy");
    ok(&mut reduce("sum", &[], &inputs, &output));
    let sums: Vec<i32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    assert_eq!(elements::<i32>(form, &fs::read(&output).unwrap()), sums, "{form:?}");
}

#[test]
fn every_shape_and_order_is_kept() {
    for fortran in ["False", "True"] {
        for (shape, count) in
            [("()", 1), ("(0,)", 0), ("(3, 0, 2)", 0), ("(1,)", 1), ("(2, 3)", 6), ("(2, 3, 4)", 24)]
        {
            for order in ['<', '>'] {
                keeps_its_form(Form { order, fortran, shape }, count);
            }
        }
    }
}

#[test]
fn byte_orders_may_differ_and_the_first_file_gives_the_outputs() {
    let directory = tempdir().unwrap();
    let big = Form { order: '>', ..ROW };
    let inputs =
        inputs(directory.path(), &[file(big, &[1, 2, 3, 4, 5, 6]), file(ROW, &[10, 20, 30, 40, 50, 60])]);
    let output = directory.path().join("out.npy");
    ok(&mut reduce("sum", &["--procs"], &inputs, &output));
    assert_eq!(elements::<i32>(big, &fs::read(&output).unwrap()), [11, 22, 33, 44, 55, 66]);
}

#[test]
fn one_file_is_one_rank() {
    let directory = tempdir().unwrap();
    let bytes = file(ROW, &[1.5_f64, 2.5, -0.0, 4.0, f64::NAN, 6.0]);
    let inputs = inputs(directory.path(), std::slice::from_ref(&bytes));
    let output = directory.path().join("out.npy");
    let json = json(&mut reduce("mean", &[], &inputs, &output));
    assert_eq!(fs::read(&output).unwrap(), bytes);
    assert_eq!(
        (json["ranks"].as_u64(), json["dtype"].as_str(), json["shape"].as_str()),
        (Some(1), Some("f64"), Some("(6,)"))
    );
}

#[test]
fn an_input_may_be_the_output() {
    let directory = tempdir().unwrap();
    let inputs = inputs(directory.path(), &[file(ROW, &[1; 6]), file(ROW, &[2; 6])]);
    ok(&mut reduce("sum", &[], &inputs, &inputs[0]));
    assert_eq!(elements::<i32>(ROW, &fs::read(&inputs[0]).unwrap()), [3; 6]);
}

#[test]
fn arrays_larger_than_a_part_of_work() {
    // One part of 16 MiB and a few bytes.
    let directory = tempdir().unwrap();
    let form = Form { order: '|', fortran: "False", shape: "(16777219,)" };
    let ramp =
        |step: usize| (0..16_777_219).map(|i| u8::try_from(i * step % 251).unwrap()).collect::<Vec<_>>();
    let (a, b) = (ramp(1), ramp(3));
    let inputs = inputs(directory.path(), &[file(form, &a), file(form, &b)]);
    let output = directory.path().join("out.npy");
    ok(&mut reduce("max", &[], &inputs, &output));
    let should: Vec<_> = a.iter().zip(&b).map(|(a, b)| *a.max(b)).collect();
    assert!(elements::<u8>(form, &fs::read(&output).unwrap()) == should);
}
