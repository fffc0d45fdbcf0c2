//! Explanations of packets (`GET /v1/why`): crate `explain` over a copy of the datapath's tables
//! and lookups in the kernel. Changes nothing: what the packet would write stays in the copy.

mod observe;
mod parties;
mod view;

use std::path::Path;
use std::sync::Arc;

use abi::{DropReason, Tuple, protocol};
use api::{DropEvent, EndsView, WhyQuery, WhyView};
use cni::Error;
use engine::EngineError;
use explain::{Node, Place, Question, Shape, Snapshot};
use kernel::{DatapathReader, ObserveError};
use model::{NetworkPolicies, Record};
use tokio::task::spawn_blocking;

use crate::app::App;
use crate::http::failure::Failure;
use crate::http::why::parties::Parties;

pub(crate) use observe::ObservedNode;

type Read = dyn Fn() -> Result<ObservedNode, ObserveError> + Send + Sync;

/// Reader of the node's state, which tests replace.
#[derive(Clone)]
pub(crate) struct NodeSource {
    read: Arc<Read>,
}

impl std::fmt::Debug for NodeSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeSource")
    }
}

impl NodeSource {
    /// Makes a source of the datapath that is pinned below `bpffs`, and of the namespace of the
    /// agent.
    pub(crate) fn of_datapath(bpffs: &Path) -> Self {
        let reader = DatapathReader::new(bpffs);
        Self::new(move || ObservedNode::read(&reader))
    }

    pub(crate) fn new(
        read: impl Fn() -> Result<ObservedNode, ObserveError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            read: Arc::new(read),
        }
    }
}

/// What is explained.
enum Subject {
    /// The packet of a query, and the answer to it.
    Packet(WhyQuery),
    /// A packet that was dropped.
    Drop(Arc<DropEvent>),
}

/// Answers a query.
pub(crate) async fn explain(app: &App, query: WhyQuery) -> Result<WhyView, Failure> {
    let subject = match &query.last_drop {
        Some(pod) => {
            let event = app
                .drop_events
                .last_of(pod)
                .ok_or_else(|| none_reported(pod))?;
            Subject::Drop(event)
        }
        None => Subject::Packet(query),
    };
    let records = app.handle.attachments().await?;
    let read = Arc::clone(&app.node.read);
    // Reading a large flow table takes long.
    let policies = Arc::clone(&app.handle.status().policies);
    let explained = spawn_blocking(move || {
        let observed = read().map_err(EngineError::Observe)?;
        explained(&subject, &records, &policies, observed)
    });
    explained
        .await
        .map_err(|_| Error::internal("explaining a packet panicked"))?
}

fn none_reported(pod: &str) -> Error {
    Error::environment(format!(
        "no dropped packet of {pod} was reported: programs report drops while `viaductctl drops` \
         runs, and for five minutes after it. Run `viaductctl drops --follow --pod {pod}`, and try \
         again"
    ))
}

fn explained(
    subject: &Subject,
    records: &[Record],
    policies: &NetworkPolicies,
    observed: ObservedNode,
) -> Result<WhyView, Failure> {
    let mut notes = Vec::new();
    if !observed.tables.is_consistent {
        notes.push("the agent changed the tables while they were copied".to_owned());
    }
    if observed.filters.is_none() {
        notes.push("the filter tables of netfilter could not be read".to_owned());
    }
    let names = view::names(records);
    let snapshot = observed.snapshot(records, names.clone(), policies);
    let mut view = match subject {
        Subject::Packet(query) => packet(query, records, snapshot, &names)?,
        Subject::Drop(event) => dropped(event, snapshot, &names, &mut notes)?,
    };
    view.notes = notes;
    Ok(view)
}

/// Explains the packet of a query.
fn packet(
    query: &WhyQuery,
    records: &[Record],
    snapshot: Snapshot,
    names: &view::Names,
) -> Result<WhyView, Failure> {
    let question = Parties::new(records, &snapshot).question(query)?;
    let links = view::link_names(&snapshot);
    let explanation = explain::explain(&mut Node::new(snapshot), &question);
    let words = view::Words { names, links };
    Ok(WhyView {
        passes: explanation.passes(),
        request: words.leg(&explanation.request),
        answer: explanation.answer.as_ref().map(|leg| words.leg(leg)),
        ..WhyView::default()
    })
}

/// Explains a dropped packet: runs the hook that has dropped it on a packet with the same
/// addresses, and of the kind that is dropped for the reason.
fn dropped(
    event: &Arc<DropEvent>,
    snapshot: Snapshot,
    names: &view::Names,
    notes: &mut Vec<String>,
) -> Result<WhyView, Failure> {
    let refused =
        |missing: &str| Error::environment(format!("the last drop cannot be explained: {missing}"));
    let place = place(&event.hook).ok_or_else(|| refused("it was not a TC program's"))?;
    let mut reasons = DropReason::ALL.into_iter();
    let reason = reasons.find(|it| it.name() == event.reason);
    let tuple =
        sent(event, reason, &snapshot).ok_or_else(|| refused("the packet has no IP addresses"))?;
    let interface = interface_of(event, place, &tuple, &snapshot)
        .ok_or_else(|| refused("its interface is gone"))?;
    let question = Question {
        length: usize::try_from(event.length).unwrap_or(0),
        icmp: event.icmp.as_deref().and_then(icmp),
        quoted: quoted(event),
        shape: reason.map_or(Shape::Plain, Shape::of),
        ..Question::plain(explain::sender_of(&snapshot.tables, &tuple.source), tuple)
    };
    let links = view::link_names(&snapshot);
    let leg = explain::explain_at(&mut Node::new(snapshot), place, interface, &question);
    let words = view::Words { names, links };
    let mut request = words.leg(&leg);
    // The report has no addresses, or no ports, where the program could not read them.
    let reported = event.packet.clone().unwrap_or_default();
    if request.packet != reported {
        (request.packet, request.arrived) = (reported.clone(), reported);
    }
    if request.reason.as_ref() != Some(&event.reason) {
        notes.push(format!(
            "the packet was dropped as {}. A packet with the same addresses is not dropped for that \
             reason now: the tables have changed since, or the reason is in bytes that the report \
             does not contain",
            event.reason
        ));
    }
    Ok(WhyView {
        passes: false,
        request,
        dropped: Some((**event).clone()),
        ..WhyView::default()
    })
}

/// Returns addresses, ports and protocol with which the packet of an event came to the hook.
fn sent(event: &DropEvent, reason: Option<DropReason>, snapshot: &Snapshot) -> Option<Tuple> {
    match (tuple(event), reason) {
        (Some(tuple), Some(DropReason::RewriteFailed)) => {
            Some(explain::before_translation(&snapshot.tables, &tuple))
        }
        (Some(tuple), _) => Some(tuple),
        // The kind of the frame decides, whatever is in it.
        (None, Some(reason)) if Shape::of(reason).is_of_frame() => Some(Tuple::default()),
        (None, _) => None,
    }
}

/// Returns the interface index of the hook that has dropped the packet of an event.
fn interface_of(
    event: &DropEvent,
    place: Place,
    tuple: &Tuple,
    snapshot: &Snapshot,
) -> Option<u32> {
    if event.interface.is_empty() {
        return explain::link_of_held(snapshot, place, tuple);
    }
    let mut links = snapshot.links.iter();
    let found = links.find(|(_, link)| link.name == event.interface);
    found.map(|(index, _)| *index)
}

fn place(hook: &str) -> Option<Place> {
    use abi::maps::programs;
    [
        (programs::FROM_POD, Place::FromPod),
        (programs::TO_POD, Place::ToPod),
        (programs::UPLINK_IN, Place::UplinkIn),
        (programs::UPLINK_OUT, Place::UplinkOut),
    ]
    .into_iter()
    .find(|(name, _)| *name == hook)
    .map(|(_, place)| place)
}

/// Returns addresses, ports and protocol of the packet of an event.
fn tuple(event: &DropEvent) -> Option<Tuple> {
    tuple_of(event.packet.as_ref()?, &event.protocol)
}

/// Returns those of the packet that the packet of an event quotes.
fn quoted(event: &DropEvent) -> Option<Tuple> {
    tuple_of(event.quoted.as_ref()?, &event.quoted_protocol)
}

fn tuple_of(ends: &EndsView, name: &str) -> Option<Tuple> {
    let (source, source_port) = parties::end(&ends.source)?;
    let (destination, destination_port) = parties::end(&ends.destination)?;
    let number = match name {
        "icmp" if source.is_v4() => protocol::ICMP,
        "icmp" => protocol::ICMPV6,
        name => parties::protocol(name)?,
    };
    Some(Tuple {
        source,
        destination,
        source_port: abi::Port::new(source_port.unwrap_or(0)),
        destination_port: abi::Port::new(destination_port.unwrap_or(0)),
        protocol: number,
        ..Tuple::default()
    })
}

/// Parses type and code of an ICMP message.
fn icmp(text: &str) -> Option<(u8, u8)> {
    let (icmp_type, code) = text.split_once('/')?;
    Some((icmp_type.parse().ok()?, code.parse().ok()?))
}
