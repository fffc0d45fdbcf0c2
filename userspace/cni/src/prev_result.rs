//! `prevResult`, as CHECK gets it: what ADD returned, perhaps changed by plugins and runtimes behind us.
//!
//! Multus may replace our default route and edit the cached result, other plugins add addresses and routes or change
//! a MAC (behaviours S11, C15). So the only question asked is whether our addresses are still in it; and a route of ours
//! that it does not have any more was taken away on purpose.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Attachment, Cidr};

use crate::Error;
use crate::json::{Node, Object};
use crate::runtime::parse_address;

/// What a runtime says that ADD returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrevResult {
    /// The addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Where its routes lead.
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

    /// Fails when the runtime has another idea of the pod's addresses than we.
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
    // Another plugin's route may be to what we would not call a subnet: then it is none of ours.
    let destinations: Vec<_> = destinations.collect::<Result<_, Error>>()?;
    Ok(destinations.into_iter().flatten().flatten().collect())
}

fn address(node: &Node<'_>) -> Result<IpAddr, Error> {
    let address = node.object()?.get("address");
    let address = address.ok_or_else(|| node.invalid("missing address"))?;
    parse_address(address.text()?).map_err(|why| address.invalid(why))
}
