//! Bandwidth limits in the API: parses limits to set, and renders those in effect with their
//! counters.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Instant;

use api::{BandwidthSetting, BandwidthView, LimitView};
use cni::{Error, RequestedLimits};
use engine::{LimitChange, LimitUpdate};
use kernel::{Measured, PodCounters};
use model::{Attachment, AttachmentKey, Bandwidth, Limit, Record, ShapedSubnets};
use steps::Shape;

use crate::app::App;
use crate::http::failure::{Failure, UNKNOWN_CONTAINER};
use crate::telemetry::rates::Rates;

/// Text of a rate for "no limit".
const NONE: &str = "none";

/// Logged once: a runtime that passes a placeholder burst does so for every pod.
static PLACEHOLDER: Once = Once::new();

/// Logs that the burst in the request is a placeholder of the runtime and is ignored.
pub(crate) fn log_placeholder_burst(limits: &RequestedLimits) {
    if limits.placeholder {
        PLACEHOLDER.call_once(|| {
            tracing::info!(
                "placeholder bursts of the runtime are ignored: a burst is a quarter of a second of the rate"
            );
        });
    }
}

impl App {
    /// Sets the limits of a container's interface, by default of its only one, and returns the
    /// limits that are in effect.
    pub(crate) async fn set_limits(
        &self,
        id: &str,
        ifname: Option<&str>,
        wanted: &BandwidthSetting,
    ) -> Result<BandwidthSetting, Failure> {
        let change = LimitChange {
            ingress: parse_limit("ingress", wanted.ingress.as_deref())?,
            egress: parse_limit("egress", wanted.egress.as_deref())?,
        };
        let records = self.handle.attachments().await?;
        let keys = records.into_iter().map(|record| record.attachment.key);
        let key = single_interface(keys.collect(), id, ifname)?;
        Ok(setting(&self.handle.set_limits(key, change).await?))
    }

    /// Returns the current rates of limited pods by slot, since the previous call; without a recent
    /// one, it samples the counters twice, a short interval apart.
    pub(crate) async fn rates(
        &self,
        records: &[Record],
        measured: Option<&Measured>,
    ) -> BTreeMap<u32, Rates> {
        let is_limited = |record: &Record| !record.attachment.bandwidth.is_unlimited();
        let Some(measured) = measured.filter(|_| records.iter().any(is_limited)) else {
            return BTreeMap::new();
        };
        let pause = match self.rate_sampler.rates(measured, Instant::now()) {
            Ok(rates) => return rates,
            Err(pause) => pause,
        };
        tokio::time::sleep(pause).await;
        let again = self.handle.measure().await;
        let rates = again.map(|measured| self.rate_sampler.rates(&measured, Instant::now()));
        // No rates if the counters cannot be read, or if a concurrent call has just sampled them.
        rates.ok().and_then(Result::ok).unwrap_or_default()
    }
}

/// Returns the interface of that name, or the container's only one. Of several interfaces none is
/// chosen: the limits may be meant for all of them.
pub(crate) fn single_interface(
    mut keys: Vec<AttachmentKey>,
    id: &str,
    ifname: Option<&str>,
) -> Result<AttachmentKey, Error> {
    keys.retain(|key| {
        let named = ifname.is_none_or(|name| key.ifname.as_str() == name);
        key.container_id.as_str() == id && named
    });
    let names: Vec<String> = keys.iter().map(|key| key.ifname.to_string()).collect();
    match (keys.pop(), names.len()) {
        (Some(key), 1) => Ok(key),
        (Some(_), _) => Err(Error::invalid_config(format!(
            "container {id:?} has several interfaces: specify one of {}",
            names.join(", ")
        ))),
        (None, _) => {
            let which = ifname.unwrap_or_default();
            let message = format!("container {id:?} has no attachment {which}");
            Err(Error::new(UNKNOWN_CONTAINER, message))
        }
    }
}

/// Parses the new limit of one direction: absent for unchanged, `none`, or a rate in bit/s.
fn parse_limit(direction: &str, text: Option<&str>) -> Result<LimitUpdate, Error> {
    let Some(text) = text else {
        return Ok(LimitUpdate::Keep);
    };
    if text == NONE {
        return Ok(LimitUpdate::Lift);
    }
    let invalid = |why: String| Error::invalid_config(format!("{direction}: {why}"));
    let rate = cni::parse_rate(text).map_err(invalid)?;
    let limit = |rate| Limit { rate, burst: None };
    Ok(rate
        .try_into()
        .map_or(LimitUpdate::Lift, |rate| LimitUpdate::Limit(limit(rate))))
}

fn setting(bandwidth: &Bandwidth) -> BandwidthSetting {
    let text = |limit: Option<Limit>| match limit {
        Some(limit) => Some(limit.rate.to_string()),
        None => Some(NONE.to_owned()),
    };
    BandwidthSetting {
        ingress: text(bandwidth.ingress),
        egress: text(bandwidth.egress),
    }
}

/// Returns the limits of an attachment, with their counters if these could be read.
pub(crate) fn view(
    attachment: &Attachment,
    counters: Option<&PodCounters>,
    rates: Rates,
) -> BandwidthView {
    let Bandwidth {
        ingress,
        egress,
        shaped_subnets,
    } = attachment.bandwidth;
    let prefixes = shaped_subnets.prefixes();
    let texts = prefixes.iter().map(|prefix| prefix.to_string());
    let (shaped, unshaped) = match shaped_subnets {
        ShapedSubnets::All => (Vec::new(), Vec::new()),
        ShapedSubnets::Only(_) => (texts.collect(), Vec::new()),
        ShapedSubnets::Except(_) => (Vec::new(), texts.collect()),
    };
    BandwidthView {
        shaped_subnets: shaped,
        unshaped_subnets: unshaped,
        ingress: ingress.map(|limit| LimitView {
            current_rate: rates.ingress,
            ..one(limit, counters.map(|both| &both.shaped_ingress))
        }),
        egress: egress.map(|limit| LimitView {
            current_rate: rates.egress,
            ..one(limit, counters.map(|both| &both.shaped_egress))
        }),
    }
}

fn one(limit: Limit, shaped: Option<&abi::Shaped>) -> LimitView {
    let Shape { rate, burst } = planner::token_bucket(limit);
    let shaped = shaped.copied().unwrap_or_default();
    LimitView {
        rate,
        burst,
        passed_packets: shaped.passed_packets,
        passed_bytes: shaped.passed_bytes,
        marked_packets: shaped.marked_packets,
        marked_bytes: shaped.marked_bytes,
        delayed_packets: shaped.delayed_packets,
        spared_packets: shaped.spared_packets,
        dropped_packets: shaped.dropped_packets,
        dropped_bytes: shaped.dropped_bytes,
        ..LimitView::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ifname_is_required_only_for_a_container_with_several_interfaces() {
        let key = |id: &str, ifname: &str| AttachmentKey {
            network: "net".parse().unwrap(),
            container_id: id.parse().unwrap(),
            ifname: ifname.parse().unwrap(),
        };
        let keys = vec![key("a", "eth0"), key("b", "eth0"), key("b", "net1")];
        let one = |id, ifname| single_interface(keys.clone(), id, ifname);
        assert_eq!(one("a", None).unwrap(), key("a", "eth0"));
        assert_eq!(one("b", Some("net1")).unwrap(), key("b", "net1"));
        let error = one("b", None).unwrap_err();
        assert!(error.msg.contains("eth0, net1"), "{error:?}");
        for (id, ifname) in [("c", None), ("a", Some("net1"))] {
            assert_eq!(one(id, ifname).unwrap_err().code, UNKNOWN_CONTAINER);
        }
    }

    #[test]
    fn a_limit_is_a_quantity_or_none_and_an_absent_one_is_kept() {
        assert_eq!(parse_limit("ingress", None).unwrap(), LimitUpdate::Keep);
        assert_eq!(
            parse_limit("ingress", Some("none")).unwrap(),
            LimitUpdate::Lift
        );
        let LimitUpdate::Limit(limit) = parse_limit("ingress", Some("50M")).unwrap() else {
            panic!("a rate is a limit");
        };
        assert_eq!((limit.rate.get(), limit.burst), (50_000_000, None));
        for (text, words) in [
            ("fast", "egress: \"fast\" is not a quantity"),
            ("0", "egress: resource is unreasonably small (< 1kbit)"),
            ("-5M", "egress: resource is unreasonably small (< 1kbit)"),
            ("2P", "egress: resource is unreasonably large (> 1Pbit)"),
        ] {
            let error = parse_limit("egress", Some(text)).unwrap_err();
            assert!(error.msg.contains(words), "{}", error.msg);
        }
    }
}
