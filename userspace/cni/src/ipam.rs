//! `ipam` of type `host-local`: ranges and routes. Refuses to know which addresses are free.

use std::net::IpAddr;

use model::{Cidr, Range, RangeSet, Route};

use crate::Error;
use crate::json::{Node, Object};
use crate::refused;

/// Where a network's addresses come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    /// A pod gets one address of each set.
    pub ranges: Vec<RangeSet>,
    /// Routes that pods get.
    pub routes: Vec<Route>,
}

impl Ipam {
    pub(crate) fn read(ipam: &Object<'_>) -> Result<Self, Error> {
        match ipam.text("type")? {
            Some("host-local") => {}
            Some(other) => return Err(Error::unsupported_field("ipam.type", other)),
            None => {
                return Err(Error::invalid_config(
                    "missing ipam.type: \"host-local\" is known",
                ));
            }
        }
        refused::check_ipam(ipam)?;
        let mut ranges = Vec::new();
        // The form of old: one range without a list becomes the first set.
        if ipam.get("subnet").is_some() {
            ranges.push(set(vec![range(ipam)?]).map_err(Error::invalid_config)?);
        }
        for node in ipam.list("ranges")? {
            ranges.push(range_set(&node)?);
        }
        let routes = ipam.list("routes")?;
        Ok(Self {
            ranges,
            routes: routes.iter().map(route).collect::<Result<_, _>>()?,
        })
    }
}

/// A list of ranges that are alternatives.
pub(crate) fn range_set(node: &Node<'_>) -> Result<RangeSet, Error> {
    let ranges = node.list()?;
    let ranges = ranges.iter().map(|node| range(&node.object()?));
    set(ranges.collect::<Result<_, _>>()?).map_err(|why| node.invalid(why))
}

/// One range as a set of its own.
pub(crate) fn single_range(node: &Node<'_>) -> Result<RangeSet, Error> {
    set(vec![range(&node.object()?)?]).map_err(|why| node.invalid(why))
}

fn set(ranges: Vec<Range>) -> Result<RangeSet, String> {
    RangeSet::new(ranges).map_err(|error| error.to_string())
}

fn range(range: &Object<'_>) -> Result<Range, Error> {
    let subnet: Cidr = range.required("subnet")?;
    let first: Option<IpAddr> = range.parsed("rangeStart")?;
    let last = range.parsed("rangeEnd")?;
    let gateway = range.parsed("gateway")?;
    Range::new(subnet, first, last, gateway)
        .map_err(|error| Error::invalid_config(error.to_string()))
}

fn route(node: &Node<'_>) -> Result<Route, Error> {
    let route = node.object()?;
    refused::check_route(&route)?;
    let destination: Cidr = route.required("dst")?;
    let gateway: Option<IpAddr> = route.parsed("gw")?;
    if gateway.is_some_and(|gateway| gateway.is_ipv4() != destination.is_ipv4()) {
        return Err(node.invalid("dst and gw are of different address families"));
    }
    Ok(Route {
        destination,
        gateway,
    })
}
