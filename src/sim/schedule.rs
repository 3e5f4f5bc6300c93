//! Schedules as text: short, versioned, and enough to run exactly the same again.
//!
//! | text | what it replays |
//! | --- | --- |
//! | `s1.r.SEED` | a run of the random policy |
//! | `s1.p.SEED.DEPTH.STEPS` | a run of PCT with its depth and the length it assumed |
//! | `s1.b.SEED` | a run of the round-robin policy (the seed is for its draws) |
//! | `s1.d.CHOICES` | a run of the depth-first policy: which of the runnable tasks went next, wherever there were several |
//!
//! Seeds are hexadecimal. Choices are digits of base 36, larger ones in parentheses; zeros at the end are left out, and
//! `z` with a count in parentheses, `z(12)`, stands for that many zeros in a row.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Misuse};

/// Which run this is: how its choices are made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Schedule {
    /// Choices of the depth-first policy.
    DepthFirst {
        /// Which of the runnable tasks went next, wherever there were several; the first one after these.
        choices: Vec<u32>,
    },
    /// Probabilistic concurrency testing: priorities, changed at `depth - 1` steps.
    Pct {
        /// Of the run.
        seed: u64,
        /// How many ordering constraints a bug may need.
        depth: u32,
        /// Among how many steps the changes are spread.
        steps: u64,
    },
    /// Every choice is random.
    Random {
        /// Of the run.
        seed: u64,
    },
    /// The runnable task with the next number.
    RoundRobin {
        /// Of draws.
        seed: u64,
    },
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DepthFirst { choices } => {
                f.write_str("s1.d.")?;
                write_choices(choices, f)
            }
            Self::Pct { seed, depth, steps } => write!(f, "s1.p.{seed:x}.{depth}.{steps}"),
            Self::Random { seed } => write!(f, "s1.r.{seed:x}"),
            Self::RoundRobin { seed } => write!(f, "s1.b.{seed:x}"),
        }
    }
}

fn write_choices(choices: &[u32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut zeros = 0_usize;
    for &choice in choices {
        if choice == 0 {
            zeros += 1;
            continue;
        }
        match zeros {
            0..=4 => f.write_str(&"0000"[..zeros])?,
            _ => write!(f, "z({zeros})")?,
        }
        zeros = 0;
        match char::from_digit(choice, 35) {
            Some(digit) => write!(f, "{digit}")?,
            None => write!(f, "({choice})")?,
        }
    }
    Ok(())
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| {
            let why = "a schedule as a failed run prints it, such as s1.r.5eed".to_owned();
            Misuse::BadSetting { name: "schedule".to_owned(), value: text.to_owned(), why }.into()
        })
    }
}

fn parse(text: &str) -> Option<Schedule> {
    let rest = text.trim().strip_prefix("s1.")?;
    let (kind, rest) = rest.split_once('.')?;
    let seed = |hex: &str| u64::from_str_radix(hex, 16).ok();
    match kind {
        "r" => Some(Schedule::Random { seed: seed(rest)? }),
        "b" => Some(Schedule::RoundRobin { seed: seed(rest)? }),
        "p" => {
            let mut parts = rest.split('.');
            let (hex, depth, steps) = (parts.next()?, parts.next()?, parts.next()?);
            let all = parts.next().is_none();
            let pct =
                Schedule::Pct { seed: seed(hex)?, depth: depth.parse().ok()?, steps: steps.parse().ok()? };
            all.then_some(pct)
        }
        "d" => Some(Schedule::DepthFirst { choices: parse_choices(rest)? }),
        _ => None,
    }
}

fn parse_choices(mut text: &str) -> Option<Vec<u32>> {
    let mut choices = Vec::new();
    while let Some(first) = text.chars().next() {
        let zeros = first == 'z';
        let rest = text.strip_prefix('z').unwrap_or(text);
        if let Some(inner) = rest.strip_prefix('(') {
            let (number, after) = inner.split_once(')')?;
            let number: u32 = number.parse().ok()?;
            if zeros {
                let count = number as usize;
                if choices.len() + count > CHOICES_MAX {
                    return None;
                }
                choices.resize(choices.len() + count, 0);
            } else {
                choices.push(number);
            }
            text = after;
        } else if zeros {
            return None;
        } else {
            choices.push(first.to_digit(35)?);
            text = &text[1..];
        }
        if choices.len() > CHOICES_MAX {
            return None;
        }
    }
    Some(choices)
}

/// More than any run has; a bound on what a text can make this allocate.
const CHOICES_MAX: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn schedules_are_short() {
        assert_eq!(Schedule::Random { seed: 0x5eed }.to_string(), "s1.r.5eed");
        let mut choices = vec![0; 40];
        choices.extend([1, 0, 2, 99, 0, 0]);
        assert_eq!(Schedule::DepthFirst { choices }.to_string(), "s1.d.z(40)102(99)");
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for text in [
            "",
            "s1",
            "s2.r.1",
            "s1.r.",
            "s1.r.xyz",
            "s1.p.1.2",
            "s1.p.1.2.3.4",
            "s1.d.!",
            "s1.d.z",
            "s1.d.z(9",
        ] {
            let error = text.parse::<Schedule>().unwrap_err().to_string();
            assert!(error.contains("schedule"), "{error}");
        }
        assert!("s1.d.z(4000000000)".parse::<Schedule>().is_err(), "it would take 16 GB");
    }

    proptest! {
        #[test]
        fn a_schedule_is_read_as_it_was_written(choices in prop::collection::vec(prop_oneof![3 => Just(0), 2 => 0_u32..50, 1 => any::<u32>()], 0..200), seed: u64, depth: u32, steps: u64) {
            let mut choices = choices;
            while choices.last() == Some(&0) {
                choices.pop();
            }
            for schedule in [
                Schedule::DepthFirst { choices },
                Schedule::Pct { seed, depth, steps },
                Schedule::Random { seed },
                Schedule::RoundRobin { seed },
            ] {
                prop_assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
            }
        }

        #[test]
        fn no_text_panics(text in "s1\\.[rpbd]\\.[0-9a-z().é]{0,40}") {
            let _ = text.parse::<Schedule>();
        }
    }
}
