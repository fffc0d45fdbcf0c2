//! Defaults and ceilings of the default network's bandwidth limits, as Kubernetes quantities.

use std::num::NonZeroU64;

use anyhow::{Result, anyhow};
use model::Rates;

/// Parses the rates of `--ingress-<kind>` and `--egress-<kind>`, in bit/s.
pub(crate) fn rates(kind: &str, ingress: Option<String>, egress: Option<String>) -> Result<Rates> {
    let rate = |direction: &str, text: Option<String>| -> Result<Option<NonZeroU64>> {
        let Some(text) = text else {
            return Ok(None);
        };
        let rate = cni::parse_rate(&text).map_err(|why| anyhow!("{direction}-{kind}: {why}"))?;
        Ok(NonZeroU64::new(rate))
    };
    Ok(Rates {
        ingress: rate("ingress", ingress)?,
        egress: rate("egress", egress)?,
    })
}
