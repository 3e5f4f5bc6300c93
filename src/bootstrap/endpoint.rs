//! One rank's place in one communicator.

use std::sync::Arc;

use crate::bootstrap::{Parcel, Sighting, Tag};
use crate::ids::Rank;

/// One rank's place in one communicator, made by [`Hub::join`](crate::bootstrap::Hub::join). Dropping it leaves the
/// communicator without a message.
#[derive(Debug)]
pub struct Endpoint {}

impl Endpoint {
    /// Sends `body` under `tag` to the ranks of each parcel.
    pub fn send(&self, _tag: Tag, _body: &Arc<[u8]>, _parcels: &[Parcel]) {
        todo!()
    }

    /// Tells all other members that this rank has finished with the communicator.
    pub fn goodbye(&self) {
        todo!()
    }

    /// Ends the communicator for all other members.
    pub fn abort(&self, _body: &Arc<[u8]>) {
        todo!()
    }

    /// How many rounds this rank took part in: sends under a tag other than the one before.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        todo!()
    }

    /// How many messages this rank sent: one for each parcel.
    #[must_use]
    pub fn messages_sent(&self) -> u64 {
        todo!()
    }

    /// How many bytes of bodies this rank sent, counted for each parcel.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        todo!()
    }

    /// How many descriptors this rank sent to other processes.
    #[must_use]
    pub fn descriptors_sent(&self) -> u64 {
        todo!()
    }

    /// The latest sign of life of `peer` to this rank in any communicator of this hub.
    #[must_use]
    pub fn last_seen(&self, _peer: Rank) -> Option<Sighting> {
        todo!()
    }

    /// The latest sign of life of `peer` to this rank in each communicator, joined or only kept so far, the latest first.
    #[must_use]
    pub fn sightings(&self, _peer: Rank) -> Vec<Sighting> {
        todo!()
    }
}
