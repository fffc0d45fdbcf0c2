//! Facts that the node's conditions are decided from: routes of sample packets by the routes of the
//! in-memory kernel, and what a test has set.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Cidr, IfName};
use steps::{CheckFacts, CheckQuery, RouteAnswer, RouteQuery, SysctlKey};

use super::world::{MAIN, World};

impl World {
    pub(super) fn check_facts(&self, query: &CheckQuery) -> CheckFacts {
        let answers = query.routes.iter().filter_map(|queried| {
            let answer = self.route_answer(queried)?;
            Some((queried.clone(), answer))
        });
        CheckFacts {
            routes: answers.collect(),
            sysctls: self.chosen_sysctls(&query.sysctls),
            ..self.facts.clone()
        }
    }

    /// Answers as the kernel does (`ip_route_input_slow`): the source is validated for packets that
    /// are delivered and for those that are forwarded; the main table alone has routes.
    fn route_answer(&self, query: &RouteQuery) -> Option<RouteAnswer> {
        let Some((source, link)) = &query.received else {
            return Some(self.way_to(query.to));
        };
        let index = self.link(link).ok()?.index;
        let way = self.way_to(query.to);
        let is_forwarded = way != RouteAnswer::Local;
        if is_forwarded && self.is_zero("forwarding", link) {
            return Some(RouteAnswer::Unreachable);
        }
        let is_filtered = way != RouteAnswer::Unreachable && self.is_filtered(*source, link, index);
        Some(if is_filtered {
            RouteAnswer::Unreachable
        } else {
            way
        })
    }

    pub(super) fn own_addresses(&self, addresses: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let own = addresses.iter().copied();
        own.filter(|address| self.way_to(*address) == RouteAnswer::Local)
            .collect()
    }

    /// Returns the way of a packet by the longest prefix; of equal ones, the first.
    fn way_to(&self, to: IpAddr) -> RouteAnswer {
        let is_own = |own: &model::InterfaceAddress| own.address == to;
        let mut links = self.links.values();
        if links.any(|link| link.addresses.iter().any(is_own)) {
            return RouteAnswer::Local;
        }
        let routes = self.all_routes();
        let fitting = routes
            .iter()
            .filter(|route| route.table == MAIN && route.destination.contains(to));
        let longest = fitting
            .clone()
            .map(|route| route.destination.prefix_len())
            .max();
        let first = fitting
            .into_iter()
            .find(|route| Some(Cidr::prefix_len(&route.destination)) == longest);
        first.map_or(RouteAnswer::Unreachable, |route| {
            RouteAnswer::Leaves(route.link)
        })
    }

    fn is_filtered(&self, source: IpAddr, link: &IfName, index: u32) -> bool {
        let value = |of: &str| {
            let key = SysctlKey(format!("net/ipv4/conf/{of}/rp_filter"));
            let text = self.sysctls.get(&key);
            text.and_then(|text| text.parse::<u8>().ok()).unwrap_or(0)
        };
        match value("all").max(value(link.as_str())) {
            0 => false,
            1 => self.way_to(source) != RouteAnswer::Leaves(index),
            _loose => !matches!(self.way_to(source), RouteAnswer::Leaves(_)),
        }
    }

    fn is_zero(&self, name: &str, link: &IfName) -> bool {
        let key = SysctlKey(format!("net/ipv4/conf/{link}/{name}"));
        self.sysctls.get(&key).is_some_and(|value| value == "0")
    }
}
