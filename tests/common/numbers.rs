//! Numbers for collectives of four ranks: inputs, and what is to come of them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use half::{bf16, f16};
use symwin::coll::{DType, ReduceOp};
use symwin::{Buffer, Communicator, Window, WindowFlags, WindowSlice};

use super::common::*;
use super::worlds::all_ok;

pub fn symmetric(ranks: &[Communicator], buffers: &[Buffer]) -> Vec<Window> {
    all_ok(ask(ranks, |g, c| g.register(c, &buffers[c.rank().index()], WindowFlags::COLL_SYMMETRIC)))
}

pub fn slices(windows: &[Window], range: std::ops::Range<usize>) -> Vec<WindowSlice> {
    windows.iter().map(|window| window.slice(range.clone()).unwrap()).collect()
}

/// Small whole numbers that every type holds exactly: rank r's element i.
pub fn input(rank: u32, i: u32) -> u32 {
    (rank * 3 + i * 7) % 11
}

pub fn expected(i: u32, op: ReduceOp, integer: bool) -> f64 {
    let inputs = (0..4).map(|rank| input(rank, i));
    let sum = inputs.clone().sum::<u32>();
    match op {
        ReduceOp::Sum => f64::from(sum),
        ReduceOp::Mean if integer => f64::from(sum / 4),
        ReduceOp::Mean => f64::from(sum) / 4.0,
        ReduceOp::Min => f64::from(inputs.min().unwrap()),
        _ => f64::from(inputs.max().unwrap()),
    }
}

pub fn encode(value: f64, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
        DType::I64 => (value as i64).to_le_bytes().to_vec(),
        DType::U8 => vec![value as u8],
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        _ => bf16::from_f64(value).to_le_bytes().to_vec(),
    }
}

pub fn is_integer(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64 | DType::U8)
}
