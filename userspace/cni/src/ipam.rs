//! Parser of `ipam`: source of addresses, ranges and routes.
//!
//! Which addresses are free is not decided here.

use std::net::IpAddr;
use std::path::PathBuf;

use model::{Cidr, Range, RangeSet, Route, RouteOptions};

use crate::json::{Node, Object};
use crate::static_ipam::{self, StaticAddress};
use crate::{Dns, Error, Header};

/// The `ipam` of a network configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    /// Which component selects the addresses.
    pub source: AddressSource,
    /// Range sets of type `host-local`: a pod gets one address of each set.
    pub ranges: Vec<RangeSet>,
    /// Routes that pods get.
    pub routes: Vec<Route>,
    /// Resolver settings of type `static`.
    pub dns: Dns,
    /// `resolvConf`: path of the file whose resolver settings results repeat.
    pub resolv_conf: Option<PathBuf>,
}

/// Which component selects a pod's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// Viaduct, from the ranges: type `host-local`.
    Ranges,
    /// The configuration, which lists them: type `static`.
    Fixed(Vec<StaticAddress>),
    /// An external IPAM plugin, whose result comes with the request.
    Plugin,
}

impl Ipam {
    pub(crate) fn read(ipam: &Object<'_>, header: &Header) -> Result<Self, Error> {
        let empty = Self {
            source: AddressSource::Ranges,
            ranges: Vec::new(),
            routes: Vec::new(),
            dns: Dns::default(),
            resolv_conf: None,
        };
        if header.ipam_plugin.is_some() {
            let source = AddressSource::Plugin;
            return Ok(Self { source, ..empty });
        }
        let routes = || -> Result<Vec<Route>, Error> {
            let routes = ipam.list("routes")?;
            routes.iter().map(route).collect()
        };
        match ipam.text("type")? {
            Some("host-local") => Ok(Self {
                ranges: ranges(ipam)?,
                routes: routes()?,
                resolv_conf: ipam.text("resolvConf")?.map(PathBuf::from),
                ..empty
            }),
            Some("static") => Ok(Self {
                source: AddressSource::Fixed(static_ipam::addresses(ipam)?),
                routes: routes()?,
                dns: Dns::read(ipam)?,
                ..empty
            }),
            Some(other) => Err(Error::invalid_config(format!(
                "ipam.type: {other:?} is not a plugin name"
            ))),
            None => Err(Error::invalid_config(
                "missing ipam.type: use \"host-local\", \"static\" or a plugin in CNI_PATH",
            )),
        }
    }
}

fn ranges(ipam: &Object<'_>) -> Result<Vec<RangeSet>, Error> {
    let mut ranges = Vec::new();
    // Legacy form: a range as members of `ipam` itself becomes the first set.
    if ipam.get("subnet").is_some() {
        ranges.push(set(vec![range(ipam)?]).map_err(Error::invalid_config)?);
    }
    for node in ipam.list("ranges")? {
        ranges.push(range_set(&node)?);
    }
    Ok(ranges)
}

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
