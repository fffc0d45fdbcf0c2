//! Parsers and limits of single values of the configuration.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use model::{Cidr, HairpinMode, NetworkAccess};
use planner::DeclaredNetworks;

use super::{items, optional_path, parse, path, prefixes};
use crate::process::sandbox::SandboxLayers;

/// Default of `--non-masquerade-cidr` with `--kubenet`, as of kubelet's flag of the same name.
const KUBENET_NON_MASQUERADE: &str = "10.0.0.0/8";

/// Minimum MTU in bytes: datagrams of this size every IPv4 host must accept (RFC 791), and
/// kubenet's minimum.
const SMALLEST_MTU: u32 = 576;
/// Largest MTU of a veth and of a bridge.
const LARGEST_MTU: u32 = 65_535;

/// Minimum and maximum capacity of the flow table, in entries.
const SMALLEST_TABLE: u32 = 4_096;
const LARGEST_TABLE: u32 = 16_777_216;

/// Returns the hairpin mode; if unset, the default of kubelet with `kubenet`, else of the agent.
pub(super) fn hairpin(mode: Option<&str>, kubenet: bool) -> Result<HairpinMode> {
    match mode {
        Some(mode) => parse("hairpin-mode", mode),
        None if kubenet => Ok(HairpinMode::PromiscuousBridge),
        None => Ok(HairpinMode::default()),
    }
}

/// Returns the prefixes that are not masqueraded; if unset, kubelet's default with `kubenet`, else
/// none. An empty list is set explicitly.
pub(super) fn non_masquerade(lists: Option<Vec<String>>, kubenet: bool) -> Result<BTreeSet<Cidr>> {
    let default = kubenet.then(|| KUBENET_NON_MASQUERADE.to_owned());
    let lists = lists.unwrap_or_else(|| Vec::from_iter(default));
    Ok(prefixes("non-masquerade-cidr", &lists)?
        .into_iter()
        .collect())
}

/// Validates the key of an annotation, as far as a mistake is likely: it is not empty and has no
/// spaces.
pub(super) fn annotation(key: Option<String>) -> Result<Option<String>> {
    match key {
        Some(key) if key.is_empty() || key.contains(char::is_whitespace) => {
            bail!("hostport-annotation: {key:?} is not an annotation key")
        }
        key => Ok(key),
    }
}

/// Validates an interval in milliseconds; 100 if unset.
pub(super) fn drop_event_interval(milliseconds: Option<u32>) -> Result<Duration> {
    match milliseconds.unwrap_or(100) {
        interval @ 1..=60_000 => Ok(Duration::from_millis(interval.into())),
        other => bail!("drop-event-interval: {other} is not in 1..=60000 milliseconds"),
    }
}

pub(super) fn mtu(bytes: u32) -> Result<Option<u32>> {
    match bytes {
        0 => Ok(None),
        SMALLEST_MTU..=LARGEST_MTU => Ok(Some(bytes)),
        _ => bail!("mtu: {bytes} is neither 0 nor from {SMALLEST_MTU} to {LARGEST_MTU}"),
    }
}

/// Parses egress addresses. Two of one family are refused: there is no rule to choose between them.
pub(super) fn egress(lists: &[String]) -> Result<BTreeSet<IpAddr>> {
    let addresses: BTreeSet<IpAddr> = items(lists)
        .map(|text| parse("egress-address", text))
        .collect::<Result<_>>()?;
    for ipv4 in [true, false] {
        let of_family = addresses.iter().filter(|own| own.is_ipv4() == ipv4);
        if of_family.count() > 1 {
            bail!("egress-address: more than one address of a family");
        }
    }
    Ok(addresses)
}

/// Returns the access of the default network. That an internal network has direct access as well is
/// a contradiction.
pub(super) fn access(internal: Option<bool>, direct_access: Option<bool>) -> Result<NetworkAccess> {
    let internal = internal.unwrap_or(false);
    if internal && direct_access == Some(true) {
        bail!("internal and direct-access are both true: an internal network has no direct access");
    }
    Ok(NetworkAccess::new(internal, direct_access.unwrap_or(true)))
}

/// Returns the bridges and subnets that declared networks may use. A list that is set but empty
/// allows none.
pub(super) fn declared(
    bridges: Option<Vec<String>>,
    subnets: Option<Vec<String>>,
) -> Result<DeclaredNetworks> {
    let bridges = bridges.map(|lists| {
        items(&lists)
            .map(|text| parse("declared-bridge", text))
            .collect::<Result<_>>()
    });
    let subnets = subnets.map(|lists| {
        let subnets = prefixes("declared-subnet", &lists)?;
        anyhow::Ok(subnets.into_iter().collect())
    });
    Ok(DeclaredNetworks {
        bridges: bridges.transpose()?,
        subnets: subnets.transpose()?,
    })
}

pub(super) fn flow_entries(entries: u32) -> Result<Option<u32>> {
    match entries {
        0 => Ok(None),
        SMALLEST_TABLE..=LARGEST_TABLE => Ok(Some(entries)),
        _ => bail!(
            "flow-table-size: {entries} is neither 0 nor from {SMALLEST_TABLE} to {LARGEST_TABLE}"
        ),
    }
}

/// Keys about the privileges of the agent and of its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) sandbox: SandboxLayers,
    /// The read-only socket; `None` without one.
    pub(crate) read_only: Option<ReadOnlyAddress>,
    /// Whether it serves a page for browsers.
    pub(crate) web_page: bool,
}

/// Where the agent listens for queries, and the clients that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadOnlyAddress {
    pub(crate) path: PathBuf,
    /// Name or number; `None` for root only.
    pub(crate) group: Option<String>,
}

impl Access {
    /// A group without a path has the default path, beside the agent's socket.
    pub(super) fn new(
        socket: &Path,
        read_only: Option<PathBuf>,
        group: Option<String>,
        web_page: Option<bool>,
        sandbox: Option<&str>,
    ) -> Result<Self> {
        let beside = || group.is_some().then(|| api::read_only_socket(socket));
        let path = read_only.or_else(beside);
        if path.as_deref() == Some(socket) {
            bail!(
                "read-only-socket: {} is the agent's socket",
                socket.display()
            );
        }
        let web_page = web_page.unwrap_or(false);
        if web_page && path.is_none() {
            bail!("web-page: needs a read-only socket, by socket-group or read-only-socket");
        }
        Ok(Self {
            web_page,
            sandbox: sandbox.map_or(Ok(SandboxLayers::ON), |layers| parse("sandbox", layers))?,
            read_only: path.map(|path| ReadOnlyAddress { path, group }),
        })
    }
}

/// The networks and addresses of Docker, by default.
const DOCKER_STATE: &str = "/var/lib/viaduct/docker.json";

/// Where Docker's drivers are served, and where their state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DockerFiles {
    pub(crate) socket: PathBuf,
    pub(crate) state: PathBuf,
}

impl DockerFiles {
    /// Returns the files; `None` without a socket.
    pub(super) fn of(socket: Option<PathBuf>, state: Option<PathBuf>) -> Result<Option<Self>> {
        let state = path("docker-state", state, DOCKER_STATE)?;
        let socket = optional_path("docker-socket", socket)?;
        Ok(socket.map(|socket| Self { socket, state }))
    }
}
