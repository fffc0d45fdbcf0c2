//! Limits of a pod, over the API: texts become a change, and what holds becomes texts.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Instant;

use api::{BandwidthSetting, BandwidthView, LimitView};
use cni::{Asked, Error};
use engine::{LimitChange, Wish};
use kernel::{Measured, PodCounters};
use model::{Attachment, AttachmentKey, Bandwidth, Limit, Peers, Record};
use planner::Shape;

use crate::failure::Failure;
use crate::rates::Rates;
use crate::requests::{App, UNKNOWN_CONTAINER};

/// What a rate says that limits nothing.
const NONE: &str = "none";

/// Told once: a runtime that makes a burst up once does it always.
static PLACEHOLDER: Once = Once::new();

/// Tells that a burst that the runtime made up is not used.
pub(crate) fn note_placeholder(asked: &Asked) {
    if asked.placeholder {
        PLACEHOLDER.call_once(|| {
            tracing::info!(
                "bursts that the runtime makes up give way to a quarter of a second of the rate"
            );
        });
    }
}

impl App {
    /// Sets the limits of a container's interface, by default of its only one, and tells which it has now.
    pub(crate) async fn set_limits(
        &self,
        id: &str,
        ifname: Option<&str>,
        wanted: &BandwidthSetting,
    ) -> Result<BandwidthSetting, Failure> {
        let change = LimitChange {
            ingress: wish("ingress", wanted.ingress.as_deref())?,
            egress: wish("egress", wanted.egress.as_deref())?,
        };
        let records = self.handle.attachments().await?;
        let keys = records.into_iter().map(|record| record.attachment.key);
        let key = the_one(keys.collect(), id, ifname)?;
        Ok(setting(&self.handle.set_limits(key, change).await?))
    }

    /// How much passes limits now, by slot; where nobody has looked of late, it looks again after a moment.
    pub(crate) async fn rates(
        &self,
        records: &[Record],
        measured: Option<&Measured>,
    ) -> BTreeMap<u32, Rates> {
        let is_limited = |record: &Record| !record.attachment.bandwidth.is_unlimited();
        let Some(measured) = measured.filter(|_| records.iter().any(is_limited)) else {
            return BTreeMap::new();
        };
        let pause = match self.looks.rates(measured, Instant::now()) {
            Ok(rates) => return rates,
            Err(pause) => pause,
        };
        tokio::time::sleep(pause).await;
        let again = self.handle.measure().await;
        let rates = again.map(|measured| self.looks.rates(&measured, Instant::now()));
        // Without counters, or with somebody who looks at the same time, nothing is told of now.
        rates.ok().and_then(Result::ok).unwrap_or_default()
    }
}

/// The interface of that name, or the only one. Of several none is taken: each would get what was meant for all.
fn the_one(
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
            "container {id:?} has several interfaces: name one of {}",
            names.join(", ")
        ))),
        (None, _) => {
            let which = ifname.unwrap_or_default();
            let message = format!("no interface {which} of container {id:?} is on record");
            Err(Error::new(UNKNOWN_CONTAINER, message))
        }
    }
}

/// What is to become of one direction.
fn wish(direction: &str, text: Option<&str>) -> Result<Wish, Error> {
    let Some(text) = text else {
        return Ok(Wish::Keep);
    };
    if text == NONE {
        return Ok(Wish::Lift);
    }
    let invalid = |why: String| Error::invalid_config(format!("{direction}: {why}"));
    let rate = cni::rate(text).map_err(invalid)?;
    let limit = |rate| Limit { rate, burst: None };
    Ok(rate
        .try_into()
        .map_or(Wish::Lift, |rate| Wish::Limit(limit(rate))))
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

/// The limits of an attachment, with what they did when that could be read.
pub(crate) fn view(
    attachment: &Attachment,
    counters: Option<&PodCounters>,
    rates: Rates,
) -> BandwidthView {
    let Bandwidth {
        ingress,
        egress,
        peers,
    } = attachment.bandwidth;
    let prefixes = peers.prefixes();
    let texts = prefixes.iter().map(|prefix| prefix.to_string());
    let (shaped, unshaped) = match peers {
        Peers::All => (Vec::new(), Vec::new()),
        Peers::Only(_) => (texts.collect(), Vec::new()),
        Peers::Except(_) => (Vec::new(), texts.collect()),
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
    let Shape { rate, burst } = Shape::of(limit);
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
    fn the_only_interface_needs_no_name_and_of_several_one_is_named() {
        let key = |id: &str, ifname: &str| AttachmentKey {
            network: "net".parse().unwrap(),
            container_id: id.parse().unwrap(),
            ifname: ifname.parse().unwrap(),
        };
        let keys = vec![key("a", "eth0"), key("b", "eth0"), key("b", "net1")];
        let one = |id, ifname| the_one(keys.clone(), id, ifname);
        assert_eq!(one("a", None).unwrap(), key("a", "eth0"));
        assert_eq!(one("b", Some("net1")).unwrap(), key("b", "net1"));
        let error = one("b", None).unwrap_err();
        assert!(error.msg.contains("eth0, net1"), "{error:?}");
        for (id, ifname) in [("c", None), ("a", Some("net1"))] {
            assert_eq!(one(id, ifname).unwrap_err().code, UNKNOWN_CONTAINER);
        }
    }

    #[test]
    fn a_rate_is_a_quantity_or_none_and_what_is_not_given_stays() {
        assert_eq!(wish("ingress", None).unwrap(), Wish::Keep);
        assert_eq!(wish("ingress", Some("none")).unwrap(), Wish::Lift);
        let Wish::Limit(limit) = wish("ingress", Some("50M")).unwrap() else {
            panic!("a rate is a limit");
        };
        assert_eq!((limit.rate.get(), limit.burst), (50_000_000, None));
        for (text, words) in [
            ("fast", "egress: \"fast\" is no quantity"),
            ("0", "egress: resource is unreasonably small (< 1kbit)"),
            ("-5M", "egress: resource is unreasonably small (< 1kbit)"),
            ("2P", "egress: resource is unreasonably large (> 1Pbit)"),
        ] {
            let error = wish("egress", Some(text)).unwrap_err();
            assert!(error.msg.contains(words), "{}", error.msg);
        }
    }
}
