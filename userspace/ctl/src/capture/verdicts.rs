//! What is known about captured frames: the drop events of the pod, and the translations of its
//! flows. Frames wait for both a moment before they are written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use api::{DropEvent, FlowView};

use super::frame::{Filter, Frame};

/// Time that a frame waits for a drop event: the agent reads events within a fraction of it.
pub(super) const WAIT: Duration = Duration::from_millis(400);
/// Largest difference between the times of a frame and of its drop event, in milliseconds.
const SAME_MS: u128 = 1000;
/// Flows whose translation has been written once, at most.
const KNOWN_FLOWS: usize = 1 << 16;

/// Protocol, source and destination.
type Ends = (String, String, String);

/// Frames and events in the order in which they arrived.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    frames: VecDeque<(Instant, Frame, Vec<String>)>,
    events: VecDeque<(Instant, DropEvent)>,
    known: BTreeSet<(bool, Ends)>,
}

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A frame, with what is known about it.
    Frame(Frame, Vec<String>),
    /// A dropped packet that the pod's interface has not seen.
    Dropped(Box<DropEvent>),
}

impl Waiting {
    pub(super) fn frame(&mut self, frame: Frame, now: Instant) {
        self.frames.push_back((now, frame, Vec::new()));
    }

    /// Adds an event. The frame of it may be there already, or come within [`WAIT`].
    pub(super) fn event(&mut self, event: DropEvent, now: Instant) {
        self.events.push_back((now, event));
    }

    /// Returns whether a frame that becomes due belongs to a flow whose translation has not been
    /// written: then [`Waiting::due`] needs the flows.
    pub(super) fn needs_flows(&self, now: Instant) -> bool {
        self.frames
            .iter()
            .take_while(|(since, ..)| is_due(*since, now))
            .filter_map(|(_, frame, _)| key(frame))
            .any(|key| !self.known.contains(&key))
    }

    /// Returns what has waited long enough, in its order.
    pub(super) fn due(&mut self, now: Instant, flows: &[FlowView], filter: &Filter) -> Vec<Record> {
        self.join();
        let translations = translations(flows);
        let mut records = Vec::new();
        while let Some((since, ..)) = self.frames.front()
            && is_due(*since, now)
            && let Some((_, frame, mut comments)) = self.frames.pop_front()
        {
            comments.extend(self.translation(&frame, &translations));
            records.push(Record::Frame(frame, comments));
        }
        while let Some((since, _)) = self.events.front()
            && is_due(*since, now)
            && let Some((_, event)) = self.events.pop_front()
        {
            if is_wanted(&event, filter) {
                records.push(Record::Dropped(Box::new(event)));
            }
        }
        records
    }

    /// Gives each frame that the pod has sent the event of its drop.
    fn join(&mut self) {
        let frames = &mut self.frames;
        self.events.retain(|(_, event)| {
            let found = frames
                .iter_mut()
                .rev()
                .find(|(_, frame, comments)| comments.is_empty() && is_same(frame, event));
            let Some((_, _, comments)) = found else {
                return true;
            };
            comments.push(dropped(event));
            false
        });
    }

    /// Returns the translation of a frame that is the first one of its flow in this capture.
    fn translation(
        &mut self,
        frame: &Frame,
        translations: &BTreeMap<(bool, Ends), String>,
    ) -> Option<String> {
        let key = key(frame)?;
        if self.known.len() >= KNOWN_FLOWS {
            self.known.clear();
        }
        if !self.known.insert(key.clone()) {
            return None;
        }
        translations.get(&key).cloned()
    }
}

fn is_due(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= WAIT
}

fn key(frame: &Frame) -> Option<(bool, Ends)> {
    let (source, destination) = frame.summary.ends_text()?;
    Some((
        frame.is_sent,
        (frame.summary.protocol.clone(), source, destination),
    ))
}

/// Returns what each flow makes of packets that the pod sends (`true`) or receives, by what its
/// interface sees.
fn translations(flows: &[FlowView]) -> BTreeMap<(bool, Ends), String> {
    let of = |flow: &FlowView, source: &str, destination: &str| {
        (
            flow.protocol.clone(),
            source.to_owned(),
            destination.to_owned(),
        )
    };
    let mut found = BTreeMap::new();
    for flow in flows.iter().filter(|flow| flow.seen != flow.translated) {
        let (seen, translated) = (&flow.seen, &flow.translated);
        let text = |verb: &str, source: &str, destination: &str| {
            format!("{}: {verb} {source} -> {destination}", flow.kind)
        };
        if flow.kind == "published" {
            found.insert(
                (false, of(flow, &translated.source, &translated.destination)),
                text("was", &seen.source, &seen.destination),
            );
            found.insert(
                (true, of(flow, &translated.destination, &translated.source)),
                text("becomes", &seen.destination, &seen.source),
            );
        } else {
            found.insert(
                (true, of(flow, &seen.source, &seen.destination)),
                text("becomes", &translated.source, &translated.destination),
            );
            found.insert(
                (false, of(flow, &seen.destination, &seen.source)),
                text("was", &translated.destination, &translated.source),
            );
        }
    }
    found
}

/// Returns whether the event is about this frame.
fn is_same(frame: &Frame, event: &DropEvent) -> bool {
    let (Some((source, destination)), Some(packet)) = (frame.summary.ends_text(), &event.packet)
    else {
        return false;
    };
    frame.is_sent
        && event.hook == "from_pod"
        && frame.summary.protocol == event.protocol
        && packet.source == source
        && packet.destination == destination
        && frame.at.as_millis().abs_diff(u128::from(event.at_ms)) <= SAME_MS
}

/// Returns whether an event passes the filter.
fn is_wanted(event: &DropEvent, filter: &Filter) -> bool {
    let ends = event.packet.as_ref().and_then(|packet| {
        let parse = |text: &str| {
            text.parse()
                .or_else(|_| text.parse().map(|ip| std::net::SocketAddr::new(ip, 0)))
                .ok()
        };
        parse(&packet.source).zip(parse(&packet.destination))
    });
    filter.matches(&super::frame::Summary {
        protocol: event.protocol.clone(),
        ends,
        detail: String::new(),
    })
}

/// Returns the comment of a dropped packet.
pub(super) fn dropped(event: &DropEvent) -> String {
    let like = match event.count {
        0 | 1 => String::new(),
        count => format!(", with {} like it", count - 1),
    };
    format!("dropped by {} as {}{like}", event.hook, event.reason)
}

#[cfg(test)]
mod tests {
    use api::EndsView;

    use super::*;
    use crate::capture::frame::tests::syn;

    fn ends(source: &str, destination: &str) -> EndsView {
        EndsView {
            source: source.to_owned(),
            destination: destination.to_owned(),
        }
    }

    fn event(hook: &str, count: u64) -> DropEvent {
        DropEvent {
            at_ms: 1_790_000_000_200,
            reason: "martian".to_owned(),
            count,
            hook: hook.to_owned(),
            protocol: "tcp".to_owned(),
            packet: Some(ends("10.244.1.2:40123", "198.51.100.7:443")),
            ..DropEvent::default()
        }
    }

    #[test]
    fn a_frame_gets_the_verdict_of_its_drop_event_whichever_comes_first() {
        for is_event_first in [true, false] {
            let (mut waiting, now) = (Waiting::default(), Instant::now());
            if is_event_first {
                waiting.event(event("from_pod", 3), now);
            }
            waiting.frame(syn(true, (40_123, 443)), now);
            if !is_event_first {
                waiting.event(event("from_pod", 3), now);
            }
            let filter = Filter::default();
            assert_eq!(waiting.due(now, &[], &filter), []);
            let due = waiting.due(now + WAIT, &[], &filter);
            let comment = "dropped by from_pod as martian, with 2 like it".to_owned();
            assert_eq!(
                due,
                [Record::Frame(syn(true, (40_123, 443)), vec![comment])]
            );
        }
    }

    #[test]
    fn a_packet_that_was_dropped_before_the_pod_is_a_record_of_its_own() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        waiting.frame(syn(false, (40_123, 443)), now);
        waiting.event(event("uplink_in", 1), now);
        let due = waiting.due(now + WAIT, &[], &Filter::default());
        assert_eq!(due[0], Record::Frame(syn(false, (40_123, 443)), Vec::new()));
        assert_eq!(due[1], Record::Dropped(Box::new(event("uplink_in", 1))));
        waiting.event(event("uplink_in", 1), now);
        let filter = Filter {
            port: Some(80),
            ..Filter::default()
        };
        assert_eq!(waiting.due(now + WAIT, &[], &filter), []);
    }

    #[test]
    fn the_first_frame_of_a_translated_flow_has_its_translation_in_each_direction() {
        let masqueraded = FlowView {
            protocol: "tcp".to_owned(),
            kind: "masqueraded".to_owned(),
            seen: ends("10.244.1.2:40123", "198.51.100.7:443"),
            translated: ends("192.0.2.1:1024", "198.51.100.7:443"),
            ..FlowView::default()
        };
        let published = FlowView {
            kind: "published".to_owned(),
            seen: ends("10.244.1.2:9", "192.0.2.1:8080"),
            translated: ends("10.244.1.2:9", "198.51.100.7:80"),
            ..masqueraded.clone()
        };
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        for frame in [
            syn(true, (40_123, 443)),
            syn(true, (40_123, 443)),
            syn(false, (9, 80)),
        ] {
            waiting.frame(frame, now);
        }
        assert!(!waiting.needs_flows(now));
        assert!(waiting.needs_flows(now + WAIT));
        let due = waiting.due(now + WAIT, &[masqueraded, published], &Filter::default());
        let comments: Vec<String> = due
            .into_iter()
            .map(|record| match record {
                Record::Frame(_, comments) => comments.join(","),
                Record::Dropped(_) => panic!("no event"),
            })
            .collect();
        assert_eq!(
            comments,
            [
                "masqueraded: becomes 192.0.2.1:1024 -> 198.51.100.7:443",
                "",
                "published: was 10.244.1.2:9 -> 192.0.2.1:8080",
            ]
        );
    }
}
