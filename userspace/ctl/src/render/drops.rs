//! Drop events, one line each.

use api::{DropEvent, EndsView};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::format::pod_name;

/// Renders an event as one line: time, pod, program, reason, packet; and, if `with_advice`, a line
/// with what to do.
pub(crate) fn dropped(event: &DropEvent, with_advice: bool) -> String {
    let at = timestamp(event.at_ms);
    if event.reason == "gap" {
        return format!("{at}  {} events were missed\n", event.count);
    }
    let pod = match (&event.ifname, &event.container_id) {
        (Some(ifname), Some(id)) => format!("{} {ifname}", pod_name(event.pod.as_ref(), Some(id))),
        _ => "(node)".to_owned(),
    };
    let parts = [
        Some(at),
        Some(pod),
        Some(place(event)),
        Some(event.reason.clone()),
        Some(packet(event)),
        Some(format!("{} B", event.length)),
        quoted(event),
        (event.count > 1).then(|| format!("{} packets", event.count)),
    ]
    .into_iter()
    .flatten()
    .filter(|part| !part.is_empty());
    let mut text = parts.collect::<Vec<_>>().join("  ") + "\n";
    if with_advice && !event.advice.is_empty() {
        text.push_str("    ");
        text.push_str(&event.advice);
        text.push('\n');
    }
    text
}

/// Returns program and interface, as `uplink_in@eth0`.
fn place(event: &DropEvent) -> String {
    if event.interface.is_empty() {
        event.hook.clone()
    } else {
        format!("{}@{}", event.hook, event.interface)
    }
}

fn packet(event: &DropEvent) -> String {
    let Some(ends) = &event.packet else {
        return if event.ethertype.is_empty() {
            "no addresses".to_owned()
        } else {
            format!("EtherType {}", event.ethertype)
        };
    };
    let icmp = event
        .icmp
        .as_ref()
        .map(|icmp| format!(" {icmp}"))
        .unwrap_or_default();
    let fragment = if event.fragment { " fragment" } else { "" };
    format!("{}{icmp}{fragment} {}", event.protocol, arrow(ends))
}

fn quoted(event: &DropEvent) -> Option<String> {
    let ends = event.quoted.as_ref()?;
    Some(format!("about {} {}", event.quoted_protocol, arrow(ends)))
}

fn arrow(ends: &EndsView) -> String {
    format!("{} -> {}", ends.source, ends.destination)
}

/// Returns a time in UTC as of RFC 3339; of a time that it cannot express, the milliseconds.
pub(super) fn timestamp(at_ms: u64) -> String {
    let nanoseconds = i128::from(at_ms) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)
        .ok()
        .and_then(|at| at.format(&Rfc3339).ok())
        .unwrap_or_else(|| format!("{at_ms} ms"))
}

#[cfg(test)]
mod tests {
    use api::{Event, EventOutcome, PodView};

    use crate::render::event;

    #[test]
    fn an_event_has_the_time_of_its_end_in_utc() {
        let add = Event {
            sequence: 7,
            at: 1_790_000_000,
            time: "2026-09-21T14:13:20Z".to_owned(),
            action: "add".to_owned(),
            subject: "abc/eth0".to_owned(),
            pod: None,
            outcome: EventOutcome::Done,
            message: String::new(),
            duration_us: 0,
        };
        insta::assert_snapshot!(event(&add), @"2026-09-21T14:13:20Z  add       done       abc/eth0");
        let of_pod = Event {
            pod: Some(PodView {
                namespace: "shop".to_owned(),
                name: "web-0".to_owned(),
            }),
            ..add
        };
        insta::assert_snapshot!(event(&of_pod), @"2026-09-21T14:13:20Z  add       done       shop/web-0 (abc/eth0)");
    }
}
