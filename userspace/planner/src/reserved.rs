//! Ports that the node publishes are kept from sockets that take any port (`ip_local_reserved_ports`).
//!
//! A connection of the node from a port that leads to a pod would lose its replies to that pod. What others have
//! reserved stays reserved: only what we added is taken away again. Knows nothing of how a claim is held.

use model::{Attachment, PortSet};

use crate::{Observed, Step, SysctlKey};

/// The sysctl that [`plan_reserved_ports`] wants to see.
pub fn reserved_ports_key() -> SysctlKey {
    SysctlKey("net/ipv4/ip_local_reserved_ports".to_owned())
}

/// What is to be reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedPorts {
    /// The ports that are reserved by us afterwards. To be remembered before and after the step, together with those
    /// of before: a port too many does no harm, one that is forgotten would stay reserved for good.
    pub ours: PortSet,
    /// Reserves them; `None` when they are.
    pub step: Option<Step>,
}

/// The ports of the node that attachments claim.
pub fn claimed_ports<'a>(attachments: impl IntoIterator<Item = &'a Attachment>) -> PortSet {
    attachments
        .into_iter()
        .flat_map(|attachment| &attachment.port_mappings)
        .map(|mapping| mapping.host_port.get())
        .collect()
}

/// Plans what is to be reserved. `ours` is what we have reserved before; `observed` has [`reserved_ports_key`]. A
/// kernel without it, or with a value that is not understood, is left alone.
pub fn plan_reserved_ports(
    claimed: &PortSet,
    ours: &PortSet,
    observed: &Observed,
) -> ReservedPorts {
    let key = reserved_ports_key();
    let Some((now, value)) = observed
        .sysctls
        .get(&key)
        .and_then(|value| Some((parse(value)?, value)))
    else {
        return ReservedPorts::default();
    };
    let others = now.difference(ours);
    let wanted = others.union(claimed);
    let step = (wanted != now).then(|| Step::SetSysctl {
        key,
        value: write(&wanted),
        previous: value.clone(),
    });
    let ours = claimed.difference(&others);
    ReservedPorts { ours, step }
}

/// Ports and ranges of ports with commas between them.
fn parse(text: &str) -> Option<PortSet> {
    let mut ports = PortSet::default();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        ports.extend(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?);
    }
    Some(ports)
}

/// As the kernel writes it: ranges, in order. The empty line empties the set.
fn write(ports: &PortSet) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for port in ports.iter() {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(port) => *last = port,
            _ => ranges.push((port, port)),
        }
    }
    let text = |(first, last): &(u16, u16)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    let texts: Vec<String> = ranges.iter().map(text).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{attachment, intent, port};

    fn observed(value: &str) -> Observed {
        Observed {
            sysctls: [(reserved_ports_key(), value.to_owned())].into(),
            ..Observed::default()
        }
    }

    fn value(planned: &ReservedPorts) -> Option<&str> {
        let Step::SetSysctl { value, .. } = planned.step.as_ref()? else {
            panic!("a sysctl is set");
        };
        Some(value)
    }

    #[test]
    fn every_port_of_an_attachment_is_claimed() {
        let mut intent = intent("c1");
        intent.port_mappings = vec![port("80->80/tcp"), port("192.0.2.1@81->80/udp")];
        assert_eq!(claimed_ports([&attachment(&intent)]), [80, 81].into());
    }

    #[test]
    fn what_others_have_reserved_stays() {
        let before = observed("8080,9000-9002");
        let planned = plan_reserved_ports(&[8080, 8081].into(), &PortSet::default(), &before);
        assert_eq!(value(&planned), Some("8080-8081,9000-9002"));
        assert_eq!(planned.ours, [8081].into());
        // Somebody reserves 7 meanwhile.
        let later = observed("7,8080-8081,9000-9002");
        let released = plan_reserved_ports(&PortSet::default(), &planned.ours, &later);
        assert_eq!(value(&released), Some("7,8080,9000-9002"));
        assert!(released.ours.is_empty());
    }

    #[test]
    fn what_is_reserved_is_no_step() {
        let planned = plan_reserved_ports(&[80].into(), &[80].into(), &observed("80"));
        assert_eq!(value(&planned), None);
        assert_eq!(planned.ours, [80].into());
        let nothing = plan_reserved_ports(&[80].into(), &PortSet::default(), &Observed::default());
        assert_eq!(nothing, ReservedPorts::default());
    }

    fn ports(end: u16) -> impl Strategy<Value = PortSet> {
        prop::collection::vec(1..end, 0..40).prop_map(PortSet::from_iter)
    }

    proptest! {
        #[test]
        fn ports_read_as_they_are_written(ports in ports(70)) {
            prop_assert_eq!(parse(&write(&ports)), Some(ports));
        }

        #[test]
        fn releasing_leaves_what_was_there(
            before in ports(40),
            claimed in ports(40),
        ) {
            let first = observed(&write(&before));
            let planned = plan_reserved_ports(&claimed, &PortSet::default(), &first);
            let between = value(&planned).map_or_else(|| first.clone(), observed);
            let after = plan_reserved_ports(&PortSet::default(), &planned.ours, &between);
            let left = value(&after).map_or_else(|| between.clone(), observed);
            prop_assert_eq!(left, first);
        }
    }
}
