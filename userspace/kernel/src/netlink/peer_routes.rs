//! Adds, replaces and removes routes to peers, by our protocol number.

use std::collections::BTreeMap;
use std::io;

use model::{Cidr, Route, RouteOptions};
use nix::errno::Errno;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::route::{RouteMessage, RouteProtocol};
use steps::{NextHop, PEER_ROUTE_METRIC, PEER_ROUTE_PROTOCOL, RouteChange};

use crate::error::{Failed, is, is_gone};
use crate::netlink::ifindex::Names;
use crate::netlink::routes;
use crate::netlink::socket::{Netlink, Request};

/// Changes whose messages are in memory at once.
const CHUNK: usize = 256;

/// Executes all changes. The error has the first failure, and the number of failures.
pub(crate) fn change(
    netlink: &mut Netlink,
    names: &Names,
    changes: &[RouteChange],
) -> Result<(), Failed> {
    let mut failures = Vec::new();
    for chunk in changes.chunks(CHUNK) {
        let mut sent = Vec::with_capacity(chunk.len());
        let mut requests = Vec::with_capacity(chunk.len());
        for change in chunk {
            match request(names, change) {
                Ok(Some(request)) => {
                    sent.push(change);
                    requests.push(request);
                }
                Ok(None) => {}
                Err(error) => failures.push((change, error)),
            }
        }
        let answers = match netlink.request_all(requests) {
            Ok(answers) => answers,
            Err(error) => return Err(Failed::new("change routes to peers", error)),
        };
        for (change, answer) in sent.into_iter().zip(answers) {
            if let Err(error) = answer
                && !is_done(netlink, names, change, &error)
            {
                failures.push((change, error));
            }
        }
    }
    Failed::first_of("routes to peers", changes.len(), failures)
}

/// Returns the request for one change; `None` where the link of a removed route is gone, and the
/// route with it.
fn request(names: &Names, change: &RouteChange) -> io::Result<Option<Request>> {
    let RouteChange { prefix, from, to } = change;
    if let Some(hop) = to {
        let message = Message::NewRoute(message(names.index(&hop.link)?, *prefix, hop)?);
        let flags = match from {
            // Replaces the route with our metric without a gap.
            Some(_) => NLM_F_CREATE | NLM_F_REPLACE,
            None => NLM_F_CREATE | NLM_F_EXCL,
        };
        return Ok(Some(Request::change(message, flags)));
    }
    let Some(hop) = from else {
        return Ok(None);
    };
    let Some(index) = names.find(&hop.link)? else {
        return Ok(None);
    };
    let message = Message::DelRoute(message(index, *prefix, hop)?);
    Ok(Some(Request::change(message, 0)))
}

fn message(index: u32, prefix: Cidr, hop: &NextHop) -> io::Result<RouteMessage> {
    let route = Route {
        destination: prefix,
        gateway: Some(hop.gateway),
        options: RouteOptions {
            priority: Some(PEER_ROUTE_METRIC),
            ..RouteOptions::default()
        },
    };
    let mut message = routes::message(index, &route)?;
    message.header.protocol = RouteProtocol::from(PEER_ROUTE_PROTOCOL);
    Ok(message)
}

/// Returns whether the kernel refused a change because it was made already.
fn is_done(netlink: &mut Netlink, names: &Names, change: &RouteChange, error: &io::Error) -> bool {
    match &change.to {
        None => is_gone(error),
        Some(hop) if is(error, Errno::EEXIST) => {
            let present = routes::with_protocol(netlink, PEER_ROUTE_PROTOCOL);
            let index = names.index(&hop.link).ok();
            present.is_ok_and(|routes: BTreeMap<Cidr, _>| {
                routes.get(&change.prefix) == index.map(|index| (index, hop.gateway)).as_ref()
            })
        }
        Some(_) => false,
    }
}
