//! Excludes published host ports from the kernel's ephemeral ports (`ip_local_reserved_ports`).
//!
//! A connection of the node from a published port would lose its replies to the pod behind that
//! port. Ports that other software has reserved stay reserved: only ports that this agent added are
//! removed again.

use model::{Attachment, PortSet};
use steps::{Step, SysctlKey};

/// Returns the sysctl that [`plan_local_reserved_ports`] reads and writes.
pub fn local_reserved_ports_key() -> SysctlKey {
    SysctlKey("net/ipv4/ip_local_reserved_ports".to_owned())
}

/// Planned value of `ip_local_reserved_ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalReservedPorts {
    /// Ports that this agent has reserved after the step. The caller stores them together with the
    /// ports of before until the step is done: a surplus port does no harm, a forgotten one would
    /// stay reserved for good.
    pub ours: PortSet,
    /// Step that writes the sysctl; `None` when the value is right already.
    pub step: Option<Step>,
}

/// Returns the host ports that the attachments publish, of any address and protocol; without those
/// that are published at a pod's own address.
pub fn published_ports<'a>(attachments: impl IntoIterator<Item = &'a Attachment>) -> PortSet {
    attachments
        .into_iter()
        .flat_map(|attachment| {
            let mappings = attachment.port_mappings.iter();
            mappings.filter(|mapping| !attachment.is_direct(mapping))
        })
        .map(|mapping| mapping.host_port.get())
        .collect()
}

/// Plans the sysctl for the `published` ports. `ours` are the ports reserved by this agent before,
/// `value` is that of [`local_reserved_ports_key`]. Without the sysctl, or with a value that does
/// not parse, nothing is planned.
pub fn plan_local_reserved_ports(
    published: &PortSet,
    ours: &PortSet,
    value: Option<&str>,
) -> LocalReservedPorts {
    let key = local_reserved_ports_key();
    let Some((now, value)) = value.and_then(|value| Some((parse(value)?, value))) else {
        return LocalReservedPorts::default();
    };
    let others = now.difference(ours);
    let wanted = others.union(published);
    let step = (wanted != now).then(|| Step::SetSysctl {
        key,
        value: write(&wanted),
        previous: value.to_owned(),
    });
    let ours = published.difference(&others);
    LocalReservedPorts { ours, step }
}

/// Parses a comma-separated list of ports and port ranges (`80,9000-9002`).
fn parse(text: &str) -> Option<PortSet> {
    let mut ports = PortSet::default();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        ports.extend(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?);
    }
    Some(ports)
}

/// Formats ports as the kernel prints the sysctl: ascending ranges. Writing the empty line clears
/// the set.
fn write(ports: &PortSet) -> String {
    let text = |(first, last): &(u16, u16)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    let texts: Vec<String> = ports.ranges().iter().map(text).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{attachment, intent, port};

    fn value(planned: &LocalReservedPorts) -> Option<&str> {
        let Step::SetSysctl { value, .. } = planned.step.as_ref()? else {
            panic!("a sysctl is set");
        };
        Some(value)
    }

    #[test]
    fn every_port_of_an_attachment_is_published() {
        let mut intent = intent("c1");
        intent.port_mappings = vec![port("80->80/tcp"), port("192.0.2.1@81->80/udp")];
        assert_eq!(published_ports([&attachment(&intent)]), [80, 81].into());
    }

    #[test]
    fn ports_reserved_by_other_software_stay_reserved() {
        let before = Some("8080,9000-9002");
        let planned = plan_local_reserved_ports(&[8080, 8081].into(), &PortSet::default(), before);
        assert_eq!(value(&planned), Some("8080-8081,9000-9002"));
        assert_eq!(planned.ours, [8081].into());
        // Other software reserves port 7 meanwhile.
        let later = Some("7,8080-8081,9000-9002");
        let released = plan_local_reserved_ports(&PortSet::default(), &planned.ours, later);
        assert_eq!(value(&released), Some("7,8080,9000-9002"));
        assert!(released.ours.is_empty());
    }

    #[test]
    fn ports_already_reserved_need_no_step() {
        let planned = plan_local_reserved_ports(&[80].into(), &[80].into(), Some("80"));
        assert_eq!(value(&planned), None);
        assert_eq!(planned.ours, [80].into());
        let nothing = plan_local_reserved_ports(&[80].into(), &PortSet::default(), None);
        assert_eq!(nothing, LocalReservedPorts::default());
    }

    fn ports(end: u16) -> impl Strategy<Value = PortSet> {
        prop::collection::vec(1..end, 0..40).prop_map(PortSet::from_iter)
    }

    proptest! {
        #[test]
        fn reserved_ports_round_trip(ports in ports(70)) {
            prop_assert_eq!(parse(&write(&ports)), Some(ports));
        }

        #[test]
        fn releasing_reserved_ports_restores_the_sysctl(
            before in ports(40),
            published in ports(40),
        ) {
            let first = write(&before);
            let planned = plan_local_reserved_ports(&published, &PortSet::default(), Some(&first));
            let between = value(&planned).unwrap_or(&first);
            let after =
                plan_local_reserved_ports(&PortSet::default(), &planned.ours, Some(between));
            let left = value(&after).unwrap_or(between);
            prop_assert_eq!(left, &first);
        }
    }
}
