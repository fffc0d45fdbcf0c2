//! `prevResult` of CHECK: the result of ADD, possibly modified by later plugins and by the runtime.
//!
//! Multus may replace our default route and edit the cached result; other plugins add addresses and
//! routes or change a MAC address (behaviours S11, C15). CHECK therefore only requires that our
//! addresses are still in it. A route of ours that is missing from it was removed on purpose.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Attachment, Cidr};

use crate::Error;
use crate::json::{Node, Object};
use crate::values::parse_address;

/// The parts of CHECK's `prevResult` that are compared with the attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrevResult {
    /// Addresses of `ips`, without prefix length.
    pub addresses: BTreeSet<IpAddr>,
    /// Destinations of `routes`.
    pub destinations: BTreeSet<Cidr>,
}

impl PrevResult {
    pub(crate) fn read(config: &Object<'_>) -> Result<Self, Error> {
        let Some(result) = config.object("prevResult")? else {
            return Err(Error::invalid_config("required prevResult missing"));
        };
        let ips = result.list("ips")?;
        Ok(Self {
            addresses: ips.iter().map(address).collect::<Result<_, _>>()?,
            destinations: destinations(&result)?,
        })
    }

    /// Fails with code 101 if an address of the attachment is not in `prevResult`.
    pub fn check(&self, attachment: &Attachment) -> Result<(), Error> {
        let missing: Vec<String> = attachment
            .addresses
            .iter()
            .map(|a| a.address.address)
            .filter(|address| !self.addresses.contains(address))
            .map(|address| address.to_string())
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::check_failed(format!(
            "{} of {} not in prevResult",
            missing.join(", "),
            attachment.key
        )))
    }
}

fn destinations(result: &Object<'_>) -> Result<BTreeSet<Cidr>, Error> {
    let destinations = result
        .list("routes")?
        .into_iter()
        .map(|route| Ok(route.object()?.text("dst")?.map(str::parse)));
    // A destination that does not parse as a subnet belongs to another plugin's route: skip it.
    let destinations: Vec<_> = destinations.collect::<Result<_, Error>>()?;
    Ok(destinations.into_iter().flatten().flatten().collect())
}

fn address(node: &Node<'_>) -> Result<IpAddr, Error> {
    let address = node.object()?.get("address");
    let address = address.ok_or_else(|| node.invalid("missing address"))?;
    parse_address(address.text()?).map_err(|why| address.invalid(why))
}
