//! The null device against the host device: the same calls must have the same outcome on both, up to the addresses.

use proptest::prelude::*;

use super::*;
use crate::driver::host::{HostDriver, HostOptions};

/// Every reservation has as many pages; what is asked of it stays within.
const PAGES: usize = 4;
const MEMORY: u64 = 12 * PAGE as u64;

#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    Release(usize),
    Retain(usize, usize),
    Find(usize, usize),
    Reserve,
    Free(usize),
    Map { space: usize, page: usize, pages: usize, offset: usize, memory: usize },
    SetAccess(usize, usize, usize),
    Unmap(usize, usize, usize),
    Fill { stream: usize, space: usize, at: usize, size: usize },
    StreamCreate,
    StreamDestroy(usize),
    Record(usize),
    Done(usize),
}

fn step() -> impl Strategy<Value = Step> {
    // Small numbers meet often. They count from the latest.
    let (some, page) = (|| 0..3_usize, || 0..PAGES);
    let pages = || prop_oneof![1 => Just(0), 12 => 1..3_usize, 2 => 3..=PAGES];
    let offset = prop_oneof![4 => Just(0), 1 => 1..3_usize];
    prop_oneof![
        4 => (0..4_usize).prop_map(Step::Create),
        2 => some().prop_map(Step::Release),
        3 => (some(), page()).prop_map(|(s, p)| Step::Retain(s, p)),
        3 => (some(), page()).prop_map(|(s, p)| Step::Find(s, p)),
        2 => Just(Step::Reserve),
        1 => some().prop_map(Step::Free),
        16 => (some(), page(), pages(), offset, some())
            .prop_map(|(space, page, pages, offset, memory)| Step::Map { space, page, pages, offset, memory }),
        8 => (some(), page(), pages()).prop_map(|(s, p, n)| Step::SetAccess(s, p, n)),
        4 => (some(), page(), pages()).prop_map(|(s, p, n)| Step::Unmap(s, p, n)),
        6 => (some(), some(), 0..PAGES * PAGE, 0..2 * PAGE)
            .prop_map(|(stream, space, at, size)| Step::Fill { stream, space, at, size }),
        2 => Just(Step::StreamCreate),
        1 => some().prop_map(Step::StreamDestroy),
        3 => some().prop_map(Step::Record),
        2 => some().prop_map(Step::Done),
    ]
}

/// So that most steps find something to work on.
fn first_steps() -> Vec<Step> {
    let mut steps: Vec<_> = (1..4).map(Step::Create).collect();
    steps.extend([Step::Reserve, Step::Reserve, Step::StreamCreate, Step::StreamCreate]);
    steps
}

/// One device, and what it has given out in order: equal places mean the same on both devices.
struct Side {
    driver: Arc<dyn Driver>,
    memories: Vec<Handle>,
    spaces: Vec<usize>,
    streams: Vec<Stream>,
    events: Vec<Event>,
}

/// What a call says, without numbers that differ between devices.
#[derive(Debug, PartialEq)]
enum Said {
    Yes,
    Place(usize),
    Error(Call, &'static str),
}

impl Side {
    fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, memories: vec![], spaces: vec![], streams: vec![], events: vec![] }
    }

    fn take(&mut self, step: &Step) -> Option<Said> {
        let driver = &*self.driver;
        let space = |which: &usize| self.spaces.iter().rev().nth(*which).copied();
        Some(said(match step {
            Step::Create(pages) => driver.create(pages * PAGE).map(|new| {
                self.memories.push(new);
                None
            }),
            Step::Release(which) => driver.release(*self.memories.iter().rev().nth(*which)?).map(|()| None),
            Step::Retain(which, page) => driver
                .retain(space(which)? + page * PAGE + 5)
                .map(|handle| self.memories.iter().position(|memory| *memory == handle)),
            Step::Find(which, page) => {
                let base = space(which)?;
                let found = driver.address_range(base + page * PAGE + 5);
                found.map(|range| Some(range.base - base + range.size * 100))
            }
            Step::Reserve => driver.reserve(PAGES * PAGE, PAGE).map(|new| {
                self.spaces.push(new);
                None
            }),
            Step::Free(which) => {
                let base = space(which)?;
                self.spaces.retain(|space| *space != base);
                free(driver, base, PAGES * PAGE).map(|()| None)
            }
            Step::Map { space: which, page, pages, offset, memory } => {
                let (at, handle) = (space(which)? + page * PAGE, *self.memories.iter().rev().nth(*memory)?);
                let size = pages.min(&(PAGES - page)) * PAGE;
                // SAFETY: both devices check that the range is theirs and vacant.
                unsafe { driver.map(at, size, offset * PAGE, handle) }.map(|()| None)
            }
            Step::SetAccess(which, page, pages) => {
                let size = pages.min(&(PAGES - page)) * PAGE;
                driver.set_access(space(which)? + page * PAGE, size, &[0]).map(|()| None)
            }
            Step::Unmap(which, page, pages) => {
                let size = pages.min(&(PAGES - page)) * PAGE;
                unmap(driver, space(which)? + page * PAGE, size).map(|()| None)
            }
            Step::Fill { stream, space: which, at, size } => {
                let (base, stream) = (space(which)?, *self.streams.iter().rev().nth(*stream)?);
                let size = *size.min(&(PAGES * PAGE - at));
                // SAFETY: both devices refuse what is in their reservations and not mapped with access.
                unsafe { driver.fill(stream, base + at, 1, size) }.map(|()| None)
            }
            Step::StreamCreate => driver.stream_create().map(|new| {
                self.streams.push(new);
                None
            }),
            Step::StreamDestroy(which) => {
                driver.stream_destroy(*self.streams.iter().rev().nth(*which)?).map(|()| None)
            }
            Step::Record(which) => driver.record(*self.streams.iter().rev().nth(*which)?).map(|new| {
                self.events.push(new);
                None
            }),
            Step::Done(which) => {
                driver.done(*self.events.iter().rev().nth(*which)?).map(|yes| Some(usize::from(yes)))
            }
        }))
    }
}

fn said(result: Result<Option<usize>, DeviceError>) -> Said {
    let DeviceError { call, problem } = match result {
        Ok(None) => return Said::Yes,
        Ok(Some(place)) => return Said::Place(place),
        Err(error) => error,
    };
    let kind = match problem {
        DeviceProblem::Argument { .. } => "argument",
        DeviceProblem::ForeignAddress { .. } => "foreign address",
        DeviceProblem::InvalidHandle { .. } => "invalid handle",
        DeviceProblem::OutOfMemory { .. } => "out of memory",
        _ => "another",
    };
    Said::Error(call, kind)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_answers_as_the_host_device_does(steps in prop::collection::vec(step(), 1..200)) {
        let host = HostDriver::new(HostOptions::new().granularity(PAGE).memory_bytes(MEMORY)).unwrap();
        let null = NullDriver::new(small().memory_bytes(MEMORY)).unwrap();
        let (mut model, mut side) = (Side::new(host.clone()), Side::new(null.clone()));
        for step in first_steps().iter().chain(&steps) {
            prop_assert_eq!(side.take(step), model.take(step), "{:?}", step);
            let (has, is) = (host.counts(), null.counts());
            let has = (has.handles, has.mappings, has.reservations, has.bytes, has.streams, has.events);
            prop_assert_eq!((is.handles, is.mappings, is.reservations, is.bytes, is.streams, is.events), has);
        }
        for base in model.spaces {
            free(&*host, base, PAGES * PAGE).unwrap();
        }
    }
}
