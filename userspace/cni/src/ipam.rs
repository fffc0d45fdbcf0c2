//! `ipam` of type `host-local` or `static`: addresses and routes. Refuses to know which addresses are free.

use std::net::IpAddr;
use std::path::PathBuf;

use model::{Cidr, Range, RangeSet, Route, RouteOptions};

use crate::json::{Node, Object};
use crate::static_ipam::{self, StaticAddress};
use crate::{Dns, Error};

/// Where a network's addresses come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    /// A pod gets one address of each set.
    pub ranges: Vec<RangeSet>,
    /// The addresses of type `static`; `None` for `host-local`.
    pub fixed: Option<Vec<StaticAddress>>,
    /// Routes that pods get.
    pub routes: Vec<Route>,
    /// Name servers, of type `static`.
    pub dns: Dns,
    /// `resolvConf`: the file whose name servers results repeat.
    pub resolv_conf: Option<PathBuf>,
}

impl Ipam {
    pub(crate) fn read(ipam: &Object<'_>) -> Result<Self, Error> {
        let is_static = match ipam.text("type")? {
            Some("host-local") => false,
            Some("static") => true,
            Some(other) => return Err(Error::unsupported_field("ipam.type", other)),
            None => {
                return Err(Error::invalid_config(
                    "missing ipam.type: \"host-local\" and \"static\" are known",
                ));
            }
        };
        let routes = ipam.list("routes")?;
        let routes = routes.iter().map(route).collect::<Result<_, _>>()?;
        if is_static {
            return Ok(Self {
                ranges: Vec::new(),
                fixed: Some(static_ipam::addresses(ipam)?),
                routes,
                dns: Dns::read(ipam)?,
                resolv_conf: None,
            });
        }
        Ok(Self {
            ranges: ranges(ipam)?,
            fixed: None,
            routes,
            dns: Dns::default(),
            resolv_conf: ipam.text("resolvConf")?.map(PathBuf::from),
        })
    }
}

fn ranges(ipam: &Object<'_>) -> Result<Vec<RangeSet>, Error> {
    let mut ranges = Vec::new();
    // The form of old: one range without a list becomes the first set.
    if ipam.get("subnet").is_some() {
        ranges.push(set(vec![range(ipam)?]).map_err(Error::invalid_config)?);
    }
    for node in ipam.list("ranges")? {
        ranges.push(range_set(&node)?);
    }
    Ok(ranges)
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
        return Err(node.invalid("what is of scope link or host has no gateway"));
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
