//! Queries which addresses of a pod the node itself has: an ADD must not give it any of them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::AddressRefusal;
use kernel::Kernel;
use model::Attachment;
use planner::Refusal;
use steps::AddressQuery;

use crate::{Engine, EngineError};

impl<K: Kernel> Engine<K> {
    /// Returns the addresses of an attachment that the node itself has.
    pub(crate) fn own_addresses(
        &mut self,
        attachment: &Attachment,
    ) -> Result<BTreeSet<IpAddr>, EngineError> {
        let addresses = attachment.addresses.iter();
        self.own_among(addresses.map(|assigned| assigned.address.address).collect())
    }

    /// Returns those of `addresses` that the node itself has.
    pub(crate) fn own_among(
        &mut self,
        addresses: BTreeSet<IpAddr>,
    ) -> Result<BTreeSet<IpAddr>, EngineError> {
        if addresses.is_empty() {
            return Ok(addresses);
        }
        Ok(self.kernel.observe(&AddressQuery(addresses))?)
    }

    /// Refuses an attachment with an address of the node itself.
    pub(crate) fn refuse_own_addresses(
        &mut self,
        attachment: &Attachment,
    ) -> Result<(), EngineError> {
        match self.own_addresses(attachment)?.pop_first() {
            Some(address) => {
                Err(Refusal::Address(AddressRefusal::AddressOfNode { address }).into())
            }
            None => Ok(()),
        }
    }
}
