//! Parser of `ipam`: source of addresses, ranges and routes.
//!
//! Which addresses are free is not decided here.

use std::path::PathBuf;

use model::{RangeSet, Route};

use crate::config::limits;
use crate::config::ranges::{range, range_set, route, set};
use crate::config::static_ipam::{self, StaticAddress};
use crate::json::Object;
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
            let routes = ipam.list_up_to("routes", limits::ROUTES)?;
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
    limits::check_ranges(&ranges, &ipam.path_of("ranges"))?;
    Ok(ranges)
}
