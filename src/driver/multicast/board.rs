//! The books of multicast objects that several devices of one process keep together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::driver::{AddressRange, Call, DeviceError, DeviceProblem, Exported, Handle};

/// The bit that tells an object's handle from one of memory.
const OBJECT: u64 = 1 << 63;
/// What exported objects begin with.
const MAGIC: [u8; 8] = *b"symwinMC";

/// Objects, and who did what with them in which order. Shared by the devices that make objects together.
#[derive(Debug, Default)]
pub struct MulticastBoard {
    books: Mutex<Books>,
}

/// One step with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MulticastStep {
    /// Which device took it, by its number on the board.
    pub device: usize,
    /// What it did: a multicast call, or one of those for memory with an object's handle or addresses.
    pub call: Call,
    /// With which object.
    pub object: Handle,
    /// Whether it was refused.
    pub refused: bool,
}

/// What is alive on a board, for leak tests. All zero when everything was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MulticastCounts {
    /// Objects.
    pub objects: usize,
    /// References to objects that were not released.
    pub references: usize,
    /// Bound ranges, over all devices.
    pub bindings: usize,
    /// Mapped ranges.
    pub mappings: usize,
}

#[derive(Debug, Default)]
struct Books {
    devices: usize,
    last_object: u64,
    objects: BTreeMap<Handle, Object>,
    /// Base to size, of all devices: they are of one process.
    reservations: BTreeMap<usize, usize>,
    /// Base to size and object.
    mappings: BTreeMap<usize, (usize, Handle)>,
    steps: Vec<MulticastStep>,
}

#[derive(Debug)]
struct Object {
    size: usize,
    devices: usize,
    added: BTreeSet<usize>,
    references: usize,
    mappings: usize,
    /// (device, offset) to size.
    bindings: BTreeMap<(usize, usize), usize>,
}

/// What a reservation held, while the inner driver gives it back.
#[derive(Debug)]
pub(super) struct Taken {
    reservation: Option<(usize, usize)>,
    mappings: Vec<(usize, (usize, Handle))>,
}

impl MulticastBoard {
    /// A board without devices.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// All steps so far, in order.
    #[must_use]
    pub fn steps(&self) -> Vec<MulticastStep> {
        self.books.lock().steps.clone()
    }

    /// What is alive now.
    #[must_use]
    pub fn counts(&self) -> MulticastCounts {
        let books = self.books.lock();
        MulticastCounts {
            objects: books.objects.len(),
            references: books.objects.values().map(|object| object.references).sum(),
            bindings: books.objects.values().map(|object| object.bindings.len()).sum(),
            mappings: books.mappings.len(),
        }
    }

    /// Whether no device so much as tried to bind to an object before all were added to it (P-6).
    ///
    /// # Errors
    /// The first step that came too early.
    pub fn check_order(&self) -> Result<(), MulticastStep> {
        let steps = self.steps();
        let last_add = |object| {
            let is_add = |step: &MulticastStep| {
                step.object == object && step.call == Call::MulticastAddDevice && !step.refused
            };
            steps.iter().rposition(is_add)
        };
        let early = steps.iter().enumerate().find(|(at, step)| {
            step.call == Call::MulticastBind && last_add(step.object).is_none_or(|add| *at < add)
        });
        early.map_or(Ok(()), |(_, step)| Err(*step))
    }

    pub(super) fn join(&self) -> usize {
        let mut books = self.books.lock();
        books.devices += 1;
        books.devices - 1
    }

    pub(super) fn create(&self, device: usize, size: usize, devices: usize) -> Result<Handle, DeviceError> {
        let mut books = self.books.lock();
        if size == 0 || devices == 0 {
            let what = format!("an object of {size} bytes over {devices} devices");
            return Err(DeviceError::new(Call::MulticastCreate, DeviceProblem::Argument { what }));
        }
        books.last_object += 1;
        let handle = Handle(OBJECT | books.last_object);
        let object = Object {
            size,
            devices,
            added: BTreeSet::new(),
            references: 1,
            mappings: 0,
            bindings: BTreeMap::new(),
        };
        books.objects.insert(handle, object);
        books.log(device, Call::MulticastCreate, handle, Ok(handle))
    }

    pub(super) fn add_device(&self, device: usize, handle: Handle) -> Result<(), DeviceError> {
        let mut books = self.books.lock();
        let done = books.object(handle).and_then(|object| {
            if object.added.contains(&device) {
                return argument(format!("device {device} was added before"));
            }
            if object.added.len() == object.devices {
                return argument(format!("all {} devices were added", object.devices));
            }
            object.added.insert(device);
            Ok(())
        });
        books.log(device, Call::MulticastAddDevice, handle, done)
    }

    /// Binds so many bytes, or says what was wrong with them.
    pub(super) fn bind(
        &self,
        device: usize,
        handle: Handle,
        at: usize,
        size: Result<usize, DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut books = self.books.lock();
        let size = size.map_err(|error| error.problem);
        let done = size.and_then(|size| books.object(handle)?.bind(device, at, size));
        books.log(device, Call::MulticastBind, handle, done)
    }

    pub(super) fn unbind(
        &self,
        device: usize,
        handle: Handle,
        at: usize,
        size: usize,
    ) -> Result<(), DeviceError> {
        let mut books = self.books.lock();
        let done = books.object(handle).and_then(|object| {
            if object.bindings.get(&(device, at)) != Some(&size) {
                return argument(format!("device {device} has bound no {size} bytes at {at}"));
            }
            object.bindings.remove(&(device, at));
            Ok(())
        });
        books.log(device, Call::MulticastUnbind, handle, done)
    }

    pub(super) fn release(&self, device: usize, handle: Handle) -> Result<(), DeviceError> {
        let mut books = self.books.lock();
        let done = books.object(handle).and_then(|object| {
            if object.references == 0 {
                return Err(DeviceProblem::InvalidHandle { handle: handle.0 });
            }
            if object.references == 1 && !object.bindings.is_empty() {
                return argument(format!("{} ranges are still bound to the object", object.bindings.len()));
            }
            object.references -= 1;
            Ok(())
        });
        books.collect(handle);
        books.log(device, Call::Release, handle, done)
    }

    /// One more reference to the object mapped there, if one is.
    pub(super) fn retain(&self, device: usize, address: usize) -> Option<Handle> {
        let mut books = self.books.lock();
        let (_, handle) = books.mapping(address)?;
        books.objects.get_mut(&handle).expect("a mapping holds its object").references += 1;
        books.log(device, Call::Retain, handle, Ok(handle)).ok()
    }

    pub(super) fn export(&self, device: usize, handle: Handle) -> Result<Exported, DeviceError> {
        let mut books = self.books.lock();
        let known = books.object(handle).map(drop);
        let exported = known.map(|()| Exported::Fabric(self.name_of(handle)));
        books.log(device, Call::Export, handle, exported)
    }

    pub(super) fn import(&self, device: usize, bytes: &[u8; 64], size: usize) -> Result<Handle, DeviceError> {
        let mut books = self.books.lock();
        let number = bytes.last_chunk().expect("64 bytes hold 8");
        let handle = Handle(u64::from_le_bytes(*number));
        let done = if *bytes == self.name_of(handle) {
            books.object(handle).and_then(|object| {
                if object.size < size {
                    return argument(format!("the object spans {} bytes, not {size}", object.size));
                }
                object.references += 1;
                Ok(handle)
            })
        } else {
            argument("the object is of another board or process".to_owned())
        };
        books.log(device, Call::Import, handle, done)
    }

    pub(super) fn reserved(&self, base: usize, size: usize) {
        self.books.lock().reservations.insert(base, size);
    }

    /// Takes a reservation, if it is one, and the objects mapped in it out of the books.
    pub(super) fn take_reservation(&self, base: usize, size: usize) -> Taken {
        let mut books = self.books.lock();
        if books.reservations.get(&base) != Some(&size) {
            return Taken { reservation: None, mappings: Vec::new() };
        }
        books.reservations.remove(&base);
        let mappings = books.mappings.extract_if(base..base + size, |_, _| true).collect();
        Taken { reservation: Some((base, size)), mappings }
    }

    /// The inner driver gave the reservation back.
    pub(super) fn forget(&self, taken: Taken) {
        let mut books = self.books.lock();
        for (_, (_, handle)) in taken.mappings {
            books.unmapped(handle);
        }
    }

    /// The inner driver kept the reservation.
    pub(super) fn put_back(&self, taken: Taken) {
        let mut books = self.books.lock();
        books.reservations.extend(taken.reservation);
        books.mappings.extend(taken.mappings);
    }

    pub(super) fn map(
        &self,
        device: usize,
        range: AddressRange,
        offset: usize,
        handle: Handle,
    ) -> Result<(), DeviceError> {
        let mut books = self.books.lock();
        let done = books.map(device, range, offset, handle);
        books.log(device, Call::Map, handle, done)
    }

    /// Refuses memory where an object is mapped.
    pub(super) fn check_vacant(&self, address: usize, size: usize) -> Result<(), DeviceError> {
        if !self.touches(address, size) {
            return Ok(());
        }
        let what = format!("a multicast object is mapped in {address:#x} + {size} bytes");
        Err(DeviceError::new(Call::Map, DeviceProblem::Argument { what }))
    }

    pub(super) fn set_access(&self, device: usize, address: usize, size: usize) -> Result<(), DeviceError> {
        let mut books = self.books.lock();
        let (object, done) = books.whole(address, size);
        books.log(device, Call::SetAccess, object, done)
    }

    pub(super) fn unmap(&self, device: usize, address: usize, size: usize) -> Result<(), DeviceError> {
        let mut books = self.books.lock();
        let (object, done) = books.whole(address, size);
        if done.is_ok() {
            let gone: Vec<_> = books.mappings.extract_if(address..address + size, |_, _| true).collect();
            gone.into_iter().for_each(|(_, (_, handle))| books.unmapped(handle));
        }
        books.log(device, Call::Unmap, object, done)
    }

    /// The object's mapping that holds the address.
    pub(super) fn mapping(&self, address: usize) -> Option<AddressRange> {
        self.books.lock().mapping(address).map(|(range, _)| range)
    }

    /// Whether an object is mapped in the range.
    pub(super) fn touches(&self, address: usize, size: usize) -> bool {
        self.books.lock().first_in(address, size).is_some()
    }

    /// Names the object to this board only, and in this process only.
    fn name_of(&self, handle: Handle) -> [u8; 64] {
        let board = std::ptr::from_ref(self).addr() as u64;
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[16..24].copy_from_slice(&board.to_le_bytes());
        bytes[56..].copy_from_slice(&handle.0.to_le_bytes());
        bytes
    }
}

impl Object {
    fn bind(&mut self, device: usize, at: usize, size: usize) -> Result<(), DeviceProblem> {
        if self.added.len() < self.devices {
            let (added, all) = (self.added.len(), self.devices);
            return argument(format!(
                "{added} of {all} devices were added: binding would wait for the others"
            ));
        }
        if !self.added.contains(&device) {
            return argument(format!("device {device} is not in the object"));
        }
        let Some(end) = at.checked_add(size).filter(|&end| size > 0 && end <= self.size) else {
            return argument(format!("{at} + {size} bytes is not within the object's {} bytes", self.size));
        };
        let before = self.bindings.range((device, 0)..(device, end)).next_back();
        if let Some((&(_, other), other_size)) = before
            && other + other_size > at
        {
            return argument(format!("device {device} has bound {other_size} bytes at {other}"));
        }
        self.bindings.insert((device, at), size);
        Ok(())
    }
}

impl Books {
    fn log<T>(
        &mut self,
        device: usize,
        call: Call,
        object: Handle,
        done: Result<T, DeviceProblem>,
    ) -> Result<T, DeviceError> {
        self.steps.push(MulticastStep { device, call, object, refused: done.is_err() });
        done.map_err(|problem| DeviceError::new(call, problem))
    }

    fn object(&mut self, handle: Handle) -> Result<&mut Object, DeviceProblem> {
        let object = self.objects.get_mut(&handle).filter(|object| object.references > 0);
        object.ok_or(DeviceProblem::InvalidHandle { handle: handle.0 })
    }

    fn collect(&mut self, handle: Handle) {
        let Some(object) = self.objects.get(&handle) else { return };
        if object.references == 0 && object.mappings == 0 {
            self.objects.remove(&handle);
        }
    }

    fn map(
        &mut self,
        device: usize,
        range: AddressRange,
        offset: usize,
        handle: Handle,
    ) -> Result<(), DeviceProblem> {
        let AddressRange { base, size } = range;
        let end = base.checked_add(size).filter(|_| size > 0);
        let reservation = self.reservations.range(..=base).next_back();
        let reserved = reservation.is_some_and(|(start, len)| end.is_some_and(|end| end <= start + len));
        if !reserved {
            return argument(format!("{base:#x} + {size} bytes is in no reservation"));
        }
        if let Some((other, _)) = self.first_in(base, size) {
            return argument(format!("an object is mapped at {:#x}", other.base));
        }
        let object = self.object(handle)?;
        if !object.added.contains(&device) {
            return argument(format!("device {device} was not added to the object"));
        }
        if offset.checked_add(size).is_none_or(|end| end > object.size) {
            return argument(format!("{offset} + {size} bytes is beyond the object's {} bytes", object.size));
        }
        object.mappings += 1;
        self.mappings.insert(base, (size, handle));
        Ok(())
    }

    fn mapping(&self, address: usize) -> Option<(AddressRange, Handle)> {
        let (&base, &(size, handle)) = self.mappings.range(..=address).next_back()?;
        (address - base < size).then_some((AddressRange { base, size }, handle))
    }

    /// The first object's mapping that touches the range.
    fn first_in(&self, address: usize, size: usize) -> Option<(AddressRange, Handle)> {
        let end = address.saturating_add(size);
        let within = || self.mappings.range(address..end).next();
        let within = || within().map(|(&base, &(size, handle))| (AddressRange { base, size }, handle));
        if size == 0 { None } else { self.mapping(address).or_else(within) }
    }

    /// The first object in the range, and whether the range is whole mappings of objects and nothing else.
    fn whole(&self, address: usize, size: usize) -> (Handle, Result<(), DeviceProblem>) {
        let first = self.first_in(address, size).map_or(Handle(OBJECT), |(_, handle)| handle);
        let (mut at, end) = (address, address.saturating_add(size));
        while at < end {
            match self.mapping(at) {
                Some((range, _)) if range.base == at && at + range.size <= end => at += range.size,
                _ => {
                    let what = format!(
                        "{address:#x} + {size} bytes is not whole mappings of multicast objects without a hole"
                    );
                    return (first, argument(what));
                }
            }
        }
        (first, Ok(()))
    }

    fn unmapped(&mut self, handle: Handle) {
        self.objects.get_mut(&handle).expect("a mapping holds its object").mappings -= 1;
        self.collect(handle);
    }
}

/// Whether the handle is an object's.
pub(super) fn is_object(handle: Handle) -> bool {
    handle.0 & OBJECT != 0
}

/// Whether fabric bytes are those of an object of such a board.
pub(super) fn names_object(bytes: &[u8; 64]) -> bool {
    bytes.starts_with(&MAGIC)
}

fn argument<T>(what: String) -> Result<T, DeviceProblem> {
    Err(DeviceProblem::Argument { what })
}
