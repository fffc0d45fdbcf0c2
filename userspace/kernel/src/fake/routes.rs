//! Routes of the in-memory kernel: those to peers.

use nix::errno::Errno;
use steps::{NextHop, PEER_ROUTE_PROTOCOL, RouteChange, RouteEntry};

use super::world::{MAIN, World};

impl World {
    /// Executes all changes, and returns the first failure.
    pub(super) fn change_routes(&mut self, changes: &[RouteChange]) -> Result<(), Errno> {
        let results: Vec<_> = changes
            .iter()
            .map(|change| self.change_route(change))
            .collect();
        results.into_iter().collect()
    }

    fn change_route(&mut self, change: &RouteChange) -> Result<(), Errno> {
        let RouteChange { prefix, from, to } = change;
        let is_ours = |route: &RouteEntry| {
            route.protocol == PEER_ROUTE_PROTOCOL && route.destination == *prefix
        };
        let Some(to) = to else {
            let from = from.as_ref().and_then(|hop| self.route(change, hop).ok());
            self.routes.retain(|route| Some(route) != from.as_ref());
            return Ok(());
        };
        let new = self.route(change, to)?;
        if self.routes.contains(&new) {
            return Ok(());
        }
        if from.is_none() && self.routes.iter().any(is_ours) {
            return Err(Errno::EEXIST);
        }
        self.routes.retain(|route| !is_ours(route));
        self.routes.push(new);
        Ok(())
    }

    fn route(&self, change: &RouteChange, hop: &NextHop) -> Result<RouteEntry, Errno> {
        let link = self.link(&hop.link)?;
        if !link.up {
            return Err(Errno::ENETDOWN);
        }
        Ok(RouteEntry {
            destination: change.prefix,
            gateway: Some(hop.gateway),
            link: link.index,
            table: MAIN,
            mtu: None,
            protocol: PEER_ROUTE_PROTOCOL,
        })
    }
}
