//! The all-reduce and its reductions against oracles that know no windows.

use std::fmt::Debug;
use std::sync::Arc;

use half::{bf16, f16};
use zerocopy::IntoBytes;

use crate::coll::number::Number;
use crate::coll::reduce::Reduction;
use crate::coll::{DType, ReduceOp, all_reduce};
use crate::device::run_here;
use crate::device::testing::{Spec, World};
use crate::error::{Error, Misuse, Result};

/// A type under test: how to make one of any bits, and the reduction by its plainest definition.
trait Tested: Number + Debug {
    const DTYPE: DType;

    fn of_bits(bits: u64) -> Self;

    fn is_nan(self) -> bool;

    fn expected(op: ReduceOp, inputs: &[Self]) -> Self;
}

macro_rules! tested_integer {
    ($type:ident, $dtype:ident) => {
        impl Tested for $type {
            const DTYPE: DType = DType::$dtype;

            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "any bits will do")]
            fn of_bits(bits: u64) -> Self {
                bits.cast_signed() as $type
            }

            fn is_nan(self) -> bool {
                false
            }

            fn expected(op: ReduceOp, inputs: &[Self]) -> Self {
                let exact = || inputs.iter().map(|x| i128::from(*x)).sum::<i128>();
                match op {
                    ReduceOp::Sum => inputs.iter().fold(0, |a, b| a.wrapping_add(*b)),
                    ReduceOp::Mean => (exact() / inputs.len() as i128).try_into().unwrap(),
                    ReduceOp::Min => *inputs.iter().min().unwrap(),
                    ReduceOp::Max => *inputs.iter().max().unwrap(),
                }
            }
        }
    };
}

macro_rules! tested_float {
    ($type:ident, $dtype:ident, $sums_in:ident, $of_bits:expr, $to_sum:expr, $of_sum:expr) => {
        impl Tested for $type {
            const DTYPE: DType = DType::$dtype;

            fn of_bits(bits: u64) -> Self {
                $of_bits(bits)
            }

            fn is_nan(self) -> bool {
                $type::is_nan(self)
            }

            fn expected(op: ReduceOp, inputs: &[Self]) -> Self {
                if op == ReduceOp::Min || op == ReduceOp::Max {
                    return extreme(op, inputs, Self::is_nan);
                }
                let mut sum: $sums_in = $to_sum(inputs[0]);
                for x in &inputs[1..] {
                    sum += $to_sum(*x);
                }
                if op == ReduceOp::Mean {
                    sum /= inputs.len() as $sums_in;
                }
                $of_sum(sum)
            }
        }
    };
}

fn extreme<T: PartialOrd + Copy>(op: ReduceOp, inputs: &[T], is_nan: impl Fn(T) -> bool) -> T {
    let before = |a: &T, b: &T| if op == ReduceOp::Min { a < b } else { a > b };
    let nan = inputs.iter().copied().find(|x| is_nan(*x));
    // Of equal ones the first.
    nan.unwrap_or_else(|| inputs.iter().copied().reduce(|a, b| if before(&b, &a) { b } else { a }).unwrap())
}

fn high_bits<const SHIFT: u32>(bits: u64) -> u16 {
    u16::try_from(bits >> SHIFT).unwrap()
}

tested_integer!(i32, I32);
tested_integer!(i64, I64);
tested_integer!(u8, U8);
tested_float!(f64, F64, f64, f64::from_bits, f64::from, f64::from);
tested_float!(
    f32,
    F32,
    f32,
    |bits: u64| f32::from_bits(u32::try_from(bits >> 32).unwrap()),
    f32::from,
    f32::from
);
tested_float!(f16, F16, f32, |bits| f16::from_bits(high_bits::<48>(bits)), f16::to_f32, f16::from_f32);
tested_float!(bf16, Bf16, f32, |bits| bf16::from_bits(high_bits::<48>(bits)), bf16::to_f32, bf16::from_f32);

/// Element `i` of a rank's input: any bits at all, so NaNs, infinities and overflows are among them.
fn element<T: Tested>(rank: u32, i: usize) -> T {
    // A bijective mix, so that neighbours have nothing in common.
    let mut x = ((u64::from(rank) + 1) << 40) + i as u64;
    for multiplier in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        x = (x ^ (x >> 30)).wrapping_mul(multiplier);
    }
    T::of_bits(x ^ (x >> 31))
}

/// How the output lies to the input.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Apart,
    Same,
    /// In another window, one element further on.
    Shifted,
}

const SIZE_MAX: usize = 100_003;
/// Bytes before the input, so that it starts aligned to no more than 8.
const HEAD: usize = 24;
const HALF: usize = HEAD + 8 * (SIZE_MAX + 2);

fn world(ranks: u32) -> Arc<World> {
    world_with(ranks, (0, 0))
}

/// Barriers for all sizes, or an LL all-to-all for small ones.
fn world_with(ranks: u32, ll_a2a: (u32, u32)) -> Arc<World> {
    let windows = vec![(0, HALF), (0, HALF), (HALF, HALF)];
    World::new(Spec { windows, ll_a2a, ..Spec::new(ranks, 2 * HALF) })
}

fn check<T: Tested>(world: &Arc<World>, op: ReduceOp, count: usize, place: Place) {
    let size = size_of::<T>();
    let inputs: Vec<Vec<T>> =
        (0..world.spec.ranks).map(|rank| (0..count).map(|i| element(rank, i)).collect()).collect();
    for (rank, input) in (0..).zip(&inputs) {
        world.poke(rank, HEAD, input.as_bytes());
    }
    let (window, at) = match place {
        Place::Apart => (2, HEAD),
        Place::Same => (0, HEAD),
        Place::Shifted => (1, HEAD + size),
    };
    let inside = Arc::clone(world);
    let results = world.run(move |kernel| {
        let rank = kernel.lsa_rank().get();
        let input = kernel.window(inside.window(rank, 0))?;
        let output = kernel.window(inside.window(rank, window))?;
        all_reduce(kernel, (&input, HEAD as u64), (&output, at as u64), count, T::DTYPE, op, 1)
    });
    let what = format!("{op} of {count} {} on {} ranks, {place:?}", T::DTYPE, world.spec.ranks);
    assert!(results.iter().all(Result::is_ok), "{what}: {results:?}");
    let start = if window == 2 { HALF + at } else { at };
    let outputs: Vec<Vec<T>> = (0..world.spec.ranks)
        .map(|rank| {
            let mut output = vec![T::of_bits(0); count];
            world.peek(rank, start, output.as_mut_bytes());
            output
        })
        .collect();
    let mut column = Vec::new();
    for (i, got) in outputs[0].iter().enumerate() {
        column.clear();
        column.extend(inputs.iter().map(|input| input[i]));
        let expected = T::expected(op, &column);
        let equal = expected.as_bytes() == got.as_bytes() || (expected.is_nan() && got.is_nan());
        assert!(equal, "{what}: element {i} of {column:?} is {got:?}, expected {expected:?}");
    }
    for (rank, output) in outputs.iter().enumerate() {
        assert!(output.as_bytes() == outputs[0].as_bytes(), "{what}: rank {rank} has other bits than rank 0");
    }
}

fn check_all(ranks: u32, counts: &[usize]) {
    check_world(&world(ranks), counts);
}

fn check_world(world: &Arc<World>, counts: &[usize]) {
    let ranks = world.spec.ranks;
    for count in counts {
        for op in ReduceOp::ALL {
            for place in [Place::Apart, Place::Same, Place::Shifted] {
                check::<f32>(world, op, *count, place);
                // The long ones take their time: every type in place, where the chunks matter, and sums apart.
                let long = *count == SIZE_MAX && ranks == 8;
                if long && (place == Place::Shifted || place == Place::Apart && op != ReduceOp::Sum) {
                    continue;
                }
                check::<f64>(world, op, *count, place);
                check::<i32>(world, op, *count, place);
                check::<i64>(world, op, *count, place);
                check::<u8>(world, op, *count, place);
                check::<f16>(world, op, *count, place);
                check::<bf16>(world, op, *count, place);
            }
        }
    }
}

#[test]
fn every_type_and_operation_on_1_rank() {
    check_all(1, &[0, 1, 7, 1_000, SIZE_MAX]);
}

/// Sizes on both sides of where one shot ends, in the second block of an LL all-to-all.
#[test]
fn every_type_and_operation_by_one_shot() {
    for ranks in [1, 2, 3, 8] {
        check_world(&world_with(ranks, (2, ranks * 64)), &[0, 1, 7, 63, 64, 65, 128, 257]);
    }
    // Fewer slots than messages of all ranks need: two shots on all.
    check_world(&world_with(3, (2, 7)), &[1, 7, 63]);
}

#[test]
fn every_type_and_operation_on_2_ranks() {
    check_all(2, &[0, 1, 7, 1_000, SIZE_MAX]);
}

#[test]
fn every_type_and_operation_on_3_ranks() {
    check_all(3, &[0, 1, 7, 1_000, SIZE_MAX]);
}

#[test]
fn every_type_and_operation_on_8_ranks() {
    check_all(8, &[0, 1, 7, 1_000]);
}

#[test]
fn every_type_and_operation_on_8_ranks_in_many_chunks() {
    check_all(8, &[SIZE_MAX]);
}

fn reduced<T: Number>(op: ReduceOp, inputs: &[T]) -> T {
    let mut reduction = Reduction::new(op);
    let mut output = [inputs[0]];
    for input in inputs {
        reduction.add(&[*input]).unwrap();
    }
    reduction.finish(&mut output).unwrap();
    output[0]
}

#[test]
fn integer_sums_wrap_and_integer_means_are_exact_and_truncate() {
    assert_eq!(reduced(ReduceOp::Sum, &[i32::MAX, 1]), i32::MIN);
    assert_eq!(reduced(ReduceOp::Sum, &[i64::MIN, -1]), i64::MAX);
    assert_eq!(reduced(ReduceOp::Sum, &[200_u8, 100]), 44);
    assert_eq!(reduced(ReduceOp::Mean, &[i32::MAX, i32::MAX, i32::MAX - 1]), i32::MAX - 1);
    assert_eq!(reduced(ReduceOp::Mean, &[i64::MIN, i64::MIN]), i64::MIN);
    assert_eq!(reduced(ReduceOp::Mean, &[255_u8, 255, 254]), 254);
    assert_eq!(reduced(ReduceOp::Mean, &[-7, 0]), -3);
    assert_eq!(reduced(ReduceOp::Mean, &[7, 0]), 3);
}

#[test]
fn halves_are_summed_in_f32_and_rounded_once() {
    // In f16, 2048 + 1 is 2048 again, and the third sum would lose both ones.
    let f16s = [2_048.0, 1.0, 1.0].map(f16::from_f32);
    assert_eq!(reduced(ReduceOp::Sum, &f16s), f16::from_f32(2_050.0));
    // 65,504 is the greatest f16: the sum overflows it, the mean does not.
    assert_eq!(reduced(ReduceOp::Mean, &[f16::MAX, f16::MAX]), f16::MAX);
    assert_eq!(reduced(ReduceOp::Sum, &[f16::MAX, f16::MAX]), f16::INFINITY);
    let bf16s = [256.0, 1.0, 1.0].map(bf16::from_f32);
    assert_eq!(reduced(ReduceOp::Sum, &bf16s), bf16::from_f32(258.0));
}

#[test]
fn minimum_and_maximum_pass_a_nan_on_and_keep_the_first_of_equals() {
    for op in [ReduceOp::Min, ReduceOp::Max] {
        assert!(reduced(op, &[1.0, f32::NAN, 2.0]).is_nan());
        assert!(reduced(op, &[f64::NAN, 1.0]).is_nan());
        assert!(reduced(op, &[bf16::ONE, bf16::NAN]).is_nan());
        assert_eq!(reduced(op, &[0.0_f32, -0.0]).to_bits(), 0.0_f32.to_bits());
        assert_eq!(reduced(op, &[-0.0_f32, 0.0]).to_bits(), (-0.0_f32).to_bits());
    }
}

#[test]
fn a_sum_of_one_rank_keeps_its_bits() {
    assert_eq!(reduced(ReduceOp::Sum, &[-0.0_f32]).to_bits(), (-0.0_f32).to_bits());
}

#[test]
fn inputs_of_other_lengths_are_refused() {
    let mut reduction = Reduction::new(ReduceOp::Sum);
    let is_refused = |outcome: Result<()>| matches!(outcome, Err(Error::Misuse(Misuse::Other { .. })));
    assert!(is_refused(reduction.finish(&mut [0; 0])), "there was no input");
    reduction.add(&[1, 2, 3]).unwrap();
    assert!(is_refused(reduction.add(&[1, 2])));
    assert!(is_refused(reduction.finish(&mut [0; 4])));
}

#[test]
fn what_does_not_fit_is_refused_before_this_rank_arrives() {
    let world = world(2);
    run_here(world.env(0), |kernel| {
        let window = kernel.window(world.window(0, 0))?;
        let place = |at| (&window, at);
        let count = HALF / 4;
        for (input, output) in [(place(8), place(0)), (place(0), place(8)), (place(2), place(0))] {
            let outcome = all_reduce(kernel, input, output, count, DType::F32, ReduceOp::Sum, 0);
            assert!(matches!(outcome, Err(Error::Misuse(_))), "{outcome:?}");
        }
        let no_barrier = all_reduce(kernel, place(0), place(0), 1, DType::F32, ReduceOp::Sum, 99);
        assert!(matches!(no_barrier, Err(Error::Misuse(_))), "{no_barrier:?}");
        Ok(())
    })
    .unwrap();
    // Rank 0's slot in the inboxes of rank 1 is untouched.
    assert!((12..20).all(|word| world.resource_word(1, word) == 0));
}

#[test]
fn names_of_types_and_operations_are_read_back() {
    for dtype in DType::ALL {
        assert_eq!(dtype.to_string().parse(), Ok(dtype));
    }
    for op in ReduceOp::ALL {
        assert_eq!(op.to_string().parse(), Ok(op));
    }
    assert!(matches!("f8".parse::<DType>(), Err(Misuse::BadSetting { .. })));
    assert!(matches!("product".parse::<ReduceOp>(), Err(Misuse::BadSetting { .. })));
}
