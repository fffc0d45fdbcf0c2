//! The calls of Docker's IPAM driver.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use docker::protocol::{OfAddress, ReleasePool, RequestPool};
use docker::{GLOBAL_SPACE, LOCAL_SPACE, Request};
use model::Cidr;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::driver::{Called, Driver};
use crate::app::App;
use crate::clock;
use crate::cni::netavark_calls::ipv4_routes;

/// A file of the kernel that has another random number at each read.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

/// Returns the names of the address spaces.
pub(super) fn address_spaces() -> Value {
    json!({
        "LocalDefaultAddressSpace": LOCAL_SPACE,
        "GlobalDefaultAddressSpace": GLOBAL_SPACE,
    })
}

impl Driver {
    pub(crate) async fn request_pool(&self, wanted: RequestPool) -> Called<Value> {
        let request = Request {
            used: used(&self.app).await,
            global_id: global_id(&fs::read_to_string(RANDOM).unwrap_or_default()),
            now: clock::now(),
            ..Request::default()
        };
        let (id, prefix) = self
            .change(|state| state.pools.request(&wanted, &request))
            .await?;
        Ok(json!({"PoolID": id, "Pool": prefix.to_string(), "Data": {}}))
    }

    pub(crate) async fn release_pool(&self, wanted: ReleasePool) -> Called<Value> {
        let release = |state: &mut docker::State| {
            state.pools.release(&wanted.pool);
            Ok(())
        };
        self.change(release).await?;
        Ok(json!({}))
    }

    pub(crate) async fn request_address(&self, wanted: OfAddress) -> Called<Value> {
        let request = Request {
            attached: attached(&self.app).await?,
            now: clock::now(),
            ..Request::default()
        };
        let own = self
            .change(|state| state.pools.request_address(&wanted, &request))
            .await?;
        Ok(json!({"Address": own.to_string(), "Data": {}}))
    }

    pub(crate) async fn release_address(&self, wanted: OfAddress) -> Called<Value> {
        let release = |state: &mut docker::State| {
            state.pools.release_address(&wanted);
            Ok(())
        };
        self.change(release).await?;
        Ok(json!({}))
    }
}

/// Returns the prefixes of the node's IPv4 routes and interfaces, and of the agent's networks.
async fn used(app: &App) -> Vec<Cidr> {
    let of_node = || [ipv4_routes(), interface_prefixes()].concat();
    let mut used = spawn_blocking(of_node).await.unwrap_or_default();
    let status = app.handle.status();
    used.extend(
        status
            .networks
            .iter()
            .flat_map(|status| status.network.subnets()),
    );
    used
}

/// Returns the prefixes of the addresses of the node's interfaces.
fn interface_prefixes() -> Vec<Cidr> {
    let all = getifaddrs().into_iter().flatten();
    all.filter_map(|own| {
        let length = match ip(&own.netmask?)? {
            IpAddr::V4(mask) => mask.to_bits().leading_ones(),
            IpAddr::V6(mask) => mask.to_bits().leading_ones(),
        };
        Cidr::containing(ip(&own.address?)?, u8::try_from(length).ok()?)
    })
    .collect()
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|own| own.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|own| own.ip().into()))
}

async fn attached(app: &App) -> Called<BTreeSet<IpAddr>> {
    let records = app.handle.attachments().await?;
    let addresses = records
        .iter()
        .flat_map(|record| &record.attachment.addresses);
    Ok(addresses.map(|own| own.address.address).collect())
}

/// Returns the first five bytes of hexadecimal digits.
fn global_id(digits: &str) -> [u8; 5] {
    let mut bytes = [0; 5];
    for (index, byte) in bytes.iter_mut().enumerate() {
        let digits = digits.get(2 * index..2 * index + 2).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefixes_of_the_nodes_interfaces_contain_its_addresses() {
        let all = getifaddrs().unwrap().filter_map(|own| ip(&own.address?));
        let prefixes = interface_prefixes();
        for own in all {
            assert!(prefixes.iter().any(|prefix| prefix.contains(own)), "{own}");
        }
    }

    #[test]
    fn a_global_id_is_the_first_digits_of_the_kernels_random_number() {
        assert_eq!(global_id("0a1b2c3d-4e5f-4000"), [0x0a, 0x1b, 0x2c, 0x3d, 0]);
        assert_eq!(global_id(""), [0; 5]);
    }
}
