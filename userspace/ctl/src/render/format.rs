//! Texts of single values: names, rates, amounts, durations.

use api::PodView;

/// Returns the pod as `namespace/name`, or else the short container ID.
pub(crate) fn pod_name(pod: Option<&PodView>, container: Option<&String>) -> String {
    match (pod, container) {
        (Some(pod), _) => format!("{}/{}", pod.namespace, pod.name),
        (None, Some(container)) => short_id(container),
        (None, None) => "(node)".to_owned(),
    }
}

/// Shortens a text to `width` characters: the beginning and the end of names distinguish pods.
pub(crate) fn shortened(name: &str, width: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= width {
        return name.to_owned();
    }
    if width == 0 {
        return String::new();
    }
    let head = width.saturating_sub(1) / 2;
    let tail = width.saturating_sub(head + 1);
    let head = letters.iter().take(head);
    let tail = letters.iter().skip(letters.len() - tail);
    head.chain([&'…']).chain(tail).collect()
}

/// Formats bits per second with at most three digits and a decimal unit prefix.
pub(crate) fn bits(rate: f64) -> String {
    let units = ["", "k", "M", "G", "T", "P"];
    let mut rate = rate;
    let mut unit = units[0];
    for larger in &units[1..] {
        if rate < 999.5 {
            break;
        }
        rate /= 1_000.0;
        unit = larger;
    }
    if rate < 9.95 && !unit.is_empty() {
        format!("{rate:.1}{unit}")
    } else {
        format!("{rate:.0}{unit}")
    }
}

/// Formats a number of packets, with their bytes.
pub(crate) fn traffic(packets: u64, bytes: u64) -> String {
    let (amount, unit) = match bytes {
        0..=9_999 => (bytes, "B"),
        10_000..=9_999_999 => (bytes / 1_000, "kB"),
        10_000_000..=9_999_999_999 => (bytes / 1_000_000, "MB"),
        _ => (bytes / 1_000_000_000, "GB"),
    };
    format!("{packets} ({amount} {unit})")
}

/// Formats a duration with its two largest units, for example `1 h 5 min`.
pub(crate) fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    if days > 0 {
        format!("{days} d {hours} h")
    } else if hours > 0 {
        format!("{hours} h {minutes} min")
    } else if minutes > 0 {
        format!("{minutes} min {rest} s")
    } else {
        format!("{rest} s")
    }
}

/// Returns the first 12 characters of a container ID. IDs of `viaductctl cni` differ behind a
/// common prefix, so they are whole.
pub(crate) fn short_id(container_id: &str) -> String {
    if container_id.starts_with(crate::cni::ID_PREFIX) {
        return container_id.to_owned();
    }
    container_id.chars().take(12).collect()
}

/// Joins items with commas; `-` if there are none, so that the number of columns is constant.
pub(crate) fn join(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() {
        return "-".to_owned();
    }
    items.join(",")
}
