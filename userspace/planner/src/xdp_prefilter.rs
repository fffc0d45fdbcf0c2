//! XDP prefilter on uplinks: an optional program that drops malformed and spoofed frames in the
//! driver.

use std::collections::BTreeSet;

use model::IfName;
use steps::{LinkKind, Observed, Step, XdpPrefilterStep};

use crate::own_links::OwnLinks;
use crate::uplink::uplinks;
use crate::{NodeIntent, Plan, Records, XdpPrefilterMode};

/// Plans the XDP prefilters of the node. Separate from [`crate::plan_node`], so that no ADD fails
/// because a driver rejects XDP programs.
pub fn plan_xdp_prefilters(intent: &NodeIntent, observed: &Observed, records: &Records) -> Plan {
    match intent.xdp_prefilter {
        XdpPrefilterMode::Off => detach_all(observed),
        XdpPrefilterMode::Native => {
            let ours = OwnLinks::of_networks(&intent.networks, observed).with_records(records);
            let mut wanted = uplinks(&intent.uplinks, observed, &ours);
            wanted.retain(|name| supports_xdp(name, observed));
            plan(&wanted, observed)
        }
    }
}

/// Detaches the prefilter from every link.
pub(crate) fn detach_all(observed: &Observed) -> Plan {
    plan(&BTreeSet::new(), observed)
}

/// Attaches the prefilter to the `wanted` links and detaches it from all others.
fn plan(wanted: &BTreeSet<IfName>, observed: &Observed) -> Plan {
    let attached = &observed.xdp_prefilters;
    let is_current = |name: &IfName| attached.get(name).is_some_and(|it| it.is_current);
    let unwanted = attached.keys().filter(|name| !wanted.contains(*name));
    let missing = wanted.iter().filter(|name| !is_current(name));
    let detached = unwanted.cloned().map(XdpPrefilterStep::Detach);
    let attached = missing.cloned().map(XdpPrefilterStep::Attach);
    Plan::of(detached.chain(attached).map(Step::XdpPrefilter))
}

/// Returns whether XDP in native mode applies to the link: not to bridges, tunnels, and links
/// without Ethernet headers.
fn supports_xdp(name: &IfName, observed: &Observed) -> bool {
    let link = observed.links.get(name);
    !observed.tunnels.contains_key(name)
        && link.is_some_and(|link| !matches!(link.kind, LinkKind::Raw | LinkKind::Bridge))
}

#[cfg(test)]
mod tests {
    use super::*;
    use steps::AttachedPrefilter;

    use crate::testing::link;

    fn name(text: &str) -> IfName {
        text.parse().unwrap()
    }

    /// A node whose `eth0` has this agent's prefilter (`true`), a previous agent's, or none.
    fn node(attached: Option<bool>) -> Observed {
        let mut observed = Observed::default();
        observed
            .links
            .insert(name("eth0"), link(2, LinkKind::Ethernet, &[]));
        let prefilter = attached.map(|is_current| (name("eth0"), AttachedPrefilter { is_current }));
        observed.xdp_prefilters.extend(prefilter);
        observed
    }

    /// The planned steps where `uplink` is the uplink.
    fn planned(xdp_prefilter: XdpPrefilterMode, uplink: &str, observed: &Observed) -> Vec<String> {
        let intent = NodeIntent {
            uplinks: BTreeSet::from([name(uplink)]),
            xdp_prefilter,
            ..NodeIntent::default()
        };
        let plan = plan_xdp_prefilters(&intent, observed, &Records::new());
        plan.steps().iter().map(ToString::to_string).collect()
    }

    fn steps(mode: XdpPrefilterMode, attached: Option<bool>) -> Vec<String> {
        planned(mode, "eth0", &node(attached))
    }

    #[test]
    fn the_xdp_prefilter_is_attached_once_and_detached_when_off() {
        assert_eq!(
            steps(XdpPrefilterMode::Native, None),
            ["attach the XDP prefilter to eth0"]
        );
        assert!(steps(XdpPrefilterMode::Native, Some(true)).is_empty());
        assert!(steps(XdpPrefilterMode::Off, None).is_empty());
        let detached = ["detach the XDP prefilter from eth0"];
        assert_eq!(steps(XdpPrefilterMode::Off, Some(true)), detached);
        assert_eq!(steps(XdpPrefilterMode::Off, Some(false)), detached);
    }

    #[test]
    fn the_xdp_prefilter_of_a_previous_agent_is_replaced() {
        let replaced = steps(XdpPrefilterMode::Native, Some(false));
        assert_eq!(replaced, ["attach the XDP prefilter to eth0"]);
    }

    #[test]
    fn a_former_uplink_loses_its_xdp_prefilter() {
        let steps = planned(XdpPrefilterMode::Native, "eth1", &node(Some(true)));
        assert_eq!(steps, ["detach the XDP prefilter from eth0"]);
    }

    #[test]
    fn bridges_and_raw_links_get_no_xdp_prefilter() {
        for kind in [LinkKind::Raw, LinkKind::Bridge] {
            let mut observed = node(None);
            for link in observed.links.values_mut() {
                link.kind = kind;
            }
            assert!(planned(XdpPrefilterMode::Native, "eth0", &observed).is_empty());
        }
    }

    #[test]
    fn xdp_prefilter_modes_round_trip() {
        for word in ["off", "native"] {
            assert_eq!(word.parse::<XdpPrefilterMode>().unwrap().to_string(), word);
        }
        let error = "generic".parse::<XdpPrefilterMode>().unwrap_err();
        assert!(error.contains("none of"), "{error}");
    }
}
