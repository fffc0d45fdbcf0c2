//! Address ranges and routes, as `ipam`, `runtimeConfig` and results of other IPAM plugins have
//! them.

use model::{Cidr, Range, RangeSet, Route, RouteOptions};
use std::net::IpAddr;

use crate::Error;
use crate::json::{Node, Object};

/// Parses a list of ranges that are alternatives for one address.
pub(crate) fn range_set(node: &Node<'_>) -> Result<RangeSet, Error> {
    let nodes = node.list()?;
    let ranges = nodes.iter().map(|node| range(&node.object()?));
    set(ranges.collect::<Result<_, _>>()?).map_err(|why| node.invalid(why))
}

/// Parses one range, as a set of its own.
pub(crate) fn single_range(node: &Node<'_>) -> Result<RangeSet, Error> {
    set(vec![range(&node.object()?)?]).map_err(|why| node.invalid(why))
}

pub(crate) fn set(ranges: Vec<Range>) -> Result<RangeSet, String> {
    RangeSet::new(ranges).map_err(|error| error.to_string())
}

pub(crate) fn range(range: &Object<'_>) -> Result<Range, Error> {
    let subnet: Cidr = range.required("subnet")?;
    let first: Option<IpAddr> = range.parsed("rangeStart")?;
    let last = range.parsed("rangeEnd")?;
    let gateway = range.parsed("gateway")?;
    Range::new(subnet, first, last, gateway)
        .map_err(|error| Error::invalid_config(error.to_string()))
}

pub(crate) fn route(node: &Node<'_>) -> Result<Route, Error> {
    let route = node.object()?;
    let destination: Cidr = route.required("dst")?;
    let gateway: Option<IpAddr> = route.parsed("gw")?;
    if gateway.is_some_and(|gateway| gateway.is_ipv4() != destination.is_ipv4()) {
        return Err(node.invalid("dst and gw are of different address families"));
    }
    let options = RouteOptions {
        priority: unsigned(&route, "priority")?,
        table: unsigned(&route, "table")?,
        scope: unsigned(&route, "scope")?,
        mtu: unsigned(&route, "mtu")?,
        advmss: unsigned(&route, "advmss")?,
    };
    let is_near = (options.scope).is_some_and(|scope| scope >= RouteOptions::SCOPE_LINK);
    if is_near && gateway.is_some() && destination.is_ipv4() {
        return Err(node.invalid("a route of scope link or host cannot have a gateway"));
    }
    Ok(Route {
        destination,
        gateway,
        options,
    })
}

fn unsigned<T: TryFrom<i64>>(route: &Object<'_>, key: &str) -> Result<Option<T>, Error> {
    let Some(node) = route.get(key) else {
        return Ok(None);
    };
    let number = node.number()?;
    let wrong = || node.invalid(format_args!("{number} is out of range"));
    T::try_from(number).map(Some).map_err(|_| wrong())
}
