//! Calls of netavark: its requests become CNI requests, and the result its status block.

use std::net::IpAddr;
use std::path::Path;

use api::CniRequest;
use cni::{Command, Error, Plugin};
use model::Cidr;
use netavark::Setup;
use serde_json::value::RawValue;

use crate::app::App;
use crate::http::failure::Failure;

/// The directory in which podman keeps networks of root, by default.
const PODMAN_NETWORKS: &str = "/etc/containers/networks";

impl App {
    /// Executes a setup or teardown, which the plugin sends as ADD or DEL.
    pub(crate) async fn netavark_call(
        &self,
        command: Command,
        request: CniRequest,
        client: Option<u32>,
    ) -> Result<String, Failure> {
        let input = request.config.get();
        match command {
            Command::Add => {
                let setup = Setup::read(input)?;
                let add = as_cni(request, &setup.args, &setup.config)?;
                let result = self.execute_cni(command, add, client).await?;
                Ok(setup.status(&result)?)
            }
            Command::Del => {
                let config = netavark::teardown(input)?;
                let del = as_cni(request, "", &config)?;
                self.execute_cni(command, del, client).await
            }
            Command::Check | Command::Gc | Command::Status | Command::Version => {
                let name = command.name();
                Err(Error::environment(format!("netavark has no {name}")).into())
            }
        }
    }

    /// Completes and validates a network that podman creates.
    pub(crate) async fn netavark_create(&self, network: &str) -> Result<String, Failure> {
        let directory = Path::new(PODMAN_NETWORKS);
        let read = || foreign_prefixes(directory);
        let mut used = self
            .file_access
            .run("networks of podman", directory, read)
            .await?;
        let status = self.handle.status();
        let own = status.networks.iter();
        used.extend(own.flat_map(|status| status.network.subnets()));
        let default = self.default_network();
        Ok(netavark::complete(network, &used, default.as_ref())?)
    }
}

/// Returns the CNI request for a call.
fn as_cni(request: CniRequest, args: &str, config: &str) -> Result<CniRequest, Error> {
    let config = RawValue::from_string(config.to_owned());
    Ok(CniRequest {
        plugin: Plugin::Viaduct.name().to_owned(),
        args: args.to_owned(),
        path: Setup::PATH.to_owned(),
        config: config.map_err(|error| Error::internal(error.to_string()))?,
        ..request
    })
}

/// Returns the IPv4 routes of the node, and the subnets of the networks in podman's files. What
/// cannot be read is left out: a setup fails if the subnets of two networks overlap.
fn foreign_prefixes(directory: &Path) -> Vec<Cidr> {
    let is_network = |name: &str| {
        let extension = Path::new(name).extension();
        extension.is_some_and(|extension| extension == "json")
    };
    let files = ipam::small_files::read_directory(directory, is_network).unwrap_or_default();
    let networks = files
        .iter()
        .flat_map(|(_, text)| netavark::subnets(text))
        .collect::<Vec<_>>();
    ipv4_routes().into_iter().chain(networks).collect()
}

/// Returns the destinations of the node's IPv4 routes, without default routes.
pub(crate) fn ipv4_routes() -> Vec<Cidr> {
    let table = procfs::net::route().unwrap_or_default();
    let routes = table.iter().filter_map(|route| {
        let length = u8::try_from(u32::from(route.mask).leading_ones()).ok()?;
        Cidr::containing(IpAddr::V4(route.destination), length).filter(|_| length > 0)
    });
    routes.collect()
}
